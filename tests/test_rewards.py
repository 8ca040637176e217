"""Rewards and confidence grids by arithmetic: what is optimal, when it pays to be wrong; and which recipes make sense."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcd_lite.errors import UserError
from rlcd_lite.recipe import Recipe
from rlcd_lite.rewards import Reward, RewardName, confidence_grid, reward
from rlcd_lite.settings import Grid

GRIDS = get_args(Grid)
NAMES = get_args(RewardName)
FIVE = (0.1, 0.3, 0.5, 0.7, 0.9)

probability = st.floats(0, 1)
a_grid = st.tuples(st.sampled_from(GRIDS), st.integers(2, 255)).map(lambda pair: confidence_grid(*pair))


def paid(named: Reward, correct: float, confidence: float) -> float:
    """r(a, c) of a reward that does not look at probabilities."""
    return named.correctness(correct, math.nan if not named.distribution else 0.0) + named.calibration(correct, confidence)


def values(named: Reward, p: Any, grid: Any) -> np.ndarray:
    """Expected reward of an answer that is right with probability p, at each level of the grid: (…, C)."""
    grid, p = np.asarray(grid), np.asarray(p)[..., None]
    return p * paid(named, 1.0, grid) + (1 - p) * paid(named, 0.0, grid)


def best(named: Reward, p: Any, grid: Any = FIVE) -> np.ndarray:
    """V(p): that of the best level."""
    return values(named, p, grid).max(-1)


# ---- grids ----


@pytest.mark.parametrize(
    ("grid", "options", "expected"),
    [
        ("5", 2, FIVE),
        ("5", 77, FIVE),
        ("10", 2, (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)),
        ("10", 4, (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)),
        ("per-field", 2, (0.55, 0.65, 0.75, 0.85, 0.95)),
        ("per-field", 4, (0.325, 0.475, 0.625, 0.775, 0.925)),
    ],
)
def test_the_levels_of_a_grid(grid: Grid, options: int, expected: tuple[float, ...]) -> None:
    assert confidence_grid(grid, options) == expected


def test_every_grid_ascends_in_equal_cells_between_0_and_1() -> None:
    for grid, options in product(GRIDS, range(2, 256)):
        levels = np.array(confidence_grid(grid, options))
        low = 1 / options if grid == "per-field" else 0.0
        half = (1 - low) / len(levels) / 2
        assert 0 < levels[0] < levels[-1] < 1  # none holds 0
        np.testing.assert_allclose(levels, low + half * (2 * np.arange(len(levels)) + 1), rtol=0, atol=1e-6)


def test_an_unknown_grid_is_refused() -> None:
    with pytest.raises(UserError, match="confidence grid is 'perfield': did you mean 'per-field'"):
        confidence_grid("perfield", 4)  # type: ignore[arg-type]


def test_on_a_grid_with_0_a_wrong_answer_costs_as_little_as_a_guess() -> None:
    p = np.linspace(0, 0.149, 50)
    assert best(reward("rlcr"), p, (0.0, *FIVE[1:])) == pytest.approx(np.zeros(50), abs=1e-15)
    assert (np.diff(best(reward("rlcr"), p, FIVE)) > 0).all()


# ---- rewards by name ----

TABLE = {  # name, decoupled → correctness, calibration, distribution, decoupled
    ("rlcr", False): (2, 3, False, False),
    ("rlcr", True): (2, 3, False, True),
    ("brier", False): (0, 3, False, False),
    ("brier", True): (2, 3, False, True),
    ("binary", False): (2, 0, False, False),
    ("binary", True): (2, 0, False, True),
    ("dist-brier", False): (2, 0, True, True),
    ("dist-brier", True): (2, 0, True, True),
    ("dist-rlcr", False): (2, 3, True, True),
    ("dist-rlcr", True): (2, 3, True, True),
}


@pytest.mark.parametrize(("name", "decouple"), list(product(NAMES, [False, True])))
def test_the_parts_of_a_named_reward(name: RewardName, decouple: bool) -> None:
    w, b, distribution, decoupled = TABLE[name, decouple]
    assert reward(name, decouple=decouple, w_correct=2, w_calibration=3) == Reward(w, b, distribution, decoupled)
    assert reward(name, decouple=decouple) == Reward(min(w, 1), min(b, 1), distribution, decoupled)  # both weights are 1


def test_decoupled_brier_is_decoupled_rlcr() -> None:
    assert reward("brier", decouple=True) == reward("rlcr", decouple=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dist_brier", "reward is 'dist_brier': did you mean 'dist-brier'"),
        ("rclr", "did you mean 'rlcr'"),
        ("log", "reward is 'log': use one of rlcr, brier, binary, dist-brier, dist-rlcr"),
    ],
)
def test_an_unknown_reward_is_refused(name: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        reward(name)


@pytest.mark.parametrize(
    ("name", "expected"),  # right at 0.9, wrong at 0.1, right at 0.1, wrong at 0.9
    [
        ("rlcr", (0.99, -0.01, 0.19, -0.81)),
        ("brier", (-0.01, -0.01, -0.81, -0.81)),
        ("binary", (1, 0, 1, 0)),
    ],
)
def test_the_extremes_of_a_reward(name: RewardName, expected: tuple[float, ...]) -> None:
    found = [paid(reward(name), correct, level) for correct, level in ((1, 0.9), (0, 0.1), (1, 0.1), (0, 0.9))]
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["dist-brier", "dist-rlcr"])
def test_a_distribution_reward_takes_the_probability_off_the_correctness(name: RewardName) -> None:
    named = reward(name, w_correct=2)
    assert (named.correctness(1, 0.3), named.correctness(0, 0.3)) == pytest.approx((1.4, -0.6))
    assert reward("rlcr", w_correct=2).correctness(1, 0.3) == 2


# ---- the optimum of rlcr ----


@pytest.mark.parametrize(("p", "value", "level"), [(0.25, 0.06, 0.3), (0.5, 0.25, 0.5), (0.75, 0.56, 0.7), (1, 0.99, 0.9)])
def test_the_value_of_an_answer(p: float, value: float, level: float) -> None:
    assert best(reward("rlcr"), p) == pytest.approx(value)
    assert FIVE[values(reward("rlcr"), p, FIVE).argmax()] == level
    assert 2 * level * p - level**2 == pytest.approx(value)


@given(probability, a_grid, st.sampled_from(["rlcr", "brier", "dist-rlcr"]), st.floats(0.1, 10))
def test_the_best_level_is_the_one_nearest_to_the_probability(
    p: float, grid: tuple[float, ...], name: RewardName, weight: float
) -> None:
    stated = grid[values(reward(name, w_calibration=weight), p, grid).argmax()]
    assert abs(stated - p) == pytest.approx(min(abs(level - p) for level in grid), abs=1e-9)


@given(probability, probability, a_grid)
def test_the_likelier_an_answer_the_more_rlcr_pays_for_it(p: float, q: float, grid: tuple[float, ...]) -> None:
    p, q = sorted((p, q))
    assert best(reward("rlcr"), q, grid) - best(reward("rlcr"), p, grid) >= 2 * grid[0] * (q - p) - 1e-12
    assert reward("rlcr").slope(grid[0]) == pytest.approx(2 * grid[0])


@given(probability, st.floats(0, 5), st.floats(0, 5))
def test_the_slope_is_what_a_level_gains_from_a_right_answer(c: float, w: float, b: float) -> None:
    named = Reward(w, b)
    assert named.slope(c) == pytest.approx(paid(named, 1, c) - paid(named, 0, c), abs=1e-12)


# ---- what the choice is taught ----


@pytest.mark.parametrize("mean", [0.1, 0.31, 0.5, 0.69, 0.9])
def test_the_choice_multiplier(mean: float) -> None:
    found = {name: reward(name).choice_multiplier(mean) for name in NAMES}
    assert found == pytest.approx({"rlcr": 2 * mean, "brier": 2 * mean - 1, "binary": 1, "dist-brier": 1, "dist-rlcr": 1})
    assert Reward(0.7, 1.9).choice_multiplier(mean) == pytest.approx(0.7 - 1.9 + 2 * 1.9 * mean)
    assert Reward(0.7, 1.9, decoupled=True).choice_multiplier(mean) == 0.7


@given(st.floats(0.001, 0.999))
def test_only_brier_alone_teaches_wrong_answers_and_only_below_one_half(mean: float) -> None:
    assert math.copysign(1, reward("brier").choice_multiplier(mean)) == math.copysign(1, mean - 0.5)
    for name, decouple in product(NAMES, [False, True]):
        if (name, decouple) != ("brier", False):
            assert reward(name, decouple=decouple).choice_multiplier(mean) > 0


# ---- the Brier trap ----


@pytest.mark.parametrize("grid", [FIVE, confidence_grid("10", 4)])
def test_brier_alone_pays_for_being_predictable_right_or_wrong(grid: tuple[float, ...]) -> None:
    p = np.linspace(0, 1, 1001)
    value = best(reward("brier"), p, grid)
    assert value == pytest.approx(value[::-1], abs=1e-12)
    assert best(reward("brier"), [0, 0.5, 1]) == pytest.approx([-0.01, -0.25, -0.01])


def posteriors(options: int, count: int = 20_000) -> np.ndarray:
    """Ascending: the first option is the least likely."""
    return np.sort(np.random.default_rng(options).dirichlet(np.ones(options), count), axis=1)


def test_brier_alone_does_not_tell_two_options_apart() -> None:
    value = best(reward("brier"), posteriors(2))
    assert value[:, 0] == pytest.approx(value[:, 1], abs=1e-12)


@pytest.mark.parametrize("options", [3, 4, 77])
def test_brier_alone_prefers_the_least_likely_of_three_options_or_more(options: int) -> None:
    p = posteriors(options)
    least, most = best(reward("brier"), p[:, 0]), best(reward("brier"), p[:, -1])
    assert (least > most).all()
    assert (least >= best(reward("brier"), p).max(1)).all()


@pytest.mark.parametrize("options", [2, 3, 4, 77])
def test_rlcr_prefers_the_most_likely_option(options: int) -> None:
    value = best(reward("rlcr"), posteriors(options))
    assert (value.argmax(1) == options - 1).all()
    assert (value[:, -1] > value[:, -2]).all()


# ---- weights ----


WEIGHTED_GRIDS = [
    FIVE,
    confidence_grid("10", 2),
    *(confidence_grid("per-field", options) for options in (2, 3, 4, 77)),
    tuple((np.arange(500) + 0.5) / 500),  # as good as continuous: w ≥ b
]


@pytest.mark.parametrize("grid", WEIGHTED_GRIDS)
def test_it_pays_to_be_right_where_the_weights_say_so(grid: tuple[float, ...]) -> None:
    edge = max(0.0, 1 - 2 * grid[0])
    p = np.linspace(0, 1, 2001)
    for share in (0.0, *np.linspace(0.02, 1.3, 33)):
        if abs(share - edge) < 0.01:
            continue
        weighted = reward("rlcr", w_correct=1.7 * share, w_calibration=1.7)
        rises = bool((np.diff(best(weighted, p, grid)) > -1e-12).all())
        assert rises == (share > 1 - 2 * grid[0]) == weighted.pays_for_being_right(grid[0])
        assert reward("rlcr", decouple=True, w_correct=1.7 * share, w_calibration=1.7).pays_for_being_right(grid[0])


def test_a_sure_wrong_answer_beats_an_honest_guess_where_calibration_weighs_too_much() -> None:
    heavy = reward("rlcr", w_correct=0.5)
    assert best(heavy, 0) == pytest.approx(-0.01)
    assert best(heavy, 0.3) == pytest.approx(0.3 * 0.5 - 0.21)
    assert not heavy.pays_for_being_right(0.1)


@pytest.mark.parametrize(("lowest", "tenths"), [(0.1, 8), (0.05, 9)])
def test_weights_right_at_the_edge_are_enough_whatever_their_rounding(lowest: float, tenths: int) -> None:
    for hundredths in range(1, 1001):
        b = hundredths / 100
        assert reward("rlcr", w_correct=tenths * hundredths / 1000, w_calibration=b).pays_for_being_right(lowest)
        assert not reward("rlcr", w_correct=(tenths * hundredths - 0.01) / 1000, w_calibration=b).pays_for_being_right(lowest)


# ---- recipes ----


@pytest.mark.parametrize(
    ("chosen", "grid", "options", "expected"),
    [
        ({}, "5", 4, []),
        ({"w_correct": 0.8}, "5", 4, []),
        ({"w_correct": 0.79}, "5", 4, ["--w-correct 0.79 is less than 0.8 × --w-calibration 1"]),
        ({"w_calibration": 2}, "5", 4, ["--w-correct 1 is less than 0.8 × --w-calibration 2"]),
        ({"w_correct": 0.8}, "10", 4, ["--w-correct 0.8 is less than 0.9 × --w-calibration 1"]),
        ({"w_correct": 0.09, "w_calibration": 0.1}, "10", 4, []),
        ({"w_correct": 0.01}, "per-field", 2, []),
        ({"w_correct": 0.34}, "per-field", 4, ["--w-correct 0.34 is less than 0.35 × --w-calibration 1"]),
        ({"w_correct": 0.36}, "per-field", 4, []),
        ({"w_correct": 0.7}, "per-field", 77, ["--w-correct 0.7 is less than 0.78 × --w-calibration 1"]),
        ({"w_correct": 0.1, "decouple": True}, "5", 4, []),
        ({"w_correct": 0.1, "reward": "dist-rlcr"}, "5", 4, []),
        ({"w_correct": 0.1, "reward": "binary"}, "5", 4, []),
        ({"w_correct": 0.1, "objective": "sft-brier"}, "5", 4, []),
        ({"reward": "brier"}, "5", 4, ["this is there to show the trap"]),
        ({"reward": "brier", "decouple": True}, "5", 4, []),
        ({"normalise_std": True}, "5", 4, ["--normalise-std raises the confidence"]),
        ({"warmup_steps": 0}, "5", 4, ["without --warmup-steps"]),
        ({"warmup_steps": 0, "prior_correction": True}, "5", 4, ["without --warmup-steps"]),
        ({"feedback": "bandit"}, "5", 4, ["without --warmup-steps"]),
        ({"objective": "sft-ce"}, "5", 4, []),
        ({"reward": "brier", "normalise_std": True}, "5", 4, ["to show the trap", "--normalise-std raises"]),
    ],
)
def test_doubts_are_sentences(chosen: dict[str, Any], grid: Grid, options: int, expected: list[str]) -> None:
    recipe = Recipe(**chosen)
    recipe.check()
    found = recipe.doubts(grid, options, warm=False)
    assert len(found) == len(expected)
    for sentence, words in zip(found, expected, strict=True):
        assert words in sentence
        assert sentence.endswith(".")


def test_the_default_recipe_is_sound() -> None:
    Recipe().check()
    assert Recipe().paid == reward("rlcr")
    assert Recipe().doubts("5", 4, False) == Recipe().doubts("10", 77, False) == Recipe().doubts("per-field", 255, True) == []


@pytest.mark.parametrize(
    "chosen",
    [
        {"reward": "dist-brier", "estimator": "exact"},
        {"reward": "brier", "decouple": True, "rollouts": 2, "baseline": "rloo", "rollout_temp": 2},
        {"objective": "sft-ce"},
        {"objective": "sft-brier", "warmup_steps": 0},
        {"feedback": "bandit", "warmup_steps": 0, "reward": "dist-rlcr"},
        {"estimator": "exact", "beta_kl": 0.1, "entropy": 0.01, "rollout_temp": 2},
        {"inner_epochs": 2, "clip": 0.1},
        {"steps": 1},
        {"steps": 10, "warmup_steps": 10},
        {"eval_every": 0},
        {"patience": 1},
        {"w_correct": 0},
        {"w_calibration": 0},
    ],
)
def test_sound_recipes_pass(chosen: dict[str, Any]) -> None:
    Recipe(**chosen).check()


def test_a_recipe_pays_by_its_own_weights() -> None:
    recipe = Recipe(reward="rlcr", decouple=True, w_correct=0.5, w_calibration=0.25)
    assert recipe.paid == Reward(0.5, 0.25, decoupled=True)


# ---- phases ----


@pytest.mark.parametrize(
    ("chosen", "warmup"),
    [
        ({}, 60),
        ({"steps": 1000}, 300),
        ({"steps": 1}, 0),
        ({"warmup_steps": 7}, 7),
        ({"warmup_steps": 0}, 0),
        ({"feedback": "bandit"}, 0),
        ({"objective": "sft-ce"}, 0),
        ({"objective": "sft-brier"}, 0),
    ],
)
def test_warm_up_is_three_in_ten_steps_unless_there_is_nothing_to_warm_up_with(chosen: dict[str, Any], warmup: int) -> None:
    recipe = Recipe(**chosen)
    recipe.check()
    assert recipe.warmup == warmup
    phases = [recipe.phase(step) for step in range(1, recipe.steps + 1)]
    assert phases == ["warm-up"] * warmup + [recipe.objective] * (recipe.steps - warmup)


@pytest.mark.parametrize(
    ("chosen", "drawing"), [({}, 140), ({"estimator": "exact"}, 0), ({"objective": "sft-ce"}, 0), ({"warmup_steps": 0}, 200)]
)
def test_answers_are_drawn_in_sampled_rl_alone(chosen: dict[str, Any], drawing: int) -> None:
    recipe = Recipe(**chosen)
    assert [recipe.draws(step) for step in range(1, 201)] == [False] * (200 - drawing) + [True] * drawing


# ---- learning rate ----


def test_the_learning_rate_rises_then_falls_as_a_cosine() -> None:
    recipe = Recipe(steps=200, lr=2e-4)
    rise = [recipe.lr_at(step) for step in range(1, 11)]
    assert rise == pytest.approx([2e-5 * step for step in range(1, 11)])
    assert recipe.lr_at(105) == pytest.approx(2e-4 * 0.55)  # half way between the peak and a tenth of it
    assert recipe.lr_at(10 + 190 // 4) == pytest.approx(2e-4 * (0.1 + 0.9 * (1 + math.cos(math.pi * 47 / 190)) / 2))
    assert recipe.lr_at(200) == pytest.approx(2e-5)


@given(st.integers(1, 1500), st.floats(1e-7, 1))
def test_the_learning_rate_is_never_0_or_above_its_peak(steps: int, lr: float) -> None:
    rates = [Recipe(steps=steps, lr=lr).lr_at(step) for step in range(1, steps + 1)]
    rise = max(5, round(0.05 * steps))
    assert min(rates) > 0
    assert max(rates) <= lr * (1 + 1e-12)
    assert rates[:rise] == sorted(rates[:rise])
    assert rates[rise - 1 :] == sorted(rates[rise - 1 :], reverse=True)
    if steps > rise:
        assert rates[rise - 1] == pytest.approx(lr)
        assert min(rates[rise - 1 :]) == rates[-1] == pytest.approx(0.1 * lr)


# ---- what is refused ----

NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"objective": "sft"}, "--objective is 'sft': did you mean 'sft-ce'|--objective is 'sft': did you mean 'sft-brier'"),
    ({"reward": "rlrc"}, "--reward is 'rlrc': did you mean 'rlcr'"),
    ({"estimator": "exakt"}, "--estimator is 'exakt': did you mean 'exact'"),
    ({"baseline": "loo"}, "--baseline is 'loo': did you mean 'rloo'"),
    ({"feedback": "bandits"}, "--feedback is 'bandits': did you mean 'bandit'"),
    ({"best_metric": "reward"}, "--best-metric is 'reward': use one of nll_ts"),
    ({"precision": "fp16"}, "--precision is 'fp16': did you mean"),
    *(({name: 0}, f"--{name.replace('_', '-')} is 0: it must be at least 1") for name in (
        "steps", "batch", "micro_batch", "inner_epochs", "lora_rank", "lora_alpha", "train_n", "patience", "checkpoint_every"
    )),
    ({"rollouts": 1}, "--rollouts is 1: it must be at least 2"),
    ({"eval_n": 3}, "--eval-n is 3: it must be at least 4"),
    *(({name: -1}, f"--{name.replace('_', '-')} is -1: it must be at least 0") for name in (
        "warmup_steps", "eval_every", "w_correct", "w_calibration", "beta_kl", "entropy", "weight_decay"
    )),
    *(({name: value}, f"--{name.replace('_', '-')} is {value}: it must be above 0 and finite") for name, value in product(
        ("lr", "rollout_temp", "max_grad_norm", "clip"), (0, -1, math.inf, math.nan)
    )),
    *(({name: value}, f"--{name.replace('_', '-')} is {value}: it must be at least 0") for name, value in product(
        ("w_correct", "w_calibration", "beta_kl", "entropy", "weight_decay"), (math.inf, math.nan)
    )),
    ({"warmup_steps": 201}, "--warmup-steps is 201, more than the 200 of --steps"),
    ({"patience": 2, "eval_every": 0}, "--patience counts evaluations and --eval-every 0 makes none"),
    ({"clip": 0.1}, "--clip is 0.1 and does nothing with one inner epoch: raise --inner-epochs"),
    ({"w_correct": 0, "w_calibration": 0}, "are both 0"),
    ({"reward": "brier", "w_calibration": 0}, "nothing to pay for"),
    ({"reward": "binary", "w_correct": 0}, "nothing to pay for"),
    ({"reward": "dist-brier", "w_correct": 0}, "nothing to pay for"),
]  # fmt: skip
SAMPLING = {"rollouts": 4, "baseline": "rloo", "normalise_std": True, "inner_epochs": 2, "clip": 0.1}
RL = {
    "reward": "brier", "decouple": True, "estimator": "exact", "feedback": "bandit", "rollout_temp": 2.0, "beta_kl": 0.1,
    "entropy": 0.1, **SAMPLING,
}  # fmt: skip


@pytest.mark.parametrize(("chosen", "words"), NONSENSE)
def test_a_recipe_out_of_range_is_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Recipe(**chosen).check()


@pytest.mark.parametrize("objective", ["sft-ce", "sft-brier"])
@pytest.mark.parametrize("name", list(RL))
def test_supervision_refuses_what_only_rl_reads(objective: Any, name: str) -> None:
    flag = name.replace("_", "-")
    with pytest.raises(UserError, match=f"--objective {objective} is taught the label and draws nothing: leave --{flag} out"):
        Recipe(objective=objective, **{name: RL[name]}).check()


@pytest.mark.parametrize("objective", ["sft-ce", "sft-brier"])
def test_supervision_refuses_a_warm_up(objective: Any) -> None:
    with pytest.raises(UserError, match=f"--warmup-steps is 5 and --objective {objective} is supervised anyway"):
        Recipe(objective=objective, warmup_steps=5).check()


@pytest.mark.parametrize("name", list(SAMPLING))
def test_the_exact_estimator_refuses_what_only_drawing_reads(name: str) -> None:
    with pytest.raises(UserError, match=f"--estimator exact draws nothing: leave --{name.replace('_', '-')} out"):
        Recipe(estimator="exact", **{name: SAMPLING[name]}).check()


def test_bandit_feedback_refuses_whatever_needs_the_label() -> None:
    bandit = Recipe(feedback="bandit")
    bandit.check()
    with pytest.raises(UserError, match="--estimator exact needs the label of every text and --feedback bandit hides it"):
        replace(bandit, estimator="exact").check()
    with pytest.raises(UserError, match="--warmup-steps is 10, which are taught the label, and --feedback bandit hides it"):
        replace(bandit, warmup_steps=10).check()
    with pytest.raises(UserError, match="--objective sft-ce is taught the label"):
        replace(bandit, objective="sft-ce").check()
