"""Calibrators: recovery, bounds, what they leave alone, agreement with scikit-learn, JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.special import expit, log_expit, log_softmax, logit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from rlcd_lite.calibrators import (
    ABSENT,
    T_MAX,
    T_MIN,
    Beta,
    Ensemble,
    Fusion,
    Identity,
    Isotonic,
    LevelTable,
    Platt,
    Temperature,
    fit_beta,
    fit_ensemble,
    fit_fusion,
    fit_isotonic,
    fit_platt,
    fit_table,
    fit_temperature,
)
from rlcd_lite.errors import UserError

unhurried = settings(deadline=None)  # a busy machine is no failure


def draw_labels(rng, logits):
    """Labels from the softmax of the logits: their true temperature is 1."""
    return (softmax(logits, axis=1).cumsum(axis=1) < rng.random((len(logits), 1))).sum(axis=1).clip(max=logits.shape[1] - 1)


def nll(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_scaling_the_logits_scales_the_temperature(scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (10_000, 4))
    labels = draw_labels(rng, logits)
    base = fit_temperature(logits, labels)
    found = fit_temperature(logits * scale, labels)
    assert base.value == pytest.approx(1, abs=0.05)
    assert found.value / scale == pytest.approx(base.value, abs=1e-9)
    assert not found.at_ceiling


def test_logits_scaled_beyond_the_bounds():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (10_000, 4))
    labels = draw_labels(rng, logits)
    assert fit_temperature(100 * logits, labels) == Temperature(value=T_MAX, at_ceiling=True)
    assert fit_temperature(logits / 100, labels) == Temperature(value=T_MIN, at_ceiling=False)


def test_the_fit_is_the_minimum_and_float32_agrees():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (10_000, 3))
    labels = draw_labels(rng, logits / 2.5)
    found = fit_temperature(logits, labels).value
    assert found == pytest.approx(2.5, abs=0.15)
    assert nll(logits / found, labels) <= min(nll(logits / (found * f), labels) for f in (1 - 1e-4, 1 + 1e-4))
    assert fit_temperature(logits.astype(np.float32), labels).value == pytest.approx(found, abs=1e-4)


class Logits(ClassifierMixin, BaseEstimator):
    """A classifier whose decision function is its input."""

    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, x):
        return self.classes_[x.argmax(axis=1)]

    def decision_function(self, x):
        return x


@pytest.mark.parametrize("spread", [0.5, 2.0, 8.0])
def test_agreement_with_scikit_learn(spread):
    rng = np.random.default_rng(2)
    logits = rng.normal(0, spread, (400, 4))
    labels = draw_labels(rng, logits / 3 if spread > 1 else logits)
    theirs = CalibratedClassifierCV(FrozenEstimator(Logits().fit(logits, labels)), method="temperature").fit(logits, labels)
    ours = fit_temperature(logits, labels)
    p = softmax(ours.apply(logits), axis=1)
    np.testing.assert_allclose(p, theirs.predict_proba(logits), atol=1e-5)  # their search stops at a tolerance
    q = theirs.predict_proba(logits)
    assert nll(ours.apply(logits), labels) <= -np.log(q[np.arange(400), labels]).mean() + 1e-12


@pytest.mark.parametrize("case", ["anti-correlated", "random labels", "constant logits"])
def test_no_signal_is_flagged_at_the_ceiling(case):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 5, (2000, 4))
    labels = draw_labels(rng, -logits)
    if case == "random labels":
        logits, labels = np.repeat(logits[:500], 4, axis=0), np.tile(np.arange(4), 500)  # each label once: exactly no signal
    elif case == "constant logits":
        logits = np.full_like(logits, 3.3)
    assert fit_temperature(logits, labels) == Temperature(value=20.0, at_ceiling=True)


def test_separable_data_reaches_the_floor():
    logits = np.eye(3)[[0, 1, 2, 0]]
    for scale in (1, 1e5):  # at 1e5 every softmax is exactly 0 or 1, whatever the temperature
        assert fit_temperature(scale * logits, [0, 1, 2, 0]) == Temperature(value=0.05, at_ceiling=False)


@unhurried
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(2, 6))
def test_identities(seed, n, options):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(0, 4, (n, options)), rng.integers(options, size=n)
    found = fit_temperature(logits, labels)
    scaled = found.apply(logits)
    assert T_MIN <= found.value <= T_MAX
    np.testing.assert_array_equal(scaled.argmax(axis=1), logits.argmax(axis=1))
    assert nll(scaled, labels) <= nll(logits, labels) + 1e-12
    shuffled = rng.permutation(n)
    assert fit_temperature(logits[shuffled], labels[shuffled]).value == pytest.approx(found.value, rel=1e-6)
    shifted = fit_temperature(logits + rng.normal(size=(n, 1)), labels)
    assert shifted.value == pytest.approx(found.value, rel=1e-6)
    assert found.to_dict() == {"value": found.value, "at_ceiling": found.at_ceiling}  # as in eval.json
    assert Temperature.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ([[1.0, 2.0]], [2], "label 2 in row 0"),
        ([[1.0, 2.0]], [-1], "label -1 in row 0"),
        ([[1.0, 2.0]], [0, 1], "shape"),
        ([[1.0, 2.0]], [0.0], "type"),
        ([[1.0, float("nan")]], [0], "finite"),
        ([[1.0, float("-inf")]], [0], "finite"),
        (np.empty((0, 2)), np.empty(0, int), "shape"),
    ],
)
def test_bad_input_is_refused(logits, labels, words):
    with pytest.raises(UserError, match=words):
        fit_temperature(logits, labels)


@pytest.mark.parametrize(
    "source",
    [
        [],
        {"value": 2.0},
        {"value": 2.0, "at_ceiling": False, "more": 1},
        {"value": 25.0, "at_ceiling": True},
        {"value": -1.0, "at_ceiling": False},
        {"value": float("nan"), "at_ceiling": False},
        {"value": True, "at_ceiling": False},
        {"value": "2", "at_ceiling": False},
        {"value": 2.0, "at_ceiling": True},
        {"value": 2.0, "at_ceiling": 0},
    ],
)
def test_a_damaged_temperature_is_refused(source):
    with pytest.raises(UserError, match="temperature"):
        Temperature.from_dict(source)


# ---- ensemble ----


def test_the_ensemble_finds_a_mixture():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (8000, 4))
    labels = np.where(rng.random(8000) < 0.3, rng.integers(4, size=8000), draw_labels(rng, logits))
    found = fit_ensemble(logits, labels)
    assert found.uniform == pytest.approx(0.3, abs=0.02)
    assert nll(found.apply(logits), labels) < nll(fit_temperature(logits, labels).apply(logits), labels) - 0.05
    np.testing.assert_allclose(np.exp(found.apply(logits)).sum(axis=1), 1)


def test_the_shares_are_where_no_other_shares_do_better():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (200, 3))
    labels = np.where(rng.random(200) < 0.4, rng.integers(3, size=200), draw_labels(rng, logits))
    found = fit_ensemble(logits, labels)
    best = nll(found.apply(logits), labels)
    for shares in rng.dirichlet([1, 1, 1], 200):
        tempered, raw, uniform = shares.tolist()
        other = Ensemble(temperature=found.temperature, tempered=tempered, raw=raw, uniform=uniform)
        assert best <= nll(other.apply(logits), labels) + 1e-5


@settings(unhurried, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.01, 200))
def test_absent_options_stay_at_probability_zero_and_the_arg_max_stays(seed, options, spread):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (20, options))
    labels = rng.integers(options, size=20)
    padded = np.concatenate([logits, np.full((20, 2), logits.min() - ABSENT)], axis=1)
    found, wide = fit_ensemble(logits, labels), fit_ensemble(padded, labels)
    np.testing.assert_array_equal(found.apply(logits).argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(wide.apply(padded)[:, :options], found.apply(logits), atol=1e-6)
    assert (np.exp(wide.apply(padded)[:, options:]) == 0).all()
    shuffled = rng.permutation(20)
    assert nll(fit_ensemble(logits[shuffled], labels[shuffled]).apply(logits), labels) == pytest.approx(
        nll(found.apply(logits), labels), abs=1e-6
    )


# ---- on a confidence ----

FITS = {"platt": fit_platt, "beta": fit_beta, "isotonic": fit_isotonic}


def outcomes(rng, true_log_odds):
    return (rng.random(len(true_log_odds)) < expit(true_log_odds)).astype(int)


def smoothed(y):
    return np.where(y == 1, (y.sum() + 1) / (y.sum() + 2), 1 / ((y == 0).sum() + 2))


def regression(x, target):
    """scikit-learn's logistic regression on targets between 0 and 1."""
    both = LogisticRegression(C=1e10, tol=1e-12, max_iter=5000)
    n = len(x)
    return both.fit(np.r_[x, x], np.r_[np.ones(n), np.zeros(n)], sample_weight=np.r_[target, 1 - target])


