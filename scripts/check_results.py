"""Recompute every figure of README.md and docs/*.md from the committed decision tables; name what differs, and fail.

    uv run --all-extras python scripts/check_results.py

Three steps, each of which can fail: the summaries follow from the tables (``runs/*/eval/eval.json`` and ``summary.json`` of the
`FOLDERS`), the generated blocks of the documents follow from the summaries (`docs.py`), and under a heading named in `BARE` no
decimal number stands outside such a block.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ab_table import RESAMPLES, summary
from docs import BLOCK, ROOT

from rlcd_lite.decision_table import read_table
from rlcd_lite.summary import finite, read_eval, summarise

FOLDERS = ("results/ab-synthetic", "results/ab-banking77")
BARE = {"README.md": "## Results", "docs/results.md": "# "}  # from this heading to the next of its level
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


def main() -> None:
    faults: list[str] = []
    for name in FOLDERS:
        folder = ROOT / name
        written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        faults += [f"{name}/summary.json{d}" for d in differences(finite(summary(folder)), written)]
        for path in sorted(folder.glob("runs/*/eval/eval.json")):
            for result in read_eval(path)["results"]:
                rows = read_table(path.parent / "decisions" / Path(result["table"]).name)
                fresh = finite(summarise(rows, resamples=RESAMPLES))
                faults += [
                    f"{path.relative_to(ROOT)} {result['arm']}{d}" for d in differences(fresh, {k: result[k] for k in fresh})
                ]
    run = subprocess.run([sys.executable, ROOT / "scripts/docs.py", "--check"], capture_output=True, text=True, check=False)
    faults += [run.stdout.strip() or run.stderr.strip()] if run.returncode else []
    for name, heading in BARE.items():
        level = heading.split(" ")[0]
        text = (ROOT / name).read_text(encoding="utf-8")
        part = re.split(rf"^{level} ", text[text.index(heading) + len(heading) :], maxsplit=1, flags=re.MULTILINE)[0]
        faults += [
            f"{name}: {found} stands outside a generated block" for found in re.findall(r"[^\s|(]*\d\.\d+", BLOCK.sub("", part))
        ]
    for fault in faults:
        print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
