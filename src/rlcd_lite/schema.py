"""What is to be decided: fields with a closed set of options, and the rules that their answers keep.

A schema is read from ``{"fields": [...]}``, from a JSON Schema object or from a Pydantic model; all three become the same
frozen `Schema`: a flat list of fields, rules between them, and the shape of the object that their answers are assembled into.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from rlcd_lite import shape as shapes
from rlcd_lite.errors import UserError, check_keys, check_text, first_duplicate, shorten
from rlcd_lite.files import read_text
from rlcd_lite.json_schema import lower, lower_model
from rlcd_lite.settings import Scoring, check_choice
from rlcd_lite.shape import Array, Object

MAX_OPTIONS = 255
CONFIDENCE_SUFFIX = "_confidence"  # the prompt asks for a field's stated confidence under this key

NONE_OF_THE_ABOVE = "none_of_the_above"  # the value of the option that says that no other fits
NOT_SAID = "not said in the text"  # what null means, unless the schema says it

Value = str | int | bool | None
FieldType = Literal["choice", "bool", "score", "int"]


@dataclass(frozen=True)
class Option:
    """One possible answer of a field: the JSON value it stands for (None is ``null``) and, optionally, what it means."""

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
    last option, outside all groups, says that no other fits. ``optional``: the last option, outside all groups, is ``null``.
    Raises `UserError` for a name or an option set that can't be decided.
    """

    name: str
    type: FieldType
    options: tuple[Option, ...]
    description: str | None = None
    scoring: Scoring | None = None
    hierarchy: tuple[Group, ...] = ()
    none_of_the_above: bool = False
    optional: bool = False

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
        if self.none_of_the_above and self.optional:
            raise UserError(f"{where} is optional and has none_of_the_above: leave one of them out.")
        if self.optional and self.options[-1].value is not None:
            raise UserError(f"{where} is optional and ends in {shorten(self.options[-1].value)}: end it in null.")
        for option in self.options[: len(self.options) - self.optional]:
            if option.value is None:
                raise UserError(f'{where} has the option None: leave it out and write "optional": true.')
            if not isinstance(option.value, str | int):
                raise UserError(f"{where} has the option {shorten(option.value)}: an option is a string or an integer.")
            if not option.text.strip():
                raise UserError(f"{where} has the blank option {shorten(option.value)}: give every option a text.")
        for option in self.options:
            check_text(option.text, f"option {shorten(option.value)} of {where}")
            check_text(option.description, f"the description of option {shorten(option.value)} of {where}")
        if (twice := first_duplicate(option.text for option in self.options)) is not None:
            raise UserError(f"{where} has the option {shorten(twice)} twice: options must differ.")
        values = [option.value for option in self.options][: len(self.options) - self.optional]
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
        if (twice := first_duplicate(group.name for group in self.hierarchy)) is not None:
            raise UserError(f"{where} has the group {shorten(twice)} twice: groups must differ.")
        if len(self.hierarchy) + self.fixed < 2:
            raise UserError(f"{where} has one group: leave the hierarchy out, or divide the options among several.")
        if sum(group.size for group in self.hierarchy) + self.fixed != len(self.options):
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
    def fixed(self) -> int:
        """How many options (0 or 1) stand last in every order and outside all groups: none of the above, or null."""
        return int(self.none_of_the_above or self.optional)

    @property
    def levels(self) -> tuple[float, ...] | None:
        """Numbers that an expectation is taken over: the integers themselves where all options but null are integers, else the
        positions 0, 1, …, n-1 of a ``score``; None for ``choice`` and ``bool``, which have no order."""
        if self.type not in ("score", "int"):
            return None
        values = [option.value for option in self.options if option.value is not None]
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
            out |= {"minimum": self.options[0].value, "maximum": self.options[-1 - self.fixed].value}
        elif self.hierarchy:
            ends = list(accumulate(group.size for group in self.hierarchy))
            out["hierarchy"] = {g.name: written[end - g.size : end] for g, end in zip(self.hierarchy, ends, strict=True)}
        elif self.type == "bool":
            out |= {o.text: o.description for o in self.options[:2] if o.description is not None}
        else:
            out["options"] = written[: len(written) - self.fixed]
        if self.none_of_the_above:
            out["none_of_the_above"] = True
        if self.optional:
            null = self.options[-1].description
            out["optional"] = True if null in (None, NOT_SAID) else null
        return out


