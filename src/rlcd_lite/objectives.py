"""Scores and labels → a loss: sampled GRPO, the exact expectation, and supervision. Pure functions of one field over one text.

A *policy* is the pair of distributions that the model has for a field: log π over its K options, and log ρ over the C levels of
the stated confidence, ``(C,)``, or ``(K, C)`` where the confidence is conditioned on the option. A decision is one step: draw an
option a ~ π and a confidence c ~ ρ(· | a), and be paid r(a, c) (`rlcd_lite.rewards`). Losses are to be minimised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcd_lite.recipe import Baseline, Objective
from rlcd_lite.rewards import Reward
from rlcd_lite.scores import FieldScores

STD_EPSILON = 1e-4  # as in TRL


@dataclass(frozen=True)
class Policy:
    """``choice`` (K,) and ``stated`` (C,) or (K, C): log-probabilities. ``grid`` (C,): what the confidence levels stand for."""

    choice: Tensor
    stated: Tensor
    grid: Tensor

    @classmethod
    def of(cls, scores: FieldScores, temperature: float = 1.0) -> Policy:
        """The softmax of the logits divided by ``temperature``: what rollouts at that temperature are drawn from."""
        choice, stated = (scores.choice / temperature).log_softmax(-1), (scores.stated / temperature).log_softmax(-1)
        return cls(choice, stated, stated.new_tensor(scores.grid))

    def stated_in(self, options: Tensor) -> Tensor:
        """Log ρ(· | a) for options a (G,): shape (G, C)."""
        return self.stated[options] if self.stated.dim() == 2 else self.stated.expand(len(options), -1)


# ---- what is expected: no sampling ----


def action_values(policy: Policy, label: int, reward: Reward) -> tuple[Tensor, Tensor]:
    """Per option a (K,): its correctness without p_a, w·1[a = y], and its expected calibration −b Σ_c ρ(c | a)(c − 1[a = y])²."""
    correct = torch.nn.functional.one_hot(policy.choice.new_tensor(label, dtype=torch.long), len(policy.choice)).float()  # (K,)
    calibration = reward.calibration(correct[:, None], policy.grid)  # (K, C)
    return reward.w * correct, (policy.stated.exp() * calibration).sum(-1)


def expected_loss(policy: Policy, reported: Tensor, label: int, reward: Reward) -> Tensor:
    """−J with J = Σ_a π(a) Σ_c ρ(c | a) r(a, c): every action counted with its probability, so the gradient has no noise.

    The all-action policy gradient (Sutton et al. 2001; Allen et al. 2017, arXiv 1709.00503). The G-rollout estimate of
    `sampled_loss` has this gradient as its mean (times (G − 1)/G with the baseline ``mean``).

    ``reported``: the probabilities (K,) that dist-brier subtracts, detached here: at temperature 1, because these are what is
    reported and are to become P(y | text). A decoupled reward gives J the choice's part with ρ held fixed, and the confidence's
    with π held fixed.
    """
    pi = policy.choice.exp()
    worth, calibration = action_values(policy, label, reward)
    if reward.distribution:
        worth = worth - reward.w * reported.detach()
    if reward.decoupled:
        return -(pi * worth).sum() - (pi.detach() * calibration).sum()
    return -(pi * (worth + calibration)).sum()


# ---- what is drawn: GRPO ----


@dataclass(frozen=True)
class Rollouts:
    """G draws for one field over one text: indices of options and levels (G,), and their log-probabilities (G,) when drawn."""

    choice: Tensor
    stated: Tensor
    choice_log_prob: Tensor
    stated_log_prob: Tensor


def draw(policy: Policy, count: int, generator: torch.Generator) -> Rollouts:
    """``count`` independent draws from the policy; on the CPU, so that a seed gives the same draws on every device."""
    with torch.no_grad():
        choice = torch.multinomial(policy.choice.exp().cpu(), count, replacement=True, generator=generator)
        rho = policy.stated_in(choice.to(policy.stated.device)).exp().cpu()  # (G, C)
        stated = torch.multinomial(rho, 1, generator=generator)[:, 0]
        choice, stated = choice.to(policy.choice.device), stated.to(policy.choice.device)
        return Rollouts(choice, stated, *log_probs(policy, choice, stated))


def log_probs(policy: Policy, choice: Tensor, stated: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (G,) of options and of the confidences stated in them."""
    return policy.choice[choice], policy.stated_in(choice).gather(1, stated[:, None])[:, 0]


