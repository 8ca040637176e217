"""Our own wire: a text and a schema in any of the forms that `Schema.of` reads, answered as ``infer --json`` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rlcd_lite.decisions import Decision
from rlcd_lite.serve.acting import Wanted
from rlcd_lite.serve.wire import MOST, Share
from rlcd_lite.settings import SetMethod


class DecideRequest(BaseModel):
    """A text and a schema, and what to promise about acting on the answers."""

    model_config = ConfigDict(extra="forbid")

    context: str = Field(description="The text to decide about.")
    asked: dict[str, Any] = Field(alias="schema", description='{"fields": [...]}, or a JSON Schema object.')
    max_risk: Share | None = Field(None, description="Mark each field automate or review: at most this share of those is wrong.")
    delta: Share | None = Field(None, description="Probability that the held-out rows mislead about the risk (0.1).")
    sets: Share | None = Field(None, description="Also give sets that miss the right option for at most this share of texts.")
    set_method: SetMethod | None = None
    sets_per_option: bool = False

    @field_validator("asked", mode="before")
    @classmethod
    def _one_of_a_few(cls, asked: Any) -> Any:
        for key in ("fields", "rules"):
            if isinstance(asked, dict) and isinstance(asked.get(key), list) and len(asked[key]) > MOST:
                raise ValueError(f"the schema has {len(asked[key])} {key}: give at most {MOST}")
        return asked

    def wanted(self) -> Wanted:
        return Wanted(self.max_risk, self.delta, self.sets, self.set_method, self.sets_per_option)


class DecideUsage(BaseModel):
    input_tokens: int = Field(ge=0)
    cached_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)


class DecideResponse(BaseModel):
    """``decision``: the values; ``fields``: per field value, probabilities, probability, stated, stated_mean, what was applied."""

    decision: dict[str, Any]
    probability: float
    fields: dict[str, dict[str, Any]]
    broken_rules: list[str] = []
    model: str
    usage: DecideUsage
    notes: list[str] = Field(description="What to know about the answer, in sentences.")


def respond(decision: Decision, model: str, tokens: int, cached: int, reasons: Mapping[str, str]) -> dict[str, Any]:
    """The response. ``tokens``: that were asked, ``cached`` of them not run; ``reasons``: why fields are for review."""
    usage = {"input_tokens": tokens, "cached_tokens": cached, "output_tokens": 0}
    notes = [f"for review: {reason}" for reason in reasons.values()]
    return decision.to_dict() | {"model": model, "usage": usage, "notes": notes}
