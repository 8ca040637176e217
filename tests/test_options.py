"""Verbatim options, orders, hierarchies, tournaments and priors, against slow ways and a model whose answers are known."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor

from conftest import TEXTS, TRIAGE, tiny_model
from rlcd_lite.contract import Contract, Prior
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.models import LoadedModel
from rlcd_lite.orders import AUTO_ORDERS, orders, other_order, reordered, settled, shuffled_order
from rlcd_lite.priors import CONTENT_FREE, read_prior, write_prior
from rlcd_lite.questions import final, fold_tournament, heats
from rlcd_lite.schema import NONE_OF_THE_ABOVE, Field, Option, Schema
from rlcd_lite.settings import LISTED
from rlcd_lite.tokens import Encoder
from rlcd_lite.trie import in_words, of_texts
from toy import toy_engine

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3"]
READOUTS = ["constrained", "sum", "mean"]
OPTIONS = ["card", "card_lost", "card_lost_abroad", "a", "b?", "pin", "pin_change", "Ж"]
INTENT = {"fields": [{"name": "intent", "type": "choice", "options": OPTIONS}, {"name": "urgent", "type": "bool"}]}
MANY = [f"o{i:03d}" for i in range(77)]
WEIGHTS = {option: random.Random(option).uniform(0.2, 5.0) for option in MANY}


def build(tokenizer: Any, architecture: str = "llama", lora: bool = False, **asked: Any) -> DecisionEngine:
    """A tiny engine; an adapter's B matrices are not zero, so that it does something."""
    known = {name: asked.pop(name) for name in ("prior", "permutations") if name in asked}
    model: Any = tiny_model(architecture, len(tokenizer))
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.3)
    return DecisionEngine(LoadedModel(model, tokenizer, "tiny"), Contract(**asked), **known)


def slowly(engine: DecisionEngine, schema: Any, text: str) -> list[Tensor]:
    """Every field's verbatim scores (K,), each option by plain forwards of its own with the full head."""
    prompt = engine.prompt(schema)
    root = prompt.encode(text)
    out = []
    for branch in prompt.branches:
        tree = prompt.tree([root])
        asked = tree.add(branch.asked, tree.add(prompt.lead, prompt.plant(tree, root)))
        start = tree.path(tree.add(branch.choice_stem, tree.add(branch.stem, asked)))
        scores = []
        for tokens in branch.choice.spelt:
            logits = engine.model(input_ids=torch.tensor([[*start, *tokens]]), use_cache=False).logits[0].float()
            total = torch.zeros(())
            for i, token in enumerate(tokens):
                row = logits[len(start) + i - 1]
                allowed = sorted({other[i] for other in branch.choice.spelt if other[:i] == tokens[:i]})
                if engine.contract.readout == "constrained":
                    total = total + row[token] - row[allowed].logsumexp(-1)
                else:
                    total = total + row.log_softmax(-1)[token]
            scores.append(total / len(tokens) if engine.contract.readout == "mean" else total)
        out.append(torch.stack(scores))
    return out


# ---- verbatim options ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_verbatim_equals_an_option_at_a_time(tokenizer, architecture: str, readout: str, layout: str) -> None:
    """Scores and gradients, with an adapter, for texts of unequal length in one row."""
    engine = build(tokenizer, architecture, lora=True, scoring="verbatim", readout=readout, layout=layout, prior="none")

    def gradient(scores: list[Tensor]) -> Tensor:
        engine.model.zero_grad()
        torch.cat([score.log_softmax(-1).square() for score in scores]).sum().backward()
        return torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None])

    ours = [field.choice for text in engine.score(INTENT, TEXTS[:2]) for field in text]
    theirs = [score for text in TEXTS[:2] for score in slowly(engine, INTENT, text)]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    expected = gradient(theirs)
    torch.testing.assert_close(gradient(ours), expected, rtol=1e-3, atol=2e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("readout", READOUTS)
def test_verbatim_is_the_same_cached_and_in_rows_of_any_size(tokenizer, readout: str) -> None:
    engine = build(tokenizer, "gemma3", scoring="verbatim", readout=readout, prior="none")
    with torch.inference_mode():
        expected = [torch.cat([field.choice for field in text]) for text in engine.score(INTENT, TEXTS)]
    session = engine.schema_session(INTENT)
    alone = [session.score([engine.encode(Schema.of(INTENT), text)])[0] for text in TEXTS]
    rows = [list(engine.score_runs([(INTENT, TEXTS)], budget=budget)) for budget in (1, 10_000)]
    for found in (alone, *rows):
        for scores, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.cat([s.choice for s in scores]), theirs, rtol=1e-4, atol=1e-4)


