"""Calibrators: small functions, fitted on the calibration split, that make probabilities truer. Free of torch.

Two kinds. On a *distribution*, ``apply`` takes the logits ``(n, K)`` of a field's options and gives logits ``(n, K)`` with the same
arg-max: `Identity`, `Temperature`, `Ensemble`. On a *confidence*, ``apply`` takes log odds ``(n,)`` that the choice is right and
gives log odds ``(n,)``: `Identity`, `Platt`, `Beta`, `Isotonic`, `LevelTable`, and `Fusion`, which takes several signals at once.
Log odds, because a saturated softmax still has them, where as a probability it rounds to 1.

Each is a frozen model whose ``kind`` says which it is, so that JSON is read back as what was written. A fit of a confidence needs
right and wrong choices, else it raises `UserError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from scipy.optimize import brentq, isotonic_regression, minimize
from scipy.special import expit, log_expit, log_softmax, logit, logsumexp, softmax

from rlcd_lite.calibration import Floats, Ints, log_odds_row, logit_rows, zero_one
from rlcd_lite.errors import UserError, shorten

T_MIN, T_MAX = 0.05, 20.0
MIXING_STEPS = 1000  # of the fit of Ensemble; its likelihood moves by less than 1e-6 a row thereafter
LEAST_SHARE = 1e-6  # of each part of Ensemble, so that its arg-max is that of the logits
PRIOR_ROWS = 5.0  # of LevelTable: variance of an outcome over that between levels, 0.2 / 0.2²
SAME_LEVEL = 1e-6  # levels of stated confidence are float32 at times
SIGNALS_FUSED = 5  # columns of Fusion's features

# Where options differ in number from row to row, short rows of logits are filled up with a logit this far below all others: the
# option has probability 0 at every temperature up to 20.
ABSENT = 1e4

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Degree = Annotated[Number, Field(ge=T_MIN, le=T_MAX)]
Five = tuple[Number, Number, Number, Number, Number]


class Frozen(BaseModel):
    """A record that JSON can hold: nothing in it changes, and keys that it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def damaged(what: str, error: ValidationError) -> UserError:
    """What to raise where ``what`` was read from JSON and isn't one; the first of the mistakes stands for all."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the top"
    return UserError(f"{what} is damaged at {place}, {shorten(first['input'])} ({first['msg']}): fit it again.")


# ---- on a distribution ----


class Identity(Frozen):
    """Leaves everything as it is: what a calibrator must beat."""

    kind: Literal["identity"] = "identity"

    def apply(self, values: npt.ArrayLike) -> Floats:
        """Logits ``(n, K)`` or log odds ``(n,)``, unchanged."""
        return np.asarray(values, dtype=np.float64)


class Temperature(Frozen):
    """A fitted temperature in [0.05, 20].

    ``at_ceiling``: the likelihood would go on rising above 20, so the logits carry no usable signal for this field. Report
    it as a finding: the scaled softmax is then close to uniform, and its ranking ranks noise.
    """

    kind: Literal["temperature"] = "temperature"
    value: Degree
    at_ceiling: Annotated[bool, Field(strict=True)]

    @model_validator(mode="after")
    def _ceiling(self) -> Temperature:
        if self.at_ceiling and self.value != T_MAX:
            raise ValueError(f"at_ceiling is true only at {T_MAX}")
        return self

    def apply(self, logits: npt.ArrayLike) -> Floats:
        """Logits ``(n, K)`` divided by the temperature; the arg-max stays the same."""
        return logit_rows(logits) / self.value

    def to_dict(self) -> dict[str, Any]:
        """As eval.json has it, where nothing else can stand in its place: without ``kind``."""
        return self.model_dump(exclude={"kind"})

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> Temperature:
        """The inverse of `to_dict`; `UserError` for anything else."""
        try:
            return cls.model_validate(source)
        except ValidationError as error:
            raise damaged("the temperature", error) from None


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Temperature:
    r"""The temperature in [0.05, 20] with the least negative log-likelihood (Guo et al., 2017).

    Parameters
    ----------
    logits
        ``(n, K)``, over the options of one field of the calibration split.
    labels
        ``(n,)``, the index of the true option in each row.

    Notes
    -----
    The mean negative log-likelihood is convex in β = 1/T. Its derivative, the mean of :math:`E_{softmax(βz)}[z] - z_y`, rises
    with β, so its root is bracketed by the bounds or lies outside of them: no start, no step size, and no negative or
    diverging temperature. Where it's positive on the whole range (logits that are noise, constant or point the wrong way) the
    result is 20, flagged; where it's negative (separable data) the result is 0.05.
    """
    z, y = _labelled(logits, labels)
    z -= z.max(axis=1, keepdims=True)  # no change to the softmax, and no rounding where the label is the arg-max
    true = z[np.arange(len(z)), y]

    def slope(beta: float) -> float:
        return float(((softmax(beta * z, axis=1) * z).sum(axis=1) - true).mean())

    if slope(1 / T_MAX) > 0 or not z.any():  # the likelihood of constant logits is flat: no signal either
        return Temperature(value=T_MAX, at_ceiling=True)
    if slope(1 / T_MIN) <= 0:
        return Temperature(value=T_MIN, at_ceiling=False)
    return Temperature(value=float(1 / brentq(slope, 1 / T_MAX, 1 / T_MIN, xtol=1e-12)), at_ceiling=False)


class Ensemble(Frozen):
    """Ensemble temperature scaling: a mixture of the tempered, the raw and the uniform distribution (Zhang et al., 2020).

    ``tempered``, ``raw`` and ``uniform`` are the shares, which sum to 1; uniform is over the options that the row has.
    """

    kind: Literal["ensemble"] = "ensemble"
    temperature: Degree
    tempered: Positive
    raw: Positive
    uniform: Positive

    @model_validator(mode="after")
    def _simplex(self) -> Ensemble:
        if abs(self.tempered + self.raw + self.uniform - 1) > 1e-9:
            raise ValueError("the shares tempered, raw and uniform must sum to 1")
        return self

    def apply(self, logits: npt.ArrayLike) -> Floats:
        """Log-probabilities ``(n, K)`` of the mixture; the arg-max stays the same."""
        parts = _parts(logit_rows(logits), self.temperature)
        mixed = logsumexp(parts + np.log([self.tempered, self.raw, self.uniform])[:, None, None], axis=0)
        return np.asarray(np.where(np.isfinite(parts[2]), mixed, parts[1]))


def fit_ensemble(logits: npt.ArrayLike, labels: npt.ArrayLike) -> Ensemble:
    """The temperature of `fit_temperature`, then the shares with the greatest likelihood, found by expectation maximisation.

    The likelihood is concave in the shares, so its maximum doesn't depend on the start; each share is kept from 0 by 1e-6.
    """
    z, y = _labelled(logits, labels)
    degree = fit_temperature(z, y).value
    log_p = _parts(z, degree)[:, np.arange(len(z)), y]  # (3, n)
    p = np.exp(log_p - log_p.max(axis=0))  # up to a factor of its own in each row, which cancels
    share = np.full(3, 1 / 3)
    for _ in range(MIXING_STEPS):
        share = np.maximum(share * (p @ (1 / (share @ p))) / len(z), LEAST_SHARE)
        share /= share.sum()
    tempered, raw, uniform = share.tolist()
    return Ensemble(temperature=degree, tempered=tempered, raw=raw, uniform=uniform)


def _parts(z: Floats, temperature: float) -> Floats:
    """Log-probabilities ``(3, n, K)``: tempered, raw, and uniform over the options that are not absent."""
    present = z > z.max(axis=1, keepdims=True) - ABSENT / 2
    uniform = np.where(present, -np.log(present.sum(axis=1, keepdims=True)), -np.inf)
    return np.stack([log_softmax(z / temperature, axis=1), log_softmax(z, axis=1), uniform])


def _labelled(logits: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, Ints]:
    z = logit_rows(logits)
    y = np.asarray(labels)
    if y.shape != (len(z),) or y.dtype.kind not in "iu":
        raise UserError(f"labels have the shape {y.shape} and the type {y.dtype}: give one option index for each of {len(z)} rows.")
    if y.min() < 0 or y.max() >= z.shape[1]:
        row = int(np.argmax((y < 0) | (y >= z.shape[1])))
        raise UserError(
            f"label {y[row]} in row {row} is not the index of one of the {z.shape[1]} options: use 0 to {z.shape[1] - 1}."
        )
    return z, y


# ---- on a confidence ----


class Platt(Frozen):
    """Calibrated log odds ``slope`` · log odds + ``intercept`` (Platt, 1999); ``slope`` is at least 0."""

    kind: Literal["platt"] = "platt"
    slope: NotNegative
    intercept: Number

    def apply(self, log_odds: npt.ArrayLike) -> Floats:
        """Log odds ``(n,)``."""
        return self.slope * log_odds_row(log_odds) + self.intercept


def fit_platt(log_odds: npt.ArrayLike, correct: npt.ArrayLike) -> Platt:
    """The log-loss optimum of slope and intercept over log odds ``(n,)`` and outcomes ``(n,)``, against Platt's targets."""
    m, y = _outcomes(log_odds, correct)
    (slope,), intercept = _affine(m[:, None], y)
    return Platt(slope=slope, intercept=intercept)


