"""What one packed forward costs beside the other ways to read the same answers, on the embedded model, side by side in one run.

    uv run --all-extras python benchmarks/fused.py

A case has a trunk of P tokens (prompt and text) and F branches of about S tokens (half of them a choice, half its stated
confidence), each with one read-out. Every repeat times every way once, in turn, so that a drift of the machine's speed meets all
of them; the table gives medians. Before timing, all ways are checked to give the same logits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor

from rlcd_lite.engine import DecisionEngine
from rlcd_lite.packing import ROOT, TokenTree
from rlcd_lite.schema import CONFIDENCE_SUFFIX, Field, Option, Schema

NAMES = ["impact", "urgency", "team", "product", "region", "channel", "language", "tone", "topic", "cause", "duty", "risk"]
WORDS = ["the", "customer", "writes", "that", "since", "last", "week", "every", "order", "above", "a", "hundred", "euros", "fails"]


@dataclass
class Args:
    model: str = "smollm2"
    """Model to time."""
    repeats: int = 5
    """Timed runs of every way; the table gives their median."""
    prompt_tokens: int = 200
    """Tokens of the trunk in the comparison of ways (P)."""
    sweeps: bool = True
    """Also time the fused way against F, P and the number of texts."""


class Case:
    """A tree of P trunk tokens and F branches, and the JSON that a model would write instead."""

    def __init__(self, engine: DecisionEngine, prompt_tokens: int, branches: int) -> None:
        self.engine = engine
        names = [f"{NAMES[i % len(NAMES)]}_of_this_{i:02d}" for i in range(max(1, branches // 2))]
        schema = Schema(tuple(Field(name, "choice", tuple(map(Option, ("none", "low", "high", "all")))) for name in names))
        self.prompt = engine.prompt(schema)
        frame = engine.encoder.frame
        (filler,) = engine.encoder.data([" ".join(WORDS * (prompt_tokens // 8))])
        trunk = (*frame.before, *filler[: prompt_tokens - len(frame.before) - len(frame.after)], *frame.after)
        self.tree = TokenTree()
        root = self.tree.add(trunk, ROOT)
        for branch in self.prompt.branches:
            for stem, ids in ((branch.choice_stem, branch.choice.reads[0][1]), (branch.stated_stem, branch.stated.ids)):
                if len(self.tree.readouts) < branches:
                    self.tree.read(self.tree.add(stem, root), ids)
        self.paths = [self.tree.path(r.segment) for r in self.tree.readouts]
        self.tokens = sum(len(s.ids) for s in self.tree.segments)
        written = ", ".join(f'"{n}": "A", "{n}{CONFIDENCE_SUFFIX}": "1"' for n in names[: max(1, branches // 2)])
        (answer,) = engine.encoder.data(["{" + written + "}"])
        self.trunk, self.answer_tokens = trunk, len(answer)
        self.stem_tokens = (self.tokens - len(trunk)) / len(self.tree.readouts)
        self.prefix = engine.forward.read(self.tree, keep=1)[2]

    def separate(self) -> list[Tensor]:
        """One forward of trunk and branch for each read-out; of the head, only its last position."""
        pairs = zip(self.paths, self.tree.readouts, strict=True)
        return [
            self.engine.model(torch.tensor([p]), use_cache=False, logits_to_keep=1).logits[0, -1, list(r.label_ids)]
            for p, r in pairs
        ]

    def batched(self) -> list[Tensor]:
        """All paths as padded rows of one forward; of the head, only each row's last position."""
        width = max(map(len, self.paths))
        ids = torch.tensor([[*p, *[0] * (width - len(p))] for p in self.paths])
        mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in self.paths])
        last = torch.tensor([[len(p) - 1] for p in self.paths])
        logits = self.engine.model(ids, attention_mask=mask, use_cache=False, logits_to_keep=last).logits
        return [row[0, list(r.label_ids)] for row, r in zip(logits, self.tree.readouts, strict=True)]

    def fused(self) -> list[Tensor]:
        """The packed tree: what `decide` does."""
        return self.engine.forward.read(self.tree)[0]

    def kv_cold(self) -> list[Tensor]:
        """The trunk in one forward, the packed branches behind its cache in a second one."""
        trunk = TokenTree()
        trunk.read(trunk.add(self.trunk, ROOT), (0,))
        return self.engine.forward.read(self.tree, self.engine.forward.read(trunk, keep=1)[2])[0]

    def kv_warm(self) -> list[Tensor]:
        """The packed branches behind a trunk that an earlier call ran: what a session does."""
        return self.engine.forward.read(self.tree, self.prefix)[0]

    def generate(self) -> Tensor:
        """The JSON with its labels, token by token with a cache (greedy); the number of tokens is that of the JSON."""
        ids = torch.tensor([self.trunk])
        limits = {"min_new_tokens": self.answer_tokens, "max_new_tokens": self.answer_tokens}
        out: Tensor = self.engine.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **limits)
        return out

    def bare(self) -> Tensor:
        """The decoder over as many tokens as the packed row has, with its own causal mask and no head."""
        ids = torch.tensor([(self.paths[0] * (self.tokens // len(self.paths[0]) + 1))[: self.tokens]])
        out: Tensor = self.engine.model.get_decoder()(ids, use_cache=False).last_hidden_state
        return out

    @property
    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "separate forwards": self.separate,
            "batched rows": self.batched,
            "fused": self.fused,
            "KV cold": self.kv_cold,
            "KV warm": self.kv_warm,
            "greedy generate": self.generate,
            "bare decoder": self.bare,
        }


def medians(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each way; the ways take turns, and the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(engine: DecisionEngine, args: Args, branches: int) -> None:
    case = Case(engine, args.prompt_tokens, branches)
    expected = case.separate()
    for way in (case.batched, case.fused, case.kv_cold, case.kv_warm):
        worst = max(float((a - b).abs().max()) for a, b in zip(way(), expected, strict=True))
        assert worst < 1e-3, f"{way.__name__} differs from separate forwards by {worst}"
    tokens = f"{case.tokens} packed and {case.answer_tokens} JSON tokens"
    print(f"\nP = {len(case.trunk)}, F = {branches}, S = {case.stem_tokens:.1f}: {tokens}\n")
    print("| way | median s | separate / way | generate / way |\n| --- | --: | --: | --: |")
    times = medians(case.ways, args.repeats)
    for name, seconds in times.items():
        separate, generate = times["separate forwards"] / seconds, times["greedy generate"] / seconds
        print(f"| {name} | {seconds:.3f} | {separate:.1f} | {generate:.1f} |", flush=True)
    print(f"\nfused / bare decoder over the same tokens: {times['fused'] / times['bare decoder']:.2f}")


def sweep(engine: DecisionEngine, args: Args) -> None:
    print("\n| F (P = 200) | packed tokens | fused s | KV warm s |\n| --: | --: | --: | --: |")
    for branches in (1, 2, 6, 12, 24, 48):
        case = Case(engine, 200, branches)
        times = medians({"fused": case.fused, "warm": case.kv_warm}, args.repeats)
        print(f"| {branches} | {case.tokens} | {times['fused']:.3f} | {times['warm']:.3f} |", flush=True)
    print("\n| P (F = 6) | packed tokens | fused s | KV warm s |\n| --: | --: | --: | --: |")
    for prompt_tokens in (100, 200, 400, 800, 1600):
        case = Case(engine, prompt_tokens, 6)
        times = medians({"fused": case.fused, "warm": case.kv_warm}, args.repeats)
        print(f"| {prompt_tokens} | {case.tokens} | {times['fused']:.3f} | {times['warm']:.3f} |", flush=True)
    print("\n| texts | `decide` one by one, s a text | `decide_many`, s a text |\n| --: | --: | --: |")
    schema = {"fields": [{"name": n, "type": "choice", "options": ["none", "low", "high", "all"]} for n in NAMES[:3]]}
    for count in (1, 4, 16, 64):
        texts = [" ".join(WORDS[i % 7 :] + WORDS[: i % 5]) for i in range(count)]
        ways: dict[str, Callable[[], object]] = {
            "one": lambda texts=texts: [engine.decide(schema, t) for t in texts],  # type: ignore[misc]
            "many": lambda texts=texts: list(engine.decide_many(schema, texts)),  # type: ignore[misc]
        }
        times = medians(ways, max(1, args.repeats // 2))
        print(f"| {count} | {times['one'] / count:.3f} | {times['many'] / count:.3f} |", flush=True)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    engine = DecisionEngine.load(args.model)
    print(f"model {args.model}, {engine.model.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    with torch.inference_mode():
        for branches in (6, 24):
            compare(engine, args, branches)
        if args.sweeps:
            sweep(engine, args)


if __name__ == "__main__":
    main()
