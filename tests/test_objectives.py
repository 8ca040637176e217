"""Losses of policies made of random logits: exact gradients, fixed points in closed form, and draws enumerated one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from torch import Tensor

from rlcd_lite.objectives import (
    STD_EPSILON,
    Policy,
    Rollouts,
    action_values,
    advantages,
    choice_cross_entropy,
    divergence,
    draw,
    entropy,
    expected_loss,
    log_probs,
    order_divergence,
    rollout_rewards,
    sampled_loss,
    supervised_loss,
)
from rlcd_lite.recipe import Baseline, Recipe
from rlcd_lite.rewards import Reward, reward
from rlcd_lite.scores import FieldScores
from rlcd_lite.trainer import Trainer, _equal, _right_over_wrong

FIVE = (0.1, 0.3, 0.5, 0.7, 0.9)
GRIDS = {2: (0.3, 0.9), 3: (0.2, 0.5, 0.9), 5: FIVE}
ALL = {  # every kind of reward, with weights that are not 1
    "rlcr": reward("rlcr"),
    "rlcr weighted": reward("rlcr", w_correct=0.5, w_calibration=1.75),
    "rlcr decoupled": reward("rlcr", decouple=True, w_correct=0.5, w_calibration=1.75),
    "brier": reward("brier", w_calibration=1.75),
    "binary": reward("binary", w_correct=0.5),
    "dist-brier": reward("dist-brier", w_correct=0.5),
    "dist-rlcr": reward("dist-rlcr", w_correct=0.5, w_calibration=1.75),
}
COUPLED = [name for name, named in ALL.items() if not named.decoupled]
each_reward = pytest.mark.parametrize("name", list(ALL))
each_coupled = pytest.mark.parametrize("name", COUPLED)
each_confidence = pytest.mark.parametrize("conditioned", [False, True], ids=["independent", "conditioned"])
each_temperature = pytest.mark.parametrize("temperature", [1.0, 2.0])


def made(options: int, levels: int = 5, conditioned: bool = False, seed: int = 0, scale: float = 1.0) -> FieldScores:
    """Random logits in float64, to be differentiated."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (options,), (options, levels) if conditioned else (levels,)
    choice, stated = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return FieldScores(choice.requires_grad_(), stated.requires_grad_(), GRIDS[levels])


def of_logits(choice: Any, stated: Any = (0.0,) * 5, grid: tuple[float, ...] = FIVE) -> FieldScores:
    choice, stated = (torch.as_tensor(z, dtype=torch.float64).detach().clone() for z in (choice, stated))
    return FieldScores(choice.requires_grad_(), stated.requires_grad_(), grid)


def with_mean(mean: float) -> Tensor:
    """Logits over the five levels with this mean, of the greatest entropy."""
    low, high = -50.0, 50.0
    for _ in range(60):
        tilt = (low + high) / 2
        logits = tilt * torch.tensor(FIVE, dtype=torch.float64)
        low, high = (tilt, high) if logits.softmax(0) @ torch.tensor(FIVE, dtype=torch.float64) < mean else (low, tilt)
    return logits


def gradient(loss: Tensor, scores: FieldScores) -> tuple[Tensor, Tensor]:
    """On the logits of the choice and of the confidence; zeros where the loss does not reach."""
    return torch.autograd.grad(loss, [scores.choice, scores.stated], retain_graph=True, allow_unused=True, materialize_grads=True)


def near(found: Tensor, expected: Any, within: float = 1e-7) -> bool:
    return torch.allclose(found, torch.as_tensor(expected, dtype=found.dtype), rtol=0, atol=within)


def pair_near(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], within: float = 1e-7) -> bool:
    return all(near(*pair, within) for pair in zip(found, expected, strict=True))


def one_hot(policy: Policy, label: int) -> Tensor:
    return torch.eye(len(policy.choice), dtype=policy.choice.dtype)[label]


def joint(policy: Policy) -> Tensor:
    """Log-probabilities (K, C) of every draw."""
    return policy.choice[:, None] + policy.stated_in(torch.arange(len(policy.choice)))


def payoffs(policy: Policy, reported: Tensor, label: int, named: Reward) -> Tensor:
    """r(a, c), (K, C), each from the reward's own formula."""
    rows = [
        [
            named.correctness(float(a == label), reported[a].item()) + named.calibration(float(a == label), c.item())
            for c in policy.grid
        ]
        for a in range(len(policy.choice))
    ]
    return torch.tensor(rows, dtype=torch.float64)


def exact(scores: FieldScores, label: int, named: Reward, temperature: float = 1.0) -> Tensor:
    return expected_loss(Policy.of(scores, temperature), Policy.of(scores).choice.exp(), label, named)


def drawn(policy: Policy, choice: Any, stated: Any) -> Rollouts:
    """These rollouts, as if the policy had drawn them."""
    choice, stated = torch.as_tensor(choice), torch.as_tensor(stated)
    return Rollouts(choice, stated, *(part.detach() for part in log_probs(policy, choice, stated)))


def paid_loss(
    policy: Policy,
    reported: Tensor,
    rollouts: Rollouts,
    correct: Tensor,
    named: Reward,
    baseline: Baseline = "rloo",
    clip: float = 0.2,
) -> Tensor:
    worth, calibration = rollout_rewards(policy, reported, rollouts, correct, named)
    parts = (worth, calibration) if named.decoupled else (worth + calibration,) * 2
    return sampled_loss(policy, rollouts, *(advantages(part, baseline) for part in parts), clip)


