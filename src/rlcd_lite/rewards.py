"""What a decision is worth: the confidence grid, and rewards of an answer and of the confidence stated in it. Pure maths.

Notation, used by `rlcd_lite.objectives` too: option ``a`` with probability ``p_a``, right option ``y``, stated confidence ``c``
from the grid, weights ``w`` of correctness and ``b`` of calibration. Every reward has the form

    r(a, c) = w · (1[a = y] − p_a · distribution) − b · (c − 1[a = y])²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlcd_lite.settings import Grid, check_choice

RewardName = Literal["rlcr", "brier", "binary", "dist-brier", "dist-rlcr"]
Value = Any  # a number, an array or a tensor: the formulas use arithmetic alone


def confidence_grid(grid: Grid, options: int) -> tuple[float, ...]:
    """What the confidence labels stand for, ascending, in (0, 1), for a field with ``options`` options.

    ``5``: 0.1, 0.3, …, 0.9, the seed's. ``10``: 0.05, 0.15, …, 0.95. ``per-field``: the midpoints of five equal cells of
    [1/options, 1], because the most probable of K options is right with probability 1/K at least.

    No grid holds 0: there an answer that is surely wrong would cost nothing, and guessing neither (`Reward.slope`).
    """
    check_choice(grid, Grid, "confidence grid")
    cells = 10 if grid == "10" else 5
    low = 1 / options if grid == "per-field" else 0.0
    return tuple(round(low + (1 - low) * (2 * i + 1) / (2 * cells), 6) for i in range(cells))


@dataclass(frozen=True)
class Reward:
    """A reward by its parts (see the top of this file); `reward` makes the named ones.

    ``distribution``: p_a, detached, is subtracted from the correctness of answer a. The expectation over a ~ p then has the
    gradient of −½ Σ_k (p_k − 1[k = y])², half the negative Brier score (Brier 1950) of the whole distribution, whose optimum is
    p = P(y | text). Without it the expectation is linear in p, and its optimum puts everything on one option.

    ``decoupled``: the choice is paid for the first term alone, the confidence for the second alone.
    """

    w: float
    b: float
    distribution: bool = False
    decoupled: bool = False

    def correctness(self, correct: Value, p: Value) -> Value:
        """The first term: of an answer that is right (1) or wrong (0) and had the probability ``p``."""
        return self.w * (correct - p) if self.distribution else self.w * correct

    def calibration(self, correct: Value, confidence: Value) -> Value:
        """The second term, −b times the Brier score (Brier 1950) of the confidence; 0 at best."""
        return -self.b * (confidence - correct) ** 2

    def choice_multiplier(self, mean_confidence: float) -> float:
        """What a right answer earns more than a wrong one at the mean confidence E[c]: w − b + 2b·E[c]; decoupled: w.

        Where the confidence does not see the choice, the gradient of the expected reward on the choice's logits is this number
        times that of the accuracy: 2E[c] for rlcr, 2E[c] − 1 for brier, 1 for binary. Below 0 it teaches wrong answers: the Brier
        trap, which needs E[c] < ½.
        """
        return self.w if self.decoupled else self.slope(mean_confidence)

    def slope(self, confidence: float) -> float:
        """dV/dp = w − b + 2bc of the value V(p) = p·r(right, c) + (1 − p)·r(wrong, c) of an answer right with probability p."""
        return self.w - self.b + 2 * self.b * confidence

    def pays_for_being_right(self, lowest: float) -> bool:
        """Whether a likelier answer is worth more at every confidence of a grid that starts at ``lowest``: w ≥ b·(1 − 2·lowest).

        With V(p) = max_c of the above, V is increasing if and only if its slope in the lowest cell is not negative. Damani et al.
        (2025, arXiv 2507.16806) prove this for w = b; on the grid 0.1 … 0.9, w ≥ 0.8 b is enough.
        """
        return self.decoupled or self.slope(lowest) >= -1e-9 * self.b  # w = 0.9 b is enough for 0.09 and 0.1 too


def reward(name: RewardName, *, decouple: bool = False, w_correct: float = 1.0, w_calibration: float = 1.0) -> Reward:
    """A named reward.

    ``rlcr``: 1[a = y] − (c − 1[a = y])² (Damani et al. 2025). ``brier``: its second term alone. ``binary``: its first alone.
    ``dist-brier``: 1[a = y] − p_a. ``dist-rlcr``: the choice is paid 1[a = y] − p_a and the confidence −(c − 1[a = y])². It is
    always decoupled: a Brier term on the choice would move its optimum away from P(y | text).

    Decoupled, ``brier`` pays the choice for correctness, as the seed does, and so equals ``rlcr`` decoupled.
    """
    check_choice(name, RewardName, "reward")
    distribution = name in ("dist-brier", "dist-rlcr")
    decoupled = decouple or distribution
    w = 0.0 if name == "brier" and not decoupled else w_correct
    b = 0.0 if name in ("binary", "dist-brier") else w_calibration
    return Reward(w, b, distribution, decoupled)
