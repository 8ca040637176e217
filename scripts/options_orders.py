"""How many orders of the options are enough? One pass in eight orders, read as if it had been 1, 2, 4, 8, or as many as auto takes.

    uv run --all-extras python scripts/options_orders.py results/options boolq mmlu arc:easy

The first orders of eight are those of a smaller number, and an order's numbers do not depend on the others in the pass, so that one
pass gives the tables of all. Writes SET--orders/orders.json: figures for each number, with the flips when the schema has another
order, the orders that auto tried, and how often it answers as all eight.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rlcd_lite.datasets import Example, load
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, write_table
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.folding import field_scores
from rlcd_lite.orders import AUTO_ORDERS, AUTO_ROUNDS, other_order, reordered, settled
from rlcd_lite.resample import mean_interval
from rlcd_lite.schema import Schema
from rlcd_lite.scores import FieldScores
from rlcd_lite.selective import clopper_pearson
from rlcd_lite.summary import order_summary, summarise

N, CALIBRATION_N, SHUFFLED_N = 500, 100, 200
COUNTS: tuple[int | str, ...] = (1, 2, 4, 8, "auto")
Tables = dict[int | str, list[DecisionRow]]


def main() -> None:
    folder, *names = sys.argv[1:]
    engine = DecisionEngine.load("smollm2", dtype="bfloat16", layout="context-first", permutations=AUTO_ORDERS)
    for name in names:
        out = Path(folder) / f"{name.replace(':', '-')}--orders"
        if not (out / "orders.json").exists():
            out.mkdir(parents=True, exist_ok=True)
            measure(engine, name, out)


def measure(engine: DecisionEngine, name: str, out: Path) -> None:
    calibration, test = load(name, "calibration", CALIBRATION_N), load(name, "test", N)
    tables: Tables = {count: [] for count in COUNTS}
    tried: list[int] = []
    parts: list[tuple[str, Sequence[Example], random.Random | None]] = [
        (CALIBRATION, calibration.examples, None),
        (TEST, test.examples, None),
        ("order-1", test.examples[:SHUFFLED_N], random.Random("order-0-1")),
    ]
    started = time.perf_counter()
    for split, examples, dice in parts:
        for i, example in enumerate(examples):
            for count, row, orders in decided(engine, split, example, dice):
                tables[count].append(row)
                if count == "auto" and split == TEST:
                    tried.append(orders)
            if i % 50 == 49:
                print(f"{name} {split}: {i + 1} of {len(examples)}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    found: dict[str, Any] = {}
    for count, rows in tables.items():
        write_table(out / f"labels-{count}.csv.gz", rows)
        summary = summarise(rows)
        found[str(count)] = {key: summary[key] for key in ("accuracy", "contexts")} | {"order": order_summary(rows)}
        found[str(count)] |= {s: {k: summary["signals"][s][k] for k in ("ece", "aurc", "brier")} for s in ("softmax", "softmax_ts")}
    pairs = [(a.choice, b.choice) for a, b in zip(tables["auto"], tables[8], strict=True) if a.split == TEST]
    same = sum(a == b for a, b in pairs)
    low, high = clopper_pearson(same, len(pairs))
    found["auto"]["agreement"] = {"estimate": same / len(pairs), "low": low, "high": high}
    interval = mean_interval(tried, [example.id for example in test])
    found["auto"]["tried"] = {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    found["seconds"] = (time.perf_counter() - started) / sum(len(examples) for _, examples, _ in parts)
    (out / "orders.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@torch.inference_mode()
def decided(
    engine: DecisionEngine, split: str, example: Example, dice: random.Random | None
) -> Iterator[tuple[int | str, DecisionRow, int]]:
    """One example's row in the table of each number of orders, and how many these were."""
    (field,) = example.schema.fields
    shown = list(range(len(field.options))) if dice is None else other_order(field, dice)
    schema = Schema((reordered(field, shown),))
    asked = [(engine.prompts(schema), engine.encode(schema, example.context))]
    ((answers,), _, _) = engine._run(asked, coverage=True)
    known = {count: field_scores(schema, engine.contract, answers[:count])[0] for count in COUNTS if isinstance(count, int)}
    enough = next((k for k in AUTO_ROUNDS if settled(_orders(known[k]), AUTO_ORDERS)), AUTO_ORDERS)
    for count in COUNTS:
        scores = known[enough if count == "auto" else int(count)]
        logits = [float(scores.choice[shown.index(option)]) for option in range(len(shown))]
        stated = tuple(scores.stated_in(int(scores.choice.argmax())).tolist())
        label = field.index(example.labels[field.name])
        coverage = scores.coverage or 0.0
        row = DecisionRow(split, example.id, field.name, label, tuple(logits), stated, scores.grid, coverage)
        yield count, row, enough if count == "auto" else int(count)


def _orders(scores: FieldScores) -> torch.Tensor:
    assert scores.orders is not None
    return scores.orders


if __name__ == "__main__":
    main()