def every_group(policy: Policy, size: int) -> Iterator[tuple[Rollouts, Tensor]]:
    """All the groups of rollouts that can be drawn, with their probabilities."""
    options, levels = len(policy.choice), len(policy.grid)
    for group in product(range(options * levels), repeat=size):
        rollouts = drawn(policy, [g // levels for g in group], [g % levels for g in group])
        yield rollouts, (rollouts.choice_log_prob + rollouts.stated_log_prob).sum().exp()


def mean_gradient(
    scores: FieldScores, label: int, named: Reward, size: int, temperature: float = 1.0, baseline: Baseline = "rloo"
) -> tuple[Tensor, Tensor]:
    """Of the sampled loss, over all groups by their probabilities."""
    policy, reported = Policy.of(scores, temperature), Policy.of(scores).choice.exp()
    total = torch.zeros((), dtype=torch.float64)
    for rollouts, probability in every_group(policy, size):
        correct = (rollouts.choice == label).double()
        total = total + probability * paid_loss(policy, reported, rollouts, correct, named, baseline)
    return gradient(total, scores)


def descend(scores: FieldScores, loss: Callable[[], Tensor], steps: int, rate: float) -> None:
    """Gradient descent on the choice's logits, in place."""
    for _ in range(steps):
        step = gradient(loss(), scores)[0]
        with torch.no_grad():
            scores.choice.sub_(rate * step)


# ---- what is expected ----


@each_confidence
@each_temperature
@each_reward
def test_the_exact_loss_is_the_sum_over_every_action(name: str, temperature: float, conditioned: bool) -> None:
    for seed, options in enumerate((2, 3, 7)):
        scores = made(options, conditioned=conditioned, seed=seed)
        policy, reported = Policy.of(scores, temperature), Policy.of(scores).choice.exp().detach()
        for label in range(options):
            expected = -(joint(policy).exp() * payoffs(policy, reported, label, ALL[name])).sum()
            assert near(expected_loss(policy, reported, label, ALL[name]), expected)


@each_confidence
@each_coupled
def test_the_exact_gradient_is_that_of_the_sum_over_every_action(name: str, conditioned: bool) -> None:
    scores = made(4, conditioned=conditioned)
    policy = Policy.of(scores, 2.0)
    expected = -(joint(policy).exp() * payoffs(policy, torch.zeros(4), 1, ALL[name])).sum()
    assert pair_near(gradient(exact(scores, 1, ALL[name], 2.0), scores), gradient(expected, scores))


@each_confidence
@pytest.mark.parametrize("name", [name for name, named in ALL.items() if named.decoupled])
def test_decoupled_each_part_is_paid_for_its_own_term(name: str, conditioned: bool) -> None:
    scores, named = made(4, conditioned=conditioned), ALL[name]
    choice_alone = gradient(exact(scores, 1, replace(named, b=0.0)), scores)
    assert not choice_alone[1].any()
    without = replace(named, distribution=False, decoupled=False)
    stated_alone = gradient(exact(scores, 1, replace(without, w=0.0)), scores)[1]
    assert pair_near(gradient(exact(scores, 1, named), scores), (choice_alone[0], stated_alone))
    if not named.distribution:
        assert near(choice_alone[0], gradient(exact(scores, 1, replace(without, b=0.0)), scores)[0])


# ---- the multiplier of the choice's gradient ----

MULTIPLIERS: dict[str, tuple[Reward, Callable[[float], float]]] = {
    "rlcr": (reward("rlcr"), lambda mean: 2 * mean),
    "brier": (reward("brier"), lambda mean: 2 * mean - 1),
    "binary": (reward("binary"), lambda mean: 1),
    "weighted": (reward("rlcr", w_correct=0.5, w_calibration=1.75), lambda mean: 0.5 - 1.75 + 2 * 1.75 * mean),
    "decoupled": (reward("rlcr", decouple=True, w_correct=0.5), lambda mean: 0.5),
    "brier decoupled": (reward("brier", decouple=True), lambda mean: 1),
}


@each_temperature
@pytest.mark.parametrize("name", list(MULTIPLIERS))
def test_the_choice_is_taught_accuracy_times_a_multiplier(name: str, temperature: float) -> None:
    named, multiplier = MULTIPLIERS[name]
    for seed in range(20):
        scores = made(2 + seed % 5, seed=seed, scale=2)
        policy, label = Policy.of(scores, temperature), seed % 2
        mean = (policy.stated.exp() @ policy.grid).item()
        pi = policy.choice.exp()
        accuracy = pi[label] * (one_hot(policy, label) - pi) / temperature
        assert near(-gradient(exact(scores, label, named, temperature), scores)[0], multiplier(mean) * accuracy)
        assert named.choice_multiplier(mean) == pytest.approx(multiplier(mean))
        value, calibration = action_values(policy, label, named)
        logged = _right_over_wrong(policy, value if named.decoupled else value + calibration, label)
        assert logged.item() == pytest.approx(multiplier(mean), abs=1e-6)


@each_confidence
@each_coupled
def test_the_logged_multiplier_is_the_slope_on_the_right_option(name: str, conditioned: bool) -> None:
    for label in range(4):
        scores = made(4, conditioned=conditioned, seed=label)
        policy = Policy.of(scores)
        logged = _right_over_wrong(policy, sum(action_values(policy, label, ALL[name])), label)
        right = policy.choice.exp()[label]
        assert near(-gradient(exact(scores, label, ALL[name]), scores)[0][label], right * (1 - right) * logged)


def test_the_logged_multiplier_is_a_number_where_all_is_on_the_right_option() -> None:
    policy = Policy.of(of_logits([900.0, 0.0, 0.0], with_mean(0.3)))
    found = _right_over_wrong(policy, sum(action_values(policy, 0, reward("brier"))), 0)
    assert found.item() == pytest.approx(2 * 0.3 - 1)


@pytest.mark.parametrize("mean", [0.2, 0.31, 0.49, 0.5, 0.51, 0.69, 0.8])
def test_brier_alone_unlearns_below_a_mean_confidence_of_one_half(mean: float) -> None:
    scores = of_logits([0.3, -0.2, 0.1, 0.4], with_mean(mean))
    found = {name: -gradient(exact(scores, 1, reward(name)), scores)[0] for name in ("brier", "rlcr", "binary")}
    assert (found["binary"].sign() == torch.tensor([-1, 1, -1, -1])).all()
    assert (found["rlcr"].sign() == found["binary"].sign()).all()
    if mean == 0.5:
        assert near(found["brier"], [0.0] * 4, 1e-12)
    else:
        assert (found["brier"].sign() == found["binary"].sign() * math.copysign(1, mean - 0.5)).all()
    assert near(found["rlcr"], found["binary"] * 2 * mean)  # the less confident, the slower


def test_the_confidence_is_taught_the_brier_score_of_the_drawn_answer() -> None:
    scores = made(4, seed=3)
    policy = Policy.of(scores)
    right, rho = policy.choice.exp()[2], policy.stated.exp()
    score = right * (policy.grid - 1) ** 2 + (1 - right) * policy.grid**2
    expected = rho * (score - rho @ score)
    for named in (reward("rlcr"), reward("brier"), reward("rlcr", decouple=True), reward("dist-rlcr")):
        assert near(gradient(exact(scores, 2, named), scores)[1], expected)
    for named in (reward("binary"), reward("dist-brier")):
        assert not gradient(exact(scores, 2, named), scores)[1].any()


# ---- the Brier trap, step by step ----


def accuracy_and_confidence(named: Reward, speed: float, mean: float = 0.69, seconds: int = 100) -> tuple[float, float]:
    """Three fields that are right with 0.215, 0.215 and 0.5 at first and share the confidence, after steps of the exact gradient.

    The mean confidence starts at the base model's. Its logits follow the mean of the fields' gradients, ``speed`` times as fast.
    """
    right = (0.215, 0.215, 0.5)
    fields = [of_logits([math.log(p / (1 - p) * (k - 1)), *[0.0] * (k - 1)]) for k, p in zip((4, 4, 2), right, strict=True)]
    stated = with_mean(mean).requires_grad_()
    for _ in range(seconds):
        loss = sum(exact(replace(field, stated=stated), 0, named) for field in fields)
        *steps, shared = torch.autograd.grad(loss, [*(field.choice for field in fields), stated])
        with torch.no_grad():
            for field, step in zip(fields, steps, strict=True):
                field.choice.sub_(step)
            stated.sub_(speed * shared / 3)
    policies = [Policy.of(replace(field, stated=stated)) for field in fields]
    return sum(policy.choice[0].exp().item() for policy in policies) / 3, (stated.softmax(0) @ policies[0].grid).item()


@pytest.mark.parametrize("speed", [10, 30])
def test_brier_alone_ends_wrong_where_the_confidence_learns_faster(speed: float) -> None:
    accuracy, confidence = accuracy_and_confidence(reward("brier"), speed)
    assert 0.01 < accuracy < 0.10
    assert confidence == pytest.approx(0.30, abs=0.01)


def test_brier_alone_escapes_where_the_confidence_learns_slowly() -> None:
    assert accuracy_and_confidence(reward("brier"), 1)[0] > 0.97
    assert accuracy_and_confidence(reward("brier"), 3)[0] == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("speed", [1, 30])
@pytest.mark.parametrize("decouple", [False, True])
def test_rlcr_and_decoupled_brier_learn_whatever_the_speed(decouple: bool, speed: float) -> None:
    accuracy, confidence = accuracy_and_confidence(reward("brier" if decouple else "rlcr", decouple=decouple), speed)
    assert accuracy > 0.99
    assert confidence > 0.69


# ---- draws ----


def test_a_seed_gives_the_same_draws() -> None:
    policy = Policy.of(made(5, conditioned=True))
    first, again, other = (draw(policy, 64, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.choice, again.choice)
    assert torch.equal(first.stated, again.stated)
    assert not torch.equal(first.choice, other.choice)
    generator = torch.Generator().manual_seed(1)
    draw(policy, 64, generator)
    assert not torch.equal(draw(policy, 64, generator).choice, first.choice)  # a generator goes on


@each_temperature
@each_confidence
def test_draws_are_as_frequent_as_they_are_likely(conditioned: bool, temperature: float) -> None:
    scores, count = made(4, 3, conditioned, seed=5), 20_000
    policy = Policy.of(scores, temperature)
    rollouts = draw(policy, count, torch.Generator().manual_seed(0))
    rho = (scores.stated if conditioned else scores.stated.expand(4, -1)).detach() / temperature
    expected = (scores.choice.detach() / temperature).softmax(0)[:, None] * rho.softmax(-1)
    seen = torch.bincount(rollouts.choice * 3 + rollouts.stated, minlength=12)
    assert scipy.stats.chisquare(seen, (expected.flatten() * count).numpy()).pvalue > 1e-3
    logged = rollouts.choice_log_prob + rollouts.stated_log_prob
    assert near(logged, expected.log()[rollouts.choice, rollouts.stated])
    assert not logged.requires_grad


def test_a_conditioned_confidence_is_drawn_from_the_row_of_its_option() -> None:
    certain = 60 * torch.eye(5, dtype=torch.float64)[[3, 0, 4, 1]]
    rollouts = draw(Policy.of(of_logits([0.0] * 4, certain)), 200, torch.Generator().manual_seed(0))
    assert rollouts.choice.unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(rollouts.stated, torch.tensor([3, 0, 4, 1])[rollouts.choice])
    assert near(rollouts.stated_log_prob, torch.zeros(200))


@each_confidence
@each_reward
def test_a_rollout_is_paid_by_the_formula(name: str, conditioned: bool) -> None:
    policy = Policy.of(made(3, conditioned=conditioned), 2.0)
    reported = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    table = payoffs(policy, reported, 1, ALL[name])
    rollouts = drawn(policy, *torch.cartesian_prod(torch.arange(3), torch.arange(5)).T)
    worth, calibration = rollout_rewards(policy, reported, rollouts, (rollouts.choice == 1).double(), ALL[name])
    assert near(worth + calibration, table.flatten())
    assert near(calibration, payoffs(policy, reported, 1, replace(ALL[name], w=0.0)).flatten())


# ---- sampled and exact gradients ----


@each_confidence
@each_temperature
@each_reward
def test_sampled_gradients_average_to_the_exact_one(name: str, temperature: float, conditioned: bool) -> None:
    scores = made(3, 2, conditioned, seed=7)
    found = mean_gradient(scores, 1, ALL[name], 2, temperature)
    assert pair_near(found, gradient(exact(scores, 1, ALL[name], temperature), scores))
    elsewhere = gradient(exact(scores, 1, ALL[name], 3 - temperature), scores)
    assert not near(found[0], elsewhere[0], 1e-3)
    if ALL[name].b:
        assert not near(found[1], elsewhere[1], 1e-3)


@each_temperature
@pytest.mark.parametrize("name", ["rlcr", "dist-rlcr"])
def test_many_draws_come_close_to_the_exact_gradient(name: str, temperature: float) -> None:
    scores = made(4, conditioned=True, seed=8)
    policy, reported = Policy.of(scores, temperature), Policy.of(scores).choice.exp()
    rollouts = draw(policy, 20_000, torch.Generator().manual_seed(0))
    found = gradient(paid_loss(policy, reported, rollouts, (rollouts.choice == 0).double(), ALL[name]), scores)
    assert pair_near(found, gradient(exact(scores, 0, ALL[name], temperature), scores), 5e-3)  # a few standard errors


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=16), st.booleans())
def test_leave_one_out_is_the_mean_baseline_rescaled(rewards: list[float], normalise: bool) -> None:
    group = torch.tensor(rewards, dtype=torch.float64)
    size = len(group)
    others = torch.stack([group[torch.arange(size) != i].mean() for i in range(size)])
    assert near(advantages(group, "rloo"), group - others, 1e-12)
    assert near(advantages(group, "rloo", normalise), advantages(group, "mean", normalise) * size / (size - 1), 1e-9)
    assert advantages(group, "rloo", normalise).sum().item() == pytest.approx(0, abs=1e-9)


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=16))
def test_normalised_advantages_have_deviation_1(rewards: list[float]) -> None:
    group = torch.tensor(rewards, dtype=torch.float64)
    assert near(advantages(group), group - group.mean(), 1e-12)
    assert near(advantages(group, normalise=True), (group - group.mean()) / (group.std() + STD_EPSILON), 1e-9)
    assert near(advantages(torch.full_like(group, rewards[0]), normalise=True), torch.zeros(len(rewards)), 1e-9)


