"""Schemas from their three sources, decisions as JSON and as instances, and a sentence for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic import Field as PydanticField

from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.errors import UserError
from rlcd_lite.schema import NOT_SAID, Condition, Field, Option, Rule, Schema

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda s: s.strip() != "")
names = st.lists(text, min_size=1, max_size=4, unique=True).filter(lambda n: not any(x + "_confidence" in n for x in n))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    fields: list[dict[str, Any]] = []
    for name in draw(names):
        kind = draw(st.sampled_from(["choice", "score", "bool", "int"]))
        source: dict[str, Any] = {"name": name, "type": kind}
        if draw(st.booleans()):
            source["description"] = draw(text)
        if kind in ("choice", "score"):
            options = draw(st.lists(text, min_size=2, max_size=6, unique=True))
            source["options"] = [{"value": o, "description": draw(text)} if draw(st.booleans()) else o for o in options]
        elif kind == "int":
            low = draw(st.integers(-1000, 1000))
            source |= {"minimum": low, "maximum": low + draw(st.integers(1, 253))}
        if "null" not in source.get("options", []):
            source |= draw(st.sampled_from([{}, {"optional": True}, {"optional": "nobody knows"}]))
        fields.append(source)
    schema = Schema.of({"fields": fields})
    sides = [draw(conditions(schema)) for _ in range(draw(st.sampled_from([0, 0, 2])))]
    return replace(schema, rules=(Rule(*sides), Rule(sides[0])) if sides else ())


@st.composite
def conditions(draw: st.DrawFn, schema: Schema) -> tuple[Condition, ...]:
    fields = draw(st.lists(st.sampled_from(schema.fields), min_size=1, unique_by=lambda field: field.name))
    some = [draw(st.sets(st.integers(0, len(f.options) - 1), min_size=1, max_size=len(f.options) - 1)) for f in fields]
    return tuple(Condition(field.name, tuple(sorted(chosen))) for field, chosen in zip(fields, some, strict=True))


def decide(schema: Schema, choice: int = 0) -> Decision:
    """A decision with most of the probability on option ``choice`` (or the last one)."""
    answers = []
    for field in schema.fields:
        k = len(field.options)
        at = min(choice, k - 1)
        answers.append(FieldDecision(field, tuple(0.9 if i == at else 0.1 / (k - 1) for i in range(k)), 0.7, 0.66))
    return Decision(schema, tuple(answers))


# ---- round trips ----


@given(schemas())
def test_a_schema_round_trips_through_json(schema: Schema) -> None:
    for ensure_ascii in (True, False):
        assert Schema.from_json(json.dumps(schema.to_dict(), ensure_ascii=ensure_ascii)) == schema


@given(schemas(), st.integers(0, 5))
def test_a_decision_is_valid_json_that_gives_the_values_back(schema: Schema, choice: int) -> None:
    decision = decide(schema, choice)
    for ensure_ascii in (True, False):
        back = json.loads(json.dumps(decision.to_dict(), ensure_ascii=ensure_ascii))
        assert back["decision"] == decision.values
        for field in schema.fields:
            answer = back["fields"][field.name]
            value = answer["value"]
            assert any(value == o.value and type(value) is type(o.value) for o in field.options)
            assert list(answer["probabilities"]) == [o.text for o in field.options]
            assert sum(answer["probabilities"].values()) == pytest.approx(1)
            assert field.index(value) == decision[field.name].choice


def test_awkward_text_survives_byte_for_byte() -> None:
    awkward = ['say "hi"', "two\nlines", "back\\slash", "tab\t", "日本語 🎉", "a\u2028b", "\x00\x1f", " outer space ", "</s>", "{}"]
    schema = Schema.of({"fields": [{"name": 'a "name"\n', "type": "choice", "options": awkward}]})
    for i, option in enumerate(awkward):
        assert json.loads(json.dumps(decide(schema, i).to_dict()))["decision"] == {'a "name"\n': option}


def test_ties_go_to_the_first_option() -> None:
    field = Field("f", "choice", (Option("a"), Option("b")))
    assert FieldDecision(field, (0.5, 0.5), 0.5, 0.5).value == "a"


def test_expectations_are_taken_over_levels() -> None:
    def expectation(source: dict[str, Any]) -> float | None:
        field = Schema.of({"fields": [{"name": "f", **source}]}).fields[0]
        return FieldDecision(field, (0.2, 0.3, 0.5)[: len(field.options)], 0.5, 0.5).expectation

    assert expectation({"type": "score", "options": ["bad", "fair", "good"]}) == pytest.approx(0.3 + 2 * 0.5)
    assert expectation({"type": "score", "options": [10, 20, 30]}) == pytest.approx(2 + 6 + 15)
    assert expectation({"type": "int", "minimum": -1, "maximum": 1}) == pytest.approx(-0.2 + 0.5)
    assert expectation({"type": "choice", "options": ["a", "b", "c"]}) is None


def test_an_expectation_leaves_null_out() -> None:
    for kind in ({"type": "int", "minimum": 2, "maximum": 3}, {"type": "score", "options": [2, 3]}):
        (field,) = Schema.of({"fields": [{"name": "f", "optional": True, **kind}]}).fields
        assert field.options[-1] == Option(None, NOT_SAID)
        assert (field.options[-1].text, field.levels) == ("null", (2.0, 3.0))
        assert FieldDecision(field, (0.1, 0.3, 0.6), 0.5, 0.5).expectation == pytest.approx(2.75)
        nothing = FieldDecision(field, (0.0, 0.0, 1.0), 0.5, 0.5)
        assert (nothing.value, nothing.expectation) == (None, None)
        assert "expectation" not in nothing.to_dict()


def test_an_answer_may_be_another_than_the_most_probable_option() -> None:
    field = Field("f", "bool", (Option(True), Option(False)))
    answer = FieldDecision(field, (0.8, 0.2), 0.5, 0.5, chosen=1)
    assert (answer.choice, answer.value, answer.probability) == (1, False, 0.2)
    free = Decision(Schema((field,)), (answer,))
    assert free.probability == free.to_dict()["probability"] == 0.2
    assert replace(free, joint=0.05).to_dict()["probability"] == 0.05


# ---- JSON Schema ----


def test_json_schema() -> None:
    schema = Schema.from_json(
        json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "Ticket",
                "type": "object",
                "properties": {
                    "severity": {"enum": ["low", "high"], "description": "how bad"},
                    "priority": {"type": "integer", "enum": [1, 2]},
                    "open": {"type": "boolean", "title": "Open?"},
                    "stars": {"type": "integer", "minimum": 1, "exclusiveMaximum": 6},
                },
                "required": ["severity"],
                "additionalProperties": False,
            }
        )
    )
    assert [(f.name, f.type, [o.value for o in f.options], f.description) for f in schema.fields] == [
        ("severity", "choice", ["low", "high"], "how bad"),
        ("priority", "choice", [1, 2], None),
        ("open", "bool", [True, False], "Open?"),
        ("stars", "int", [1, 2, 3, 4, 5], None),
    ]


# ---- Pydantic ----


class Team(Enum):
    BILLING = "billing"
    AUTH = "auth"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Ticket(BaseModel):
    model_config = ConfigDict(strict=True)
    severity: Literal["low", "high"] = PydanticField(description="how bad")
    team: Team
    level: Level
    urgent: bool
    stars: Annotated[int, PydanticField(ge=1, lt=6)]
    angry: float = PydanticField(ge=0, le=1, alias="isAngry")


def test_a_pydantic_model_comes_back_as_an_instance() -> None:
    schema = Schema.of(Ticket)
    assert [(f.name, f.type, len(f.options)) for f in schema.fields] == [
        ("severity", "choice", 2),
        ("team", "choice", 2),
        ("level", "choice", 2),
        ("urgent", "bool", 2),
        ("stars", "int", 5),
        ("angry", "bool", 2),
    ]
    assert schema["severity"].description == "how bad"
    ticket = decide(schema, 1).instance()
    assert isinstance(ticket, Ticket)
    assert ticket == Ticket.model_construct(
        severity="high", team=Team.AUTH, level=Level.HIGH, urgent=False, stars=2, angry=pytest.approx(0.1)
    )


def test_a_validator_of_the_model_may_refuse() -> None:
    class Fussy(BaseModel):
        a: bool

        def model_post_init(self, context: Any) -> None:
            raise ValueError("never")

    with pytest.raises((ValidationError, ValueError), match="never"):
        decide(Schema.of(Fussy)).instance()


def test_only_a_schema_from_a_model_makes_instances() -> None:
    with pytest.raises(UserError, match="Pydantic"):
        decide(Schema.of({"fields": [{"name": "a", "type": "bool"}]})).instance()


def test_the_tightest_bound_counts() -> None:
    field = Schema.of(bad_model(int, ge=0, gt=3, le=9, lt=7)).fields[0]
    assert [o.value for o in field.options] == [4, 5, 6]


def bad_model(annotation: Any, **constraints: Any) -> type[BaseModel]:
    from pydantic import create_model

    return create_model("Bad", answer=(annotation, PydanticField(**constraints)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (bad_model(str), "str"),
        (bad_model(list[str]), "an enum of strings or integers"),
        (bad_model(int | None), "minimum"),
        (bad_model(int), "minimum"),
        (bad_model(int, ge=0, multiple_of=2), "multipleOf"),
        (bad_model(int, ge=0, le=1000), "1001 integers"),
        (bad_model(float), "probability of yes"),
        (bad_model(float, ge=0, le=2), "probability of yes"),
        (bad_model(Callable[[], int]), "CallableSchema"),
        (bad_model(Literal[True, "a"]), "True"),
    ],
)
def test_model_fields_that_can_not_be_decided_are_named(model: type[BaseModel], words: str) -> None:
    with pytest.raises(UserError) as error:
        Schema.of(model)
    assert words in str(error.value)
    assert "answer" in str(error.value)


# ---- mistakes ----

CHOICE = {"name": "team", "type": "choice"}


def ruled(rule: Any) -> dict[str, Any]:
    return {"fields": [CHOICE | {"options": ["a", "b"]}, {"name": "ok", "type": "bool"}], "rules": [rule]}


def shaped(node: Any) -> dict[str, Any]:
    return {"fields": [CHOICE | {"options": ["a", "b"], "optional": True}, {"name": "ok", "type": "bool"}], "object": node}


TEAM, OK = {"field": "team"}, {"field": "ok"}
MISTAKES: list[tuple[Any, str]] = [
    ("{", "valid JSON"),
    ("[" * 100_000, "nested"),
    ("[]", "[]"),
    ("3", "3"),
    ("{}", "fields"),
    ('{"fields": []}', "no fields"),
    ('{"fields": {}}', "list"),
    ('{"fields": [3]}', "field 1"),
    ('{"a": 1, "a": 2}', "twice"),
    ('{"properties": {"x": {"type": "boolean"}, "x": {"type": "boolean"}}}', "'x'"),
    ({"fields": [{"type": "bool"}]}, '"name"'),
    ({"fields": [{"name": "a"}]}, '"type"'),
    ({"fields": [{"name": " ", "type": "bool"}]}, "name"),
    ({"fields": [{"name": 3, "type": "bool"}]}, "3"),
    ({"fields": [{"name": "a", "type": "date"}]}, "'date'"),
    ({"fields": [{"name": "a", "type": ["bool"]}]}, "['bool']"),
    ({"fields": [{"name": "a", "type": "bool"}] * 2}, "'a'"),
    ({"fields": [{"name": "a", "type": "bool"}, {"name": "a_confidence", "type": "bool"}]}, "rename"),
    ({"fields": [{"name": "a", "type": "bool", "options": ["x", "y"]}]}, "'options'"),
    ({"fields": [{"name": "a", "type": "bool"}], "extra": 1}, "'extra'"),
    ({"fields": [{"name": "a", "type": "bool", "description": 3}]}, "description"),
    ({"fields": [{"name": "\ud800", "type": "bool"}]}, "surrogate"),
    ({"fields": [{**CHOICE}]}, "list of options"),
    ({"fields": [{**CHOICE, "options": "ab"}]}, "list of options"),
    ({"fields": [{**CHOICE, "options": ["only"]}]}, "1 option"),
    ({"fields": [{**CHOICE, "options": []}]}, "0 options"),
    ({"fields": [{**CHOICE, "options": [f"o{i}" for i in range(256)]}]}, "256 options"),
    ({"fields": [{**CHOICE, "options": ["x", "y", "x"]}]}, "'x'"),
    ({"fields": [{**CHOICE, "options": ["1", 1]}]}, "'1'"),
    ({"fields": [{**CHOICE, "options": ["x", " "]}]}, "blank"),
    ({"fields": [{**CHOICE, "options": ["x", 1.5]}]}, "1.5"),
    ({"fields": [{**CHOICE, "options": ["x", None]}]}, "None"),
    ({"fields": [{**CHOICE, "options": ["x", None, "y"], "optional": True}]}, 'write "optional": true'),
    ({"fields": [{**CHOICE, "options": ["x", "null"], "optional": True}]}, "'null' twice"),
    ({"fields": [{**CHOICE, "options": ["x"], "optional": 1}]}, "what null means"),
    ({"fields": [{**CHOICE, "options": ["x"], "optional": " "}]}, "what null means"),
    ({"fields": [{**CHOICE, "options": ["x", "y"], "optional": True, "none_of_the_above": True}]}, "leave one of them out"),
    ({"fields": [{"name": "n", "type": "int", "minimum": 1, "maximum": 255, "optional": True}]}, "256 options"),
    ({"fields": [{**CHOICE, "options": ["x", True]}]}, "True"),
    ({"fields": [{**CHOICE, "options": ["x", {"description": "d"}]}]}, "value"),
    ({"fields": [{**CHOICE, "options": ["x", {"value": "y", "colour": "red"}]}]}, "'colour'"),
    ({"fields": [{**CHOICE, "options": ["x", "\ud800"]}]}, "surrogate"),
    ({"fields": [{"name": "n", "type": "int", "minimum": 1}]}, "maximum"),
    ({"fields": [{"name": "n", "type": "int", "minimum": 1, "maximum": 2.5}]}, "2.5"),
    ({"fields": [{"name": "n", "type": "int", "minimum": 5, "maximum": 1}]}, "from 5 to 1"),
    ({"fields": [{"name": "n", "type": "int", "minimum": 0, "maximum": 255}]}, "256 integers"),
    ('{"fields": [{"name": "n", "type": "int", "minimum": 0, "maximum": ' + "9" * 5000 + "}]}", "too long"),
    ('{"fields": [{"name": "n", "type": "int", "minimum": 0, "maximum": ' + "9" * 4200 + "}]}", "integers"),
    ({"properties": {"a": {"type": "boolean"}}, "required": 5}, "'required'".replace("'", '"')),
    ({"properties": {"a": {"type": "boolean"}}, "required": [["a"]]}, "['a']"),
    ({"type": "array"}, "fields"),
    ({"type": "object", "properties": {}}, "no fields"),
    ({"type": "object", "properties": []}, "properties"),
    ({"type": "string", "properties": {"a": {"type": "boolean"}}}, "'string'"),
    ({"properties": {"a": True}}, "'a'"),
    ({"properties": {"a": {"type": "string"}}}, "'string'"),
    ({"properties": {"a": {"type": "string", "pattern": "x"}}}, "'pattern'"),
    ({"properties": {"a": {"type": "integer"}}}, "minimum"),
    ({"properties": {"a": {"type": "integer", "multipleOf": 2}}}, "'multipleOf'"),
    ({"properties": {"a": {"enum": ["x", {"y": 1}]}}}, "{'y': 1}"),
    ({"properties": {"a": {"enum": [1, 2], "type": "string"}}}, "string"),
    ({"properties": {"a": {"enum": "xy"}}}, "'xy'"),
    ({"properties": {"a": {"type": "boolean", "const": True}}}, "no fields"),
    ({"properties": {"a": {"type": "boolean"}}, "required": ["b"]}, "'b'"),
    ({"properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "string"}}, "additionalProperties"),
    ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {}}, "'#/$defs/A'"),
    ({"properties": {"a": {"type": "boolean", "title": 3}}}, "3"),
    ({"fields": [{"name": "a", "type": "bool"}], "rules": {}}, "list of rules"),
    (ruled(3), "rule 1 is 3"),
    (ruled({"if": {"ok": True}}), "rule 1 is {'if'"),
    (ruled({"not": {}}), 'the "not" of rule 1 is {}'),
    (ruled({"if": {"ok": True}, "then": {}}), 'the "then" of rule 1 is {}'),
    (ruled({"if": {"ko": True}, "then": {"team": "a"}}), "the \"if\" of rule 1: the schema has no field 'ko'"),
    (ruled({"if": {"ok": True}, "then": {"team": "c"}}), "the \"then\" of rule 1: field 'team' has no option 'c'"),
    (ruled({"not": {"ok": 1}}), "has no option 1"),
    (ruled({"not": {"team": []}}), "leaves field 'team' no option"),
    (ruled({"not": {"team": {"not": ["a", "b"]}}}), "leaves field 'team' no option"),
    (ruled({"not": {"team": ["a", "b"]}}), "rule 1 allows all options of field 'team'"),
    (shaped({"object": {"t": TEAM}}), "field 'ok' is missing"),
    (shaped({"object": {"t": TEAM, "o": OK, "p": OK}}), "field 'ok' stands twice in the \"object\""),
    (shaped({"object": {"t": {"field": "x"}}}), "no field 'x'"),
    (shaped({"object": {"t": {"field": 3}}}), "property 't' has the field 3"),
    (shaped({"object": {"t": {}}}), "property 't' is {}"),
    (shaped({"object": {"o": {"object": 3}}}), "property 'o' has the object 3"),
    (shaped({"object": {"o": {"object": {}, "const": 3}}}), "with one of"),
    (shaped({"object": {"o": {"const": 3, "minItems": 3}}}), "'minItems'"),
    (shaped({"object": {"o": {"const": []}}}), "the const []"),
    (shaped({"object": {"o": {"const": "\ud800"}}}), "surrogate"),
    (shaped({"object": {"\ud800": TEAM}}), "surrogate"),
    (shaped({"array": [["x", "ok"]]}), "at the top write"),
    (shaped({"object": {"t": {"array": [["x", "team"]]}, "o": OK}}), "field 'team' of the item 'x' is not answered yes or no"),
    (shaped({"object": {"t": {"array": []}}}), "property 't' has the array []"),
    (shaped({"object": {"t": {"array": [["x"]]}}}), "property 't' has the member ['x']"),
    (shaped({"object": {"t": {"array": [[True, "ok"]]}}}), "property 't' has the member [True, 'ok']"),
    (shaped({"object": {"t": {"array": [["x", "ok"], ["x", "ok"]]}}}), "the item 'x' twice"),
    (shaped({"object": {"t": {"array": [["\ud800", "ok"]]}}}), "surrogate"),
]


@pytest.mark.parametrize(("source", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_that_names_it(source: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        Schema.from_json(source) if isinstance(source, str) else Schema.of(source)
    message = str(error.value)
    assert words in message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 300


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_any_json_is_a_schema_or_a_mistake(source: Any) -> None:
    for wrapped in (
        source,
        {"fields": [source]},
        {"properties": {"a": source}},
        {"fields": [{"name": "a", "type": "choice", "options": source}]},
    ):
        try:
            Schema.of(wrapped)
        except UserError:
            continue


def test_rules_from_python_are_checked_as_well() -> None:
    fields = Schema.of(ruled({"not": {"ok": True}})).fields
    with pytest.raises(UserError, match="rule 1 has no condition"):
        Schema(fields, (Rule(()),))
    with pytest.raises(UserError, match="rule 1 names field 'ok' twice on one side"):
        Schema(fields, (Rule((Condition("ok", (0,)), Condition("ok", (1,)))),))
    for options in ((), (1, 0), (0, 0), (5,)):
        with pytest.raises(UserError, match="give indices, ascending"):
            Schema(fields, (Rule((Condition("team", options),)),))


def test_an_optional_field_from_python_ends_in_null() -> None:
    with pytest.raises(UserError, match="is optional and ends in 'b': end it in null"):
        Field("f", "choice", (Option("a"), Option("b")), optional=True)


def test_an_unknown_option_or_field_is_named_with_the_known_ones() -> None:
    schema = Schema.of({"fields": [{"name": "n", "type": "int", "minimum": 0, "maximum": 20}]})
    with pytest.raises(UserError, match=r"'x'.*0, 1, 2.*21 in all"):
        schema["n"].index("x")
    with pytest.raises(UserError, match="True"):
        schema["n"].index(True)
    with pytest.raises(UserError, match=r"'m'.*'n'"):
        schema["m"]


def test_schema_files(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b'\xef\xbb\xbf{"fields": [{"name": "a", "type": "bool"}]}')
    assert Schema.from_file(path).fields[0].name == "a"
    path.write_bytes(b'{"fields": "\xff"}')
    with pytest.raises(UserError, match="UTF-8"):
        Schema.from_file(path)
    with pytest.raises(UserError, match="does not exist"):
        Schema.from_file(tmp_path / "none.json")
    with pytest.raises(UserError, match="can't be read"):
        Schema.from_file(tmp_path)
