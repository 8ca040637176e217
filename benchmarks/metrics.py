"""The measured tables of docs/metrics.md, on simulated forecasts: `uv run python benchmarks/metrics.py` (1.5 minutes, one core)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rlcd_lite.calibration import Numbers, brier, ece, log_loss, murphy, null_floor, spiegelhalter
from rlcd_lite.resample import Statistic, bootstrap, mean_interval
from rlcd_lite.selective import augrc, aurc, e_aurc

REPETITIONS = 300
Metric = Callable[..., Numbers]
METRICS: tuple[Metric, ...] = (brier, log_loss, ece, aurc, e_aurc, augrc)


def statistic(metric: Metric, confidence: np.ndarray, correct: np.ndarray) -> Statistic:
    return lambda weight: metric(confidence, correct, weight=weight)


def debiased(confidence: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> Numbers:
    return murphy(confidence, correct, weight=weight).reliability_debiased


def speed() -> None:
    print("Seconds for 1,000 clustered resamples of one metric, confidences without ties:\n")
    print(f"| decisions | {' | '.join(m.__name__ for m in METRICS)} | murphy |")
    print("| --- " * (len(METRICS) + 2) + "|")
    for n in (900, 7500):
        rng = np.random.default_rng(0)
        confidence = rng.random(n)
        correct = rng.random(n) < confidence
        cells = []
        for metric in (*METRICS, debiased):
            start = time.perf_counter()
            bootstrap(statistic(metric, confidence, correct), np.repeat(np.arange(n // 3), 3))
            cells.append(f"{time.perf_counter() - start:.2f}")
        print(f"| {n} | {' | '.join(cells)} |")


def percentile_coverage() -> None:
    print("\nShare of 95 % percentile intervals that hold the truth (confidence uniform on (0.25, 0.9), too high by an offset):\n")
    print("| decisions | offset | Brier | ECE | debiased REL |")
    print("| --- | --- | --- | --- | --- |")
    grid = np.linspace(0.25, 0.9, 100_001)
    for n in (200, 900):
        for offset in (0.0, 0.03, 0.1):
            truth = grid - offset
            target: dict[Metric, float] = {brier: float(np.mean(truth * (1 - truth))) + offset**2, ece: offset, debiased: offset**2}
            held = dict.fromkeys(target, 0)
            rng = np.random.default_rng(1)
            for seed in range(REPETITIONS):
                confidence = rng.uniform(0.25, 0.9, n)
                correct = rng.random(n) < confidence - offset
                for metric in target:
                    found = bootstrap(statistic(metric, confidence, correct), np.arange(n), resamples=300, seed=seed)
                    held[metric] += found.low <= target[metric] <= found.high
            print(f"| {n} | {offset:.2f} | {' | '.join(f'{held[m] / REPETITIONS:.2f}' for m in target)} |")


def clusters() -> None:
    print("\n300 tickets of 3 decisions whose confidences are true and whose luck is shared with a probability:\n")
    print(
        "| shared | Brier interval holds: by decision | by ticket | ECE above null floor | Spiegelhalter p < 0.05 | with clusters |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    ticket = np.repeat(np.arange(300), 3)
    grid = np.linspace(0.3, 0.95, 100_001)
    truth = np.mean(grid * (1 - grid))
    for shared in (0.0, 0.5, 0.9):
        rng = np.random.default_rng(2)
        counts = np.zeros(5)
        for seed in range(REPETITIONS):
            confidence = np.repeat(rng.uniform(0.3, 0.95, 300), 3)
            luck = np.where(rng.random(900) < shared, np.repeat(rng.random(300), 3), rng.random(900))
            correct = luck < confidence
            score = (confidence - correct) ** 2
            by_row, by_ticket = (mean_interval(score, c, resamples=300, seed=seed) for c in (np.arange(900), ticket))
            counts += np.array(
                (
                    by_row.low <= truth <= by_row.high,
                    by_ticket.low <= truth <= by_ticket.high,
                    float(ece(confidence, correct)) > null_floor(confidence, seed=seed).upper,
                    spiegelhalter(confidence, correct).p_value < 0.05,
                    spiegelhalter(confidence, correct, clusters=ticket).p_value < 0.05,
                ),
                dtype=float,
            )
        print(f"| {shared} | {' | '.join(f'{c:.2f}' for c in counts / REPETITIONS)} |")


if __name__ == "__main__":
    speed()
    percentile_coverage()
    clusters()
