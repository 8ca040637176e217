"""Scores of what is out of scope, against scikit-learn and by counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score, roc_curve

from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.scope import auroc, false_alarm, none_log_odds, scores
from rlcd_lite.summary import scope_summary

GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


def row(i: int, logits: list[float], label: int, split: str = "test", coverage: float = 0.5) -> DecisionRow:
    return DecisionRow(split, f"e{i}", "intent", label, tuple(logits), (0.0,) * 5, GRID, coverage)


scored = st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), min_size=2, max_size=40).filter(
    lambda rows: sum(out * weight for _, out, weight in rows) > 0 and sum((not out) * weight for _, out, weight in rows) > 0
)


@given(scored)
def test_auroc_is_scikit_learns(rows: list[tuple[int, bool, int]]) -> None:
    score, out, weight = (np.array(column) for column in zip(*rows, strict=True))
    assert auroc(score, out, weight) == pytest.approx(roc_auc_score(out, score, sample_weight=weight))
    assert auroc(-score, out, weight) == pytest.approx(1 - auroc(score, out, weight))
    assert auroc(score**3, out, weight) == pytest.approx(auroc(score, out, weight))


@given(scored)
def test_false_alarm_is_the_lowest_false_positive_rate_that_reaches_the_recall(rows: list[tuple[int, bool, int]]) -> None:
    score, out, _ = (np.array(column) for column in zip(*rows, strict=True))
    if not 0 < out.sum() < len(out):
        assert np.isnan(false_alarm(score, out))
        return
    false_positive, true_positive, _ = roc_curve(out, score, drop_intermediate=False)
    assert false_alarm(score, out) == pytest.approx(min(false_positive[true_positive >= 0.9 - 1e-12]))


def test_one_kind_alone_has_no_score() -> None:
    assert np.isnan(auroc([1.0, 2.0], [1, 1]))
    assert np.isnan(false_alarm([1.0, 2.0], [0, 0]))
    of_one = {split: [row(i, [0.0, 1.0], 0, split) for i in range(4)] for split in ("calibration", "test")}
    of_both = {split: [row(i, [0.0, 1.0], i % 2, split) for i in range(40)] for split in ("calibration", "test")}
    assert scope_summary(of_both["calibration"] + of_one["test"], "intent") is None
    assert scope_summary(of_one["calibration"] + of_both["test"], "intent") is None
    assert scope_summary(of_both["calibration"] + of_both["test"], "intent", resamples=20) is not None


def test_the_scores_are_what_they_say() -> None:
    rows = [row(0, [1.0, 2.0, 0.5], 2, coverage=0.2), row(1, [3.0, 0.0, -1.0], 0, coverage=0.9)]
    p = np.array([np.exp(r.logits) / np.exp(r.logits).sum() for r in rows])
    found = scores(rows)
    assert found["none_of_the_above"] == pytest.approx(logit(p[:, -1]))
    assert found["max_probability"] == pytest.approx(np.log(p[:, :-1].max(1)) * -1)
    assert found["coverage"] == pytest.approx([-0.2, -0.9])
    assert none_log_odds(rows) == pytest.approx(logit(p[:, -1]))


def test_the_summary_finds_a_score_that_knows_and_mends_its_probability() -> None:
    dice = np.random.default_rng(1)
    rows = []
    for split, n in (("calibration", 400), ("test", 600)):
        for i in range(n):
            odds = dice.normal(-1, 2)
            out = dice.random() < expit(odds)
            rows.append(row(i, [0.0, 0.0, 3 * odds + np.log(2)], 2 if out else 0, split, coverage=float(dice.random())))
    found = scope_summary(rows, "intent", resamples=200)
    assert found is not None
    assert found["out_of_scope"] == sum(r.label == 2 for r in rows if r.split == "test")
    known, blind = found["scores"]["none_of_the_above"]["auroc"], found["scores"]["coverage"]["auroc"]
    assert known["low"] > 0.75 > 0.6 > blind["high"]
    assert found["scores"]["none_of_the_above"]["false_alarm_at_90_recall"] < 0.8
    assert found["raw"]["ece"] > 2 * found["platt"]["ece"]
    assert found["platt_fit"]["slope"] == pytest.approx(1 / 3, abs=0.1)
