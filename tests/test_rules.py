"""Rules taken exactly: equal to counting every answer out, whatever the schema; gradients; contradictions; what is refused."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcd_lite.consistency import broken, rule_text
from rlcd_lite.errors import UserError
from rlcd_lite.rules import LIMIT, Conditioned, log_satisfied, system
from rlcd_lite.rules import condition as condition_many
from rlcd_lite.schema import Condition, Field, Option, Rule, Schema
from rlcd_lite.shape import Array, Object

unhurried = settings(deadline=None, max_examples=100)


def choice(name, n):
    return Field(name, "choice", tuple(Option(f"{name}{i}") for i in range(n)))


def yes_no(name):
    return Field(name, "bool", (Option(True), Option(False)))


TRIAGE = Schema.of(
    {
        "fields": [
            {"name": "severity", "type": "choice", "options": ["low", "high", "critical"]},
            {"name": "needs_human", "type": "bool"},
            {"name": "team", "type": "choice", "options": ["billing", "infra"]},
        ],
        "rules": [{"if": {"severity": "critical"}, "then": {"needs_human": True}}],
    }
)


def log(*rows):
    return [torch.tensor(row, dtype=torch.float64).log() for row in rows]


def condition(rules, log_p):
    """One text, without the axis of texts."""
    found = condition_many(rules, [row[None] for row in log_p])
    choices = tuple(found.choices[0].tolist())
    return Conditioned(tuple(row[0] for row in found.log_p), choices, float(found.joint.exp()), float(found.satisfied.exp()))


@st.composite
def conditions(draw, fields, least=1):
    chosen = draw(st.lists(st.sampled_from(fields), min_size=least, max_size=min(3, len(fields)), unique_by=lambda f: f.name))
    out = []
    for field in chosen:
        n = len(field.options)
        options = draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
        out.append(Condition(field.name, tuple(sorted(options))))
    return tuple(out)


@st.composite
def problems(draw):
    """A schema with rules and perhaps an array, and a distribution for each field."""
    fields = [choice(f"f{i}", n) for i, n in enumerate(draw(st.lists(st.integers(2, 5), min_size=1, max_size=4)))]
    rules = tuple(
        Rule(draw(conditions(fields)), draw(conditions(fields, 0)) if draw(st.booleans()) else ())
        for _ in range(draw(st.integers(0, 4)))
    )
    shape = None
    count = draw(st.integers(0, 4))
    if count >= 2:
        members = [yes_no(f"tag{i}") for i in range(count)]
        low = draw(st.integers(0, count))
        high = draw(st.integers(max(low, 1), count))
        array = Array(tuple((f"t{i}", member.name) for i, member in enumerate(members)), low, high)
        shape = Object((*((f.name, f.name) for f in fields), ("tags", array)))
        fields += members
    schema = Schema(tuple(fields), rules, shape)
    rows = [draw(st.lists(st.floats(0.01, 1), min_size=len(f.options), max_size=len(f.options))) for f in fields]
    return schema, [torch.tensor(row, dtype=torch.float64).log().log_softmax(0) for row in rows]


def counted_out(schema, log_p):
    """Every answer that keeps the rules and the arrays' bounds, with its probability."""
    names = [f.name for f in schema.fields]
    found = {}
    for choices in product(*(range(len(f.options)) for f in schema.fields)):
        sizes = [sum(choices[names.index(name)] == 0 for _, name in a.members) for a in schema.arrays]
        if broken(schema, choices) or any(not a.low <= n <= a.high for a, n in zip(schema.arrays, sizes, strict=True)):
            continue
        found[choices] = math.prod(float(row[c].exp()) for row, c in zip(log_p, choices, strict=True))
    return found


