"""``rlcd-lite calibrate``: fit calibrators to labelled examples, and hold out others for what can be promised."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rlcd_lite import ranks
from rlcd_lite.commands.act_flags import refuse_contexts
from rlcd_lite.commands.model_flags import AskFlags, ModelFlags
from rlcd_lite.commands.progress import progress
from rlcd_lite.datasets import Dataset, Example, load
from rlcd_lite.errors import UserError
from rlcd_lite.files import check_writable
from rlcd_lite.schema import Schema
from rlcd_lite.settings import Consistency

if TYPE_CHECKING:  # SciPy and torch are imported where they are used, so that --help stays instant
    from rlcd_lite.calibration_file import Calibration
    from rlcd_lite.decision_table import DecisionRow
    from rlcd_lite.engine import DecisionEngine

_RISKS = (0.05, 0.1, 0.2)  # shown in the summary; a file allows any


@dataclass
class Calibrate:
    """Fit calibrators to labelled examples of a data set's calibration split, and keep them in a file for `infer --calibration`.

    Per field and signal, the calibrator with the best cross-fitted log score is taken, and none if none is surely better.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    ask: Annotated[AskFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=AskFlags)
    dataset: str = "synthetic"
    """Data set (see rlcd-lite data --list), with variants after a colon, or a file with --schema."""
    schema: Path | None = None
    """Schema file of a data file of your own."""
    data_dir: Path | None = None
    """Folder that holds the sets' folders; without it RLCD_DATA_DIR, without that the hub."""
    n: int = 300
    """Examples of the calibration split to fit on."""
    held_out_n: int = 300
    """Further examples of it that nothing is fitted on: they measure what was fitted, and every promise rests on them. None has a
    text or a passage in common with another, nor with those to fit on."""
    fields: str | None = None
    """Comma-separated fields to calibrate; all of them if not given."""
    consistency: Consistency = "enforce"
    """What is done about the schema's rules: as in infer, which must do the same."""
    seed: int = 0
    """Seed of the examples' order, the folds and the bootstrap."""
    output: Path = Path("calibration.json")
    """Where to keep it."""
    overwrite: bool = False
    """Replace an existing --output."""

    def run(self) -> None:
        from rlcd_lite.calibration_file import write_calibration
        from rlcd_lite.fitting import LEAST_ROWS

        for flag in ("n", "held_out_n"):
            if getattr(self, flag) < LEAST_ROWS:
                raise UserError(f"--{flag.replace('_', '-')} is {getattr(self, flag)}: it must be at least {LEAST_ROWS}.")
        if self.seed < 0:
            raise UserError(f"--seed is {self.seed}: it must be at least 0.")
        self.ask.check()
        refuse_contexts(self.ask)
        if self.output.exists() and not self.overwrite:
            raise UserError(f"output {str(self.output)!r} exists: replace it with --overwrite.")
        check_writable(self.output, "output")
        examples = self._examples()
        engine = self.model.load(prior=self.ask.read(self.model), permutations=self.ask.permutations)
        fit, held = self._decide(engine, examples)
        if ranks.is_main():
            calibration = self._calibration(engine, examples, fit, held)
            write_calibration(self.output, calibration)
            _print_summary(calibration)

    def _examples(self) -> Dataset:
        """The examples to fit on, then those to hold out."""
        schema = None if self.schema is None else Schema.from_file(self.schema)
        endless = self.dataset == "synthetic"
        count = self.n + self.held_out_n if endless else None
        examples = _apart(load(self.dataset, "calibration", count, schema=schema, data_dir=self.data_dir, seed=self.seed), self.n)
        if len(examples) < self.n + self.held_out_n:
            raise UserError(
                f"data set {self.dataset!r} has {len(examples)} examples in its calibration split with texts of their own, not "
                f"{self.n + self.held_out_n}: lower --n or --held-out-n."
            )
        examples = replace(examples, examples=examples.examples[: self.n + self.held_out_n])
        for name in self._fields(examples):
            examples[0].schema[name]  # an unknown name is an error here, before the model is loaded
        return examples

    def _fields(self, examples: Dataset) -> list[str]:
        if self.fields is None:
            return [f.name for f in examples[0].schema.fields]
        names = [name.strip() for name in self.fields.split(",")]
        if len(set(names)) < len(names):
            raise UserError(f"--fields {self.fields!r} names a field twice: name each once.")
        return names

    def _decide(self, engine: DecisionEngine, examples: Dataset) -> tuple[list[DecisionRow], list[DecisionRow]]:
        from rlcd_lite.evaluate import Part, decide_part

        split: tuple[tuple[Example, ...], ...] = (examples.examples[: self.n], examples.examples[self.n :])
        with progress(len(examples), f"calibrating on {examples.name}") as advance:
            fit, held = (
                list(decide_part(engine, Part(name, part), advance)) for name, part in zip(("fit", "held-out"), split, strict=True)
            )
        return fit, held

    def _calibration(
        self, engine: DecisionEngine, examples: Dataset, fit: list[DecisionRow], held: list[DecisionRow]
    ) -> Calibration:
        from rlcd_lite.calibration_file import VERSION, Calibration, asked, tied
        from rlcd_lite.held_out import calibrated_fields

        schemas = {example.id: example.schema for example in examples}
        schema, varying = examples[0].schema, examples.schema is None
        return Calibration(
            version=VERSION,
            made_by=engine.made_by(),
            dataset=f"{Path(examples.name).name} {examples.hash}",
            asked=dict(asked(schema, varying)),
            varying=varying,
            tied=tied(schema),
            consistency=self.consistency,
            rows=self.n,
            held_out_rows=self.held_out_n,
            fields=calibrated_fields(fit, held, schemas, self._fields(examples), self.consistency, self.seed),
        )


def _apart(examples: Dataset, n: int) -> Dataset:
    """The first ``n`` examples, and those behind them that are independent of each other and of these."""
    seen = {example.group for example in examples.examples[:n]}
    kept = list(examples.examples[:n])
    for example in examples.examples[n:]:
        if not example.group or example.group not in seen:
            kept.append(example)
            seen.add(example.group)
    return replace(examples, examples=tuple(kept))


def _print_summary(calibration: Calibration) -> None:
    """Per field what acts, how true it is, and what could be automated, as lines of tab-separated cells."""
    from rlcd_lite.promises import promise_field

    print(
        "\t".join(
            ("field", "confidence from", "by", "held-out ECE (95 %)", "floor", *(f"automated at risk {risk:g}" for risk in _RISKS))
        )
    )
    for name, entry in calibration.fields.items():
        signal = entry.fitted.signal
        automated = [promise_field(entry, risk, 0.1) for risk in _RISKS]
        cells = (
            name,
            signal,
            getattr(entry.fitted, signal).kind,
            f"{entry.ece.estimate:.3f} ({entry.ece.low:.3f}–{entry.ece.high:.3f})",
            f"{entry.ece.null_floor:.3f}",
            *("–" if c.threshold is None else f"{c.coverage:.0%}" for c in automated),
        )
        print("\t".join(cells))
