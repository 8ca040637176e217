"""JSON Schemas of the supported subset, drawn by hypothesis, and answers to them.

Strategies are built once: hypothesis spends more on building them than on drawing from them.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from hypothesis import strategies as st

from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.schema import Schema

# no dot, no "includes" and no "null" in them, so that names of leaves and texts of options can't clash
NAMES = ["plan", "Größe", 'say "hi"', "a\\b", "a b", "_", "🎉", "items", "type", "$ref", "const", "if", "object"]
SOME_NAMES = [tuple(NAMES[i : i + n]) for n in (1, 2, 3) for i in range(len(NAMES) + 1 - n)]
WORDS = st.sampled_from(["low", "high", " x ", "日本", '"', "\n1", "true", "A", "None", "a\u2028b", "0"])
BOOLEANS = st.booleans()
UNION = st.sampled_from(["oneOf", "anyOf"])
ANNOTATIONS = st.sampled_from(
    [{}, {}, {"title": "T"}, {"description": "what it is"}, {"title": "T", "description": "d", "default": None, "$comment": "c"}]
)
STRINGS = st.lists(WORDS, min_size=2, max_size=4, unique=True)
NUMBERS = st.lists(st.integers(-3, 10**20), min_size=2, max_size=4, unique=True)
SCALARS = st.sampled_from(["x", "", 0, 1.5, -(10**20), True, False, None])
REFERENCES = {"A": "#/$defs/A", "b~/%": "#/$defs/b~0~1%25"}
NULL = {"type": "null"}


@st.composite
def _choices(draw: st.DrawFn) -> dict[str, Any]:
    """An enum, with null or without."""
    kind, values = draw(st.sampled_from([("string", STRINGS), ("integer", NUMBERS)]))
    listed: list[Any] = draw(values)
    null = draw(BOOLEANS)
    types: dict[str, Any] = {"type": [kind, "null"] if null else kind} if draw(BOOLEANS) else {}
    return {"enum": [listed[0], None, *listed[1:]] if null else listed} | types | draw(ANNOTATIONS)


@st.composite
def _unions(draw: st.DrawFn) -> dict[str, Any]:
    """Constants, each with what it means."""
    parts = [{"const": value} | draw(ANNOTATIONS) for value in draw(STRINGS)]
    if draw(BOOLEANS):
        parts.append(NULL | draw(ANNOTATIONS))
    return {draw(UNION): parts} | draw(ANNOTATIONS)


@st.composite
def _ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, steps = draw(st.integers(-100, 100)), draw(st.integers(1, 12))
    below = {"exclusiveMinimum": low - 1} if draw(BOOLEANS) else {"minimum": low}
    above = {"exclusiveMaximum": low + steps + 1} if draw(BOOLEANS) else {"maximum": low + steps}
    return {"type": "integer"} | below | above | draw(ANNOTATIONS)


@st.composite
def _nullable(draw: st.DrawFn) -> dict[str, Any]:
    source = draw(SIMPLE)
    if draw(BOOLEANS):
        return source | {"type": [source["type"], "null"]}
    parts = [source, NULL | draw(ANNOTATIONS)]
    return {draw(UNION): parts[::-1] if draw(BOOLEANS) else parts} | draw(ANNOTATIONS)


@st.composite
def _arrays(draw: st.DrawFn, bounds: bool) -> dict[str, Any]:
    items = draw(STRINGS)
    listed = {"oneOf": [{"const": item} | draw(ANNOTATIONS) for item in items]} if draw(BOOLEANS) else {"enum": items}
    source = {"type": "array", "items": listed} | draw(ANNOTATIONS) | ({"uniqueItems": True} if draw(BOOLEANS) else {})
    if bounds:
        low = draw(st.integers(0, len(items)))
        source |= {"minItems": low, "maxItems": draw(st.integers(max(low, 1), 4))}
    return source


@cache
def _leaves(bounds: bool) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(DECIDED, CONSTANTS, _nullable(), _arrays(bounds))


@cache
@st.composite
def _objects(draw: st.DrawFn, depth: int, bounds: bool, names: tuple[str, ...]) -> dict[str, Any]:
    properties = {}
    for name in draw(st.sampled_from(SOME_NAMES)):
        kind = draw(KINDS)
        if kind == "object" and depth:
            properties[name] = draw(_objects(depth - 1, bounds, names))
        elif kind == "reference" and names:
            properties[name] = {"$ref": REFERENCES[draw(st.sampled_from(names))]} | draw(ANNOTATIONS)
        else:
            properties[name] = draw(_leaves(bounds))
    source = {"type": "object", "properties": properties} | draw(ANNOTATIONS)
    source |= {"required": list(properties)} if draw(BOOLEANS) else {}
    return source | ({"additionalProperties": False} if draw(BOOLEANS) else {})


@st.composite
def json_schemas(draw: st.DrawFn, bounds: bool = False) -> dict[str, Any]:
    """An object with a decision in it, up to three deep; ``bounds``: its arrays say how many items they have."""
    defs = {name: draw(_leaves(bounds)) for name in draw(st.sampled_from([(), tuple(REFERENCES)]))}
    source = draw(_objects(2, bounds, tuple(defs))) | ({"$defs": defs} if defs else {})
    source["properties"]["decided"] = draw(DECIDED)
    return source


def random_decision(schema: Schema, dice: random.Random) -> Decision:
    """An answer with random probabilities."""
    fields = []
    for field in schema.fields:
        weights = [dice.random() for _ in field.options]
        fields.append(FieldDecision(field, tuple(w / sum(weights) for w in weights), 0.7, 0.66))
    return Decision(schema, tuple(fields))


SIMPLE = st.just({"type": "boolean"}) | _ranges()
DECIDED = st.one_of(_choices(), _unions(), SIMPLE)
CONSTANTS = SCALARS.map(lambda value: {"const": value}) | SCALARS.map(lambda value: {"enum": [value]})
KINDS = st.sampled_from(["leaf", "leaf", "object", "reference"])
