"""What is to be decided: fields with a closed set of options, and the decision that answers them.

A schema is read from ``{"fields": [...]}``, from a JSON Schema object or from a Pydantic model; all three become the same
frozen `Schema`. A `Decision` holds one `FieldDecision` per field and is written as JSON that always parses: the JSON is
assembled from the schema's own values, never from text that a model wrote.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlcd_lite.errors import UserError, shorten
from rlcd_lite.settings import Scoring, check_choice

MAX_OPTIONS = 255
CONFIDENCE_SUFFIX = "_confidence"  # the prompt asks for a field's stated confidence under this key

NONE_OF_THE_ABOVE = "none_of_the_above"  # the value of the option that says that no other fits

Value = str | int | bool
FieldType = Literal["choice", "bool", "score", "int"]


@dataclass(frozen=True)
class Option:
    """One possible answer of a field: the JSON value it stands for and, optionally, what it means."""

    value: Value
    description: str | None = None

    @property
    def text(self) -> str:
        """What the prompt shows, and the option's key in ``probabilities``: a string as it is, else its JSON."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


@dataclass(frozen=True)
class Group:
    """A group of a hierarchy: its name and how many options it has."""

    name: str
    size: int


@dataclass(frozen=True)
class Field:
    """One decision: a name, a type and between 2 and 255 options.

    ``choice``: unordered options. ``bool``: ``true`` and ``false``, in this order. ``score``: ordered levels, lowest first.
    ``int``: each integer of a bounded range. ``scoring``: how its options are scored, whatever the engine does with other fields.
    ``hierarchy``: the groups that a choice's options fall into, which follow each other in ``options``. ``none_of_the_above``: the
    last option, outside all groups, says that no other fits. Raises `UserError` for a name or an option set that can't be decided.
    """

    name: str
    type: FieldType
    options: tuple[Option, ...]
    description: str | None = None
    scoring: Scoring | None = None
    hierarchy: tuple[Group, ...] = ()
    none_of_the_above: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise UserError(f"field name {shorten(self.name)} is not a non-blank string: give every field a name.")
        where = f"field {shorten(self.name)}"
        check_text(self.name, f"the name of {where}")
        check_text(self.description, f"the description of {where}")
        if self.type not in get_args(FieldType):
            raise UserError(f"{where} has the unknown type {shorten(self.type)}: use one of {', '.join(get_args(FieldType))}.")
        if not 2 <= len(self.options) <= MAX_OPTIONS:
            raise UserError(f"{where} has {_count(self.options)}: a field needs between 2 and {MAX_OPTIONS}.")
        for option in self.options:
            if not isinstance(option.value, str | int):
                raise UserError(f"{where} has the option {shorten(option.value)}: an option is a string or an integer.")
            if not option.text.strip():
                raise UserError(f"{where} has the blank option {shorten(option.value)}: give every option a text.")
            check_text(option.text, f"option {shorten(option.value)} of {where}")
            check_text(option.description, f"the description of option {shorten(option.value)} of {where}")
        if (twice := _first_duplicate(option.text for option in self.options)) is not None:
            raise UserError(f"{where} has the option {shorten(twice)} twice: options must differ.")
        values = [option.value for option in self.options]
        if self.type == "bool" and not (len(values) == 2 and values[0] is True and values[1] is False):
            raise UserError(f"{where} is a bool, whose options are true and false: leave its options out.")
        if self.type == "int" and any(isinstance(v, bool) or not isinstance(v, int) for v in values):
            raise UserError(f"{where} is an int: give it minimum and maximum instead of options.")
        if self.scoring is not None:
            check_choice(self.scoring, Scoring, f"the scoring of {where}")
        if (self.hierarchy or self.none_of_the_above) and self.type != "choice":
            raise UserError(f"{where} is a {self.type}: only a choice has a hierarchy or none_of_the_above.")
        if self.none_of_the_above and values[-1] != NONE_OF_THE_ABOVE:
            raise UserError(f"{where} with none_of_the_above ends in {shorten(values[-1])}: end it in {NONE_OF_THE_ABOVE!r}.")
        self._check_hierarchy(where)

    def _check_hierarchy(self, where: str) -> None:
        if not self.hierarchy:
            return
        for group in self.hierarchy:
            if not isinstance(group.name, str) or not group.name.strip() or group.size < 1:
                raise UserError(f"{where} has the group {shorten(group.name)}: a group has a name and one option at least.")
            check_text(group.name, f"group {shorten(group.name)} of {where}")
        if (twice := _first_duplicate(group.name for group in self.hierarchy)) is not None:
            raise UserError(f"{where} has the group {shorten(twice)} twice: groups must differ.")
        if len(self.hierarchy) + self.none_of_the_above < 2:
            raise UserError(f"{where} has one group: leave the hierarchy out, or divide the options among several.")
        if sum(group.size for group in self.hierarchy) + self.none_of_the_above != len(self.options):
            raise UserError(f"the groups of {where} have other options than the field: each option is in one group.")

    def index(self, value: Value) -> int:
        """Position of the option with this value (the type counts: ``True`` is not ``1``); `UserError` if there is none."""
        for i, option in enumerate(self.options):
            if option.value == value and type(option.value) is type(value):
                return i
        known = ", ".join(shorten(option.value, 30) for option in self.options[:8])
        more = f", … ({len(self.options)} in all)" if len(self.options) > 8 else ""
        raise UserError(f"field {shorten(self.name)} has no option {shorten(value)}: its options are {known}{more}.")

    @property
    def levels(self) -> tuple[float, ...] | None:
        """Numbers that an expectation is taken over: the integers themselves where all options are integers, else the
        positions 0, 1, …, n-1 of a ``score``; None for ``choice`` and ``bool``, which have no order."""
        if self.type not in ("score", "int"):
            return None
        values = [option.value for option in self.options]
        if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            return tuple(float(v) for v in values)
        return tuple(float(i) for i in range(len(values)))

    def to_dict(self) -> dict[str, Any]:
        """The field in the form that `Schema.of` reads."""
        out: dict[str, Any] = {"name": self.name, "type": self.type}
        if self.description is not None:
            out["description"] = self.description
        if self.scoring is not None:
            out["scoring"] = self.scoring
        written = [o.value if o.description is None else {"value": o.value, "description": o.description} for o in self.options]
        if self.type == "int":
            out |= {"minimum": self.options[0].value, "maximum": self.options[-1].value}
        elif self.hierarchy:
            ends = list(accumulate(group.size for group in self.hierarchy))
            out["hierarchy"] = {g.name: written[end - g.size : end] for g, end in zip(self.hierarchy, ends, strict=True)}
        elif self.type != "bool":
            out["options"] = written[: len(written) - self.none_of_the_above]
        if self.none_of_the_above:
            out["none_of_the_above"] = True
        return out