@pytest.mark.parametrize(("size", "conditioned"), [(2, True), (3, False)])
@pytest.mark.parametrize("name", ["rlcr weighted", "rlcr decoupled", "dist-rlcr"])
def test_the_mean_baseline_shortens_the_gradient(name: str, size: int, conditioned: bool) -> None:
    for peak in (0.0, 1.0, 4.0):  # uniform, random, peaked
        scores = made(2, 2, conditioned, seed=9, scale=peak)
        expected = gradient(exact(scores, 0, ALL[name]), scores)
        found = mean_gradient(scores, 0, ALL[name], size, baseline="mean")
        assert pair_near(found, tuple((size - 1) / size * part for part in expected))


def raised(p: float, normalise: bool, named: Reward) -> float:
    """Expected gradient on the logit of 0.9 over all draws of four rollouts that say 0.7 or 0.9 of an answer right with p."""
    scores = of_logits([0.0, 0.0], [0.0, 0.0], (0.7, 0.9))
    policy = Policy.of(scores)
    total = torch.zeros((), dtype=torch.float64)
    for said, right in product(product([0, 1], repeat=4), [0.0, 1.0]):
        rollouts = drawn(policy, [0] * 4, said)
        worth, calibration = rollout_rewards(policy, policy.choice.exp(), rollouts, torch.full((4,), right).double(), named)
        paid = advantages(worth + calibration, normalise=normalise)
        total = total + (p if right else 1 - p) / 16 * sampled_loss(policy, rollouts, torch.zeros(4), paid, 0.2)
    return -gradient(total, scores)[1][1].item()


