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
    """``count`` orders of n options, the given one first; the last ``fixed`` keep their place. Fewer are the first of more.

    Up to n: cyclic shifts, of which every beginning is spread out. Beyond: the cyclic shifts of seeded shuffles as well. A count
    that is a multiple of n has every option at every place equally often. Two options have two orders, which then repeat.
    """
    moving = n - fixed
    out: list[tuple[int, ...]] = []
    block = 0
    while len(out) < count:
        base = list(range(moving))
        if block:
            random.Random(f"orders-{n}-{block}").shuffle(base)
        out += [tuple(base[shift:] + base[:shift]) for shift in _spread(moving)]
        block += 1
    tail = tuple(range(moving, n))
    return tuple(order + tail for order in out[:count])


@lru_cache(maxsize=1024)
def _spread(n: int) -> tuple[int, ...]:
    """0, 1, …, n − 1 in the order of van der Corput's sequence (1935): 0, 1/2, 1/4, 3/4, 1/8, … of n."""
    found: dict[int, None] = {}
    number = 0
    while len(found) < n:
        value, share, rest = 0.0, 0.5, number
        while rest:
            value += share * (rest & 1)
            rest, share = rest >> 1, share / 2
        found.setdefault(int(value * n))
        number += 1
    return tuple(found)


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
    """The field's options in a random order; the groups of a hierarchy stay together; none of the above, or null, stays last."""
    order: list[int] = []
    at = 0
    parts = []
    for group in field.hierarchy or (Group("", len(field.options) - field.fixed),):
        part = list(range(at, at + group.size))
        dice.shuffle(part)
        parts.append(part)
        at += group.size
    if len(parts) > 1:
        dice.shuffle(parts)
    for part in parts:
        order += part
    return order + list(range(at, len(field.options)))


def other_order(field: Field, dice: random.Random) -> list[int]:
    """`shuffled_order`, drawn until it is another than the field's own; that one if there is no other."""
    sizes = [group.size for group in field.hierarchy] or [len(field.options) - field.fixed]
    own = order = list(range(len(field.options)))
    while order == own and (len(sizes) > 1 or max(sizes) > 1):
        order = shuffled_order(field, dice)
    return order


def reordered(field: Field, order: Sequence[int]) -> Field:
    """The field with its options in another order. A bool or int has an order of its own: it is shown as a choice of its values."""
    order = list(order)
    if order == sorted(order):
        return field
    kind = field.type if field.type == "score" else "choice"
    options = tuple(field.options[i] for i in order)
    owner = [group for group in field.hierarchy for _ in range(group.size)]
    groups = tuple(dict.fromkeys(owner[i] for i in order if i < len(owner)))
    return Field(field.name, kind, options, field.description, field.scoring, groups, field.none_of_the_above, field.optional)


def shuffled(schema: Schema, dice: random.Random) -> Schema:
    """The schema with the options of every field in a random order."""
    return Schema(tuple(reordered(f, shuffled_order(f, dice)) for f in schema.fields))