@dataclass(frozen=True)
class Schema:
    """The fields to decide, in order. ``model`` is the Pydantic model it was read from, if it was."""

    fields: tuple[Field, ...]
    model: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        if not self.fields:
            raise UserError("the schema has no fields: give it at least one.")
        names = [f.name for f in self.fields]
        if (twice := _first_duplicate(names)) is not None:
            raise UserError(f"field {shorten(twice)} stands twice in the schema: names must differ.")
        for name in names:
            if name + CONFIDENCE_SUFFIX in names:
                clash = name + CONFIDENCE_SUFFIX
                raise UserError(
                    f"field {shorten(clash)} has the name of the stated confidence of field {shorten(name)}: rename it."
                )

    def __getitem__(self, name: str) -> Field:
        for f in self.fields:
            if f.name == name:
                return f
        raise UserError(
            f"the schema has no field {shorten(name)}: its fields are {', '.join(shorten(f.name, 30) for f in self.fields)}."
        )

    def to_dict(self) -> dict[str, Any]:
        return {"fields": [f.to_dict() for f in self.fields]}

    @classmethod
    def of(cls, source: Schema | Mapping[str, Any] | type[BaseModel]) -> Schema:
        """A schema from itself, from ``{"fields": [...]}``, from a JSON Schema object or from a Pydantic model class."""
        if isinstance(source, Schema):
            return source
        if isinstance(source, type) and issubclass(source, BaseModel):
            return _from_model(source)
        if not isinstance(source, Mapping):
            raise UserError(f'the schema is {shorten(source)}: it must be an object such as {{"fields": [...]}}.')
        if "fields" in source:
            return _from_fields(source)
        if "properties" in source or source.get("type") == "object":
            return _from_json_schema(source)
        raise UserError('the schema has neither "fields" nor "properties": write {"fields": [...]} or a JSON Schema object.')

    @classmethod
    def from_json(cls, text: str, where: str = "the schema") -> Schema:
        """A schema from JSON text; ``where`` names its source in errors."""
        try:
            source = json.loads(text, object_pairs_hook=_unique_keys)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{where} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}): mend it."
            ) from None
        except RecursionError:
            raise UserError(f"{where} is nested too deeply to be a schema: write it flat.") from None
        except UserError:  # a key that stands twice
            raise
        except ValueError:  # an integer of more than 4300 digits
            raise UserError(f"{where} holds a number that is too long to be read: mend it.") from None
        return cls.of(source)

    @classmethod
    def from_file(cls, path: Path) -> Schema:
        return cls.from_json(read_text(path, "schema file"), f"schema file {str(path)!r}")