def test_the_constrained_read_out_is_what_enumeration_gives(tokenizer) -> None:
    """Its probabilities, multiplied along every path that the grammar lets through, sum to 1 without a softmax."""
    engine = build(tokenizer, scoring="verbatim", readout="constrained")
    with torch.inference_mode():
        for scores, (brute, _) in ((engine.score(INTENT, [text])[0], slowly(engine, INTENT, text)) for text in TEXTS):
            assert float(scores[0].choice.exp().sum()) == pytest.approx(1.0, abs=1e-5)
            torch.testing.assert_close(scores[0].choice, brute, rtol=1e-4, atol=1e-4)


def test_forks_alone_are_run_for_the_constrained_read_out(tokenizer) -> None:
    full, forks = (
        build(tokenizer, scoring="verbatim", readout=readout).prompt(INTENT).branches[0].choice
        for readout in ("sum", "constrained")
    )
    assert forks.nodes < full.nodes
    assert all(len(tokens) > 1 for _, tokens in forks.reads)
    shared = {tokens[:i] for tokens in full.spelt for i in range(1, len(tokens))}
    assert full.nodes == len(shared) < sum(len(tokens) - 1 for tokens in full.spelt)  # shared beginnings once, closing quotes never


texts_of_options = st.lists(st.text(st.sampled_from('ab _?"\\é'), min_size=1, max_size=6), min_size=2, max_size=9, unique=True)


