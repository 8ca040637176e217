"""The choice of calibrators: what is kept, what is improved, what is refused; and the table that compares them."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax

from rlcd_lite.calibration import brier, top_log_odds
from rlcd_lite.comparison import calibrated_table
from rlcd_lite.decision_table import DecisionRow, logit_matrix
from rlcd_lite.errors import UserError
from rlcd_lite.fitting import FOLDS, METHODS, SIGNALS, FieldCalibration, _folds, choose, evidence, labelled

GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


def tickets(n, *, seed=0, scale=1.0, spread=2.0, options=(4,), stated="chance", split="calibration", field="severity"):
    """Rows whose labels come from softmax(true logits) and whose model says ``scale`` times those.

    ``stated``: the level is drawn by ``chance``, is the ``honest`` one nearest to the true probability of the choice, or ``knows``
    whether it is right in nine cases of ten.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        true = rng.normal(0, spread, options[i % len(options)])
        p = softmax(true)
        label = int(rng.choice(len(p), p=p))
        right = label == int(p.argmax())
        if stated == "honest":
            level = int(np.abs(np.array(GRID) - p.max()).argmin())
        elif stated == "knows":
            level = (4 if right else 0) if rng.random() < 0.9 else (0 if right else 4)
        else:
            level = int(rng.integers(5))
        said = np.where(np.arange(5) == level, 4.0, 0.0) + rng.normal(0, 0.3, 5)
        logits = np.float32(scale * true)
        rows.append(
            DecisionRow(split, f"t{i:04}", field, label, tuple(logits.tolist()), tuple(said.tolist()), GRID, 1.0, tuple(p.tolist()))
        )
    return rows


def arrays(rows):
    return logit_matrix(rows), [row.stated_logits for row in rows], [row.grid for row in rows]


# ---- what a calibrator sees ----


def test_the_features_are_what_they_say():
    rows = tickets(20)
    z, stated, grid = arrays(rows)
    seen = evidence(z, stated, grid)
    p, q = softmax(z, axis=1), softmax(stated, axis=1)
    top = np.sort(p, axis=1)
    mean = (q * GRID).sum(axis=1)
    level = np.array(GRID)[np.argmax(stated, axis=1)]
    expected = [logit(top[:, -1]), np.log(top[:, -1] / top[:, -2]), -(p * np.log(p)).sum(axis=1), logit(mean), logit(level)]
    np.testing.assert_allclose(seen.features, np.stack(expected, axis=1), atol=1e-9)
    np.testing.assert_allclose(seen.log_odds["softmax"], logit(top[:, -1]))
    np.testing.assert_allclose(seen.log_odds["stated"], logit(level))
    np.testing.assert_allclose(seen.log_odds["stated_mean"], logit(mean))


def test_absent_options_and_saturated_rows_leave_finite_features():
    short, long = [0.0, 1000.0], [1.0, 2.0, 3.0]
    rows = [DecisionRow("test", f"e{i}", "f", 0, tuple(z), (0.0,) * 5, GRID, 1.0) for i, z in enumerate([short, long])]
    alone = [evidence([z], [[0.0] * 5], [GRID]).features[0] for z in (short, long)]
    np.testing.assert_allclose(labelled(rows).seen.features, alone, atol=1e-12)
    assert alone[0][0] == 1000


@pytest.mark.parametrize(
    ("stated", "grid"),
    [([[0.0] * 5], [GRID[:4]]), ([[0.0] * 5] * 2, [GRID] * 2), ([[0.0, 0.0]], [[0.0, 0.5]]), ([[0.0, 0.0]], [[0.5, float("nan")]])],
)
def test_evidence_of_another_shape_or_grid_is_refused(stated, grid):
    with pytest.raises(UserError, match="grid"):
        evidence([[0.0, 1.0]], stated, grid)