@dataclass(frozen=True)
class OrderEffect:
    """How much an answer owes to the order of the options. ``tried``: orders that were joined. ``total_variation``: mean distance
    ½ Σ |p − q| in [0, 1] between their probabilities and the joined ones. ``flips``: share of them that chose another option."""

    tried: int
    total_variation: float
    flips: float


@dataclass(frozen=True)
class FieldDecision:
    """The answer to one field.

    ``probabilities``: one per option, in the schema's order, summing to 1. ``stated``: the confidence in (0, 1) that the model
    says it has (value of its most probable bucket); ``stated_mean``: the expectation over the buckets. ``coverage``: share in
    [0, 1] of the full vocabulary's probability that lies on tokens with which an answer can begin (its labels, if it has any), if
    asked for. ``orders``: where several orders of the options were joined. ``prior``: what was subtracted, in words.
    """

    field: Field
    probabilities: tuple[float, ...]
    stated: float
    stated_mean: float
    coverage: float | None = None
    orders: OrderEffect | None = None
    prior: str | None = None

    @property
    def choice(self) -> int:
        """Index of the most probable option; the first of them on a tie."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def value(self) -> Value:
        return self.field.options[self.choice].value

    @property
    def probability(self) -> float:
        """Probability of ``value``."""
        return self.probabilities[self.choice]

    @property
    def expectation(self) -> float | None:
        """Mean of `Field.levels` under the probabilities; None for a field without order."""
        levels = self.field.levels
        return None if levels is None else sum(p * v for p, v in zip(self.probabilities, levels, strict=True))

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
        return out


@dataclass(frozen=True)
class Decision:
    """The answers to all fields of a schema over one text."""

    schema: Schema
    fields: tuple[FieldDecision, ...]

    def __getitem__(self, name: str) -> FieldDecision:
        return self.fields[self.schema.fields.index(self.schema[name])]

    @property
    def values(self) -> dict[str, Value]:
        return {f.field.name: f.value for f in self.fields}

    def to_dict(self) -> dict[str, Any]:
        """``{"decision": {name: value}, "fields": {name: {value, probabilities, …}}}``, ready for `json.dumps`."""
        return {"decision": self.values, "fields": {f.field.name: f.to_dict() for f in self.fields}}

    def instance(self) -> BaseModel:
        """The decision as a validated instance of the Pydantic model the schema was read from.

        A ``float`` field of the model takes the probability of yes. Raises `UserError` if the schema came from elsewhere, and
        Pydantic's ``ValidationError`` if a validator of the model's own refuses the values.
        """
        model = self.schema.model
        if model is None:
            raise UserError("the schema was not read from a Pydantic model: use Schema.of(YourModel), or read Decision.values.")
        values: dict[str, Any] = dict(self.values)
        for answer in self.fields:
            if model.model_fields[answer.field.name].annotation is float:
                values[answer.field.name] = answer.probabilities[0]  # the options of a bool are (true, false)
        return model.model_validate_json(json.dumps(values), by_alias=False, by_name=True)  # JSON mode: enums pass in strict models


def read_text(path: Path, what: str) -> str:
    """A text file in UTF-8 (a byte-order mark is dropped); `UserError` if it can't be read as one."""
    try:
        return path.read_bytes().decode("utf-8-sig")  # line ends stay as they are: they are part of the text
    except FileNotFoundError:
        raise UserError(f"{what} {str(path)!r} does not exist: check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {str(path)!r} is not UTF-8 (byte {error.start}): convert it, for instance with iconv.") from None
    except OSError as error:
        raise UserError(f"{what} {str(path)!r} can't be read ({error.strerror}): check the path.") from None