@given(texts_of_options)
@hypothesis_settings(max_examples=60)
def test_any_options_are_told_apart(tokenizer, texts: list[str]) -> None:
    """Also single tokens, options that begin others, quotes and blanks: each has a path of its own to a closing quote."""
    encoder = Encoder(tokenizer)
    escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
    for readout in READOUTS:
        trie = of_texts(encoder, '"x": "', escaped, readout)  # type: ignore[arg-type]
        assert [tokenizer.decode(list(tokens)) for tokens in trie.spelt] == [text + '"' for text in escaped]
        for one, other in itertools.permutations(trie.spelt, 2):
            assert one != other[: len(one)]
        uniform = [torch.zeros(len(tokens)) for _, tokens in trie.reads]
        scores = trie.scores(uniform, [row.logsumexp(-1) for row in uniform])
        if readout != "mean":  # a model that knows nothing takes each way at a fork equally often
            assert float(scores.exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_identifiers_are_spelt_as_words_unless_two_become_one() -> None:
    assert in_words(["card_arrival", "pin", "no change", "a_b c"]) == ["card arrival", "pin", "no change", "a_b c"]
    assert in_words(["a_b", "a b"]) == ["a_b", "a b"]
    assert in_words(["__", "x"]) == ["__", "x"]


@pytest.mark.parametrize("readout", READOUTS)
def test_a_conditioned_confidence_follows_the_whole_option(tokenizer, readout: str) -> None:
    engine = build(tokenizer, scoring="verbatim", readout=readout, confidence="conditioned", prior="none")
    prompt = engine.prompt(INTENT)
    tree = prompt.tree([prompt.encode(TEXTS[0])])
    (scores,) = engine.score(INTENT, TEXTS[:1])
    assert [tuple(s.stated.shape) for s in scores] == [(8, 5), (2, 5)]
    paths = [tokenizer.decode(tree.path(r.segment)) for r in tree.readouts]
    behind = [path.rpartition("assistant\n")[2] for path in paths if path.endswith('", "confidence": "')]
    assert behind == [f'{{"intent": "{text}", "confidence": "' for text in in_words(OPTIONS)] + [
        f'{{"urgent": "{text}", "confidence": "' for text in ("true", "false")
    ]
    with torch.inference_mode():
        at = len(tree.readouts) - 2 - 1
        plain = engine.forward.reference(tree.path(tree.readouts[at].segment), tree.readouts[at].label_ids)
    assert torch.isfinite(plain).all()


def test_the_trace_of_verbatim_options_can_be_checked_by_plain_forwards(tokenizer) -> None:
    engine = build(tokenizer, scoring="verbatim", permutations=2, options="listed")
    records: list[dict] = []
    list(engine.decide_many(INTENT, TEXTS, trace=records.append))
    assert {r["order"] for r in records} == {0, 1}
    assert [r["context"] for r in records] == sorted(r["context"] for r in records)
    for record in records:
        with torch.inference_mode():
            plain = engine.model(torch.tensor([record["path_ids"]])).logits[0, -1, record["label_ids"]]
        assert torch.allclose(plain, torch.tensor(record["logits"]), atol=1e-4)


def test_labels_and_verbatim_agree_where_they_must(tokenizer) -> None:
    schema = {"fields": [{"name": "intent", "type": "choice", "options": MANY[:20]}]}
    expected = torch.tensor([WEIGHTS[option] for option in MANY[:20]])
    for contract in (Contract(), Contract(scoring="verbatim", readout="constrained")):
        (answer,) = toy_engine(tokenizer, WEIGHTS, contract).decide(schema, "x").fields
        assert answer.probabilities == pytest.approx((expected / expected.sum()).tolist(), abs=1e-5)


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("options", [OPTIONS, ["card arrival", "card lost", "card lost abroad"]])
def test_coverage_is_the_mass_of_first_tokens(tokenizer, readout: str, options: list[str]) -> None:
    """Also where all options begin alike, and the trace says what was read for it."""
    schema = {"fields": [{"name": "intent", "type": "choice", "options": options}]}
    engine = build(tokenizer, scoring="verbatim", readout=readout, prior="none")
    (branch,) = engine.prompt(schema).branches
    records: list[dict] = []
    (decision,) = engine.decide_many(schema, TEXTS[:1], coverage=True, trace=records.append)
    first = sorted({tokens[0] for tokens in branch.choice.spelt})
    start = next(r["path_ids"] for r in records if r["kind"] == ("coverage" if branch.choice.forks_late else "choice"))
    with torch.inference_mode():
        everything = engine.forward.reference(start, range(len(tokenizer))).softmax(-1)
    assert decision["intent"].coverage == pytest.approx(float(everything[first].sum()), abs=1e-6)
    plain = engine.decide(schema, TEXTS[0])["intent"]
    assert plain.probabilities == pytest.approx(decision["intent"].probabilities, abs=1e-6)
    for record in records:
        with torch.inference_mode():
            logits = engine.model(torch.tensor([record["path_ids"]])).logits[0, -1, record["label_ids"]]
        assert torch.allclose(logits, torch.tensor(record["logits"]), atol=1e-4)


def test_a_field_has_its_own_scoring(tokenizer) -> None:
    source = {"fields": [INTENT["fields"][0] | {"scoring": "verbatim"}, INTENT["fields"][1]]}
    schema = Schema.of(source)
    assert schema.to_dict() == source
    branches = build(tokenizer).prompt(schema).branches
    assert [b.question.verbatim for b in branches] == [True, False]
    assert [b.question.listed for b in branches] == [False, True]
    many = {"fields": [{"name": "intent", "type": "choice", "options": MANY}, INTENT["fields"][1]]}
    assert [b.question.verbatim for b in build(tokenizer, scoring="auto").prompt(many).branches] == [True, False]


# ---- orders ----


@given(st.integers(2, 12), st.integers(1, 30), st.integers(0, 1))
def test_orders_are_permutations_and_cyclic_shifts_are_balanced(n: int, count: int, fixed: int) -> None:
    if n - fixed < 1:
        return
    found = orders(n, count, fixed)
    assert len(found) == count
    assert found[0] == tuple(range(n))
    for order in found:
        assert sorted(order) == list(range(n))
        assert order[n - fixed :] == tuple(range(n - fixed, n))
    moving = n - fixed
    if count <= moving:
        assert len(set(found)) == count
    assert orders(n, count + 3, fixed)[:count] == found
    if count % moving == 0:  # every option is at every place equally often
        places = Counter((option, place) for order in found for place, option in enumerate(order[:moving]))
        assert set(places.values()) == {count // moving}


@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
@pytest.mark.parametrize("scoring", ["labels", "verbatim"])
@pytest.mark.parametrize("confidence", ["independent", "conditioned"])
def test_permutations_in_one_pass_equal_passes_of_their_own(tokenizer, layout: str, scoring: str, confidence: str) -> None:
    asked = {"layout": layout, "scoring": scoring, "confidence": confidence, "options": "listed"}
    engine, single = (build(tokenizer, "qwen2", permutations=k, prior="none", **asked) for k in (3, 1))
    passes: list[int] = []
    engine.model.get_input_embeddings().register_forward_hook(lambda module, args, output: passes.append(output.shape[1]))
    schema = Schema.of(TRIAGE)
    decision = engine.decide(schema, TEXTS[0])
    assert len(passes) == 1
    for j, field in enumerate(schema.fields):
        choices, stated = [], []
        for k, order in enumerate(orders(len(field.options), 3)):
            fields = [
                reordered(f, orders(len(f.options), 3)[k]) for f in schema.fields
            ]  # lists of others may stand before the text
            with torch.inference_mode():
                (scores,) = single.score(Schema(tuple(fields)), TEXTS[:1])
            back = [order.index(option) for option in range(len(order))]
            choices.append(scores[j].choice[back].log_softmax(-1))
            rows = scores[j].stated[back] if confidence == "conditioned" else scores[j].stated
            stated.append(rows.log_softmax(-1))
        answer = decision.fields[j]
        mean = torch.stack(choices).mean(0).double().softmax(0)
        assert answer.probabilities == pytest.approx(mean.tolist(), abs=1e-5)
        said = torch.stack(stated).mean(0)
        rho = (said[answer.choice] if confidence == "conditioned" else said).softmax(0)
        assert answer.stated_mean == pytest.approx(float(rho @ torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])), abs=1e-5)
        apart = [0.5 * float((p.double().exp() - mean).abs().sum()) for p in choices]
        assert answer.orders is not None
        assert answer.orders.tried == 3
        assert answer.orders.total_variation == pytest.approx(sum(apart) / 3, abs=1e-5)
        assert answer.orders.flips == pytest.approx(sum(int(p.argmax()) != answer.choice for p in choices) / 3)


