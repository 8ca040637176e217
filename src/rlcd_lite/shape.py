"""What answers are assembled into: an object of objects, of arrays of the items that were answered yes, and of constants.

The leaves are the fields of a schema, by name. In JSON every node is an object with one tag, so that nothing is ambiguous::

    {"object": {"customer": {"object": {"plan": {"field": "customer.plan"}}},
                "tags": {"array": [["billing", "tags includes billing"], …], "minItems": 1},
                "version": {"const": 2}}}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlcd_lite.errors import UserError, check_keys, check_text, first_duplicate, shorten

DEEPEST = 32  # levels of objects in objects


@dataclass(frozen=True)
class Const:
    """A value that stands in the output and that nobody decides: a string, a finite number, true, false or null."""

    value: str | int | float | None


@dataclass(frozen=True)
class Array:
    """The items, in this order, whose yes/no field is answered yes.

    ``members``: each item and the name of its field. ``low``, ``high``: how many items there are at least and at most.
    """

    members: tuple[tuple[str | int, str], ...]
    low: int
    high: int

    @property
    def bounded(self) -> bool:
        """Whether the bounds exclude something."""
        return self.low > 0 or self.high < len(self.members)


@dataclass(frozen=True)
class Object:
    """A JSON object: its properties, in order."""

    properties: tuple[tuple[str, Node], ...]


Node = Object | Array | Const | str  # str: the name of a field


def leaves(node: Node) -> Iterator[str]:
    """The names of the fields below a node, in order."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Array):
        yield from (name for _, name in node.members)
    elif isinstance(node, Object):
        for _, child in node.properties:
            yield from leaves(child)


def arrays(node: Node) -> Iterator[Array]:
    """The arrays below a node, in order."""
    if isinstance(node, Array):
        yield node
    elif isinstance(node, Object):
        for _, child in node.properties:
            yield from arrays(child)


def assemble(node: Node, answers: Mapping[str, Any]) -> Any:
    """The JSON value of a node, from the answer to every field below it."""
    if isinstance(node, str):
        return answers[node]
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Array):
        return [item for item, name in node.members if answers[name] is True]
    return {name: assemble(child, answers) for name, child in node.properties}


def to_dict(node: Node) -> dict[str, Any]:
    """The node in the form that `read` reads."""
    if isinstance(node, str):
        return {"field": node}
    if isinstance(node, Const):
        return {"const": node.value}
    if isinstance(node, Array):
        out: dict[str, Any] = {"array": [list(member) for member in node.members]}
        out |= {"minItems": node.low} if node.low > 0 else {}
        return out | ({"maxItems": node.high} if node.high < len(node.members) else {})
    return {"object": {name: to_dict(child) for name, child in node.properties}}


def read(source: Any, path: tuple[str, ...] = ()) -> Node:
    """A node from JSON; ``path``: the properties that lead to it, for errors."""
    where = f"property {shorten('.'.join(path))}" if path else 'the "object" of the schema'
    tags = [key for key in ("object", "array", "const", "field") if isinstance(source, Mapping) and key in source]
    if len(tags) != 1:
        raise UserError(f'{where} is {shorten(source)}: it must be an object with one of "object", "array", "const" and "field".')
    (tag,) = tags
    check_keys(source, {"array", "minItems", "maxItems"} if tag == "array" else {tag}, where)
    value = source[tag]
    if len(path) > DEEPEST:
        raise UserError(f"{where} lies {len(path)} levels deep, and {DEEPEST} are the most: write the schema flatter.")
    if tag == "object":
        if not isinstance(value, Mapping):
            raise UserError(f"{where} has the object {shorten(value)}: it must be an object of named parts.")
        for name in value:
            check_text(name, f"a property name of {where}")
        return Object(tuple((name, read(child, (*path, name))) for name, child in value.items()))
    if tag == "array":
        return _array(source, where)
    if tag == "const":
        if not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(f"{where} has the const {shorten(value)}: a constant is a string, a number, true, false or null.")
        check_text(value if isinstance(value, str) else None, f"the const of {where}")
        return Const(value)
    if not isinstance(value, str):
        raise UserError(f"{where} has the field {shorten(value)}: give the name of a field.")
    return value


def _array(source: Mapping[str, Any], where: str) -> Array:
    members = source["array"]
    if not isinstance(members, list) or not members:
        raise UserError(f'{where} has the array {shorten(members)}: it must be a list such as [["item", "name of its field"]].')
    for member in members:
        item = member[0] if isinstance(member, list) and len(member) == 2 and isinstance(member[1], str) else None
        if not isinstance(item, str | int) or isinstance(item, bool):
            raise UserError(f"{where} has the member {shorten(member)}: give an item, a string or an integer, and a field's name.")
        check_text(str(item), f"an item of {where}")
    if (twice := first_duplicate(str(item) for item, _ in members)) is not None:
        raise UserError(f"{where} has the item {shorten(twice)} twice: items must differ.")
    low, high = source.get("minItems", 0), source.get("maxItems", len(members))
    for bound, value in (("minItems", low), ("maxItems", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(f"{where} has {bound} {shorten(value)}: it must be an integer from 0 on.")
    if low > min(high, len(members)):
        raise UserError(f"{where} has minItems {shorten(low)}: at most {min(high, len(members))} of its items can be chosen.")
    if high == 0:
        raise UserError(f"{where} has maxItems 0: leave out an array that is always empty.")
    return Array(tuple((item, name) for item, name in members), low, min(high, len(members)))
