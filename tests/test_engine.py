"""The central invariant: one packed forward gives, to rounding, the numbers and gradients of separate plain forwards."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from pydantic import BaseModel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from conftest import ARCHITECTURES, TEXTS, TRIAGE, tiny_engine, tiny_model
from rlcd_lite.attention import blocks
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.packing import ROOT, Packed, TokenTree, attention_mask, pack
from rlcd_lite.rewards import confidence_grid
from rlcd_lite.schema import Schema
from rlcd_lite.scores import FieldScores
from rlcd_lite.settings import Confidence, Grid, Layout

LAYOUTS: tuple[Layout, ...] = ("schema-first", "context-first")
CONFIDENCES: tuple[Confidence, ...] = ("independent", "conditioned")
TOLERANCE = 1e-5


def tree_of(engine: DecisionEngine, texts: list[str] = TEXTS) -> TokenTree:
    prompt = engine.prompt(TRIAGE)
    return prompt.tree([prompt.encode(text) for text in texts])


def separate(engine: DecisionEngine, tree: TokenTree) -> list[Tensor]:
    """One plain forward with the full head per read-out."""
    return [engine.forward.reference(tree.path(r.segment), r.label_ids) for r in tree.readouts]


def worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True))


def flat(scores: list[tuple[FieldScores, ...]]) -> list[Tensor]:
    return [logits for fields in scores for f in fields for logits in (f.choice, f.stated)]


def with_lora(tokenizer: PreTrainedTokenizerFast, architecture: str) -> DecisionEngine:
    """A tiny engine whose LoRA matrices are all far from zero."""
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(tiny_model(architecture, len(tokenizer)), LoraConfig(r=4, target_modules=targets, lora_dropout=0.0))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return tiny_engine(tokenizer, architecture, model=model.eval())


# ---- logits ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("confidence", CONFIDENCES)
@torch.inference_mode()
def test_fused_equals_separate_forwards(
    tokenizer, architecture: str, attention: str, layout: Layout, confidence: Confidence
) -> None:
    engine = tiny_engine(tokenizer, architecture, attention, layout, confidence)
    tree = tree_of(engine)
    fused, _, _ = engine.forward.read(tree)
    plain = separate(engine, tree)
    assert worst(fused, plain) <= TOLERANCE
    assert float(torch.cat(plain).std()) > 0.1  # else the comparison says nothing


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cached", [False, True])
def test_attention_in_blocks_changes_nothing(tokenizer, architecture: str, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients of a row that is cut, and of the same row in one piece."""
    engine = with_lora(tokenizer, architecture)
    tree = tree_of(engine, [f"{text} {i}" for i in range(3) for text in TEXTS])
    with torch.inference_mode():
        prefix = engine.forward.read(tree, keep=1)[2] if cached else None
    found = []
    for cut in (True, False):
        if not cut:
            monkeypatch.setattr("rlcd_lite.forward.blocks", lambda visible, cuts: blocks(visible, ()))
        assert len(pack(tree, prefix.segments if prefix else ()).cuts) >= 5
        engine.model.zero_grad()
        logits, _, _ = engine.forward.read(tree, prefix)
        torch.cat(logits).square().sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None])
        found.append((logits, gradient))
    assert worst(found[0][0], found[1][0]) <= TOLERANCE
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-5 * float(found[1][1].abs().max()))


def test_a_conditioned_confidence_follows_the_label_and_an_independent_one_does_not_see_it(tokenizer) -> None:
    labels = {}
    for confidence in CONFIDENCES:
        engine = tiny_engine(tokenizer, confidence=confidence)
        prompt = engine.prompt(TRIAGE)
        tree = prompt.tree([prompt.encode(TEXTS[0])])
        (scores,) = engine.score(TRIAGE, TEXTS[:1])
        labels[confidence] = [tuple(s.stated.shape) for s in scores]
        branch = prompt.branches[0]
        stated = tree.path(tree.readouts[1].segment)
        behind = branch.choice_stem if confidence == "conditioned" else branch.stem
        assert (stated[: -len(branch.stated_stem)][-len(behind) - 1 :] == (*behind, branch.choice.reads[0][1][0])) == (
            confidence == "conditioned"
        )
    assert labels == {"independent": [(5,)] * 4, "conditioned": [(4, 5), (3, 5), (2, 5), (5, 5)]}


