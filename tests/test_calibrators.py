"""Temperature: recovery, bounds and flags, agreement with scikit-learn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from rlcd_lite.calibrators import T_MAX, T_MIN, Temperature, fit_temperature
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
    assert fit_temperature(100 * logits, labels) == Temperature(T_MAX, at_ceiling=True)
    assert fit_temperature(logits / 100, labels) == Temperature(T_MIN, at_ceiling=False)


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
    assert fit_temperature(logits, labels) == Temperature(20.0, at_ceiling=True)


def test_separable_data_reaches_the_floor():
    logits = np.eye(3)[[0, 1, 2, 0]]
    for scale in (1, 1e5):  # at 1e5 every softmax is exactly 0 or 1, whatever the temperature
        assert fit_temperature(scale * logits, [0, 1, 2, 0]) == Temperature(0.05, at_ceiling=False)


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
