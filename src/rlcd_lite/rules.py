"""Rules between fields, taken exactly: the product of the fields' distributions, given that every rule holds.

The fields of one rule become one *factor*; the number of an array's items is counted along a chain of factors. Variables are then
eliminated one by one (Dechter 1999): with log-sum-exp that gives log P(all rules hold), whose gradient with respect to the
log-probabilities are the marginals given the rules (Darwiche 2003); with the maximum, the log-probability of the most probable
consistent answer, whose gradient says which answer that is. Options that no rule tells apart are one value of a variable, so long
lists cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rlcd_lite.consistency import rule_text
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Condition, Rule, Schema
from rlcd_lite.shape import Array

LIMIT = 1 << 20  # entries of the largest table of an elimination: a tenth of a second
_LEAST = 1e-300  # of a probability given the rules, so that its logarithm is a number
_FORBIDDEN = -1e30  # finite, because a log-sum-exp over infinities alone has no gradient

Reduce = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Factor:
    """Which values of some variables go together: ``allowed`` has one axis a variable, 0 or `_FORBIDDEN` in each place."""

    variables: tuple[int, ...]
    allowed: Tensor


@dataclass(frozen=True)
class System:
    """A schema's rules, ready for elimination.

    Its first variables are the fields at ``places`` of the schema. ``values``: per such field, the options (indices) behind each
    value of its variable. ``order``: in which variables are eliminated.
    """

    places: tuple[int, ...]
    values: tuple[tuple[Tensor, ...], ...]
    factors: tuple[Factor, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Conditioned:
    """The distributions of the fields of n texts given the rules.

    ``log_p``: log-probabilities (n, K) per field; ``choices`` (n, fields): the most probable consistent answers, as option indices;
    ``joint`` (n,): their log-probability given the rules; ``satisfied`` (n,): log P(all rules hold) before.
    """

    log_p: tuple[Tensor, ...]
    choices: Tensor
    joint: Tensor
    satisfied: Tensor


@lru_cache(maxsize=64)
def system(schema: Schema, declared: bool = True) -> System | None:
    """The rules of a schema and the bounds of its arrays, or (``declared`` false) these bounds alone; None if there are none.

    Raises `UserError` for rules that contradict each other, naming the fewest that do, and for rules that tie so many fields
    together that an exact answer would take too long.
    """
    rules, arrays = schema.rules if declared else (), schema.arrays
    if not rules and not arrays:
        return None
    built = _build(schema, rules, arrays)
    if not _consistent(built):
        parts: list[Rule | Array] = [*rules, *arrays]
        for part in list(parts):  # what is left when nothing more can go is a smallest contradiction
            fewer = [p for p in parts if p is not part]
            if not _consistent(
                _build(schema, [p for p in fewer if isinstance(p, Rule)], [p for p in fewer if isinstance(p, Array)])
            ):
                parts = fewer
        said = " and ".join(f"({rule_text(part, schema)})" for part in parts)
        raise UserError(f"the rules contradict each other, because no answer meets {said}: drop or change one of them.")
    return built


def log_satisfied(rules: System, log_p: Sequence[Tensor]) -> Tensor:
    """log P(all rules hold) under the product of the fields' distributions, given as log-probabilities (…, K), one per field of the
    schema: shape (…), differentiable. Its negative is the semantic loss (Xu et al. 2018, arXiv 1711.11157)."""
    return _eliminate(rules, log_p, lambda table, axis: table.logsumexp(axis))


def condition(rules: System | None, log_p: Sequence[Tensor]) -> Conditioned:
    """The product of the fields' distributions, log-probabilities (n, K) each, given the rules; without rules, that product."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [row.detach().to("cpu", torch.float64, copy=True) for row in log_p]
        highest, choices = torch.stack([leaf.max(-1).values for leaf in leaves]), [leaf.argmax(-1) for leaf in leaves]
        if rules is None:
            joint = highest.sum(0)
            return Conditioned(tuple(leaves), torch.stack(choices, -1), joint.clamp(max=0), torch.zeros_like(joint))
        given = list(leaves)
        tied = [leaves[place].requires_grad_() for place in rules.places]
        total = log_satisfied(rules, leaves)
        best = _eliminate(rules, leaves, lambda table, axis: table.max(axis).values)
        marginals, chosen = torch.autograd.grad(total.sum(), tied), torch.autograd.grad(best.sum(), tied)
    for place, marginal, one in zip(rules.places, marginals, chosen, strict=True):
        given[place] = marginal.clamp(min=_LEAST).log().log_softmax(-1)  # sums to 1 but for rounding
        choices[place] = one.argmax(-1)
        highest[place] = 0
    satisfied = total.detach().clamp(max=0)
    joint = (highest.sum(0) + best.detach() - satisfied).clamp(max=0)
    return Conditioned(tuple(given), torch.stack(choices, -1), joint, satisfied)