@pytest.mark.parametrize(("grid", "levels"), [("5", 5), ("10", 10), ("per-field", 5)])
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_what_is_stated_comes_from_the_grid_of_the_field(tokenizer, grid: Grid, levels: int, confidence: Confidence) -> None:
    engine = tiny_engine(tokenizer, confidence=confidence, grid=grid)
    decision = engine.decide(TRIAGE, TEXTS[0])
    with torch.inference_mode():
        (scores,) = engine.score(TRIAGE, TEXTS[:1])
    for field, score in zip(decision.fields, scores, strict=True):
        own = confidence_grid(grid, len(field.field.options))
        assert len(own) == levels
        rho = score.stated_in(field.choice).softmax(0)
        assert field.stated == own[int(rho.argmax())]
        assert field.stated_mean == pytest.approx(float(rho @ torch.tensor(own)), abs=1e-5)


def test_the_keys_of_an_answer_are_run_once(tokenizer) -> None:
    """`"severity` stands before both the answer and its confidence, and in the tree once."""
    engine = tiny_engine(tokenizer)
    prompt = engine.prompt(TRIAGE)
    for branch in prompt.branches:
        assert branch.stem
        assert branch.choice_stem[0] != branch.stated_stem[0]
    before = engine.forward.tokens_run
    tree = prompt.tree([prompt.encode(text) for text in TEXTS])
    engine.forward.read(tree)
    assert engine.forward.tokens_run - before == sum(len(s.ids) for s in tree.segments)
    assert len(tree.readouts) == 2 * len(TEXTS) * len(prompt.branches)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_sdpa_equals_eager(tokenizer, architecture: str) -> None:
    sdpa, eager = (tiny_engine(tokenizer, architecture, attention) for attention in ("sdpa", "eager"))
    assert worst(sdpa.forward.read(tree_of(sdpa))[0], eager.forward.read(tree_of(eager))[0]) <= TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kept", [1, 2])
@torch.inference_mode()
def test_cached_equals_fused(tokenizer, architecture: str, layout: Layout, kept: int) -> None:
    engine = tiny_engine(tokenizer, architecture, layout=layout)
    tree = tree_of(engine, TEXTS[:1])
    fused, _, prefix = engine.forward.read(tree, keep=kept)
    for _ in range(3):  # a prefix is only read, so it never wears out
        assert worst(engine.forward.read(tree, prefix)[0], fused) <= TOLERANCE
    assert worst(fused, separate(engine, tree)) <= TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_unequal_texts_equals_one_by_one(tokenizer, architecture: str, layout: Layout) -> None:
    engine = tiny_engine(tokenizer, architecture, layout=layout)
    with torch.inference_mode():
        together = engine.score(TRIAGE, TEXTS)
        alone = [engine.score(TRIAGE, [text])[0] for text in TEXTS]
    assert worst(flat(together), flat(alone)) <= TOLERANCE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [1, 400, 10_000])
def test_decide_many_streams_the_answers_of_decide_in_order(tokenizer, layout: Layout, budget: int) -> None:
    engine = tiny_engine(tokenizer, "gemma3", layout=layout)
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 3)]
    many = list(engine.decide_many(TRIAGE, iter(texts), budget=budget))
    assert len(many) == len(texts)
    for decision, text in zip(many, texts, strict=True):
        alone = engine.decide(TRIAGE, text)
        assert decision.values == alone.values
        for ours, theirs in zip(decision.fields, alone.fields, strict=True):
            assert ours.probabilities == pytest.approx(theirs.probabilities, abs=TOLERANCE)
            assert ours.stated_mean == pytest.approx(theirs.stated_mean, abs=TOLERANCE)


def test_decide_many_reads_its_input_as_it_goes(engine) -> None:
    asked = []

    def texts():
        for i in range(1000):
            asked.append(i)
            yield f"text {i}"

    next(engine.decide_many(TRIAGE, texts(), budget=600))
    assert len(asked) < 50


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_session_asked_three_times_equals_fresh_ones(tokenizer, architecture: str) -> None:
    engine = tiny_engine(tokenizer, architecture, layout="context-first")
    other = {"fields": [{"name": "mood", "type": "score", "options": ["sad", "flat", "glad"]}]}
    session = engine.session(TEXTS[0])
    for schema in (TRIAGE, other, TRIAGE):
        for ours, fresh in zip(session.decide(schema).fields, engine.decide(schema, TEXTS[0]).fields, strict=True):
            assert ours.probabilities == pytest.approx(fresh.probabilities, abs=TOLERANCE)


