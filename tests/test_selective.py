"""Risk-coverage, its areas over ties, and gates: brute force over tie orders, identities, exact intervals."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from rlcd_lite.errors import UserError
from rlcd_lite.selective import (
    at_gates,
    augrc,
    aurc,
    certify,
    clopper_pearson,
    e_aurc,
    risk_coverage,
    threshold_grid,
)

unhurried = settings(deadline=None)  # a busy machine is no failure
AREAS = [aurc, e_aurc, augrc]


@st.composite
def decisions(draw, max_size=40):
    value = st.one_of(st.sampled_from((0.1, 0.3, 0.5, 0.7, 0.9, 0.0, 1.0)), st.floats(0, 1))
    rows = draw(st.lists(st.tuples(value, st.booleans()), min_size=1, max_size=max_size))
    return np.array([p for p, _ in rows]), np.array([y for _, y in rows])


def in_order(correct):
    """AURC and AUGRC of rows that stand in descending confidence, by the definition."""
    errors = np.cumsum(1 - np.asarray(correct, dtype=float))
    k = np.arange(1, len(errors) + 1)
    return np.array([(errors / k).mean(), errors.mean() / len(errors)])


@unhurried
@given(st.lists(st.tuples(st.sampled_from((0.2, 0.5, 0.8)), st.booleans()), min_size=1, max_size=6))
def test_areas_are_the_mean_over_all_orders_of_ties(rows):
    confidence, correct = np.array(rows).T
    orders = [list(o) for o in permutations(range(len(rows))) if (np.diff(confidence[list(o)]) <= 0).all()]
    expected = np.mean([in_order(correct[o]) for o in orders], axis=0)
    assert [aurc(confidence, correct), augrc(confidence, correct)] == pytest.approx(expected, abs=1e-12)


def test_areas_without_ties_are_the_definition():
    rng = np.random.default_rng(0)
    confidence = rng.random(500)
    correct = rng.random(500) < confidence
    expected = in_order(correct[np.argsort(-confidence)])
    assert [aurc(confidence, correct), augrc(confidence, correct)] == pytest.approx(expected, abs=1e-12)


@unhurried
@given(decisions(), st.randoms(use_true_random=False))
def test_row_order_never_matters(rows, random):
    confidence, correct = rows
    order = list(range(len(correct)))
    random.shuffle(order)
    for area in AREAS:
        assert area(confidence, correct) == area(confidence[order], correct[order])


@unhurried
@given(decisions())
def test_bounds_and_monotone_transforms(rows):
    confidence, correct = rows
    n, value = len(correct), aurc(confidence, correct)
    best, worst = in_order(np.sort(correct)[::-1])[0], in_order(np.sort(correct))[0]
    assert best - 1e-12 <= value <= worst + 1e-12
    assert e_aurc(confidence, correct) == pytest.approx(value - best, abs=1e-12)
    assert 0 <= augrc(confidence, correct) <= (n + 1) / (2 * n) + 1e-12
    _, rank = np.unique(confidence, return_inverse=True)  # only the order counts
    assert aurc(rank / n, correct) == pytest.approx(value, abs=1e-12)


@unhurried
@given(st.floats(0, 1), st.lists(st.booleans(), min_size=1, max_size=50))
def test_a_constant_confidence_has_the_error_rate(constant, outcomes):
    n, error = len(outcomes), 1 - np.mean(outcomes)
    confidence = np.full(n, constant)
    assert aurc(confidence, outcomes) == pytest.approx(error, abs=1e-12)
    assert augrc(confidence, outcomes) == pytest.approx(error * (n + 1) / (2 * n), abs=1e-12)


def test_seed_row_of_a_constant_confidence():
    assert round(aurc(np.full(900, 0.7), np.arange(900) < 706), 3) == 0.216  # the seed printed 0.208: tie order leaked in


def test_perfect_and_inverted_rankings():
    correct = np.arange(100) < 60
    assert e_aurc(correct.astype(float), correct) == 0
    assert aurc(1.0 - correct, correct) == pytest.approx(in_order(np.sort(correct))[0])
    for outcome, value in ((True, 0), (False, 1)):
        all_same = np.full(10, outcome)
        assert aurc(np.linspace(0, 1, 10), all_same) == pytest.approx(value)
        assert e_aurc(np.linspace(0, 1, 10), all_same) == pytest.approx(0, abs=1e-15)


@unhurried
@given(decisions(max_size=12), st.data())
def test_weights_count_rows(rows, data):
    confidence, correct = rows
    weight = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(correct), max_size=len(correct))))
    weight[-1] += 1
    for area in AREAS:
        repeated = area(np.repeat(confidence, weight), np.repeat(correct, weight))
        both = area(confidence, correct, weight=np.stack([weight, np.ones_like(weight)]))
        np.testing.assert_allclose(both, [repeated, area(confidence, correct)], atol=1e-12)


def test_the_curve():
    found = risk_coverage([0.9, 0.5, 0.9, 0.2], [1, 0, 0, 1])
    assert found.threshold.tolist() == [0.9, 0.5, 0.2]
    assert found.coverage.tolist() == [0.5, 0.75, 1]
    assert found.risk.tolist() == pytest.approx([0.5, 2 / 3, 0.5])


# ---- gates ----


def test_gates():
    confidence, correct = np.array([0.9, 0.7, 0.7, 0.3, 0.1]), [1, 1, 0, 0, 1]
    low, middle, empty = at_gates(confidence, correct, [0.0, 0.7, 0.95])
    assert (low.count, low.coverage, low.accuracy) == (5, 1, 0.6)
    assert (middle.count, middle.coverage, middle.accuracy) == (3, 0.6, pytest.approx(2 / 3))
    assert middle.coverage_interval == clopper_pearson(3, 5)
    assert middle.accuracy_interval == clopper_pearson(2, 3)
    assert (empty.count, empty.coverage, empty.accuracy_interval) == (0, 0, (0, 1))
    assert np.isnan(empty.accuracy)
    assert at_gates(confidence[::-1], correct[::-1], [0.7]) == (middle,)


def test_a_gate_is_not_subject_to_rounding():
    assert 0.1 * 7 != 0.7
    stated = [0.1 * 7, 0.7, float(np.float32(0.7)), np.nextafter(0.7, 0)]
    assert at_gates(stated, [1, 1, 1, 1], [0.7])[0].count == 4


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (10, 10), (3, 10), (150, 200), (1, 1)])
def test_clopper_pearson_is_the_beta_quantile(hits, count):
    low, high = clopper_pearson(hits, count, 0.9)
    assert low == pytest.approx(beta.ppf(0.05, hits, count - hits + 1) if hits else 0, abs=1e-9)
    assert high == pytest.approx(beta.ppf(0.95, hits + 1, count - hits) if hits < count else 1, abs=1e-9)


def test_clopper_pearson_covers_at_least_its_level():
    hits = np.random.default_rng(1).binomial(40, 0.8, 500)
    intervals = [clopper_pearson(int(h), 40) for h in hits]
    assert np.mean([low <= 0.8 <= high for low, high in intervals]) >= 0.93


@pytest.mark.parametrize(("gates", "words"), [([], "gate"), ([1.2], "1.2"), ([float("nan")], "nan")])
def test_bad_gates_are_refused(gates, words):
    with pytest.raises(UserError, match=words):
        at_gates([0.5], [1], gates)


@pytest.mark.parametrize("level", [0, 1, 95, float("nan")])
def test_bad_levels_are_refused(level):
    with pytest.raises(UserError, match="level is"):
        clopper_pearson(1, 2, level)


def test_bad_counts_are_refused():
    with pytest.raises(UserError, match="3 hits of 2"):
        clopper_pearson(3, 2)


@pytest.mark.parametrize("area", [*AREAS, risk_coverage])
@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        ([], [], "non-empty"),
        ([float("nan")], [1], "nan in row 0"),
        ([1.1], [1], "1.1"),
        ([0.5], [1, 0], "shape"),
        ([0.5], [3], "3 in row 0"),
    ],
)
def test_bad_rows_are_refused(area, confidence, correct, words):
    with pytest.raises(UserError, match=words):
        area(confidence, correct)


# ---- certificates ----


def certified(rng, n, accuracy=lambda c: c, **kwargs):
    confidence = rng.uniform(0.5, 1, n)
    correct = (rng.random(n) < accuracy(confidence)).astype(int)
    return certify(confidence, correct, np.linspace(0.5, 0.975, 20), **kwargs)


def test_a_certificate_is_broken_as_rarely_as_it_says():
    """A calibrated uniform confidence on (½, 1): the risk above t is (1 - t) / 2, so 0.1 is met from t = 0.8 on."""
    rng = np.random.default_rng(0)
    found = [certified(rng, 500, max_risk=0.1, delta=0.2) for _ in range(400)]
    certain = [c for c in found if c.threshold is not None]
    assert len(certain) > 300  # it is not kept by refusing
    assert np.mean([c.threshold < 0.8 - 1e-9 for c in certain]) <= 0.2
    assert all(c.coverage == c.automated / 500 and c.errors / c.automated < 0.1 for c in certain)


def test_a_risk_just_above_the_promise_is_certified_with_probability_delta_at_most():
    rng = np.random.default_rng(1)
    found = [certified(rng, 300, lambda c: np.full(len(c), 0.899), max_risk=0.1, delta=0.1) for _ in range(400)]
    assert 0 < np.mean([c.threshold is not None for c in found]) <= 0.1 + 2 * np.sqrt(0.09 / 400)


def test_the_lowest_threshold_before_the_first_failure_is_taken():
    """Perfect from 0.9 on, half of 0.7 wrong, 0.5 perfect again: what lies behind a failure is not reached."""
    confidence = [0.5] * 400 + [0.7] * 100 + [0.9] * 100
    found = certify(confidence, [1] * 400 + [0, 1] * 50 + [1] * 100, [0.5] * 12 + [0.7] * 4 + [0.9] * 4, 0.1)
    assert (found.threshold, found.automated, found.errors, found.coverage) == (0.9, 100, 0, 1 / 6)
    assert certify(confidence, [1] * 600, [0.5] * 12 + [0.7] * 4 + [0.9] * 4, 0.1).threshold == 0.5


def test_a_few_rows_of_the_highest_confidence_stop_nothing():
    """Among the 5 % most confident of 100 rows one is wrong: too few rows to begin with."""
    confidence = np.repeat([0.5, 0.99], [95, 5])
    correct = [1] * 99 + [0]
    assert certify(confidence, correct, threshold_grid(confidence), 0.1).threshold == 0.5


def test_what_cannot_be_certified_says_how_many_rows_it_takes():
    short = certify([0.9] * 20, [1] * 20, [0.5] * 20, 0.05, 0.1)
    assert (short.threshold, short.automated) == (None, 0)
    n = 20 + short.more_rows
    assert 0.95**n <= 0.1 < 0.95 ** (n - 3)  # rows without an error
    assert certify([0.9] * n, [1] * n, [0.5] * 20, 0.05, 0.1).threshold == 0.5
    assert certify([0.9] * 20, [0, 1] * 10, [0.5] * 20, 0.05).more_rows is None  # half of them wrong: no number would do


def test_row_order_changes_no_certificate():
    rng = np.random.default_rng(2)
    confidence, correct = rng.uniform(0, 1, 100), rng.integers(0, 2, 100)
    order = rng.permutation(100)
    grid = threshold_grid(confidence)
    assert certify(confidence, correct, grid, 0.4) == certify(confidence[order], correct[order], grid, 0.4)


def test_the_grid_holds_the_lower_quantiles():
    assert threshold_grid(np.arange(101) / 100, 4) == (0.0, 0.25, 0.5, 0.75)
    assert threshold_grid([0.7] * 9, 3) == (0.7, 0.7, 0.7)


@pytest.mark.parametrize(("settings", "words"), [({"max_risk": 0}, "max_risk is 0"), ({"max_risk": 0.1, "delta": 1}, "delta is 1")])
def test_bad_promises_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        certify([0.5], [1], [0.5], **settings)
