"""Several evaluations as one: results of arms that were evaluated apart, side by side and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.summary import compare

HEADER = ("version", "settings", "packages", "arms", "datasets", "results", "comparisons")


def merge(evaluations: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """One evaluation from those of several folders, with the paths of its tables resolved against their folders.

    Raises `UserError` if they can't stand in one table: other settings, other examples of a data set, or a result twice.
    """
    merged: dict[str, Any] = {"arms": [], "datasets": {}, "results": [], "comparisons": [], "packages": {}}
    origin: dict[Any, Path] = {}  # of each data set and of each (arm, data set)
    for folder, evaluation in evaluations.items():
        missing = [key for key in HEADER if key not in evaluation]
        if missing:
            raise UserError(f"the eval.json of {str(folder)!r} has no {missing[0]!r}: evaluate again.")
        for key in ("version", "settings"):
            if merged.setdefault(key, evaluation[key]) != evaluation[key]:
                raise UserError(
                    f"{str(folder)!r} was evaluated with the {key} {shorten(evaluation[key], 200)}, the folder before it with "
                    f"{shorten(merged[key], 200)}: report them apart."
                )
        for name, about in evaluation["datasets"].items():
            earlier = merged["datasets"].setdefault(name, about)
            for key in ("calibration_hash", "test_hash"):
                if earlier[key] != about[key]:
                    raise UserError(
                        f"data set {name!r} has the {key} {earlier[key]} in {str(origin[name])!r} and {about[key]} in "
                        f"{str(folder)!r}, so its arms met different examples: evaluate them on the same."
                    )
            origin.setdefault(name, folder)
        for result in evaluation["results"]:
            pair = (result["arm"], result["dataset"])
            if pair in origin:
                raise UserError(
                    f"arm {pair[0]!r} on {pair[1]!r} stands in {str(origin[pair])!r} and in {str(folder)!r}: leave out one of them."
                )
            origin[pair] = folder
            merged["results"].append({**result, "table": str(folder / result["table"])})
        merged["arms"] += [arm for arm in evaluation["arms"] if arm not in merged["arms"]]
        merged["comparisons"] += evaluation["comparisons"]
        for package, version in evaluation["packages"].items():
            known = merged["packages"].setdefault(package, version)
            if version not in known.split(" / "):
                merged["packages"][package] = f"{known} / {version}"
    return merged


def missing_comparisons(
    evaluation: Mapping[str, Any], dataset: str, tables: Mapping[str, Sequence[DecisionRow]]
) -> list[dict[str, Any]]:
    """Comparisons of arms that were evaluated apart, from their ``tables``; in the form of eval.json's."""
    known = [{c["first"], c["second"]} for c in evaluation["comparisons"] if c["dataset"] == dataset]
    draws = {key: evaluation["settings"][key] for key in ("resamples", "seed")}
    return [
        {"dataset": dataset, "first": a, "second": b, "signals": compare(tables[a], tables[b], **draws)}
        for a, b in combinations(tables, 2)
        if {a, b} not in known
    ]
