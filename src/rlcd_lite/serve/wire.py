"""What the wires of hosted models have in common: a question is a schema of its own, `confidence` is a published formula, and what
we know beyond the wire stands in fields that begin with ``x_``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema

from rlcd_lite.calibration_file import Calibration
from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.schema import Field as SchemaField
from rlcd_lite.schema import FieldType, Option, Schema
from rlcd_lite.serve.acting import Wanted, kept
from rlcd_lite.settings import SetMethod

ANSWER = "answer"  # the name of every question's field: what a client calls its questions never reaches the model

MOST = 1000  # questions, fields or rules in one request

Share = Annotated[float, Field(ge=1e-6, le=1 - 1e-6)]


def _text(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        raise ValueError("this must be a string, an object or an array")  # noqa: TRY004  # Pydantic reads this kind
    return value


def _one_of_a_few(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MOST:  # before each of them is looked at
        raise ValueError(f"these are {len(value)}: give at most {MOST}")
    return value


Text = Annotated[Any, AfterValidator(_text), WithJsonSchema({"anyOf": [{"type": t} for t in ("string", "object", "array")]})]
Few = BeforeValidator(_one_of_a_few)


class Wants(BaseModel):
    """Extensions of a request: what it wants to be told about acting on its answers."""

    x_max_risk: Share | None = Field(None, description="Automate at this risk: a question that can't keep it is for review.")
    x_delta: Share | None = Field(None, description="Probability that the held-out rows mislead about the risk (0.1).")
    x_sets: Share | None = Field(None, description="Give sets that miss the right option for at most this share of texts.")
    x_set_method: SetMethod | None = None
    x_sets_per_option: bool = False

    def wanted(self) -> Wanted:
        return Wanted(self.x_max_risk, self.x_delta, self.x_sets, self.x_set_method, self.x_sets_per_option, "x_")


class Extended(BaseModel):
    """Extensions of an answer: what the model states, what a calibration makes of it, and what to do about it."""

    x_stated: float = Field(description="The confidence that the model says it has.")
    x_stated_mean: float = Field(description="Its mean over the levels that it could state.")
    x_calibration: dict[str, Any] = Field(description="Whether a calibration was applied; its method, rows and held-out ECE.")
    x_confidence: float = Field(default=0.0, description="Calibrated probability that the answer is right.")
    x_order_tv: float = Field(default=0.0, description="Total variation between orders of the options and their joint answer.")
    x_set: list[str | int | bool] = Field(default=[], description="The options that may be right, the most probable first.")
    x_action: Literal["automate", "review"] = "review"
    x_reason: str = Field(default="", description="Why the question is for review, or has no set.")


def compact(text: Any) -> str:
    """A structured text as the model reads it: a string as it is, anything else as JSON without spaces."""
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def described(text: Any) -> str | None:
    return None if text is None else compact(text)


def asked(kind: FieldType, instructions: Any, options: Sequence[Option], where: str) -> Schema:
    """A question as a schema with one field; `UserError`, which says ``where``, if it can't be decided."""
    try:
        return Schema((SchemaField(ANSWER, kind, tuple(options), described(instructions)),))
    except UserError as error:
        raise UserError(f"{where}: {str(error).replace(f'field {ANSWER!r}', 'it')}") from None


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the most probable of n options is from chance: (m - 1/n) / (1 - 1/n); 1 for a single one (TypeSafe)."""
    n = len(probabilities)
    return 1.0 if n == 1 else max(0.0, (max(probabilities) - 1 / n) / (1 - 1 / n))


def score_confidence(probabilities: Sequence[float]) -> float:
    """How close n levels lie to their mode k, where 0 is the spread of uniform ones about the middle: max(0, 1 - Σ p |i - k| / D)
    with D = Σ |i - (n - 1)/2| / n; 1 for a single one (TypeSafe)."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = max(range(n), key=probabilities.__getitem__)
    spread = sum(p * abs(i - mode) for i, p in enumerate(probabilities))
    return max(0.0, 1 - spread / (sum(abs(i - (n - 1) / 2) for i in range(n)) / n))


def score(probabilities: Sequence[float]) -> float:
    """The mean level."""
    return sum(i * p for i, p in enumerate(probabilities))


def acted_on(decision: Decision, calibration: Calibration | None, wanted: Wanted) -> tuple[FieldDecision, str | None]:
    """The answer to a question with what to do about it, and why it can't be automated or has no set, if so."""
    try:
        found, reasons = kept(decision, calibration, wanted)
        return found[ANSWER], reasons.get(ANSWER)
    except UserError as error:
        return decision[ANSWER], str(error)


def extensions(answer: FieldDecision, wanted: Wanted, reason: str | None) -> dict[str, Any]:
    """The fields of `Extended` that there is something to say in."""
    out: dict[str, Any] = {"x_stated": answer.stated, "x_stated_mean": answer.stated_mean, "x_calibration": {"applied": False}}
    if answer.applied is not None:
        said: Mapping[str, Any] = answer.applied.to_dict()
        out |= {"x_confidence": said["confidence"], "x_calibration": {"applied": True} | said["calibration"]}
    if answer.orders is not None:
        out["x_order_tv"] = answer.orders.total_variation
    if answer.options is not None:
        out["x_set"] = [answer.field.options[i].value for i in answer.options]
    if wanted.max_risk is not None:
        out["x_action"] = answer.action or "review"
    if reason is not None:
        out["x_reason"] = reason
    return out


def named(name: str) -> str:
    """How errors call a question."""
    return f"question {shorten(name)}"