def rollout_rewards(policy: Policy, reported: Tensor, rollouts: Rollouts, correct: Tensor, reward: Reward) -> tuple[Tensor, Tensor]:
    """The two terms of the reward of each rollout (G,), of which ``correct`` (G,) says 1.0 where it was right.

    This is all that a learner under bandit feedback sees of the label.
    """
    worth = reward.correctness(correct, reported.detach()[rollouts.choice])
    return worth, reward.calibration(correct, policy.grid[rollouts.stated])


def advantages(rewards: Tensor, baseline: Baseline = "mean", normalise: bool = False) -> Tensor:
    """Rewards (G,) less their group's baseline.

    ``mean``: of the group (Shao et al. 2024, arXiv 2402.03300). ``rloo``: of the *other* rollouts (Kool et al. 2019; Ahmadian et
    al. 2024, arXiv 2402.14740), identically G/(G − 1) times the former, and unbiased. ``normalise``: divide by the group's standard
    deviation; this pays for confidence wherever the answer is right more often than not, whatever its true probability (arXiv
    2508.11800; Liu et al. 2025, arXiv 2503.20783), and is there to show that.
    """
    centred = rewards - rewards.mean()
    if baseline == "rloo":
        centred = centred * (len(rewards) / (len(rewards) - 1))
    return centred / (rewards.std() + STD_EPSILON) if normalise else centred


def sampled_loss(policy: Policy, rollouts: Rollouts, choice_advantage: Tensor, stated_advantage: Tensor, clip: float) -> Tensor:
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv 1707.06347) on both tokens, mean over rollouts.

    −(1/G) Σ_g [min(q A, clip(q, 1 − ε, 1 + ε) A) of the choice + the same of the confidence], q = π(drawn)/π_old(drawn). Where the
    policy is still the one that drew, q = 1, the clip does nothing and the gradient is REINFORCE's: −A ∇log π.
    """
    new = log_probs(policy, rollouts.choice, rollouts.stated)
    old = rollouts.choice_log_prob, rollouts.stated_log_prob
    total = policy.choice.new_zeros(())
    for now, then, advantage in zip(new, old, (choice_advantage, stated_advantage), strict=True):
        ratio = (now - then).exp()
        total = total + torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    return -total


# ---- what is taught: supervision ----


def choice_cross_entropy(policy: Policy, label: int) -> Tensor:
    """−log π(y): the warm-up, and the choice's part of sft-ce."""
    return -policy.choice[label]


def supervised_loss(policy: Policy, label: int, objective: Objective, w_correct: float, w_calibration: float) -> Tensor:
    """Choice: cross-entropy, or ½ Σ_k (π(k) − 1[k = y])² (Brier 1950). Confidence: Σ_c ρ(c)(c − 1[a = y])² of the answer a that is
    given, the most probable one ("tokenised Brier", Li et al. 2025, arXiv 2508.18847): (E c − 1[a = y])² + Var c.
    """
    pi = policy.choice.exp()
    if objective == "sft-ce":
        choice = choice_cross_entropy(policy, label)
    else:
        target = torch.zeros_like(pi)
        target[label] = 1.0
        choice = 0.5 * ((pi - target) ** 2).sum()
    answer = policy.choice.argmax()
    rho = policy.stated_in(answer[None])[0].exp()
    correct = (answer == label).float()
    return w_correct * choice + w_calibration * (rho * (policy.grid - correct) ** 2).sum()


# ---- regularisers, exact over the options and levels ----


def entropy(policy: Policy) -> Tensor:
    """H(π) + Σ_a π(a) H(ρ(· | a)) in nats: the entropy of the draw (a, c)."""
    pi = policy.choice.exp()
    stated = -(policy.stated.exp() * policy.stated).sum(-1)  # () or (K,)
    return -(pi * policy.choice).sum() + (pi * stated).sum()


def divergence(policy: Policy, reference: Policy) -> Tensor:
    """KL(policy ‖ reference) of the draw (a, c) in nats, exactly: no estimator is needed over K × C outcomes.

    With weight β and a reward without p_a, the optimum is π(a) ∝ π_ref(a)·exp(r(a)/β).
    """
    pi = policy.choice.exp()
    stated = (policy.stated.exp() * (policy.stated - reference.stated)).sum(-1)  # () or (K,)
    return (pi * (policy.choice - reference.choice)).sum() + (pi * stated).sum()


def order_divergence(first: Tensor, second: Tensor) -> Tensor:
    """½ KL(p ‖ q) + ½ KL(q ‖ p) in nats between the options' log-probabilities (K,) in two orders of the list.

    0 if and only if the order changes nothing. Both sides have a gradient, as in R-Drop (Wu et al. 2021, arXiv 2106.14448).
    """
    return 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(-1)
