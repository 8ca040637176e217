"""Every calibrator of every signal side by side, on decisions that none of them was fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy.special import expit

from rlcd_lite.calibration import Floats, Ints, Numbers, brier, ece, log_loss_from_log_odds, murphy, null_floor, posterior_error
from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.fitting import METHODS, SIGNALS, calibrated_odds, choose, fit, labelled, losses
from rlcd_lite.resample import RESAMPLES, Statistic, bootstrap, paired_bootstrap
from rlcd_lite.selective import aurc

SELECTED = "selected"
Key = tuple[str, str]  # signal, method

# Beside the signals of `fitting`: ``chosen``, the one that each field's confidence is taken from, and ``single``, the one of
# softmax, stated and stated_mean that gains most in each field's cross-fitting.
DIFFERENCES: tuple[tuple[Key, Key], ...] = (
    (("softmax", SELECTED), ("softmax", "identity")),
    (("stated", SELECTED), ("stated", "identity")),
    (("stated_mean", SELECTED), ("stated_mean", "identity")),
    (("fused", SELECTED), ("single", SELECTED)),
    (("chosen", SELECTED), ("softmax", "identity")),
)


def calibrated_table(
    calibration: Sequence[DecisionRow], test: Sequence[DecisionRow], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Fitted per field on all calibration rows, measured on the test rows, fields pooled and examples as clusters.

    ``methods`` has a row per signal and method, and per signal one of the method that `choose` selects; ``differences`` the paired
    ones of Brier score and AURC; ``distribution`` the mean log loss in nats over all options; ``fields`` what was chosen and why.
    Intervals are conditional on what was fitted. ``seed`` is that of folds and bootstraps.
    """
    names = dict.fromkeys(row.field for row in test)
    by_field = [[row for row in test if row.field == name] for name in names]
    parts: dict[Key, list[Floats]] = {}
    options: dict[str, list[Floats]] = {}
    fields = {}
    for name, rows in zip(names, by_field, strict=True):
        fitted = [row for row in calibration if row.field == name]
        found = choose(fitted, seed)
        fields[name] = found.to_dict()
        known, held = labelled(fitted), labelled(rows)
        for signal, methods in METHODS.items():
            calibrators = {method: fit(signal, method, known) for method in methods} | {SELECTED: getattr(found, signal)}
            for method, calibrator in calibrators.items():
                if signal == "distribution":
                    options.setdefault(method, []).append(losses(signal, calibrator, held))
                else:
                    parts.setdefault((signal, method), []).append(calibrated_odds(signal, calibrator, held.seen))
        single = max((s for s in SIGNALS if s != "fused"), key=lambda s: found.signals[s].gain)
        for role, played_by in (("single", single), ("chosen", found.signal)):
            parts.setdefault((role, SELECTED), []).append(parts[played_by, SELECTED][-1])
    pooled = [row for rows in by_field for row in rows]
    odds = {key: np.concatenate(part) for key, part in parts.items()}
    example = np.array([row.example for row in pooled])
    correct = np.array([row.choice == row.label for row in pooled], dtype=np.int64)
    truth = np.array([row.posterior[row.choice] for row in pooled if row.posterior])
    measured = [
        {"signal": signal, "method": method}
        | _measured(m, correct, example, truth if len(truth) == len(pooled) else None, resamples, seed)
        for (signal, method), m in odds.items()
    ]
    return {
        "contexts": len(set(example.tolist())),
        "decisions": len(pooled),
        "accuracy": float(correct.mean()),
        "base_rate_brier": float(correct.mean() * (1 - correct.mean())),
        "methods": measured,
        "differences": [
            {"first": first, "second": second} | _difference(odds[first], odds[second], correct, example, resamples, seed)
            for first, second in DIFFERENCES
        ],
        "distribution": {method: float(np.concatenate(part).mean()) for method, part in options.items()},
        "fields": fields,
    }


def _measured(m: Floats, correct: Ints, example: Any, truth: Floats | None, resamples: int, seed: int) -> dict[str, Any]:
    confidence = expit(m)
    terms = murphy(confidence, correct)
    out: dict[str, Any] = {
        "brier": float(brier(confidence, correct)),
        "log_loss": float(log_loss_from_log_odds(m, correct)),
        "reliability_debiased": float(terms.reliability_debiased),
        "resolution_debiased": float(terms.resolution_debiased),
        "ece": asdict(bootstrap(lambda w: ece(confidence, correct, weight=w), example, resamples=resamples, seed=seed))
        | {"null_floor": asdict(null_floor(confidence, seed=seed))},
        "aurc": float(aurc(confidence, correct)),
    }
    if truth is not None:
        out["posterior_error"] = {key: float(value) for key, value in asdict(posterior_error(confidence, truth)).items()}
    return out


def _difference(first: Floats, second: Floats, correct: Ints, example: Any, resamples: int, seed: int) -> dict[str, Any]:
    def of(metric: Callable[..., Numbers], m: Floats) -> Statistic:
        confidence = expit(m)
        return lambda weight: metric(confidence, correct, weight=weight)

    return {
        name: asdict(paired_bootstrap(of(metric, first), of(metric, second), example, resamples=resamples, seed=seed))
        for name, metric in (("brier", brier), ("aurc", aurc))
    }
