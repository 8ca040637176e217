"""Calibrators fitted on some rows of a data set, and what they do on others that nothing was fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from rlcd_lite.answers import FieldAnswer, answers
from rlcd_lite.calibration import ece, null_floor
from rlcd_lite.calibration_file import CalibratedField, Distribution, Ece, HeldOut
from rlcd_lite.calibrators import Identity
from rlcd_lite.conformal import option_scores
from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.fitting import FieldCalibration, choose
from rlcd_lite.resample import bootstrap
from rlcd_lite.schema import Schema
from rlcd_lite.scores import FieldScores
from rlcd_lite.selective import threshold_grid
from rlcd_lite.settings import Consistency


def calibrated_fields(
    fit: Sequence[DecisionRow],
    held: Sequence[DecisionRow],
    schemas: Mapping[str, Schema],
    fields: Sequence[str],
    consistency: Consistency,
    seed: int = 0,
) -> dict[str, CalibratedField]:
    """Calibrators of ``fields``, fitted on the rows ``fit`` and measured on the rows ``held``.

    Both hold all fields of their examples, whose ``schemas`` are given by example id. The confidence is fitted to what comes out
    behind the rules, and what is measured is the whole way from scores to answers.
    """
    distributions = {name: choose(_of(name, fit), seed).distribution for name in fields}
    between = decided(fit, schemas, consistency, distributions, {})
    fitted = {}
    for name in fields:
        behind = [replace(row, logits=tuple(answer.log_p.tolist())) for row, answer in between if row.field == name]
        fitted[name] = choose(behind, seed).model_copy(update={"distribution": Identity()})  # that stands before the rules
    seen, unseen = (decided(rows, schemas, consistency, distributions, fitted) for rows in (fit, held))
    varying = len(set(schemas.values())) > 1
    out = {}
    for name in fields:
        kept = [_held(row, answer) for row, answer in unseen if row.field == name]
        rows = HeldOut.model_validate({key: [entry[key] for entry in kept] for key in HeldOut.model_fields})
        out[name] = CalibratedField(
            distribution=distributions[name],
            fitted=fitted[name],
            grid=threshold_grid([answer.confidence or 0.0 for row, answer in seen if row.field == name]),
            held_out=rows,
            ece=_ece(rows, seed),
            options=None if varying else len(next(iter(schemas.values()))[name].options),
        )
    return out


def _of(field: str, rows: Sequence[DecisionRow]) -> list[DecisionRow]:
    return [row for row in rows if row.field == field]


def decided(
    rows: Sequence[DecisionRow],
    schemas: Mapping[str, Schema],
    consistency: Consistency,
    distributions: Mapping[str, Distribution],
    confidences: Mapping[str, FieldCalibration],
) -> list[tuple[DecisionRow, FieldAnswer]]:
    """The answer behind each row."""
    texts = [list(group) for _, group in groupby(rows, key=lambda row: row.example)]
    out: list[tuple[DecisionRow, FieldAnswer]] = []
    for schema, run in groupby(texts, key=lambda text: schemas[text[0].example]):
        group = list(run)
        scores = [
            tuple(FieldScores(torch.tensor(row.logits), torch.tensor(row.stated_logits), row.grid) for row in t) for t in group
        ]
        for text, (found, _) in zip(group, answers(schema, scores, consistency, distributions, confidences), strict=True):
            out += zip(text, found, strict=True)
    return out


def _held(row: DecisionRow, answer: FieldAnswer) -> dict[str, float]:
    p = answer.log_p.exp().numpy()
    assert answer.confidence is not None
    return {
        "confidence": answer.confidence,
        "correct": int(answer.choice == row.label),
        "label": row.label,
        "label_probability": float(min(p[row.label], 1)),
        "label_mass": float(option_scores(p, "aps")[row.label]),
    }


def _ece(rows: HeldOut, seed: int) -> Ece:
    confidence, correct = list(rows.confidence), list(rows.correct)
    interval = bootstrap(lambda weight: ece(confidence, correct, weight=weight), range(len(confidence)), seed=seed)
    floor = null_floor(confidence, seed=seed)
    return Ece(estimate=interval.estimate, low=interval.low, high=interval.high, null_floor=floor.mean)
