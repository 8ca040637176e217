"""What holding answers to the rules changes, from a decision table: violations, accuracy and Brier score before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcd_lite.calibration import Floats, Ints, brier
from rlcd_lite.consistency import broken, rule_text
from rlcd_lite.decision_table import TEST, DecisionRow, fit_temperatures, select
from rlcd_lite.resample import mean_interval
from rlcd_lite.rules import condition, system
from rlcd_lite.schema import Schema
from rlcd_lite.selective import clopper_pearson


def rule_summary(rows: Sequence[DecisionRow], schema: Schema, *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The test split's answers one field at a time (``before``) and given the rules (``after``), by the softmax and by the softmax
    after each field's temperature.

    ``rate``: of each rule, the share of contexts whose answers break it, and under ``after`` that of any rule. ``fields``: per
    field and signal, accuracy and Brier score (of the choice's probability) before and after, and the difference, paired over
    contexts.
    """
    temperatures = fit_temperatures(rows)
    groups = [list(group) for _, group in groupby(select(rows, TEST), key=lambda row: row.example)]
    each = [broken(schema, [row.choice for row in group]) for group in groups]
    out: dict[str, Any] = {
        "contexts": len(groups),
        "before": [
            {"rule": rule_text(rule, schema), "rate": _rate(sum(rule in found for found in each), len(groups))}
            for rule in schema.rules
        ],
        "after": {},
        "fields": {field.name: {} for field in schema.fields},
    }
    rules, labels = system(schema), np.array([[row.label for row in group] for group in groups])  # (contexts, fields)
    for name in ("softmax", "softmax_ts"):
        log_p = []
        for column in zip(*groups, strict=True):
            t = temperatures[column[0].field].value if name == "softmax_ts" else 1.0
            log_p.append((torch.tensor([row.logits for row in column]).double() / t).log_softmax(-1))
        found = condition(rules, log_p)
        kept = sum(not broken(schema, choices) for choices in found.choices.tolist())
        out["after"][name] = _rate(len(groups) - kept, len(groups))
        for i, field in enumerate(schema.fields):
            alone = condition(None, [log_p[i]])
            single = _forecast(alone.log_p[0], alone.choices[:, 0], labels[:, i])
            after = _forecast(found.log_p[i], found.choices[:, i], labels[:, i])
            out["fields"][field.name][name] = _effect(single, after, resamples, seed)
    return out


def _forecast(log_p: Tensor, choices: Tensor, labels: Ints) -> tuple[Floats, Ints]:
    """The choices' probabilities (n,), and whether they are right (n,)."""
    confidence = log_p.gather(1, choices[:, None])[:, 0].exp().clamp(max=1)
    return confidence.numpy(), (choices.numpy() == labels).astype(np.int64)


def _effect(before: tuple[Floats, Ints], after: tuple[Floats, Ints], resamples: int, seed: int) -> dict[str, Any]:
    contexts = range(len(before[0]))
    right, worse = after[1] - before[1], (after[0] - after[1]) ** 2 - (before[0] - before[1]) ** 2
    return {
        "accuracy": {
            "before": float(before[1].mean()),
            "after": float(after[1].mean()),
            "difference": asdict(mean_interval(right, contexts, resamples=resamples, seed=seed)),
        },
        "brier": {
            "before": float(brier(*before)),
            "after": float(brier(*after)),
            "difference": asdict(mean_interval(worse, contexts, resamples=resamples, seed=seed)),
        },
    }


def _rate(count: int, contexts: int) -> dict[str, float]:
    low, high = clopper_pearson(count, contexts)
    return {"estimate": count / contexts, "low": low, "high": high}
