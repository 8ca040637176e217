"""Keys and values that are cut out of one row and joined for another give the numbers of a row without them."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from conftest import TEXTS, TRIAGE, tiny_engine
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.forward import Prefix, cut, join
from rlcd_lite.schema import Schema
from rlcd_lite.scores import Scores
from rlcd_lite.serve.kept_texts import KeptTexts
from rlcd_lite.settings import Confidence

SCHEMAS = [Schema((field,)) for field in Schema.of(TRIAGE).fields[:2]]


def worst(ours: list[Scores], theirs: list[Scores]) -> float:
    pairs = [(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    return max(float((getattr(a, part) - getattr(b, part)).abs().max()) for a, b in pairs for part in ("choice", "stated"))


def run(engine: DecisionEngine, texts: list[str], prefix: Prefix | None = None) -> tuple[list[Scores], Prefix, int]:
    """Scores of every schema over every text, what can be kept, and how many tokens were run."""
    before = engine.forward.tokens_run
    asked = [(schema, engine.encode(schema, text)) for text in texts for schema in SCHEMAS]
    scores, kept = engine.ask(asked, prefix=prefix, keep="texts")
    assert kept is not None
    return scores, kept, engine.forward.tokens_run - before


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])  # gemma3 has sliding windows
@pytest.mark.parametrize(("confidence", "permutations"), [("independent", 1), ("conditioned", 1), ("independent", 3)])
def test_texts_of_different_rows_join_to_the_same_numbers(
    tokenizer: PreTrainedTokenizerFast, architecture: str, confidence: Confidence, permutations: int
) -> None:
    engine = tiny_engine(tokenizer, architecture, layout="context-first", confidence=confidence)
    engine.permutations = permutations
    kept = KeptTexts(1 << 30)
    for texts in (TEXTS[:2], TEXTS[2:]):
        kept.keep(run(engine, texts)[1])
    ids = [engine.encode(SCHEMAS[0], text) for text in TEXTS]
    fresh, _, all_tokens = run(engine, TEXTS)
    for order in ([0, 1, 2, 3], [3, 1], []):
        joined = kept.prefix([ids[i] for i in order])
        assert joined is not None
        scores, left, tokens = run(engine, TEXTS, joined)
        assert worst(scores, fresh) <= 1e-5
        assert tokens == all_tokens - sum(len(segment.ids) for segment in joined.segments)
        assert left.segments[: len(joined.segments)] == joined.segments
    alone = [scores for text in TEXTS for schema in SCHEMAS for scores in engine.score_runs([(schema, [text])])]
    assert worst(fresh, alone) <= 1e-5


def test_a_prefix_is_its_parts_joined(tokenizer: PreTrainedTokenizerFast) -> None:
    _, prefix, _ = run(tiny_engine(tokenizer, layout="context-first"), TEXTS)
    back = join(prefix.segments, [cut(prefix, i) for i in range(len(prefix.segments))])
    assert back.segments == prefix.segments
    for ours, theirs in zip(back.layers, prefix.layers, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_the_bound_holds_and_the_least_recently_used_text_goes_first(tokenizer: PreTrainedTokenizerFast) -> None:
    engine = tiny_engine(tokenizer, layout="context-first")
    texts = [f"text {i} {'word ' * 20}" for i in range(6)]
    ids = [engine.encode(SCHEMAS[0], text) for text in texts]
    prefixes = [run(engine, [text])[1] for text in texts]
    a_token = 2 * 3 * 2 * 16 * 4  # keys and values, layers, heads, width, bytes
    root = len(prefixes[0].segments[0].ids)
    kept = KeptTexts(a_token * (root + sum(map(len, ids[:3]))))
    for i, prefix in enumerate(prefixes):
        kept.keep(prefix)
        kept.prefix(ids[:1])
        assert kept.bytes == a_token * (root + sum(len(x) for x in ids if x in kept)) <= kept.limit
        assert ids[0] in kept
        assert ids[i] in kept
    assert [x in kept for x in ids] == [True, False, False, False, True, True]
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for x in ids for part in kept._texts.get(x, ()) for t in part
    }
    assert sum(held.values()) == kept.bytes - a_token * root  # no row is held behind a slice of it


def test_a_text_larger_than_the_bound_is_not_kept(tokenizer: PreTrainedTokenizerFast) -> None:
    engine = tiny_engine(tokenizer, layout="context-first")
    _, prefix, _ = run(engine, TEXTS[:1])
    for limit in (0, 20_000):
        kept = KeptTexts(limit)
        kept.keep(prefix)
        assert len(kept) == 0
        assert kept.bytes <= limit