@pytest.mark.parametrize(
    ("p", "plain", "normalised"), [(0.55, -0.0188, 0.035), (0.6, -0.0150, 0.070), (0.7, -0.0075, 0.139), (0.8, 0, 0.209)]
)
def test_dividing_by_the_deviation_raises_the_confidence_of_whatever_is_right_more_often_than_not(
    p: float, plain: float, normalised: float
) -> None:
    assert raised(p, False, reward("rlcr")) == pytest.approx(plain, abs=6e-5)
    assert raised(p, True, reward("rlcr")) == pytest.approx(normalised, abs=6e-4)


def test_plain_advantages_raise_the_confidence_towards_the_truth_alone() -> None:
    for p in torch.linspace(0.02, 0.98, 9).tolist():
        assert math.copysign(1, raised(p, False, reward("rlcr"))) == math.copysign(1, p - 0.8)
        assert raised(p, True, reward("rlcr")) == pytest.approx((p - 0.5) * 2 * raised(1, True, reward("rlcr")), abs=1e-3)


# ---- groups without variance ----


def same_rewards(p: float, rho: tuple[float, ...], size: int = 8, count: int = 5000) -> tuple[float, float]:
    """Share of groups in which all rewards are the same, among many drawn: for binary and for rlcr."""
    wrong = (1 - p) / 3
    policy = Policy.of(of_logits(torch.tensor([p, wrong, wrong, wrong]).log(), torch.tensor(rho).log()))
    rollouts = draw(policy, size * count, torch.Generator().manual_seed(0))
    shares = []
    for name in ("binary", "rlcr"):
        worth, calibration = rollout_rewards(policy, policy.choice.exp(), rollouts, (rollouts.choice == 0).double(), reward(name))
        groups = (worth + calibration).reshape(count, size)
        shares.append((groups == groups[:, :1]).all(1).double().mean().item())
    return shares[0], shares[1]


