"""Does a score tell texts that no option fits from the others? For fields with ``none_of_the_above``.

A score is higher for a text that is more likely out of scope. Three are compared: the probability of none of the above, one less
the highest probability of any other option (Hendrycks & Gimpel 2017), and one less the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from scipy.stats import rankdata

from rlcd_lite.calibration import Floats
from rlcd_lite.decision_table import DecisionRow, logit_matrix

RECALL = 0.9


def auroc(score: npt.ArrayLike, out: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> float:
    """Probability that a text that is out of scope scores above one that is in scope, ties counting half (Mann & Whitney 1947).

    ``score`` (n,), ``out`` (n,) of 0 and 1, ``weight`` (n,) of rows. NaN without texts of both kinds.
    """
    s, y = np.asarray(score, dtype=np.float64), np.asarray(out) == 1
    w = np.ones(len(s)) if weight is None else np.asarray(weight, dtype=np.float64)
    order = np.argsort(s, kind="stable")
    rank = rankdata(s, "dense")[order]
    inside, outside = np.where(y, 0.0, w)[order], np.where(y, w, 0.0)[order]
    if not inside.sum() * outside.sum():
        return float("nan")
    level = np.bincount(rank, inside)  # weight of texts in scope at each level of the score
    below = np.concatenate([[0.0], level.cumsum()[:-1]])
    return float((outside * (below[rank] + level[rank] / 2)).sum() / (inside.sum() * outside.sum()))


def false_alarm(score: npt.ArrayLike, out: npt.ArrayLike, recall: float = RECALL) -> float:
    """Share of texts in scope that are flagged at the highest threshold which flags at least ``recall`` of those out of scope: in
    the field, the false-positive rate at 90 % true positives. NaN without texts of both kinds."""
    s, y = np.asarray(score, dtype=np.float64), np.asarray(out) == 1
    if y.all() or not y.any():
        return float("nan")
    threshold = np.sort(s[y])[::-1][int(np.ceil(recall * y.sum())) - 1]
    return float((s[~y] >= threshold).mean())


def scores(rows: Sequence[DecisionRow]) -> dict[str, Floats]:
    """The three scores (n,) of rows whose last option is none of the above."""
    logits = [np.asarray(row.logits, dtype=np.float64) for row in rows]
    log_p = [row - logsumexp(row) for row in logits]
    return {
        "none_of_the_above": none_log_odds(rows),
        "max_probability": -np.array([p[:-1].max() for p in log_p]),
        "coverage": -np.array([row.coverage for row in rows]),
    }


def none_log_odds(rows: Sequence[DecisionRow]) -> Floats:
    """Log odds (n,) of the last option against all others."""
    matrix = logit_matrix(rows)
    return np.asarray(matrix[:, -1] - logsumexp(matrix[:, :-1], axis=1))
