"""A JSON Schema, or a Pydantic model's, lowered to the native form ``{"fields": [...], "rules": [...], "object": {...}}``.

What is decided lies at the leaves: a property with an ``enum`` or a list of constants becomes a choice, a ``boolean`` a yes/no
field, a bounded ``integer`` an int, and an array one yes/no field per item. Leaves are named by their path (``customer.plan``).
``if``/``then``/``else`` and ``not`` become rules. Any other keyword is refused by its name and place.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from rlcd_lite.errors import UserError, check_keys, shorten

Json = Mapping[str, Any]
Path = tuple[str, ...]  # the properties that lead to a place
Refs = frozenset[str]  # the definitions that lead to a place

ANNOTATIONS = {"title", "description", "default", "examples", "$comment"}  # these change no answer
RULES = {"if", "then", "else", "not", "allOf"}
OBJECT = {"type", "properties", "required", "additionalProperties", *RULES, *ANNOTATIONS}
TOP = {"$schema", "$id", "$defs", "definitions", "rules"}
INTEGER = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *ANNOTATIONS}
ARRAY = {"type", "items", "minItems", "maxItems", "uniqueItems", *ANNOTATIONS}

UNFOLDED = 1 << 20  # characters and constants, about, that a schema may unfold to: references can double it at every level
_PART = 500  # what a part counts for beside them

TYPES: dict[str, Any] = {"string": str, "integer": int, "number": int | float, "boolean": bool, "null": type(None)}


def lower(source: Json) -> dict[str, Any]:
    """The native form of a JSON Schema; `UserError` names the first thing in it that can't be decided."""
    return _Lowering(source, 'use "enum", "boolean", "integer" with minimum and maximum, "array" or "object"').native()


def lower_model(model: type[BaseModel]) -> tuple[dict[str, Any], frozenset[str]]:
    """The native form of a Pydantic model, and the names of the yes/no fields that it declares as floats from 0 to 1."""
    try:
        source = model.model_json_schema(by_alias=False, schema_generator=_Plain)
    except PydanticUserError as error:
        raise UserError(f"the model {model.__name__} has no JSON Schema ({error.message}): mend it.") from None
    lowering = _Lowering(
        source, "use bool, Literal, Enum, a bounded int, a float from 0 to 1, or lists and models of these", floats=True
    )
    return lowering.native(), frozenset(lowering.numbers)