TOP = (0.025, 0.025, 0.025, 0.025, 0.9)


@pytest.mark.parametrize(("p", "share"), [(0.5, 0.008), (0.9, 0.43), (0.95, 0.66), (0.98, 0.85), (0.99, 0.92)])
def test_how_many_groups_have_no_variance(p: float, share: float) -> None:
    binary = p**8 + (1 - p) ** 8
    both = binary * sum(level**8 for level in TOP)
    assert binary == pytest.approx(share, abs=0.005)
    for found, expected in zip(same_rewards(p, TOP), (binary, both), strict=True):
        assert found == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 5000))


def test_rlcr_loses_the_variance_of_its_groups_when_the_confidence_collapses_too() -> None:
    assert same_rewards(0.98, TOP)[1] == pytest.approx(0.37, abs=0.02)
    assert same_rewards(0.98, (0.2,) * 5)[1] < 0.005


@pytest.mark.parametrize("name", ["binary", "rlcr", "brier"])
def test_equal_rewards_are_told_from_different_ones(name: str) -> None:
    policy = Policy.of(FieldScores(torch.zeros(3), torch.zeros(5), FIVE))  # float32, as the model's
    for (a, i), (b, j) in product(product(range(3), range(5)), repeat=2):
        rollouts = drawn(policy, [a, b], [i, j])
        worth, calibration = rollout_rewards(policy, policy.choice.exp(), rollouts, (rollouts.choice == 0).float(), reward(name))
        same = (a == 0) == (b == 0)
        expected = {"binary": same, "rlcr": same and i == j, "brier": (i == j) if same else (i + j == 4)}
        assert _equal(worth + calibration) == float(expected[name])


# ---- what a distribution reward teaches ----


def half_brier(choice: Tensor, label: int) -> Tensor:
    return 0.5 * ((choice.exp() - torch.eye(len(choice), dtype=choice.dtype)[label]) ** 2).sum()


@pytest.mark.parametrize("name", ["dist-brier", "dist-rlcr"])
def test_a_distribution_reward_has_half_the_gradient_of_the_brier_score(name: str) -> None:
    for seed, options in enumerate((2, 3, 4, 77)):
        scores = made(options, seed=seed, scale=2)
        for label in range(min(options, 4)):
            expected = gradient(half_brier(scores.choice.log_softmax(0), label), scores)[0]
            assert near(gradient(exact(scores, label, reward(name)), scores)[0], expected, 1e-6)
            assert near(2 * gradient(exact(scores, label, ALL[name]), scores)[0], expected, 1e-6)


def test_binary_has_the_gradient_of_the_right_options_probability() -> None:
    scores = made(4, seed=1)
    expected = gradient(-scores.choice.softmax(0)[2], scores)[0]
    assert near(gradient(exact(scores, 2, reward("binary")), scores)[0], expected)


