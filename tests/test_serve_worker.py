"""The worker's answers are those of the engine, whoever else asks; nobody's mistake is another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from transformers import PreTrainedTokenizerFast

from conftest import TEXTS, tiny_engine
from rlcd_lite.calibration_file import Calibration
from rlcd_lite.decisions import Decision
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema
from rlcd_lite.serve.worker import Limits, Worker


def question(description: str, options: Sequence[str] = ("low", "high")) -> Schema:
    return Schema.of({"fields": [{"name": "answer", "type": "choice", "options": list(options), "description": description}]})


LIMITS = Limits(batch_tokens=2048)
QUESTIONS = [question(f"question {i}", ("low", "medium", "high", "none")[: 2 + i % 3]) for i in range(12)]


@asynccontextmanager
async def running(
    engine: DecisionEngine, limits: Limits = LIMITS, calibrations: Sequence[Calibration] = ()
) -> AsyncIterator[Worker]:
    worker = Worker(engine, calibrations, limits)
    worker.start()
    try:
        yield worker
    finally:
        await worker.close()


def differ(one: Decision, other: Decision) -> float:
    """The largest difference between two decisions' probabilities and stated confidences."""
    assert one.schema == other.schema
    pairs = list(zip(one.fields, other.fields, strict=True))
    found = [abs(p - q) for a, b in pairs for p, q in zip(a.probabilities, b.probabilities, strict=True)]
    return max(found + [abs(a.stated_mean - b.stated_mean) for a, b in pairs])


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> DecisionEngine:
    return tiny_engine(tokenizer, layout="context-first")


def test_200_mixed_requests_are_answered_as_if_alone(engine: DecisionEngine) -> None:
    asks = [(f"{TEXTS[i % 3]} {i // 7}", [QUESTIONS[(i + j) % 12] for j in range(1 + i % 4)]) for i in range(200)]

    async def all_at_once() -> list[Sequence[Decision]]:
        async with running(engine) as worker:
            answers = await asyncio.gather(*(worker.decide(text, schemas) for text, schemas in asks))
            assert worker.state().batches < 100
            return [answer.decisions for answer in answers]

    for (text, schemas), decisions in zip(asks, asyncio.run(all_at_once()), strict=True):
        for schema, decision in zip(schemas, decisions, strict=True):
            assert differ(decision, engine.decide(schema, text)) <= 1e-6


def test_a_mistake_fails_its_own_request(engine: DecisionEngine) -> None:
    async def go() -> None:
        async with running(engine) as worker:
            texts = ["good", " ", "long " * 3000, "fine"]
            answers = await asyncio.gather(*(worker.decide(text, QUESTIONS[:2]) for text in texts), return_exceptions=True)
            assert [isinstance(answer, UserError) for answer in answers] == [False, True, True, False]

    asyncio.run(go())