# ---- building ----


def _build(schema: Schema, rules: Sequence[Rule], arrays: Sequence[Array]) -> System:
    number = {field.name: place for place, field in enumerate(schema.fields)}
    conditions = [c for rule in rules for c in (*rule.when, *rule.then)]
    members = {name for array in arrays for _, name in array.members}
    places = sorted({number[c.field] for c in conditions} | {number[name] for name in members})
    variable = {schema.fields[place].name: i for i, place in enumerate(places)}
    sizes: list[int] = []
    values: list[tuple[Tensor, ...]] = []
    value_of: list[list[int]] = []  # per variable, the value that each option is
    for place in places:
        field = schema.fields[place]
        mine = [frozenset(c.options) for c in conditions if c.field == field.name]
        if field.name in members:
            mine.append(frozenset([0]))
        kinds = [tuple(i in options for options in mine) for i in range(len(field.options))]
        distinct = list(dict.fromkeys(kinds))
        value_of.append([distinct.index(kind) for kind in kinds])
        values.append(tuple(torch.tensor([i for i, k in enumerate(kinds) if k == kind]) for kind in distinct))
        sizes.append(len(distinct))
    factors = [_rule_factor(rule, variable, sizes, value_of) for rule in rules]
    for array in arrays:
        factors += _count_factors(array, variable, sizes, value_of)
    return System(tuple(places), tuple(values), tuple(factors), _order(factors, sizes))


def _rule_factor(rule: Rule, variable: dict[str, int], sizes: Sequence[int], value_of: Sequence[Sequence[int]]) -> Factor:
    names = list(dict.fromkeys(c.field for c in (*rule.when, *rule.then)))
    axes = [variable[name] for name in names]
    shape = [sizes[v] for v in axes]
    _check_size(shape)

    def holds(side: Sequence[Condition]) -> Tensor:
        all_of = torch.ones(shape, dtype=torch.bool)
        for c in side:
            v = variable[c.field]
            mine = torch.zeros(sizes[v], dtype=torch.bool)
            mine[sorted({value_of[v][i] for i in c.options})] = True
            across = [1] * len(axes)
            across[axes.index(v)] = sizes[v]
            all_of &= mine.reshape(across)
        return all_of

    forbidden = holds(rule.when) & ~holds(rule.then) if rule.then else holds(rule.when)
    return Factor(tuple(axes), forbidden.double() * _FORBIDDEN)


