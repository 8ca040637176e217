"""Decision tables → ``eval.json``: every metric with its interval, from tables alone.

The format is described in docs/evaluation.md and has a version: a reader refuses another one. Numbers that are not finite (the
accuracy of an empty gate, say) are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from rlcd_lite import scope
from rlcd_lite.calibration import (
    Ints,
    Numbers,
    bayes_regret,
    brier,
    ece,
    log_loss,
    log_loss_from_log_odds,
    murphy,
    null_floor,
    posterior_error,
    spiegelhalter,
)
from rlcd_lite.calibrators import Temperature, fit_platt
from rlcd_lite.consistency import order_effects
from rlcd_lite.decision_table import (
    CALIBRATION,
    SIGNALS,
    TEST,
    DecisionRow,
    Signals,
    fit_temperatures,
    probabilities,
    select,
    signals,
)
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import write_whole
from rlcd_lite.resample import Interval, bootstrap, mean_interval, paired_bootstrap
from rlcd_lite.selective import at_gates, augrc, aurc, clopper_pearson, e_aurc

EVAL_VERSION = 2
GATES = (0.5, 0.7, 0.9, 0.95, 0.99)

Metric = Callable[[Ints], Numbers]


def summarise(rows: Sequence[DecisionRow], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """All metrics of one table; temperatures are fitted on its calibration split, everything else is about its test split.

    ``resamples`` and ``seed`` are the bootstrap's, which draws contexts. Intervals are conditional on the fitted temperatures.
    """
    test = select(rows, TEST)
    temperatures = fit_temperatures(rows)
    found = signals(test, temperatures)
    out: dict[str, Any] = {
        "contexts": len(set(found.example)),
        "decisions": len(test),
        "accuracy": _interval(mean_interval(found.correct, found.example, resamples=resamples, seed=seed)),
        "coverage": float(np.mean([row.coverage for row in test])),
        "fields": {name: _field(found, name, t) for name, t in temperatures.items()},
        "signals": {name: _signal(found, name, resamples, seed) for name in SIGNALS},
    }
    if found.truth is not None and found.best is not None:
        regret, best, truth = bayes_regret, found.best, found.truth
        out["bayes"] = {
            "accuracy": float(best.mean()),
            "regret": _interval(bootstrap(lambda w: regret(truth, best, weight=w), found.example, resamples=resamples, seed=seed)),
        }
    return out


def order_summary(rows: Sequence[DecisionRow], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any] | None:
    """Total variation and flip rate between the schema's order and the table's shuffles; None for a table without shuffles.

    Each example counts once: effects are averaged over its shuffles before the bootstrap draws examples.
    """
    splits = sorted({row.split for row in rows if row.split.startswith("order-")})
    if not splits:
        return None
    shuffled = [select(rows, split) for split in splits]
    keys = [(row.example, row.field) for row in shuffled[0]]
    at = {(row.example, row.field): row for row in select(rows, TEST)}
    base = [at[key] for key in keys]
    total_variation, flip, example = [], [], []
    for count in sorted({len(row.logits) for row in base}):  # options may differ in number from example to example
        where = [i for i, row in enumerate(base) if len(row.logits) == count]
        effects = order_effects(
            probabilities([base[i] for i in where]),
            np.stack([probabilities([part[i] for i in where]) for part in shuffled], axis=1),
        )
        total_variation += list(effects.total_variation)
        flip += list(effects.flip)
        example += [base[i].example for i in where]
    return {
        "shuffles": len(splits),
        "contexts": len(set(example)),
        "total_variation": _interval(mean_interval(total_variation, example, resamples=resamples, seed=seed)),
        "flip_rate": _interval(mean_interval(flip, example, resamples=resamples, seed=seed)),
    }


def scope_summary(rows: Sequence[DecisionRow], field: str, *, resamples: int = 1000, seed: int = 0) -> dict[str, Any] | None:
    """How well texts that no option fits are told from others, by three scores, and how honest the probability of none of the above
    is, as it is and by a Platt scaling that is fitted on the calibration split. None if either
    split has one kind alone."""
    test, fitted = (select([row for row in rows if row.field == field], split) for split in (TEST, CALIBRATION))
    out, known = (np.array([row.label == len(row.logits) - 1 for row in part], dtype=np.int64) for part in (test, fitted))
    if not 0 < out.sum() < len(out) or not 0 < known.sum() < len(known):
        return None
    examples = [row.example for row in test]
    draws = {"resamples": resamples, "seed": seed}
    found: dict[str, Any] = {"contexts": len(test), "out_of_scope": int(out.sum()), "scores": {}}
    for name, score in scope.scores(test).items():
        found["scores"][name] = {
            "auroc": _interval(bootstrap(_auroc(score, out), examples, **draws)),
            "false_alarm_at_90_recall": scope.false_alarm(score, out),
        }
    platt = fit_platt(scope.none_log_odds(fitted), known)
    odds = scope.none_log_odds(test)
    for name, probability in (("raw", expit(odds)), ("platt", expit(platt.apply(odds)))):
        found[name] = {
            "ece": float(ece(probability, out)),
            "brier": float(brier(probability, out)),
            "mean": float(probability.mean()),
        }
    return found | {"platt_fit": platt.model_dump(exclude={"kind"}) | {"n": len(fitted)}}


def _auroc(score: Numbers, out: Ints) -> Metric:
    """As a function of row weights ``(n,)`` or ``(draws, n)``."""
    return lambda w: np.apply_along_axis(lambda row: scope.auroc(score, out, row), -1, np.asarray(w))


def compare(first: Sequence[DecisionRow], second: Sequence[DecisionRow], *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Each metric of the first table's signals less that of the second's, paired over contexts.

    Raises `UserError` if the two are not about the same decisions.
    """
    a, b = select(first, TEST), select(second, TEST)
    if [(r.example, r.field, r.label) for r in a] != [(r.example, r.field, r.label) for r in b]:
        raise UserError("two arms were evaluated on different examples, so they can't be compared: evaluate both on the same.")
    one, two = signals(a, fit_temperatures(first)), signals(b, fit_temperatures(second))
    out: dict[str, Any] = {}
    for name in SIGNALS:
        ours, theirs = _metrics(one, name), _metrics(two, name)
        out[name] = {
            metric: asdict(paired_bootstrap(ours[metric], theirs[metric], one.example, resamples=resamples, seed=seed))
            for metric in ours
        }
    return out


