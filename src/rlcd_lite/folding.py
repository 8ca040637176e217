"""The answers to questions, in one or several orders of the options, as the answer to every field of a schema."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcd_lite.contract import Contract
from rlcd_lite.orders import settled
from rlcd_lite.prompts import Answer
from rlcd_lite.questions import final, fold, fold_tournament, questions, scoring
from rlcd_lite.schema import Field, Schema
from rlcd_lite.scores import FieldScores, Scores, joined

Orders = list[list[Answer]]  # of one text: the answers to each of its prompts


def tournaments(schema: Schema, contract: Contract) -> list[Field]:
    """The fields that take a second pass."""
    return [field for field in schema.fields if scoring(field, contract) == "tournament"]


def finals(schema: Schema, contract: Contract, orders: Orders) -> Schema:
    """What is asked in the second pass: the tournaments' finals."""
    return Schema(tuple(final(f, _heats(schema, contract, f, orders)) for f in tournaments(schema, contract)))


def field_scores(schema: Schema, contract: Contract, orders: Orders, finals: Orders | None = None) -> Scores:
    """The answer to every field, joined over the orders; ``finals``: of the second pass, if there was one."""
    each = [_one_order(schema, contract, answers, finals[k] if finals else (), orders) for k, answers in enumerate(orders)]
    return tuple(joined([scores[j] for scores in each]) for j in range(len(schema.fields)))


def all_settled(schema: Schema, contract: Contract, orders: Orders, count: int) -> bool:
    """Whether further orders, of ``count`` in all, would hardly change the answer to any field."""
    return all(s.orders is not None and settled(s.orders, count) for s in field_scores(schema, contract, orders))


def _one_order(
    schema: Schema, contract: Contract, answers: Sequence[Answer], finals: Sequence[Answer], orders: Orders
) -> list[FieldScores]:
    out: list[FieldScores] = []
    rest = iter(finals)
    for field, mine in zip(schema.fields, _by_field(schema, contract, answers), strict=True):
        if scoring(field, contract) == "tournament":
            decided = next(rest)
            winners = [int(heat.argmax()) for heat in _heats(schema, contract, field, orders)]
            choice = fold_tournament([answer.choice for answer in mine], winners, decided.choice)
            stated, coverage, grid = decided.stated, decided.coverage, decided.grid
        else:
            choice = fold(field, [answer.choice for answer in mine])
            stated, coverage, grid = mine[0].stated, mine[0].coverage, mine[0].grid
        assert stated is not None
        out.append(FieldScores(choice, stated, grid, coverage))
    return out


def _by_field(schema: Schema, contract: Contract, answers: Sequence[Answer]) -> list[list[Answer]]:
    rest = iter(answers)
    return [[next(rest) for _ in questions(field, contract)] for field in schema.fields]


def _heats(schema: Schema, contract: Contract, field: Field, orders: Orders) -> list[Tensor]:
    """Mean log-probabilities of each heat's options over the orders."""
    at = schema.fields.index(field)
    heats = zip(*(_by_field(schema, contract, answers)[at] for answers in orders), strict=True)
    return [torch.stack([answer.choice.log_softmax(-1) for answer in heat]).mean(0) for heat in heats]