def test_platt_is_the_logistic_regression_of_platts_targets():
    rng = np.random.default_rng(0)
    m = rng.normal(0, 2, 400)
    y = outcomes(rng, 0.4 * m - 1)
    found, theirs = fit_platt(m, y), regression(m[:, None], smoothed(y))
    assert (found.slope, found.intercept) == pytest.approx((theirs.coef_[0, 0], theirs.intercept_[0]), abs=1e-4)
    assert fit_platt(-m, y).slope == 0  # a signal that points the wrong way is left out, not turned round
    assert fit_platt(-m, y).intercept == pytest.approx(logit(smoothed(y).mean()), abs=1e-5)


def test_beta_is_the_logistic_regression_on_both_logarithms():
    rng = np.random.default_rng(1)
    m = rng.normal(0.5, 1.5, 3000)
    y = outcomes(rng, 1.5 * log_expit(m) - 0.4 * log_expit(-m) + 0.3)
    found, theirs = fit_beta(m, y), regression(np.c_[log_expit(m), -log_expit(-m)], smoothed(y))
    assert (found.a, found.b, found.c) == pytest.approx((*theirs.coef_[0], theirs.intercept_[0]), abs=1e-3)
    assert (found.a, found.b, found.c) == pytest.approx((1.5, 0.4, 0.3), abs=0.25)
    np.testing.assert_allclose(Beta(a=0.7, b=0.7, c=0.2).apply(m), Platt(slope=0.7, intercept=0.2).apply(m))


