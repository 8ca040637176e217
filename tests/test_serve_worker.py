"""The worker's answers are those of the engine, whoever else asks; nobody's mistake is another's."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from conftest import TEXTS, TRIAGE, tiny_engine
from rlcd_lite.calibration_file import Calibration
from rlcd_lite.decisions import Decision
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema
from rlcd_lite.serve.worker import Answered, Limits, Overloaded, State, Stopped, TimedOut, Worker
from rlcd_lite.settings import Layout
from test_held_out import SCHEMA, calibrated  # noqa: F401  # a fixture


def question(description: str, options: Sequence[str] = ("low", "high")) -> Schema:
    return Schema.of({"fields": [{"name": "answer", "type": "choice", "options": list(options), "description": description}]})


QUESTIONS = [question(f"question {i}", ("low", "medium", "high", "none")[: 2 + i % 3]) for i in range(12)]
LIMITS = Limits(batch_tokens=2048)  # the tests' tokenizer makes many tokens of few words
CONTRADICTION = Schema.of(
    {
        "fields": [{"name": "a", "type": "bool"}, {"name": "b", "type": "bool"}],
        "rules": [{"if": {"a": a}, "then": {"b": b}} for a in (True, False) for b in (True, False)],
    }
)


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


async def held(worker: Worker) -> asyncio.Task[Answered]:
    """A request that is being run: what comes now has to wait."""
    task = asyncio.create_task(worker.decide("held", QUESTIONS[:1]))
    await until(worker, running=1)
    return task


async def until(worker: Worker, **wanted: int) -> State:
    """The worker's state as soon as it has these numbers."""
    async with asyncio.timeout(20):
        while any(getattr(state := worker.state(), name) != number for name, number in wanted.items()):
            await asyncio.sleep(0.001)
    return state


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> DecisionEngine:
    return tiny_engine(tokenizer, layout="context-first")


