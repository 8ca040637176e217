"""What a forward pass says about a field, as logits; joined over several orders of the options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class FieldScores:
    """Float32 scores of one field over one text: ``choice`` (K,) in option order, less the prior if there is one, and
    ``stated`` (C,) over the confidence ``grid``; (K, C) if it is conditioned, one row per option that may be chosen.

    The options' probabilities are the softmax of ``choice``. ``coverage``: share in [0, 1] of the full vocabulary's probability
    that lies on tokens with which an answer can begin, if it was asked for. ``orders`` (k, K): log-probabilities in each of several
    orders of the options, of which ``choice`` is the mean; None for a single order.
    """

    choice: Tensor
    stated: Tensor
    grid: tuple[float, ...]
    coverage: float | None = None
    orders: Tensor | None = None

    def stated_in(self, option: int) -> Tensor:
        """Logits (C,) of the confidence that is stated in an option."""
        return self.stated if self.stated.dim() == 1 else self.stated[option]

    @property
    def finite(self) -> bool:
        """Whether every logit, and the coverage if there is one, is a number."""
        known = self.coverage is None or math.isfinite(self.coverage)
        return known and bool(self.choice.isfinite().all() and self.stated.isfinite().all())

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: NumPy sends the numbers, where torch would send the whole of what they are a view of."""
        orders = None if self.orders is None else self.orders.numpy()
        return _received, (self.choice.numpy(), self.stated.numpy(), self.grid, self.coverage, orders)


def _received(choice: Any, stated: Any, grid: tuple[float, ...], coverage: float | None, orders: Any) -> FieldScores:
    tensor = torch.from_numpy
    return FieldScores(tensor(choice), tensor(stated), grid, coverage, None if orders is None else tensor(orders))


Scores = tuple[FieldScores, ...]  # one text's, in the order of the schema's fields


def joined(orders: Sequence[FieldScores]) -> FieldScores:
    """The scores of one field in several orders as one: the mean of log-probabilities, of the choice and of the confidence."""
    if len(orders) == 1:
        return orders[0]
    choice = torch.stack([scores.choice for scores in orders]).log_softmax(-1)  # (k, K)
    stated = torch.stack([scores.stated for scores in orders]).log_softmax(-1).mean(0)
    known = [scores.coverage for scores in orders if scores.coverage is not None]
    return FieldScores(choice.mean(0), stated, orders[0].grid, sum(known) / len(known) if known else None, choice)