@unhurried
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=40).filter(lambda r: len({y for _, y in r}) == 2)
)
def test_isotonic_is_scikit_learns_with_blocks_off_zero_and_one(rows):
    m, y = np.array([m for m, _ in rows], float), np.array([y for _, y in rows], int)
    points, of = np.unique(m, return_inverse=True)
    raw = IsotonicRegression().fit(m, y).predict(points)
    block = np.cumsum(np.diff(raw, prepend=-1) > 1e-9) - 1
    hits, size = np.bincount(block[of], y), np.bincount(block[of])
    rate = IsotonicRegression().fit_transform(np.arange(len(size)), (hits + 0.5) / (size + 1), sample_weight=size + 1)
    found = fit_isotonic(m, y)
    np.testing.assert_allclose(expit(found.apply(points)), rate[block], atol=1e-9)
    assert np.array_equal(found.apply([-1e6, 1e6]), found.apply([m.min(), m.max()]))  # constant beyond the rows
    order = np.random.default_rng(0).permutation(len(m))
    assert fit_isotonic(m[order], y[order]) == found


@pytest.mark.parametrize("name", FITS)
@unhurried
@given(seed=st.integers(0, 10**6), n=st.integers(4, 60), spread=st.sampled_from([0.0, 0.01, 1.0, 50.0]))
def test_calibrated_confidence_is_finite_and_never_falls(name, seed, n, spread):
    rng = np.random.default_rng(seed)
    m, y = rng.normal(1, spread, n), rng.permutation(np.r_[0, 1, rng.integers(2, size=n - 2)])
    found = FITS[name](m, y)
    ladder = found.apply(np.linspace(-60, 60, 200))
    assert np.isfinite(ladder).all()
    assert (np.diff(ladder) >= -1e-9).all()
    order = rng.permutation(n)
    np.testing.assert_allclose(FITS[name](m[order], y[order]).apply(m), found.apply(m), atol=1e-4)
    mean = np.log(y.mean() / (1 - y.mean()))  # no worse than the base rate, up to the smoothing
    loss = [np.logaddexp(0, np.where(y == 1, -o, o)).mean() for o in (found.apply(m), np.full(n, mean))]
    assert loss[0] <= loss[1] + 2 / n


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_overconfidence_is_undone(fit):
    rng = np.random.default_rng(3)
    true = rng.normal(0.8, 1, 4000)
    found = fit(3 * true + 1, outcomes(rng, true))
    assert np.abs(expit(found.apply(3 * true + 1)) - expit(true)).mean() < 0.03


def test_separable_rows_have_a_finite_answer():
    m, y = np.r_[np.full(30, -40.0), np.full(30, 40.0)], np.r_[np.zeros(30, int), np.ones(30, int)]
    for fit in FITS.values():
        p = expit(fit(m, y).apply([-1e3, -40.0, 40.0, 1e3]))
        assert 0.001 < p[1] < 0.05 < 0.95 < p[2] < 0.999


def test_the_table_shrinks_towards_the_base_rate():
    levels = logit([0.1, 0.3, 0.5, 0.7, 0.9])
    m = np.repeat(levels[[1, 4]], [10, 30])
    y = np.r_[np.ones(2, int), np.zeros(8, int), np.ones(30, int)]  # 2 of 10, 30 of 30: base rate 0.8
    found = fit_table(m, y, levels)
    assert expit(found.y) == pytest.approx([0.8, (2 + 4) / 15, 0.8, 0.8, (30 + 4) / 35])
    assert found.apply(logit(np.float32([0.3, 0.9]).astype(float))).tolist() == [found.y[1], found.y[4]]
    with pytest.raises(UserError, match="none of the levels"):
        found.apply([logit(0.4)])
    with pytest.raises(UserError, match="none of the levels"):
        fit_table(m, y, levels[:4])


