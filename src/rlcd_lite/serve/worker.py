"""The one thread that owns the engine: waiting requests are answered in order, several in one packed row.

A batch is whatever waits when the thread is free, up to a number of tokens: nothing waits for company, so a lone request is not
delayed. Engine, prompts and tokenizer are used in this thread and in no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from threading import Condition, Thread

from rlcd_lite.answers import decision
from rlcd_lite.calibration_file import Calibration, asked, tied
from rlcd_lite.decisions import Decision
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.packing import TokenTree
from rlcd_lite.prompts import Prompt
from rlcd_lite.schema import Schema
from rlcd_lite.scores import Scores
from rlcd_lite.serve.kept_texts import Ids, KeptTexts

logger = logging.getLogger(__name__)

FIELD_TOKENS = 60  # about what a field costs beside its own words: the task, the levels of the confidence, two keys
BYTES_A_TOKEN = 4  # about; only for what waits
SHORTEST_WAIT = 0.5  # seconds; nobody who was refused should be back at once
BATCHES_TIMED = 9  # the speed is the median over the last batches,
BATCHES_NEEDED = 3  # and not known before so many: the first is slower


@dataclass(frozen=True)
class Limits:
    """``waiting_tokens``, ``waiting_requests``: how much may wait, tokens being estimated; ``batch_tokens``: of a packed row, None:
    the engine's own; ``cache_bytes``: of kept texts; ``timeout_s``: after which a request is given up."""

    waiting_tokens: int = 1 << 20
    waiting_requests: int = 1024
    batch_tokens: int | None = None
    cache_bytes: int = 256 << 20
    timeout_s: float = 30.0


