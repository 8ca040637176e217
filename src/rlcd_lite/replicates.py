"""Arms that were trained with several seeds: means over the seeds, and differences between arms, with two-level intervals.

Every table is about the same test examples in the same order. What was fitted on a calibration split, such as the temperatures,
is held fixed, so intervals are conditional on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlcd_lite.calibration import brier, ece, log_loss, log_loss_from_log_odds, murphy, null_floor, posterior_error
from rlcd_lite.decision_table import SIGNALS, TEST, DecisionRow, Signals, fit_temperatures, select, signals
from rlcd_lite.errors import UserError
from rlcd_lite.resample import Statistic, over_runs
from rlcd_lite.selective import aurc

METRICS = ("brier", "log_loss", "ece", "aurc", "resolution")
UNTRAINED = -1  # stands for the seed of an arm that none was trained of, such as the base model
Arm = Mapping[int, Sequence[DecisionRow]]  # the decision table of each seed


@dataclass(frozen=True)
class Comparison:
    """A difference to be tested: ``metric`` of a ``signal`` (or ``accuracy``, of none) in the arm ``first`` less ``second``."""

    first: str
    second: str
    signal: str
    metric: str


def arm_summary(arm: Arm, *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Accuracy, and the metrics of every signal: the mean over seeds with its interval, and each seed's own value."""
    found = {s: _test_signals(rows) for s, rows in arm.items()}
    draws = {"resamples": resamples, "seed": seed}
    rate = [float(s.correct.mean()) for s in found.values()]
    out: dict[str, Any] = {
        "seeds": list(arm),
        "accuracy": _pooled(found, "", "accuracy", **draws),
        "base_rate_brier": float(np.mean([r * (1 - r) for r in rate])),
        "signals": {},
    }
    if best := [s.best.mean() for s in found.values() if s.best is not None]:
        out["bayes_accuracy"] = float(np.mean(best))  # what the true posteriors' most probable options would have
    for name in SIGNALS:
        signal: dict[str, Any] = {metric: _pooled(found, name, metric, **draws) for metric in METRICS}
        floors = [null_floor(s.confidence[name], seed=seed) for s in found.values()]
        terms = [murphy(s.confidence[name], s.correct) for s in found.values()]
        signal |= {
            "null_floor": {key: float(np.mean([asdict(f)[key] for f in floors])) for key in ("mean", "upper")},
            "reliability": float(np.mean([float(t.reliability_debiased) for t in terms])),
            "mean_confidence": float(np.mean([s.confidence[name].mean() for s in found.values()])),
        }
        if all(s.truth is not None for s in found.values()):
            errors = [
                float(posterior_error(s.confidence[name], s.truth).mean_absolute) for s in found.values() if s.truth is not None
            ]
            signal["posterior_error"] = float(np.mean(errors))
        out["signals"][name] = signal
    return out


def compare_arms(
    arms: Mapping[str, Arm], primary: Comparison, secondary: Sequence[Comparison], *, resamples: int = 1000, seed: int = 0
) -> list[dict[str, Any]]:
    """The primary comparison, then the secondary ones with p-values corrected by Holm (1979).

    A p-value is twice the share of two-level resamples with the other sign, and at least 1 / resamples. ``agree``: whether all
    seeds have the same sign. An `UNTRAINED` arm meets every seed of the other.
    """
    tables = {name: {s: _test_signals(rows) for s, rows in arm.items()} for name, arm in arms.items()}
    found = [_compared(tables, c, resamples, seed) for c in (primary, *secondary)]
    order = sorted(found[1:], key=lambda entry: float(entry["p"]))
    least = 0.0
    for rank, entry in enumerate(order):
        least = entry["p_holm"] = max(least, min(1.0, entry["p"] * (len(order) - rank)))
    return found


def _compared(tables: Mapping[str, Mapping[int, Signals]], c: Comparison, resamples: int, seed: int) -> dict[str, Any]:
    first, second = tables[c.first], tables[c.second]
    seeds = sorted(set(second) if UNTRAINED in first else set(first) if UNTRAINED in second else set(first) & set(second))
    pairs = [(first.get(s) or first[UNTRAINED], second.get(s) or second[UNTRAINED]) for s in seeds]
    for one, two in pairs:
        if (list(one.example), list(one.field)) != (list(two.example), list(two.field)):
            raise UserError(
                f"the arms {c.first!r} and {c.second!r} were evaluated on different examples: evaluate both on the same."
            )
    differences = [_less(_statistic(one, c.signal, c.metric), _statistic(two, c.signal, c.metric)) for one, two in pairs]
    example = pairs[0][0].example
    pooled = over_runs(differences, example, resamples=resamples, seed=seed)
    ones = np.ones((1, len(example)), dtype=np.int64)
    each = [float(np.asarray(difference(ones))[0]) for difference in differences]
    return (
        asdict(c)
        | asdict(pooled)
        | {
            "seeds": dict(zip(map(str, seeds), each, strict=True)),
            "agree": len({np.sign(value) for value in each}) == 1,
            "p": min(1.0, max(2 * pooled.other_sign, 1 / resamples)),
        }
    )


def _pooled(found: Mapping[int, Signals], signal: str, metric: str, resamples: int, seed: int) -> dict[str, Any]:
    statistics = [_statistic(s, signal, metric) for s in found.values()]
    example = next(iter(found.values())).example
    ones = np.ones((1, len(example)), dtype=np.int64)
    interval = over_runs(statistics, example, resamples=resamples, seed=seed)
    each = {str(s): float(np.asarray(statistic(ones))[0]) for s, statistic in zip(found, statistics, strict=True)}
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "seeds": each}


def _statistic(found: Signals, signal: str, metric: str) -> Statistic:
    """A metric of a signal as a function of row weights. ``resolution`` is the debiased one."""
    correct = found.correct
    if metric == "accuracy":
        return lambda w: w @ correct / w.sum(axis=1)
    confidence = found.confidence[signal]
    known: dict[str, Callable[..., Any]] = {"brier": brier, "log_loss": log_loss, "ece": ece, "aurc": aurc}
    if metric == "resolution":
        return lambda w: np.asarray(murphy(confidence, correct, weight=w).resolution_debiased)
    if metric == "log_loss" and signal in found.log_odds:
        log_odds = found.log_odds[signal]
        return lambda w: log_loss_from_log_odds(log_odds, correct, weight=w)
    return lambda w: known[metric](confidence, correct, weight=w)


def _less(first: Statistic, second: Statistic) -> Statistic:
    return lambda w: np.asarray(first(w)) - np.asarray(second(w))


def _test_signals(rows: Sequence[DecisionRow]) -> Signals:
    return signals(select(rows, TEST), fit_temperatures(rows))
