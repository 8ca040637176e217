"""Does the model agree with itself? Answers that break a rule between fields, and answers that move with the options' order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlcd_lite.calibration import Floats
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Condition, Rule, Schema
from rlcd_lite.shape import Array


def broken(schema: Schema, choices: Sequence[int]) -> tuple[Rule, ...]:
    """The rules that an answer, one option index per field, does not keep."""
    chosen = {field.name: choice for field, choice in zip(schema.fields, choices, strict=True)}

    def holds(side: Sequence[Condition]) -> bool:
        return all(chosen[c.field] in c.options for c in side)

    return tuple(rule for rule in schema.rules if holds(rule.when) and not (rule.then and holds(rule.then)))


def rule_text(part: Rule | Array, schema: Schema) -> str:
    """A rule, or the bounds of an array, in words."""
    if isinstance(part, Array):
        return f"{part.low} to {part.high} of {', '.join(name for _, name in part.members)}"

    def said(side: Sequence[Condition]) -> str:
        return " and ".join(_condition_text(c, schema) for c in side)

    return f"{said(part.when)} ⇒ {said(part.then)}" if part.then else f"not {said(part.when)}"


def _condition_text(condition: Condition, schema: Schema) -> str:
    options = schema[condition.field].options
    values = [json.dumps(options[i].value, ensure_ascii=False) for i in condition.options]
    return f"{condition.field} = {values[0]}" if len(values) == 1 else f"{condition.field} in {{{', '.join(values)}}}"


@dataclass(frozen=True)
class OrderEffects:
    """How far each row's answer moves when its options are shuffled, averaged over the shuffles; both ``(n,)``, from 0 to 1.

    ``total_variation``: ½ Σ |p - q| over the options. ``flip``: share of shuffles with another choice. Both are 0 for a model
    that reads the options and not their places. Take means and intervals with `rlcd_lite.resample.mean_interval`, which draws
    examples and keeps an example's shuffles together.
    """

    total_variation: Floats
    flip: Floats


def order_effects(base: npt.ArrayLike, shuffled: npt.ArrayLike) -> OrderEffects:
    """Compare probabilities in the schema's order, ``base`` ``(n, K)``, with those under k shuffles, ``shuffled`` ``(n, k, K)``.

    In both, column j is the probability of the same *option* j, wherever it stood in the prompt. The choice is the first of the
    most probable options.
    """
    p, q = _distributions(base, "base", 2), _distributions(shuffled, "shuffled", 3)
    if (len(p), p.shape[-1]) != (len(q), q.shape[-1]):
        raise UserError(f"base has the shape {p.shape} and shuffled {q.shape}: they must be (n, K) and (n, k, K).")
    p = p[:, None]
    return OrderEffects(
        total_variation=total_variation(p, q).mean(axis=1),
        flip=(p.argmax(axis=-1) != q.argmax(axis=-1)).mean(axis=1),
    )


def total_variation(p: Floats, q: Floats) -> Floats:
    """½ Σ |p - q| over the last axis: the most by which two distributions differ on any event."""
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


def _distributions(values: npt.ArrayLike, name: str, ndim: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim or array.size == 0:
        raise UserError(f"{name} has the shape {array.shape}: give a non-empty array of {ndim} dimensions.")
    if not ((array >= 0).all() and np.allclose(array.sum(axis=-1), 1, atol=1e-4)):  # float32 rounding of 151 options passes
        raise UserError(f"{name} is not made of probabilities: along the last axis they must be at least 0 and sum to 1.")
    return array
