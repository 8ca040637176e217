"""Decisions written row by row into a JSONL or CSV file that a killed run can continue.

Beside the output stands ``OUTPUT.run.json``: what made it (model, schema, hash of the input, …) and whether it is complete. A
run is continued only by the same settings, behind the last row that was written whole.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rlcd_lite.decisions import Decision
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import check_writable, write_whole
from rlcd_lite.rows import SUFFIXES
from rlcd_lite.schema import Schema

Record = dict[str, Any]


class DecisionWriter:
    """Writes one record per decided row and knows where an earlier run stopped.

    ``last_line`` is the input line of the last whole row (0 for a new file) and ``complete`` whether nothing is left to do. Nothing
    on the disk changes before the first row is written. Raises `UserError` instead of overwriting a file, or of continuing one that
    other settings made.
    """

    def __init__(self, path: Path, schema: Schema, run: Record, *, resume: bool = False, overwrite: bool = False) -> None:
        if path.suffix not in SUFFIXES:
            raise UserError(f"output {str(path)!r} is neither .jsonl nor .csv: rename it.")
        check_writable(path, "output")
        self.path, self._run = path, run
        self._record_path = path.with_name(path.name + ".run.json")
        self._columns = csv_columns(schema, run) if path.suffix == ".csv" else []
        self._file: IO[str] | None = None
        self.last_line, self._offset, self.complete = 0, 0, False
        if path.exists() and not overwrite:
            if not resume:
                raise UserError(f"output {str(path)!r} exists: continue it with --resume or replace it with --overwrite.")
            self.complete = self._check_run()
            self._offset, self.last_line = self._written()

    @contextmanager
    def open(self) -> Iterator[DecisionWriter]:
        """The span in which rows are written; a normal end marks the run complete, an exception leaves it to be continued."""
        try:
            yield self
        finally:
            if self._file is not None:
                self._file.close()
        if self.last_line:
            self._save_run(complete=True)

    def write(self, line: int, row_id: Any, decision: Decision) -> None:
        """Append the decision about the row on ``line``; it is on its way to the disk when this returns."""
        if self._file is None:
            self._save_run(complete=False)
            self._file = self.path.open("r+" if self._offset else "w", encoding="utf-8", newline="")
            self._file.seek(self._offset)
            self._file.truncate()
            if self._columns and not self._offset:
                csv.writer(self._file).writerow(self._columns)
        record = decision_record(line, row_id, decision)
        if self._columns:
            csv.DictWriter(self._file, self._columns).writerow(_flat(record, decision))
        else:
            self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        self.last_line = line

    def _check_run(self) -> bool:
        try:
            earlier = json.loads(self._record_path.read_text(encoding="utf-8"))
            made_by, complete = dict(earlier["run"]), bool(earlier["complete"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{str(self._record_path)!r} is missing or damaged, so {str(self.path)!r} can't be continued: --overwrite it."
            ) from None
        for key, value in self._run.items():
            if made_by.get(key) != value:
                raise UserError(
                    f"output {str(self.path)!r} was made with {key} {shorten(made_by.get(key))}, not {shorten(value)}: "
                    f"continue it with the same settings or --overwrite it."
                )
        return complete

    def _save_run(self, complete: bool) -> None:
        record = {"run": self._run, "complete": complete}
        write_whole(self._record_path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")

    def _written(self) -> tuple[int, int]:
        """Bytes up to the end of the last whole record, and that record's input line; a cut tail is left out."""
        try:
            return self._written_csv() if self._columns else self._written_jsonl()
        except (ValueError, KeyError, TypeError, IndexError):
            raise UserError(f"output {str(self.path)!r} holds a row that this program did not write: --overwrite it.") from None

    def _written_jsonl(self) -> tuple[int, int]:
        whole, line = 0, 0
        with self.path.open("rb") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    whole, line = whole + len(raw), int(json.loads(raw)["line"])
        return whole, line

    def _written_csv(self) -> tuple[int, int]:
        whole, line, read = 0, 0, 0

        def lines() -> Iterator[str]:
            nonlocal read
            with self.path.open("rb") as file:
                for raw in file:
                    read += len(raw)
                    if raw.endswith(b"\n"):  # else a kill cut it
                        yield raw.decode()

        try:
            for cells in csv.reader(lines(), strict=True):  # a record that is cut inside a quoted cell is an error
                whole, line = read, int(cells[0]) if cells != self._columns else 0
        except csv.Error:
            pass
        return whole, line


def decision_record(line: int, row_id: Any, decision: Decision) -> Record:
    """The decision about the row on ``line`` as a JSON object, with the row's id if it has one."""
    return {"line": line} | ({} if row_id is None else {"id": row_id}) | decision.to_dict()


def csv_columns(schema: Schema, run: Record) -> list[str]:
    """``line``, ``id``, then for each field its value and what is known about it in a run with these settings; probabilities,
    orders, sets and calibrations are JSON."""
    asked = {"coverage": run["coverage"], "orders": run["permutations"] != 1}
    acted = {"action": run["max_risk"] is not None, "set": run["sets"] is not None}
    calibrated = ["confidence", "calibration"] if run["calibration_sha256"] else []
    columns = ["line", "id"]
    for field in schema.fields:
        ordered = ["expectation"] if field.levels is not None else []
        parts = ["probability", "stated", "stated_mean", *ordered, *(name for name, has in asked.items() if has), "prior"]
        parts += [*calibrated, *(name for name, has in acted.items() if has), "probabilities"]
        columns += [field.name, *(f"{field.name}.{part}" for part in parts)]
    if schema.rules:
        columns.append("broken_rules")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise UserError(f"the CSV would have the column {shorten(twice)} twice: rename the field or write .jsonl.")
    return columns


def _flat(record: Record, decision: Decision) -> Record:
    flat: Record = {"line": record["line"], "id": record.get("id")}
    if "broken_rules" in record:
        flat["broken_rules"] = json.dumps(record["broken_rules"], ensure_ascii=False)
    for name, answer in record["fields"].items():
        for part, value in answer.items():
            cell = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
            flat[name if part == "value" else f"{name}.{part}"] = cell
        flat[name] = decision[name].field.options[decision[name].choice].text
    return flat