@unhurried
@given(problems())
def test_conditioning_equals_counting_out(problem):
    schema, log_p = problem
    answers = counted_out(schema, log_p)
    if not answers:
        with pytest.raises(UserError, match="contradict"):
            system(schema)
        return
    found = condition(system(schema), log_p)
    total = sum(answers.values())
    assert found.satisfied == pytest.approx(total, rel=1e-9)
    for place, row in enumerate(map(torch.exp, found.log_p)):
        for option in range(len(row)):
            mine = sum(p for choices, p in answers.items() if choices[place] == option)
            assert float(row[option]) == pytest.approx(mine / total, abs=1e-9)
        assert float(row.sum()) == pytest.approx(1, abs=1e-12)
    assert answers[found.choices] == pytest.approx(max(answers.values()), rel=1e-9)
    assert found.joint == pytest.approx(max(answers.values()) / total, rel=1e-9)
    assert not broken(schema, found.choices)


@settings(unhurried, max_examples=30)
@given(problems())
def test_the_loss_has_the_gradient_of_its_definition(problem):
    schema, log_p = problem
    if not counted_out(schema, log_p) or system(schema) is None:
        return
    logits = [row.clone().requires_grad_() for row in log_p]
    loss = -log_satisfied(system(schema), [row.log_softmax(0) for row in logits])
    grads = torch.autograd.grad(loss, logits, allow_unused=True)
    leaves = [row.clone().requires_grad_() for row in log_p]
    p = [row.softmax(0) for row in leaves]
    total = sum(math.prod(p[i][c] for i, c in enumerate(choices)) for choices in counted_out(schema, log_p))
    for mine, brute in zip(grads, torch.autograd.grad(-total.log(), leaves, allow_unused=True), strict=True):
        brute = torch.zeros(1) if brute is None else brute
        torch.testing.assert_close(torch.zeros_like(brute) if mine is None else mine, brute, atol=1e-9, rtol=1e-7)


def test_triage_by_hand():
    found = condition(system(TRIAGE), log([0.2, 0.2, 0.6], [0.3, 0.7], [0.9, 0.1]))
    # P(rule) = 1 - 0.6 * 0.7; without it "critical" and "no human" would be the answer
    assert found.satisfied == pytest.approx(0.58)
    assert found.log_p[0].exp().tolist() == pytest.approx([0.2 / 0.58, 0.2 / 0.58, 0.18 / 0.58])
    assert found.log_p[1].exp().tolist() == pytest.approx([0.3 / 0.58, 0.28 / 0.58])
    assert found.log_p[2].exp().tolist() == pytest.approx([0.9, 0.1])  # no rule is about the team
    assert found.choices == (2, 0, 0)
    assert found.joint == pytest.approx(0.18 / 0.58 * 0.9)


def test_many_texts_are_conditioned_as_each_by_itself():
    rows = [
        torch.randn(7, len(f.options), generator=torch.Generator().manual_seed(i)).log_softmax(-1)
        for i, f in enumerate(TRIAGE.fields)
    ]
    many = condition_many(system(TRIAGE), rows)
    for i in range(7):
        one = condition(system(TRIAGE), [row[i].double() for row in rows])
        assert one.choices == tuple(many.choices[i].tolist())
        assert one.joint == pytest.approx(float(many.joint[i].exp()))
        for ours, theirs in zip(one.log_p, many.log_p, strict=True):
            torch.testing.assert_close(ours, theirs[i])


def test_without_rules_nothing_changes():
    schema = Schema((yes_no("a"), choice("b", 3)))
    assert system(schema) is None
    found = condition(None, log([0.4, 0.6], [0.2, 0.5, 0.3]))
    assert found.choices == (1, 1)
    assert found.joint == pytest.approx(0.3)
    assert found.satisfied == 1


def test_declared_rules_can_be_left_out_and_bounds_cannot():
    array = Array((("x", "a"), ("y", "b")), 1, 2)
    rule = Rule((Condition("a", (0,)),), (Condition("b", (1,)),))
    schema = Schema((yes_no("a"), yes_no("b")), (rule,), Object((("tags", array),)))
    both = condition(system(schema), log([0.9, 0.1], [0.8, 0.2]))
    bounds = condition(system(schema, declared=False), log([0.9, 0.1], [0.8, 0.2]))
    assert both.choices == (0, 1)
    assert bounds.choices == (0, 0)
    assert bounds.satisfied == pytest.approx(1 - 0.02)