def test_what_is_reported_is_never_differentiated() -> None:
    scores = made(4, 2, seed=2)
    policy, named = Policy.of(scores), reward("dist-brier")
    attached = policy.choice.exp()
    assert attached.requires_grad
    kept = gradient(expected_loss(policy, attached, 1, named), scores)
    assert pair_near(kept, gradient(expected_loss(policy, attached.detach(), 1, named), scores), 1e-12)
    undetached = -(attached * (one_hot(policy, 1) - attached)).sum()
    assert not near(kept[0], gradient(undetached, scores)[0], 1e-2)

    rollouts = draw(policy, 16, torch.Generator().manual_seed(0))
    worth, _ = rollout_rewards(policy, attached, rollouts, (rollouts.choice == 1).double(), named)
    assert not worth.requires_grad


TARGET = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


def on_average(loss: Callable[[int], Tensor]) -> Tensor:
    """Expectation of a loss over labels of the target distribution."""
    return sum(q.item() * loss(label) for label, q in enumerate(TARGET))


FAITHFUL: dict[str, tuple[float, Callable[[FieldScores, int], Tensor]]] = {  # with a step that is short enough
    "dist-brier": (5.0, lambda scores, label: exact(scores, label, reward("dist-brier"))),
    "dist-brier drawn at 2": (20.0, lambda scores, label: exact(scores, label, reward("dist-brier"), 2.0)),
    "dist-rlcr": (5.0, lambda scores, label: exact(scores, label, reward("dist-rlcr"))),
    "dist-rlcr drawn at 2": (20.0, lambda scores, label: exact(scores, label, reward("dist-rlcr"), 2.0)),
    "warm-up": (2.0, lambda scores, label: choice_cross_entropy(Policy.of(scores), label)),
    "sft-ce": (2.0, lambda scores, label: supervised_loss(Policy.of(scores), label, "sft-ce", 1.0, 1.0)),
    "sft-brier": (5.0, lambda scores, label: supervised_loss(Policy.of(scores), label, "sft-brier", 1.0, 1.0)),
}


@pytest.mark.parametrize("name", list(FAITHFUL))
def test_distribution_rewards_and_supervision_learn_the_probabilities_themselves(name: str) -> None:
    rate, loss = FAITHFUL[name]
    at_target = of_logits(TARGET.log() + 0.7)
    assert near(gradient(on_average(lambda label: loss(at_target, label)), at_target)[0], [0.0] * 3)
    scores = of_logits([-1.0, 0.0, 1.0])
    descend(scores, lambda: on_average(lambda label: loss(scores, label)), 100, rate)
    assert near(scores.choice.softmax(0), TARGET, 1e-3)


def test_paid_without_its_own_probability_a_choice_goes_all_to_one_option() -> None:
    for name in ("binary", "rlcr"):
        scores = of_logits([-1.0, 0.0, 1.0])
        descend(scores, lambda scores=scores, name=name: on_average(lambda label: exact(scores, label, reward(name))), 150, 5)
        assert scores.choice.softmax(0)[0].item() > 0.98


def test_undetached_a_distribution_reward_learns_something_else() -> None:
    scores = of_logits([-1.0, 0.0, 1.0])

    def undetached() -> Tensor:
        pi = scores.choice.softmax(0)
        return -(pi * (TARGET - pi)).sum()

    descend(scores, undetached, 150, 5)
    assert near(scores.choice.softmax(0), TARGET / 2 + 1 / 6, 1e-3)


# ---- regularisers: fixed points in closed form ----


def base() -> FieldScores:
    return of_logits(torch.tensor([0.31, 0.23, 0.23, 0.23], dtype=torch.float64).log(), with_mean(0.69))


def regularised(scores: FieldScores, label: int, named: Reward, beta: float, reference: FieldScores | None) -> Tensor:
    """Exact loss plus β KL from the reference, or less β times the entropy without one."""
    policy = Policy.of(scores)
    term = -entropy(policy) if reference is None else divergence(policy, Policy.of(reference))
    return expected_loss(policy, policy.choice.exp(), label, named) + beta * term


@pytest.mark.parametrize(("beta", "right"), [(0.04, 1.0), (0.1, 0.9999), (0.2, 0.985), (0.5, 0.769)])
def test_kl_to_the_base_leaves_a_known_share_on_the_right_option(beta: float, right: float) -> None:
    reference, bonus = base(), torch.tensor([1 / beta, 0, 0, 0])
    fixed = of_logits(reference.choice + bonus, reference.stated)
    assert fixed.choice.softmax(0)[0].item() == pytest.approx(right, abs=5.1e-4 if beta >= 0.2 else 5.1e-5)
    assert pair_near(gradient(regularised(fixed, 0, reward("binary"), beta, reference), fixed), (torch.zeros(4), torch.zeros(5)))
    start = base()
    descend(start, lambda: regularised(start, 0, reward("binary"), beta, reference), 150, 2 / beta**0.5)
    assert start.choice.softmax(0)[0].item() == pytest.approx(right, abs=2e-3)


@pytest.mark.parametrize("beta", [0.2, 0.5])
def test_an_entropy_bonus_is_kl_to_the_uniform_policy(beta: float) -> None:
    fixed = of_logits([1 / beta, 0, 0, 0])
    assert near(gradient(regularised(fixed, 0, reward("binary"), beta, None), fixed)[0], [0.0] * 4)
    start = base()
    descend(start, lambda: regularised(start, 0, reward("binary"), beta, None), 150, 2 / beta**0.5)
    assert near(start.choice.softmax(0), fixed.choice.softmax(0), 2e-3)
    uniform = of_logits([0.0] * 4)
    expected = gradient(regularised(start, 0, reward("binary"), beta, uniform), start)
    assert pair_near(gradient(regularised(start, 0, reward("binary"), beta, None), start), expected)