@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_no_token_is_run_twice_for_more_orders(tokenizer, layout: str) -> None:
    engine = build(tokenizer, layout=layout, permutations=4)
    engine.decide(TRIAGE, TEXTS[0])
    paths: set[tuple[int, ...]] = set()
    for prompt in engine.prompts(TRIAGE):
        tree = prompt.tree([prompt.encode(TEXTS[0])])
        for readout in tree.readouts:
            path = tree.path(readout.segment)
            paths |= {path[:i] for i in range(1, len(path) + 1)}
    start = engine.forward.tokens_run
    engine.decide(TRIAGE, TEXTS[0])
    spared = 1.25  # stems of different fields share their first tokens and are segments of their own
    assert len(paths) <= engine.forward.tokens_run - start <= spared * len(paths)


def test_a_model_that_reads_options_owes_nothing_to_their_order(tokenizer) -> None:
    schema = {"fields": [{"name": "intent", "type": "choice", "options": MANY[:7]}]}
    for count in (1, 3, 7, 20):
        (answer,) = toy_engine(tokenizer, WEIGHTS, permutations=count).decide(schema, "x").fields
        expected = torch.tensor([WEIGHTS[option] for option in MANY[:7]])
        assert answer.probabilities == pytest.approx((expected / expected.sum()).tolist(), abs=1e-5)
        if count > 1:
            assert answer.orders is not None
            assert answer.orders.total_variation == pytest.approx(0.0, abs=1e-6)
            assert answer.orders.flips == 0
        else:
            assert answer.orders is None


def test_all_cyclic_shifts_cancel_a_lean_to_places(tokenizer) -> None:
    """An addition to the logit of each place is gone with K = n orders, and with a prior by places in one."""
    schema = {"fields": [{"name": "intent", "type": "choice", "options": MANY[:5]}]}
    expected = torch.tensor([WEIGHTS[option] for option in MANY[:5]])
    expected = expected / expected.sum()

    def lean(place: int) -> float:
        return 3.0 * (place == 1) - 1.0 * (place == 4)

    (one,) = toy_engine(tokenizer, WEIGHTS, lean=lean).decide(schema, "x").fields
    assert abs(one.probabilities[1] - float(expected[1])) > 0.1
    (all_,) = toy_engine(tokenizer, WEIGHTS, lean=lean, permutations=5).decide(schema, "x").fields
    assert all_.probabilities == pytest.approx(expected.tolist(), abs=1e-5)
    assert all_.orders is not None
    assert all_.orders.total_variation > 0.05
    prior = Prior({("intent", 5): tuple(lean(place) for place in range(5))}, 9)
    (corrected,) = toy_engine(tokenizer, WEIGHTS, lean=lean, prior=prior).decide(schema, "x").fields
    assert corrected.probabilities == pytest.approx(expected.tolist(), abs=1e-5)
    assert corrected.prior == "mean over 9 texts"


@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_auto_stops_early_and_answers_as_all_orders(tokenizer, layout: str) -> None:
    everything, auto = (build(tokenizer, "qwen2", permutations=k, layout=layout) for k in (AUTO_ORDERS, "auto"))
    texts = [f"{text} {i}" for i in range(4) for text in TEXTS]
    asked = [everything.decide(TRIAGE, text) for text in texts]
    answers = list(auto.decide_many(TRIAGE, texts, budget=1500))
    tried = Counter(field.orders.tried for decision in answers for field in decision.fields if field.orders)
    assert set(tried) <= {2, 4, 8}
    for ours, theirs in zip(answers, asked, strict=True):
        for a, b in zip(ours.fields, theirs.fields, strict=True):
            if a.orders is not None and a.orders.tried == 8:
                assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)
    (alone,) = (auto.decide(TRIAGE, texts[3]),)
    assert [f.probabilities for f in alone.fields] == [pytest.approx(f.probabilities, abs=1e-5) for f in answers[3].fields]
    toy = toy_engine(tokenizer, WEIGHTS, permutations="auto")
    (easy,) = toy.decide({"fields": [{"name": "intent", "type": "choice", "options": MANY[:9]}]}, "x").fields
    assert easy.orders is not None
    assert easy.orders.tried == 2


