"""JSON Schemas and Pydantic models lowered to fields, rules and a shape; answers that the same JSON Schema accepts."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic import Field as PydanticField

from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema
from rlcd_lite.shape import Array
from schemas import json_schemas, random_decision


def answered(schema: Schema, *choices: int) -> Decision:
    """A decision for the given option of every field."""
    fields = zip(schema.fields, choices, strict=True)
    return Decision(
        schema, tuple(FieldDecision(f, tuple(float(i == c) for i in range(len(f.options))), 0.5, 0.5) for f, c in fields)
    )


@settings(max_examples=500, deadline=None)
@given(json_schemas(), st.integers(0, 9))
def test_every_answer_to_a_json_schema_is_an_instance_of_it(source: dict[str, Any], seed: int) -> None:
    schema = Schema.of(source)
    assert Schema.of(schema.to_dict()) == schema
    decision = random_decision(schema, random.Random(seed))
    assert decision.probability == pytest.approx(decision.to_dict()["probability"])
    Draft202012Validator(source).validate(json.loads(json.dumps(decision.to_dict()))["decision"])


@settings(max_examples=50, deadline=None)
@given(json_schemas(bounds=True))
def test_bounds_of_arrays_are_kept_where_they_exclude_something(source: dict[str, Any]) -> None:
    schema = Schema.of(source)
    assert Schema.of(schema.to_dict()) == schema
    assert all(array.low > 0 or array.high < len(array.members) for array in schema.arrays)
    assert all(array.low <= array.high <= len(array.members) for array in schema.arrays)


TICKET = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "severity": {"enum": ["low", "critical", None], "description": "how bad"},
        "customer": {
            "type": "object",
            "properties": {
                "plan": {"$ref": "#/definitions/Plan", "description": "what they pay for"},
                "seats": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}, {"type": "null", "description": "unknown"}]},
            },
        },
        "tags": {
            "type": "array",
            "items": {"oneOf": [{"const": "billing", "description": "invoices"}, {"const": 2}]},
            "minItems": 1,
            "description": "topics",
        },
        "human": {"type": ["boolean", "null"]},
        "version": {"const": 2},
    },
    "if": {"properties": {"severity": {"const": "critical"}}, "required": ["severity"]},
    "then": {"properties": {"customer": {"properties": {"plan": {"enum": ["pro"]}}}}},
    "else": {"properties": {"human": {"const": False}}},
    "allOf": [{"not": {"properties": {"severity": {"not": {"enum": ["low", None]}}, "human": {"const": None}}}}],
    "rules": [{"if": {"tags includes billing": True}, "then": {"severity": ["critical", "low"]}}],
    "definitions": {"Plan": {"title": "Plan", "enum": ["free", "pro"]}},
}


def test_a_json_schema_is_lowered_to_fields_rules_and_an_object() -> None:
    schema = Schema.from_json(json.dumps(TICKET))
    assert schema.to_dict() == {
        "fields": [
            {"name": "severity", "type": "choice", "description": "how bad", "options": ["low", "critical"], "optional": True},
            {"name": "customer.plan", "type": "choice", "description": "Plan: what they pay for", "options": ["free", "pro"]},
            {"name": "customer.seats", "type": "int", "minimum": 1, "maximum": 3, "optional": "unknown"},
            {"name": "tags includes billing", "type": "bool", "description": "topics: invoices"},
            {"name": "tags includes 2", "type": "bool", "description": "topics"},
            {"name": "human", "type": "bool", "optional": True},
        ],
        "rules": [
            {"if": {"tags includes billing": True}, "then": {"severity": ["low", "critical"]}},
            {"if": {"severity": "critical"}, "then": {"customer.plan": "pro"}},
            {"if": {"severity": ["low", None]}, "then": {"human": False}},
            {"not": {"severity": "critical", "human": None}},
        ],
        "object": {
            "object": {
                "severity": {"field": "severity"},
                "customer": {"object": {"plan": {"field": "customer.plan"}, "seats": {"field": "customer.seats"}}},
                "tags": {"array": [["billing", "tags includes billing"], [2, "tags includes 2"]], "minItems": 1},
                "human": {"field": "human"},
                "version": {"const": 2},
            }
        },
    }
    assert schema.arrays == (Array((("billing", "tags includes billing"), (2, "tags includes 2")), 1, 2),)
    assert answered(schema, 2, 1, 3, 1, 0, 2).values == {
        "severity": None,
        "customer": {"plan": "pro", "seats": None},
        "tags": [2],
        "human": None,
        "version": 2,
    }


# ---- rules ----


def condition(draw: st.DrawFn, name: str, values: list[Any]) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(values), min_size=1, max_size=len(values) - 1, unique=True))
    part = {"const": chosen[0]} if len(chosen) == 1 else {"enum": chosen}
    part = {"not": part} if draw(st.booleans()) else part
    return {"a": {"properties": {"b": part}}} if name == "b" else {name: part}


@st.composite
def ruled(draw: st.DrawFn) -> dict[str, Any]:
    """A JSON Schema of three fields, one of them nested, and up to three rules."""
    known: dict[str, list[Any]] = {"b": ["x", "y", None], "n": [1, 2, 3], "yes": [True, False]}

    def conditions(most: int = 3) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=most, unique=True))
        return {"properties": {k: v for name in names for k, v in condition(draw, name, known[name]).items()}}

    rules: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from(["then", "else", "both", "not"]), max_size=3)):
        if kind == "not":
            rules.append({"not": conditions()})
        else:
            rule = {"if": conditions(3 if kind == "then" else 1)}
            rule |= {"then": conditions()} if kind != "else" else {}
            rules.append(rule | ({"else": conditions()} if kind != "then" else {}))
    properties = {
        "a": {"type": "object", "properties": {"b": {"enum": known["b"]}}},
        "n": {"type": "integer", "minimum": 1, "maximum": 3},
        "yes": {"type": "boolean"},
    }
    source = {"type": "object", "properties": properties} | (rules[0] if rules else {})
    return source | ({"allOf": rules[1:]} if rules[1:] else {})


@settings(max_examples=80, deadline=None)
@given(ruled())
def test_answers_keep_the_rules_where_the_json_schema_accepts_them(source: dict[str, Any]) -> None:
    schema = Schema.of(source)
    assert Schema.of(schema.to_dict()) == schema
    validator = Draft202012Validator(source)
    for choices in itertools.product(*(range(len(f.options)) for f in schema.fields)):
        chosen = dict(zip([f.name for f in schema.fields], choices, strict=True))

        def hold(conditions: Any, chosen: dict[str, int] = chosen) -> bool:
            return all(chosen[c.field] in c.options for c in conditions)

        kept = all(not hold(rule.when) or (bool(rule.then) and hold(rule.then)) for rule in schema.rules)
        assert kept == validator.is_valid(answered(schema, *choices).values)


def deep(levels: int) -> dict[str, Any]:
    source: dict[str, Any] = {"type": "boolean"}
    for _ in range(levels):
        source = {"type": "object", "properties": {"a": source}}
    return source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"properties": {"n": {"type": "integer", "exclusiveMinimum": True, "maximum": 3}}}, "exclusiveMinimum True"),
        ({"properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2.5}}}, "exclusiveMaximum 2.5"),
        (deep(40), "levels deep, and 32 are the most"),
        (deep(2000), "nested too deeply"),
        (
            {
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 3}, "yes": {"type": "boolean"}},
                "if": {"properties": {"yes": {"const": True}}, "required": ["nothing"]},
                "then": {"properties": {"n": {"const": 1}}},
            },
            "requires 'nothing', which is not among the properties",
        ),
    ],
)
def test_what_can_not_be_meant_is_refused(source: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Schema.of(source)


# ---- Pydantic ----


class Topic(Enum):
    """What it is about."""

    BILLING = "billing"
    LOGIN = "login"


class Plan(RootModel[Literal["free", "pro"]]):
    model_config = ConfigDict(title="the plan")


@dataclass
class Seats:
    count: Annotated[int, PydanticField(ge=1, lt=4)]
    full: Annotated[float, PydanticField(ge=0, le=1)]


class Customer(BaseModel):
    """Who writes."""

    model_config = ConfigDict(strict=True)
    plan: Plan = PydanticField(description="what they pay for", alias="thePlan")
    leaves: float | None = PydanticField(ge=0, le=1, default=None)
    seats: Seats


class Ticket(BaseModel):
    model_config = ConfigDict(json_schema_extra={"rules": [{"not": {"topic": None, "customer.plan": "pro"}}]})
    kind: Literal["ticket"]
    customer: Customer
    topic: Topic | None = PydanticField(default=None, title="Topic")
    others: set[Topic] = PydanticField(min_length=1, description="what else")
    words: list[Literal["please", "now"]] = PydanticField(max_length=1, default_factory=list)


def test_a_nested_model_comes_back_as_an_instance() -> None:
    schema = Schema.of(Ticket)
    assert [(f.name, f.type, f.optional, f.description) for f in schema.fields] == [
        ("customer.plan", "choice", False, "the plan: what they pay for"),
        ("customer.leaves", "bool", True, None),
        ("customer.seats.count", "int", False, None),
        ("customer.seats.full", "bool", False, None),
        ("topic", "choice", True, "Topic: What it is about."),
        ("others includes billing", "bool", False, "what else"),
        ("others includes login", "bool", False, "what else"),
        ("words includes please", "bool", False, None),
        ("words includes now", "bool", False, None),
    ]
    assert [(a.low, a.high) for a in schema.arrays] == [(1, 2), (0, 1)]
    assert len(schema.rules) == 1
    shares = {"customer.leaves": (0.3, 0.1, 0.6), "customer.seats.full": (0.25, 0.75)}
    answers = answered(schema, 1, 0, 1, 0, 1, 0, 0, 1, 0)
    fields = tuple(
        FieldDecision(f.field, shares.get(f.field.name, f.probabilities), 0.5, 0.5, chosen=f.choice) for f in answers.fields
    )
    ticket = Decision(schema, fields).instance()
    assert ticket == Ticket.model_construct(
        kind="ticket",
        customer=Customer.model_construct(plan=Plan("pro"), leaves=pytest.approx(0.75), seats=Seats(2, 0.25)),
        topic=Topic.LOGIN,
        others={Topic.BILLING, Topic.LOGIN},
        words=["now"],
    )
    nobody = answered(schema, 1, 2, 1, 0, 2, 0, 0, 1, 0).instance()
    assert (nobody.customer.leaves, nobody.topic) == (None, None)  # type: ignore[attr-defined]


class Comment(BaseModel):
    reply: Comment | None = None


class Unfinished(BaseModel):
    a: Missing  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Comment, "property 'reply' refers to '#/$defs/Comment' within itself"),
        (Unfinished, "the model Unfinished has no JSON Schema"),
        (RootModel[bool], "the JSON Schema has the type 'boolean'"),
    ],
)
def test_a_model_that_can_not_be_decided_is_named(model: type[BaseModel], words: str) -> None:
    with pytest.raises(UserError) as error:
        Schema.of(model)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


# ---- mistakes ----

FREE = {"type": "boolean"}
AB = {"enum": ["a", "b"]}


@pytest.mark.parametrize(
    "keyword",
    [
        "patternProperties",
        "dependentSchemas",
        "prefixItems",
        "contains",
        "format",
        "minLength",
        "multipleOf",
        "nullable",
        "$anchor",
    ],
)
def test_a_keyword_that_is_not_supported_is_named_with_its_place(keyword: str) -> None:
    for source, place in (
        ({"properties": {"p": FREE}, keyword: 1}, "the JSON Schema"),
        ({"properties": {"o": {"type": "object", "properties": {"p": FREE}, keyword: 1}}}, "property 'o'"),
        ({"properties": {"o": {"properties": {"p": FREE | {keyword: 1}}}}}, "property 'o.p'"),
        ({"properties": {"p": {"type": "integer", "minimum": 0, "maximum": 1, keyword: 1}}}, "property 'p'"),
        ({"properties": {"p": AB | {keyword: 1}}}, "property 'p'"),
        ({"properties": {"p": {"oneOf": [{"const": 1}, {"const": 2}], keyword: 1}}}, "property 'p'"),
        ({"properties": {"p": {"anyOf": [FREE, {"type": "null", keyword: 1}]}}}, "property 'p'"),
        ({"properties": {"p": {"type": "array", "items": AB, keyword: 1}}}, "property 'p'"),
        ({"properties": {"p": {"type": "array", "items": AB | {keyword: 1}}}}, "an item of property 'p'"),
        ({"properties": {"p": {"$ref": "#/$defs/A", keyword: 1}}, "$defs": {"A": AB}}, "property 'p'"),
        ({"properties": {"p": FREE}, "not": {"properties": {"p": {"const": True}}, keyword: 1}}, 'the "not" of the JSON Schema'),
        ({"properties": {"p": FREE}, "allOf": [{keyword: 1}]}, 'part 1 of the "allOf" of the JSON Schema'),
    ):
        with pytest.raises(UserError) as error:
            Schema.of(source)
        assert str(error.value).startswith(f"{place} has {keyword!r}, which is not supported here")


def rule(key: str, conditions: Any, **more: Any) -> dict[str, Any]:
    """A schema with a field p, an array t and a constant c, and a rule about them."""
    properties = {"p": AB, "q": AB, "t": {"type": "array", "items": AB}, "c": {"const": 1}}
    return {"properties": properties, key: conditions, **more}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": ["array", "null"]}, "is an array that may be null: require it, and let it be empty"),
        ({"anyOf": [{"properties": {"x": FREE}}, {"type": "null"}]}, "is an object that may be null"),
        ({"type": ["object", "null"], "properties": {"x": FREE}}, "let its properties be null instead"),
        ({"type": "object"}, "names each property"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "\"properties\" of property 'p'"),
        ({"type": "object", "properties": {" ": FREE}}, "has the property name ' '"),
        ({"type": "object", "properties": {"x": FREE}, "rules": []}, "'rules'"),
        ({"type": ["string", "integer"]}, "give it one type"),
        ({"type": ["string", "null"], "enum": ["a", "b"]}, "add null to the enum"),
        ({"type": "string", "enum": ["a", None]}, "has the enum value None: use string values"),
        ({"type": "string", "const": 1}, "has the constant 1: use string values"),
        ({"type": "object", "enum": ["a"]}, "has constants of the type 'object'"),
        ({"enum": ["a", True]}, "has the enum value True: use string or integer values"),
        ({"enum": ["a", 1.5]}, "has the enum value 1.5"),
        ({"enum": [True, None]}, "has the enum value True"),
        ({"enum": ["a", None, None]}, "has null twice"),
        ({"enum": ["null", None]}, "has the option 'null' twice"),
        ({"const": {"x": 1}}, "has the constant {'x': 1}"),
        ({"const": float("nan")}, "has the const nan: a constant is a string"),
        ({"oneOf": [{"const": True, "title": "T"}, {"const": False}]}, "describes true and false"),
        ({"oneOf": []}, "has oneOf []: it must be a list of schemas"),
        ({"anyOf": [AB, FREE]}, "has anyOf of other things than constants"),
        ({"anyOf": [3]}, "property 'p' is 3"),
        ({"oneOf": [{"const": "a"}, {"const": "a"}]}, "has the option 'a' twice"),
        ({"type": "array", "items": AB, "uniqueItems": 1}, '"uniqueItems" 1'),
        ({"type": "array", "items": FREE}, "has the items {'type': 'boolean'}: give them an enum"),
        ({"type": "array"}, "an item of property 'p' is None"),
        ({"type": "array", "items": {"enum": ["a", None]}}, "give them an enum"),
        ({"type": "array", "items": AB, "minItems": 3}, "has minItems 3: at most 2 of its items"),
        ({"type": "array", "items": AB, "minItems": 2, "maxItems": 1}, "has minItems 2: at most 1 of its items"),
        ({"type": "array", "items": AB, "maxItems": 0}, "has maxItems 0: leave out"),
        ({"type": "array", "items": AB, "maxItems": "2"}, "has maxItems '2'"),
        ({"$ref": "https://example.org/a.json"}, "refers to 'https://example.org/a.json': use \"#/$defs/NAME\""),
        ({"$ref": 3}, "refers to 3"),
        ({"$ref": "#/$defs/A"}, "refers to '#/$defs/A', which is not among the \"$defs\""),
        (AB | {"title": "t", "description": 3}, "a title or description of property 'p' is 3"),
    ],
)
def test_a_mistake_in_a_property_is_one_sentence(source: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        Schema.of({"properties": {"p": source, "q": FREE}})
    message = str(error.value)
    assert words in message
    assert "'p'" in message
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}}, "'#/$defs/A' within itself"),
        ({"$ref": "#/$defs/A", "$defs": {"A": AB}}, "'enum'"),
        ({"properties": {"c": {"const": 1}}}, "no fields"),
        ({"properties": {"a.b": FREE, "a": {"properties": {"b": FREE}}}}, "field 'a.b' stands twice"),
        ({"properties": {"t includes a": FREE, "t": {"type": "array", "items": AB}}}, "field 't includes a' stands twice"),
        ({"properties": {"t": FREE}, "rules": {}}, '"rules" of the JSON Schema is {}'),
        (rule("then", {}), 'has "then" alone'),
        (rule("if", {"properties": {"p": {"const": "a"}}}), 'has "if" alone'),
        (rule("not", True), 'the "not" of the JSON Schema is True'),
        (rule("not", {"required": ["p"]}), 'the "not" of the JSON Schema names no property'),
        (rule("not", {"properties": {"x": {"const": 1}}}), "property 'x' in the \"not\" of the JSON Schema is not among"),
        (rule("not", {"properties": {"c": {"const": 1}}}), "property 'c' in the \"not\" of the JSON Schema is not among"),
        (rule("not", {"properties": {"t": {"const": []}}}), 'as {"t includes a": true}'),
        (rule("not", {"properties": {"p": {"type": "string"}}}), "give it a const or an enum"),
        (rule("not", {"properties": {"p": {"const": "z"}}}), "the \"not\" of rule 1: field 'p' has no option 'z'"),
        (rule("not", {"properties": {"p": {"not": {"enum": ["a", "b"]}}}}), "leaves field 'p' no option"),
        (rule("not", {"properties": {"p": AB}}), "rule 1 allows all options of field 'p'"),
        (rule("allOf", {}), 'has "allOf" {}'),
        (rule("allOf", [3]), 'part 1 of the "allOf" of the JSON Schema is 3'),
        (rule("if", {"properties": {"p": {"const": "a"}, "q": {"const": "a"}}}, **{"else": {}}), 'to an "if" of 2 conditions'),
    ],
)
def test_a_mistake_in_a_json_schema_is_one_sentence(source: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        Schema.of(source)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_nested_too_deeply_is_refused() -> None:
    source: dict[str, Any] = {"properties": {"p": FREE}}
    for _ in range(2000):
        source = {"properties": {"o": source}}
    with pytest.raises(UserError, match="nested too deeply"):
        Schema.of(source)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (lambda i: {"properties": {key: {"$ref": f"#/$defs/d{i + 1}"} for key in "ab"}}, "too large"),
        (lambda i: {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}, "too large"),
    ],
)
def test_references_that_double_at_every_level_have_a_bound(definition, words):
    levels = {f"d{i}": definition(i) for i in range(60)} | {"d60": {"const": 1}}
    with pytest.raises(UserError, match=words):
        Schema.of({"properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": levels})


def test_a_long_description_that_is_referred_to_often_has_a_bound():
    schema = {"$defs": {"x": {"type": "boolean", "description": "a" * 100_000}}}
    many = {f"p{i}": {"$ref": "#/$defs/x"} for i in range(50)}
    assert len(Schema.of(schema | {"properties": dict(list(many.items())[:5])}).fields) == 5
    with pytest.raises(UserError, match="too large"):
        Schema.of(schema | {"properties": many})
