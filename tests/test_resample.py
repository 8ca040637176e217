"""The clustered and paired bootstrap: the fast path against loops, coverage on simulated tickets, speed."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.stats

import rlcd_lite.resample
from rlcd_lite.calibration import brier, ece, murphy
from rlcd_lite.errors import UserError
from rlcd_lite.resample import Difference, Interval, bootstrap, mean_interval, paired_bootstrap
from rlcd_lite.selective import aurc


def tickets(rng, n=300, fields=3, shared=0.9):
    """Confidences and outcomes whose luck is shared within a ticket, each confidence still true on its own."""
    confidence = np.repeat(rng.uniform(0.3, 0.95, n), fields)
    luck = np.where(rng.random(n * fields) < shared, np.repeat(rng.random(n), fields), rng.random(n * fields))
    return confidence, luck < confidence, np.repeat(np.arange(n), fields)


def test_the_vectorised_bootstrap_is_the_loop_over_repeated_rows():
    confidence, correct, ticket = tickets(np.random.default_rng(0), n=40)
    seen = []

    def statistic(weight):
        seen.append(weight)
        return ece(confidence, correct, weight=weight)

    found = bootstrap(statistic, ticket, resamples=200)
    weights = np.concatenate(seen[1:])
    assert weights.shape == (200, 120)
    assert (weights.reshape(200, 40, 3) == weights.reshape(200, 40, 3)[:, :, :1]).all()  # a ticket comes with all its rows
    assert (weights.sum(axis=1) == 120).all()
    looped = [ece(np.repeat(confidence, w), np.repeat(correct, w)) for w in weights]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(looped, [0.025, 0.975])), abs=1e-12)
    assert found.estimate == ece(confidence, correct)


def test_resamples_do_not_depend_on_chunks_or_on_names_and_order_of_clusters(monkeypatch):
    confidence, correct, ticket = tickets(np.random.default_rng(1), n=50)
    values = (confidence - correct) ** 2
    whole = mean_interval(values, ticket)
    monkeypatch.setattr(rlcd_lite.resample, "CHUNK", 1000)
    assert mean_interval(values, ticket) == whole
    order = np.random.default_rng(2).permutation(len(values))
    shuffled = mean_interval(values[order], np.char.add("ticket ", ticket.astype(str).astype("U9"))[order].tolist())
    assert shuffled.estimate == pytest.approx(whole.estimate)
    assert [shuffled.low, shuffled.high] == pytest.approx([whole.low, whole.high], abs=0.01)  # names sort otherwise: other draws
    assert mean_interval(values, ticket, seed=1) != whole


def test_tickets_of_unequal_size_come_whole():
    ticket = np.array(["a", "b", "b", "c", "c", "c"])
    sizes = []
    bootstrap(lambda weight: (sizes.append(weight), weight.sum(axis=1))[1], ticket, resamples=500)
    drawn = np.concatenate(sizes[1:])
    assert (drawn[:, 1] == drawn[:, 2]).all()
    assert (drawn[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert drawn[:, [0, 1, 3]].mean(axis=0) == pytest.approx([1, 1, 1], abs=0.15)


def test_one_label_a_row_agrees_with_scipys_bootstrap():
    values = np.random.default_rng(3).exponential(size=400)
    ours = mean_interval(values, np.arange(400), resamples=5000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(4)
    ).confidence_interval
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high], abs=0.01)


def test_clustered_intervals_cover_where_independent_ones_fail():
    rng = np.random.default_rng(5)
    truth = np.mean([brier(*tickets(rng, n=20_000)[:2]) for _ in range(20)])
    clustered = independent = 0
    for i in range(300):
        confidence, correct, ticket = tickets(rng)
        values = (confidence - correct) ** 2
        a = mean_interval(values, ticket, resamples=400, seed=i)
        b = mean_interval(values, np.arange(len(values)), resamples=400, seed=i)
        clustered += a.low <= truth <= a.high
        independent += b.low <= truth <= b.high
    assert 0.90 <= clustered / 300 <= 0.98
    assert independent / 300 < 0.85


def test_paired_intervals_cover_a_known_difference():
    rng = np.random.default_rng(6)
    truth = 0.1**2  # the second arm's confidences are true, the first's 0.1 too low
    covered = 0
    for i in range(200):
        confidence, correct, ticket = tickets(rng)
        low = confidence - 0.1
        found = paired_bootstrap(
            lambda w, c=low, y=correct: brier(c, y, weight=w),
            lambda w, c=confidence, y=correct: brier(c, y, weight=w),
            ticket,
            resamples=300,
            seed=i,
        )
        covered += found.low <= truth <= found.high
    assert 0.90 <= covered / 200 <= 0.98


def test_pairing_narrows_the_interval_and_swaps_its_sign():
    confidence, correct, ticket = tickets(np.random.default_rng(7))

    def sharp(weight):
        return brier(confidence, correct, weight=weight)

    def low(weight):
        return brier(confidence - 0.1, correct, weight=weight)

    paired = paired_bootstrap(low, sharp, ticket)
    alone, other = bootstrap(low, ticket), bootstrap(sharp, ticket)
    assert paired.estimate == pytest.approx(alone.estimate - other.estimate)
    assert paired.high - paired.low < 0.8 * np.hypot(alone.high - alone.low, other.high - other.low)
    swapped = paired_bootstrap(sharp, low, ticket)
    assert [swapped.estimate, swapped.low, swapped.high] == pytest.approx([-paired.estimate, -paired.high, -paired.low])
    assert swapped.other_sign == paired.other_sign


def test_an_arm_against_itself_and_against_a_clear_winner():
    confidence, correct, ticket = tickets(np.random.default_rng(8))

    def statistic(weight):
        return ece(confidence, correct, weight=weight)

    assert paired_bootstrap(statistic, statistic, ticket) == Difference(0, 0, 0, other_sign=1)
    wrong = paired_bootstrap(lambda w: ece(1 - confidence, correct, weight=w), statistic, ticket)
    assert wrong.other_sign == 0
    assert wrong.low > 0


def test_the_share_of_the_other_sign():
    values = np.array([1.0] * 6 + [-1.0] * 4)
    found = paired_bootstrap(lambda w: w @ values, lambda w: np.zeros(len(w)), np.arange(10), resamples=20_000)
    assert found.estimate == 2
    assert found.other_sign == pytest.approx(scipy.stats.binom.cdf(5, 10, 0.6), abs=0.015)  # a sum of 0 counts


def test_debiased_reliability_is_not_centred_on_its_interval():
    """Copies in a resample look like precision: the interval stretches upward, as its documentation says."""
    rng = np.random.default_rng(9)
    confidence = rng.uniform(0.25, 0.9, 900)
    correct = rng.random(900) < confidence
    found = bootstrap(lambda w: murphy(confidence, correct, weight=w).reliability_debiased, np.arange(900))
    assert found.low <= found.estimate <= found.high
    assert found.high - found.estimate > found.estimate - found.low


def test_a_thousand_resamples_take_seconds_at_most():
    confidence, correct, ticket = tickets(np.random.default_rng(10))
    confidence = np.random.default_rng(11).random(900)  # no ties: the slow case
    start = time.perf_counter()
    for metric in (ece, aurc):
        bootstrap(lambda w, m=metric: m(confidence, correct, weight=w), ticket)
    assert time.perf_counter() - start < 3  # 0.1 s where it was written


def test_all_correct_has_an_interval_of_no_width():
    found = bootstrap(lambda w: aurc([0.2, 0.4, 0.9], [1, 1, 1], weight=w), [0, 1, 2])
    assert found == Interval(0, 0, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_interval([1.0, 2.0], [7, 7]), "one context"),
        (lambda: mean_interval([], []), "shape"),
        (lambda: mean_interval([1.0, 2.0], [1, 2, 3]), "shape"),
        (lambda: mean_interval([1.0, float("nan")], [1, 2]), "finite"),
        (lambda: mean_interval([1.0, 2.0], [1, 2], resamples=0), "resamples is 0"),
        (lambda: mean_interval([1.0, 2.0], [1, 2], level=95), "level is 95"),
        (lambda: bootstrap(lambda w: w.sum(), [1, 2]), "one number for each"),
        (lambda: bootstrap(lambda w: np.full(len(w), np.nan), [1, 2]), "not finite in 1 of 1"),
        (lambda: bootstrap(lambda w: w.sum(axis=1), [[1, 2]]), "shape"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(UserError, match=words):
        call()