def _count_factors(array: Array, variable: dict[str, int], sizes: list[int], value_of: Sequence[Sequence[int]]) -> list[Factor]:
    """A chain of counters, each the number of members so far, up to one more than matters."""
    top = array.low if array.high == len(array.members) else array.high + 1
    count = torch.arange(top + 1)
    out: list[Factor] = []
    before: int | None = None
    for _, name in array.members:
        v = variable[name]
        step = torch.zeros(sizes[v], dtype=torch.long)
        step[value_of[v][0]] = 1  # option 0 of a member is true
        after, start = len(sizes), count if before is not None else count[:1]
        sizes.append(top + 1)
        reached = (start[:, None] + step).clamp(max=top)  # (before, member)
        allowed = (reached[:, :, None] != count).double() * _FORBIDDEN  # (before, member, after)
        out.append(Factor((v, after), allowed[0]) if before is None else Factor((before, v, after), allowed))
        before = after
    assert before is not None
    outside = (count < array.low) | (count > array.high)
    return [*out, Factor((before,), outside.double() * _FORBIDDEN)]


def _order(factors: Sequence[Factor], sizes: Sequence[int]) -> tuple[int, ...]:
    """Greedily, the variable whose elimination makes the smallest table."""
    touching: list[list[frozenset[int]]] = [[frozenset([v])] for v in range(len(sizes))]  # per variable, the tables that have it
    for factor in factors:
        for v in factor.variables:
            touching[v].append(frozenset(factor.variables))

    def shape(v: int) -> list[int]:
        return [sizes[u] for u in frozenset().union(*touching[v])]

    left = set(range(len(sizes)))
    order = []
    while left:
        v = min(left, key=lambda u: (math.prod(shape(u)), u))
        _check_size(shape(v))
        joined = frozenset().union(*touching[v])
        left.remove(v)
        for u in joined & left:
            touching[u] = [scope for scope in touching[u] if v not in scope] + [joined - {v}]
        order.append(v)
    return tuple(order)


def _check_size(shape: Sequence[int]) -> None:
    if (entries := math.prod(shape)) > LIMIT:
        raise UserError(
            f"the rules tie {len(shape)} values together in {entries} combinations, more than the {LIMIT} that are counted out "
            f"exactly: use fewer fields in a rule, or rules that share fewer fields."
        )


# ---- elimination ----


def _eliminate(rules: System, log_p: Sequence[Tensor], reduce: Reduce) -> Tensor:
    """Each table has leading axes for the texts, then one axis per variable."""
    tables: list[tuple[tuple[int, ...], Tensor]] = []
    for v, (place, values) in enumerate(zip(rules.places, rules.values, strict=True)):
        row = log_p[place].to("cpu", torch.float64)  # MPS has no float64
        tables.append(((v,), torch.stack([reduce(row[..., options], -1) for options in values], -1)))
    tables += [(f.variables, f.allowed) for f in rules.factors]
    total = torch.zeros((), dtype=torch.float64)
    for v in rules.order:
        mine = [table for table in tables if v in table[0]]
        scope = tuple(sorted({u for variables, _ in mine for u in variables}))
        joined = torch.zeros((), dtype=torch.float64)
        for table in mine:
            joined = joined + _spread(table, scope)
        reduced = reduce(joined, scope.index(v) - len(scope))
        tables = [table for table in tables if v not in table[0]]
        if left := tuple(u for u in scope if u != v):
            tables.append((left, reduced))
        else:
            total = total + reduced
    return total


def _spread(table: tuple[tuple[int, ...], Tensor], scope: tuple[int, ...]) -> Tensor:
    """A table with its axes in the order of ``scope``, and an axis of length 1 for each variable that it lacks."""
    variables, values = table
    texts = values.dim() - len(variables)
    placed = values.permute([*range(texts), *(texts + variables.index(u) for u in scope if u in variables)])
    shape = [values.shape[texts + variables.index(u)] if u in variables else 1 for u in scope]
    return placed.reshape([*values.shape[:texts], *shape])


def _consistent(rules: System) -> bool:
    even = [torch.zeros(1) for _ in range(max(rules.places) + 1)]
    for place, values in zip(rules.places, rules.values, strict=True):
        even[place] = torch.zeros(sum(len(options) for options in values))
    return float(_eliminate(rules, even, lambda table, axis: table.max(axis).values)) > _FORBIDDEN / 2
