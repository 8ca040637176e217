"""How to train: every choice of a run that changes what is learned. Free of torch; `rlcd_lite.trainer` carries it out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlcd_lite.errors import UserError, shorten
from rlcd_lite.rewards import Reward, RewardName, confidence_grid, reward
from rlcd_lite.settings import Grid, check_choice

Objective = Literal["rl", "sft-ce", "sft-brier"]
Estimator = Literal["grpo", "exact"]
Baseline = Literal["mean", "rloo"]
Feedback = Literal["full", "bandit"]
Precision = Literal["auto", "fp32", "bf16"]
BestMetric = Literal["nll_ts", "nll", "acc", "softmax_ts_brier", "softmax_brier", "stated_brier", "stated_mean_brier"]

WARMUP_SHARE = 0.3  # of the steps, where --warmup-steps is not given
LR_FLOOR = 0.1  # the cosine's end, as a share of --lr
PRIOR_CONTEXTS = 64


@dataclass
class Recipe:
    steps: int = 200
    """Batches to learn from, the supervised warm-up included."""
    batch: int = 8
    """Examples of a step, per process."""
    micro_batch: int | None = None
    """Examples of one forward pass; fewer need less memory and give the same step. All of --batch if not given."""
    objective: Objective = "rl"
    """rl is paid by --reward; sft-ce and sft-brier are taught the label, by cross-entropy or by the Brier score."""
    reward: RewardName = "rlcr"
    """rlcr: 1[right] − (conf − 1[right])²; brier, binary: its second, first term; dist-brier: 1[right] − p; dist-rlcr: both."""
    decouple: bool = False
    """Pay the choice for correctness alone and the confidence for its Brier score alone."""
    w_correct: float = 1.0
    """Weight of correctness."""
    w_calibration: float = 1.0
    """Weight of the confidence's Brier score."""
    estimator: Estimator = "grpo"
    """grpo draws --rollouts answers; exact sums over all answers and confidences, without noise."""
    rollouts: int = 8
    """G: answers drawn per field and text, all from one forward pass."""
    rollout_temp: float = 1.0
    """Temperature of the policy that is drawn from and trained."""
    baseline: Baseline = "mean"
    """What a reward is compared with: the mean of its group, or of the group's other members (rloo)."""
    normalise_std: bool = False
    """Divide advantages by the group's standard deviation. Not proper: it raises confidence whatever the truth."""
    inner_epochs: int = 1
    """Updates from the same draws; from the second one on, --clip holds them near the policy that drew."""
    clip: float = 0.2
    """PPO's ε."""
    beta_kl: float = 0.0
    """Weight of the exact KL divergence from the base model (adapter off)."""
    entropy: float = 0.0
    """Weight of the policy's entropy, which is paid for."""
    feedback: Feedback = "full"
    """bandit: the learner sees only whether the answers that it drew were right, never the label."""
    warmup_steps: int | None = None
    """Supervised steps on the choice alone before RL. If not given: three in ten of --steps, none with bandit feedback."""
    prior_correction: bool = False
    """Subtract each field's mean label logits over 64 training texts from the policy, and keep them with the adapter."""
    shuffle_options: bool = False
    """Show the options of every field in a fresh order in every example."""
    w_order: float = 0.0
    """Weight of the divergence between the answers in two orders of the options, so that one order is enough afterwards."""
    w_rules: float = 0.0
    """Weight of -log P(the schema's rules hold), the semantic loss, under the product of the fields' distributions."""
    lr: float = 3e-4
    """Peak learning rate: reached over 5 % of the steps, then a cosine down to a tenth."""
    weight_decay: float = 0.0
    """AdamW's."""
    max_grad_norm: float = 1.0
    """Clip the gradient to this norm."""
    lora_rank: int = 16
    """Rank of the LoRA adapter on all linear layers (never on embeddings or head)."""
    lora_alpha: int = 32
    """Its scale is alpha / rank."""
    train_n: int | None = None
    """Training examples, seen again in a fresh order when they run out. If not given: all, or for synthetic as many as needed."""
    eval_every: int = 50
    """Steps between evaluations on held-out examples; 0 leaves them out."""
    eval_n: int = 100
    """Held-out examples of an evaluation, from the calibration split; half as many again fit its temperatures."""
    best_metric: BestMetric = "nll_ts"
    """What adapter-best/ is chosen by; no reward is among them, because a reward can rise while decisions get worse."""
    patience: int | None = None
    """Stop after this many evaluations without a better one. Never if not given."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last two are kept."""
    precision: Precision = "auto"
    """bf16 computes under autocast with the weights as they are; auto is bf16 on CUDA and fp32 elsewhere."""
    seed: int = 0
    """Seed of the adapter, the data's order and the draws."""

    @property
    def supervised(self) -> bool:
        return self.objective != "rl"

    @property
    def warmup(self) -> int:
        """Supervised steps before RL."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return 0 if self.supervised or self.feedback == "bandit" else round(WARMUP_SHARE * self.steps)

    @property
    def paid(self) -> Reward:
        return reward(self.reward, decouple=self.decouple, w_correct=self.w_correct, w_calibration=self.w_calibration)

    def phase(self, step: int) -> str:
        """What step 1, 2, … does: ``warm-up``, ``rl``, or the supervised objective's name."""
        return "warm-up" if step <= self.warmup else self.objective

    def draws(self, step: int) -> bool:
        """Whether step 1, 2, … learns from drawn answers."""
        return self.phase(step) == "rl" and self.estimator == "grpo"

    def lr_at(self, step: int) -> float:
        """Learning rate of step 1, 2, …: linear up over 5 % of the steps (5 at least), then half a cosine down to a tenth."""
        rise = max(5, round(0.05 * self.steps))
        if step <= rise:
            return self.lr * step / rise
        done = (step - rise) / max(1, self.steps - rise)
        return self.lr * (LR_FLOOR + (1 - LR_FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))

    def check(self) -> None:
        """`UserError` for a value out of range, or for options that make no sense together."""
        for name, choices in (
            ("objective", Objective),
            ("reward", RewardName),
            ("estimator", Estimator),
            ("baseline", Baseline),
            ("feedback", Feedback),
            ("best_metric", BestMetric),
            ("precision", Precision),
        ):
            check_choice(getattr(self, name), choices, _flag(name))
        for name in (
            "steps",
            "batch",
            "micro_batch",
            "inner_epochs",
            "lora_rank",
            "lora_alpha",
            "train_n",
            "patience",
            "checkpoint_every",
        ):
            self._at_least(name, 1)
        for name, least in (("rollouts", 2), ("eval_n", 4)):
            self._at_least(name, least)
        for name in (
            "warmup_steps",
            "eval_every",
            "w_correct",
            "w_calibration",
            "w_order",
            "w_rules",
            "beta_kl",
            "entropy",
            "weight_decay",
        ):
            self._at_least(name, 0)
        for name in ("lr", "rollout_temp", "max_grad_norm", "clip"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UserError(f"{_flag(name)} is {shorten(value)}: it must be above 0 and finite.")
        if self.warmup > self.steps:
            raise UserError(f"--warmup-steps is {self.warmup}, more than the {self.steps} of --steps: leave some for the rest.")
        if self.patience is not None and not self.eval_every:
            raise UserError("--patience counts evaluations and --eval-every 0 makes none: give one of the two.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        defaults = Recipe()
        sampling = ("rollouts", "baseline", "normalise_std", "inner_epochs", "clip")
        rl = ("reward", "decouple", "estimator", "feedback", "rollout_temp", "beta_kl", "entropy", *sampling)
        if self.supervised:
            self._refuse(rl, f"--objective {self.objective} is taught the label and draws nothing")
            if self.warmup:
                raise UserError(
                    f"--warmup-steps is {self.warmup} and --objective {self.objective} is supervised anyway: leave it out."
                )
        if self.estimator == "exact":
            self._refuse(sampling, "--estimator exact draws nothing")
        if self.feedback == "bandit":
            if self.estimator == "exact":
                raise UserError("--estimator exact needs the label of every text and --feedback bandit hides it: use grpo.")
            if self.warmup:
                raise UserError(
                    f"--warmup-steps is {self.warmup}, which are taught the label, and --feedback bandit hides it: "
                    f"warm up in a run of its own and give its adapter as --adapter."
                )
        if self.inner_epochs == 1 and self.clip != defaults.clip:
            raise UserError(f"--clip is {self.clip} and does nothing with one inner epoch: raise --inner-epochs or leave it out.")
        if self.objective == "rl" and self.reward in ("binary", "dist-brier"):
            self._refuse(("w_calibration",), f"--reward {self.reward} has no term for the confidence")
        if self.objective == "rl" and self.reward == "brier" and not self.decouple:
            self._refuse(("w_correct",), "--reward brier without --decouple has no term for correctness")
        if not (self.w_correct or self.w_calibration):
            raise UserError("--w-correct and --w-calibration are both 0, which leaves nothing to learn: raise one of them.")
        if self.objective == "rl" and not (self.paid.w or self.paid.b):
            raise UserError(f"the weights leave --reward {self.reward} nothing to pay for: raise --w-correct or --w-calibration.")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        """`UserError` for the first of ``names`` that is not as it is by default."""
        for name in names:
            if getattr(self, name) != getattr(Recipe(), name):
                raise UserError(f"{why}: leave {_flag(name)} out.")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not (value >= least and math.isfinite(value)):
            raise UserError(f"{_flag(name)} is {shorten(value)}: it must be at least {least}.")

    def doubts(self, grid: Grid, options: int, warm: bool) -> list[str]:
        """What is allowed and probably not meant, in sentences. ``options``: of the field that has most, whose grid starts lowest;
        ``warm``: the run goes on from an adapter.
        """
        found = []
        lowest = confidence_grid(grid, options)[0]
        if self.objective == "rl" and self.reward != "brier" and not self.paid.pays_for_being_right(lowest):
            found.append(
                f"--w-correct {self.w_correct:g} is less than {1 - 2 * lowest:.2g} × --w-calibration {self.w_calibration:g}: an "
                f"answer that is surely wrong then earns more than an honest guess."
            )
        if self.objective == "rl" and self.reward == "brier" and not self.decouple:
            found.append(
                "--reward brier alone pays a sure wrong answer as much as a sure right one: this is there to show the trap."
            )
        if self.normalise_std:
            found.append(
                "--normalise-std raises the confidence of whatever is right more often than not: rewards are not proper with it."
            )
        if self.objective == "rl" and not self.warmup and not warm:
            found.append(
                "without --warmup-steps or a warm --adapter a small model hardly learns from reward alone (docs/training.md)."
            )
        return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