@pytest.mark.parametrize("permutations", [1, 2, "auto"])
@pytest.mark.parametrize("layout", ["schema-first", "context-first"])
def test_schemas_of_several_texts_in_one_row_equal_decisions_of_their_own(tokenizer, layout: str, permutations: int | str) -> None:
    engine = tiny_engine(tokenizer, "llama", layout=layout)
    engine.permutations = permutations
    mood = Schema.of({"fields": [{"name": "mood", "type": "score", "options": ["sad", "flat", "glad"]}]})
    long = Schema.of(
        {"fields": [{"name": "place", "type": "choice", "options": list(map(str, range(30))), "scoring": "tournament"}]}
    )
    schemas = [Schema.of(TRIAGE), mood, *([long] if permutations != "auto" else [])]
    pairs = [(schema, text) for text in TEXTS[:2] for schema in schemas]
    before = engine.forward.tokens_run
    found, _ = engine.ask([(schema, engine.encode(schema, text)) for schema, text in pairs])
    together = engine.forward.tokens_run - before
    before = engine.forward.tokens_run
    for (schema, text), scores in zip(pairs, found, strict=True):
        for ours, fresh in zip(engine.decision(schema, scores).fields, engine.decide(schema, text).fields, strict=True):
            assert ours.probabilities == pytest.approx(fresh.probabilities, abs=TOLERANCE)
            assert ours.stated_mean == pytest.approx(fresh.stated_mean, abs=TOLERANCE)
    assert together < engine.forward.tokens_run - before  # what they share is run once


def test_a_schema_session_equals_fresh_decisions(tokenizer) -> None:
    engine = tiny_engine(tokenizer, "gemma3")
    session = engine.schema_session(TRIAGE)
    for text in TEXTS:
        for ours, fresh in zip(session.decide(text).fields, engine.decide(TRIAGE, text).fields, strict=True):
            assert ours.probabilities == pytest.approx(fresh.probabilities, abs=TOLERANCE)


def test_coverage_is_the_full_vocabulary_mass_of_the_labels(engine) -> None:
    decision = engine.decide(TRIAGE, TEXTS[0], coverage=True)
    choices = tree_of(engine, TEXTS[:1]).readouts[::2]
    with torch.inference_mode():
        for readout, field in zip(choices, decision.fields, strict=True):
            path = tree_of(engine, TEXTS[:1]).path(readout.segment)
            everything = engine.forward.reference(path, range(len(engine.encoder.tokenizer)))
            assert field.coverage == pytest.approx(float(everything.softmax(-1)[list(readout.label_ids)].sum()), abs=1e-6)
    assert engine.decide(TRIAGE, TEXTS[0])["team"].coverage is None


@torch.inference_mode()
def test_a_head_with_bias_and_a_capped_head_are_read_exactly(tokenizer) -> None:
    biased = tiny_model("llama", len(tokenizer))
    biased.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, len(tokenizer)))
    capped = tiny_model("gemma3", len(tokenizer))
    capped.config.final_logit_softcapping = 2.0
    for model in (biased, capped):
        engine = tiny_engine(tokenizer, model=model)
        assert worst(engine.forward.read(tree_of(engine))[0], separate(engine, tree_of(engine))) <= TOLERANCE


# ---- fields are independent ----


def test_permuting_fields_permutes_scores(tokenizer) -> None:
    engine = tiny_engine(tokenizer, "gemma3", layout="context-first")
    forward = Schema.of(TRIAGE)
    backward = Schema(forward.fields[::-1])
    with torch.inference_mode():
        ours, theirs = engine.score(forward, TEXTS), engine.score(backward, TEXTS)
    assert worst(flat(ours), flat([fields[::-1] for fields in theirs])) <= TOLERANCE