class _Plain(GenerateJsonSchema):
    """Pydantic's generator without the titles that it makes of names, and with a type that is refused for what has none."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (Pydantic's own declaration)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def enum_schema(self, schema: core_schema.EnumSchema) -> dict[str, Any]:
        return {key: value for key, value in super().enum_schema(schema).items() if key != "title"}

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {"type": error_info}


class _Lowering:
    """One walk through a JSON Schema, which collects fields, rules and the names of fields that are floats.

    ``known``: what a property may be, for errors. ``floats``: whether a number from 0 to 1 is a yes/no field.
    """

    def __init__(self, root: Json, known: str, floats: bool = False) -> None:
        self.root, self.known, self.floats = root, known, floats
        self.fields: list[dict[str, Any]] = []
        self.rules: list[Any] = []
        self.numbers: list[str] = []
        self.unfolded = 0

    def native(self) -> dict[str, Any]:
        top, refs = self._resolve(self.root, _where(()), frozenset(), TOP)
        if top.get("type", "object") != "object":
            raise UserError(f'the JSON Schema has the type {shorten(top["type"])}: at the top it must be "object".')
        properties = self._object(top, (), refs)
        flat = all(node == {"field": name} for name, node in properties.items())
        rules = (dict(self.root) | top).get("rules", [])
        if not isinstance(rules, list):
            raise UserError(f'"rules" of the JSON Schema is {shorten(rules)}: it must be a list of rules.')
        rules = rules + self.rules
        out: dict[str, Any] = {"fields": self.fields}
        return out | ({"rules": rules} if rules else {}) | ({} if flat else {"object": {"object": properties}})

    # ---- properties ----

    def _object(self, source: Json, path: Path, refs: Refs) -> dict[str, Any]:
        """The nodes of an object's properties."""
        where = _where(path)
        check_keys(source, OBJECT if path else OBJECT | TOP, where)
        properties = source.get("properties", {})
        if not isinstance(properties, Mapping) or (path and not properties):
            raise UserError(f'"properties" of {where} is {shorten(properties)}: it must be an object that names each property.')
        for name in properties:
            if not isinstance(name, str) or not name.strip():
                raise UserError(f"{where} has the property name {shorten(name)}: give every property a name.")
        if not isinstance(source.get("additionalProperties", False), bool):
            raise UserError(f'{where} has an "additionalProperties" schema, which is not supported: name every property.')
        required = source.get("required", [])
        if not isinstance(required, list):
            raise UserError(f'"required" of {where} is {shorten(required)}: it must be a list of property names.')
        for name in required:
            if name not in list(properties):
                raise UserError(f"{where} requires {shorten(name)}, which is not among its properties: add it or drop it.")
        nodes = {name: self._property(child, (*path, name), refs) for name, child in properties.items()}
        self._conditional(source, nodes, where)
        return nodes

    def _property(self, source: Any, path: Path, refs: Refs, null: Json | None = None) -> dict[str, Any]:
        """The node of a property. ``null``: the schema of null, where the answer may be null."""
        where = _where(path)
        source, refs = self._resolve(source, where, refs)
        said = None if null is None else _describe(null, where)
        if (union := _or_null(source)) is not None:
            key, other, nothing = union
            check_keys(source, {key, *ANNOTATIONS}, where)
            check_keys(nothing, {"type", *ANNOTATIONS}, where)
            inner, refs = self._resolve(other, where, refs)
            return self._property(inner | _annotations(source), path, refs, nothing)
        if (constants := self._constants(source, where, refs)) is not None:
            return self._choice(source, constants + ([] if null is None else [(None, said)]), path)
        if key := next((key for key in ("anyOf", "oneOf") if key in source), ""):
            raise UserError(f"{where} has {key} of other things than constants: list constants, or one schema and null.")
        kind, nullable = _kind(source, where)
        optional: dict[str, Any] = {}
        if nullable or null is not None:
            optional = {"optional": said or True}
        if kind == "boolean":
            check_keys(source, {"type", *ANNOTATIONS}, where)
            return self._field(source, path, {"type": "bool"} | optional)
        if kind == "integer":
            check_keys(source, INTEGER, where)
            low, high = _bounds(source, where)
            return self._field(source, path, {"type": "int", "minimum": low, "maximum": high} | optional)
        if kind == "number" and self.floats:
            check_keys(source, INTEGER, where)
            if any(key.startswith("exclusive") for key in source) or (source.get("minimum"), source.get("maximum")) != (0, 1):
                raise UserError(
                    f"{where} is a float outside [0, 1]: a float is the probability of yes, so declare it with ge=0 and le=1."
                )
            self.numbers.append(".".join(path))
            return self._field(source, path, {"type": "bool"} | optional)
        if kind == "object" or (kind is None and "properties" in source):
            if optional:
                raise UserError(f"{where} is an object that may be null: require it, and let its properties be null instead.")
            return {"object": self._object(source, path, refs)}
        if kind == "array":
            if optional:
                raise UserError(f"{where} is an array that may be null: require it, and let it be empty instead.")
            return self._array(source, path, refs)
        check_keys(source, INTEGER | {"enum", "const", "anyOf", "oneOf", "$ref"}, where)
        raise UserError(f"{where} has the type {shorten(kind)}: {self.known}.")

    def _field(self, source: Json, path: Path, field: dict[str, Any]) -> dict[str, Any]:
        """A leaf: the node that names the field, which is kept."""
        name, description = ".".join(path), _describe(source, _where(path))
        self._unfold(len(name) + len(description or ""))
        self.fields.append({"name": name} | field | ({} if description is None else {"description": description}))
        return {"field": name}

    def _choice(self, source: Json, constants: list[tuple[Any, str | None]], path: Path) -> dict[str, Any]:
        """The node of a property that has one of these constants, each with what it means."""
        where = _where(path)
        values = [value for value, _ in constants if value is not None]
        nulls = [said for value, said in constants if value is None]
        if len(constants) == 1:
            return {"const": constants[0][0]}
        if len(nulls) > 1:
            raise UserError(f"{where} has null twice: list it once.")
        optional: dict[str, Any] = {"optional": nulls[0] or True} if nulls else {}
        if sorted(map(repr, values)) == ["False", "True"]:
            if any(said for value, said in constants if value is not None):
                raise UserError(f"{where} describes true and false: say it in the description of the property instead.")
            return self._field(source, path, {"type": "bool"} | optional)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise UserError(f"{where} has the enum value {shorten(value)}: use string or integer values.")
        options = [{"value": v, "description": said} if said else v for v, said in constants if v is not None]
        return self._field(source, path, {"type": "choice", "options": options} | optional)

    def _array(self, source: Json, path: Path, refs: Refs) -> dict[str, Any]:
        """The node of an array of constants: one yes/no field for each."""
        where, name = _where(path), ".".join(path)
        check_keys(source, ARRAY, where)
        if not isinstance(source.get("uniqueItems", True), bool):
            raise UserError(f'{where} has "uniqueItems" {shorten(source["uniqueItems"])}: it must be true or false.')
        items, refs = self._resolve(source.get("items"), f"an item of {where}", refs)
        constants = self._constants(items, f"an item of {where}", refs)
        if not constants or not all(isinstance(v, str | int) and not isinstance(v, bool) for v, _ in constants):
            raise UserError(f"{where} has the items {shorten(source.get('items'))}: give them an enum of strings or integers.")
        members = []
        for item, said in constants:
            meaning = _join(_describe(source, where), said)
            self._unfold(_PART + len(meaning or ""))
            member = f"{name} includes {item}"
            self.fields.append({"name": member, "type": "bool"} | ({} if meaning is None else {"description": meaning}))
            members.append([item, member])
        return {"array": members} | {key: source[key] for key in ("minItems", "maxItems") if key in source}

    def _constants(self, source: Json, where: str, refs: Refs) -> list[tuple[Any, str | None]] | None:
        """The constants that a schema allows and what each means; None if it is not a list of constants."""
        key = next((key for key in ("oneOf", "anyOf") if key in source), None)
        if key is None or "enum" in source or "const" in source:
            values = _values(source, where)
            self._unfold(len(values or ()))
            return None if values is None else [(value, None) for value in values]
        if not isinstance(source[key], list) or not source[key]:
            raise UserError(f"{where} has {key} {shorten(source[key])}: it must be a list of schemas.")
        out = []
        for part in source[key]:
            resolved, deeper = self._resolve(part, where, refs)
            found = self._constants(resolved, where, deeper)
            if found is None:
                return None
            out += [(value, said or _describe(resolved, where)) for value, said in found]
        check_keys(source, {key, "type", *ANNOTATIONS}, where)
        _check_type(source, [value for value, _ in out], where)
        return out

    def _resolve(self, source: Any, where: str, refs: Refs, beside: Set[str] = frozenset()) -> tuple[dict[str, Any], Refs]:
        """A schema in place of the ``$ref`` to it, with the annotations beside it; ``beside``: what else may stand there."""
        if not isinstance(source, Mapping):
            raise UserError(f"{where} is {shorten(source)}: it must be a JSON Schema object.")
        self._unfold(_PART)
        found = dict(source)
        while "$ref" in found:
            check_keys(found, {"$ref", *ANNOTATIONS, *beside}, where)
            ref = found["$ref"]
            parts = ref.split("/") if isinstance(ref, str) else []
            if len(parts) != 3 or parts[0] != "#" or parts[1] not in ("$defs", "definitions"):
                raise UserError(f'{where} refers to {shorten(ref)}: use "#/$defs/NAME" or "#/definitions/NAME".')
            if ref in refs:
                raise UserError(f"{where} refers to {shorten(ref)} within itself, so it has no end: write its levels out.")
            name, known = unquote(parts[2]).replace("~1", "/").replace("~0", "~"), self.root.get(parts[1])
            if not isinstance(known, Mapping) or not isinstance(known.get(name), Mapping):
                raise UserError(f'{where} refers to {shorten(ref)}, which is not among the "{parts[1]}": add it.')
            refs |= {ref}
            found = dict(known[name]) | _annotations(found)
        return found, refs

    def _unfold(self, size: int) -> None:
        self.unfolded += size
        if self.unfolded > UNFOLDED:
            raise UserError("the JSON Schema is too large with all that it refers to: decide fewer properties at once.")

    # ---- rules ----

    def _conditional(self, source: Json, nodes: Json, where: str) -> None:
        """Keep the rules of an object with these ``nodes``, or of a part of its ``allOf``."""
        self._unfold(_PART)

        def conditions(key: str) -> dict[str, Any]:
            return _conditions(source[key], nodes, f'the "{key}" of {where}')

        if "if" in source and ("then" in source or "else" in source):
            when = conditions("if")
            if "then" in source:
                self.rules.append({"if": when, "then": conditions("then")})
            if "else" in source:
                if len(when) != 1:
                    raise UserError(f'{where} has an "else" to an "if" of {len(when)} conditions: write a rule for each.')
                ((name, values),) = when.items()
                otherwise = values["not"] if isinstance(values, dict) else {"not": values}
                self.rules.append({"if": {name: otherwise}, "then": conditions("else")})
        elif half := {"if", "then", "else"} & set(source):
            raise UserError(f'{where} has "{min(half)}" alone: write "if" with "then" or "else".')
        if "not" in source:
            self.rules.append({"not": conditions("not")})
        parts = source.get("allOf", [])
        if not isinstance(parts, list):
            raise UserError(f'{where} has "allOf" {shorten(parts)}: it must be a list of schemas with "if" and "then".')
        for number, part in enumerate(parts, start=1):
            within = f'part {number} of the "allOf" of {where}'
            if not isinstance(part, Mapping):
                raise UserError(f"{within} is {shorten(part)}: it must be a JSON Schema object.")
            check_keys(part, (RULES - {"allOf"}) | ANNOTATIONS, within)
            self._conditional(part, nodes, within)