@dataclass(frozen=True)
class Condition:
    """That a field has one of these options: their indices, ascending."""

    field: str
    options: tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """Where all of ``when`` hold, all of ``then`` hold; without ``then``, ``when`` don't hold together."""

    when: tuple[Condition, ...]
    then: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Schema:
    """The fields to decide, in order, and the ``rules`` that their answers keep.

    ``shape``: the object that the answers are assembled into; None for a flat one of the fields. ``model``: the Pydantic model that
    the schema was read from, if it was. ``numbers``: the yes/no fields that the model declares as floats.
    """

    fields: tuple[Field, ...]
    rules: tuple[Rule, ...] = ()
    shape: Object | None = None
    model: type[BaseModel] | None = None
    numbers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.fields:
            raise UserError("the schema has no fields: give it at least one.")
        names = self._by_name
        if (twice := first_duplicate(f.name for f in self.fields)) is not None:
            raise UserError(f"field {shorten(twice)} stands twice in the schema: names must differ.")
        for name in names:
            if name + CONFIDENCE_SUFFIX in names:
                clash = name + CONFIDENCE_SUFFIX
                raise UserError(
                    f"field {shorten(clash)} has the name of the stated confidence of field {shorten(name)}: rename it."
                )
        for number, rule in enumerate(self.rules, start=1):
            self._check_rule(rule, f"rule {number}")
        if self.shape is not None:
            self._check_shape(self.shape)

    def _check_rule(self, rule: Rule, where: str) -> None:
        if not rule.when:
            raise UserError(f"{where} has no condition: name a field and its options.")
        for side in (rule.when, rule.then):
            if (twice := first_duplicate(condition.field for condition in side)) is not None:
                raise UserError(f"{where} names field {shorten(twice)} twice on one side: list its options in one condition.")
            for condition in side:
                field, chosen = self[condition.field], condition.options
                if not chosen or list(chosen) != sorted(set(chosen) & set(range(len(field.options)))):
                    raise UserError(
                        f"{where} has the options {shorten(chosen)} of field {shorten(field.name)}: give indices, ascending."
                    )
                if len(chosen) == len(field.options):
                    raise UserError(f"{where} allows all options of field {shorten(field.name)}, which says nothing: leave it out.")

    def _check_shape(self, shape: Object) -> None:
        count = Counter(self[name].name for name in shapes.leaves(shape))
        for name, times in count.items():
            if times > 1:
                raise UserError(f'field {shorten(name)} stands twice in the "object" of the schema: name it once.')
        if missing := [f.name for f in self.fields if f.name not in count]:
            raise UserError(f'field {shorten(missing[0])} is missing from the "object" of the schema: give it a place.')
        for array in shapes.arrays(shape):
            for item, name in array.members:
                if self[name].type != "bool" or self[name].optional:
                    raise UserError(f"field {shorten(name)} of the item {shorten(item)} is not answered yes or no: make it a bool.")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays whose bounds exclude something."""
        return () if self.shape is None else tuple(a for a in shapes.arrays(self.shape) if a.bounded)

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {f.name: f for f in self.fields}

    def __getitem__(self, name: str) -> Field:
        if isinstance(name, str) and name in self._by_name:
            return self._by_name[name]
        raise UserError(
            f"the schema has no field {shorten(name)}: its fields are {', '.join(shorten(f.name, 30) for f in self.fields)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The schema in the form that `Schema.of` reads; what only a model knows is left out."""
        out: dict[str, Any] = {"fields": [f.to_dict() for f in self.fields]}
        if self.rules:
            out["rules"] = [self._rule_to_dict(rule) for rule in self.rules]
        if self.shape is not None:
            out["object"] = shapes.to_dict(self.shape)
        return out

    def _rule_to_dict(self, rule: Rule) -> dict[str, Any]:
        def side(conditions: tuple[Condition, ...]) -> dict[str, Any]:
            named = {c.field: [self[c.field].options[i].value for i in c.options] for c in conditions}
            return {name: values[0] if len(values) == 1 else values for name, values in named.items()}

        return {"if": side(rule.when), "then": side(rule.then)} if rule.then else {"not": side(rule.when)}

    @classmethod
    def of(cls, source: Schema | Mapping[str, Any] | type[BaseModel]) -> Schema:
        """A schema from itself, from ``{"fields": [...]}``, from a JSON Schema object or from a Pydantic model class."""
        if isinstance(source, Schema):
            return source
        try:
            if isinstance(source, type) and issubclass(source, BaseModel):
                lowered, numbers = lower_model(source)
                return replace(_from_fields(lowered), model=source, numbers=numbers)
            if not isinstance(source, Mapping):
                raise UserError(f'the schema is {shorten(source)}: it must be an object such as {{"fields": [...]}}.')
            if "fields" in source:
                return _from_fields(source)
            if "properties" in source or "$ref" in source or source.get("type") == "object":
                return _from_fields(lower(source))
        except RecursionError:
            raise UserError("the schema is nested too deeply to be read: write it flatter.") from None
        raise UserError('the schema has neither "fields" nor "properties": write {"fields": [...]} or a JSON Schema object.')

    @classmethod
    def from_json(cls, text: str, where: str = "the schema") -> Schema:
        """A schema from JSON text; ``where`` names its source in errors."""
        try:
            source = json.loads(text, object_pairs_hook=unique_keys)
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


# ---- {"fields": [...]} ----