def test_fusion_is_scikit_learns_logistic_regression():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(300, 5)) * [1, 10, 0.1, 3, 1] + [0, 5, 1, -2, 0]
    x[:, 4] = 2.2  # says nothing
    y = outcomes(rng, x[:, 0] + 0.2 * x[:, 1] - 0.5)
    found = fit_fusion(x, y)
    z = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 1e-9, x.std(axis=0), 1)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(z, y)
    assert found.weights == pytest.approx(theirs.coef_[0], abs=1e-4)
    assert found.intercept == pytest.approx(theirs.intercept_[0], abs=1e-4)
    assert found.scale[4] == 1
    np.testing.assert_allclose(found.apply(x), theirs.decision_function(z), atol=1e-3)
    assert found.apply(x[:1]) == pytest.approx(found.apply(x)[:1])
    assert fit_fusion(1000 * x, y).apply(1000 * x) == pytest.approx(found.apply(x))


@pytest.mark.parametrize(
    ("m", "y", "words"),
    [
        ([0.0, float("nan")], [0, 1], "finite"),
        ([0.0, float("inf")], [0, 1], "finite"),
        ([], [], "non-empty"),
        ([[0.0], [1.0]], [0, 1], "list"),
        ([0.0, 1.0], [0, 1, 1], "shape"),
        ([0.0, 1.0], [0, 2], "correct is 2 in row 1"),
        ([0.0, 1.0], [1, 1], "all 2 outcomes are right.*harder rows"),
        ([0.0, 1.0], [0, 0], "all 2 outcomes are wrong.*easier rows"),
    ],
)
def test_what_cannot_be_fitted_is_refused(m, y, words):
    for fit in (*FITS.values(), lambda m, y: fit_table(m, y, [0.0, 1.0])):
        with pytest.raises(UserError, match=words):
            fit(m, y)


def test_features_are_checked():
    for x in (np.zeros((3, 4)), np.full((3, 5), np.nan), np.zeros((0, 5))):
        with pytest.raises(UserError, match="features"):
            fit_fusion(x, [0, 1, 1])
    with pytest.raises(UserError, match="all 3 outcomes"):
        fit_fusion(np.zeros((3, 5)), [1, 1, 1])


# ---- JSON ----

ANY = TypeAdapter(Identity | Temperature | Ensemble | Platt | Beta | Isotonic | LevelTable | Fusion)
EVERY = [
    Identity(),
    Temperature(value=2.5, at_ceiling=False),
    Ensemble(temperature=2.5, tempered=0.5, raw=0.2, uniform=0.3),
    Platt(slope=0.1 + 0.2, intercept=-1.0),
    Beta(a=0.0, b=1.0, c=-2.0),
    Isotonic(x=(0.0, 1.0), y=(-1.0, -1.0)),
    LevelTable(x=(0.0, 1.0), y=(1.0, -1.0)),
    Fusion(mean=(0.0,) * 5, scale=(1.0,) * 5, weights=(0.5,) * 5, intercept=0.0),
]


@pytest.mark.parametrize("calibrator", EVERY, ids=lambda c: c.kind)
def test_json_gives_back_what_was_written(calibrator):
    text = json.dumps(calibrator.model_dump(mode="json"))
    assert ANY.validate_python(json.loads(text)) == ANY.validate_json(text) == calibrator
    with pytest.raises(ValidationError, match="frozen"):
        calibrator.kind = "other"


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("identity", {"more": 1}),
        ("identity", {"kind": "no such"}),
        ("temperature", {"value": 21.0}),
        ("temperature", {"at_ceiling": True}),
        ("ensemble", {"uniform": 0.4}),
        ("ensemble", {"uniform": -0.3, "raw": 0.8}),
        ("ensemble", {"temperature": 0.0}),
        ("platt", {"slope": -1e-9}),
        ("platt", {"slope": "1"}),
        ("platt", {"intercept": float("nan")}),
        ("platt", {"intercept": True}),
        ("beta", {"b": -1.0}),
        ("beta", {"c": float("inf")}),
        ("isotonic", {"x": [0.0, 0.0]}),
        ("isotonic", {"y": [1.0, 0.0]}),
        ("isotonic", {"y": [1.0]}),
        ("isotonic", {"x": [], "y": []}),
        ("table", {"x": [1.0, 0.0]}),
        ("table", {"y": [1.0, 0.0, 2.0]}),
        ("fusion", {"scale": [1.0, 1.0, 1.0, 1.0, 0.0]}),
        ("fusion", {"weights": [1.0] * 4}),
    ],
)
def test_damaged_json_is_refused(kind, change):
    (whole,) = (c.model_dump(mode="json") for c in EVERY if c.kind == kind)
    with pytest.raises(ValidationError):
        ANY.validate_python(whole | change)
