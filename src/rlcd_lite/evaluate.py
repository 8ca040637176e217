"""Arms × data sets → decision tables: the part of an evaluation that runs the model; and the short one that training runs.

Each arm and data set is a table of its own on disk, written whole, so that a killed evaluation goes on behind the last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from rlcd_lite.calibration import brier, ece
from rlcd_lite.datasets import Dataset, Example
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, fit_temperatures, logit_matrix, select, signals
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.orders import other_order, reordered
from rlcd_lite.schema import Field, Schema


@dataclass(frozen=True)
class Part:
    """Examples to decide as one split of the table, with the order in which each field's options are shown (None: as they are)."""

    split: str
    examples: Sequence[Example]
    shuffle: random.Random | None = None


def parts(calibration: Dataset, test: Dataset, permutations: int, permuted: int, seed: int) -> list[Part]:
    """The calibration split, the test split, and ``permutations`` shuffles over the first ``permuted`` test examples.

    A shuffle shows one random order of the options, other than the schema's, to all examples that share a schema: with two options
    that is always the swapped one. Ordered fields are shuffled as well, since what is measured is how far order alone moves the
    answer.
    """
    out = [Part(CALIBRATION, calibration.examples), Part(TEST, test.examples)]
    for k in range(1, permutations + 1):
        out.append(Part(f"order-{k}", test.examples[:permuted], random.Random(f"order-{seed}-{k}")))
    return out


def decide_part(engine: DecisionEngine, part: Part, advance: Callable[[], None]) -> Iterator[DecisionRow]:
    """The rows of one split, in the order of its examples; ``advance`` is called once a text. Every process has all rows."""
    runs = [
        (schema, examples, {f.name: _order(f, part.shuffle) for f in schema.fields}) for schema, examples in _runs(part.examples)
    ]
    asked = (
        (Schema(tuple(reordered(f, orders[f.name]) for f in schema.fields)), [e.context for e in examples])
        for schema, examples, orders in runs
    )
    scores = engine.score_runs(asked, coverage=True, spread=True)
    for schema, examples, orders in runs:
        for example in examples:
            answers = next(scores)
            for f, answer in zip(schema.fields, answers, strict=True):
                logits = answer.choice.tolist()
                back = [0.0] * len(logits)
                for place, option in enumerate(orders[f.name]):
                    back[option] = logits[place]
                posterior = None if example.posterior is None else example.posterior[f.name]
                assert answer.coverage is not None
                yield DecisionRow(
                    part.split,
                    example.id,
                    f.name,
                    f.index(example.labels[f.name]),
                    tuple(back),
                    tuple(answer.stated_in(int(answer.choice.argmax())).tolist()),
                    answer.grid,
                    answer.coverage,
                    posterior,
                )
            advance()


def held_out(engine: DecisionEngine, calibration: Dataset, measured: Dataset) -> dict[str, float]:
    """A short evaluation without intervals, for the log of a training run.

    ``acc``; per signal ``SIGNAL_ece``, ``SIGNAL_brier``, ``SIGNAL_conf`` (mean confidence); ``nll``, the mean −log probability of
    the right option, and ``nll_ts`` after the temperatures that ``calibration`` gives. Both are proper and see the whole
    distribution, so that being surely wrong never looks good.
    """
    parts = Part(CALIBRATION, calibration.examples), Part(TEST, measured.examples)
    rows = [row for part in parts for row in decide_part(engine, part, lambda: None)]
    temperatures = fit_temperatures(rows)
    test = select(rows, TEST)
    found = signals(test, temperatures)
    out = {"acc": float(found.correct.mean())}
    for name, confidence in found.confidence.items():
        out[f"{name}_ece"] = float(ece(confidence, found.correct))
        out[f"{name}_brier"] = float(brier(confidence, found.correct))
        out[f"{name}_conf"] = float(confidence.mean())
    logits, at = logit_matrix(test), (np.arange(len(test)), [row.label for row in test])
    scaled = logits / np.array([temperatures[row.field].value for row in test])[:, None]
    out["nll"] = float(-log_softmax(logits, axis=1)[at].mean())
    out["nll_ts"] = float(-log_softmax(scaled, axis=1)[at].mean())
    return out


def _runs(examples: Sequence[Example]) -> Iterator[tuple[Schema, list[Example]]]:
    """Neighbours with one schema, so that what they share is run once."""
    run: list[Example] = []
    for example in examples:
        if run and example.schema is not run[-1].schema:
            yield run[-1].schema, run
            run = []
        run.append(example)
    if run:
        yield run[-1].schema, run


def _order(field: Field, shuffle: random.Random | None) -> list[int]:
    """Option indices in the order shown; a shuffle is never the order of the schema, which would show no effect by luck."""
    return list(range(len(field.options))) if shuffle is None else other_order(field, shuffle)
