"""Prediction sets: coverage on average over splits, also per class, and what cannot be promised."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcd_lite.conformal import class_limits, limit, option_scores, prediction_set
from rlcd_lite.errors import UserError

METHODS = ["lac", "aps"]


def texts(rng, n, options=5, sharpness=2.0):
    """Probabilities (n, K) of a model that is wrong about its certainty, and labels drawn from the true ones."""
    logits = rng.normal(size=(n, options)) * sharpness
    truth = np.exp(logits / 2)
    truth /= truth.sum(1, keepdims=True)
    stated = np.exp(logits)
    stated /= stated.sum(1, keepdims=True)
    return stated, np.array([rng.choice(options, p=p) for p in truth])


def label_scores(p, y, method):
    return np.array([option_scores(row, method)[label] for row, label in zip(p, y, strict=True)])


@pytest.mark.parametrize("method", METHODS)
def test_sets_cover_as_often_as_they_promise(method):
    rng = np.random.default_rng(0)
    alpha, n, splits = 0.2, 49, 200  # (n + 1)(1 - α) is whole, so the coverage of lac is 1 - α exactly
    hits = []
    for _ in range(splits):
        p, y = texts(rng, n + 20)
        q = limit(label_scores(p[:n], y[:n], method), alpha)
        hits += [label in prediction_set(row, q, method) for row, label in zip(p[n:], y[n:], strict=True)]
    spread = 3 * math.sqrt(alpha * (1 - alpha) / splits)  # of one split's coverage, generously
    assert 1 - alpha - spread <= np.mean(hits) <= 1 - alpha + spread + (0.1 if method == "aps" else 0)


def test_class_limits_cover_every_class():
    rng = np.random.default_rng(1)
    hits: dict[int, list[bool]] = {0: [], 1: []}
    for _ in range(150):
        y = (rng.random(80) < 0.8).astype(int)  # class 0 is rare and looks like class 1
        p1 = np.where(y == 1, rng.uniform(0.5, 1, 80), rng.uniform(0.3, 1, 80))
        p = np.stack([1 - p1, p1], axis=1)
        q = class_limits(label_scores(p[:60], y[:60], "lac"), y[:60], 2, 0.25)
        for row, label in zip(p[60:], y[60:], strict=True):
            hits[label].append(label in prediction_set(row, q, "lac"))
    assert all(np.mean(found) >= 0.75 - 0.05 for found in hits.values())


def test_a_class_with_too_few_rows_is_in_every_set():
    q = class_limits([0.1] * 9 + [0.9], [0] * 9 + [1], 2, 0.1)
    assert q[0] == pytest.approx(0.1)
    assert math.isinf(q[1])
    assert prediction_set([0.99, 0.01], q, "lac") == (0, 1)


def test_scores_by_hand():
    p = [0.5, 0.2, 0.3]
    assert option_scores(p, "lac") == pytest.approx([0.5, 0.8, 0.7])
    assert option_scores(p, "aps") == pytest.approx([0.5, 1.0, 0.8])
    assert prediction_set(p, 0.8, "aps") == (0, 2)
    assert prediction_set(p, 0.4, "lac") == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(0, 1), st.sampled_from(METHODS))
def test_a_higher_limit_never_drops_an_option_and_likelier_options_come_first(weights, q, method):
    p = np.array(weights) / sum(weights)
    smaller, larger = prediction_set(p, q / 2, method), prediction_set(p, q, method)
    assert set(smaller) <= set(larger)
    assert all(p[a] >= p[b] for a, b in pairwise(larger))
    assert len(prediction_set(p, 1.0, method)) == len(p)


def test_too_few_rows_are_refused_with_the_number_it_takes():
    assert limit([0.5] * 9, 0.1) == 0.5
    with pytest.raises(UserError, match=r"sets that miss at most 0.1 need 9 held-out rows, and there are 8"):
        limit([0.5] * 8, 0.1)
    with pytest.raises(UserError, match="is 0:"):
        limit([0.5] * 8, 0)
    with pytest.raises(UserError, match="method"):
        option_scores([0.5, 0.5], "raps")  # type: ignore[arg-type]