def test_the_later_rounds_of_auto_run_no_text_again(tokenizer) -> None:
    auto = build(tokenizer, "qwen2", permutations="auto", layout="context-first")
    run: list[int] = []
    auto.model.get_input_embeddings().register_forward_hook(lambda module, args, output: run.append(output.shape[1]))
    text = "word " * 200 + "?"
    assert any(
        answer.orders is not None and answer.orders.tried > 2
        for i in range(20)
        for answer in auto.decide(TRIAGE, text + str(i)).fields
    )
    long = len(auto.encode(Schema.of(TRIAGE), text))
    assert min(run) < max(run) - long + 60


@given(st.lists(st.lists(st.floats(-5, 0), min_size=3, max_size=3), min_size=2, max_size=8), st.integers(0, 8))
def test_settled_is_right_whenever_its_assumption_holds(rows: list[list[float]], more: int) -> None:
    """Orders to come that fall short of the lowest margin by no more than the range seen never change the choice."""
    seen = torch.tensor(rows).log_softmax(-1)
    count = len(rows) + more
    if not settled(seen, count):
        return
    choice = int(seen.mean(0).argmax())
    margin = seen[:, choice, None] - seen
    worst = margin.min(0).values - (margin.max(0).values - margin.min(0).values)
    total = margin.sum(0) + more * worst
    assert all(float(total[k]) > 0 for k in range(3) if k != choice)


# ---- priors ----


@pytest.mark.parametrize("scoring", ["labels", "verbatim"])
@pytest.mark.parametrize("permutations", [1, 3])
def test_a_measured_prior_makes_the_mean_scores_zero(tokenizer, scoring: str, permutations: int) -> None:
    engine = build(tokenizer, scoring=scoring, prior="none", permutations=permutations)
    pairs = [(INTENT, text) for text in TEXTS]
    engine.prior = engine.measure_prior(pairs)
    assert engine.prior.texts == len(TEXTS)
    again = engine.measure_prior(pairs)
    assert again == engine.prior  # it is measured on scores as they are
    if permutations == 1:
        found = torch.stack([torch.cat([f.choice for f in text]) for text in engine.score_runs([(INTENT, TEXTS)])])
        torch.testing.assert_close(found.mean(0), torch.zeros(10), atol=1e-4, rtol=0)


def test_a_prior_belongs_to_options_in_any_order_or_to_places(tokenizer) -> None:
    other = Schema((reordered(Schema.of(INTENT).fields[0], [3, 1, 0, 2, 7, 6, 5, 4]), Schema.of(INTENT).fields[1]))
    engine = build(tokenizer, scoring="verbatim", prior="none")
    engine.prior = engine.measure_prior([(INTENT, text) for text in TEXTS])
    one, two = engine.decide(INTENT, "x")["intent"], engine.decide(other, "x")["intent"]
    ours, theirs = (dict(zip((o.text for o in d.field.options), d.probabilities, strict=True)) for d in (one, two))
    assert ours == pytest.approx(theirs, abs=1e-5)
    with pytest.raises(UserError, match="not measured for field 'mood' with its 2 options"):
        engine.decide({"fields": [{"name": "mood", "type": "choice", "options": ["sad", "glad"]}]}, "x")


@pytest.mark.parametrize("scoring", ["labels", "verbatim"])
def test_the_content_free_prior_is_the_answer_to_nothing(tokenizer, scoring: str) -> None:
    raw, less = (build(tokenizer, scoring=scoring, prior=prior) for prior in ("none", "content-free"))
    with torch.inference_mode():
        (text,), (nothing,), (ours,) = raw.score(INTENT, ["x y"]), raw.score(INTENT, [CONTENT_FREE]), less.score(INTENT, ["x y"])
    for a, b, c in zip(text, nothing, ours, strict=True):
        torch.testing.assert_close(c.choice, a.choice - b.choice, atol=1e-4, rtol=1e-4)
    assert less.decide(INTENT, "x y")["intent"].to_dict()["prior"] == "content-free"
    assert "prior" not in raw.decide(INTENT, "x y")["intent"].to_dict()


