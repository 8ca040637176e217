"""Is a run healthy? What to watch while training, in words. Pure functions of the rows of ``metrics.jsonl`` and ``evals.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

Row = dict[str, Any]

WINDOW = 20  # steps
ACC_FALL = 0.10
EVALS_BELOW = 3


def symptoms(rows: Sequence[Row], evals: Sequence[Row]) -> dict[str, str]:
    """What looks sick, by a short name: a sentence with the figure and the way out. Looks at the last `WINDOW` steps of RL."""
    found: dict[str, str] = {}
    recent = [row for row in rows if row["phase"] == "rl"][-WINDOW:]
    if len(recent) == WINDOW:
        found |= _about_rl(recent)
    if rows and all(row["grad_norm"] == 0 for row in rows[-3:]):
        found["no gradient"] = "the gradient is exactly 0: every group is identical, so nothing is learned. Raise --rollout-temp."
    accuracy = [row["acc"] for row in evals]
    if len(accuracy) > EVALS_BELOW and max(accuracy[-EVALS_BELOW:]) <= accuracy[0] - ACC_FALL:
        found["accuracy lost"] = (
            f"held-out accuracy is {accuracy[-1]:.2f}, {ACC_FALL:.2f} or more under step 0 ({accuracy[0]:.2f}) for {EVALS_BELOW} "
            f"evaluations: lower --lr, or use another --reward."
        )
    return found


def _about_rl(rows: Sequence[Row]) -> dict[str, str]:
    found: dict[str, str] = {}
    equal = _mean(rows, "zero_variance_group_frac")
    if equal is not None and equal > 0.8:
        found["equal rewards"] = (
            f"{equal:.0%} of the groups have equal rewards and teach nothing: the policy hardly draws two different answers. "
            f"Raise --rollout-temp, or use --estimator exact."
        )
    first, last = rows[0]["choice_entropy"], rows[-1]["choice_entropy"]
    if first > 0.2 and last < 0.02:
        found["entropy collapse"] = (
            f"the entropy of the choice fell from {first:.2f} to {last:.3f} nats in {len(rows)} steps: lower --lr or add --beta-kl."
        )
    multiplier = _mean(rows, "choice_grad_mult")
    if multiplier is not None and multiplier < 0:
        found["brier trap"] = (
            f"the choice is paid for being wrong (choice_grad_mult {multiplier:.2f}): the stated confidence is below ½, so a sure "
            f"wrong answer earns more than an honest one. Use --reward rlcr or --decouple."
        )
    stated, accuracy = _mean(rows, "stated_conf_mean"), _mean(rows, "acc")
    if stated is not None and accuracy is not None and stated - accuracy > 0.3:
        found["overconfident"] = (
            f"the stated confidence is {stated:.2f} and the accuracy {accuracy:.2f}: this reward does not hold it to the truth."
        )
    return found


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return mean(values) if values else None
