"""``rlcd-lite infer``: decide a schema over a text, or over each row of a file."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlcd_lite import ranks
from rlcd_lite.commands.act_flags import ActFlags
from rlcd_lite.commands.model_flags import AskFlags, ModelFlags
from rlcd_lite.commands.progress import progress
from rlcd_lite.decisions import Decision
from rlcd_lite.errors import UserError, check_text, shorten
from rlcd_lite.files import check_writable, read_text
from rlcd_lite.outputs import DecisionWriter, decision_record
from rlcd_lite.priors import CONTEXTS
from rlcd_lite.rows import Row, inspect, read_rows
from rlcd_lite.schema import Schema

if TYPE_CHECKING:
    from rlcd_lite.engine import DecisionEngine, Trace

_SHOWN_OPTIONS = 5


@dataclass
class Infer:
    """Decide every field of a schema over a text, or over each row of a file, in one forward pass per packed row.

    Give the text with --context, --context-file or --input, and the schema with --schema or --schema-json. Results go to stdout
    or to --output, everything else to stderr.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    ask: Annotated[AskFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=AskFlags)
    act: Annotated[ActFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ActFlags)
    context: str | None = None
    """The text to decide about."""
    context_file: str | None = None
    """File that holds the text (UTF-8); - reads standard input."""
    input: Path | None = None
    """File of many texts: .jsonl (one object a line) or .csv (with a header)."""
    text_column: str = "text"
    """Key or column of --input that holds the text; a key or column named id is copied to the output."""
    schema_json: str | None = None
    """The schema as JSON: {"fields": [{"name": …, "type": "choice" | "bool" | "score" | "int", …}]}, or a JSON Schema object."""
    schema: Path | None = None
    """File that holds the schema as JSON."""
    output: Path | None = None
    """Write decisions to this .jsonl or .csv file, one row per text, instead of stdout."""
    json: bool = False
    """Print JSON instead of a table: decision, its probability, and per field value, probabilities, probability, stated,
    stated_mean."""
    coverage: bool = False
    """Also report the share of the full vocabulary's probability that lies on each field's labels."""
    trace: Path | None = None
    """Write every read-out's token path, labels and logits to this JSON file, so that a plain forward can check them."""
    resume: bool = False
    """Continue an --output file that a killed run left; no row is repeated or lost."""
    overwrite: bool = False
    """Replace existing --output and --trace files."""

    def run(self) -> None:
        if self.input is None and not ranks.is_main():
            return  # a single text is a single forward
        schema = self._schema()
        self._check_flags()
        if self.input is not None:
            self._run_file(schema, self.input)
        else:
            text = self._text()
            writer = DecisionWriter(self.output, schema, self._settings(), overwrite=self.overwrite) if self.output else None
            engine, act = self._engine(schema)
            with self._tracing(engine) as trace:
                decision = act(engine.decide(schema, text, coverage=self.coverage, trace=trace))
            if writer is not None:
                with writer.open():
                    writer.write(1, None, decision)
            elif self.json:
                print(json.dumps(decision.to_dict(), ensure_ascii=False, allow_nan=False, indent=2))
            else:
                Console(highlight=False).print(decision_table(decision))

    def _schema(self) -> Schema:
        if (self.schema_json is None) == (self.schema is None):
            raise UserError("the schema is needed once: give --schema-json or --schema.")
        if self.schema is not None:
            return Schema.from_file(self.schema)
        return Schema.from_json(self.schema_json or "", "--schema-json")

    def _check_flags(self) -> None:
        if sum(source is not None for source in (self.context, self.context_file, self.input)) != 1:
            raise UserError("the text is needed once: give --context, --context-file or --input.")
        self.ask.check()
        self.act.check()
        if self.ask.prior == "contexts" and self.input is None:
            raise UserError("--prior contexts is measured on the rows of --input: give that, or a file that rlcd-lite prior wrote.")
        if self.resume and (self.output is None or self.input is None):
            raise UserError("--resume continues a file: give --input and --output with it.")
        if self.resume and self.overwrite:
            raise UserError("--resume keeps what is there and --overwrite replaces it: give one of the two.")
        if self.json and self.output is not None:
            raise UserError("--json is about what is printed, and --output writes to a file: give one of the two.")
        if self.resume and self.trace is not None:
            raise UserError("--trace describes a whole run and can't be resumed: leave out one of the two.")
        read = [path.resolve() for path in (self.input, self.schema, _path(self.context_file)) if path is not None]
        written = [path.resolve() for path in (self.output, self.trace) if path is not None]
        if twice := [path for i, path in enumerate(written) if path in read or path in written[:i]]:
            raise UserError(f"the flags name the file {str(twice[0])!r} twice: write to a file of its own.")
        if self.trace is not None:
            if self.trace.exists() and not self.overwrite:
                raise UserError(f"trace {str(self.trace)!r} exists: replace it with --overwrite.")
            check_writable(self.trace, "trace")

    def _text(self) -> str:
        if self.context is not None:
            text = self.context
        elif self.context_file == "-":
            try:
                text = sys.stdin.buffer.read().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UserError(f"standard input is not UTF-8 (byte {error.start}): convert it, for instance with iconv.") from None
        else:
            text = read_text(Path(self.context_file or ""), "context file")
        if not text.strip():
            raise UserError(f"the text is {shorten(text)}: give a text that is not blank.")
        return text

    def _run_file(self, schema: Schema, path: Path) -> None:
        facts = inspect(path)
        writer = None
        if self.output is not None:
            output, made_by = self.output, self._settings() | {"input_sha256": facts.sha256, "schema": schema.to_dict()}
            # the main process looks: the others could find what it has written since
            writer = ranks.told(lambda: DecisionWriter(output, schema, made_by, resume=self.resume, overwrite=self.overwrite))
            if writer.complete:
                _say(f"{output} is complete: nothing is left to do.")
                return
        engine, act = self._engine(schema)
        if self.ask.prior == "contexts":
            first = islice(GoodRows(path, self.text_column, engine, schema, say=False).texts(lambda: None), CONTEXTS)
            engine.prior = engine.measure_prior([(schema, text) for text in first])
        rows = GoodRows(path, self.text_column, engine, schema, done=writer.last_line if writer else 0)
        with ExitStack() as stack:
            trace = stack.enter_context(self._tracing(engine, rows.line_of))
            advance = stack.enter_context(progress(facts.rows, f"deciding {path.name}"))
            if writer is not None and ranks.is_main():
                stack.enter_context(writer.open())
            for found in engine.decide_many(schema, rows.texts(advance), coverage=self.coverage, trace=trace, spread=True):
                line, row_id = rows.take()
                if not ranks.is_main():
                    continue
                decision = act(found)
                if writer is not None:
                    writer.write(line, row_id, decision)
                else:
                    print(json.dumps(decision_record(line, row_id, decision), ensure_ascii=False, allow_nan=False))
                advance()
            if not rows.taken and not rows.done:
                raise UserError(f"no row of {str(path)!r} could be decided ({rows.first_problem}): mend the file or the flags.")
        left_out = f", {rows.left_out} left out" if rows.left_out else ""
        _say(f"decided {rows.taken} of {facts.rows} rows{left_out}.")

    def _engine(self, schema: Schema) -> tuple[DecisionEngine, Callable[[Decision], Decision]]:
        """The engine, and what is made of its decisions."""
        calibration, promises = self.act.read(self.ask)
        if calibration is not None:
            calibration.check(schema, self.act.consistency)
        engine = self.model.load(
            prior=self.ask.read(self.model),
            permutations=self.ask.permutations,
            calibration=calibration,
            consistency=self.act.consistency,
        )
        return engine, (lambda decision: decision) if promises is None else promises.keep

    def _settings(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        return {
            **self.model.made_by(),
            **self.ask.settings(),
            **self.act.settings(),
            "text_column": self.text_column,
            "coverage": self.coverage,
        }

    @contextmanager
    def _tracing(self, engine: DecisionEngine, number_of: Callable[[int], int] = int) -> Iterator[Trace | None]:
        """A function that appends a record to the trace file, which appears under its name when it is whole."""
        if self.trace is None:
            yield None
            return
        if not ranks.is_main():
            yield lambda record: None  # the records are made here and written by the main process
            return
        scratch = self.trace.with_name(self.trace.name + ".part")
        with scratch.open("w", encoding="utf-8") as file:
            file.write(f'{{"model": {json.dumps(engine.name)}, "readouts": [')
            separator = "\n"

            def write(record: dict[str, Any]) -> None:
                nonlocal separator
                file.write(separator + json.dumps(record | {"context": number_of(record["context"])}, ensure_ascii=False))
                separator = ",\n"

            try:
                yield write
            except BaseException:
                scratch.unlink()
                raise
            file.write("\n]}\n")
        scratch.replace(self.trace)


class GoodRows:
    """The rows of a file that hold a text; the others are reported, counted and left out.

    Rows are handed out by `texts` ahead of their decisions, so they wait in a queue until `take` fetches them.
    """

    def __init__(self, path: Path, column: str, engine: DecisionEngine, schema: Schema, done: int = 0, say: bool = True) -> None:
        self.done = done  # rows up to this line were decided by an earlier run
        self.taken = self.left_out = 0
        self.first_problem = ""
        self._path, self._column, self._engine, self._schema, self._speaks = path, column, engine, schema, say
        self._waiting: deque[tuple[int, Any]] = deque()

    def texts(self, advance: Callable[[], None]) -> Iterator[str]:
        for row in read_rows(self._path):
            if row.line <= self.done:
                advance()
            elif problem := self._problem(row):
                self.left_out += 1
                self.first_problem = self.first_problem or f"line {row.line}: {problem}"
                if self._speaks:
                    _say(f"{self._path}: line {row.line} is left out: {problem}.")
                advance()
            else:
                self._waiting.append((row.line, row.values.get("id")))
                yield row.values[self._column]

    def take(self) -> tuple[int, Any]:
        """Line and id of the row whose decision came."""
        self.taken += 1
        return self._waiting.popleft()

    def line_of(self, index: int) -> int:
        """Line of the ``index``-th text handed out, while it waits for its decision."""
        return self._waiting[index - self.taken][0]

    def _problem(self, row: Row) -> str | None:
        if row.problem is not None:
            return row.problem
        row_id = row.values.get("id")
        if row_id is not None and not isinstance(row_id, str | int):
            return f"its id is {shorten(row_id)}: an id is a string or an integer"
        if self._column not in row.values:
            return f"it has no {self._column!r} but {', '.join(map(repr, row.values))}: name the text with --text-column"
        try:
            check_text(row_id if isinstance(row_id, str) else None, "its id")
            self._engine.encode(self._schema, row.values[self._column])
        except UserError as error:
            return str(error).rstrip(".")
        return None


def decision_table(decision: Decision) -> Table:
    """A decision for people: one row per field, its most probable options beside it."""
    table = Table(box=None, pad_edge=False)
    extra = {
        "confidence": lambda a: "" if a.applied is None else f"{a.applied.confidence:.3f}",
        "action": lambda a: a.action or "",
        "set": lambda a: "" if a.options is None else " ".join(a.field.options[i].text for i in a.options) or "∅",
    }
    shown = [name for name, cell in extra.items() if any(cell(answer) for answer in decision.fields)]
    for column in ("field", "answer", "probability", "stated", *shown, "options"):
        table.add_column(column, justify="right" if column in ("probability", "stated", "confidence") else "left")
    for answer in decision.fields:
        ranked = sorted(zip(answer.probabilities, answer.field.options, strict=True), key=lambda pair: -pair[0])
        options = "  ".join(f"{option.text} {p:.2f}" for p, option in ranked[:_SHOWN_OPTIONS])
        if len(ranked) > _SHOWN_OPTIONS:
            options += f"  … {len(ranked) - _SHOWN_OPTIONS} more"
        value = answer.field.options[answer.choice].text
        if answer.expectation is not None:
            value += f" (mean {answer.expectation:.2f})"
        said = (answer.field.name, value, f"{answer.probability:.3f}", f"{answer.stated:.1f}")
        cells = (*said, *(extra[name](answer) for name in shown), options)
        table.add_row(*(Text(_printable(cell)) for cell in cells))  # Text: names and options are data, not markup
    return table


def _printable(text: str) -> str:
    """The text with control characters written out, so that no name can steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _say(text: str) -> None:
    if ranks.is_main():
        print(text, file=sys.stderr)


def _path(context_file: str | None) -> Path | None:
    return None if context_file in (None, "-") else Path(context_file or "")