# ---- folds ----


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(50, 90), st.integers(2, 40))
def test_folds_are_of_equal_size_and_each_is_fitted_on_both_kinds(seed, n, wrong):
    rng = np.random.default_rng(seed)
    bad = set(rng.choice(n, wrong, replace=False).tolist())
    rows = [DecisionRow("calibration", f"e{i}", "f", int(i in bad), (1.0, 0.0), (0.0,) * 5, GRID, 1.0) for i in range(n)]
    data = labelled(rows)
    fold = _folds(data, seed)
    assert np.ptp(np.bincount(fold, minlength=FOLDS)) <= 1
    assert np.ptp(np.bincount(fold, data.correct == 0, FOLDS)) <= 1
    for k in range(FOLDS):
        assert 0 < data.correct[fold != k].mean() < 1
    order = rng.permutation(n)
    np.testing.assert_array_equal(_folds(labelled([rows[i] for i in order]), seed), fold[order])


def test_rows_of_one_example_share_a_fold():
    twice = tickets(60) + tickets(60, scale=2.0)
    fold = _folds(labelled(twice), 0)
    np.testing.assert_array_equal(fold[:60], fold[60:])


# ---- the choice ----


@pytest.fixture(scope="module")
def overconfident():
    return choose(tickets(300, scale=4.0))


def test_calibrated_signals_are_left_as_they_are():
    found = choose(tickets(300, stated="honest"))
    assert {name: getattr(found, name).kind for name in ("distribution", "softmax", "stated", "stated_mean")} == {
        "distribution": "identity",
        "softmax": "identity",
        "stated": "identity",
        "stated_mean": "identity",
    }
    assert found.signal == "softmax"


def test_distorted_signals_are_mended(overconfident):
    assert overconfident.distribution.kind in ("temperature", "ensemble")
    assert overconfident.softmax.kind != "identity"
    assert overconfident.stated.kind != "identity"  # a level drawn by chance says no more than the base rate
    assert overconfident.signal == "softmax"
    fresh = tickets(2000, seed=1, scale=4.0, split="test")
    found = overconfident.apply(*arrays(fresh))
    correct = labelled(fresh).correct
    truth = np.array([row.posterior[row.choice] for row in fresh])
    assert np.abs(found.confidence - truth).mean() < 0.05 < np.abs(expit(top_log_odds(arrays(fresh)[0])) - truth).mean()
    assert brier(found.confidence, correct) < brier(expit(top_log_odds(arrays(fresh)[0])), correct)


def test_the_methods_that_were_tried_are_on_record(overconfident):
    assert {signal: tuple(scores) for signal, scores in overconfident.methods.items()} == dict(METHODS)
    for signal, scores in overconfident.methods.items():
        for score in scores.values():
            assert score.low <= score.gain <= score.high
        reference = scores.get("identity", overconfident.methods["softmax"]["identity"])
        for score in scores.values():
            assert score.gain == pytest.approx(reference.log_loss - score.log_loss)
        kept = scores[getattr(overconfident, signal).kind]
        best = min(scores.values(), key=lambda score: score.log_loss)
        assert kept.log_loss <= best.log_loss + 1e-4 if best.low > 0 else kept.gain <= 0
    assert set(overconfident.signals) == set(SIGNALS)
    assert overconfident.signals["softmax"].gain == 0


def test_a_method_is_scored_on_rows_that_it_has_not_seen():
    found = choose(tickets(200, spread=0.3, scale=3.0))
    data = labelled(tickets(200, spread=0.3, scale=3.0))
    fitted = found.fused.apply(data.seen.features)
    seen = np.logaddexp(0, np.where(data.correct == 1, -fitted, fitted)).mean()
    assert found.methods["fused"]["fusion"].log_loss > seen + 0.005