def _conditions(source: Any, nodes: Json, where: str) -> dict[str, Any]:
    """``{field: [values]}`` or ``{field: {"not": [values]}}`` of a schema in a rule about an object with these ``nodes``.

    ``required`` says nothing there about a property that is decided, since every field is answered.
    """
    if not isinstance(source, Mapping):
        raise UserError(f"{where} is {shorten(source)}: it must be a JSON Schema object.")
    check_keys(source, {"type", "properties", "required", *ANNOTATIONS}, where)
    properties = source.get("properties")
    if source.get("type", "object") != "object" or not isinstance(properties, Mapping) or not properties:
        raise UserError(f'{where} names no property: write {{"properties": {{"name": {{"const": …}}}}}}.')
    for name in source.get("required", []) if isinstance(source.get("required", []), list) else [source["required"]]:
        if not isinstance(name, str) or name not in nodes:
            raise UserError(f"{where} requires {shorten(name)}, which is not among the properties that are decided: drop it.")
    out: dict[str, Any] = {}
    for name, part in properties.items():
        node, within = nodes.get(name, {}), f"property {shorten(name)} in {where}"
        if "object" in node:
            out |= _conditions(part, node["object"], within)
        elif "array" in node:
            raise UserError(
                f'{within} is an array: write a rule about its items under "rules", as {{"{node["array"][0][1]}": true}}.'
            )
        elif "field" not in node:
            raise UserError(f"{within} is not among the properties that are decided: name one that is.")
        elif isinstance(part, Mapping) and set(part) - ANNOTATIONS == {"not"}:
            out[node["field"]] = {"not": _given(part["not"], within)}
        else:
            out[node["field"]] = _given(part, within)
    return out


