"""Rows of a user's JSONL or CSV file as a stream: nothing is held but the row at hand, and a bad row does not stop the rest."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcd_lite.errors import UserError, shorten

SUFFIXES = (".jsonl", ".csv")


@dataclass(frozen=True)
class Row:
    """One row: the number of the line it starts on (from 1), and its values, or the sentence that says why it has none."""

    line: int
    values: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True)
class FileFacts:
    """What one pass over a file tells before any work starts: its hash and how many rows it holds (bad ones too)."""

    sha256: str
    rows: int


def inspect(path: Path) -> FileFacts:
    """Hash and count a file; `UserError` if it is missing, not UTF-8, of another kind than JSONL and CSV, or without rows."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"file {str(path)!r} is neither .jsonl nor .csv: convert or rename it.")
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                try:
                    line.decode()
                except UnicodeDecodeError:
                    raise UserError(
                        f"file {str(path)!r} is not UTF-8 (line {number}): convert it, for instance with iconv."
                    ) from None
    except OSError as error:
        raise UserError(f"file {str(path)!r} can't be read ({error.strerror}): check the path.") from None
    count = sum(1 for _ in read_rows(path))
    if not count:
        raise UserError(f"file {str(path)!r} holds no rows: give it at least one.")
    return FileFacts(digest.hexdigest(), count)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a ``.jsonl`` file (one object a line, blank lines skipped) or of a ``.csv`` file with a header, in order."""
    return _csv_rows(path) if path.suffix == ".csv" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except RecursionError:
                yield Row(number, {}, "not valid JSON (nested too deeply)")
                continue
            except ValueError as error:  # JSONDecodeError, or an integer of more than 4300 digits
                reason = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
                yield Row(number, {}, f"not valid JSON ({reason})")
                continue
            if isinstance(values, dict):
                yield Row(number, values)
            else:
                yield Row(number, {}, f"{shorten(values)} is not a JSON object")


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the module's own limit of 128 KiB would refuse long texts
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader)
        except (StopIteration, csv.Error):
            raise UserError(f"file {str(path)!r} has no header line: the first line must name the columns.") from None
        _check_header(header, path)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Row(line, {}, f"not valid CSV ({error})")
                continue
            if not cells:
                continue  # a blank line
            if len(cells) == len(header):
                yield Row(line, dict(zip(header, cells, strict=True)))
            else:
                yield Row(line, {}, f"{len(cells)} cells under a header of {len(header)} columns")


def _check_header(header: list[str], path: Path) -> None:
    if len(header) == 1:
        for delimiter, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if delimiter in header[0]:
                raise UserError(f"file {str(path)!r} has one column, {shorten(header[0])}, so it uses {name}: use commas.")
    for name in header:
        if header.count(name) > 1:
            raise UserError(f"file {str(path)!r} has the column {shorten(name)} twice: rename one.")
