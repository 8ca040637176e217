"""Which prompt layout decides better, and at what cost: accuracy, log loss and seconds a text, side by side in one run.

    RLCD_DATA_DIR=… uv run --all-extras python benchmarks/layouts.py

Both layouts answer the same examples. Accuracy has an exact binomial 95 % interval over fields and texts; the difference of the log
losses (in nats a decision; positive: schema-first is better) has a paired bootstrap interval over texts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
import tyro
from scipy.stats import binomtest, bootstrap

from rlcd_lite.datasets import Dataset, load
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.settings import Layout

SETS = ("synthetic", "boolq", "snli", "arc:easy")
LAYOUTS: tuple[Layout, ...] = ("schema-first", "context-first")


@dataclass
class Args:
    model: str = "smollm2"
    """Model to measure."""
    n: int = 200
    """Test examples of each set."""


def run(engine: DecisionEngine, dataset: Dataset, layout: Layout) -> tuple[list[bool], list[float], float]:
    """Whether each decision was right, the mean log loss of each text's decisions, and the seconds a text took."""
    engine.contract = replace(engine.contract, layout=layout)
    correct: list[bool] = []
    losses: list[float] = []
    start = time.perf_counter()
    if dataset.schema is None:  # the options are each example's own
        decisions = [engine.decide(e.schema, e.context) for e in dataset]
    else:
        decisions = list(engine.decide_many(dataset.schema, (e.context for e in dataset)))
    seconds = (time.perf_counter() - start) / len(dataset)
    for example, decision in zip(dataset, decisions, strict=True):
        right = [answer.field.index(example.labels[answer.field.name]) for answer in decision.fields]
        correct += [answer.choice == i for answer, i in zip(decision.fields, right, strict=True)]
        losses.append(float(-np.mean([np.log(a.probabilities[i]) for a, i in zip(decision.fields, right, strict=True)])))
    return correct, losses, seconds


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    engine = DecisionEngine.load(args.model)
    print(f"model {args.model}, {engine.model.dtype}, n = {args.n}, {torch.get_num_threads()} threads\n")
    print("| set | layout | accuracy (95 %) | log loss | difference (95 %) | s a text |\n| --- | --- | --: | --: | --: | --: |")
    for name in SETS:
        dataset = load(name, "test", args.n)
        measured = {layout: run(engine, dataset, layout) for layout in LAYOUTS}
        difference = np.array(measured["context-first"][1]) - np.array(measured["schema-first"][1])
        interval = bootstrap((difference,), np.mean, rng=np.random.default_rng(0), method="percentile").confidence_interval
        for layout, (correct, losses, seconds) in measured.items():
            accuracy = binomtest(sum(correct), len(correct)).proportion_ci()
            shown = f"{difference.mean():+.3f} ({interval.low:+.3f}, {interval.high:+.3f})" if layout == "context-first" else ""
            share = f"{np.mean(correct):.3f} ({accuracy.low:.3f}–{accuracy.high:.3f})"
            print(f"| {name} | {layout} | {share} | {np.mean(losses):.3f} | {shown} | {seconds:.3f} |", flush=True)


if __name__ == "__main__":
    main()