# ---- {"fields": [...]} ----


def _from_fields(source: Mapping[str, Any]) -> Schema:
    _only_keys(source, {"fields"}, "the schema")
    if not isinstance(source["fields"], list):
        raise UserError(f'"fields" of the schema is {shorten(source["fields"])}: it must be a list of fields.')
    return Schema(tuple(_field(f, i) for i, f in enumerate(source["fields"])))


def _field(source: Any, position: int) -> Field:
    if not isinstance(source, Mapping):
        raise UserError(f'field {position + 1} of the schema is {shorten(source)}: it must be an object with "name" and "type".')
    for key in ("name", "type"):
        if key not in source:
            raise UserError(f'field {shorten(source.get("name", position + 1))} of the schema has no "{key}": add it.')
    name, kind, description = source["name"], source["type"], source.get("description")
    where = f"field {shorten(name)}"
    common = {"name", "type", "description", "scoring"}
    options: tuple[Option, ...] = ()
    groups: tuple[Group, ...] = ()
    none = source.get("none_of_the_above", False)
    if kind in ("choice", "score"):
        _only_keys(source, common | ({"options", "hierarchy", "none_of_the_above"} if kind == "choice" else {"options"}), where)
        if "hierarchy" in source and "options" in source:
            raise UserError(f'{where} has "options" and a "hierarchy": leave "options" out, the groups name them all.')
        if "hierarchy" in source:
            options, groups = _groups(source["hierarchy"], where)
        elif not isinstance(source.get("options"), list):
            raise UserError(f'{where} has "options" {shorten(source.get("options"))}: a {kind} needs a list of options.')
        else:
            options = tuple(_option(o, where) for o in source["options"])
        if not isinstance(none, bool):
            raise UserError(f'{where} has "none_of_the_above" {shorten(none)}: it must be true or false.')
        if none:
            options += (Option(NONE_OF_THE_ABOVE, "no other option fits"),)
    elif kind == "bool":
        _only_keys(source, common, where)
        options = (Option(True), Option(False))
    elif kind == "int":
        _only_keys(source, common | {"minimum", "maximum"}, where)
        options = _integers(source.get("minimum"), source.get("maximum"), where)
    return Field(name, kind, options, description, source.get("scoring"), groups, bool(none) and kind == "choice")


def _groups(source: Any, where: str) -> tuple[tuple[Option, ...], tuple[Group, ...]]:
    if not isinstance(source, Mapping) or not all(isinstance(options, list) for options in source.values()):
        raise UserError(f'{where} has the hierarchy {shorten(source)}: it must be an object such as {{"group": ["option", ...]}}.')
    options = tuple(_option(option, where) for group in source.values() for option in group)
    return options, tuple(Group(name, len(group)) for name, group in source.items())


