"""A model's answers to drawn JSON Schemas are instances of them, bounds and rules included; a Pydantic model comes back as one."""

from __future__ import annotations

import math
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import assume, given, settings
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedTokenizerFast

from conftest import tiny_engine
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.rules import system
from rlcd_lite.schema import Schema
from schemas import json_schemas
from test_json_schema import ruled


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> DecisionEngine:
    return tiny_engine(tokenizer)


def test_answers_to_500_json_schemas_are_instances(engine: DecisionEngine) -> None:
    @settings(max_examples=500, deadline=None)
    @given(json_schemas(bounds=True))
    def decide(source: dict[str, Any]) -> None:
        decision = engine.decide(source, "x")
        jsonschema.validate(decision.values, source)
        assert 0 < decision.probability <= 1
        for answer in decision.fields:
            assert math.isclose(sum(answer.probabilities), 1)

    decide()


def test_answers_keep_the_rules_of_json_schemas(engine: DecisionEngine) -> None:
    @settings(max_examples=60, deadline=None)
    @given(ruled())
    def decide(source: dict[str, Any]) -> None:
        schema = Schema.of(source)
        try:
            system(schema)
        except UserError as error:
            assume("contradict" not in str(error))
            raise
        decision = engine.decide(schema, "x")
        jsonschema.validate(decision.values, source)
        assert decision.broken in ((), None)

    decide()


class Customer(BaseModel):
    plan: Literal["free", "pro"]
    seats: int | None = Field(ge=1, le=4, description="how many")


class Ticket(BaseModel):
    model_config = ConfigDict(json_schema_extra={"rules": [{"if": {"severity": "high"}, "then": {"customer.plan": "pro"}}]})
    severity: Literal["low", "high"]
    customer: Customer
    tags: list[Literal["billing", "login", "export"]] = Field(min_length=1, max_length=2)


@pytest.mark.parametrize("text", ["a", "b", "All is down."])
def test_a_pydantic_model_comes_back_as_an_instance_that_keeps_its_rules(engine: DecisionEngine, text: str) -> None:
    decision = engine.decide(Ticket, text)
    ticket = decision.instance()
    assert isinstance(ticket, Ticket)
    assert 1 <= len(ticket.tags) <= 2
    assert ticket.severity == "low" or ticket.customer.plan == "pro"
    marginals = [decision[f"tags includes {tag}"].probabilities[0] for tag in ("billing", "login", "export")]
    assert 1 <= sum(marginals) <= 2  # the mean number of tags given the bounds


def test_measured_rules_are_said_and_bounds_are_kept_all_the_same(tokenizer: PreTrainedTokenizerFast) -> None:
    engine = tiny_engine(tokenizer)
    engine.consistency = "measure"
    schema = Schema.of(Ticket)
    for i in range(12):
        decision = engine.decide(schema, f"text {i}")
        values = decision.values
        assert 1 <= len(values["tags"]) <= 2
        broken = values["severity"] == "high" and values["customer"]["plan"] != "pro"
        assert decision.broken == (('severity = "high" ⇒ customer.plan = "pro"',) if broken else ())
