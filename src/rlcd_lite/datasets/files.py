"""A file of your own as a data set: JSON lines or CSV in UTF-8, with a column per field of the schema.

The text stands in the column ``context`` (or ``text``), the right answer of every field in the column of the field's name. A JSON
line may hold the answers under ``labels`` and known probabilities under ``posterior``, as `rlcd-lite data --export` writes them.
``id`` is optional and must not repeat. ``split`` (train, calibration or test) is optional; without it the splits are made by the
hash of the text, with the shares `SHARES`. Other columns are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcd_lite.datasets.example import SPLITS
from rlcd_lite.datasets.splits import Row, Shares
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.rows import inspect, read_rows
from rlcd_lite.schema import Field, Schema, Value

WHOLE = "file"  # the part that rows without a `split` column stand in
SHARES: Mapping[str, Shares] = {
    WHOLE: {"train": 0.7, "calibration": 0.15, "test": 0.15},
    **{split: {split: 1.0} for split in SPLITS},
}


def read_file(path: Path, schema: Schema) -> list[Row]:
    """All rows of a file, checked: `UserError` names the file, the line and the column of the first fault."""
    inspect(path)
    rows: list[Row] = []
    ids: set[str] = set()
    for raw in read_rows(path):
        where = f"line {raw.line} of file {str(path)!r}"
        if raw.problem is not None:
            raise UserError(f"{where} is bad ({raw.problem}): mend it.")
        rows.append(_row(raw.values, schema, where))
        id_ = rows[-1].id
        if id_ is not None and id_ in ids:
            raise UserError(f"{where} has the id {shorten(id_)} again: ids must differ.")
        ids |= {id_} if id_ is not None else set()
    return rows


def _row(cells: Mapping[str, Any], schema: Schema, where: str) -> Row:
    context = _context(cells, where)
    nested = cells["labels"] if isinstance(cells.get("labels"), dict) else None
    answers = cells if nested is None else nested
    labels = {field.name: _label(answers, field, where) for field in schema.fields}
    id_, part = cells.get("id"), cells.get("split", WHOLE)
    if id_ is not None and (not isinstance(id_, str | int) or id_ == ""):
        raise UserError(f"{where} has the id {shorten(id_)}: an id is a string that is not empty, or an integer.")
    if "split" in cells and part not in SPLITS:
        raise UserError(f"{where} has the split {shorten(part)}: use one of {', '.join(SPLITS)}.")
    posterior = None
    if nested is not None and cells.get("posterior") is not None:
        posterior = {field.name: _posterior(cells["posterior"], field, where) for field in schema.fields}
    return Row(part, context, schema, labels, posterior=posterior, id=None if id_ is None else str(id_))


def _context(cells: Mapping[str, Any], where: str) -> str:
    columns = [column for column in ("context", "text") if column in cells]
    if len(columns) != 1:
        fault = "has both the columns 'context' and 'text'" if columns else "has neither the column 'context' nor 'text'"
        raise UserError(f"{where} {fault}: put the text to decide about into one of them.")
    context = cells[columns[0]]
    if not isinstance(context, str) or not context.strip():
        raise UserError(f"{where} has {shorten(context)} in the column {columns[0]!r}: it must be a text that is not blank.")
    try:
        context.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where} holds half of a surrogate pair at character {error.start} of its text: remove it.") from None
    return context


def _label(answers: Mapping[str, Any], field: Field, where: str) -> Value:
    if field.name not in answers:
        raise UserError(f"{where} has no column {field.name!r}: give every field of the schema one.")
    value = answers[field.name]
    if value == "" and field.optional:  # an empty cell
        return None
    if isinstance(value, str):  # a CSV cell holds an option's text; Python and spreadsheets write booleans their own way
        text = value.lower() if field.type == "bool" else value
        for option in field.options:
            if option.text == text:
                return option.value
    try:
        return field.options[field.index(value)].value
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _posterior(source: Any, field: Field, where: str) -> tuple[float, ...]:
    given = source.get(field.name) if isinstance(source, dict) else None
    options = [option.text for option in field.options]
    if not isinstance(given, dict) or set(given) != set(options):
        raise UserError(f"{where} has the posterior {shorten(given)} of field {field.name!r}: give every option its probability.")
    if not all(isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1 for p in given.values()) or not math.isclose(
        sum(given.values()), 1, abs_tol=1e-6
    ):
        raise UserError(f"{where} has the posterior {shorten(given)} of field {field.name!r}: it must be probabilities with sum 1.")
    return tuple(float(given[option]) for option in options)
