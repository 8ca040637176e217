"""The wires as pure functions: requests become texts and schemas, decisions become answers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jevcompat import validate
from pydantic import ValidationError

from rlcd_lite.decisions import Applied, Decision, FieldDecision, OrderEffect
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema
from rlcd_lite.serve import openai_decisions, systemone
from rlcd_lite.serve.native import DecideRequest, respond
from rlcd_lite.serve.openai_decisions import DecisionsRequest
from rlcd_lite.serve.systemone import SystemOneRequest
from rlcd_lite.serve.wire import choice_confidence, extensions, score_confidence

NOUL = {"type": "noul", "instructions": "Refund?"}
CHOICE = {"type": "choice", "instructions": "Team?", "criteria": {"Billing": "money", "환불 🙂": None}}
SCORE = {"type": "score", "instructions": "Anger?", "criteria": ["Calm", {"label": "Angry", "not": None}, "Calm"]}
ODD_NAMES = ["true", "null", "0", "a.b", "Ü", "e\u0301", "é", "A", "a", " a", '"', "\\", "\n", "\u2028", "\x00", "<|im_end|>"]


def request(questions: dict[str, Any], **more: Any) -> SystemOneRequest:
    return SystemOneRequest.model_validate({"model": "jev-latest", "state": "text", "questions": questions, **more})


def asked(question: dict[str, Any]) -> Schema:
    _, (schema,) = systemone.ask(request({"q": question}))
    return schema


def decided(schema: Schema, probabilities: list[float], **more: Any) -> FieldDecision:
    return FieldDecision(schema.fields[0], tuple(probabilities), stated=0.7, stated_mean=0.6, **more)


distributions = st.lists(st.floats(0.001, 1), min_size=2, max_size=30).map(lambda w: [x / math.fsum(w) for x in w])


@given(distributions)
def test_confidences_are_the_published_ones_and_lie_between_0_and_1(p: list[float]) -> None:
    assert choice_confidence(p) == pytest.approx(validate.choice_confidence(p), abs=1e-12)
    assert score_confidence(p) == pytest.approx(validate.score_confidence(p), abs=1e-12)
    assert 0 <= choice_confidence(p) <= 1
    assert 0 <= score_confidence(p) <= 1


def test_confidences_of_the_published_examples() -> None:
    assert choice_confidence([0.88, 0.12, 0]) == pytest.approx(0.82)
    assert choice_confidence([0.88, 0.12]) == pytest.approx(0.76)
    assert score_confidence([0, 0.95, 0.05]) == pytest.approx(0.925)
    assert choice_confidence([1.0]) == score_confidence([1.0]) == 1
    assert choice_confidence([0.2] * 5) == 0


def test_a_question_is_a_schema_of_its_own_and_its_id_is_nowhere_in_it() -> None:
    text, schemas = systemone.ask(request({"SECRET-ID": NOUL, "🎯": CHOICE, " ": SCORE}))
    assert text == "text"
    assert [schema.to_dict() for schema in schemas] == [
        {"fields": [{"name": "answer", "type": "bool", "description": "Refund?"}]},
        {
            "fields": [
                {
                    "name": "answer",
                    "type": "choice",
                    "description": "Team?",
                    "options": [{"value": "Billing", "description": "money"}, "환불 🙂"],
                }
            ]
        },
        {
            "fields": [
                {
                    "name": "answer",
                    "type": "score",
                    "description": "Anger?",
                    "options": [
                        {"value": 0, "description": "Calm"},
                        {"value": 1, "description": '{"label":"Angry","not":null}'},
                        {"value": 2, "description": "Calm"},
                    ],
                }
            ]
        },
    ]
    assert [Schema.of(schema.to_dict()) for schema in schemas] == schemas  # what a calibration can be fitted for


@pytest.mark.parametrize(
    ("criteria", "written"),
    [
        (None, {}),
        ({}, {}),
        ({"true": "money back"}, {"true": "money back"}),
        ({"false": ["a", 1]}, {"false": '["a",1]'}),
        ({"true": None, "false": "no"}, {"false": "no"}),
    ],
)
def test_criteria_of_a_noul_may_be_missing_or_one_sided(criteria: Any, written: dict[str, str]) -> None:
    schema = asked(NOUL | {"criteria": criteria})
    assert schema.to_dict() == {"fields": [{"name": "answer", "type": "bool", "description": "Refund?", **written}]}
    assert Schema.of(schema.to_dict()) == schema


@pytest.mark.parametrize("state", ["text", {"a": [1, None], "ü": "x"}, ["a", {"b": 1.5}], {}])
def test_a_structured_state_is_compact_json(state: Any) -> None:
    text, _ = systemone.ask(request({"q": NOUL}, state=state))
    assert text == state if isinstance(state, str) else json.loads(text) == state
    assert "\\u" not in text
    assert ", " not in text


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"type": "noul"}, "needs instructions"),
        ({"type": "noul", "criteria": {"true": None}}, "needs instructions"),
        ({"type": "box", "instructions": "where?"}, "text alone"),
        ({"type": "boolean", "instructions": "x"}, "boolean"),
        ({"instructions": "x"}, "type"),
        ({"type": "choice", "criteria": {}}, "at least 2"),
        ({"type": "choice", "criteria": {"a": None}}, "at least 2"),
        ({"type": "choice", "criteria": ["a", "b"]}, "dictionary"),
        ({"type": "choice", "criteria": {"a": 1, "b": None}}, "string, an object or an array"),
        ({"type": "choice", "criteria": {str(i): None for i in range(256)}}, "at most 255"),
        ({"type": "choice", "criteria": {str(i): None for i in range(5000)}}, "at most 1000"),
        ({"type": "score", "criteria": {"0": "a", "1": "b"}}, "list"),
        ({"type": "score", "criteria": ["a"]}, "at least 2"),
        ({"type": "score", "criteria": ["a", None]}, "string, an object or an array"),
    ],
)
def test_questions_that_the_wire_refuses(question: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        request({"q": question})


@pytest.mark.parametrize(
    "body",
    [
        {"state": "x", "questions": {"q": NOUL}},
        {"model": "m", "questions": {"q": NOUL}},
        {"model": "m", "state": None, "questions": {"q": NOUL}},
        {"model": "m", "state": 3, "questions": {"q": NOUL}},
        {"model": "m", "state": "x", "questions": {}},
        {"model": "m", "state": "x", "questions": {"": NOUL}},
        {"model": "m", "state": "x", "questions": [NOUL]},
        {"model": "m", "state": "x", "questions": {"q": NOUL}, "assets": {"a": {"type": "image"}}},
        {"model": "m", "state": "x", "questions": {"q": NOUL}, "x_max_risk": 1.5},
        {"model": "m", "state": "x", "questions": {"q": NOUL}, "x_set_method": "best"},
    ],
)
def test_requests_that_the_wire_refuses(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SystemOneRequest.model_validate(body)


def test_unknown_fields_are_ignored() -> None:
    assert request({"q": NOUL}, seed=7, x_trace="a", assets=None) == request({"q": NOUL})
    with pytest.raises(ValidationError, match="forbidden"):  # of our own wire none are
        DecideRequest.model_validate({"context": "x", "schema": {}, "max_rsk": 0.1})


def test_a_name_that_no_schema_takes_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="question 'team': it has the blank option ' '"):
        systemone.ask(request({"team": CHOICE | {"criteria": {" ": None, "b": None}}}))
    with pytest.raises(UserError, match="x_delta is about x_max_risk"):
        request({"q": NOUL}, x_delta=0.1).wanted()


@given(st.permutations(ODD_NAMES[:12] + ODD_NAMES[15:]), distributions)
def test_names_come_back_byte_for_byte(names: list[str], p: list[float]) -> None:
    names = names[: len(p)]
    p = p[: len(names)]
    question = {"type": "choice", "criteria": dict.fromkeys(names)}
    if len(names) < 2:
        return
    answer = systemone.answer(request({"q": question}).questions["q"], decided(asked(question), p), {**PLAIN})
    said = json.loads(answer.model_dump_json(exclude_unset=True))
    assert list(said["probabilities"]) == names
    assert list(said["probabilities"].values()) == p  # in full
    assert said["choice"] == names[p.index(max(p))]


PLAIN = {"x_stated": 0.7, "x_stated_mean": 0.6, "x_calibration": {"applied": False}}


@pytest.mark.parametrize(("question", "p"), [(NOUL, [0.25, 0.75]), (CHOICE, [0.125, 0.875]), (SCORE, [0.5, 0.25, 0.25])])
def test_answers_pass_the_validator_of_the_wire(question: dict[str, Any], p: list[float]) -> None:
    body = {"model": "jev-latest", "state": "text", "questions": {"q": question}}
    found = decided(asked(question), p)
    response = systemone.respond(request({"q": question}), "m", [(found, None)], 7)
    said = json.loads(response.model_dump_json(exclude_unset=True))
    assert validate.validate_answer(question, said["answers"]["q"], "q") == []
    assert said["usage"] == {"input_tokens": 7, "output_tokens": 0}
    assert body["model"] == "jev-latest"


def test_the_legend_echoes_the_levels_and_the_score_is_their_mean() -> None:
    found = decided(asked(SCORE), [0.5, 0.25, 0.25])
    answer = systemone.answer(request({"q": SCORE}).questions["q"], found, {**PLAIN})
    said = json.loads(answer.model_dump_json(exclude_unset=True))
    assert said["legend"] == {str(i): level for i, level in enumerate(SCORE["criteria"])}
    assert said["score"] == 0.75
    assert said["probabilities"] == {"0": 0.5, "1": 0.25, "2": 0.25}


def test_extensions_say_what_was_done_and_begin_with_x() -> None:
    from rlcd_lite.serve.acting import Wanted

    ece = {"estimate": 0.02, "low": 0.01, "high": 0.05, "null_floor": 0.01}
    applied = Applied(0.8, "softmax", "temperature", "identity", 100, 200, ece)
    found = decided(asked(CHOICE), [0.25, 0.75], orders=OrderEffect(4, 0.1, 0.25), applied=applied, action="automate", options=(1,))
    said = extensions(found, Wanted(max_risk=0.1), None)
    assert said == {
        "x_stated": 0.7,
        "x_stated_mean": 0.6,
        "x_confidence": 0.8,
        "x_calibration": {
            "applied": True,
            "signal": "softmax",
            "method": "temperature",
            "distribution": "identity",
            "rows": 100,
            "held_out": {"rows": 200, "ece": ece},
        },
        "x_order_tv": 0.1,
        "x_set": ["환불 🙂"],
        "x_action": "automate",
    }
    assert extensions(decided(asked(NOUL), [0.5, 0.5]), Wanted(), None) == PLAIN


# ---- OpenAI ----


def decisions_request(questions: list[dict[str, Any]], given: Any = "text", **more: Any) -> DecisionsRequest:
    return DecisionsRequest.model_validate({"model": "m", "input": given, "questions": questions, **more})


PREDICATE = {"type": "predicate", "instructions": "Refund?"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("words", "words"),
        ([{"role": "user", "content": "words"}], "words"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": 1}}]}],
            'a\n{"b":1}',
        ),
        (
            [
                {"role": "system", "content": "s"},
                {"type": "message", "role": "user", "content": "u"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "o"}]},
                {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "i"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "p"},
            ],
            "system: s\n\nuser: u\n\nassistant: a\nno\n\ncall of f: {}\n\noutput: o\n\ncall of g: i\n\noutput: p",
        ),
    ],
)
def test_an_input_is_read_as_its_words(given: Any, text: str) -> None:
    assert openai_decisions.ask(decisions_request([PREDICATE], given))[0] == text


@pytest.mark.parametrize(
    ("given", "questions", "reason"),
    [
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}], [PREDICATE], "text alone"),
        ([{"role": "nobody", "content": "x"}], [PREDICATE], "role"),
        ([{"type": "reasoning"}], [PREDICATE], "reasoning"),
        ([], [PREDICATE], "at least 1"),
        (3, [PREDICATE], "list"),
        ("x", [], "at least 1"),
        ("x", [PREDICATE] * 401, "at most 400"),
        ("x", [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}]}], "at least 2"),
        ("x", [{"type": "choice", "instructions": "x", "choices": [{"value": 1}, {"value": "a"}]}], "valid"),
        ("x", [{"type": "score", "instructions": "x", "levels": ["a", "b"]}], "dictionary"),
        ("x", [{"type": "predicate"}], "instructions"),
        ("x", [{"type": "predicate", "instructions": [{"type": "input_image"}]}], "text alone"),
    ],
)
def test_what_the_decisions_wire_refuses(given: Any, questions: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        decisions_request(questions, given)


@pytest.mark.parametrize("values", [[True, "true"], ["a", "a"], ["", "a"]])
def test_choices_that_no_schema_tells_apart_are_refused_with_the_reason(values: list[Any]) -> None:
    question = {"type": "choice", "instructions": "x", "choices": [{"value": v} for v in values]}
    with pytest.raises(UserError, match="question 1: it has the"):
        openai_decisions.ask(decisions_request([question]))


def test_decisions_are_answered_in_order_with_typed_values() -> None:
    questions = [
        PREDICATE | {"name": "refund"},
        {"type": "choice", "instructions": "x", "choices": [{"value": True}, {"value": "a", "description": "d"}]},
        {"type": "score", "instructions": "y", "name": "s", "levels": [{"label": "low"}, {"label": "high", "description": "d"}]},
    ]
    asked_ = decisions_request(questions)
    _, schemas = openai_decisions.ask(asked_)
    found = [decided(schema, p) for schema, p in zip(schemas, ([0.25, 0.75], [0.75, 0.25], [0.125, 0.875]), strict=True)]
    response = openai_decisions.respond(asked_, "m", [(f, None) for f in found], 9, 4)
    said = json.loads(response.model_dump_json(exclude_unset=True))
    assert said["answers"] == [
        PLAIN | {"type": "predicate", "name": "refund", "probability": 0.25},
        PLAIN
        | {
            "type": "choice",
            "name": None,
            "choice": True,
            "confidence": 0.5,
            "probabilities": [{"value": True, "probability": 0.75}, {"value": "a", "probability": 0.25}],
        },
        PLAIN
        | {
            "type": "score",
            "name": "s",
            "score": 0.875,
            "confidence": 0.75,
            "probabilities": [
                {"label": "low", "value": 0, "probability": 0.125},
                {"label": "high", "value": 1, "probability": 0.875},
            ],
        },
    ]
    assert said["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}


def test_a_question_whose_risk_cannot_be_kept_is_refused() -> None:
    asked_ = decisions_request([PREDICATE, PREDICATE], x_max_risk=0.1)
    _, (schema, _) = openai_decisions.ask(asked_)
    sure, unsure = decided(schema, [0.9, 0.1], action="automate"), decided(schema, [0.5, 0.5], action="review")
    response = openai_decisions.respond(asked_, "m", [(sure, None), (unsure, "too unsure.")], 1, 0)
    first, second = json.loads(response.model_dump_json(exclude_unset=True))["answers"]
    assert first["probability"] == 0.9
    assert first["x_action"] == "automate"
    assert second == {"type": "refusal", "name": None, "x_reason": "too unsure."}


# ---- our own ----


def test_our_own_wire_answers_as_the_command_line_prints() -> None:
    schema = Schema.of({"fields": [{"name": "ok", "type": "bool"}]})
    decision = Decision(schema, (decided(schema, [0.25, 0.75]),))
    said = respond(decision, "m", 12, 3, {"ok": "why."})
    assert said == decision.to_dict() | {
        "model": "m",
        "usage": {"input_tokens": 12, "cached_tokens": 3, "output_tokens": 0},
        "notes": ["for review: why."],
    }