def write_eval(path: Path, evaluation: Mapping[str, Any]) -> None:
    """Write ``eval.json``; it appears whole, and every number in it is finite or null."""
    write_whole(path, json.dumps(finite(evaluation), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_eval(path: Path) -> dict[str, Any]:
    """An ``eval.json`` of this version; `UserError` for anything else."""
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
        version = evaluation["version"]
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} does not exist: give a folder that `rlcd-lite eval --output` wrote.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(path)!r} is not an eval.json ({shorten(str(error))}): evaluate again.") from None
    if version != EVAL_VERSION:
        raise UserError(f"{str(path)!r} has the version {shorten(version)}, this program reads {EVAL_VERSION}: evaluate again.")
    return dict(evaluation)


def _metrics(found: Signals, name: str) -> dict[str, Metric]:
    """The metrics that get an interval, as functions of row weights."""
    confidence, correct = found.confidence[name], found.correct
    out: dict[str, Metric] = {
        "brier": lambda w: brier(confidence, correct, weight=w),
        "log_loss": lambda w: log_loss(confidence, correct, weight=w),
        "ece": lambda w: ece(confidence, correct, weight=w),
        "aurc": lambda w: aurc(confidence, correct, weight=w),
    }
    if name in found.log_odds:
        log_odds = found.log_odds[name]
        out["log_loss"] = lambda w: log_loss_from_log_odds(log_odds, correct, weight=w)
    return out


def _signal(found: Signals, name: str, resamples: int, seed: int) -> dict[str, Any]:
    confidence, correct = found.confidence[name], found.correct
    out: dict[str, Any] = {
        metric: _interval(bootstrap(statistic, found.example, resamples=resamples, seed=seed))
        for metric, statistic in _metrics(found, name).items()
    }
    out["ece"]["null_floor"] = asdict(null_floor(confidence, seed=seed))
    out |= {
        "mean_confidence": float(confidence.mean()),
        "e_aurc": float(e_aurc(confidence, correct)),
        "augrc": float(augrc(confidence, correct)),
        "murphy": {key: float(value) for key, value in asdict(murphy(confidence, correct)).items()},
        "spiegelhalter": asdict(spiegelhalter(confidence, correct, clusters=found.example)),
        "gates": [asdict(gate) for gate in at_gates(confidence, correct, GATES)],
    }
    if found.truth is not None:
        error = posterior_error(confidence, found.truth)
        out["posterior_error"] = {key: float(value) for key, value in asdict(error).items()}
    return out


def _field(found: Signals, name: str, temperature: Temperature) -> dict[str, Any]:
    rows = np.array([f == name for f in found.field])
    hits, count = int(found.correct[rows].sum()), int(rows.sum())
    low, high = clopper_pearson(hits, count)
    return {"accuracy": {"estimate": hits / count, "low": low, "high": high}, "temperature": temperature.to_dict()}


def _interval(interval: Interval) -> dict[str, Any]:
    return asdict(interval)


def finite(value: Any) -> Any:
    """The value with null for every number that JSON has none for."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
