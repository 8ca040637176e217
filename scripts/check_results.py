"""Recompute every figure of README.md and docs/*.md from the committed decision tables; name what differs, and fail.

    uv run --all-extras python scripts/check_results.py

Three steps, each of which can fail: what pages read follows from the tables (``summary.json`` of the `ARMS`, ``eval.json`` of the
`EVALUATIONS`), the generated blocks of the pages follow from that (`docs.py`), and under a heading named in `BARE` no decimal
number stands outside such a block. The tables of docs/options.md and docs/acting.md have scripts of their own.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ab_table import RESAMPLES, summary
from docs import BLOCK, ROOT, fresh

from rlcd_lite.decision_table import read_table
from rlcd_lite.summary import finite, read_eval, summarise

ARMS = ("results/ab-synthetic", "results/ab-banking77")
EVALUATIONS = ("results/base/public", "results/base/synthetic", "results/options/trained-labels")
BARE = {"README.md": "## Results", "docs/results.md": "# "}  # from this heading to the next of its level
NAMES = re.compile(r"Qwen2\.5-0\.5B")  # numbers that are none
TOLERANCE = 1e-9  # relative: the same tables on another machine


def differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two JSON values differ by more than rounding."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys([*ours, *theirs])
        return [d for key in keys for d in differences(ours.get(key), theirs.get(key), f"{place}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [d for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) for d in differences(a, b, f"{place}/{i}")]
    if isinstance(ours, float | int) and isinstance(theirs, float | int):
        return [] if math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE) else [f"{place}: {theirs}, not {ours}"]
    return [] if ours == theirs else [f"{place}: {theirs}, not {ours}"]


def eval_faults(path: Path) -> list[str]:
    """What an eval.json says that its decision tables do not."""
    found = []
    for result in read_eval(path)["results"]:
        rows = read_table(path.parent / result["table"])
        ours = finite(summarise(rows, resamples=RESAMPLES))
        found += [f"{path} {result['arm']}{d}" for d in differences(ours, {key: result[key] for key in ours})]
    return found


def summary_faults(folder: Path) -> list[str]:
    """What a folder's summary.json says that its decision tables do not."""
    path = folder / "summary.json"
    return [f"{path}{d}" for d in differences(finite(summary(folder)), json.loads(path.read_text(encoding="utf-8")))]


def page_faults(name: str, text: str) -> Iterator[str]:
    """Generated blocks of a page that the summaries contradict, and decimal numbers that stand outside such blocks."""
    if (new := fresh(text)) != text:
        lines = zip_longest(text.splitlines(), new.splitlines())
        yield "{}: {!r}, not {!r}".format(name, *next((a, b) for a, b in lines if a != b))  # what follows may only have moved
    if heading := BARE.get(name):
        level = heading.split(" ")[0]
        part = re.split(rf"^{level} ", text[text.index(heading) + len(heading) :], maxsplit=1, flags=re.MULTILINE)[0]
        for found in re.findall(r"[^\s|(]*\d\.\d+", NAMES.sub("", BLOCK.sub("", part))):
            yield f"{name}: {found} stands outside a generated block"


def main() -> None:
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    faults = [f for page in pages for f in page_faults(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))]
    with ProcessPoolExecutor() as pool:
        found = pool.map(eval_faults, (ROOT / name / "eval.json" for name in EVALUATIONS))
        faults += [fault for part in found for fault in part]
    faults += [fault for name in ARMS for fault in summary_faults(ROOT / name)]
    for fault in faults:
        print(fault.replace(f"{ROOT}/", ""))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