def test_what_stated_knows_and_softmax_lacks_is_acted_on():
    rows = tickets(300, spread=0.5, stated="knows")
    found = choose(rows)
    assert found.signal in ("stated", "stated_mean", "fused")
    assert found.signals["fused"].low > 0.1
    fresh = tickets(1000, seed=1, spread=0.5, stated="knows", split="test")
    answered = found.apply(*arrays(fresh))
    assert brier(answered.confidence, labelled(fresh).correct) < 0.13


def test_both_channels_together_beat_each_alone():
    rng = np.random.default_rng(5)
    rows = []
    for i in range(400):  # each channel knows one of two independent reasons to be right
        a, b = abs(rng.normal(0, 1.8)), rng.normal(0, 1.8)
        said = np.where(np.arange(5) == np.digitize(b, [-2, -0.7, 0.7, 2]), 6.0, 0.0)
        wrong = int(rng.random() > expit(a + b))
        rows.append(DecisionRow("calibration", f"e{i}", "f", wrong, (a, 0.0), tuple(said.tolist()), GRID, 1.0))
    found = choose(rows)
    assert found.signal == "fused"
    assert found.signals["fused"].gain > max(0.02, found.signals["stated"].gain + 0.02)


def test_neither_order_nor_hidden_state_matters(overconfident):
    rows = tickets(300, scale=4.0)
    random.Random(0).shuffle(rows)
    assert choose(rows) == overconfident
    assert choose(rows, seed=1).methods != overconfident.methods


def test_options_may_differ_in_number():
    rows = tickets(200, scale=4.0, options=(3, 5))
    found = choose(rows)
    whole = found.apply(*arrays(rows))
    for i in (0, 1):
        alone = found.apply([rows[i].logits], [rows[i].stated_logits], [rows[i].grid])
        k = len(rows[i].logits)
        np.testing.assert_allclose(softmax(alone.logits[0]), softmax(whole.logits[i])[:k], atol=1e-9)
        assert softmax(whole.logits[i])[k:].sum() == pytest.approx(0)
        assert alone.confidence[0] == pytest.approx(whole.confidence[i])
        assert {name: odds[0] for name, odds in alone.log_odds.items()} == pytest.approx(
            {name: odds[i] for name, odds in whole.log_odds.items()}
        )


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.01, 300))
def test_no_calibrator_moves_the_choice(overconfident, seed, spread):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (10, 4))
    found = overconfident.apply(logits, rng.normal(0, 3, (10, 5)), [GRID] * 10)
    np.testing.assert_array_equal(found.logits.argmax(axis=1), logits.argmax(axis=1))
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert all(np.isfinite(odds).all() for odds in found.log_odds.values())
    np.testing.assert_array_equal(found.confidence, expit(found.log_odds[overconfident.signal]))


# ---- what is refused ----


def with_choice(row, right):
    """The row with a label that makes its choice right or wrong."""
    return replace(row, label=row.choice if right else (row.choice + 1) % 4)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (tickets(49), "'severity' has 49 rows.*at least 50"),
        ([], "0 rows"),
        (tickets(60) + tickets(60, field="team"), "'severity', 'team'"),
        ([with_choice(r, True) for r in tickets(60)], "'severity' has 0 wrong.*harder"),
        ([with_choice(r, r.example != "t0007") for r in tickets(60)], "'severity' has 1 wrong.*harder"),
        ([with_choice(r, False) for r in tickets(60)], "'severity' has 0 right.*easier"),
    ],
)
def test_rows_that_cannot_be_calibrated_on_are_refused(rows, words):
    with pytest.raises(UserError, match=words):
        choose(rows)


def test_two_wrong_choices_are_enough():
    found = choose([with_choice(r, r.example not in ("t0007", "t0011")) for r in tickets(60)])
    assert np.isfinite([s.log_loss for scores in found.methods.values() for s in scores.values()]).all()