def test_dropping_a_field_leaves_the_others(tokenizer) -> None:
    engine = tiny_engine(tokenizer, layout="context-first")
    full = Schema.of(TRIAGE)
    with torch.inference_mode():
        ours, theirs = engine.score(full, TEXTS), engine.score(Schema(full.fields[1:]), TEXTS)
    assert worst(flat([fields[1:] for fields in ours]), flat(theirs)) <= TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_read_out_has_exactly_zero_gradient_outside_its_path(tokenizer, architecture: str, layout: Layout) -> None:
    engine = tiny_engine(tokenizer, architecture, layout=layout)
    tree = tree_of(engine, TEXTS[:2])
    embedded: list[Tensor] = []

    def keep(module: torch.nn.Module, args: tuple, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    with engine.model.get_input_embeddings().register_forward_hook(keep):
        logits, _, _ = engine.forward.read(tree)
    owner = [i for i, segment in enumerate(tree.segments) for _ in segment.ids]
    for readout, row in list(zip(tree.readouts, logits, strict=True))[::3]:
        embedded[0].grad = None
        row.sum().backward(retain_graph=True)
        on_path, segment = set(), readout.segment
        while segment != ROOT:
            on_path.add(segment)
            segment = tree.segments[segment].parent
        touched = embedded[0].grad[0].abs().sum(-1) > 0
        expected = torch.tensor([segment in on_path for segment in owner])
        assert not (touched & ~expected).any()
        assert (touched & expected).sum() > 0.8 * expected.sum()


# ---- gradients ----


def gradients(engine: DecisionEngine, logits: list[Tensor]) -> dict[str, Tensor]:
    torch.manual_seed(2)
    loss = sum((row * torch.randn_like(row)).sum() for row in logits)
    engine.model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in engine.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_gradients_equal_those_of_separate_forwards(tokenizer, architecture: str, lora: bool, cached: bool) -> None:
    engine = with_lora(tokenizer, architecture) if lora else tiny_engine(tokenizer, architecture)
    tree = tree_of(engine, TEXTS[:2])
    theirs = gradients(engine, separate(engine, tree))
    prefix = engine.forward.read(tree, keep=1)[2] if cached else None
    logits, _, _ = engine.forward.read(tree, prefix)
    assert worst(logits, separate(engine, tree)) <= TOLERANCE
    ours = gradients(engine, logits)
    assert ours.keys() == theirs.keys()
    assert all("lora" in name for name in ours) == lora
    for name, gradient in theirs.items():
        scale = max(1.0, float(gradient.abs().max()))
        assert float((ours[name] - gradient).abs().max()) <= TOLERANCE * scale, name


def test_lora_changes_the_answer_and_can_be_switched_off(tokenizer) -> None:
    engine, plain = with_lora(tokenizer, "llama"), tiny_engine(tokenizer, "llama")
    with torch.inference_mode():
        adapted = engine.forward.read(tree_of(engine))[0]
        with engine.model.disable_adapter():
            base = engine.forward.read(tree_of(engine))[0]
        assert worst(base, plain.forward.read(tree_of(plain))[0]) <= TOLERANCE
        assert worst(adapted, base) > 0.01


# ---- the silent traps: each is told from the right numbers by the comparison that the tests and the start-up check make ----


def restarted_positions_without_mask(packed: Packed) -> None:
    return None


def all_ones(packed: Packed) -> Tensor:
    return torch.ones_like(packed.ids)


def boolean_mask(packed: Packed) -> Tensor:
    return attention_mask(packed)


def causal_mask(packed: Packed) -> Tensor:
    n = packed.ids.shape[1]
    return torch.ones(n, n, dtype=torch.bool).tril()[None, None]


def window_by_index(packed: Packed) -> dict[str, Tensor]:
    n = packed.ids.shape[1]
    index = torch.arange(n)
    near = index[:, None] - index[None, :] < 16
    return {"full_attention": attention_mask(packed), "sliding_attention": attention_mask(packed) & near}


TRAPS: list[tuple[str, str, Callable[[Packed], object], bool]] = [
    ("llama", "sdpa", restarted_positions_without_mask, True),
    ("qwen2", "sdpa", restarted_positions_without_mask, True),
    ("gemma3", "sdpa", restarted_positions_without_mask, True),
    ("llama", "sdpa", all_ones, True),
    ("qwen2", "sdpa", all_ones, True),
    ("gemma3", "sdpa", all_ones, True),
    ("llama", "sdpa", causal_mask, True),
    ("llama", "eager", boolean_mask, True),
    ("qwen2", "eager", boolean_mask, True),
    ("gemma3", "eager", boolean_mask, True),
    ("gemma3", "sdpa", boolean_mask, False),  # one mask for all layers: the window is ignored, which shows beyond the window only
    ("gemma3", "sdpa", window_by_index, False),
    ("qwen3", "sdpa", boolean_mask, False),
    ("qwen3", "sdpa", window_by_index, False),
]


@pytest.mark.parametrize(("architecture", "attention", "mask", "seen_at_start"), TRAPS)
@torch.inference_mode()
def test_a_wrong_mask_is_noticed(tokenizer, monkeypatch, architecture, attention, mask, seen_at_start) -> None:
    engine = tiny_engine(tokenizer, architecture, attention)
    monkeypatch.setattr(engine.forward, "_masks", mask)
    tree = tree_of(engine)
    assert worst(engine.forward.read(tree)[0], separate(engine, tree)) > 100 * TOLERANCE
    if seen_at_start:
        with pytest.raises(UserError, match="can't be scored in one pass"):
            engine.forward.check(engine.encoder)


@torch.inference_mode()
def test_wrong_positions_are_noticed(tokenizer, monkeypatch) -> None:
    engine = tiny_engine(tokenizer)
    monkeypatch.setattr("rlcd_lite.forward.pack", lambda *args: index_positions(*args))
    with pytest.raises(UserError, match="can't be scored in one pass"):
        engine.forward.check(engine.encoder)


def index_positions(*args: object) -> Packed:
    from dataclasses import replace

    from rlcd_lite.packing import pack

    packed = pack(*args)  # type: ignore[arg-type]
    return replace(packed, positions=torch.arange(packed.ids.shape[1])[None])


@torch.inference_mode()
def test_a_scaled_head_is_refused_when_the_engine_is_built(tokenizer) -> None:
    model = tiny_model("llama", len(tokenizer))
    model.lm_head.register_forward_hook(lambda module, args, output: output * 1.01)
    with pytest.raises(UserError, match="output head"):
        tiny_engine(tokenizer, model=model)


def test_dropout_is_off(tokenizer) -> None:
    targets = ["q_proj", "v_proj"]
    model = get_peft_model(tiny_model("llama", len(tokenizer)), LoraConfig(r=4, target_modules=targets, lora_dropout=0.5))
    model.train()
    engine = tiny_engine(tokenizer, model=model)
    assert not engine.model.training
    assert engine.decide(TRIAGE, TEXTS[0]).to_dict() == engine.decide(TRIAGE, TEXTS[0]).to_dict()


def test_a_prefix_of_other_tokens_is_refused(engine) -> None:
    one, other = tree_of(engine, TEXTS[:1]), tree_of(engine, TEXTS[1:2])
    with torch.inference_mode():
        _, _, prefix = engine.forward.read(one, keep=2)
        with pytest.raises(ValueError, match="other segments"):
            engine.forward.read(other, prefix)


@pytest.mark.parametrize("kind", ["flash_attention_2", "flex_attention"])
def test_attention_without_tree_masks_is_refused(tokenizer, kind: str) -> None:
    model = tiny_model("llama", len(tokenizer))
    model.config._attn_implementation_internal = kind
    with pytest.raises(UserError, match=kind):
        tiny_engine(tokenizer, model=model)


def test_unknown_layer_kinds_are_refused(tokenizer) -> None:
    model = tiny_model("qwen2", len(tokenizer))
    model.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(UserError, match="chunked_attention"):
        tiny_engine(tokenizer, model=model)


def test_a_tokenizer_of_another_model_is_refused(tokenizer) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        tiny_engine(tokenizer, model=tiny_model("llama", len(tokenizer) - 1))


def test_nan_weights_are_refused(tokenizer) -> None:
    model = tiny_model("llama", len(tokenizer))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
    with pytest.raises(UserError, match="NaN"):
        tiny_engine(tokenizer, model=model)


def test_a_coverage_that_is_no_number_is_refused(tokenizer) -> None:
    model = tiny_model("llama", len(tokenizer))
    engine = tiny_engine(tokenizer, model=model)
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")  # a token that is no label and stands in no text
    assert engine.decide(TRIAGE, "plain").values
    with pytest.raises(UserError, match="not a number"):
        engine.decide(TRIAGE, "plain", coverage=True)


def test_calls_that_no_parser_has_checked_are_checked(engine, model_folder) -> None:
    for wrong in ({"layout": "foo"}, {"device": "foo"}, {"dtype": "foo"}, {"attention": "foo"}):
        with pytest.raises(UserError, match="foo"):
            DecisionEngine.load(model_folder, **wrong)
    with pytest.raises(UserError, match="single text"):
        list(engine.decide_many(TRIAGE, "abc"))
    with pytest.raises(UserError, match="must be a string"):
        engine.decide(TRIAGE, 5)


def test_nan_that_only_one_text_meets_is_named_by_field(tokenizer) -> None:
    model = tiny_model("llama", len(tokenizer))
    engine = tiny_engine(tokenizer, model=model)
    (ids,) = engine.encoder.data(["\u0416"])
    with torch.no_grad():
        model.model.embed_tokens.weight[list(ids)] = float("nan")
    assert engine.decide(TRIAGE, "plain").values
    with pytest.raises(UserError, match="severity"):
        engine.decide(TRIAGE, "\u0416")


# ---- work ----


def test_no_token_is_run_twice(engine, monkeypatch) -> None:
    run: list[int] = []
    engine.model.get_input_embeddings().register_forward_hook(lambda module, args, output: run.append(output.shape[1]))
    tree = tree_of(engine, TEXTS[:1])
    engine.decide(TRIAGE, TEXTS[0])
    assert run == [sum(len(segment.ids) for segment in tree.segments)]
    run.clear()
    list(engine.decide_many(TRIAGE, TEXTS, budget=1))
    shared = len(tree.segments[0].ids)
    each = [sum(len(s.ids) for s in tree_of(engine, [text]).segments) - shared for text in TEXTS]
    assert run == [shared, *each]
    run.clear()
    list(engine.decide_many(TRIAGE, TEXTS[:2]))  # one row holds both: one pass
    assert len(run) == 1
    run.clear()
    session = engine.session(TEXTS[0])
    session.decide(TRIAGE)
    session.decide(TRIAGE)
    prompt = engine.prompt(TRIAGE, "context-first")
    asked = sum(len(b.asked + b.stem + b.choice_stem + b.stated_stem) for b in prompt.branches)
    assert run == [prompt.shared + len(prompt.encode(TEXTS[0])) + len(prompt.lead) + asked, len(prompt.lead) + asked]


def test_the_full_vocabulary_is_never_projected(engine, monkeypatch) -> None:
    tree = tree_of(engine)
    labels = {len(r.label_ids) for r in tree.readouts}
    seen: list[int] = []
    linear = torch.nn.functional.linear

    def spy(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(weight.shape[0])
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    engine.decide(TRIAGE, TEXTS[0])
    assert len(engine.encoder.tokenizer) not in seen
    assert labels <= set(seen)


# ---- decisions ----


def test_decisions_are_distributions_over_the_options(engine) -> None:
    decision = engine.decide(TRIAGE, TEXTS[0])
    for answer in decision.fields:
        assert sum(answer.probabilities) == pytest.approx(1.0, abs=1e-12)
        assert answer.probability == max(answer.probabilities)
        assert answer.stated in (0.1, 0.3, 0.5, 0.7, 0.9)
        assert 0.1 <= answer.stated_mean <= 0.9
    assert decision["stars"].expectation == pytest.approx(
        sum(i * p for i, p in enumerate(decision["stars"].probabilities, start=1))
    )
    assert decision["needs_human"].expectation is None
    assert json.loads(json.dumps(decision.values)) == decision.values


def test_models_with_equal_fields_are_kept_apart(engine) -> None:
    class One(BaseModel):
        ok: bool

    class Two(BaseModel):
        ok: bool

    for model in (One, Two, One):
        assert isinstance(engine.decide(model, "x").instance(), model)
        assert isinstance(engine.session("x").decide(model).instance(), model)
        assert isinstance(engine.schema_session(model).decide("x").instance(), model)


def test_prompts_of_many_schemas_do_not_pile_up(engine, monkeypatch) -> None:
    monkeypatch.setattr("rlcd_lite.engine.PROMPTS_KEPT", 8)
    schemas = [Schema.of({"fields": [{"name": f"f{i}", "type": "bool"}]}) for i in range(20)]
    used = engine.prompt(schemas[0])
    for schema in schemas:
        engine.prompt(schema)
        assert engine.prompt(schemas[0]) is used  # the least recently used goes first
    assert len(engine._prompts) == 8


def test_the_trace_can_be_checked_by_plain_forwards(engine) -> None:
    records: list[dict] = []
    decisions = list(engine.decide_many(TRIAGE, TEXTS, budget=500, trace=records.append))
    assert [(r["context"], r["field"], r["kind"]) for r in records] == [
        (i, f.name, kind) for i in range(len(TEXTS)) for f in Schema.of(TRIAGE).fields for kind in ("choice", "stated")
    ]
    for record in records:
        with torch.inference_mode():
            plain = engine.model(torch.tensor([record["path_ids"]])).logits[0, -1, record["label_ids"]]
        assert torch.allclose(plain, torch.tensor(record["logits"]), atol=1e-4)
        if record["kind"] == "choice":
            answer = decisions[record["context"]][record["field"]]
            assert [o.value for o in answer.field.options] == record["options"]
            assert answer.probabilities == pytest.approx(torch.tensor(record["logits"]).double().softmax(0).tolist(), abs=1e-6)