def _given(source: Any, where: str) -> list[Any]:
    values = _values(source, where)
    if values is None:
        raise UserError(f"{where} is {shorten(source)}: give it a const or an enum.")
    return values


# ---- small parts ----


def _where(path: Path) -> str:
    return f"property {shorten('.'.join(path))}" if path else "the JSON Schema"


def _annotations(source: Json) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key in ANNOTATIONS}


def _or_null(source: Json) -> tuple[str, Any, Json] | None:
    """The keyword, the other schema and null of a union of one schema and null; None for anything else. A described constant is
    not such a schema: what it means is said of the option, not of the field."""
    for key in ("anyOf", "oneOf"):
        parts = source.get(key)
        if isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, Mapping) for part in parts):
            first, second = sorted(parts, key=lambda part: part.get("type") == "null")
            if second.get("type") == "null" and first.get("type") != "null" and "const" not in first:
                return key, first, second
    return None


def _kind(source: Json, where: str) -> tuple[Any, bool]:
    """The type of a leaf, and whether it may be null as well."""
    kind = source.get("type")
    if not isinstance(kind, list):
        return kind, False
    others = [k for k in kind if k != "null"]
    if len(others) != 1:
        raise UserError(f'{where} has the type {shorten(kind)}: give it one type, and "null" where the answer may be null.')
    return others[0], len(others) < len(kind)


