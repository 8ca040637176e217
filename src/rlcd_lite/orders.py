"""Orders in which options are shown: which to try, how their answers are joined, and when enough were tried.

A model's answer leans to places in a list. Every option stands at every place equally often in cyclic shifts, so the mean of
log-probabilities over all of them cancels any lean that is added to a place's logit (anyjev, arXiv 2610.00831).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from rlcd_lite.schema import Field, Group, Schema

AUTO_ORDERS = 8  # at most, of `--permutations auto`
AUTO_ROUNDS = (2, 4, 8)  # orders that are known after each round


@lru_cache(maxsize=1024)
def orders(n: int, count: int, fixed: int = 0) -> tuple[tuple[int, ...], ...]:
    """``count`` orders of n options, the given one first; the last ``fixed`` keep their place.

    Up to n: cyclic shifts, spread evenly, and so is every beginning of them. Beyond: the cyclic shifts of seeded shuffles as well.
    Two options have two orders, which then repeat.
    """
    moving = n - fixed
    out: list[tuple[int, ...]] = []
    block = 0
    while len(out) < count:
        base = list(range(moving))
        if block:
            random.Random(f"orders-{n}-{block}").shuffle(base)
        wanted = min(moving, count - len(out))
        shifts = sorted(range(wanted), key=_reversed_bits)
        out += [tuple(base[s * moving // wanted :] + base[: s * moving // wanted]) for s in shifts]
        block += 1
    tail = tuple(range(moving, n))
    return tuple(order + tail for order in out)


def _reversed_bits(number: int) -> float:
    """Van der Corput's sequence (1935): 0, 1/2, 1/4, 3/4, 1/8, … over the numbers 0, 1, 2, …"""
    value, share = 0.0, 0.5
    while number:
        value += share * (number & 1)
        number, share = number >> 1, share / 2
    return value


def settled(log_probs: Tensor, count: int) -> bool:
    """Whether the mean over ``count`` orders will choose as the mean over those seen: ``log_probs`` (k, K).

    The choice leads every other option by a margin in each order. Of an order to come it is assumed that its margin falls short of
    the lowest seen by no more than the range of those seen; if then the choice still leads, further orders can't change it. The
    agreement with all orders that this reaches is measured in docs/options.md.
    """
    mean = log_probs.mean(0)
    choice = int(mean.argmax())
    margin = log_probs[:, choice, None] - log_probs  # (k, K)
    low, high = margin.min(0).values, margin.max(0).values
    bound = margin.sum(0) + (count - len(margin)) * (2 * low - high)
    bound[choice] = 1.0
    return bool((bound > 0).all())


# ---- other orders of a schema's own: what evaluation and training show ----


def shuffled_order(field: Field, dice: random.Random) -> list[int]:
    """The field's options in a random order; the groups of a hierarchy stay together and none-of-the-above stays last."""
    order: list[int] = []
    at = 0
    parts = []
    for group in field.hierarchy or (Group("", len(field.options) - field.none_of_the_above),):
        part = list(range(at, at + group.size))
        dice.shuffle(part)
        parts.append(part)
        at += group.size
    if len(parts) > 1:
        dice.shuffle(parts)
    for part in parts:
        order += part
    return order + list(range(at, len(field.options)))


def reordered(field: Field, order: Sequence[int]) -> Field:
    """The field with its options in another order. A bool or int has an order of its own: it is shown as a choice of its values."""
    order = list(order)
    if order == sorted(order):
        return field
    kind = field.type if field.type == "score" else "choice"
    options = tuple(field.options[i] for i in order)
    owner = [group for group in field.hierarchy for _ in range(group.size)]
    groups = tuple(dict.fromkeys(owner[i] for i in order if i < len(owner)))
    return Field(field.name, kind, options, field.description, field.scoring, groups, field.none_of_the_above)


def shuffled(schema: Schema, dice: random.Random) -> Schema:
    """The schema with the options of every field in a random order."""
    return Schema(tuple(reordered(f, shuffled_order(f, dice)) for f in schema.fields))
