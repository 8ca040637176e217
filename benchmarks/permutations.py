"""What more orders and more options cost, on the embedded model, side by side in one run.

    uv run --all-extras python benchmarks/permutations.py

Every repeat times every way once, in turn, and the first turn is not counted; the tables give medians. Before timing, the ways are
checked to give the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import tyro
from torch import Tensor

from fused import WORDS, medians
from rlcd_lite.datasets.banking77 import SCHEMA as BANKING77
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.orders import orders, reordered
from rlcd_lite.schema import Schema

TRIAGE = Schema.of(
    {
        "fields": [
            {"name": "severity", "type": "choice", "options": ["low", "medium", "high", "critical"]},
            {"name": "team", "type": "choice", "options": ["billing", "auth", "infra", "frontend"]},
            {"name": "product", "type": "choice", "options": ["web", "app", "api", "store"]},
        ]
    }
)
MESSAGE = "My new card has still not come and it was sent two weeks ago, what should I do now?"


@dataclass
class Args:
    model: str = "smollm2"
    """Model to time."""
    repeats: int = 5
    """Timed runs of every way; the table gives their median."""
    context_tokens: int = 300
    """Tokens of the text that is decided in several orders."""


def engine(args: Args, **chosen: object) -> DecisionEngine:
    return DecisionEngine.load(args.model, **chosen)  # type: ignore[arg-type]


def permutations(args: Args) -> None:
    one = engine(args, layout="context-first")
    (ids,) = one.encoder.data([" ".join(WORDS * args.context_tokens)])
    text = str(one.encoder.tokenizer.decode(list(ids[: args.context_tokens])))
    print(f"{len(TRIAGE.fields)} fields of 4 options, a text of {args.context_tokens} tokens, context-first\n")
    print("| K | tokens of the pass | one pass, s | K passes, s | passes / pass | one pass / K = 1 |")
    print("| --: | --: | --: | --: | --: | --: |")
    single: dict[str, Callable[[], object]] = {"K = 1": partial(one.decide, TRIAGE, text)}
    for count in (1, 2, 4, 8):
        many = engine(args, layout="context-first", permutations=count)
        schemas = [Schema(tuple(reordered(f, orders(len(f.options), count)[k]) for f in TRIAGE.fields)) for k in range(count)]
        agree(one, many, schemas, text, count)
        passes = [partial(one.decide, schema, text) for schema in schemas]
        ways = single | {"one": partial(many.decide, TRIAGE, text), "passes": partial(call_all, passes)}
        before = many.forward.tokens_run
        many.decide(TRIAGE, text)
        tokens = many.forward.tokens_run - before
        t = medians(ways, args.repeats)
        cells = f"{t['one']:.3f} | {t['passes']:.3f} | {t['passes'] / t['one']:.2f} | {t['one'] / t['K = 1']:.2f}"
        print(f"| {count} | {tokens} | {cells} |", flush=True)


def call_all(ways: Sequence[Callable[[], object]]) -> None:
    for way in ways:
        way()


def agree(one: DecisionEngine, many: DecisionEngine, schemas: Sequence[Schema], text: str, count: int) -> None:
    """K orders in one pass are K passes."""
    found = many.decide(TRIAGE, text)
    for j, field in enumerate(TRIAGE.fields):
        each = []
        for k, schema in enumerate(schemas):
            (scores,) = one.score_runs([(schema, [text])])
            order = orders(len(field.options), count)[k]
            each.append(scores[j].choice[[order.index(option) for option in range(len(order))]].log_softmax(-1))
        expected = torch.stack(each).mean(0).softmax(-1)
        assert float((torch.tensor(found.fields[j].probabilities) - expected).abs().max()) < 1e-4


def verbatim(args: Args) -> None:
    fast = engine(args, scoring="verbatim", prior="none")
    prompt = fast.prompt(BANKING77)
    (branch,) = prompt.branches
    ids = prompt.encode(MESSAGE)
    tree = prompt.tree([ids])
    start = tree.path(tree.add(branch.choice_stem, tree.add(branch.stem, prompt.plant(tree, ids))))

    def one_pass() -> Tensor:
        (scores,) = fast.score_runs([(BANKING77, [MESSAGE])])
        return scores[0].choice

    def one_by_one() -> Tensor:
        """A forward an option, of whose head only the option's positions are projected."""
        found = []
        for tokens in branch.choice.spelt:
            path = torch.tensor([[*start, *tokens[:-1]]])
            logits = fast.model(path, use_cache=False, logits_to_keep=len(tokens)).logits[0].log_softmax(-1)
            found.append(logits[range(len(tokens)), list(tokens)].sum())
        return torch.stack(found)

    worst = float((one_pass() - one_by_one()).abs().max())
    assert worst < 1e-2, f"a pass differs from forwards by {worst}"
    t = medians({"one": one_pass, "forwards": one_by_one}, max(1, args.repeats // 2))
    tokens = sum(len(s.ids) for s in tree.segments)
    nodes = branch.choice.nodes
    print(f"\n77 options verbatim (sum), a prompt of {len(start)} tokens: {tokens} in one pass, {nodes} of the trie\n")
    print("| way | median s | forwards / way |\n| --- | --: | --: |")
    for name, seconds in t.items():
        print(f"| {name} | {seconds:.3f} | {t['forwards'] / seconds:.1f} |")


def sweep(args: Args) -> None:
    print("\nOne text of 20 tokens, one field; the prompt's shared part is kept by a session\n")
    print("| options | labels s | verbatim constrained s | verbatim sum s | trie tokens of the sum |")
    print("| --: | --: | --: | --: | --: |")
    engines = {
        "labels": engine(args),
        "constrained": engine(args, scoring="verbatim", readout="constrained"),
        "sum": engine(args, scoring="verbatim", prior="none"),
    }
    names = [f"{a} {b}" for a, b in itertools.product(WORDS + [w.upper() for w in WORDS], repeat=2)]
    for count in (2, 4, 16, 77, 151, 255):
        schema = Schema.of({"fields": [{"name": "answer", "type": "choice", "options": names[:count]}]})
        sessions = {name: e.schema_session(schema) for name, e in engines.items()}
        t = medians({name: partial(session.decide, MESSAGE) for name, session in sessions.items()}, args.repeats)
        nodes = engines["sum"].prompt(schema).branches[0].choice.nodes
        print(f"| {count} | {t['labels']:.3f} | {t['constrained']:.3f} | {t['sum']:.3f} | {nodes} |", flush=True)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    print(f"model {args.model}, float32, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    with torch.inference_mode():
        permutations(args)
        verbatim(args)
        sweep(args)


if __name__ == "__main__":
    main()
