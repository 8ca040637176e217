"""Temperature scaling: one number per field, fitted on the calibration split, that makes softmax confidences truer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import softmax

from rlcd_lite.calibration import Floats, logit_rows
from rlcd_lite.errors import UserError, shorten

T_MIN, T_MAX = 0.05, 20.0


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature in [0.05, 20].

    ``at_ceiling``: the likelihood would go on rising above 20, so the logits carry no usable signal for this field. Report
    it as a finding: the scaled softmax is then close to uniform, and its ranking ranks noise.
    """

    value: float
    at_ceiling: bool

    def apply(self, logits: npt.ArrayLike) -> Floats:
        """Logits ``(n, K)`` divided by the temperature; the arg-max stays the same."""
        return logit_rows(logits) / self.value

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "at_ceiling": self.at_ceiling}

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> Temperature:
        """The inverse of `to_dict`; `UserError` for anything else."""
        if not isinstance(source, Mapping) or set(source) != {"value", "at_ceiling"}:
            raise UserError(f'the temperature is {shorten(source)}: it must be an object with "value" and "at_ceiling".')
        value, at_ceiling = source["value"], source["at_ceiling"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not T_MIN <= value <= T_MAX:
            raise UserError(f"the temperature has the value {shorten(value)}: it must be a number from {T_MIN} to {T_MAX}.")
        if not isinstance(at_ceiling, bool) or (at_ceiling and value != T_MAX):
            raise UserError(
                f"the temperature {value} has at_ceiling {shorten(at_ceiling)}: it is true or false, and true only at {T_MAX}."
            )
        return cls(float(value), at_ceiling)


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
    z = logit_rows(logits)
    y = np.asarray(labels)
    if y.shape != (len(z),) or y.dtype.kind not in "iu":
        raise UserError(f"labels have the shape {y.shape} and the type {y.dtype}: give one option index for each of {len(z)} rows.")
    if y.min() < 0 or y.max() >= z.shape[1]:
        row = int(np.argmax((y < 0) | (y >= z.shape[1])))
        raise UserError(
            f"label {y[row]} in row {row} is not the index of one of the {z.shape[1]} options: use 0 to {z.shape[1] - 1}."
        )
    z -= z.max(axis=1, keepdims=True)  # no change to the softmax, and no rounding where the label is the arg-max
    true = z[np.arange(len(z)), y]

    def slope(beta: float) -> float:
        return float(((softmax(beta * z, axis=1) * z).sum(axis=1) - true).mean())

    if slope(1 / T_MAX) > 0 or not z.any():  # the likelihood of constant logits is flat: no signal either
        return Temperature(T_MAX, at_ceiling=True)
    if slope(1 / T_MIN) <= 0:
        return Temperature(T_MIN, at_ceiling=False)
    return Temperature(float(1 / brentq(slope, 1 / T_MAX, 1 / T_MIN, xtol=1e-12)), at_ceiling=False)