@pytest.mark.parametrize("regulariser", ["kl", "entropy"])
@each_coupled
def test_the_fixed_point_of_option_and_confidence_together(name: str, regulariser: str) -> None:
    beta, label = 0.3, 1
    reference = made(3, conditioned=True, seed=4)
    prior = Policy.of(reference if regulariser == "kl" else of_logits(torch.zeros(3), torch.zeros(3, 5)))
    tilted = joint(prior).detach() + payoffs(prior, prior.choice.exp(), label, ALL[name]) / beta
    fixed = of_logits(tilted.logsumexp(1), tilted)  # what is drawn as a pair is ∝ prior · exp(r / β)
    loss = regularised(fixed, label, ALL[name], beta, reference if regulariser == "kl" else None)
    assert pair_near(gradient(loss, fixed), (torch.zeros(3), torch.zeros(3, 5)))
    free = -beta * tilted.logsumexp((0, 1)).item()
    assert loss.item() == pytest.approx(free if regulariser == "kl" else free - beta * math.log(15), abs=1e-6)
    for seed in range(5):
        other = made(3, conditioned=True, seed=seed)
        with torch.no_grad():
            moved = of_logits(fixed.choice + 0.3 * other.choice, fixed.stated + 0.3 * other.stated)
        assert regularised(moved, label, ALL[name], beta, reference if regulariser == "kl" else None) > loss + 1e-4


@each_confidence
def test_entropy_and_divergence_are_those_of_the_draw(conditioned: bool) -> None:
    for seed in range(10):
        policy, other = (Policy.of(made(2 + seed % 4, conditioned=conditioned, seed=s, scale=3)) for s in (seed, seed + 100))
        p, q = (joint(one).exp().detach().flatten().numpy() for one in (policy, other))
        assert entropy(policy).item() == pytest.approx(scipy.stats.entropy(p))
        assert divergence(policy, other).item() == pytest.approx(scipy.stats.entropy(p, q))
        assert divergence(policy, other).item() > 0
        assert divergence(policy, policy).item() == 0


@each_confidence
def test_divergence_is_the_mean_of_its_estimator_over_draws(conditioned: bool) -> None:
    scores, reference = made(4, conditioned=conditioned, seed=1), made(4, conditioned=conditioned, seed=2)
    policy, other = Policy.of(scores), Policy.of(reference)
    rollouts = draw(policy, 30_000, torch.Generator().manual_seed(0))
    log_ratio = (joint(other) - joint(policy)).detach()[rollouts.choice, rollouts.stated]
    k3 = log_ratio.exp() - 1 - log_ratio  # Schulman's
    error = k3.std().item() / math.sqrt(len(k3))
    assert divergence(policy, other).item() == pytest.approx(k3.mean().item(), abs=4 * error)
    assert error < 0.02 * divergence(policy, other).item()


def test_impossible_options_leave_every_term_a_number() -> None:
    scores, reference = of_logits([0.5, -1e9, 0.0]), of_logits([0.0, -1e9, 1.0])
    policy = Policy.of(scores)
    for term in (divergence(policy, Policy.of(reference)), entropy(policy), *(exact(scores, 0, named) for named in ALL.values())):
        assert term.isfinite()
        assert all(part.isfinite().all() for part in gradient(term, scores))


# ---- the clip ----


@each_confidence
@pytest.mark.parametrize("clip", [1e-6, 0.2, 10.0])
def test_the_clip_does_nothing_to_the_policy_that_drew(clip: float, conditioned: bool) -> None:
    scores = made(4, conditioned=conditioned, seed=3)
    policy = Policy.of(scores, 2.0)
    rollouts = draw(policy, 8, torch.Generator().manual_seed(3))
    choice_paid, stated_paid = torch.linspace(-1, 2, 8).double(), torch.linspace(1, -0.5, 8).double()
    new = log_probs(policy, rollouts.choice, rollouts.stated)
    reinforce = -(choice_paid * new[0] + stated_paid * new[1]).mean()
    loss = sampled_loss(policy, rollouts, choice_paid, stated_paid, clip)
    assert pair_near(gradient(loss, scores), gradient(reinforce, scores), 1e-12)
    assert loss.item() == pytest.approx(-(choice_paid + stated_paid).mean().item())


@pytest.mark.parametrize("part", ["choice", "stated"])
@pytest.mark.parametrize(
    ("ratio", "paid", "clipped"),
    [(1.3, 1.5, True), (1.3, -1.5, False), (0.7, -1.5, True), (0.7, 1.5, False), (1.1, 1.5, False), (0.9, -1.5, False)],
)
def test_the_clip_stops_a_policy_that_went_far_enough(part: str, ratio: float, paid: float, clipped: bool) -> None:
    scores = made(3, conditioned=True, seed=6)
    policy = Policy.of(scores)
    then = drawn(policy, [1], [2])
    moved = replace(then, **{f"{part}_log_prob": getattr(then, f"{part}_log_prob") - math.log(ratio)})
    advantage = torch.tensor([paid], dtype=torch.float64)
    choice, stated = gradient(sampled_loss(policy, moved, advantage, advantage, 0.2), scores)
    new = log_probs(policy, then.choice, then.stated)
    plain = [gradient(-paid * log_prob.sum(), scores)[i] for i, log_prob in enumerate(new)]
    factors = {part: 0.0 if clipped else ratio}  # the other part has not moved
    assert near(choice, factors.get("choice", 1.0) * plain[0], 1e-9)
    assert near(stated, factors.get("stated", 1.0) * plain[1], 1e-9)