class Overloaded(Exception):  # noqa: N818
    """Too much waits. ``retry_after``: seconds after which it probably does not."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting: try again in {retry_after:.1f} s.")
        self.retry_after = retry_after


class TimedOut(Exception):  # noqa: N818
    """The request was not answered in time."""


class Stopped(Exception):  # noqa: N818
    """The server is shutting down and takes nothing new."""


@dataclass(frozen=True)
class Answered:
    """One decision per schema. ``input_tokens``: of the text, once, and of every question; ``cached_tokens``: those of them that
    were not run, because the text was kept."""

    decisions: tuple[Decision, ...]
    input_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class State:
    """What a worker does. ``waiting``, ``waiting_tokens``: requests that were not begun; ``running``: those of the current batch;
    ``tokens_a_second``: recent speed, 0 while it is not known; the rest counts since the start."""

    alive: bool
    waiting: int
    waiting_tokens: int
    running: int
    tokens_a_second: float
    batches: int
    answered: int
    failed: int
    refused: int
    dropped: int
    kept_texts: int
    kept_bytes: int
    kept_hits: int  # answered requests whose text was kept


@dataclass(eq=False)
class _Request:
    text: str
    schemas: tuple[Schema, ...]
    tokens: int  # estimated
    future: asyncio.Future[Answered]
    ids: Ids = ()  # of the text; filled by the thread, as is `exact`
    exact: int = 0  # tokens of the text and of every question
    cached: int = 0  # of these, not run

    def settle(self, answer: Answered | Exception) -> None:
        """Hand over the answer; nobody may be there any more."""

        def hand_over() -> None:
            if self.future.done():
                return
            if isinstance(answer, Answered):
                self.future.set_result(answer)
            else:
                self.future.set_exception(answer)

        with suppress(RuntimeError):  # the loop was closed
            self.future.get_loop().call_soon_threadsafe(hand_over)


class _Row:
    """What a packed row would hold, and how many ``tokens`` of it would be run."""

    def __init__(self, kept: Container[Ids] = ()) -> None:
        self.tokens = 0
        self._kept = kept  # texts that need not be run
        self._tree = TokenTree()

    def add(self, prompts: Iterable[Prompt], ids: Ids) -> None:
        before = len(self._tree.segments)
        for prompt in prompts:
            prompt.grow(self._tree, ids)
        for segment in self._tree.segments[before:]:
            if segment.parent != 0 or segment.ids not in self._kept:
                self.tokens += len(segment.ids)


class Worker:
    """Answers requests by an engine that it has for itself.

    ``calibrations``: each is applied to every schema that it was fitted for. Raises `UserError` for one that was fitted for another
    engine, or for the same schema as another one.
    """

    def __init__(self, engine: DecisionEngine, calibrations: Sequence[Calibration] = (), limits: Limits = Limits()) -> None:
        self.limits = limits
        self._engine = engine
        self._calibrations = _by_schema(engine, calibrations)
        self._budget = limits.batch_tokens or engine.budget
        self._text_first = engine.contract.layout == "context-first"  # else a text stands behind its questions, and serves no other
        self._kept = KeptTexts(limits.cache_bytes)
        self._waiting: deque[_Request] = deque()
        self._waiting_tokens = 0
        self._running: list[_Request] = []
        self._changed = Condition()  # guards all that is waiting
        self._closing = False
        self._speeds: deque[float] = deque(maxlen=BATCHES_TIMED)  # estimated tokens a second
        self._batches = self._answered = self._failed = self._refused = self._dropped = 0
        self._hits = 0
        self._thread = Thread(target=self._work, name="rlcd-lite-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Take nothing new, finish what was accepted, end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    async def decide(self, text: str, schemas: Sequence[Schema]) -> Answered:
        """Answer schemas over a text.

        Raises `UserError` for a mistake in it, `Overloaded` at once where too much waits, `TimedOut`, `Stopped`. If the caller is
        cancelled, the request is taken out of the queue.
        """
        if not schemas:
            raise UserError("nothing is asked: give one question at least.")
        tokens = len(text.encode(errors="replace")) // BYTES_A_TOKEN + sum(map(_estimate, schemas))
        request = _Request(text, tuple(schemas), tokens, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closing:
                raise Stopped("the server is shutting down.")
            wait = self._seconds()
            full = len(self._waiting) >= self.limits.waiting_requests or self._waiting_tokens + tokens > self.limits.waiting_tokens
            if self._waiting and (full or wait > self.limits.timeout_s):
                self._refused += 1
                raise Overloaded(max(SHORTEST_WAIT, wait))
            self._waiting.append(request)
            self._waiting_tokens += tokens
            self._changed.notify()
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await request.future
        except TimeoutError:
            raise TimedOut(f"the request was not answered within {self.limits.timeout_s:g} s.") from None
        finally:
            self._dropped += self._take(request)

    def state(self) -> State:
        with self._changed:
            return State(
                alive=self._thread.is_alive(),
                waiting=len(self._waiting),
                waiting_tokens=self._waiting_tokens,
                running=len(self._running),
                tokens_a_second=self._speed(),
                batches=self._batches,
                answered=self._answered,
                failed=self._failed,
                refused=self._refused,
                dropped=self._dropped,
                kept_texts=len(self._kept),
                kept_bytes=self._kept.bytes,
                kept_hits=self._hits,
            )

    def calibration(self, schema: Schema) -> Calibration | None:
        """The one that was fitted for a schema, if any."""
        found = (self._calibrations.get(_key(schema, varying)) for varying in (False, True))
        return next(filter(None, found), None) if self._calibrations else None

    def _seconds(self) -> float:
        """How long all that was accepted probably takes; 0 as long as the speed is not known."""
        tokens = self._waiting_tokens + sum(request.tokens for request in self._running)
        speed = self._speed()
        return tokens / speed if speed else 0.0

    def _speed(self) -> float:
        return median(self._speeds) if len(self._speeds) >= BATCHES_NEEDED else 0.0

    def _first(self, block: bool) -> _Request | None:
        """The request that has waited longest, or None; with ``block`` only once there will be no other."""
        with self._changed:
            while block and not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting[0] if self._waiting else None

    def _take(self, request: _Request) -> bool:
        """Whether the request was waiting; it is no longer."""
        with self._changed:
            if request not in self._waiting:
                return False
            self._waiting.remove(request)
            self._waiting_tokens -= request.tokens
            return True

    # ---- in the thread ----

    def _work(self) -> None:
        while batch := self._batch():
            with self._changed:
                self._running = batch
            start = time.perf_counter()
            self._answer(batch)
            with self._changed:
                self._speeds.append(sum(request.tokens for request in batch) / (time.perf_counter() - start))
                self._batches += 1
                self._running = []

    def _batch(self) -> list[_Request]:
        """Requests that fill a packed row, one at least; none when the worker is closed."""
        row = _Row(self._kept)
        batch: list[_Request] = []
        while request := self._first(block=not batch):
            try:
                if not request.ids:
                    self._prepare(request)
                row.add(self._prompts(request.schemas), request.ids)
            except Exception as error:
                self._take(request)
                self._fail(request, error)
                continue
            if batch and row.tokens > self._budget:
                break
            if self._take(request):
                batch.append(request)
        return batch

    def _prepare(self, request: _Request) -> None:
        """Token ids of the text, which fits into the window with every question."""
        prompts = [prompt for schema in request.schemas for prompt in self._engine.prompts(schema)]
        request.ids = max(prompts, key=lambda prompt: prompt.around).encode(request.text)
        row = _Row()
        row.add(self._prompts(request.schemas), request.ids)
        request.exact = row.tokens

    def _prompts(self, schemas: Sequence[Schema]) -> Iterator[Prompt]:
        return (prompt for schema in schemas for prompt in self._engine.first(schema))

    def _answer(self, batch: Sequence[_Request]) -> None:
        try:
            found = iter(self._scores(batch))
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch[0], error)
            else:  # one of them is to blame
                for request in batch:
                    self._answer([request])
            return
        for request in batch:
            scores = [next(found) for _ in request.schemas]
            try:
                decisions = tuple(map(self._decision, request.schemas, scores))
            except Exception as error:
                self._fail(request, error)
            else:
                self._answered += 1
                self._hits += request.cached > 0
                request.settle(Answered(decisions, request.exact, request.cached))

    def _scores(self, batch: Sequence[_Request]) -> list[Scores]:
        for request in batch:
            request.cached = len(request.ids) if request.ids in self._kept else 0
        prefix = self._kept.prefix(request.ids for request in batch)
        scores: list[Scores] = []
        for row in self._rows(batch):
            found, prefix = self._engine.ask(row, prefix=prefix, keep="texts" if self._text_first else "nothing")
            scores += found
        if prefix is not None:
            self._kept.keep(prefix)
        return scores

    def _rows(self, batch: Sequence[_Request]) -> Iterator[list[tuple[Schema, Ids]]]:
        """All that is asked, as one packed row; as several where a single request is larger, each full of its questions."""
        texts = {request.ids for request in batch} if self._text_first else ()  # a second row does not run them again
        row: list[tuple[Schema, Ids]] = []
        size = _Row(texts)
        for request in batch:
            for schema in request.schemas:
                size.add(self._engine.first(schema), request.ids)
                if row and size.tokens > self._budget:
                    yield row
                    row, size = [], _Row(texts)
                    size.add(self._engine.first(schema), request.ids)
                row.append((schema, request.ids))
        yield row

    def _decision(self, schema: Schema, scores: Scores) -> Decision:
        priors = [self._engine.prior_name(field) for field in schema.fields]
        return decision(schema, scores, priors, self.calibration(schema), self._engine.consistency)

    def _fail(self, request: _Request, error: Exception) -> None:
        self._failed += 1
        if not isinstance(error, UserError):  # its message may hold a text
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("a request failed with %s:\n%s", type(error).__name__, where)
        request.settle(error)


_Key = tuple[bool, tuple[tuple[str, str], ...], str]


def _key(schema: Schema, varying: bool) -> _Key:
    return varying, tuple(asked(schema, varying).items()), tied(schema)


def _by_schema(engine: DecisionEngine, calibrations: Sequence[Calibration]) -> dict[_Key, Calibration]:
    if engine.calibration is not None:
        raise UserError("the engine has a calibration of its own: give it to the worker instead.")
    made_by = engine.made_by() if calibrations else {}
    found: dict[_Key, Calibration] = {}
    for calibration in calibrations:
        calibration.check_model(made_by)
        if calibration.consistency != engine.consistency:
            raise UserError(
                f"a calibration was fitted with --consistency {calibration.consistency}, not {engine.consistency}: use the same."
            )
        key = calibration.varying, tuple(calibration.asked.items()), calibration.tied
        if key in found:
            raise UserError(
                f"two calibrations are for the same schema, with the fields {', '.join(calibration.asked)}: give one of them."
            )
        found[key] = calibration
    return found


def _estimate(schema: Schema) -> int:
    """About how many tokens the questions of a schema take."""
    words = 0
    for field in schema.fields:
        words += len(field.name) + len(field.description or "")
        words += sum(len(option.text) + len(option.description or "") + 4 for option in field.options)
    return words // BYTES_A_TOKEN + FIELD_TOKENS * len(schema.fields)
