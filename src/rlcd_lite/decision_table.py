"""The decision table: one row per decision, with everything that a metric needs and nothing that has to be run again.

A table belongs to one arm and one data set. Its rows are the decisions of the calibration split, of the test split, and of test
examples with shuffled options (``order-1``, …). Logits are in the order of the schema's options, also where the prompt had
another. Written as gzipped CSV; the metrics of `rlcd_lite.summary` are functions of tables alone.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from rlcd_lite.calibration import Floats, Ints, top_log_odds
from rlcd_lite.calibrators import ABSENT, Temperature, fit_temperature
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import write_whole

CALIBRATION, TEST = "calibration", "test"
SIGNALS = ("softmax", "stated", "stated_mean", "softmax_ts")


@dataclass(frozen=True)
class DecisionRow:
    """One decision.

    ``label`` is the index of the right option. ``logits`` (K,) and ``stated_logits`` (C,) are float32 values; ``posterior`` (K,) is
    the true probability of every option where it is known. ``grid`` (C,) is what the levels of the stated confidence stand for.
    ``coverage`` as in `FieldDecision`.
    """

    split: str
    example: str
    field: str
    label: int
    logits: tuple[float, ...]
    stated_logits: tuple[float, ...]
    grid: tuple[float, ...]
    coverage: float
    posterior: tuple[float, ...] | None = None

    @property
    def choice(self) -> int:
        """Index of the most probable option; the first of them on a tie."""
        return self.logits.index(max(self.logits))


@dataclass(frozen=True)
class Signals:
    """The rows of one split as arrays, in the table's order, one entry a decision.

    ``confidence`` maps each of `SIGNALS` to confidences ``(n,)`` in [0, 1]; ``log_odds`` maps the softmax signals to the exact log
    odds of the choice. ``truth`` and ``best`` are the true probabilities of the choice and of the best option, or None.
    """

    example: Sequence[str]
    field: Sequence[str]
    correct: Ints
    confidence: dict[str, Floats]
    log_odds: dict[str, Floats]
    truth: Floats | None
    best: Floats | None


def write_table(path: Path, rows: Sequence[DecisionRow]) -> None:
    """Write a table; it appears under its name when it is whole, and equal rows give equal bytes.

    Beside what a row holds, the file has what follows from the table: ``choice``, ``correct`` and the confidence of every signal,
    with the temperatures of the table's calibration split. They are there for readers of the file; `read_table` derives them anew.
    """
    found = signals(rows, fit_temperatures(rows))
    text = io.StringIO(newline="")
    out = csv.writer(text)  # with its own line end, CR LF: a cell that holds either character is then quoted
    out.writerow([*(f.name for f in fields(DecisionRow)), "choice", "correct", *SIGNALS])
    for i, row in enumerate(rows):
        cells = [json.dumps(value) if isinstance(value, tuple) else value for value in asdict(row).values()]
        out.writerow([*cells, row.choice, int(found.correct[i]), *(float(found.confidence[name][i]) for name in SIGNALS)])
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as file:
        file.write(text.getvalue().encode())
    write_whole(path, packed.getvalue())


def read_table(path: Path) -> list[DecisionRow]:
    """The rows of a table; `UserError` if the file is not one."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            return [_row(cells) for cells in csv.DictReader(file, strict=True)]
    except (OSError, EOFError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"decision table {str(path)!r} can't be read ({shorten(str(error))}): evaluate again.") from None


def _row(cells: dict[str, Any]) -> DecisionRow:
    return DecisionRow(
        split=cells["split"],
        example=cells["example"],
        field=cells["field"],
        label=int(cells["label"]),
        logits=tuple(map(float, json.loads(cells["logits"]))),
        stated_logits=tuple(map(float, json.loads(cells["stated_logits"]))),
        grid=tuple(map(float, json.loads(cells["grid"]))),
        coverage=float(cells["coverage"]),
        posterior=tuple(map(float, json.loads(cells["posterior"]))) if cells["posterior"] else None,
    )


def select(rows: Iterable[DecisionRow], split: str) -> list[DecisionRow]:
    return [row for row in rows if row.split == split]


def logit_matrix(rows: Sequence[DecisionRow]) -> Floats:
    """Logits ``(n, K)`` with K the largest number of options; absent options get probability 0 at any temperature."""
    width = max(len(row.logits) for row in rows)
    matrix = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : len(row.logits)] = row.logits
    return np.where(np.isnan(matrix), np.nanmin(matrix) - ABSENT, matrix)


def fit_temperatures(rows: Sequence[DecisionRow]) -> dict[str, Temperature]:
    """A temperature per field, fitted on the calibration split alone."""
    calibration = select(rows, CALIBRATION)
    out: dict[str, Temperature] = {}
    for name in dict.fromkeys(row.field for row in calibration):
        part = [row for row in calibration if row.field == name]
        out[name] = fit_temperature(logit_matrix(part), np.array([row.label for row in part]))
    return out


def signals(rows: Sequence[DecisionRow], temperatures: dict[str, Temperature]) -> Signals:
    """Every signal's confidence in each decision; a table has one number of confidence levels."""
    logits = logit_matrix(rows)
    log_odds = top_log_odds(logits)
    scaled = top_log_odds(logits / np.array([temperatures[row.field].value for row in rows])[:, None])
    stated = softmax(np.array([row.stated_logits for row in rows], dtype=np.float64), axis=1)  # (n, C)
    levels = np.array([row.grid for row in rows])  # (n, C)
    known = all(row.posterior is not None for row in rows)
    return Signals(
        example=[row.example for row in rows],
        field=[row.field for row in rows],
        correct=np.array([row.choice == row.label for row in rows], dtype=np.int64),
        confidence={
            "softmax": expit(log_odds),
            "stated": levels[np.arange(len(rows)), stated.argmax(axis=1)],
            "stated_mean": (stated * levels).sum(axis=1),
            "softmax_ts": expit(scaled),
        },
        log_odds={"softmax": log_odds, "softmax_ts": scaled},
        truth=np.array([row.posterior[row.choice] for row in rows if row.posterior]) if known else None,
        best=np.array([max(row.posterior) for row in rows if row.posterior]) if known else None,
    )


def probabilities(rows: Sequence[DecisionRow]) -> Floats:
    """Softmax probabilities ``(n, K)`` over the options."""
    return np.asarray(softmax(logit_matrix(rows), axis=1))