def _values(source: Any, where: str) -> list[Any] | None:
    """The values of an ``enum``, a ``const`` or null; None if a schema is none of these."""
    if not isinstance(source, Mapping):
        raise UserError(f"{where} is {shorten(source)}: it must be a JSON Schema object.")
    key = next((key for key in ("enum", "const") if key in source), "type")
    if key == "type" and source.get("type") != "null":
        return None
    check_keys(source, {key, "type", *ANNOTATIONS}, where)
    values = source["enum"] if key == "enum" else [source.get("const")]
    if not isinstance(values, list):
        raise UserError(f"{where} has the enum {shorten(values)}: use a list of strings or of integers.")
    if len(values) > 256:
        raise UserError(f"{where} has an enum of {len(values)} values: a field has 255 options at most, and null.")
    _check_type(source, values, where)
    return values


def _check_type(source: Json, values: list[Any], where: str) -> None:
    """`UserError` unless all constants are JSON scalars of the type that stands beside them."""
    kind = source.get("type")
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    for k in kinds:
        if not isinstance(k, str) or k not in TYPES:
            raise UserError(f"{where} has constants of the type {shorten(kind)}: use string or integer.")
    for value in values:
        fits = any(isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds or TYPES)
        if not fits:
            word = "enum value" if "enum" in source else "constant"
            raise UserError(f"{where} has the {word} {shorten(value)}: use {' or '.join(kinds) or 'string or integer'} values.")
    if "null" in kinds and None not in values:
        raise UserError(f"{where} may be null by its type and not by its enum: add null to the enum, or drop it from the type.")


def _bounds(source: Json, where: str) -> tuple[Any, Any]:
    """Inclusive bounds of an integer: the tightest where there are several."""
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if not isinstance(source.get(key, 0), int) or isinstance(source.get(key), bool):  # true was draft 4's
            raise UserError(f"{where} has {key} {shorten(source[key])}: it must be an integer.")
    low, high = source.get("minimum"), source.get("maximum")
    above, below = source.get("exclusiveMinimum"), source.get("exclusiveMaximum")
    if isinstance(above, int):
        low = max(above + 1, low) if isinstance(low, int) else above + 1
    if isinstance(below, int):
        high = min(below - 1, high) if isinstance(high, int) else below - 1
    return low, high


def _describe(source: Json, where: str) -> str | None:
    """What the prompt says of a property or an option: its title and its description."""
    texts = [source.get("title"), source.get("description")]
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise UserError(f"a title or description of {where} is {shorten(text)}: it must be a string.")
    return _join(*texts)


def _join(first: str | None, second: str | None) -> str | None:
    return f"{first}: {second}" if first and second else first or second