def test_a_confidence_of_another_grid_is_refused_by_a_table(overconfident):
    table = {"kind": "table", "x": logit(GRID).tolist(), "y": [0.0] * 5}
    found = FieldCalibration.from_dict(overconfident.to_dict() | {"stated": table})
    assert found.apply([[0.0, 1.0]], [[0.0] * 5], [GRID]).log_odds["stated"] == [0.0]
    with pytest.raises(UserError, match="none of the levels"):
        found.apply([[0.0, 1.0]], [[9.0, 0.0]], [[0.2, 0.8]])


# ---- JSON ----


def test_json_gives_back_what_was_written(overconfident):
    again = FieldCalibration.from_dict(json.loads(json.dumps(overconfident.to_dict(), allow_nan=False)))
    assert again == overconfident
    one = arrays(tickets(1))
    np.testing.assert_array_equal(again.apply(*one).confidence, overconfident.apply(*one).confidence)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("signal",), "hunch", "signal"),
        (("rows",), 3, "rows"),
        (("rows",), "300", "rows"),
        (("softmax",), {"kind": "table", "x": [0.0], "y": [0.0]}, "softmax"),
        (("softmax",), {"kind": "platt", "slope": -1.0, "intercept": 0.0}, "softmax.platt.slope"),
        (("fused", "scale"), [1.0, 1.0, 1.0, 1.0, 0.0], "fused.scale"),
        (("fused", "intercept"), float("nan"), "fused.intercept"),
        (("methods", "stated", "table", "low"), None, "methods.stated.table.low"),
        (("more",), 1, "more"),
    ],
)
def test_damaged_json_is_refused(overconfident, path, value, words):
    source = copy.deepcopy(overconfident.to_dict())
    inner = source
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(UserError, match=f"damaged at {words}.*fit it again") as caught:
        FieldCalibration.from_dict(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [None, [], "x", {}])
def test_what_is_no_calibration_is_refused(source):
    with pytest.raises(UserError, match="the calibration of a field is damaged"):
        FieldCalibration.from_dict(source)


# ---- the table ----


def test_the_table_compares_all_methods_on_the_test_rows():
    parts = {
        split: tickets(n, seed=s, scale=4.0, split=split) + tickets(n, seed=s + 9, scale=0.5, split=split, field="team")
        for split, n, s in (("calibration", 120, 0), ("test", 150, 1))
    }
    found = calibrated_table(parts["calibration"], parts["test"], resamples=50)
    assert (found["contexts"], found["decisions"]) == (150, 300)
    rows = {(row["signal"], row["method"]): row for row in found["methods"]}
    assert set(rows) == {(s, m) for s in SIGNALS for m in (*METHODS[s], "selected")} | {
        ("single", "selected"),
        ("chosen", "selected"),
    }
    raw = np.concatenate([top_log_odds(logit_matrix([r for r in parts["test"] if r.field == f])) for f in ("severity", "team")])
    correct = np.concatenate([labelled([r for r in parts["test"] if r.field == f]).correct for f in ("severity", "team")])
    identity, selected = rows["softmax", "identity"], rows["softmax", "selected"]
    assert identity["brier"] == pytest.approx(brier(expit(raw), correct))
    assert found["base_rate_brier"] == pytest.approx(correct.mean() * (1 - correct.mean()))
    for metric in ("brier", "log_loss", "reliability_debiased"):
        assert selected[metric] < identity[metric]
    assert selected["posterior_error"]["mean_absolute"] < 0.08 < identity["posterior_error"]["mean_absolute"]
    assert selected["ece"]["low"] <= selected["ece"]["high"]
    difference = next(d for d in found["differences"] if d["first"] == ("softmax", "selected"))
    assert difference["brier"]["estimate"] == pytest.approx(selected["brier"] - identity["brier"])
    assert difference["brier"]["high"] < 0
    assert found["distribution"]["selected"] < found["distribution"]["identity"]
    json.dumps(found, allow_nan=False)
    for calibration in found["fields"].values():
        FieldCalibration.from_dict(json.loads(json.dumps(calibration)))