class Gate:
    """Lets batches through once it is opened, and notes them."""

    def __init__(self, engine: DecisionEngine) -> None:
        self.opened = threading.Event()
        self.batches: list[int] = []  # questions of each
        self._ask = engine.ask

    def ask(self, asked: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        self.opened.wait(20)
        self.batches.append(len(asked))
        return self._ask(asked, *args, **kwargs)


@pytest.fixture
def gate(engine: DecisionEngine, monkeypatch: pytest.MonkeyPatch) -> Gate:
    found = Gate(engine)
    monkeypatch.setattr(engine, "ask", found.ask)
    return found


# ---- answers ----


@pytest.mark.parametrize("layout", ["context-first", "schema-first"])
def test_200_mixed_requests_are_answered_as_if_alone(tokenizer: PreTrainedTokenizerFast, layout: Layout) -> None:
    engine = tiny_engine(tokenizer, layout=layout)
    asks = [(TEXTS[i % 4], [QUESTIONS[(i // 4 + j) % 8] for j in range(1 + i % 3)]) for i in range(200)]
    alone = {(text, schema): engine.decide(schema, text) for text in TEXTS for schema in QUESTIONS[:8]}

    async def all_at_once() -> tuple[list[Answered], State]:
        async with running(engine) as worker:
            answers = await asyncio.gather(*(worker.decide(text, schemas) for text, schemas in asks))
            return answers, worker.state()

    answers, state = asyncio.run(all_at_once())
    assert state.answered == 200
    assert state.batches < 100
    assert (state.kept_texts, state.kept_hits > 100) == ((4, True) if layout == "context-first" else (0, False))
    for (text, schemas), answer in zip(asks, answers, strict=True):
        for schema, decision in zip(schemas, answer.decisions, strict=True):
            assert differ(decision, alone[text, schema]) <= 1e-6


def test_an_answer_does_not_depend_on_the_other_questions(engine: DecisionEngine) -> None:
    async def go() -> None:
        async with running(engine) as worker:
            whole = (await worker.decide(TEXTS[0], QUESTIONS)).decisions
            for picked in ([3], [5, 3, 1], list(range(11, -1, -1)), [3, 3]):
                found = (await worker.decide(TEXTS[0], [QUESTIONS[i] for i in picked])).decisions
                assert max(differ(decision, whole[i]) for i, decision in zip(picked, found, strict=True)) <= 1e-5

    asyncio.run(go())


@pytest.mark.parametrize("cache_bytes", [0, 1 << 28])
def test_a_request_larger_than_a_row_is_cut_by_its_questions(engine: DecisionEngine, gate: Gate, cache_bytes: int) -> None:
    gate.opened.set()

    async def go() -> Answered:
        async with running(engine, Limits(batch_tokens=300, cache_bytes=cache_bytes)) as worker:
            return await worker.decide(TEXTS[2], QUESTIONS)

    before = engine.forward.tokens_run
    answer = asyncio.run(go())
    assert len(gate.batches) > 2
    assert sum(gate.batches) == 12
    tasks = (len(gate.batches) - 1) * len(engine.prompt(QUESTIONS[0]).lead)
    assert engine.forward.tokens_run - before == answer.input_tokens + tasks  # the text was run once
    for schema, decision in zip(QUESTIONS, answer.decisions, strict=True):
        assert differ(decision, engine.decide(schema, TEXTS[2])) <= 1e-6


def test_a_schema_of_several_fields_and_rules_is_answered_too(engine: DecisionEngine) -> None:
    async def go() -> None:
        async with running(engine) as worker:
            one, other = (await worker.decide(TEXTS[0], [Schema.of(TRIAGE), SCHEMA])).decisions
            assert differ(one, engine.decide(TRIAGE, TEXTS[0])) <= 1e-6
            assert differ(other, engine.decide(SCHEMA, TEXTS[0])) <= 1e-6
            assert other.broken == ()

    asyncio.run(go())


# ---- kept texts ----


def test_a_text_that_was_asked_about_is_not_run_again(engine: DecisionEngine) -> None:
    async def go() -> None:
        async with running(engine) as worker:
            first = await worker.decide(TEXTS[2], QUESTIONS[:1])
            before = engine.forward.tokens_run
            again = await worker.decide(TEXTS[2], QUESTIONS[1:2])
            run = engine.forward.tokens_run - before
            assert (first.cached_tokens, again.cached_tokens) == (0, len(engine.encode(QUESTIONS[0], TEXTS[2])))
            assert again.input_tokens == run + again.cached_tokens + engine.prompt(QUESTIONS[0]).shared
            assert worker.state().kept_hits == 1

    asyncio.run(go())


def test_kept_texts_stay_within_their_bound(engine: DecisionEngine) -> None:
    async def go() -> None:
        async with running(engine, Limits(cache_bytes=200_000)) as worker:
            for i in range(30):
                await worker.decide(f"text {i} {'word ' * (i % 7) * 10}", QUESTIONS[:1])
                assert worker.state().kept_bytes <= 200_000
            assert worker.state().kept_texts > 1

    asyncio.run(go())


# ---- mistakes and faults ----


def test_a_mistake_fails_its_own_request(engine: DecisionEngine, gate: Gate) -> None:
    many = question("a long list", [str(i) for i in range(60)])
    asks = [
        ("good", QUESTIONS[:2]),
        (" ", QUESTIONS[:2]),
        ("long " * 3000, QUESTIONS[:2]),
        ("a", [CONTRADICTION]),
        ("fine", [many]),
    ]

    async def go() -> list[Any]:
        async with running(engine) as worker:
            first = await held(worker)
            waiting = asyncio.gather(*(worker.decide(text, schemas) for text, schemas in asks), return_exceptions=True)
            await until(worker, waiting=len(asks))
            gate.opened.set()
            await first
            answers = await waiting
            with pytest.raises(UserError, match="nothing is asked"):
                await worker.decide("text", [])
            return answers

    answers = asyncio.run(go())
    assert [isinstance(answer, UserError) for answer in answers[:4]] == [False, True, True, True]
    assert [words in str(error) for words, error in zip(("blank", "window", "contradict"), answers[1:4], strict=True)] == [True] * 3
    assert differ(answers[0].decisions[0], engine.decide(QUESTIONS[0], "good")) <= 1e-6
    assert differ(answers[4].decisions[0], engine.decide(many, "fine")) <= 1e-6


def test_a_fault_fails_the_request_that_meets_it_and_is_logged_without_texts(
    engine: DecisionEngine, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hush"
    bad = engine.encode(QUESTIONS[0], secret)

    def ask(asked: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        found = gate.ask(asked, *args, **kwargs)
        if any(ids == bad for _, ids in asked):
            raise RuntimeError(f"no memory for {secret}")
        return found

    monkeypatch.setattr(engine, "ask", ask)

    async def go() -> list[Any]:
        async with running(engine) as worker:
            first = await held(worker)
            asks = asyncio.gather(*(worker.decide(t, QUESTIONS[:1]) for t in ("one", secret, "two")), return_exceptions=True)
            await until(worker, waiting=3)
            gate.opened.set()
            await first
            answers = await asks
            assert (await worker.decide("later", QUESTIONS[:1])).decisions
            return answers

    with caplog.at_level(logging.DEBUG):
        answers = asyncio.run(go())
    assert [type(answer) for answer in answers] == [Answered, RuntimeError, Answered]
    assert "RuntimeError" in caplog.text
    assert secret not in caplog.text


# ---- limits ----


def test_what_is_too_much_is_refused_at_once(engine: DecisionEngine, gate: Gate) -> None:
    async def go(limits: Limits) -> None:
        async with running(engine, limits) as worker:
            tasks = [await held(worker)]
            tasks += [asyncio.create_task(worker.decide(f"text {i}", QUESTIONS[:1])) for i in range(3)]
            await until(worker, waiting=3)
            start = time.perf_counter()
            with pytest.raises(Overloaded) as refused:
                await worker.decide("one too many", QUESTIONS[:1])
            assert time.perf_counter() - start < 0.05
            assert 0 < refused.value.retry_after < 30
            gate.opened.set()
            assert all(answer.decisions for answer in await asyncio.gather(*tasks))
            assert worker.state().refused == 1
            assert (await worker.decide("now there is room", QUESTIONS[:1])).decisions

    for limits in (Limits(waiting_requests=3), Limits(waiting_tokens=250)):
        gate.opened.clear()
        asyncio.run(go(limits))


def test_a_request_that_can_only_time_out_is_refused(engine: DecisionEngine, gate: Gate) -> None:
    async def go() -> None:
        async with running(engine, Limits(timeout_s=5)) as worker:
            gate.opened.set()
            await worker.decide("first", QUESTIONS[:1])
            gate.opened.clear()
            await until(worker, running=0)
            worker._speeds.extend([10.0] * 9)  # tokens a second
            tasks = [await held(worker), asyncio.create_task(worker.decide("second", QUESTIONS[:1]))]
            await until(worker, waiting=1)
            with pytest.raises(Overloaded) as refused:
                await worker.decide("third", QUESTIONS[:1])
            assert refused.value.retry_after > 5
            gate.opened.set()
            await asyncio.gather(*tasks)

    asyncio.run(go())


def test_what_is_late_or_not_waited_for_is_not_run(engine: DecisionEngine, gate: Gate) -> None:
    async def go() -> None:
        async with running(engine, Limits(timeout_s=0.2, batch_tokens=2048)) as worker:
            late = [await held(worker), asyncio.create_task(worker.decide("late", QUESTIONS[:1]))]
            await until(worker, waiting=1)
            gone = asyncio.create_task(worker.decide("gone", QUESTIONS[:1]))
            await until(worker, waiting=2)
            gone.cancel()
            state = await until(worker, waiting=1)
            assert state.dropped == 1
            assert [type(e) for e in await asyncio.gather(*late, gone, return_exceptions=True)] == [
                TimedOut,
                TimedOut,
                asyncio.CancelledError,
            ]
            state = worker.state()
            assert (state.waiting, state.waiting_tokens, state.dropped) == (0, 0, 2)
            gate.opened.set()
            assert (await worker.decide("in time", QUESTIONS[:1])).decisions

    asyncio.run(go())
    assert gate.batches == [1, 1]  # what had begun, and what came in time


def test_closing_finishes_what_was_accepted(engine: DecisionEngine, gate: Gate) -> None:
    async def go() -> None:
        async with running(engine) as worker:
            tasks = [await held(worker)]
            tasks += [asyncio.create_task(worker.decide(f"text {i}", QUESTIONS[:1])) for i in range(19)]
            await until(worker, waiting=19)
            closing = asyncio.create_task(worker.close())
            await asyncio.sleep(0)
            with pytest.raises(Stopped):
                await worker.decide("too late", QUESTIONS[:1])
            gate.opened.set()
            await closing
            assert not worker.state().alive
            async with asyncio.timeout(1):
                assert all(answer.decisions for answer in await asyncio.gather(*tasks))

    asyncio.run(go())


# ---- calibrations ----


def test_a_calibration_is_applied_to_its_schema_alone(tokenizer: PreTrainedTokenizerFast, calibrated: Any) -> None:  # noqa: F811
    engine = tiny_engine(tokenizer)
    own = calibrated[0].model_copy(update={"made_by": engine.made_by()})

    async def go() -> tuple[Decision, ...]:
        async with running(engine, calibrations=[own]) as worker:
            assert worker.calibration(SCHEMA) is own
            return (await worker.decide(TEXTS[0], [SCHEMA, Schema(SCHEMA.fields), QUESTIONS[0]])).decisions

    theirs, without_rules, other = asyncio.run(go())
    assert [answer.applied is not None for answer in theirs.fields] == [True, True]
    assert [answer.applied for answer in (*without_rules.fields, *other.fields)] == [None] * 3
    engine.calibration = own
    assert differ(theirs, engine.decide(SCHEMA, TEXTS[0])) <= 1e-6


def test_calibrations_that_do_not_fit_are_refused(tokenizer: PreTrainedTokenizerFast, calibrated: Any) -> None:  # noqa: F811
    engine = tiny_engine(tokenizer)
    own = calibrated[0].model_copy(update={"made_by": engine.made_by()})
    for given, words in (
        ([calibrated[0]], "fitted with"),
        ([own, own], "two calibrations are for the same schema, with the fields severity, human"),
        ([own.model_copy(update={"consistency": "measure"})], "--consistency measure, not enforce"),
    ):
        with pytest.raises(UserError, match=words):
            Worker(engine, given)
    engine.calibration = own
    with pytest.raises(UserError, match="of its own"):
        Worker(engine)
