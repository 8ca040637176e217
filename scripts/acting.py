"""What acting on the answers of decision tables is worth: promises kept over many draws of held-out rows, rules before and after,
and the picture of docs/acting.md.

uv run --all-extras python scripts/acting.py OUT NAME=TABLE…

A table's calibration split fits the calibrators. Its test split then stands for the source that texts are drawn from: 300 times,
300 rows are drawn from it with replacement, and what they promise is compared with what holds over all of it. Writes
OUT/summary.json, and OUT/NAME.png for tables of one field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from rlcd_lite.calibration import Floats, Ints
from rlcd_lite.calibration_file import CalibratedField, HeldOut
from rlcd_lite.conformal import class_limits, limit, option_scores
from rlcd_lite.datasets import synthetic
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, read_table, select
from rlcd_lite.enforced import rule_summary
from rlcd_lite.held_out import calibrated_fields, decided
from rlcd_lite.schema import Field, Option, Schema
from rlcd_lite.selective import certify, passed
from rlcd_lite.settings import SetMethod

matplotlib.use("agg")
from matplotlib import pyplot as plt

DRAWS, ROWS = 300, 300
RISKS, DELTA = (0.05, 0.1, 0.2, 0.4), 0.1
SHARES = (0.05, 0.1, 0.2)
METHODS: tuple[SetMethod, ...] = ("lac", "aps")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    summary = {}
    for name, path in (argument.split("=", 1) for argument in sys.argv[2:]):
        rows = read_table(Path(path))
        schemas = _schemas(rows)
        schema = schemas[rows[0].example]
        fields = [field.name for field in schema.fields]
        fit, test = select(rows, CALIBRATION), select(rows, TEST)
        entries = calibrated_fields(fit, test, schemas, fields, "enforce")
        answers = decided(
            test, schemas, "enforce", {n: e.distribution for n, e in entries.items()}, {n: e.fitted for n, e in entries.items()}
        )
        found: dict[str, Any] = {"contexts": len({row.example for row in test}), "fields": {}}
        for field, entry in entries.items():
            p = [answer.log_p.exp().numpy() for row, answer in answers if row.field == field]
            found["fields"][field] = _field(entry, p)
        if schema.rules:
            found["rules"] = rule_summary(rows, schema)
        if len(fields) == 1 and found["fields"][fields[0]]["risks"]["0.1"]["certified"]:
            _picture(out / f"{name}.png", name, entries[fields[0]])
        summary[name] = found
        print(name, file=sys.stderr)
    (out / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _schemas(rows: Sequence[DecisionRow]) -> dict[str, Schema]:
    """By example, the schema of the tickets; in other tables, fields with as many options as they have."""
    if {row.field for row in rows} == {field.name for field in synthetic.SCHEMA.fields}:
        return dict.fromkeys((row.example for row in rows), synthetic.SCHEMA)
    sizes: dict[str, dict[str, int]] = {}
    for row in rows:
        sizes.setdefault(row.example, {})[row.field] = len(row.logits)
    return {example: _of_sizes(tuple(own.items())) for example, own in sizes.items()}


@lru_cache
def _of_sizes(sizes: tuple[tuple[str, int], ...]) -> Schema:
    return Schema(tuple(Field(name, "choice", tuple(Option(f"option {i}") for i in range(n))) for name, n in sizes))


def _field(entry: CalibratedField, p: Sequence[Floats]) -> dict[str, Any]:
    kept = entry.held_out
    out: dict[str, Any] = {
        "accuracy": float(np.mean(kept.correct)),
        "confidence": {"signal": entry.fitted.signal, "distribution": entry.distribution.kind, "ece": entry.ece.model_dump()},
        "risks": {f"{risk:g}": _risk(entry, risk) for risk in RISKS},
        "sets": {},
    }
    label = np.array(kept.label)
    for method in METHODS:
        scores = np.full((len(p), max(map(len, p))), np.inf)  # (n, K); what is not an option is in no set
        for i, row in enumerate(p):
            scores[i, : len(row)] = option_scores(row, method)
        for alpha in SHARES:
            out["sets"][f"{method} {alpha:g}"] = _sets(scores, label, alpha, per_option=False)
        if scores.shape[1] <= 4:  # more options have too few rows each
            out["sets"][f"{method} per option 0.1"] = _sets(scores, label, 0.1, per_option=True)
    return out


def _draws(rows: int) -> Ints:
    return np.random.default_rng(0).integers(rows, size=(DRAWS, ROWS))


def _risk(entry: CalibratedField, risk: float) -> dict[str, Any]:
    """Of the draws, how many are certified, how much is automated on average, and how many certificates are wrong."""
    confidence, correct = np.array(entry.held_out.confidence), np.array(entry.held_out.correct)
    coverage, realised = [], []
    for drawn in _draws(len(correct)):
        found = certify(confidence[drawn], correct[drawn], entry.grid, risk, DELTA)
        passes = passed(confidence, found.threshold) if found.threshold is not None else np.zeros(len(correct), dtype=bool)
        coverage.append(float(passes.mean()))
        realised.append(float(1 - correct[passes].mean()) if passes.any() else 0.0)
    return {
        "certified": float(np.mean(np.array(coverage) > 0)),
        "coverage": float(np.mean(coverage)),
        "risk": float(np.mean([r for r, c in zip(realised, coverage, strict=True) if c > 0])) if any(coverage) else None,
        "broken": float(np.mean(np.array(realised) > risk)),
    }


def _sets(scores: Floats, label: Ints, alpha: float, per_option: bool) -> dict[str, Any]:
    """Mean share of rows whose set holds their label (per option: of the label where it is lowest), with the band in which the mean
    over the draws should lie if coverage is 1 - α, and the mean size."""
    own = scores[np.arange(len(label)), label]
    shares, sizes = [], []
    for drawn in _draws(len(label)):
        found = class_limits(own[drawn], label[drawn], scores.shape[1], alpha) if per_option else np.array(limit(own[drawn], alpha))
        inside = scores <= found + 1e-9
        hits = inside[np.arange(len(label)), label]
        shares.append([hits[label == k].mean() for k in np.unique(label)] if per_option else [hits.mean()])
        sizes.append(inside.sum(axis=1).mean())
    means = np.mean(shares, axis=0)
    lowest = int(np.argmin(means))
    spread = float(np.std([row[lowest] for row in shares], ddof=1))
    return {"coverage": float(means[lowest]), "band": 2 * spread / DRAWS**0.5, "spread": spread, "size": float(np.mean(sizes))}


def _picture(path: Path, name: str, entry: CalibratedField) -> None:
    """Automated share against the risk that is promised, over the draws, and what is wrong of it."""
    kept: HeldOut = entry.held_out
    confidence, correct = np.array(kept.confidence), np.array(kept.correct)
    risks = np.round(np.concatenate([np.arange(0.01, 0.1, 0.01), np.arange(0.1, 0.31, 0.02)]), 3)
    coverage, realised = np.zeros((len(risks), DRAWS)), np.full((len(risks), DRAWS), np.nan)
    for j, drawn in enumerate(_draws(len(correct))):
        for i, risk in enumerate(risks):
            found = certify(confidence[drawn], correct[drawn], entry.grid, float(risk), DELTA)
            if found.threshold is not None:
                passes = passed(confidence, found.threshold)
                coverage[i, j], realised[i, j] = passes.mean(), 1 - correct[passes].mean()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    middle, low, high = np.median(coverage, axis=1), *np.quantile(coverage, [0.1, 0.9], axis=1)
    left.plot(risks, middle, color="#0072b2")
    left.fill_between(risks, low, high, color="#0072b2", alpha=0.2, linewidth=0)
    left.set(xlabel="certified risk α", ylabel="share automated", ylim=(0, 1.02), title=f"{name}: what may be automated")
    known = [i for i in range(len(risks)) if np.isfinite(realised[i]).mean() > 0.1]
    right.plot([0, risks[-1]], [0, risks[-1]], color="#999999", linestyle="--", linewidth=1)
    ends = np.nanquantile(realised[known], [0.5, 0.1, 0.9], axis=1)
    right.plot(risks[known], ends[0], color="#d55e00")
    right.fill_between(risks[known], ends[1], ends[2], color="#d55e00", alpha=0.2, linewidth=0)
    right.set(xlabel="certified risk α", ylabel="error rate of what is automated", title="and what is wrong of it")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
