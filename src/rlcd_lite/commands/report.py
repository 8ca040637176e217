"""``rlcd-lite report``: eval.json and its decision tables → Markdown, pictures and one HTML page."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlcd_lite.decision_table import TEST, DecisionRow, read_table, select
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.figures import draw
from rlcd_lite.merge import merge, missing_comparisons
from rlcd_lite.report import Picture, build, markdown
from rlcd_lite.report_page import page
from rlcd_lite.summary import read_eval


@dataclass
class Report:
    """Report on evaluations: tables as Markdown (also on stdout), pictures, and one HTML page that opens offline.

    Several folders are reported as one evaluation: their arms and data sets side by side, and compared where they met the same
    examples.
    """

    folders: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="DIR [DIR …]")]
    """Folders that `rlcd-lite eval --output` wrote."""
    output: Path | None = None
    """Folder for report.md, report.html and the pictures; the first of the folders if not given."""

    def run(self) -> None:
        if not self.folders:
            raise UserError("no folder is given: name at least one that `rlcd-lite eval --output` wrote.")
        output = self.folders[0] if self.output is None else self.output
        pictures: list[Picture] = []
        try:
            evaluation = merge({folder: read_eval(folder / "eval.json") for folder in self.folders})
            for name, stem in _stems(evaluation["datasets"]).items():
                results = {result["arm"]: result for result in evaluation["results"] if result["dataset"] == name}
                tables = {arm: _table(result) for arm, result in results.items()}
                evaluation["comparisons"] += missing_comparisons(evaluation, name, tables)
                pictures += draw(name, stem, results, tables, evaluation["settings"]["seed"])
            report = build(evaluation)
        except (KeyError, TypeError) as error:  # the version is right, so somebody changed the file
            raise UserError(f"an eval.json is incomplete ({shorten(str(error))}): evaluate again.") from error
        text = markdown(report, pictures)
        output.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            (output / picture.file).write_bytes(picture.png)
        (output / "report.html").write_text(page(report, pictures), encoding="utf-8")
        (output / "report.md").write_text(text, encoding="utf-8")
        print(text, end="")
        print(f"{output / 'report.html'}: the page, {len(pictures)} pictures and report.md beside it.", file=sys.stderr)


def _table(result: Mapping[str, Any]) -> list[DecisionRow]:
    """The decision table of a result; `UserError` if it's missing or not the one that the result was computed from."""
    path = Path(result["table"])
    rows = read_table(path)
    test = select(rows, TEST)
    hits = sum(row.choice == row.label for row in test)
    if len(test) != result["decisions"] or abs(hits / max(len(test), 1) - result["accuracy"]["estimate"]) > 1e-9:
        raise UserError(f"decision table {str(path)!r} is not the one behind its eval.json: evaluate again.")
    return rows


def _stems(datasets: Mapping[str, Any]) -> dict[str, str]:
    """A name for the files of each data set; two that differ in odd characters alone get a number."""
    stems: dict[str, str] = {}
    for name in datasets:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_.") or "data"
        stems[name] = f"{stem}-{len(stems)}" if stem in stems.values() else stem
    return stems
