"""The scores of a text as its answer: calibrated, then held to the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcd_lite.calibration_file import Calibration, Distribution
from rlcd_lite.consistency import broken, rule_text
from rlcd_lite.decisions import Applied, Decision, FieldDecision, OrderEffect
from rlcd_lite.fitting import FieldCalibration
from rlcd_lite.rules import condition, system
from rlcd_lite.schema import Schema
from rlcd_lite.scores import FieldScores, Scores
from rlcd_lite.settings import Consistency


@dataclass(frozen=True)
class FieldAnswer:
    """The answer to one field: the ``choice`` (an option index), the options' log-probabilities ``log_p`` (K,), and, where the
    field is calibrated, the ``confidence`` in [0, 1] that the choice is right, with the ``signal`` it comes from."""

    choice: int
    log_p: Tensor
    confidence: float | None = None
    signal: str | None = None


def answers(
    schema: Schema,
    texts: Sequence[Scores],
    consistency: Consistency,
    distributions: Mapping[str, Distribution],
    confidences: Mapping[str, FieldCalibration],
) -> list[tuple[tuple[FieldAnswer, ...], float]]:
    """For each text the answers to all fields, and the probability of all of them together.

    First the ``distributions`` calibrate the options' probabilities, by field. Their product is then conditioned on the bounds of
    arrays and, under ``enforce``, on the rules: the choices are the most probable ones together, the probabilities those given the
    rules. Last, the ``confidences`` say how sure each choice is; where it is not the field's most probable option, it is as sure as
    its probability.
    """
    log_p = []
    for field, column in zip(schema.fields, zip(*texts, strict=True), strict=True):
        logits = torch.stack([score.choice for score in column]).double()  # (n, K)
        if field.name in distributions:
            logits = torch.from_numpy(distributions[field.name].apply(logits.numpy()))
        log_p.append(logits.log_softmax(-1))
    found = condition(system(schema, consistency == "enforce"), log_p)
    columns = []
    for i, field in enumerate(schema.fields):
        columns.append(_answers([scores[i] for scores in texts], found.choices[:, i], found.log_p[i], confidences.get(field.name)))
    return list(zip(zip(*columns, strict=True), found.joint.exp().tolist(), strict=True))


def _answers(scores: Sequence[FieldScores], choices: Tensor, log_p: Tensor, fitted: FieldCalibration | None) -> list[FieldAnswer]:
    """One field's, over n texts: ``choices`` (n,), ``log_p`` (n, K)."""
    if fitted is None:
        return [FieldAnswer(int(choice), row) for choice, row in zip(choices, log_p, strict=True)]
    own = [score.stated_in(int(score.choice.argmax())).tolist() for score in scores]  # stated in the model's own choice
    calibrated = fitted.apply(log_p.numpy(), own, [score.grid for score in scores])
    out = []
    for choice, row, confidence in zip(choices.tolist(), log_p, calibrated.confidence.tolist(), strict=True):
        if choice == int(row.argmax()):
            out.append(FieldAnswer(choice, row, confidence, fitted.signal))
        else:
            out.append(FieldAnswer(choice, row, float(row[choice].exp()), "rules"))
    return out


def decision(
    schema: Schema,
    scores: Scores,
    priors: Sequence[str | None],
    calibration: Calibration | None = None,
    consistency: Consistency = "enforce",
) -> Decision:
    """The scores of a text as an answer, which names what was done to it. ``priors``: per field, what was subtracted, in words.

    Raises `UserError` for a schema that the calibration was not fitted for.
    """
    if calibration is not None:
        calibration.check(schema, consistency)
    entries = calibration.fields if calibration else {}
    distributions = {name: entry.distribution for name, entry in entries.items()}
    confidences = {name: entry.fitted for name, entry in entries.items()}
    ((found, joint),) = answers(schema, [scores], consistency, distributions, confidences)
    fields = []
    for field, answer, score, prior in zip(schema.fields, found, scores, priors, strict=True):
        stated = score.stated_in(answer.choice).double().softmax(0).tolist()
        applied = None
        if calibration and field.name in entries:
            assert answer.confidence is not None
            assert answer.signal is not None
            entry = entries[field.name]
            applied = Applied(
                answer.confidence,
                answer.signal,
                method=None if answer.signal == "rules" else getattr(entry.fitted, answer.signal).kind,
                distribution=entry.distribution.kind,
                rows=calibration.rows,
                held_out_rows=calibration.held_out_rows,
                ece=entry.ece.model_dump(),
            )
        probabilities = answer.log_p.exp().tolist()
        fields.append(
            FieldDecision(
                field,
                tuple(probabilities),
                stated=score.grid[stated.index(max(stated))],
                stated_mean=sum(p * c for p, c in zip(stated, score.grid, strict=True)),
                coverage=score.coverage,
                orders=None if score.orders is None else order_effect(score.choice.double().softmax(0), score.orders),
                prior=prior,
                chosen=None if answer.choice == probabilities.index(max(probabilities)) else answer.choice,
                applied=applied,
            )
        )
    broken_rules = tuple(rule_text(rule, schema) for rule in broken(schema, [answer.choice for answer in found]))
    return Decision(schema, tuple(fields), joint, broken_rules if schema.rules else None)


def order_effect(probabilities: Tensor, orders: Tensor) -> OrderEffect:
    """How far single orders, log-probabilities (k, K), lie from what they are joined to, probabilities (K,)."""
    apart = (orders.double().exp() - probabilities).abs().sum(-1) / 2  # (k,)
    flipped = orders.argmax(-1) != probabilities.argmax()
    return OrderEffect(len(orders), float(apart.mean()), float(flipped.double().mean()))
