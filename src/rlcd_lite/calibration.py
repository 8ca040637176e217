"""Is a confidence true? Proper scores, the Murphy decomposition, calibration error, and their null floor.

Every metric is about one binary question per decision, "is the choice correct?": ``confidence`` is the probability that was
given to yes, ``correct`` the answer. Each is a pure function of two arrays of the same length, independent of their order.

Most take an optional ``weight``: how often each row counts, as whole numbers of shape ``(..., n)``. The result then has the
shape ``(...)``, so that one call evaluates all resamples of a bootstrap (`rlcd_lite.resample`); a row with weight 2 counts as
two rows. Bad input (empty, NaN, outside [0, 1], shapes that differ) raises `UserError`.

`Tally` is why this is fast and exact: all these metrics depend on the rows only through the number of decisions and of correct
ones at each distinct confidence, so ties can't be split and row order can't leak in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

from rlcd_lite.errors import UserError, shorten

BINS = 10  # bins at most; the null floor grows with their number
LOG_CLIP = float(np.finfo(np.float64).eps)  # log loss of a confidence: never closer to 0 or 1 than this; costs 36.04 at most

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Numbers = float | Floats  # a float, or one number per leading index of ``weight``


# ---- input ----


@dataclass(frozen=True)
class Tally:
    """Decisions counted at each distinct confidence, in ascending order: ``hits`` of ``count`` are correct.

    ``confidence`` is ``(U,)``; ``count`` and ``hits`` are ``(..., U)`` with the leading shape of the weights.
    """

    confidence: Floats
    count: Ints
    hits: Ints

    @property
    def total(self) -> Ints:
        return np.asarray(self.count.sum(axis=-1))


def tally(confidence: npt.ArrayLike, correct: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> Tally:
    """Check the rows of a metric and count them; the one place where ``(confidence, correct, weight)`` is validated."""
    forecast = unit_interval(confidence, "confidence")
    outcome = zero_one(correct, len(forecast))
    order = np.argsort(forecast, kind="stable")
    forecast = forecast[order]
    starts = np.flatnonzero(np.diff(forecast, prepend=-1.0))
    times = row_weights(weight, len(order))[..., order]
    count = np.add.reduceat(times, starts, axis=-1)
    hits = np.add.reduceat(times * outcome[order], starts, axis=-1)
    return Tally(forecast[starts], count, hits)


def unit_interval(values: npt.ArrayLike, name: str) -> Floats:
    """``values`` as a non-empty float64 array of one dimension inside [0, 1]; ``name`` names it in errors."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiu":
        raise UserError(f"{name} has the shape {array.shape} and the type {array.dtype}: give a non-empty list of numbers.")
    array = array.astype(np.float64)
    bad = ~((array >= 0) & (array <= 1))  # NaN fails both
    if bad.any():
        row = int(np.argmax(bad))
        raise UserError(f"{name} is {array[row]} in row {row}: it must be a number from 0 to 1.")
    return array


def row_weights(weight: npt.ArrayLike | None, rows: int) -> Ints:
    """``weight`` as whole numbers ``(..., rows)``, ones if there is none."""
    if weight is None:
        return np.ones(rows, dtype=np.int64)
    array = np.asarray(weight)
    if array.ndim == 0 or array.shape[-1] != rows:
        raise UserError(f"weight has the shape {array.shape}: its last axis must have the length of the rows, {rows}.")
    if array.dtype.kind not in "iu" or array.min(initial=0) < 0:
        raise UserError(f"weight is {shorten(array.tolist())}: it counts rows, so give integers from 0 up.")
    array = array.astype(np.int64)
    if not array.any(axis=-1).all():
        raise UserError("weight is 0 for all rows: at least one row must count.")
    return array