def test_a_prior_is_measured_in_rows_of_the_budget_and_named_where_it_is(tokenizer) -> None:
    engine = build(tokenizer, prior="none", permutations=4)
    rows: list[int] = []
    engine.model.get_input_embeddings().register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    pairs = [(INTENT, f"ticket {i}") for i in range(18)]
    engine.measure_prior(pairs)
    assert max(rows[1:]) <= 512 < sum(rows[1:])  # the first is what all texts share
    trained = build(tokenizer, labels=engine.labels())
    trained.contract = replace(trained.contract, prior=Prior({("intent", 8): (0.5,) * 8}, 64))
    decision = trained.decide(INTENT, "x")
    assert [field.prior for field in decision.fields] == ["mean over 64 texts", None]


def test_a_prior_is_kept_and_refused_for_others(tokenizer, tmp_path: Path) -> None:
    path, made_by = tmp_path / "prior.json", {"model": "m", "scoring": "verbatim"}
    prior = build(tokenizer, scoring="verbatim", prior="none").measure_prior([(INTENT, text) for text in TEXTS])
    write_prior(path, prior, made_by)
    assert read_prior(path, made_by) == prior
    with pytest.raises(UserError, match="measured with scoring 'verbatim', not 'labels'"):
        read_prior(path, made_by | {"scoring": "labels"})
    whole = path.read_text()
    for bad, sentence in (
        ("[]", "is damaged"),
        (whole.replace('"logits": [', '"logits": [1,', 1), "is damaged"),
        (whole[:50], "damaged"),
    ):
        path.write_text(bad)
        with pytest.raises(UserError, match=sentence):
            read_prior(path, made_by)
    with pytest.raises(UserError, match="does not exist"):
        read_prior(tmp_path / "none.json", made_by)


def test_only_sums_and_means_of_an_untrained_model_have_a_prior_by_default(tokenizer) -> None:
    named = {
        (scoring, readout, trained): build(
            tokenizer, scoring=scoring, readout=readout, labels=build(tokenizer).labels() if trained else {}
        )
        .decide(INTENT, "x")["intent"]
        .prior
        for scoring in ("labels", "verbatim")
        for readout in READOUTS
        for trained in (False, True)
    }
    assert {key for key, prior in named.items() if prior} == {("verbatim", "sum", False), ("verbatim", "mean", False)}
    trained = Contract(prior=Prior({("a", 2): (0.0, 1.0)}, 3))
    with pytest.raises(UserError, match="a prior of its own"):
        DecisionEngine(LoadedModel(tiny_model("llama", len(tokenizer)), tokenizer, "t"), trained, prior="none")


# ---- hierarchies, tournaments, none of the above ----

GROUPS = {"one": MANY[:20], "two": MANY[20:21], "three": MANY[21:60]}


@pytest.mark.parametrize("none", [False, True])
@pytest.mark.parametrize("permutations", [1, 4])
@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_a_hierarchy_is_exact_where_groups_weigh_what_their_options_do(
    tokenizer, none: bool, permutations: int, layout: Any
) -> None:
    source = {"fields": [{"name": "intent", "type": "choice", "hierarchy": GROUPS} | ({"none_of_the_above": True} if none else {})]}
    schema = Schema.of(source)
    assert schema.to_dict() == source
    weights = WEIGHTS | {name: sum(WEIGHTS[o] for o in options) for name, options in GROUPS.items()} | {NONE_OF_THE_ABOVE: 7.0}
    engine = toy_engine(tokenizer, weights, Contract(layout), permutations=permutations)
    (answer,) = engine.decide(schema, "x").fields
    expected = torch.tensor([weights[option.text] for option in schema.fields[0].options])
    assert len(expected) == 60 + none
    assert answer.probabilities == pytest.approx((expected / expected.sum()).tolist(), abs=1e-5)
    assert engine.forward.passes == 1