def _from_fields(source: Mapping[str, Any]) -> Schema:
    check_keys(source, {"fields", "rules", "object"}, "the schema")
    for key in ("fields", "rules"):
        if not isinstance(source.get(key, []), list):
            raise UserError(f'"{key}" of the schema is {shorten(source[key])}: it must be a list of {key}.')
    fields = Schema(tuple(_field(f, i) for i, f in enumerate(source["fields"])))
    rules = tuple(_rule(fields, rule, f"rule {i}") for i, rule in enumerate(source.get("rules", []), start=1))
    shape = None
    if "object" in source:
        node = shapes.read(source["object"])
        if not isinstance(node, Object):
            raise UserError(f'the "object" of the schema is {shorten(source["object"])}: at the top write {{"object": {{…}}}}.')
        shape = node
    return replace(fields, rules=rules, shape=shape)


def _rule(schema: Schema, source: Any, where: str) -> Rule:
    if not isinstance(source, Mapping) or set(source) not in ({"if", "then"}, {"not"}):
        raise UserError(f'{where} is {shorten(source)}: write {{"if": {{…}}, "then": {{…}}}} or {{"not": {{…}}}}.')
    if "not" in source:
        return Rule(_conditions(schema, source["not"], f'the "not" of {where}'))
    return Rule(*(_conditions(schema, source[side], f'the "{side}" of {where}') for side in ("if", "then")))


def _conditions(schema: Schema, source: Any, where: str) -> tuple[Condition, ...]:
    """``{"field": option, "field": [options], "field": {"not": option or options}}``."""
    if not isinstance(source, Mapping) or not source:
        raise UserError(f'{where} is {shorten(source)}: write an object such as {{"field": "option"}}.')
    out = []
    for name, given in source.items():
        negated = isinstance(given, Mapping) and set(given) == {"not"}
        values = given["not"] if negated else given
        try:
            field = schema[name]
            chosen = {field.index(value) for value in (values if isinstance(values, list) else [values])}
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if negated:
            chosen = set(range(len(field.options))) - chosen
        if not chosen:
            raise UserError(f"{where} leaves field {shorten(name)} no option: leave it one at least.")
        out.append(Condition(name, tuple(sorted(chosen))))
    return tuple(out)


def _field(source: Any, position: int) -> Field:
    if not isinstance(source, Mapping):
        raise UserError(f'field {position + 1} of the schema is {shorten(source)}: it must be an object with "name" and "type".')
    for key in ("name", "type"):
        if key not in source:
            raise UserError(f'field {shorten(source.get("name", position + 1))} of the schema has no "{key}": add it.')
    name, kind, description = source["name"], source["type"], source.get("description")
    where = f"field {shorten(name)}"
    common = {"name", "type", "description", "scoring", "optional"}
    options: tuple[Option, ...] = ()
    groups: tuple[Group, ...] = ()
    none = source.get("none_of_the_above", False)
    if kind in ("choice", "score"):
        check_keys(source, common | ({"options", "hierarchy", "none_of_the_above"} if kind == "choice" else {"options"}), where)
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
        check_keys(source, common | {"true", "false"}, where)
        options = (Option(True, source.get("true")), Option(False, source.get("false")))
    elif kind == "int":
        check_keys(source, common | {"minimum", "maximum"}, where)
        options = _integers(source.get("minimum"), source.get("maximum"), where)
    optional = source.get("optional", False)
    if not isinstance(optional, bool) and not (isinstance(optional, str) and optional.strip()):
        raise UserError(f'{where} has "optional" {shorten(optional)}: it must be true, false or what null means, in words.')
    if optional:
        options += (Option(None, NOT_SAID if optional is True else optional),)
    none = bool(none) and kind == "choice"
    return Field(name, kind, options, description, source.get("scoring"), groups, none, bool(optional))


def _groups(source: Any, where: str) -> tuple[tuple[Option, ...], tuple[Group, ...]]:
    if not isinstance(source, Mapping) or not all(isinstance(options, list) for options in source.values()):
        raise UserError(f'{where} has the hierarchy {shorten(source)}: it must be an object such as {{"group": ["option", ...]}}.')
    options = tuple(_option(option, where) for group in source.values() for option in group)
    return options, tuple(Group(name, len(group)) for name, group in source.items())


def _option(source: Any, where: str) -> Option:
    if isinstance(source, Mapping):
        check_keys(source, {"value", "description"}, f"an option of {where}")
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


# ---- small checks ----


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its keys and values (an ``object_pairs_hook``); `UserError` for a key that stands twice."""
    if (twice := first_duplicate(key for key, _ in pairs)) is not None:
        raise UserError(f"the key {shorten(twice)} stands twice in one JSON object: names must differ.")
    return dict(pairs)


def _count(options: tuple[Option, ...]) -> str:
    return f"{len(options)} option{'' if len(options) == 1 else 's'}"