class Beta(Frozen):
    """Calibrated log odds ``a`` ln p - ``b`` ln(1 - p) + ``c`` of a confidence p (Kull, Silva Filho & Flach, 2017); a, b ≥ 0.

    Two slopes, below and above, where Platt has one: a = b is `Platt`.
    """

    kind: Literal["beta"] = "beta"
    a: NotNegative
    b: NotNegative
    c: Number

    def apply(self, log_odds: npt.ArrayLike) -> Floats:
        """Log odds ``(n,)``."""
        return np.asarray(_beta_features(log_odds_row(log_odds)) @ [self.a, self.b] + self.c)


def fit_beta(log_odds: npt.ArrayLike, correct: npt.ArrayLike) -> Beta:
    """The log-loss optimum of a, b and c; against Platt's targets, which keep it finite where the confidence tells all apart."""
    m, y = _outcomes(log_odds, correct)
    (a, b), c = _affine(_beta_features(m), y)
    return Beta(a=a, b=b, c=c)


def _beta_features(m: Floats) -> Floats:
    """ln p and -ln(1 - p), ``(n, 2)``, from log odds: exact where p rounds to 0 or 1."""
    return np.stack([log_expit(m), -log_expit(-m)], axis=1)


class Isotonic(Frozen):
    """A function that never falls: straight between the knots ``x``, ``y`` (log odds both), constant beyond them."""

    kind: Literal["isotonic"] = "isotonic"
    x: tuple[Number, ...] = Field(min_length=1)
    y: tuple[Number, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rises(self) -> Isotonic:
        if len(self.x) != len(self.y) or (np.diff(self.x) <= 0).any() or (np.diff(self.y) < 0).any():
            raise ValueError("x and y must have the same length, x must rise and y must not fall")
        return self

    def apply(self, log_odds: npt.ArrayLike) -> Floats:
        """Log odds ``(n,)``."""
        return np.interp(log_odds_row(log_odds), self.x, self.y)


def fit_isotonic(log_odds: npt.ArrayLike, correct: npt.ArrayLike) -> Isotonic:
    """Isotonic regression (Zadrozny & Elkan, 2002), with block rates that stay off 0 and 1.

    Rows of equal log odds are one point. A block of n rows with h right gets the rate (h + ½)/(n + 1) (Krichevsky & Trofimov,
    1981); where that makes a small block overtake its neighbour, the two are pooled by a second regression of weights n + 1.
    """
    m, y = _outcomes(log_odds, correct)
    point, of, count = np.unique(m, return_inverse=True, return_counts=True)
    first = isotonic_regression(np.bincount(of, y) / count, weights=count)
    start, size = first.blocks[:-1], np.add.reduceat(count, first.blocks[:-1])
    hits = np.add.reduceat(np.bincount(of, y), start)
    rate = isotonic_regression((hits + 0.5) / (size + 1), weights=size + 1).x
    ends = np.stack([start, first.blocks[1:] - 1], axis=1)  # first and last point of each block
    knot, where = np.unique(ends.ravel(), return_index=True)  # a block of one point is one knot
    return Isotonic(x=tuple(point[knot].tolist()), y=tuple(logit(rate)[where // 2].tolist()))


class LevelTable(Frozen):
    """For a confidence of few levels: the calibrated log odds ``y`` at each of the levels ``x`` (log odds, ascending)."""

    kind: Literal["table"] = "table"
    x: tuple[Number, ...] = Field(min_length=1)
    y: tuple[Number, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rises(self) -> LevelTable:
        if len(self.x) != len(self.y) or (np.diff(self.x) <= 0).any():
            raise ValueError("x and y must have the same length and x must rise")
        return self

    def apply(self, log_odds: npt.ArrayLike) -> Floats:
        """Log odds ``(n,)``; `UserError` for a confidence that is none of the levels."""
        m = log_odds_row(log_odds)
        return np.array(self.y)[_nearest(m, np.array(self.x))]


def fit_table(log_odds: npt.ArrayLike, correct: npt.ArrayLike, levels: npt.ArrayLike) -> LevelTable:
    """The hit rate at each of ``levels`` (log odds), shrunk to the base rate r: (h + 5 r)/(n + 5) for h right of n rows.

    So 5 rows (`PRIOR_ROWS`) count as much as the base rate, and a level that no row has gets the base rate. Five is the ratio of
    an outcome's variance, about 0.2, to that of hit rates which lie 0.2 about their mean (Efron & Morris, 1975).
    """
    m, y = _outcomes(log_odds, correct)
    x = np.unique(log_odds_row(levels))
    at = _nearest(m, x)
    hits, count = np.bincount(at, y, len(x)), np.bincount(at, minlength=len(x))
    rate = (hits + PRIOR_ROWS * y.mean()) / (count + PRIOR_ROWS)
    return LevelTable(x=tuple(x.tolist()), y=tuple(logit(rate).tolist()))


def _nearest(m: Floats, x: Floats) -> npt.NDArray[np.intp]:
    distance = np.abs(m[:, None] - x)
    if (far := distance.min(axis=1) > SAME_LEVEL).any():
        row = int(np.argmax(far))
        raise UserError(
            f"log odds {m[row]} in row {row} belong to none of the levels {shorten(x.tolist())} of the table: fit it again on "
            "confidences of the same grid."
        )
    return np.asarray(distance.argmin(axis=1))


class Fusion(Frozen):
    """One confidence out of several signals: a logistic regression on their features, standardised by ``mean`` and ``scale``.

    The columns are `fitting.Evidence.features`: log odds of the choice, its margin, the entropy, and both stated confidences.
    """

    kind: Literal["fusion"] = "fusion"
    mean: Five
    scale: tuple[Positive, Positive, Positive, Positive, Positive]
    weights: Five
    intercept: Number

    def apply(self, features: npt.ArrayLike) -> Floats:
        """Log odds ``(n,)`` from features ``(n, 5)``."""
        return np.asarray((_feature_rows(features) - self.mean) / self.scale @ self.weights + self.intercept)


def fit_fusion(features: npt.ArrayLike, correct: npt.ArrayLike) -> Fusion:
    """Least log loss, summed over rows, plus ½ the squared weights (a ridge of 1: scikit-learn's C = 1; the intercept is free)."""
    x = _feature_rows(features)
    _, y = _outcomes(x[:, 0], correct)
    z, mean, scale = _standardised(x)
    weights, intercept = _logistic(z, y.astype(np.float64), ridge=1.0, lower=None)
    return Fusion(mean=_five(mean), scale=_five(scale), weights=_five(weights), intercept=intercept)


def _five(values: Floats) -> Five:
    one, two, three, four, five = values.tolist()
    return one, two, three, four, five


def _feature_rows(features: npt.ArrayLike) -> Floats:
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or len(x) == 0 or x.shape[1] != SIGNALS_FUSED or not np.isfinite(x).all():
        raise UserError(f"features have the shape {x.shape}: give rows of {SIGNALS_FUSED} finite numbers.")
    return x


# ---- the fit they share ----


def _outcomes(log_odds: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Ints]:
    m = log_odds_row(log_odds)
    y = zero_one(correct, len(m))
    if y.min() == y.max():
        kinds = ("right", "harder") if y[0] else ("wrong", "easier")
        raise UserError(
            f"all {len(y)} outcomes are {kinds[0]}, and a calibrator is fitted on both kinds: add {kinds[1]} rows, or more."
        )
    return m, y


def _affine(x: Floats, y: Ints) -> tuple[list[float], float]:
    """Weights, at least 0, and intercept of least log loss against the targets (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2) of Platt (1999)."""
    right = int(y.sum())
    target = np.where(y == 1, (right + 1) / (right + 2), 1 / (len(y) - right + 2))
    z, mean, scale = _standardised(x)
    weights, intercept = _logistic(z, target, ridge=0.0, lower=0.0)
    weights = weights / scale
    return weights.tolist(), float(intercept - weights @ mean)


def _standardised(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Columns of mean 0 and variance 1, with mean and scale; the scale of a constant column is 1."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(mean)), scale, 1.0)
    return (x - mean) / scale, mean, scale


def _logistic(z: Floats, target: Floats, ridge: float, lower: float | None) -> tuple[Floats, float]:
    """Weights ``(d,)`` of at least ``lower``, and intercept, with the least log loss plus ½ ``ridge`` · squared weights."""

    def loss(parameters: Floats) -> tuple[float, Floats]:
        weights, intercept = parameters[:-1], parameters[-1]
        m = z @ weights + intercept
        value = (np.logaddexp(0, m) - target * m).sum() + ridge / 2 * weights @ weights
        off = expit(m) - target
        slope = np.append(z.T @ off + ridge * weights, off.sum())
        return float(value / len(z)), slope / len(z)

    start = np.append(np.zeros(z.shape[1]), logit(target.mean()))
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(lower, None)] * z.shape[1] + [(None, None)],
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000},
    )
    return found.x[:-1], float(found.x[-1])