@pytest.mark.parametrize("none", [False, True])
@pytest.mark.parametrize("permutations", [1, 3])
@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_a_tournament_is_exact_where_odds_do_not_depend_on_the_list(tokenizer, none: bool, permutations: int, layout: Any) -> None:
    schema = {"fields": [{"name": "intent", "type": "choice", "options": MANY} | ({"none_of_the_above": True} if none else {})]}
    engine = toy_engine(
        tokenizer, WEIGHTS | {NONE_OF_THE_ABOVE: 3.0}, Contract(layout, scoring="tournament"), permutations=permutations
    )
    (answer,) = engine.decide(schema, "x").fields
    expected = torch.tensor([*(WEIGHTS[option] for option in MANY), *([3.0] if none else [])])
    assert answer.probabilities == pytest.approx((expected / expected.sum()).tolist(), abs=1e-5)
    assert engine.forward.passes == 3  # what texts share, the heats, the final
    assert sum(answer.probabilities) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_a_tournament_of_a_real_model_sums_to_one_and_is_the_same_in_any_row(tokenizer, layout: str) -> None:
    engine = build(tokenizer, "qwen3", scoring="tournament", layout=layout, permutations=2)
    schema = {"fields": [{"name": "intent", "type": "choice", "options": MANY}, INTENT["fields"][1]]}
    records: list[dict] = []
    together = list(engine.decide_many(schema, TEXTS, budget=20_000, trace=records.append))
    for decision, text in zip(together, TEXTS, strict=True):
        assert sum(decision["intent"].probabilities) == pytest.approx(1.0, abs=1e-9)
        assert decision["intent"].probabilities == pytest.approx(engine.decide(schema, text)["intent"].probabilities, abs=1e-4)
    assert [r["context"] for r in records] == sorted(r["context"] for r in records)
    for record in records[:: len(records) // 25]:
        with torch.inference_mode():
            plain = engine.model(torch.tensor([record["path_ids"]])).logits[0, -1, record["label_ids"]]
        assert torch.allclose(plain, torch.tensor(record["logits"]), atol=1e-4)
    with pytest.raises(UserError, match="takes two passes"):
        engine.score(schema, TEXTS)


@given(st.integers(LISTED + 1, 255))
def test_heats_hold_every_option_once_and_fit_one_list(count: int) -> None:
    field = Field("f", "choice", tuple(Option(f"o{i}") for i in range(count)))
    found = heats(field)
    assert tuple(option for heat in found for option in heat.options) == field.options
    sizes = [len(heat.options) for heat in found]
    assert max(sizes) <= LISTED
    assert max(sizes) - min(sizes) <= 1
    assert len(found) <= LISTED


@given(st.data())
def test_any_fold_of_a_tournament_sums_to_one(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    numbers = st.floats(-20, 20, width=32)
    answers = [torch.tensor(data.draw(st.lists(numbers, min_size=n, max_size=n))) for n in sizes]
    none = data.draw(st.booleans())
    decided = torch.tensor(data.draw(st.lists(numbers, min_size=len(sizes) + none, max_size=len(sizes) + none)))
    winners = [int(answer.argmax()) for answer in answers]
    out = fold_tournament(answers, winners, decided)
    assert len(out) == sum(sizes) + none
    assert float(out.exp().sum()) == pytest.approx(1.0, abs=1e-4)
    first = out[: sizes[0]]
    torch.testing.assert_close(first - first[winners[0]], answers[0] - answers[0][winners[0]], atol=1e-4, rtol=1e-4)


def test_none_of_the_above_is_an_option_that_stays_last(tokenizer) -> None:
    source = {"fields": [{"name": "intent", "type": "choice", "options": OPTIONS, "none_of_the_above": True}]}
    schema = Schema.of(source)
    assert schema.to_dict() == source
    (field,) = schema.fields
    assert [o.value for o in field.options] == [*OPTIONS, NONE_OF_THE_ABOVE]
    for seed in range(20):
        order = shuffled_order(field, random.Random(seed))
        assert order[-1] == len(OPTIONS)
        assert reordered(field, order).none_of_the_above
    engine = build(tokenizer, permutations=4)
    for prompt in engine.prompts(schema):
        assert prompt.branches[0].question.order[-1] == len(OPTIONS)
    assert sum(engine.decide(schema, "x")["intent"].probabilities) == pytest.approx(1.0)


NULLABLE: list[dict[str, Any]] = [
    {"type": "choice", "options": OPTIONS},
    {"type": "choice", "options": MANY},
    {"type": "choice", "hierarchy": GROUPS},
    {"type": "score", "options": ["bad", "good"]},
    {"type": "bool"},
    {"type": "int", "minimum": 1, "maximum": 3},
]


@pytest.mark.parametrize("more", NULLABLE, ids=lambda more: "-".join(more))
def test_null_stays_last(tokenizer, more: dict[str, Any]) -> None:
    source = {"fields": [{"name": "f", "optional": True} | more]}
    schema = Schema.of(source)
    (field,) = schema.fields
    last = len(field.options) - 1
    for seed in range(10):
        order = shuffled_order(field, random.Random(seed))
        assert order[-1] == last
        assert other_order(field, random.Random(seed)) != list(range(last + 1))
        assert reordered(field, order).options[-1].value is None
        assert reordered(field, order).optional
    scoring = "tournament" if more.get("options") == MANY else "labels"
    engine = build(tokenizer, permutations=2, scoring=scoring)
    for prompt in engine.prompts(schema) if scoring == "labels" else ():
        question = prompt.branches[0].question  # of a hierarchy: the one for the group
        assert question.field.options[question.order[-1]].value is None
    answer = engine.decide(schema, "x")["f"]
    assert len(answer.probabilities) == last + 1
    assert sum(answer.probabilities) == pytest.approx(1.0)


def test_null_waits_for_the_final_of_a_tournament() -> None:
    (field,) = Schema.of({"fields": [{"name": "f", "type": "choice", "options": MANY, "optional": True}]}).fields
    found = heats(field)
    assert tuple(option for heat in found for option in heat.options) == field.options[:-1]
    last = final(field, [torch.arange(float(len(heat.options))) for heat in found])
    assert [o.value for o in last.options] == [heat.options[-1].value for heat in found] + [None]


def test_a_field_without_another_order_is_shown_in_its_own() -> None:
    for more in ({"options": ["a"]}, {"hierarchy": {"g": ["a"]}}):
        (field,) = Schema.of({"fields": [{"name": "f", "type": "choice", "none_of_the_above": True} | more]}).fields
        assert other_order(field, random.Random(0)) == [0, 1]
    (field,) = Schema.of({"fields": [{"name": "f", "type": "bool"}]}).fields
    assert all(other_order(field, random.Random(seed)) == [1, 0] for seed in range(20))


def test_an_option_may_be_called_none_of_the_above() -> None:
    for source in (
        {"properties": {"f": {"enum": ["a", NONE_OF_THE_ABOVE]}}},
        {"properties": {"f": {"enum": [NONE_OF_THE_ABOVE, "b"]}}},
    ):
        (field,) = Schema.of(source).fields
        assert not field.none_of_the_above
        assert Schema.of(Schema((field,)).to_dict()).fields == (field,)


def test_a_hierarchy_in_another_order_keeps_its_groups_together() -> None:
    (field,) = Schema.of({"fields": [{"name": "f", "type": "choice", "hierarchy": GROUPS, "none_of_the_above": True}]}).fields
    for seed in range(20):
        other = reordered(field, shuffled_order(field, random.Random(seed)))
        again = Schema((other,)).to_dict()["fields"][0]["hierarchy"]
        assert {name: set(options) for name, options in again.items()} == {name: set(options) for name, options in GROUPS.items()}
        assert other.options[-1].value == NONE_OF_THE_ABOVE


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"options": ["a", "b"], "scoring": "verbatum"}, "did you mean 'verbatim'"),
        ({"options": ["a", "none_of_the_above"], "none_of_the_above": True}, "has the option 'none_of_the_above' twice"),
        ({"options": ["a", "b"], "none_of_the_above": "yes"}, "must be true or false"),
        ({"options": ["a", "b"], "hierarchy": {"x": ["a"], "y": ["b"]}}, 'leave "options" out'),
        ({"hierarchy": ["a", "b"]}, "it must be an object"),
        ({"hierarchy": {"x": ["a", "b"]}}, "has one group"),
        ({"hierarchy": {"x": ["a", "b"], "y": []}}, "one option at least"),
        ({"hierarchy": {"x": ["a"], "y": ["a"]}}, "has the option 'a' twice"),
        ({"hierarchy": {"x": ["a"], " ": ["b"]}}, "a name and one option"),
        ({"type": "score", "options": ["a", "b"], "none_of_the_above": True}, "none_of_the_above"),
        ({"type": "bool", "hierarchy": {"x": ["a"], "y": ["b"]}}, "hierarchy"),
    ],
)
def test_a_mistake_in_a_field_is_one_sentence(more: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        Schema.of({"fields": [{"name": "intent", "type": "choice"} | more]})
    assert "intent" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_can_not_be_asked_is_refused(tokenizer) -> None:
    grouped = {"fields": [{"name": "intent", "type": "choice", "hierarchy": GROUPS}]}
    many = {"fields": [{"name": "intent", "type": "choice", "options": MANY}]}
    with pytest.raises(UserError, match="give --permutations a number"):
        build(tokenizer, scoring="tournament", permutations="auto").decide(many, "x")
    for name, value in (("options", "unlisted"), ("confidence", "conditioned"), ("grid", "per-field")):
        with pytest.raises(UserError, match=f"has a tournament, which .*: leave --(confidence-)?{name} {value} out"):
            build(tokenizer, scoring="tournament", **{name: value}).decide(many, "x")
        if name != "options":  # verbatim options of a group are not listed either
            with pytest.raises(UserError, match="has a hierarchy"):
                build(tokenizer, **{name: value}).decide(grouped, "x")
    with pytest.raises(UserError, match="no prior can be measured"):
        build(tokenizer, scoring="tournament").measure_prior([(many, "x")])
    with pytest.raises(UserError, match="no prior can be measured"):
        build(tokenizer, scoring="tournament", prior=Prior({("intent", 3): (0.0, 0.0, 0.0)}, 1)).decide(many, "x")
    with pytest.raises(UserError, match="use 1 to 32, or auto"):
        build(tokenizer, permutations=33)
    with pytest.raises(UserError, match="permutations are 0"):
        build(tokenizer, permutations=0)
