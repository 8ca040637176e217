"""The System One wire (TypeSafe's Jev): requests as texts and schemas, decisions as its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from rlcd_lite.decisions import FieldDecision
from rlcd_lite.schema import MAX_OPTIONS, Option, Schema
from rlcd_lite.serve.wire import (
    Extended,
    Few,
    Text,
    Wants,
    asked,
    choice_confidence,
    compact,
    described,
    extensions,
    named,
    score,
    score_confidence,
)

_NO_IMAGES = "this server reads text alone, no images"


class NoulCriteria(BaseModel):
    true: Text | None = None
    false: Text | None = None


class NoulQuestion(BaseModel):
    """A statement or a yes/no question."""

    type: Literal["noul"]
    instructions: Text | None = None
    criteria: NoulCriteria | None = None

    @model_validator(mode="after")
    def _says_something(self) -> NoulQuestion:
        if self.instructions is None and (self.criteria is None or (self.criteria.true is None and self.criteria.false is None)):
            raise ValueError("a noul needs instructions, or one of its criteria")
        return self


class ChoiceQuestion(BaseModel):
    """One of named options; what each means, or null where the name says it."""

    type: Literal["choice"]
    instructions: Text | None = None
    criteria: Annotated[dict[str, Text | None], Few, Field(min_length=2, max_length=MAX_OPTIONS)]


class ScoreQuestion(BaseModel):
    """One of ordered levels, lowest first."""

    type: Literal["score"]
    instructions: Text | None = None
    criteria: list[Text] = Field(min_length=2, max_length=MAX_OPTIONS)


Question = Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class SystemOneRequest(Wants):
    """Questions about one text. Unknown fields are ignored, as the wire has it."""

    model: str = Field(description="Any name is answered by the model that is served.", examples=["jev-latest"])
    state: Text = Field(description="What the questions are about.")
    questions: Annotated[dict[Annotated[str, Field(min_length=1)], Question], Few] = Field(min_length=1)
    assets: dict[str, Any] | None = Field(None, description="Images can't be read: leave this out.")

    @field_validator("questions", mode="before")
    @classmethod
    def _no_boxes(cls, questions: Any) -> Any:
        if isinstance(questions, Mapping) and any(isinstance(q, Mapping) and q.get("type") == "box" for q in questions.values()):
            raise ValueError(f"{_NO_IMAGES}: a box can't be answered")
        return questions

    @field_validator("assets")
    @classmethod
    def _no_assets(cls, assets: dict[str, Any] | None) -> None:
        if assets:
            raise ValueError(f"{_NO_IMAGES}: leave assets out")


class NoulAnswer(Extended):
    type: Literal["noul"]
    noul: float = Field(ge=0, le=1, description="Probability of yes.")


class ChoiceAnswer(Extended):
    type: Literal["choice"]
    choice: str
    confidence: float = Field(ge=0, le=1, description="How far the choice is from chance; not a probability of being right.")
    probabilities: dict[str, float]


class ScoreAnswer(Extended):
    type: Literal["score"]
    score: float = Field(description="Mean level, counted from 0.")
    confidence: float = Field(ge=0, le=1, description="How close to each other the levels lie that are probable.")
    legend: dict[str, Text]
    probabilities: dict[str, float]


Answer = Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]


class Usage(BaseModel):
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)


class SystemOneResponse(BaseModel):
    model: str
    answers: dict[str, Answer]
    usage: Usage


def ask(request: SystemOneRequest) -> tuple[str, list[Schema]]:
    """The text, and a schema per question; `UserError` for a question that can't be decided."""
    return compact(request.state), [_schema(question, named(name)) for name, question in request.questions.items()]


def _schema(question: Question, where: str) -> Schema:
    """Levels of a score are its indices, described by their criteria, which may be alike, blank or structured."""
    match question:
        case NoulQuestion():
            criteria = question.criteria or NoulCriteria()
            yes, no = Option(True, described(criteria.true)), Option(False, described(criteria.false))
            return asked("bool", question.instructions, [yes, no], where)
        case ChoiceQuestion():
            options = [Option(name, described(meaning)) for name, meaning in question.criteria.items()]
            return asked("choice", question.instructions, options, where)
        case ScoreQuestion():
            levels = [Option(i, compact(meaning)) for i, meaning in enumerate(question.criteria)]
            return asked("score", question.instructions, levels, where)


def answer(question: Question, found: FieldDecision, beyond: dict[str, Any]) -> Answer:
    """A decision as the wire's answer; ``beyond``: its extensions."""
    p = found.probabilities
    match question:
        case NoulQuestion():
            return NoulAnswer(type="noul", noul=p[0], **beyond)
        case ChoiceQuestion():
            names = list(question.criteria)
            by_name = dict(zip(names, p, strict=True))
            best = names[p.index(max(p))]
            return ChoiceAnswer(type="choice", choice=best, confidence=choice_confidence(p), probabilities=by_name, **beyond)
        case ScoreQuestion():
            legend = {str(i): meaning for i, meaning in enumerate(question.criteria)}
            by_level = {str(i): level for i, level in enumerate(p)}
            how_sure = score_confidence(p)
            return ScoreAnswer(type="score", score=score(p), confidence=how_sure, legend=legend, probabilities=by_level, **beyond)


def respond(
    request: SystemOneRequest, model: str, answers: Sequence[tuple[FieldDecision, str | None]], tokens: int
) -> SystemOneResponse:
    """The response; ``answers``: per question the decision, and why it isn't automated, if so. ``tokens``: that were asked."""
    wanted = request.wanted()
    said = {
        name: answer(question, found, extensions(found, wanted, reason))
        for (name, question), (found, reason) in zip(request.questions.items(), answers, strict=True)
    }
    return SystemOneResponse(model=model, answers=said, usage=Usage(input_tokens=tokens, output_tokens=0))