def zero_one(correct: npt.ArrayLike, rows: int) -> Ints:
    """``correct`` as ones and zeros ``(rows,)``."""
    array = np.asarray(correct)
    if array.shape != (rows,):
        raise UserError(f"correct has the shape {array.shape}: it must have one entry for each of the {rows} rows.")
    bad = (array != 0) & (array != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise UserError(f"correct is {shorten(array[row].item())} in row {row}: it must be true or false (1 or 0).")
    return array.astype(np.int64)


def _weighted_mean(values: Floats, weight: npt.ArrayLike | None) -> Numbers:
    times = row_weights(weight, len(values))
    mean: Numbers = times @ values / times.sum(axis=-1)
    return mean


# ---- proper scores ----


def brier(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Brier score of the top label: :math:`\frac1n \sum_i (p_i - y_i)^2`, from 0 (best) to 1.

    Binary, that is of the choice alone: not the sum over the options, which is twice this for two options (Brier, 1950).
    """
    t = tally(confidence, correct, weight)
    p = t.confidence
    score: Numbers = (t.hits * (1 - p) ** 2 + (t.count - t.hits) * p**2).sum(axis=-1) / t.total
    return score


def log_loss(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Log loss of the top label in nats, :math:`-\frac1n \sum_i [y_i \ln p_i + (1 - y_i) \ln (1 - p_i)]` (Good, 1952).

    Confidences are first clipped to [`LOG_CLIP`, 1 - `LOG_CLIP`], as scikit-learn does for float64, so the range is 0 to 36.04.
    For probabilities that come from logits use `log_loss_from_log_odds`, which needs no clip.
    """
    t = tally(confidence, correct, weight)
    p = np.clip(t.confidence, LOG_CLIP, 1 - LOG_CLIP)
    loss: Numbers = -(t.hits * np.log(p) + (t.count - t.hits) * np.log1p(-p)).sum(axis=-1) / t.total
    return loss


def top_log_odds(logits: npt.ArrayLike) -> Floats:
    r"""Log odds of the most probable option, :math:`z_c - \ln \sum_{k \ne c} e^{z_k}`, for logits ``(n, K)``; shape ``(n,)``.

    The confidence is `scipy.special.expit` of it. The log odds still tell saturated confidences apart, which as probabilities
    all round to 1. The first of equal logits is the choice. With K = 1 there is nothing to decide: `UserError`.
    """
    z = logit_rows(logits)
    rows, choice = np.arange(len(z)), z.argmax(axis=1)
    others = z.copy()
    others[rows, choice] = -np.inf
    odds: Floats = z[rows, choice] - logsumexp(others, axis=1)
    return odds


def logit_rows(logits: npt.ArrayLike) -> Floats:
    """``logits`` as a finite float64 array ``(n, K)`` with n ≥ 1 and K ≥ 2."""
    z = np.asarray(logits)
    if z.ndim != 2 or len(z) == 0 or z.shape[1] < 2 or z.dtype.kind not in "fiu":
        raise UserError(f"logits have the shape {z.shape} and the type {z.dtype}: give one row a decision, one column an option.")
    z = z.astype(np.float64)
    if not np.isfinite(z).all():
        row = int(np.argmin(np.isfinite(z).all(axis=1)))
        raise UserError(f"logits are {shorten(z[row].tolist())} in row {row}: every logit must be finite.")
    return z


def log_odds_row(log_odds: npt.ArrayLike) -> Floats:
    """``log_odds`` as a non-empty finite float64 array ``(n,)``."""
    m = np.asarray(log_odds, dtype=np.float64)
    if m.ndim != 1 or m.size == 0 or not np.isfinite(m).all():
        raise UserError(f"log odds are {shorten(m.tolist())}: give a non-empty list of finite numbers.")
    return m


def log_loss_from_log_odds(log_odds: npt.ArrayLike, correct: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Log loss of the top label in nats from its log odds m: :math:`\ln(1 + e^{-m})` if correct, else :math:`\ln(1 + e^{m})`.

    Exact for any logits and unbounded: a wrong answer at log odds 50 costs 50, where the rounded probability would say
    36.04 or infinity. Take the log odds from `top_log_odds`.
    """
    m = log_odds_row(log_odds)
    right = zero_one(correct, len(m)) == 1
    return _weighted_mean(np.logaddexp(0, np.where(right, -m, m)), weight)


# ---- bins: Murphy terms and calibration error ----


@dataclass(frozen=True)
class Murphy:
    r"""Terms of the Brier score over bins b of size :math:`n_b`, mean confidence :math:`\bar p_b` and accuracy :math:`\bar y_b`.

    ``brier`` = REL - RES + UNC + WBV - WBC, exactly (Murphy, 1973; within-bin terms: Stephenson, Coelho & Jolliffe, 2008).

    - ``reliability``, REL = :math:`\frac1n \sum_b n_b (\bar p_b - \bar y_b)^2`, [0, 1], 0 is calibrated; biased upward.
    - ``resolution``, RES = :math:`\frac1n \sum_b n_b (\bar y_b - \bar y)^2`, [0, UNC], more is more informative; biased upward.
    - ``uncertainty``, UNC = :math:`\bar y (1 - \bar y)`, [0, 1/4], depends on the outcomes alone; the Brier score of the base rate.
    - ``within_variance``, WBV: mean squared distance of a confidence to the mean of its bin, ≥ 0.
    - ``within_covariance``, WBC: twice the mean within-bin covariance of confidence and outcome. Both vanish when each bin
      holds a single value.
    - ``reliability_debiased``: REL less :math:`\frac1n \sum_b n_b \bar y_b (1 - \bar y_b) / (n_b - 1)`, the part that chance
      alone adds; can be negative (Bröcker, 2012; Ferro & Fricker, 2012; Kumar, Liang & Ma, 2019). The number to compare arms by.
    - ``resolution_debiased``: RES less the same, plus :math:`\bar y (1 - \bar y) / (n - 1)`.

    A bin with one row has no estimate of its own variance and gets no correction. The correction takes rows as independent.
    """

    reliability: Numbers
    resolution: Numbers
    uncertainty: Numbers
    within_variance: Numbers
    within_covariance: Numbers
    reliability_debiased: Numbers
    resolution_debiased: Numbers

    @property
    def brier(self) -> Numbers:
        return self.reliability - self.resolution + self.uncertainty + self.within_variance - self.within_covariance


def murphy(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, bins: int = BINS, weight: npt.ArrayLike | None = None) -> Murphy:
    """The `Murphy` terms over the equal-mass bins of `ece`."""
    t = tally(confidence, correct, weight)
    bin_ = _bin_of(t, bins)
    n, total = _sum_by_bin(t.count, bin_, bins), t.total
    size = np.maximum(n, 1)  # an empty bin has sums of 0: any divisor will do
    p = _sum_by_bin(t.count * t.confidence, bin_, bins) / size
    y = _sum_by_bin(t.hits, bin_, bins) / size
    base = t.hits.sum(axis=-1) / total
    unc = base * (1 - base)
    chance = (n * y * (1 - y) / np.maximum(n - 1, 1)).sum(axis=-1) / total
    rel = (n * (p - y) ** 2).sum(axis=-1) / total
    res = (n * (y - np.expand_dims(base, -1)) ** 2).sum(axis=-1) / total
    off = t.confidence - np.take_along_axis(p, bin_, axis=-1)
    return Murphy(
        reliability=rel,
        resolution=res,
        uncertainty=unc,
        within_variance=(t.count * off**2).sum(axis=-1) / total,
        within_covariance=2 * ((t.hits - t.count * np.take_along_axis(y, bin_, axis=-1)) * off).sum(axis=-1) / total,
        reliability_debiased=rel - chance,
        resolution_debiased=res - chance + unc / np.maximum(total - 1, 1),
    )


def ece(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, bins: int = BINS, weight: npt.ArrayLike | None = None) -> Numbers:
    r"""Expected calibration error, :math:`\frac1n \sum_b n_b |\bar p_b - \bar y_b|`, over equal-mass bins; from 0 to 1.

    Ties stay together: a distinct confidence with the mid-rank r (counted from 0 to n) goes whole into bin ⌊``bins`` · r / n⌋.
    n distinct values fill all bins with sizes that differ by at most 1; a single value is one bin; there are never more than
    ``bins`` (Naeini, Cooper & Hauskrecht, 2015; equal mass: Nixon et al., 2019). Biased upward: read it beside `null_floor`.
    """
    return _ece(tally(confidence, correct, weight), bins)


def _ece(t: Tally, bins: int) -> Numbers:
    gaps = _sum_by_bin(t.count * t.confidence - t.hits, _bin_of(t, bins), bins)
    error: Numbers = np.abs(gaps).sum(axis=-1) / t.total
    return error


def _bin_of(t: Tally, bins: int) -> Ints:
    """Bin of each distinct confidence, ``(..., U)``; integer arithmetic, so no edge is ever subject to rounding."""
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise UserError(f"bins is {shorten(bins)}: use a whole number from 1 up.")
    twice_mid_rank = 2 * t.count.cumsum(axis=-1) - t.count
    index: Ints = bins * twice_mid_rank // (2 * np.expand_dims(t.total, -1))
    return np.minimum(index, bins - 1)  # a value with count 0 after the last row


def _sum_by_bin(values: npt.NDArray[np.float64] | Ints, bin_: Ints, bins: int) -> Floats:
    """Sums ``(..., bins)`` of ``values`` ``(..., U)``."""
    shape = np.broadcast_shapes(values.shape, bin_.shape)
    size = int(np.prod(shape[:-1]))
    slot = np.broadcast_to(bin_, shape).reshape(size, -1) + bins * np.arange(size)[:, None]
    sums = np.bincount(slot.ravel(), np.broadcast_to(values, shape).ravel(), bins * size)
    return sums.reshape(*shape[:-1], bins).astype(np.float64)  # float64 already; NumPy's stubs say int


@dataclass(frozen=True)
class ReliabilityBins:
    """What a reliability diagram draws, one entry a non-empty bin of `ece`, in ascending order.

    ``low`` and ``high`` are the least and greatest confidence in the bin. ``null_low`` and ``null_high`` are the 2.5 % and 97.5 %
    points of the bin's accuracy if every confidence were true (consistency bars: Bröcker & Smith, 2007).
    """

    count: Ints
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    null_low: Floats
    null_high: Floats


def reliability_bins(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, *, bins: int = BINS, draws: int = 1000, seed: int = 0
) -> ReliabilityBins:
    """The bins behind `ece`, with their null band from ``draws`` simulations."""
    t = tally(confidence, correct)
    bin_ = _bin_of(t, bins)
    first = np.flatnonzero(np.diff(bin_, prepend=-1))
    last = np.append(first[1:], len(bin_)) - 1
    used = bin_[first]
    n = _sum_by_bin(t.count, bin_, bins)[used]
    null = _sum_by_bin(_null_hits(t, draws, seed), bin_, bins)[:, used] / n
    null_low, null_high = np.quantile(null, [0.025, 0.975], axis=0)
    return ReliabilityBins(
        count=n.astype(np.int64),
        confidence=_sum_by_bin(t.count * t.confidence, bin_, bins)[used] / n,
        accuracy=_sum_by_bin(t.hits, bin_, bins)[used] / n,
        low=t.confidence[first],
        high=t.confidence[last],
        null_low=null_low,
        null_high=null_high,
    )


# ---- what chance alone would show ----


@dataclass(frozen=True)
class NullFloor:
    """`ece` of a forecast whose every confidence is true: its ``mean`` and 95 % point ``upper`` over simulations."""

    mean: float
    upper: float


def null_floor(confidence: npt.ArrayLike, *, bins: int = BINS, draws: int = 1000, seed: int = 0) -> NullFloor:
    """ECE that these confidences would show under perfect calibration: outcomes redrawn as Bernoulli(confidence).

    An ECE below ``upper`` is no evidence of miscalibration (Bröcker & Smith, 2007). Takes rows as independent: where outcomes
    hang together within a context the true floor is higher, and an ECE above this one is no evidence either. To test
    calibration then, use `spiegelhalter` with clusters.
    """
    values = unit_interval(confidence, "confidence")
    t = tally(values, np.zeros(len(values)))
    null = _ece(Tally(t.confidence, t.count, _null_hits(t, draws, seed)), bins)
    return NullFloor(float(np.mean(null)), float(np.quantile(null, 0.95)))


def _null_hits(t: Tally, draws: int, seed: int) -> Ints:
    if draws < 1:
        raise UserError(f"draws is {draws}: simulate at least once.")
    return np.random.default_rng(seed).binomial(t.count, t.confidence, size=(draws, len(t.confidence)))


@dataclass(frozen=True)
class Spiegelhalter:
    """Statistic ``z`` and two-sided ``p_value`` of a test of calibration without bins."""

    z: float
    p_value: float


def spiegelhalter(confidence: npt.ArrayLike, correct: npt.ArrayLike, *, clusters: npt.ArrayLike | None = None) -> Spiegelhalter:
    r"""Spiegelhalter's z: the Brier score less its expectation under calibration, in standard errors (Spiegelhalter, 1986).

    :math:`z = \sum_i s_i / \sqrt{\sum_i (1 - 2 p_i)^2 p_i (1 - p_i)}` with :math:`s_i = (y_i - p_i)(1 - 2 p_i)`, standard
    normal if every confidence is true and rows are independent; positive if the Brier score is worse than the confidences
    promise. Where all are 0, 1/2 or 1 the promise has no spread: z is NaN if it's kept and infinite if it's broken.

    With ``clusters`` ``(n,)``, the context of each row, rows may depend on each other within a context: the variance below the
    root is then the sum over contexts of :math:`(\sum_{i \in c} s_i)^2` (Liang & Zeger, 1986), and z is NaN if all are 0.
    """
    t = tally(confidence, correct)
    p = t.confidence
    above = ((t.hits - t.count * p) * (1 - 2 * p)).sum()
    if clusters is None:
        variance = (t.count * (1 - 2 * p) ** 2 * p * (1 - p)).sum()
    else:
        forecast, outcome = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
        labels = np.asarray(clusters)
        if labels.shape != forecast.shape:
            raise UserError(f"clusters have the shape {labels.shape}: give one label for each of the {len(forecast)} rows.")
        _, cluster = np.unique(labels, return_inverse=True)
        variance = (np.bincount(cluster, (outcome - forecast) * (1 - 2 * forecast)) ** 2).sum()
    with np.errstate(divide="ignore", invalid="ignore"):  # no variance gives the NaN or infinity that is promised above
        z = float(above / np.sqrt(variance))
    return Spiegelhalter(z, float(2 * ndtr(-abs(z))))


# ---- against a known posterior ----


@dataclass(frozen=True)
class PosteriorError:
    """Error of confidences against true probabilities: ``bias`` (positive is over-confident), ``mean_absolute`` and
    ``root_mean_square``. The square of the last is what the expected Brier score exceeds that of the truth by."""

    bias: Numbers
    mean_absolute: Numbers
    root_mean_square: Numbers


def posterior_error(confidence: npt.ArrayLike, truth: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> PosteriorError:
    """Distance of each confidence to ``truth``, the known probability that the choice is correct. No bins and no floor."""
    p, q = _aligned(confidence, "confidence", truth, "truth")
    return PosteriorError(
        bias=_weighted_mean(p - q, weight),
        mean_absolute=_weighted_mean(np.abs(p - q), weight),
        root_mean_square=np.sqrt(_weighted_mean((p - q) ** 2, weight)),
    )


def bayes_regret(truth: npt.ArrayLike, best: npt.ArrayLike, *, weight: npt.ArrayLike | None = None) -> Numbers:
    """Accuracy given away: mean of ``best`` - ``truth``, from 0 (every choice is a Bayes decision) to 1.

    ``best`` is the greatest true probability among the options, ``truth`` that of the option chosen. Free of the luck of the
    labels, unlike the difference of accuracies.
    """
    chosen, most = _aligned(truth, "truth", best, "best")
    if (chosen > most + 1e-9).any():  # rounding of a normalised posterior
        row = int(np.argmax(chosen - most))
        raise UserError(f"truth is {chosen[row]} in row {row}, above best, {most[row]}: best is the greatest over the options.")
    return _weighted_mean(most - chosen, weight)


def _aligned(first: npt.ArrayLike, first_name: str, second: npt.ArrayLike, second_name: str) -> tuple[Floats, Floats]:
    a, b = unit_interval(first, first_name), unit_interval(second, second_name)
    if len(a) != len(b):
        raise UserError(f"{first_name} has {len(a)} rows and {second_name} {len(b)}: they must have the same rows.")
    return a, b
