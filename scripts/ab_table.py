"""Every arm over its training seeds, from the committed decision tables: FOLDER/summary.json.

    uv run --all-extras python scripts/ab_table.py results/ab-synthetic

FOLDER has the records of each run in ``runs/ARM-SEED``, in ``runs/base`` those of the untrained model: what training logged, and
in ``eval/`` what `rlcd-lite eval` wrote, ``eval.json`` and the decision table.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rlcd_lite.comparison import calibrated_table
from rlcd_lite.datasets.synthetic import SCHEMA
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, read_table, select
from rlcd_lite.enforced import rule_summary
from rlcd_lite.replicates import UNTRAINED, Arm, Comparison, arm_summary, compare_arms
from rlcd_lite.schema import Schema
from rlcd_lite.summary import write_eval

PRIMARY = Comparison("grpo_rlcr", "grpo_binary", "stated", "brier")
SECONDARY = (
    Comparison("grpo_rlcr", "grpo_binary", "", "accuracy"),
    Comparison("grpo_rlcr", "grpo_binary", "stated", "ece"),
    Comparison("grpo_rlcr", "grpo_brier_dec", "stated", "brier"),
    Comparison("grpo_rlcr", "exact_rlcr", "stated", "brier"),
    Comparison("grpo_rlcr", "warm_up", "softmax", "ece"),
    Comparison("grpo_binary", "warm_up", "softmax", "ece"),
    Comparison("dist_brier", "grpo_rlcr", "softmax", "brier"),
    Comparison("dist_rlcr", "grpo_rlcr", "stated", "brier"),
    Comparison("sft_ce", "grpo_rlcr", "stated", "brier"),
    Comparison("sft_brier", "grpo_rlcr", "stated", "brier"),
    Comparison("sft_brier", "grpo_rlcr", "", "accuracy"),
    Comparison("rlcr_conditioned", "grpo_rlcr", "stated", "brier"),
    Comparison("grpo_brier", "warm_up", "", "accuracy"),
)
RESAMPLES = 1000


def arms_of(folder: Path) -> dict[str, Arm]:
    """The tables of every arm, by seed."""
    found: dict[str, dict[int, list[DecisionRow]]] = {}
    for path in sorted(folder.glob("runs/*/eval/decisions/*.csv.gz")):
        arm, _, seed = path.parts[-4].partition("-")
        found.setdefault(arm, {})[int(seed) if seed else UNTRAINED] = read_table(path)
    return dict(found)


def summary(folder: Path) -> dict[str, Any]:
    """What `main` writes: every arm's metrics, what rules and fusion change, and the differences between arms."""
    arms = arms_of(folder)
    schema = SCHEMA if "synthetic" in folder.name else None  # no other set has rules
    with ProcessPoolExecutor() as pool:
        measured = dict(zip(arms, pool.map(_arm, arms.values(), [schema] * len(arms)), strict=True))
    known = [c for c in SECONDARY if c.first in arms and c.second in arms]
    return {"arms": measured, "comparisons": compare_arms(arms, PRIMARY, known, resamples=RESAMPLES)}


def _arm(arm: Arm, schema: Schema | None) -> dict[str, Any]:
    out = arm_summary(arm, resamples=RESAMPLES)
    tables = {
        str(seed): calibrated_table(select(rows, CALIBRATION), select(rows, TEST), resamples=RESAMPLES)
        for seed, rows in arm.items()
    }
    out["fusion"] = {seed: next(d for d in t["differences"] if d["first"][0] == "fused") for seed, t in tables.items()}
    if schema is not None:
        out["rules"] = {str(seed): rule_summary(rows, schema, resamples=RESAMPLES) for seed, rows in arm.items()}
    return out


def main() -> None:
    folder = Path(sys.argv[1])
    write_eval(folder / "summary.json", summary(folder))


if __name__ == "__main__":
    main()
