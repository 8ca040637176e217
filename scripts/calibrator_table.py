"""Decision tables → one JSON file that compares all calibrators on their test splits, fitted on their calibration splits.

uv run --all-extras python scripts/calibrator_table.py OUT.json runs/mine-eval/decisions/*.csv.gz

Keys are the tables' names; what stands under them is described at `rlcd_lite.comparison.calibrated_table`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlcd_lite.comparison import calibrated_table
from rlcd_lite.decision_table import CALIBRATION, TEST, read_table, select


def main() -> None:
    out, *tables = map(Path, sys.argv[1:])
    found = {}
    for path in tables:
        rows = read_table(path)
        found[path.name.removesuffix(".csv.gz")] = calibrated_table(select(rows, CALIBRATION), select(rows, TEST))
        print(path.name, file=sys.stderr)
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
