"""Does a confidence tell right from wrong? What is gained by answering only when it's high, and what can be promised of that.

The same arrays and the same ``weight`` as in `rlcd_lite.calibration`. Only the order of the confidences matters here, not their
values, except at a gate. Rows of equal confidence have no order: each area is its expectation over a random one, in closed
form, so that a signal of a few levels gets the same number whatever the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, binomtest

from rlcd_lite.calibration import Floats, Ints, Numbers, Tally, tally, unit_interval
from rlcd_lite.errors import UserError

START_ROWS = 30  # of `certify`: a test on fewer fails by accident, and ends the sequence
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
        passes = passed(t.confidence, gate)
        count, hits, total = int(t.count[passes].sum()), int(t.hits[passes].sum()), int(t.total)
        accuracy = hits / count if count else float("nan")
        found.append(
            Gate(gate, count, count / total, clopper_pearson(count, total, level), accuracy, clopper_pearson(hits, count, level))
        )
    return tuple(found)


def passed(confidence: npt.ArrayLike, gate: float) -> npt.NDArray[np.bool_]:
    """Whether each confidence (n,) is at least the gate, less `GATE_TOLERANCE`."""
    return np.asarray(confidence, dtype=np.float64) >= gate - GATE_TOLERANCE


@dataclass(frozen=True)
class Certificate:
    """What n held-out rows prove about automating every decision whose confidence is at least ``threshold``.

    With probability at least 1 - ``delta`` over the draw of those rows, at most a share ``max_risk`` of the automated decisions is
    wrong, in the long run. ``threshold`` is None where no threshold can be certified; ``more_rows`` then says about how many rows
    beyond the n would do if error rates stay as they are, None if no number would. ``automated`` and ``errors``: of the n rows.
    """

    threshold: float | None
    max_risk: float
    delta: float
    rows: int
    automated: int
    errors: int
    more_rows: int | None

    @property
    def coverage(self) -> float:
        """Share of the held-out rows that would be automated."""
        return self.automated / self.rows


def threshold_grid(confidence: npt.ArrayLike, size: int = 20) -> tuple[float, ...]:
    """Thresholds for `certify`: the lower quantiles 0, 1/size, … of confidences (n,), so that the k-th keeps 1 - k/size of them at
    least.

    The confidences must come from other rows than those that certify, such as those the calibrator was fitted on.
    """
    values = unit_interval(confidence, "confidence")
    return tuple(np.quantile(values, np.arange(size) / size, method="lower").tolist())


def certify(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, grid: Sequence[float], max_risk: float, delta: float = 0.1
) -> Certificate:
    r"""The lowest threshold of a `threshold_grid` whose error rate is proven to be at most ``max_risk``.

    From the highest threshold down, the hypothesis that the risk exceeds α at a threshold with m rows, e of them wrong, is tested
    by its exact binomial p-value :math:`P(Bin(m, \alpha) \le e)` at level δ, up to the first that is not rejected. A sequence that
    is fixed beforehand needs no further correction for its length (Bauer 1991; learn then test, Angelopoulos et al. 2021). It
    starts at the highest threshold that is expected to keep 30 rows, and twice those that are enough if none is wrong,
    ln δ / ln(1 - α).

    It holds for any model and any confidence if rows and future texts are independent draws from one source, and if neither the
    grid nor what makes the confidence was chosen with these rows.
    """
    for name, value in (("max_risk", max_risk), ("delta", delta)):
        if not 0 < value < 1:
            raise UserError(f"{name} is {value}: use a number between 0 and 1, such as 0.1.")
    t = tally(confidence, correct)
    rows, counts = int(t.total), []
    for gate in unit_interval(grid, "threshold").tolist():
        passes = passed(t.confidence, gate)
        automated = int(t.count[passes].sum())
        counts.append((automated, automated - int(t.hits[passes].sum())))
    proven = None
    for k in range(_start(rows, len(grid), max_risk, delta), -1, -1):
        automated, errors = counts[k]
        if binom.cdf(errors, automated, max_risk) > delta:
            break
        proven = k
    if proven is None:
        return Certificate(None, max_risk, delta, rows, 0, 0, _more_rows(counts, rows, max_risk, delta))
    return Certificate(grid[proven], max_risk, delta, rows, *counts[proven], 0)


def _start(rows: int, size: int, max_risk: float, delta: float) -> int:
    """Place in the grid of the first threshold that is tested."""
    kept = max(START_ROWS, 2 * np.log(delta) / np.log1p(-max_risk)) / rows  # share of the rows that it should keep
    return max(0, int(np.floor(size * (1 - kept) + 1e-9)))


def _more_rows(counts: Sequence[tuple[int, int]], rows: int, max_risk: float, delta: float) -> int | None:
    """Rows beyond these with which the first test would be passed, if each threshold's coverage and error rate stay the same."""
    grown = rows
    while grown < 1000 * rows:
        grown = int(np.ceil(grown * 1.02)) + 1
        automated, errors = counts[_start(grown, len(counts), max_risk, delta)]
        if binom.cdf(np.ceil(errors * grown / rows), automated * grown // rows, max_risk) <= delta:
            return grown - rows
    return None


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
