"""The wire of OpenAI's Decisions: requests as texts and schemas, decisions as its answers, refusals among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, StrictBool, StrictStr, Tag

from rlcd_lite.decisions import FieldDecision
from rlcd_lite.schema import MAX_OPTIONS, Option, Schema
from rlcd_lite.serve.wire import (
    Extended,
    Wants,
    asked,
    choice_confidence,
    compact,
    extensions,
    score,
    score_confidence,
)

_MOST = 4096  # messages, and parts of one


class TextPart(BaseModel):
    type: Literal["input_text", "output_text"]
    text: str

    def said(self) -> str:
        return self.text


class RefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str

    def said(self) -> str:
        return self.refusal


class JsonPart(BaseModel):
    type: Literal["input_json"]
    data: dict[str, Any] | list[Any]

    def said(self) -> str:
        return compact(self.data)


def _no_image(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in ("input_image", "input_file"):
        raise ValueError("this server reads text alone, no images or files: leave the part out")
    return part


def _form(content: Any) -> str:
    return "text" if isinstance(content, str) else "list"


Part = Annotated[TextPart | RefusalPart | JsonPart, Field(discriminator="type"), BeforeValidator(_no_image)]
Parts = Annotated[list[Part], Field(fail_fast=True, max_length=_MOST)]
Content = Annotated[Annotated[str, Tag("text")] | Annotated[Parts, Tag("list")], Discriminator(_form)]


class Message(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content

    def said(self) -> str:
        return f"{self.role}: {words(self.content)}"


class FunctionCall(BaseModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def said(self) -> str:
        return f"call of {self.name}: {self.arguments}"


class CustomToolCall(BaseModel):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    def said(self) -> str:
        return f"call of {self.name}: {self.input}"


class ToolOutput(BaseModel):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content

    def said(self) -> str:
        return f"output: {words(self.output)}"


def _item(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return "output" if kind in ("function_call_output", "custom_tool_call_output") else str(kind)


Item = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[CustomToolCall, Tag("custom_tool_call")]
    | Annotated[ToolOutput, Tag("output")],
    Discriminator(_item),
]
Items = Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=_MOST)]


class PredicateQuestion(BaseModel):
    """A statement that may be true."""

    type: Literal["predicate"]
    instructions: Content
    name: str | None = None


class Choice(BaseModel):
    value: StrictStr | StrictBool
    description: str | None = None


class ChoiceQuestion(BaseModel):
    """One of several values."""

    type: Literal["choice"]
    instructions: Content
    choices: Annotated[list[Choice], Field(fail_fast=True, min_length=2, max_length=MAX_OPTIONS)]
    name: str | None = None


class Level(BaseModel):
    label: str
    description: str | None = None


class ScoreQuestion(BaseModel):
    """One of ordered levels, lowest first."""

    type: Literal["score"]
    instructions: Content
    levels: Annotated[list[Level], Field(fail_fast=True, min_length=2, max_length=MAX_OPTIONS)]
    name: str | None = None


Question = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionsRequest(Wants):
    """Questions about one input. Fields about caching and identity are ignored."""

    model: str = Field(description="Any name is answered by the model that is served.")
    input: Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("list")], Discriminator(_form)]
    questions: Annotated[list[Question], Field(min_length=1, max_length=400)]


class PredicateAnswer(Extended):
    type: Literal["predicate"]
    name: str | None
    probability: float = Field(ge=0, le=1)


class ChoiceProbability(BaseModel):
    value: str | bool
    probability: float


class ChoiceAnswer(Extended):
    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: float = Field(ge=0, le=1, description="How far the choice is from chance; not a probability of being right.")
    probabilities: list[ChoiceProbability]


class LevelProbability(BaseModel):
    label: str
    value: int
    probability: float


class ScoreAnswer(Extended):
    type: Literal["score"]
    name: str | None
    score: float = Field(description="Mean level, counted from 0.")
    confidence: float = Field(ge=0, le=1, description="How close to each other the levels lie that are probable.")
    probabilities: list[LevelProbability]


class Refusal(BaseModel):
    """The risk that was asked for can't be kept for this question."""

    type: Literal["refusal"]
    name: str | None
    x_reason: str


