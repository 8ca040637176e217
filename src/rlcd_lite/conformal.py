"""Prediction sets that hold the right option with a probability that is chosen beforehand (split conformal prediction).

A score says how badly an option fits, from the probabilities of all options; the quantile of the true options' scores over
held-out rows is the limit up to which an option stays in the set. If those rows and the text are exchangeable, the set holds the
right option with probability at least 1 - α, whatever the model (Vovk et al. 2005; Papadopoulos et al. 2002): on average over
held-out rows and texts, not for each text. The better the probabilities, the smaller the sets.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rlcd_lite.calibration import Floats
from rlcd_lite.errors import UserError
from rlcd_lite.settings import SetMethod, check_choice

TOLERANCE = 1e-9  # sums of the same probabilities in another order; it can only make a set larger


def option_scores(probabilities: npt.ArrayLike, method: SetMethod) -> Floats:
    """How badly each option fits, (K,) from probabilities (K,); in [0, 1].

    ``lac``: 1 - p, the smallest sets on average (Sadinle et al. 2019); a set may be empty. ``aps``: the probability of all options
    at least as probable, itself included (Romano et al. 2020, without their randomisation, so coverage is a little above 1 - α); a
    set is never empty, and grows where the model is unsure.
    """
    check_choice(method, SetMethod, "the method of sets")
    p = np.asarray(probabilities, dtype=np.float64)
    if method == "lac":
        return 1 - p
    order = np.argsort(-p, kind="stable")
    scores = np.empty_like(p)
    scores[order] = np.minimum(np.cumsum(p[order]), 1)
    return scores


def limit(scores: npt.ArrayLike, alpha: float) -> float:
    """The ⌈(n + 1)(1 - α)⌉-th smallest of the true options' scores (n,): options up to it are in the set.

    Raises `UserError` where n is too small for any limit: it takes n ≥ 1/α - 1.
    """
    found = _limit(scores, alpha)
    if math.isinf(found):
        rows, needed = np.size(scores), math.ceil(1 / alpha - 1 - 1e-9)
        raise UserError(f"sets that miss at most {alpha:g} need {needed} held-out rows, and there are {rows}: hold out more rows.")
    return found


def class_limits(scores: npt.ArrayLike, labels: npt.ArrayLike, options: int, alpha: float) -> Floats:
    """A limit (K,) for each option from the rows whose label it is: coverage holds given the right option (Vovk 2012).

    An option that is the label of fewer than 1/α - 1 rows has no limit (infinity): it is in every set, which is all that so few
    rows can promise.
    """
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    return np.array([_limit(s[y == option], alpha) for option in range(options)])


def prediction_set(probabilities: npt.ArrayLike, limits: npt.ArrayLike, method: SetMethod) -> tuple[int, ...]:
    """Indices of the options whose score is at most the limit (one for all, or one each), the most probable first."""
    p = np.asarray(probabilities, dtype=np.float64)
    inside = option_scores(p, method) <= np.asarray(limits) + TOLERANCE
    return tuple(int(i) for i in np.argsort(-p, kind="stable") if inside[i])


def _limit(scores: npt.ArrayLike, alpha: float) -> float:
    if not 0 < alpha < 1:
        raise UserError(f"the share of sets that may miss is {alpha:g}: use a number between 0 and 1, such as 0.1.")
    s = np.sort(np.asarray(scores, dtype=np.float64))
    rank = math.ceil((len(s) + 1) * (1 - alpha) - 1e-9)  # (n + 1)(1 - α) may round to just above a whole number
    return float(s[rank - 1]) if rank <= len(s) else math.inf