# ---- what is taught ----


@settings(max_examples=40)
@given(st.lists(st.floats(-8, 8), min_size=5, max_size=5), st.integers(0, 3), st.booleans())
def test_the_taught_confidence_costs_its_bias_and_its_variance(logits: list[float], label: int, conditioned: bool) -> None:
    choice = [0.1, 2.0, -0.3, 0.4]  # the answer is option 1
    rows = torch.tensor(logits, dtype=torch.float64)
    scores = of_logits(choice, torch.stack([rows.flip(0), rows, rows * 0, rows + 1]) if conditioned else rows)
    policy = Policy.of(scores)
    rho, correct = rows.softmax(0), float(label == 1)
    mean = rho @ policy.grid
    variance = rho @ (policy.grid - mean) ** 2
    found = supervised_loss(policy, label, "sft-ce", 0.0, 2.0)
    assert near(found, 2 * ((mean - correct) ** 2 + variance), 1e-9)
    on_choice, on_stated = gradient(found, scores)
    assert not on_choice.any()
    if conditioned:
        assert not on_stated[[0, 2, 3]].any()


@pytest.mark.parametrize("label", range(4))
def test_the_taught_choice_is_the_labels(label: int) -> None:
    scores = made(4, seed=label)
    policy = Policy.of(scores)
    assert near(choice_cross_entropy(policy, label), torch.nn.functional.cross_entropy(scores.choice[None], torch.tensor([label])))
    assert near(supervised_loss(policy, label, "sft-ce", 0.5, 0.0), 0.5 * choice_cross_entropy(policy, label))
    assert near(supervised_loss(policy, label, "sft-brier", 0.5, 0.0), 0.5 * half_brier(policy.choice, label))
    assert not gradient(supervised_loss(policy, label, "sft-ce", 0.5, 0.0), scores)[1].any()


@pytest.mark.parametrize(("p", "level"), [(0.05, 0.1), (0.33, 0.3), (0.5, 0.5), (0.65, 0.7), (1.0, 0.9)])
def test_the_taught_confidence_goes_to_the_level_nearest_to_the_truth(p: float, level: float) -> None:
    scores = of_logits([3.0, 0.0])
    for _ in range(200):
        loss = sum(
            share * supervised_loss(Policy.of(scores), label, "sft-brier", 1.0, 1.0) for label, share in ((0, p), (1, 1 - p))
        )
        step = gradient(loss, scores)[1]
        with torch.no_grad():
            scores.stated.sub_(50 * step)
    assert FIVE[int(scores.stated.argmax())] == level


# ---- as the trainer puts them together ----


@each_confidence
@each_reward
def test_the_trainers_sampled_loss_is_made_of_these_parts(name: str, conditioned: bool) -> None:
    named, scores = ALL[name], made(4, conditioned=conditioned, seed=5)
    recipe: Any = SimpleNamespace(paid=named, baseline="rloo", normalise_std=False, clip=0.2)
    policy, reported = Policy.of(scores, 2.0), Policy.of(scores)
    rollouts = draw(policy, 8, torch.Generator().manual_seed(2))
    correct = (rollouts.choice == 0).double()
    loss, found = Trainer._grpo(SimpleNamespace(recipe=recipe), policy, reported, rollouts, correct)  # type: ignore[arg-type]
    expected = paid_loss(policy, reported.choice.exp(), rollouts, correct, named)
    assert pair_near(gradient(loss, scores), gradient(expected, scores), 1e-12)
    paid = payoffs(policy, reported.choice.exp(), 0, named)[rollouts.choice, rollouts.stated]
    assert found["reward_mean"].item() == pytest.approx(paid.mean().item())
    assert found["zero_variance_group_frac"] == float(len(set(paid.tolist())) == 1)
    assert found["clip_frac"].item() == 0


def test_the_trainers_rewards_are_the_recipes() -> None:
    recipe = Recipe(reward="dist-rlcr", w_correct=0.5, w_calibration=1.75)
    assert recipe.paid == ALL["dist-rlcr"]


# ---- orders ----


@given(st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8)), min_size=2, max_size=6))
def test_the_divergence_of_two_orders_is_the_mean_of_both_ways(pairs: list[tuple[float, float]]) -> None:
    first, second = (torch.tensor(side, dtype=torch.float64).log_softmax(-1) for side in zip(*pairs, strict=True))
    found = order_divergence(first, second)
    p, q = first.exp().numpy(), second.exp().numpy()
    expected = (rel_entr(p, q).sum() + rel_entr(q, p).sum()) / 2
    assert float(found) == pytest.approx(float(expected), abs=1e-9)
    assert float(found) == pytest.approx(float(order_divergence(second, first)), abs=1e-12)
    assert float(order_divergence(first, first)) == 0.0
