"""Means over training seeds and differences between arms: the two-level bootstrap, and Holm's correction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from rlcd_lite.calibration import brier
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, fit_temperatures, select, signals
from rlcd_lite.errors import UserError
from rlcd_lite.replicates import UNTRAINED, Comparison, arm_summary, compare_arms
from rlcd_lite.resample import bootstrap, over_runs

GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


def table(seed: int, sharpness: float = 1.0, level: int = 3, contexts: int = 60) -> list[DecisionRow]:
    """A model of a seed over the same examples: labels are those of the data, logits its own; one stated level for all."""
    data, own = np.random.default_rng(7), np.random.default_rng([seed, 8])
    out = []
    for split in (CALIBRATION, TEST):
        for i in range(contexts):
            for field in ("a", "b"):
                z = data.normal(size=3)
                label = int(data.choice(3, p=np.exp(z) / np.exp(z).sum()))
                logits = sharpness * (z + 0.3 * own.normal(size=3))
                stated = np.where(np.arange(5) == level, 4.0, 0.0)
                out.append(DecisionRow(split, f"{split}-{i}", field, label, tuple(logits), tuple(stated), GRID, 1.0))
    return out


def mean_of(values):
    return lambda weight: weight @ values / weight.sum(axis=1)


def test_one_run_is_the_bootstrap_over_contexts() -> None:
    values, ticket = np.random.default_rng(0).normal(size=200), np.repeat(np.arange(50), 4)
    one, plain = over_runs([mean_of(values)], ticket), bootstrap(mean_of(values), ticket)
    assert (one.estimate, one.low, one.high) == (plain.estimate, plain.low, plain.high)


def test_the_interval_over_runs_has_both_variances() -> None:
    """Runs and contexts that vary by themselves: the variance of the mean is the sum of what each of them gives."""
    rng = np.random.default_rng(1)
    runs, contexts = 40, 400
    values = rng.normal(scale=0.5, size=(runs, 1)) + rng.normal(scale=2.0, size=(1, contexts)) + rng.normal(size=(runs, contexts))
    found = over_runs([mean_of(v) for v in values], np.arange(contexts), resamples=4000)
    assert found.estimate == pytest.approx(values.mean())
    expected = np.sqrt(values.mean(axis=1).var() / runs + values.mean(axis=0).var() / contexts)
    # the interaction is counted twice: 1 / (runs * contexts) is small
    assert (found.high - found.low) / (2 * scipy.stats.norm.ppf(0.975)) == pytest.approx(expected, rel=0.06)
    alone = bootstrap(mean_of(values.mean(axis=0)), np.arange(contexts), resamples=4000)
    assert found.high - found.low > 1.1 * (alone.high - alone.low)
    with pytest.raises(UserError, match="there is no run"):
        over_runs([], np.arange(4))


def test_an_arm_is_the_mean_of_its_seeds() -> None:
    arm = {seed: table(seed) for seed in (0, 1, 2)}
    found = arm_summary(arm, resamples=50)
    each = [signals(select(rows, TEST), fit_temperatures(rows)) for rows in arm.values()]
    rates = [s.correct.mean() for s in each]
    assert found["accuracy"]["estimate"] == pytest.approx(np.mean(rates))
    assert found["accuracy"]["seeds"] == {str(s): pytest.approx(rate) for s, rate in enumerate(rates)}
    assert found["accuracy"]["low"] <= found["accuracy"]["estimate"] <= found["accuracy"]["high"]
    for name, signal in found["signals"].items():
        assert signal["brier"]["estimate"] == pytest.approx(np.mean([brier(s.confidence[name], s.correct) for s in each]))
        assert signal["mean_confidence"] == pytest.approx(np.mean([s.confidence[name].mean() for s in each]))
    constant = found["signals"]["stated"]
    assert constant["mean_confidence"] == pytest.approx(0.7)
    assert constant["resolution"]["estimate"] == pytest.approx(0, abs=1e-12)
    assert "posterior_error" not in constant
    assert "bayes_accuracy" not in found
    known = [replace(row, posterior=(0.2, 0.7, 0.1) if row.field == "a" else (0.5, 0.3, 0.2)) for row in table(0)]
    assert arm_summary({0: known}, resamples=10)["bayes_accuracy"] == pytest.approx(0.6)


def test_differences_are_paired_and_the_others_are_corrected() -> None:
    arms = {
        "good": {seed: table(seed) for seed in (0, 1, 2)},
        "bad": {seed: table(seed, level=0) for seed in (0, 1, 2)},
        "base": {UNTRAINED: table(9, sharpness=3.0)},
    }
    primary = Comparison("good", "bad", "stated", "brier")
    others = [
        Comparison("good", "base", "softmax", "brier"),
        Comparison("good", "base", "", "accuracy"),
        Comparison("good", "good", "softmax", "ece"),
    ]
    found = compare_arms(arms, primary, others, resamples=200)
    good, bad = (arm_summary(arms[name], resamples=20) for name in ("good", "bad"))
    difference = good["signals"]["stated"]["brier"]["estimate"] - bad["signals"]["stated"]["brier"]["estimate"]
    assert found[0]["estimate"] == pytest.approx(difference)
    assert found[0]["high"] < 0
    assert found[0]["agree"]
    assert found[0]["p"] == 1 / 200
    assert "p_holm" not in found[0]
    assert list(found[1]["seeds"]) == ["0", "1", "2"]  # the base has one run, which meets every seed
    assert found[3]["estimate"] == 0
    assert found[3]["p"] == found[3]["p_holm"] == 1
    p = [entry["p"] for entry in found[1:]]
    ranked = sorted(range(3), key=p.__getitem__)
    running = 0.0
    for k, i in enumerate(ranked):
        running = max(running, min(1.0, p[i] * (3 - k)))
        assert found[1 + i]["p_holm"] == running
    with pytest.raises(UserError, match="different examples"):
        compare_arms(arms | {"bad": {0: table(0, contexts=50)}}, primary, [], resamples=20)
