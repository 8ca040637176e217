"""The answers to a schema over one text, with their probabilities, as JSON that always parses.

A `Decision` holds one `FieldDecision` per field. Its JSON is assembled from the schema's own values, never from text that a model
wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel

from rlcd_lite.errors import UserError
from rlcd_lite.schema import Field, Schema, Value
from rlcd_lite.shape import assemble


@dataclass(frozen=True)
class OrderEffect:
    """How much an answer owes to the order of the options. ``tried``: orders that were joined. ``total_variation``: mean distance
    ½ Σ |p − q| in [0, 1] between their probabilities and the joined ones. ``flips``: share of them that chose another option."""

    tried: int
    total_variation: float
    flips: float


@dataclass(frozen=True)
class Applied:
    """What a calibration makes of an answer.

    ``confidence``: in [0, 1], that the value is right, from ``signal`` (softmax, stated, stated_mean or fused; rules: the
    probability of a value that is not the field's most probable one) by ``method``. ``distribution``: the calibrator of the
    probabilities. ``rows``: how many texts were fitted on. ``held_out_rows``, ``ece``: on how many others the confidence has which
    expected calibration error, with its interval.
    """

    confidence: float
    signal: str
    method: str | None
    distribution: str
    rows: int
    held_out_rows: int
    ece: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        by = {"signal": self.signal, "method": self.method, "distribution": self.distribution, "rows": self.rows}
        held_out = {"rows": self.held_out_rows, "ece": dict(self.ece)}
        return {"confidence": self.confidence, "calibration": by | {"held_out": held_out}}


@dataclass(frozen=True)
class FieldDecision:
    """The answer to one field.

    ``probabilities``: one per option, in the schema's order, summing to 1. ``stated``: the confidence in (0, 1) that the model
    says it has (value of its most probable bucket); ``stated_mean``: the expectation over the buckets. ``coverage``: share in
    [0, 1] of the full vocabulary's probability that lies on tokens with which an answer can begin (its labels, if it has any), if
    asked for. ``orders``: where several orders of the options were joined. ``prior``: what was subtracted, in words. ``chosen``:
    index of the answer where it is not the most probable option, for instance because a rule forbids that. ``applied``: what a
    calibration says. ``action``, ``options``: what to do, and which options may be right (indices, the most probable first), where
    that was promised (`rlcd_lite.promises`).
    """

    field: Field
    probabilities: tuple[float, ...]
    stated: float
    stated_mean: float
    coverage: float | None = None
    orders: OrderEffect | None = None
    prior: str | None = None
    chosen: int | None = None
    applied: Applied | None = None
    action: Literal["automate", "review"] | None = None
    options: tuple[int, ...] | None = None

    @property
    def choice(self) -> int:
        """Index of the answer: ``chosen``, else the most probable option, the first of them on a tie."""
        return self.chosen if self.chosen is not None else self.probabilities.index(max(self.probabilities))

    @property
    def value(self) -> Value:
        return self.field.options[self.choice].value

    @property
    def probability(self) -> float:
        """Probability of ``value``."""
        return self.probabilities[self.choice]

    @property
    def expectation(self) -> float | None:
        """Mean of `Field.levels` under the probabilities, given that the answer is not null; None for a field without order."""
        levels = self.field.levels
        if levels is None:
            return None
        mean = sum(p * v for p, v in zip(self.probabilities, levels, strict=False))  # null, the last option, has no level
        said = sum(self.probabilities[: len(levels)]) if self.field.optional else 1.0
        return mean / said if said > 0 else None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "value": self.value,
            "probabilities": {o.text: p for o, p in zip(self.field.options, self.probabilities, strict=True)},
            "probability": self.probability,
            "stated": self.stated,
            "stated_mean": self.stated_mean,
        }
        if self.expectation is not None:
            out["expectation"] = self.expectation
        if self.coverage is not None:
            out["coverage"] = self.coverage
        if self.orders is not None:
            out["orders"] = asdict(self.orders)
        if self.prior is not None:
            out["prior"] = self.prior
        if self.applied is not None:
            out |= self.applied.to_dict()
        if self.action is not None:
            out["action"] = self.action
        if self.options is not None:
            out["set"] = [self.field.options[i].value for i in self.options]
        return out


@dataclass(frozen=True)
class Decision:
    """The answers to all fields of a schema over one text.

    ``joint``: probability in [0, 1] of all of them together, where fields depend on each other. ``broken``: the schema's rules that
    they do not keep, in words; None for a schema without rules.
    """

    schema: Schema
    fields: tuple[FieldDecision, ...]
    joint: float | None = None
    broken: tuple[str, ...] | None = None

    def __getitem__(self, name: str) -> FieldDecision:
        return self.fields[self.schema.fields.index(self.schema[name])]

    @property
    def values(self) -> dict[str, Any]:
        """The answers as the schema's object: a dict of values, in which objects and arrays may be nested."""
        return self._assemble({f.field.name: f.value for f in self.fields})

    @property
    def probability(self) -> float:
        """Probability in [0, 1] of ``values``: ``joint``, or the product over the fields."""
        return self.joint if self.joint is not None else math.prod(f.probability for f in self.fields)

    def to_dict(self) -> dict[str, Any]:
        """``{"decision": values, "probability": p, "fields": {name: {value, probabilities, …}}}``, ready for `json.dumps`; and
        ``broken_rules`` of a schema with rules."""
        fields = {f.field.name: f.to_dict() for f in self.fields}
        out = {"decision": self.values, "probability": self.probability, "fields": fields}
        return out if self.broken is None else out | {"broken_rules": list(self.broken)}

    def instance(self) -> BaseModel:
        """The decision as a validated instance of the Pydantic model the schema was read from.

        A ``float`` field of the model takes the probability of yes, given that it is not null. Raises `UserError` if the schema
        came from elsewhere, and Pydantic's ``ValidationError`` if a validator of the model's own refuses the values.
        """
        model = self.schema.model
        if model is None:
            raise UserError("the schema was not read from a Pydantic model: use Schema.of(YourModel), or read Decision.values.")
        answers: dict[str, Any] = {f.field.name: f.value for f in self.fields}
        for name in self.schema.numbers:
            yes, no = self[name].probabilities[:2]  # the options of a bool are (true, false), then null
            answers[name] = None if answers[name] is None else yes / ((yes + no) or 1.0)
        text = json.dumps(self._assemble(answers))
        return model.model_validate_json(text, by_alias=False, by_name=True)  # JSON mode: enums pass in strict models

    def _assemble(self, answers: dict[str, Any]) -> dict[str, Any]:
        shape = self.schema.shape
        return answers if shape is None else {name: assemble(node, answers) for name, node in shape.properties}
