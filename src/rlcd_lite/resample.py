"""Intervals by the bootstrap over contexts.

The decisions about one context share its luck, so the bootstrap draws *contexts* with replacement and takes each with all its
rows. A statistic is evaluated for many resamples in one call: it gets ``weight``, whole numbers of shape ``(r, n)`` that say
how often each row was drawn, and returns ``(r,)`` numbers, as the metrics of `rlcd_lite.calibration` and
`rlcd_lite.selective` do::

    bootstrap(lambda weight: ece(confidence, correct, weight=weight), contexts)

The resamples depend on ``clusters`` and ``seed`` alone, so two arms over the same rows meet the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlcd_lite.calibration import Floats, Ints
from rlcd_lite.errors import UserError

RESAMPLES = 1000
LEVEL = 0.95
CHUNK = 1 << 17  # weights in memory at a time (1 MiB): measured fastest, since the temporaries of a chunk stay in cache

Statistic = Callable[[Ints], npt.ArrayLike]


@dataclass(frozen=True)
class Interval:
    """An estimate from all rows, and the percentile interval of its resamples.

    The interval of a biased statistic such as ECE needn't contain the estimate, let alone the truth.
    """

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A statistic of the first arm less that of the second, with its paired interval.

    ``other_sign`` is the share of resamples in which the difference is 0 or has the sign opposite to the estimate's.
    """

    estimate: float
    low: float
    high: float
    other_sign: float


def bootstrap(
    statistic: Statistic, clusters: npt.ArrayLike, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """Percentile interval of ``statistic`` over resampled clusters (Efron, 1979; clusters: Field & Welsh, 2007).

    Parameters
    ----------
    statistic
        From weights ``(r, n)`` to ``(r,)`` finite numbers.
    clusters
        ``(n,)``, the context of each row: any labels. One label a row makes it the i.i.d. bootstrap.
    """
    estimate, draws = _draws(statistic, clusters, resamples, seed)
    low, high = _percentiles(draws, level)
    return Interval(estimate, low, high)


def paired_bootstrap(
    first: Statistic,
    second: Statistic,
    clusters: npt.ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """Percentile interval of ``first`` - ``second``, each evaluated on the same resampled clusters.

    Both statistics must be about the same rows in the same order. What was fitted elsewhere, such as a temperature on the
    calibration split, is held fixed: the interval is conditional on it.
    """
    estimate, draws = _draws(lambda weight: np.asarray(first(weight)) - np.asarray(second(weight)), clusters, resamples, seed)
    low, high = _percentiles(draws, level)
    return Difference(estimate, low, high, float(np.mean(draws * np.sign(estimate) <= 0)))


def over_runs(
    statistics: Sequence[Statistic],
    clusters: npt.ArrayLike,
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Difference:
    """The mean of a statistic over runs that were trained with different seeds, by a two-level bootstrap (Davison & Hinkley, 1997,
    section 3.8): runs and contexts are both drawn with replacement.

    All runs are about the same rows, and one resample's contexts are the same for all of them. A statistic may itself be the
    difference of two arms of one seed. With few runs the interval is short of the truth: three of them can be drawn in ten ways.
    """
    if not statistics:
        raise UserError("there is no run: give the statistic of at least one.")
    found = [_draws(statistic, clusters, resamples, seed) for statistic in statistics]
    each = np.stack([draws for _, draws in found])  # (runs, resamples)
    runs = np.random.default_rng([seed, len(found)]).integers(len(found), size=each.shape)
    means = np.take_along_axis(each, runs, axis=0).mean(axis=0)
    estimate = float(np.mean([value for value, _ in found]))
    low, high = _percentiles(means, level)
    return Difference(estimate, low, high, float(np.mean(means * np.sign(estimate) <= 0)))


def mean_interval(
    values: npt.ArrayLike, clusters: npt.ArrayLike, *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """`bootstrap` of the mean over rows of ``values`` ``(n,)``: accuracy, mean confidence, a flip rate."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != np.shape(clusters) or not np.isfinite(array).all():
        raise UserError(f"values have the shape {array.shape}: give one finite number for each of the {np.size(clusters)} rows.")
    return bootstrap(lambda weight: weight @ array / weight.sum(axis=1), clusters, resamples=resamples, level=level, seed=seed)


def _draws(statistic: Statistic, clusters: npt.ArrayLike, resamples: int, seed: int) -> tuple[float, Floats]:
    labels = np.asarray(clusters)
    if labels.ndim != 1 or labels.size == 0:
        raise UserError(f"clusters have the shape {labels.shape}: give one label for each row.")
    names, cluster = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise UserError(f"all {len(labels)} rows belong to one context: an interval needs at least two.")
    if resamples < 1:
        raise UserError(f"resamples is {resamples}: draw at least one.")
    estimate = _evaluate(statistic, np.ones((1, len(labels)), dtype=np.int64))
    draws = [_evaluate(statistic, weight) for weight in _weights(cluster, len(names), resamples, seed)]
    return float(estimate[0]), np.concatenate(draws)


def _weights(cluster: npt.NDArray[np.intp], clusters: int, resamples: int, seed: int) -> Iterator[Ints]:
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // len(cluster))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.integers(clusters, size=(size, clusters)) + clusters * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * clusters).reshape(size, clusters)
        yield times[:, cluster]


def _evaluate(statistic: Statistic, weight: Ints) -> Floats:
    values = np.asarray(statistic(weight), dtype=np.float64)
    if values.shape != weight.shape[:1]:
        raise UserError(
            f"the statistic has the shape {values.shape} for {len(weight)} resamples: it must return one number for each."
        )
    if not np.isfinite(values).all():
        raise UserError(
            f"the statistic is not finite in {(~np.isfinite(values)).sum()} of {len(values)} resamples: it has no interval."
        )
    return values


def _percentiles(draws: Floats, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise UserError(f"level is {level}: use a number between 0 and 1, such as 0.95.")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
