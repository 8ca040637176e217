"""A field as the questions that the model is asked about it, and their answers as the answer to the field.

Most fields are one question. A *hierarchy* asks for the group and, within every group, for the option, all in one pass:
P(option) = P(group) · P(option | group). A *tournament* cuts a long list into heats that one list can show and asks, in a second
pass, which of the heats' winners it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from rlcd_lite.contract import Contract
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.orders import orders
from rlcd_lite.schema import Field, Option
from rlcd_lite.settings import LISTED, Scoring


@dataclass(frozen=True)
class Question:
    """One choice that the model is asked for.

    ``order``: the field's options as they are shown. ``verbatim``: the options' texts are scored, not labels. ``listed``: the
    prompt shows the options. ``stated``: a confidence is asked for as well.
    """

    field: Field
    order: tuple[int, ...]
    verbatim: bool
    listed: bool
    stated: bool


def scoring(field: Field, contract: Contract) -> Scoring:
    """``labels``, ``verbatim`` or ``tournament``: the field's own, else the contract's. ``auto`` takes labels as long as one list
    shows all options; so does a tournament, and a hierarchy, whose lists are short, has none."""
    asked = field.scoring or contract.scoring
    sizes = [len(f.options) for f in _parts(field)]
    if asked == "auto":
        return "verbatim" if max(sizes) > LISTED else "labels"
    if asked == "tournament" and (field.hierarchy or max(sizes) <= LISTED):
        return "labels"
    return asked


def questions(field: Field, contract: Contract, order: int = 0, count: int = 1) -> tuple[Question, ...]:
    """What the model is asked about a field in the first pass, in the ``order``-th of ``count`` orders of the options."""
    how = scoring(field, contract)
    kind = "hierarchy" if field.hierarchy else "tournament" if how == "tournament" else None
    for setting, value, why in (
        ("options", "unlisted", "shows lists of options"),
        ("confidence", "conditioned", "answers in parts, under which no confidence stands"),
        ("grid", "per-field", "has lists of other lengths than the field"),
    ):
        if kind and getattr(contract, setting) == value and (kind, setting) != ("hierarchy", "options"):
            flag = "confidence-grid" if setting == "grid" else setting
            raise UserError(f"field {shorten(field.name)} has a {kind}, which {why}: leave --{flag} {value} out.")
    verbatim = how == "verbatim"
    listed = contract.options == "listed" or (contract.options == "auto" and not verbatim)
    parts = heats(field) if how == "tournament" else _parts(field)
    out = []
    for i, part in enumerate(parts):
        n = len(part.options)
        shown = orders(n, count, part.fixed)[order] if listed else tuple(range(n))
        out.append(Question(part, shown, verbatim, listed, stated=how != "tournament" and i == 0))
    return tuple(out)


def fold(field: Field, answers: Sequence[Tensor]) -> Tensor:
    """Scores (K,) of a field's options from those of its questions: the answer itself, or log P(group) + log P(option | group)."""
    if not field.hierarchy:
        (scores,) = answers
        return scores
    groups, within = answers[0].log_softmax(-1), iter(answers[1:])
    parts = [
        groups[i] + (next(within).log_softmax(-1) if group.size > 1 else groups.new_zeros(1))
        for i, group in enumerate(field.hierarchy)
    ]
    return torch.cat([*parts, groups[len(parts) :]])


def _parts(field: Field) -> tuple[Field, ...]:
    """The field itself, or the question for its group and those within the groups that have a choice."""
    if not field.hierarchy:
        return (field,)
    names = tuple(Option(group.name) for group in field.hierarchy)
    out = [replace(field, options=names + field.options[len(field.options) - field.fixed :], scoring=None, hierarchy=())]
    at = 0
    for group in field.hierarchy:
        if group.size > 1:
            out.append(Field(f"{field.name} in {group.name}", "choice", field.options[at : at + group.size], field.description))
        at += group.size
    return tuple(out)


# ---- tournaments ----


def heats(field: Field) -> tuple[Field, ...]:
    """The options in their order, cut into as few lists as show all, of sizes that differ by one at most. None of the above,
    or null, waits for the final."""
    options = field.options[: len(field.options) - field.fixed]
    count = math.ceil(len(options) / LISTED)
    edges = [round(i * len(options) / count) for i in range(count + 1)]
    return tuple(
        Field(f"{field.name} {i}", "choice", options[start:end], field.description)
        for i, (start, end) in enumerate(pairwise(edges), start=1)
    )


def final(field: Field, answers: Sequence[Tensor]) -> Field:
    """The question of the second pass: the most probable option of every heat."""
    winners = tuple(heat.options[int(scores.argmax())] for heat, scores in zip(heats(field), answers, strict=True))
    winners += field.options[len(field.options) - field.fixed :]
    none, optional = field.none_of_the_above, field.optional
    return Field(field.name, "choice", winners, field.description, "labels", none_of_the_above=none, optional=optional)


def fold_tournament(answers: Sequence[Tensor], winners: Sequence[int], decided: Tensor) -> Tensor:
    """Log-probabilities (K,) of log P(its heat's winner in the final) + log P(option in its heat) − log P(winner in its heat), made
    to sum to 1.

    Exact for a model whose odds between two options do not depend on the others in the list (Luce 1959).
    """
    parts = [won + scores - scores[w] for won, scores, w in zip(decided, answers, winners, strict=False)]
    return torch.cat([*parts, decided[len(parts) :]]).log_softmax(-1)