def test_an_answer_of_probability_nearly_zero_is_still_a_distribution():
    p = [
        torch.tensor([0.0, -2000.0, -3000.0]).log_softmax(0),
        torch.tensor([-5000.0, 0.0]).log_softmax(0),
        torch.zeros(2).log_softmax(0),
    ]
    found = condition(system(TRIAGE), [torch.tensor([-3000.0, -2000.0, 0.0]).log_softmax(0), *p[1:]])
    assert found.choices[:2] == (1, 1)  # 2000 against 5000 nats
    assert float(found.log_p[0].exp().sum()) == pytest.approx(1)


def test_a_long_array_is_counted_and_not_listed():
    members = [yes_no(f"tag{i}") for i in range(60)]
    array = Array(tuple((f"t{i}", m.name) for i, m in enumerate(members)), 2, 3)
    schema = Schema(tuple(members), (), Object((("tags", array),)))
    found = condition(system(schema), log(*([[0.01 + i / 1000, 0.99 - i / 1000] for i in range(60)])))
    assert sorted(i for i, c in enumerate(found.choices) if c == 0) == [58, 59]
    assert 2 <= sum(float(row[0].exp()) for row in found.log_p) <= 3
    binomial = condition(system(schema), log(*([[0.5, 0.5]] * 60)))
    assert binomial.satisfied == pytest.approx((math.comb(60, 2) + math.comb(60, 3)) / 2**60)


def test_long_option_lists_cost_nothing():
    fields = tuple(choice(f"f{i}", 255) for i in range(6))
    rules = tuple(Rule((Condition(f"f{i}", (3, 5)),), (Condition(f"f{i + 1}", tuple(range(100))),)) for i in range(5))
    rules += (Rule(tuple(Condition(f"f{i}", (0,)) for i in range(6)), ()),)
    found = condition(system(Schema(fields, rules)), [torch.zeros(255).log_softmax(0)] * 6)
    assert 0.9 < found.satisfied < 1


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (
            [
                {"if": {"a": True}, "then": {"b": True}},
                {"if": {"a": True}, "then": {"b": False}},
                {"if": {"a": False}, "then": {"b": True}},
                {"not": {"b": True}},
            ],
            r"no answer meets \(a = true ⇒ b = true\) and \(a = false ⇒ b = true\) and \(not b = true\): drop",
        ),
        ([{"not": {"a": True}}, {"not": {"a": False}}], r"\(not a = true\) and \(not a = false\)"),
    ],
)
def test_contradictions_are_named(rules, words):
    schema = Schema.of({"fields": [{"name": "a", "type": "bool"}, {"name": "b", "type": "bool"}], "rules": rules})
    with pytest.raises(UserError, match=words):
        system(schema)


def test_an_array_can_be_part_of_a_contradiction():
    array = Array((("x", "a"), ("y", "b")), 1, 2)
    rules = tuple(Rule((Condition(name, (0,)),), ()) for name in ("a", "b"))
    with pytest.raises(UserError, match=r"1 to 2 of a, b"):
        system(Schema((yes_no("a"), yes_no("b")), rules, Object((("tags", array),))))


def test_what_takes_too_long_is_refused():
    fields = tuple(yes_no(f"f{i}") for i in range(24))
    rule = Rule(tuple(Condition(f.name, (0,)) for f in fields), ())
    with pytest.raises(UserError, match=f"24 values together in {2**24} combinations, more than the {LIMIT}"):
        system(Schema(fields, (rule,)))


def test_broken_rules_are_listed_and_said():
    assert broken(TRIAGE, (2, 1, 0)) == TRIAGE.rules
    assert broken(TRIAGE, (2, 0, 0)) == broken(TRIAGE, (1, 1, 0)) == ()
    assert rule_text(TRIAGE.rules[0], TRIAGE) == 'severity = "critical" ⇒ needs_human = true'
    wide = Rule((Condition("severity", (0, 1)), Condition("team", (1,))), ())
    assert rule_text(wide, TRIAGE) == 'not severity in {"low", "high"} and team = "infra"'
