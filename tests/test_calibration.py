"""Proper scores, Murphy terms and calibration error: golden numbers, identities, cross-checks, and other libraries' bugs."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.calibration import calibration_curve

from rlcd_lite.calibration import (
    LOG_CLIP,
    bayes_regret,
    brier,
    ece,
    log_loss,
    log_loss_from_log_odds,
    murphy,
    null_floor,
    posterior_error,
    reliability_bins,
    spiegelhalter,
    top_log_odds,
)
from rlcd_lite.errors import UserError

unhurried = settings(deadline=None)  # a busy machine is no failure
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


@st.composite
def decisions(draw, max_size=40):
    """Confidences with many ties, the ends 0 and 1 among them, and outcomes."""
    value = st.one_of(st.sampled_from((*LEVELS, 0.0, 1.0)), st.floats(0, 1))
    rows = draw(st.lists(st.tuples(value, st.booleans()), min_size=1, max_size=max_size))
    return np.array([p for p, _ in rows]), np.array([y for _, y in rows])


def simulate(rng, n):
    confidence = rng.uniform(0.25, 1, n)
    return confidence, rng.random(n) < confidence


def rel(confidence, correct, weight=None):
    return murphy(confidence, correct, weight=weight).reliability


WEIGHTED = [brier, log_loss, ece, rel]


# ---- golden numbers: the seed's rows of a constant stated confidence ----


@pytest.mark.parametrize(
    ("constant", "hits", "expected"),
    [(0.7, 706, (0.084, 0.176, 0.539, 0.007, 0.000)), (0.3, 193, (0.086, 0.176, 0.538, 0.007, 0.000))],
)
def test_seed_rows_of_a_constant_confidence(constant, hits, expected):
    confidence, correct = np.full(900, constant), np.arange(900) < hits
    m = murphy(confidence, correct)
    found = (ece(confidence, correct), brier(confidence, correct), log_loss(confidence, correct), m.reliability, m.resolution)
    assert tuple(round(float(v), 3) for v in found) == expected


def test_known_values_by_hand():
    confidence, correct = [0.9, 0.9, 0.6, 0.2], [1, 0, 1, 0]
    assert brier(confidence, correct) == pytest.approx((0.01 + 0.81 + 0.16 + 0.04) / 4)
    assert ece(confidence, correct) == pytest.approx((abs(1.8 - 1) + 0.4 + 0.2) / 4)
    m = murphy(confidence, correct)
    assert m.reliability == pytest.approx((2 * 0.4**2 + 0.4**2 + 0.2**2) / 4)
    assert m.resolution == pytest.approx((2 * 0 + 0.5**2 + 0.5**2) / 4)
    assert m.uncertainty == 0.25
    assert m.reliability_debiased == pytest.approx(m.reliability - 2 * 0.25 / 1 / 4)
    assert m.resolution_debiased == pytest.approx(m.resolution - 2 * 0.25 / 1 / 4 + 0.25 / 3)


# ---- cross-checks ----


@unhurried
@given(decisions())
def test_brier_and_log_loss_agree_with_scikit_learn(rows):
    confidence, correct = rows
    assert brier(confidence, correct) == pytest.approx(sklearn.metrics.brier_score_loss(correct, confidence), abs=1e-10)
    p = np.column_stack([1 - confidence, confidence])
    assert log_loss(confidence, correct) == pytest.approx(sklearn.metrics.log_loss(correct, p, labels=[0, 1]), abs=1e-10)


@pytest.mark.parametrize("bins", [1, 5, 10, 15])
def test_ece_and_murphy_agree_with_scikit_learns_quantile_bins(bins):
    confidence, correct = simulate(np.random.default_rng(1), 60 * bins)  # no ties, equal counts: both define the same bins
    accuracy, mean = calibration_curve(correct, confidence, n_bins=bins, strategy="quantile")
    assert len(accuracy) == bins
    assert ece(confidence, correct, bins=bins) == pytest.approx(np.abs(accuracy - mean).mean(), abs=1e-10)
    m = murphy(confidence, correct, bins=bins)
    assert m.reliability == pytest.approx(((accuracy - mean) ** 2).mean(), abs=1e-10)
    assert m.resolution == pytest.approx(((accuracy - correct.mean()) ** 2).mean(), abs=1e-10)


def test_log_loss_from_logits_agrees_with_scikit_learn_where_nothing_saturates():
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(0, 2, (500, 4)), rng.integers(4, size=500)
    correct = logits.argmax(1) == labels
    confidence = softmax(logits, axis=1).max(1)
    odds = top_log_odds(logits)
    np.testing.assert_allclose(expit(odds), confidence, atol=1e-12)
    expected = sklearn.metrics.log_loss(correct, np.column_stack([1 - confidence, confidence]))
    assert log_loss_from_log_odds(odds, correct) == pytest.approx(expected, abs=1e-10)


def test_log_loss_is_exact_where_probabilities_have_rounded_to_one():
    odds = top_log_odds([[50.0, 0.0], [1000.0, 0.0], [50.0, 0.0]])
    assert odds.tolist() == [50, 1000, 50]
    assert log_loss_from_log_odds(odds, [0, 0, 1]) == pytest.approx((50 + 1000 + np.exp(-50)) / 3)
    assert log_loss_from_log_odds(odds[2:], [1]) == pytest.approx(np.exp(-50), rel=1e-12)  # not 0
    assert top_log_odds([[3.0, 3.0, 3.0]]) == pytest.approx(-np.log(2))  # a tie of three is 1/3 : 2/3


def test_log_loss_clips_at_one_named_constant():
    assert log_loss([1.0], [0]) == pytest.approx(-np.log(LOG_CLIP))
    assert log_loss([0.0], [1]) == pytest.approx(36.04, abs=0.005)
    assert log_loss([0.0, 1.0], [0, 1]) == pytest.approx(0, abs=1e-15)


def test_spiegelhalter_is_the_standardised_brier_score_and_normal_under_calibration():
    rng = np.random.default_rng(3)
    confidence = rng.uniform(0.25, 1, 400)
    q = 1 - confidence
    expected = (confidence * q).mean()  # expectation and variance of the Brier score, straight from its definition
    variance = (confidence * q**4 + q * confidence**4 - (confidence * q) ** 2).sum() / 400**2
    found = []
    for _ in range(2000):
        correct = rng.random(400) < confidence
        found.append(spiegelhalter(confidence, correct))
    assert found[-1].z == pytest.approx((brier(confidence, correct) - expected) / np.sqrt(variance), abs=1e-10)
    z = np.array([f.z for f in found])
    assert abs(z.mean()) < 0.07
    assert z.std() == pytest.approx(1, abs=0.05)
    assert np.mean([f.p_value < 0.05 for f in found]) == pytest.approx(0.05, abs=0.015)


def test_spiegelhalter_keeps_its_level_within_contexts_only_if_told_of_them():
    rng = np.random.default_rng(12)
    contexts, plain, clustered = np.repeat(np.arange(300), 3), 0, 0
    for _ in range(500):
        confidence = np.repeat(rng.uniform(0.3, 0.95, 300), 3)
        correct = np.where(rng.random(900) < 0.9, np.repeat(rng.random(300), 3), rng.random(900)) < confidence
        plain += spiegelhalter(confidence, correct).p_value < 0.05
        clustered += spiegelhalter(confidence, correct, clusters=contexts).p_value < 0.05
    assert plain / 500 > 0.15
    assert 0.03 <= clustered / 500 <= 0.07
    order = rng.permutation(900)
    shuffled = spiegelhalter(confidence[order], correct[order], clusters=contexts[order])
    assert shuffled.z == pytest.approx(spiegelhalter(confidence, correct, clusters=contexts).z)
    with pytest.raises(UserError, match="clusters have the shape"):
        spiegelhalter(confidence, correct, clusters=[1, 2])


def test_spiegelhalter_without_spread():
    assert np.isnan(spiegelhalter([1.0, 0.0, 0.5], [1, 0, 1]).z)
    broken = spiegelhalter([1.0, 0.5], [0, 1])
    assert (broken.z, broken.p_value) == (np.inf, 0)
    assert np.isnan(spiegelhalter([1.0, 0.5], [1, 0], clusters=["a", "b"]).p_value)


# ---- identities ----


@unhurried
@given(decisions(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_row_order_never_matters(rows, bins, random):
    confidence, correct = rows
    order = list(range(len(correct)))
    random.shuffle(order)
    for metric in (brier, log_loss, rel):
        assert metric(confidence, correct) == metric(confidence[order], correct[order])
    assert ece(confidence, correct, bins=bins) == ece(confidence[order], correct[order], bins=bins)
    assert murphy(confidence, correct, bins=bins) == murphy(confidence[order], correct[order], bins=bins)


@unhurried
@given(decisions(), st.integers(1, 20))
def test_murphy_identities(rows, bins):
    confidence, correct = rows
    m = murphy(confidence, correct, bins=bins)
    score, error = brier(confidence, correct), ece(confidence, correct, bins=bins)
    assert m.brier == pytest.approx(score, abs=1e-12)
    assert m.reliability_debiased <= m.reliability + 1e-15
    assert -1e-12 <= m.resolution <= m.uncertainty + 1e-12
    assert error <= np.sqrt(m.reliability) + 1e-12
    assert error >= abs(confidence.mean() - correct.mean()) - 1e-12
    assert 0 <= error <= 1
    assert m.uncertainty == pytest.approx(correct.mean() * (1 - correct.mean()), abs=1e-15)  # of outcomes only


@unhurried
@given(decisions())
def test_one_bin_has_rel_of_ece_squared_and_no_resolution(rows):
    m = murphy(*rows, bins=1)
    assert m.reliability == pytest.approx(ece(*rows, bins=1) ** 2, abs=1e-12)
    assert m.resolution == pytest.approx(0, abs=1e-15)


@unhurried
@given(st.lists(st.tuples(st.sampled_from(LEVELS), st.booleans()), min_size=1, max_size=60))
def test_within_bin_terms_vanish_where_each_bin_holds_one_value(rows):
    confidence, correct = np.array(rows).T
    m = murphy(confidence, correct, bins=len(correct))  # as many bins as rows part all levels
    assert m.within_variance == pytest.approx(0, abs=1e-30)
    assert m.within_covariance == pytest.approx(0, abs=1e-15)


@unhurried
@given(decisions(max_size=12), st.data())
def test_weights_count_rows(rows, data):
    confidence, correct = rows
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(correct), max_size=len(correct))))
    weight[0] += 1
    both = np.stack([weight, np.ones_like(weight)])
    for metric in WEIGHTED:
        repeated = metric(np.repeat(confidence, weight), np.repeat(correct, weight))
        assert metric(confidence, correct, weight=weight) == pytest.approx(repeated, abs=1e-12)
        np.testing.assert_allclose(metric(confidence, correct, weight=both), [repeated, metric(confidence, correct)], atol=1e-12)
    repeated = murphy(np.repeat(confidence, weight), np.repeat(correct, weight))
    weighted = murphy(confidence, correct, weight=weight)
    np.testing.assert_allclose(list(vars(weighted).values()), list(vars(repeated).values()), atol=1e-12)


def test_exact_log_loss_under_weights():
    odds, correct = np.array([2.0, -1.0, 40.0]), np.array([1, 0, 0])
    weight = np.array([[1, 1, 1], [2, 0, 1]])
    expected = [log_loss_from_log_odds(np.repeat(odds, w), np.repeat(correct, w)) for w in weight]
    np.testing.assert_allclose(log_loss_from_log_odds(odds, correct, weight=weight), expected)


# ---- bugs of other libraries (reference: metrics.md, section 5) ----


def test_confidence_of_exactly_one_stays_in_the_last_bin():
    assert ece([0.95, 1.0], [1, 0], bins=1) == pytest.approx(0.475)
    assert ece([0.95, 1.0], [1, 0], bins=2) == pytest.approx((0.05 + 1) / 2)  # two values, two bins: no third, hidden one
    assert ece(np.ones(50), np.arange(50) < 39) == pytest.approx(0.22)


def test_confidences_of_exactly_zero_and_one_together():
    assert ece([0.0, 1.0], [0, 1]) == 0
    assert ece([0.0, 1.0], [1, 0]) == 1
    assert murphy([0.0, 1.0], [1, 0]).reliability == 1


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_all_ties_are_one_bin(bins):
    confidence, correct = np.full(1000, 0.7), np.arange(1000) < 784
    assert ece(confidence, correct, bins=bins) == pytest.approx(0.084)
    assert murphy(confidence, correct, bins=bins).resolution == pytest.approx(0, abs=1e-15)
    assert reliability_bins(confidence, correct, bins=bins, draws=10).count.tolist() == [1000]


def test_ties_are_not_split_over_bins():
    rng = np.random.default_rng(4)
    confidence = rng.choice(LEVELS, 200)
    found = reliability_bins(confidence, rng.random(200) < confidence, draws=10)
    assert found.low.tolist() == found.high.tolist() == list(LEVELS)
    assert found.count.sum() == 200


@pytest.mark.parametrize("bins", [2, 7, 10, 15])
def test_spread_out_input_fills_the_bins_asked_for(bins):
    confidence, correct = simulate(np.random.default_rng(5), 200)
    count = reliability_bins(confidence, correct, bins=bins, draws=10).count
    assert len(count) == bins
    assert count.max() - count.min() <= 1


@pytest.mark.parametrize("n", [1, 3])
def test_fewer_rows_than_bins(n):
    confidence, correct = np.array([0.2, 0.5, 0.8])[:n], np.array([1, 0, 1])[:n]
    assert ece(confidence, correct, bins=15) == pytest.approx(np.abs(confidence - correct).mean())
    m = murphy(confidence, correct, bins=15)
    assert np.isfinite(list(vars(m).values())).all()
    assert m.brier == pytest.approx(brier(confidence, correct))


def test_edges_without_round_off():
    assert ece([0.05, 0.05, 0.95], [0, 0, 1], bins=10) == pytest.approx(0.05)
    found = reliability_bins([0.05, 0.05, 0.95], [0, 0, 1], draws=10)
    assert found.count.tolist() == [2, 1]


@unhurried
@given(decisions(), st.integers(1, 20))
def test_bins_are_at_most_those_asked_for_and_hold_every_row(rows, bins):
    confidence, correct = rows
    found = reliability_bins(confidence, correct, bins=bins, draws=1)
    assert len(found.count) <= bins
    assert found.count.sum() == len(correct)
    assert (found.count > 0).all()
    assert (found.high[:-1] < found.low[1:]).all()
    weighted_gap = (found.count * np.abs(found.confidence - found.accuracy)).sum() / len(correct)
    assert weighted_gap == pytest.approx(ece(confidence, correct, bins=bins), abs=1e-12)


@pytest.mark.parametrize("outcome", [True, False])
def test_all_correct_and_all_wrong(outcome):
    confidence, correct = np.linspace(0.1, 0.9, 30), np.full(30, outcome)
    m = murphy(confidence, correct)
    assert (m.uncertainty, m.resolution) == (0, 0)
    assert m.brier == pytest.approx(brier(confidence, correct))
    assert ece(confidence, correct) == pytest.approx(abs(0.5 - outcome))
    assert np.isfinite(log_loss(confidence, correct))
    assert np.isfinite(spiegelhalter(confidence, correct).z)


def test_float32_and_float64_agree():
    confidence, correct = simulate(np.random.default_rng(6), 1000)
    for metric in WEIGHTED:
        assert metric(confidence.astype(np.float32), correct) == pytest.approx(metric(confidence, correct), abs=1e-6)
    logits = np.random.default_rng(6).normal(0, 3, (1000, 4)).astype(np.float32)
    odds = top_log_odds(logits)
    assert odds.dtype == np.float64
    np.testing.assert_array_equal(odds, top_log_odds(logits.astype(np.float64)))


@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        ([], [], "non-empty"),
        ([[0.5]], [1], r"shape \(1, 1\)"),
        (["high"], [1], "numbers"),
        ([True, False], [0.5, 0.6], "numbers"),  # the arguments the other way round
        ([0.5], ["yes"], "'yes' in row 0"),
        ([0.5, float("nan")], [1, 0], "nan in row 1"),
        ([0.5, float("inf")], [1, 0], "inf in row 1"),
        ([0.5, 1.5], [1, 0], "1.5 in row 1"),
        ([2.3, -1.0], [1, 0], "2.3 in row 0"),  # logits given as confidences
        ([0.5, 0.5], [1], r"shape \(1,\)"),
        ([0.5, 0.5], [1, 2], "2 in row 1"),  # class indices given as outcomes
        ([0.5, 0.5], [1, float("nan")], "nan in row 1"),
        ([0.5, 0.5], [[1, 0], [0, 1]], r"shape \(2, 2\)"),
    ],
)
@pytest.mark.parametrize("metric", [*WEIGHTED, spiegelhalter, reliability_bins])
def test_bad_rows_are_refused(metric, confidence, correct, words):
    with pytest.raises(UserError, match=words):
        metric(confidence, correct)


@pytest.mark.parametrize(
    ("weight", "words"),
    [([1], "last axis"), (1, "last axis"), ([1.0, 0.5], "integers"), ([1, -1], "integers"), ([[1, 1], [0, 0]], "0 for all rows")],
)
def test_bad_weights_are_refused(weight, words):
    for metric in WEIGHTED:
        with pytest.raises(UserError, match=words):
            metric([0.5, 0.6], [1, 0], weight=weight)
    with pytest.raises(UserError, match=words):
        log_loss_from_log_odds([0.5, 0.6], [1, 0], weight=weight)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bad_bins_are_refused(bins):
    for call in (ece, murphy):
        with pytest.raises(UserError, match="bins is"):
            call([0.5], [1], bins=bins)


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        ([1.0, 2.0], "shape"),
        ([[1.0]], "shape"),
        (np.empty((0, 3)), "shape"),
        ([[1.0, 2.0], [np.nan, 0]], "row 1"),
        ([["a", "b"]], "type"),
    ],
)
def test_bad_logits_are_refused(logits, words):
    with pytest.raises(UserError, match=words):
        top_log_odds(logits)


def test_bad_log_odds_are_refused():
    for odds in ([], [np.nan], [np.inf], [[1.0]]):
        with pytest.raises(UserError, match="log odds"):
            log_loss_from_log_odds(odds, [1])


# ---- chance: null floor and recovery of known miscalibration ----


@pytest.mark.parametrize(("n", "bins", "expected"), [(200, 10, 0.075), (900, 5, 0.025), (900, 10, 0.035), (900, 15, 0.043)])
def test_null_floor_of_uniform_confidences(n, bins, expected):
    floor = null_floor(np.random.default_rng(7).uniform(0.25, 1, n), bins=bins)
    assert floor.mean == pytest.approx(expected, abs=0.003)  # the measured table in the reference
    assert floor.mean < floor.upper
    assert floor == null_floor(np.random.default_rng(7).uniform(0.25, 1, n), bins=bins)


def test_calibrated_forecasts_exceed_the_null_floor_one_time_in_twenty():
    rng = np.random.default_rng(8)
    above = 0
    for seed in range(400):
        confidence, correct = simulate(rng, 200)
        above += ece(confidence, correct) > null_floor(confidence, draws=200, seed=seed).upper
    assert 0.02 <= above / 400 <= 0.09


def test_null_band_holds_the_accuracy_of_calibrated_bins():
    rng = np.random.default_rng(9)
    inside = []
    for _ in range(100):
        found = reliability_bins(*simulate(rng, 900), draws=300)
        inside.extend((found.null_low <= found.accuracy) & (found.accuracy <= found.null_high))
    assert np.mean(inside) == pytest.approx(0.96, abs=0.02)


@pytest.mark.parametrize("draws", [0, -3])
def test_bad_draws_are_refused(draws):
    with pytest.raises(UserError, match="draws is"):
        null_floor([0.5], draws=draws)


@pytest.mark.parametrize("grid", ["continuous", "levels"])
@pytest.mark.parametrize("offset", [0.0, 0.03, 0.10])
def test_debiased_reliability_recovers_the_truth(grid, offset):
    """n = 900, 200 repetitions: the mean is within 2 of its own standard errors of the truth."""
    rng = np.random.default_rng(10)
    found, plug_in, resolution = [], [], []
    for _ in range(200):
        confidence = rng.uniform(0.25, 0.9, 900) if grid == "continuous" else rng.choice(LEVELS[1:], 900)
        correct = rng.random(900) < confidence - offset
        m = murphy(confidence, correct)
        found.append(m.reliability_debiased)
        plug_in.append(m.reliability)
        resolution.append(m.resolution_debiased)
    standard_error = np.std(found, ddof=1) / np.sqrt(200)
    assert abs(np.mean(found) - offset**2) < 2 * standard_error
    assert np.mean(plug_in) - offset**2 > 3 * standard_error  # what the correction is for
    values = np.array(LEVELS[1:]) if grid == "levels" else 0.25 + 0.65 * (np.arange(10) + 0.5) / 10
    assert abs(np.mean(resolution) - np.var(values)) < 3 * np.std(resolution, ddof=1) / np.sqrt(200)


# ---- against a known posterior ----


def test_posterior_error_and_regret():
    found = posterior_error([0.9, 0.5], [0.7, 0.6])
    assert found.bias == pytest.approx(0.05)
    assert found.mean_absolute == pytest.approx(0.15)
    assert found.root_mean_square == pytest.approx(np.sqrt((0.04 + 0.01) / 2))
    assert bayes_regret([0.7, 0.2], [0.7, 0.5]) == pytest.approx(0.15)
    np.testing.assert_allclose(bayes_regret([0.7, 0.2], [0.7, 0.5], weight=[[1, 1], [2, 0]]), [0.15, 0])
    weighted = posterior_error([0.9, 0.5], [0.7, 0.6], weight=[[1, 1], [1, 0]])
    np.testing.assert_allclose(weighted.bias, [0.05, 0.2])


def test_expected_brier_exceeds_that_of_the_truth_by_the_mean_square_error():
    rng = np.random.default_rng(11)
    truth = rng.uniform(0, 1, 200_000)
    confidence = np.clip(truth + rng.normal(0, 0.2, truth.size), 0, 1)
    correct = rng.random(truth.size) < truth
    excess = brier(confidence, correct) - brier(truth, correct)
    assert excess == pytest.approx(posterior_error(confidence, truth).root_mean_square ** 2, abs=0.002)


@pytest.mark.parametrize(
    ("truth", "best", "words"),
    [([0.5], [0.5, 0.6], "same rows"), ([0.7], [0.6], "above best"), ([np.nan], [0.5], "nan"), ([], [], "non-empty")],
)
def test_bad_posteriors_are_refused(truth, best, words):
    with pytest.raises(UserError, match=words):
        bayes_regret(truth, best)


def test_posterior_error_refuses_other_rows():
    with pytest.raises(UserError, match="same rows"):
        posterior_error([0.5], [0.5, 0.5])