def _option(source: Any, where: str) -> Option:
    if isinstance(source, Mapping):
        _only_keys(source, {"value", "description"}, f"an option of {where}")
        if "value" not in source:
            raise UserError(f'{where} has the option {shorten(source)} without "value": add it.')
        value, description = source["value"], source.get("description")
    else:
        value, description = source, None
    if isinstance(value, bool):
        raise UserError(
            f'{where} has the option {shorten(value)}: an option is a string or an integer; for yes or no use the type "bool".'
        )
    return Option(value, description)


def _integers(low: Any, high: Any, where: str) -> tuple[Option, ...]:
    for bound, value in (("minimum", low), ("maximum", high)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(
                f"{where} has the {bound} {shorten(value)}: a bounded integer needs a minimum and a maximum, both integers."
            )
    if not 2 <= high - low + 1 <= MAX_OPTIONS:
        raise UserError(
            f"{where} ranges from {shorten(low)} to {shorten(high)}, over {shorten(max(high - low + 1, 0))} integers: "
            f"a range holds between 2 and {MAX_OPTIONS}."
        )
    return tuple(Option(v) for v in range(low, high + 1))


# ---- JSON Schema ----

_ANNOTATIONS = {"title", "description", "default", "examples", "$comment"}  # these change no answer


def _from_json_schema(source: Mapping[str, Any]) -> Schema:
    _only_keys(
        source, {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_ANNOTATIONS}, "the JSON Schema"
    )
    if source.get("type", "object") != "object":
        raise UserError(f'the JSON Schema has the type {shorten(source["type"])}: at the top it must be "object".')
    properties = source.get("properties", {})
    if not isinstance(properties, Mapping):
        raise UserError(f'"properties" of the JSON Schema is {shorten(properties)}: it must be an object.')
    if not isinstance(source.get("additionalProperties", False), bool):
        raise UserError('the JSON Schema has an "additionalProperties" schema, which is not supported: name every property.')
    required = source.get("required", [])
    if not isinstance(required, list):
        raise UserError(f'"required" of the JSON Schema is {shorten(required)}: it must be a list of property names.')
    for name in required:
        if name not in list(properties):
            raise UserError(f"the JSON Schema requires {shorten(name)}, which is not among its properties: add it or drop it.")
    return Schema(tuple(_property(name, prop) for name, prop in properties.items()))


def _property(name: str, source: Any) -> Field:
    where = f"property {shorten(name)}"
    if not isinstance(source, Mapping):
        raise UserError(f"{where} is {shorten(source)}: it must be a JSON Schema object.")
    description = _describe(source.get("title"), source.get("description"))
    kind = source.get("type")
    if "enum" in source:
        _only_keys(source, {"enum", "type", *_ANNOTATIONS}, where)
        if not isinstance(source["enum"], list) or kind not in (None, "string", "integer"):
            raise UserError(
                f"{where} has the enum {shorten(source['enum'])} of type {shorten(kind)}: use a list of strings or of integers."
            )
        for value in source["enum"]:
            if isinstance(value, bool) or not isinstance(value, {"string": str, "integer": int, None: str | int}[kind]):
                raise UserError(f"{where} has the enum value {shorten(value)}: use {kind or 'string or integer'} values.")
        return Field(name, "choice", tuple(Option(v) for v in source["enum"]), description)
    if kind == "boolean":
        _only_keys(source, {"type", *_ANNOTATIONS}, where)
        return Field(name, "bool", (Option(True), Option(False)), description)
    if kind == "integer":
        _only_keys(source, {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *_ANNOTATIONS}, where)
        low, high = source.get("minimum"), source.get("maximum")
        if isinstance(source.get("exclusiveMinimum"), int):
            low = max(source["exclusiveMinimum"] + 1, low if isinstance(low, int) else source["exclusiveMinimum"] + 1)
        if isinstance(source.get("exclusiveMaximum"), int):
            high = min(source["exclusiveMaximum"] - 1, high if isinstance(high, int) else source["exclusiveMaximum"] - 1)
        return Field(name, "int", _integers(low, high, where), description)
    _only_keys(source, {"type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *_ANNOTATIONS}, where)
    raise UserError(f'{where} has the type {shorten(kind)}: use "enum", "boolean", or "integer" with minimum and maximum.')


# ---- Pydantic ----


def _from_model(model: type[BaseModel]) -> Schema:
    return Schema(tuple(_model_field(name, info) for name, info in model.model_fields.items()), model)


def _model_field(name: str, info: FieldInfo) -> Field:
    where = f"field {shorten(name)} of the model"
    kind = info.annotation
    description = _describe(info.title, info.description)
    if kind is bool:
        return Field(name, "bool", (Option(True), Option(False)), description)
    if kind is int or kind is float:
        low, high = _bounds(info, where)
        if kind is int:
            return Field(name, "int", _integers(low, high, where), description)
        if (low, high) != (0, 1):
            raise UserError(
                f"{where} is a float outside [0, 1]: a float is the probability of yes, so declare it with ge=0 and le=1."
            )
        return Field(name, "bool", (Option(True), Option(False)), description)
    if get_origin(kind) is Literal:
        return Field(name, "choice", tuple(_option(v, where) for v in get_args(kind)), description)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Field(name, "choice", tuple(_option(member.value, where) for member in kind), description)
    shown = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else str(kind)
    raise UserError(f"{where} has the type {shown}: use bool, Literal, Enum, a bounded int, or a float from 0 to 1.")


def _bounds(info: FieldInfo, where: str) -> tuple[Any, Any]:
    """Inclusive bounds of an int or float field, from its ge, gt, le and lt constraints; anything else is refused by name."""
    lows: list[Any] = []
    highs: list[Any] = []
    for constraint in info.metadata:
        parts = constraint if isinstance(constraint, Interval) else (constraint,)
        for part in parts:
            if isinstance(part, Ge):
                lows.append(part.ge)
            elif isinstance(part, Le):
                highs.append(part.le)
            elif isinstance(part, Gt) and info.annotation is int:
                lows.append(part.gt + 1)  # type: ignore[operator]
            elif isinstance(part, Lt) and info.annotation is int:
                highs.append(part.lt - 1)  # type: ignore[operator]
            else:
                raise UserError(f"{where} has the constraint {shorten(part)}, which is not supported: bound it with ge and le.")
    return max(lows, default=None), min(highs, default=None)


# ---- small checks ----


def _describe(title: Any, description: Any) -> str | None:
    for text in (title, description):
        if text is not None and not isinstance(text, str):
            raise UserError(f"a title or description is {shorten(text)}: it must be a string.")
    return f"{title}: {description}" if title and description else title or description


def check_text(text: Any, what: str) -> None:
    """`UserError` unless ``text`` is a string of whole Unicode characters, or None; ``what`` names it."""
    if text is None:
        return
    if not isinstance(text, str):
        raise UserError(f"{what} is {shorten(text)}: it must be a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds half of a surrogate pair at character {error.start}, which is not Unicode text: remove it."
        ) from None


def _only_keys(source: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    if unknown := [k for k in source if k not in set(known)]:
        raise UserError(f"{where} has {shorten(unknown[0])}, which is not supported here: known are {', '.join(sorted(known))}.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (twice := _first_duplicate(key for key, _ in pairs)) is not None:
        raise UserError(f"the key {shorten(twice)} stands twice in one JSON object: names must differ.")
    return dict(pairs)


def _first_duplicate(items: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _count(options: tuple[Option, ...]) -> str:
    return f"{len(options)} option{'' if len(options) == 1 else 's'}"
