"""Does a confidence tell right from wrong? What is gained by answering only when it's high.

The same arrays and the same ``weight`` as in `rlcd_lite.calibration`. Only the order of the confidences matters here, not their
values, except at a gate. Rows of equal confidence have no order: each area is its expectation over a random one, in closed
form, so that a signal of a few levels gets the same number whatever the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from rlcd_lite.calibration import Floats, Ints, Numbers, Tally, tally, unit_interval
from rlcd_lite.errors import UserError

GATE_TOLERANCE = 1e-6  # 0.1 * 7 and float32 0.7 pass a gate at 0.7


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate ``risk`` among the share ``coverage`` of rows with at least the confidence ``threshold``, one entry a distinct
    confidence, from the highest down; the last has coverage 1 and the overall error rate."""

    threshold: Floats
    coverage: Floats
    risk: Floats


def risk_coverage(confidence: npt.ArrayLike, correct: npt.ArrayLike) -> RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener, 2010), at the thresholds that don't split ties."""
    t = tally(confidence, correct)
    covered = t.count[::-1].cumsum()
    errors = (t.count - t.hits)[::-1].cumsum()
    return RiskCoverage(t.confidence[::-1], covered / t.total, errors / covered)


def aurc(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Area under the risk-coverage curve: mean over k = 1 … n of the error rate among the k most confident; from 0 (best) to 1.

    The mean over k, not a trapezoid (Geifman & El-Yaniv, 2017). Averaged over the order of ties, so a constant confidence has
    exactly the error rate. For g tied rows with h errors after a rows with e errors, the expected sum over their k is
    :math:`h + (e - a h / g)(H_{a+g} - H_a)`, where H are the harmonic numbers.
    """
    return _aurc(tally(confidence, correct, weight))


def e_aurc(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Excess `aurc`: above that of an oracle that ranks all correct rows first (Geifman, Uziel & El-Yaniv, 2019); [0, 1].

    With m correct rows of n the oracle has :math:`\frac1n [n - m - m (H_n - H_m)]`. Makes arms of different accuracy comparable.
    """
    t = tally(confidence, correct, weight)
    n, m = t.total, t.hits.sum(axis=-1)
    harmonic = _harmonic(int(np.max(n)))
    oracle = (n - m - m * (harmonic[n] - harmonic[m])) / n
    excess: Numbers = np.maximum(_aurc(t) - oracle, 0)  # a perfect ranking can round to -1e-17
    return excess


def augrc(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Area under the generalised risk-coverage curve: mean over k of (errors among the k most confident) / n (Traub et al., 2024).

    The mean risk of an undetected failure, from 0 to (n + 1) / 2n, less is better; dominated less than `aurc` by the few most
    confident rows. Averaged over the order of ties; a constant confidence has error rate · (n + 1) / 2n.
    """
    size, errors, _, errors_before = _by_descending_confidence(tally(confidence, correct, weight))
    area: Numbers = (size * errors_before + errors * (size + 1) / 2).sum(axis=-1) / size.sum(axis=-1) ** 2
    return area


def _aurc(t: Tally) -> Numbers:
    size, errors, before, errors_before = _by_descending_confidence(t)
    harmonic = _harmonic(int(np.max(t.total)))
    steps = harmonic[before + size] - harmonic[before]
    rate = errors / np.maximum(size, 1)
    area: Numbers = (errors + (errors_before - before * rate) * steps).sum(axis=-1) / t.total
    return area


def _by_descending_confidence(t: Tally) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows and errors of each group of ties, and how many of both come before it."""
    size = t.count[..., ::-1]
    errors = size - t.hits[..., ::-1]
    return size, errors, size.cumsum(axis=-1) - size, errors.cumsum(axis=-1) - errors


def _harmonic(n: int) -> Floats:
    """Harmonic numbers H_0 … H_n."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])


@dataclass(frozen=True)
class Gate:
    """Rows with a confidence of at least ``gate``: ``count`` of them, their share ``coverage`` and their ``accuracy``.

    The intervals are Clopper–Pearson's. Where no row passes, ``accuracy`` is NaN and its interval (0, 1).
    """

    gate: float
    count: int
    coverage: float
    coverage_interval: tuple[float, float]
    accuracy: float
    accuracy_interval: tuple[float, float]


def at_gates(confidence: npt.ArrayLike, correct: npt.ArrayLike, gates: Sequence[float], *, level: float = 0.95) -> tuple[Gate, ...]:
    """Accuracy and coverage at each confidence gate, with exact binomial intervals (Clopper & Pearson, 1934).

    A confidence passes if it's at least the gate less `GATE_TOLERANCE`. The intervals hold for independent rows and a gate
    chosen beforehand: one that was picked on these rows looks better than it is, and rows that share a context need the
    clustered bootstrap.
    """
    t = tally(confidence, correct)
    found = []
    for gate in unit_interval(gates, "gate").tolist():
        passes = t.confidence >= gate - GATE_TOLERANCE
        count, hits, total = int(t.count[passes].sum()), int(t.hits[passes].sum()), int(t.total)
        accuracy = hits / count if count else float("nan")
        found.append(
            Gate(gate, count, count / total, clopper_pearson(count, total, level), accuracy, clopper_pearson(hits, count, level))
        )
    return tuple(found)


def clopper_pearson(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a probability after ``hits`` of ``count`` independent trials; (0, 1) of none (Clopper & Pearson, 1934)."""
    if not 0 < level < 1:
        raise UserError(f"level is {level}: use a number between 0 and 1, such as 0.95.")
    if not 0 <= hits <= count:
        raise UserError(f"{hits} hits of {count}: hits must be from 0 to the count.")
    if count == 0:
        return 0.0, 1.0
    interval = binomtest(hits, count).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)
