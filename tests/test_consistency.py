"""Order effects; rules are tested in test_rules."""

from __future__ import annotations

import numpy as np
import pytest

from rlcd_lite.consistency import order_effects
from rlcd_lite.errors import UserError
from rlcd_lite.resample import mean_interval


def test_order_effects_by_hand():
    base = [[0.6, 0.4], [0.9, 0.1]]
    shuffled = [[[0.6, 0.4], [0.3, 0.7]], [[0.8, 0.2], [0.5, 0.5]]]
    found = order_effects(base, shuffled)
    assert found.total_variation.tolist() == pytest.approx([0.15, 0.25])
    assert found.flip.tolist() == [0.5, 0]  # a tie keeps the first option


def test_a_model_that_reads_options_is_unmoved_and_one_that_reads_places_is_not():
    rng = np.random.default_rng(0)
    base = rng.dirichlet(np.ones(4), 200)
    still = order_effects(base, np.repeat(base[:, None], 3, axis=1))
    assert not still.total_variation.any()
    assert not still.flip.any()
    place = np.array([0.7, 0.1, 0.1, 0.1])  # always the first place
    order = rng.permuted(np.tile(np.arange(4), (200, 8, 1)), axis=2)
    moved = order_effects(np.tile(place, (200, 1)), np.take(place, order))
    interval = mean_interval(moved.flip, np.arange(200))
    assert interval.low <= 0.75 <= interval.high
    assert moved.total_variation == pytest.approx(0.6 * moved.flip)


def test_fields_of_different_size_are_pooled_by_example():
    rng = np.random.default_rng(1)
    effects = [order_effects(rng.dirichlet(np.ones(k), 50), rng.dirichlet(np.ones(k), (50, 4))) for k in (2, 4)]
    pooled = mean_interval(np.concatenate([e.flip for e in effects]), np.tile(np.arange(50), 2))
    assert 0 < pooled.low < pooled.estimate < pooled.high < 1


@pytest.mark.parametrize(
    ("base", "shuffled", "words"),
    [
        ([[0.5, 0.5]], [[0.5, 0.5]], "3 dimensions"),
        ([[0.5, 0.5]], [[[0.2, 0.3, 0.5]]], r"\(n, k, K\)"),
        ([[0.5, 0.6]], [[[0.5, 0.5]]], "sum to 1"),
        ([[1.5, -0.5]], [[[0.5, 0.5]]], "at least 0"),
        ([[float("nan"), 1]], [[[0.5, 0.5]]], "probabilities"),
        (np.empty((0, 2)), np.empty((0, 1, 2)), "non-empty"),
    ],
)
def test_bad_distributions_are_refused(base, shuffled, words):
    with pytest.raises(UserError, match=words):
        order_effects(base, shuffled)