Answer = Annotated[PredicateAnswer | ChoiceAnswer | ScoreAnswer | Refusal, Field(discriminator="type")]


class InputDetails(BaseModel):
    cached_tokens: int = Field(ge=0)
    cache_write_tokens: int = Field(ge=0)


class OutputDetails(BaseModel):
    reasoning_tokens: int = Field(ge=0)


class Usage(BaseModel):
    input_tokens: int = Field(ge=0)
    input_tokens_details: InputDetails
    output_tokens: int = Field(ge=0)
    output_tokens_details: OutputDetails
    total_tokens: int = Field(ge=0)


class DecisionsResponse(BaseModel):
    model: str
    answers: list[Answer]
    usage: Usage


def words(content: Content) -> str:
    """The words of a message, a tool or a question, one part below the other."""
    return content if isinstance(content, str) else "\n".join(part.said() for part in content)


def text(given: str | Sequence[Item]) -> str:
    """The input as the model reads it: a single message of the user's as it is, else item by item with who speaks."""
    if isinstance(given, str):
        return given
    match given:
        case [Message(role="user", content=content)]:
            return words(content)
    return "\n\n".join(item.said() for item in given)


def ask(request: DecisionsRequest) -> tuple[str, list[Schema]]:
    """The text, and a schema per question; `UserError` for a question that can't be decided."""
    schemas = [_schema(question, f"question {i}") for i, question in enumerate(request.questions, start=1)]
    return text(request.input), schemas


def _schema(question: Question, where: str) -> Schema:
    said = words(question.instructions)
    match question:
        case PredicateQuestion():
            return asked("bool", said, [Option(True), Option(False)], where)
        case ChoiceQuestion():
            return asked("choice", said, [Option(choice.value, choice.description) for choice in question.choices], where)
        case ScoreQuestion():
            return asked("score", said, [Option(level.label, level.description) for level in question.levels], where)


def answer(question: Question, found: FieldDecision, beyond: dict[str, Any]) -> Answer:
    """A decision as the wire's answer; ``beyond``: its extensions."""
    p, name = found.probabilities, question.name
    match question:
        case PredicateQuestion():
            return PredicateAnswer(type="predicate", name=name, probability=p[0], **beyond)
        case ChoiceQuestion():
            chosen = question.choices[p.index(max(p))].value
            each = [ChoiceProbability(value=c.value, probability=q) for c, q in zip(question.choices, p, strict=True)]
            sure = choice_confidence(p)
            return ChoiceAnswer(type="choice", name=name, choice=chosen, confidence=sure, probabilities=each, **beyond)
        case ScoreQuestion():
            levels = zip(question.levels, p, strict=True)
            rated = [LevelProbability(label=level.label, value=i, probability=q) for i, (level, q) in enumerate(levels)]
            sure = score_confidence(p)
            return ScoreAnswer(type="score", name=name, score=score(p), confidence=sure, probabilities=rated, **beyond)


def respond(
    request: DecisionsRequest, model: str, answers: Sequence[tuple[FieldDecision, str | None]], tokens: int, cached: int
) -> DecisionsResponse:
    """The response; ``answers``: per question the decision, and why it isn't automated, if so. ``tokens``: that were asked,
    ``cached`` of them not run. A question whose risk can't be kept is refused."""
    wanted = request.wanted()
    said: list[Answer] = []
    for question, (found, reason) in zip(request.questions, answers, strict=True):
        if wanted.max_risk is not None and found.action != "automate":
            said.append(Refusal(type="refusal", name=question.name, x_reason=reason or "the answer is for review."))
        else:
            said.append(answer(question, found, extensions(found, wanted, reason)))
    usage = Usage(
        input_tokens=tokens,
        input_tokens_details=InputDetails(cached_tokens=cached, cache_write_tokens=0),
        output_tokens=0,
        output_tokens_details=OutputDetails(reasoning_tokens=0),
        total_tokens=tokens,
    )
    return DecisionsResponse(model=model, answers=said, usage=usage)
