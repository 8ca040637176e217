"""From scores to answers that can be acted on: one way for held-out rows and for texts, and promises that follow from the rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from conftest import tiny_engine
from rlcd_lite.answers import answers, decision
from rlcd_lite.calibration_file import Calibration, asked, read_calibration, tied, write_calibration
from rlcd_lite.contract import Contract
from rlcd_lite.decision_table import DecisionRow
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.held_out import calibrated_fields
from rlcd_lite.models import LoadedModel
from rlcd_lite.promises import promise, promise_field, refusal
from rlcd_lite.schema import Schema
from rlcd_lite.scores import FieldScores

GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
SCHEMA = Schema.of(
    {
        "fields": [
            {"name": "severity", "type": "choice", "options": ["low", "high", "critical"]},
            {"name": "human", "type": "bool"},
        ],
        "rules": [{"if": {"severity": "critical"}, "then": {"human": True}}],
    }
)


def rows(n, seed=0, split="fit", sharpness=3.0):
    """Of an over-confident model: labels are drawn from the product of softmax(z) given the rule; its logits are sharpness · z."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        z = [rng.normal(size=len(field.options)) * 1.5 for field in SCHEMA.fields]
        while True:
            labels = [int(rng.choice(len(row), p=np.exp(row) / np.exp(row).sum())) for row in z]
            if labels != [2, 1]:  # critical without a human
                break
        for field, row, label in zip(SCHEMA.fields, z, labels, strict=True):
            stated = tuple(np.float32(rng.normal(size=5)).tolist())
            logits = tuple(np.float32(sharpness * row).tolist())
            out.append(DecisionRow(split, f"{split}-{i}", field.name, label, logits, stated, GRID, 1.0))
    return out


@pytest.fixture(scope="module")
def calibrated():
    """A calibration, and the rows that were held out."""
    fit, held = rows(300, 0), rows(300, 1, "held-out")
    schemas = {row.example: SCHEMA for row in fit + held}
    fields = calibrated_fields(fit, held, schemas, ["severity", "human"], "enforce")
    about = {
        "version": 2,
        "made_by": {"model": "toy", "layout": "schema-first"},
        "dataset": "toy 0",
        "asked": dict(asked(SCHEMA)),
    }
    about |= {"varying": False, "tied": tied(SCHEMA), "consistency": "enforce", "rows": 300, "held_out_rows": 300}
    return Calibration.model_validate(about | {"fields": fields}), held


def scores(severity, human, stated=(0.0,) * 5):
    return tuple(FieldScores(torch.tensor(z), torch.tensor(stated), GRID) for z in (severity, human))


def by_example(table):
    return [table[i : i + 2] for i in range(0, len(table), 2)]


def test_held_out_rows_are_decided_as_texts_are(calibrated):
    """What a file promises is about the numbers that an answer has."""
    calibration, held = calibrated
    for i, pair in enumerate(by_example(held)[:40]):
        found = decision(
            SCHEMA,
            tuple(FieldScores(torch.tensor(r.logits), torch.tensor(r.stated_logits), GRID) for r in pair),
            [None, None],
            calibration,
        )
        for row, answer in zip(pair, found.fields, strict=True):
            kept = calibration.fields[row.field].held_out
            assert answer.applied.confidence == pytest.approx(kept.confidence[i], abs=1e-12)
            assert answer.probabilities[row.label] == pytest.approx(kept.label_probability[i], abs=1e-12)
            assert kept.correct[i] == (answer.choice == row.label)
            assert (answer.applied.rows, answer.applied.held_out_rows) == (300, 300)


def test_calibration_makes_an_over_confident_model_honest(calibrated):
    calibration, held = calibrated
    for name, entry in calibration.fields.items():
        right = np.array(entry.held_out.correct)
        raw = [float(np.exp(max(r.logits)) / np.exp(r.logits).sum()) for r in held if r.field == name]
        assert abs(np.mean(raw) - right.mean()) > 0.1
        assert abs(np.mean(entry.held_out.confidence) - right.mean()) < 0.05
        assert entry.ece.estimate < 2 * entry.ece.null_floor
        assert entry.distribution.kind in ("temperature", "ensemble")
        assert entry.options == len(SCHEMA[name].options)


def test_rules_change_the_choice_and_what_it_is_worth(calibrated):
    calibration, _ = calibrated
    (((severity, human), joint),) = answers(
        SCHEMA,
        [scores([0.0, 0.0, 9.0], [0.0, 1.0])],
        "enforce",
        {n: f.distribution for n, f in calibration.fields.items()},
        {n: f.fitted for n, f in calibration.fields.items()},
    )
    assert (severity.choice, human.choice) == (2, 0)  # critical is the surer of the two, so a human is needed
    assert human.signal != "rules"  # given the rules, that is its most probable option
    assert float(human.log_p[0].exp()) > 0.5
    assert severity.signal != "rules"
    assert 0 < joint < 1
    ((measured, _),) = answers(SCHEMA, [scores([0.0, 0.0, 9.0], [0.0, 1.0])], "measure", {}, {})
    assert [a.choice for a in measured] == [2, 1]
    assert [a.confidence for a in measured] == [None, None]


def test_a_choice_that_is_not_its_fields_most_probable_is_as_sure_as_its_probability(calibrated):
    """P(critical, human) = 0.2 is the most probable pair; low and high are 0.15 each with and without a human."""
    calibration, _ = calibrated
    confidences = {n: f.fitted for n, f in calibration.fields.items()}
    asked_of = scores(np.log([0.3, 0.3, 0.4]).tolist(), np.log([0.5, 0.5]).tolist())
    (((severity, human), joint),) = answers(SCHEMA, [asked_of], "enforce", {}, confidences)
    assert (severity.choice, human.choice) == (2, 0)
    assert (severity.confidence, severity.signal) == (pytest.approx(0.2 / 0.8), "rules")
    assert human.signal != "rules"
    assert joint == pytest.approx(0.2 / 0.8)


def test_a_decision_says_which_rules_it_breaks():
    asked_of = scores([0.0, 0.0, 9.0], [0.0, 1.0])
    measured = decision(SCHEMA, asked_of, [None, None], consistency="measure")
    enforced = decision(SCHEMA, asked_of, [None, None])
    assert measured.to_dict()["broken_rules"] == ['severity = "critical" ⇒ human = true']
    assert enforced.to_dict()["broken_rules"] == []
    assert enforced.values == {"severity": "critical", "human": True}
    p = enforced["human"].probabilities
    assert sum(p) == pytest.approx(1)
    assert p[0] > measured["human"].probabilities[0]


def test_a_calibration_is_kept_as_it_is(calibrated, tmp_path):
    calibration, _ = calibrated
    write_calibration(tmp_path / "c.json", calibration)
    assert read_calibration(tmp_path / "c.json") == calibration
    assert not list(tmp_path.glob("*.part"))


def test_a_calibration_is_refused_for_anything_else(calibrated, tmp_path):
    calibration, _ = calibrated
    path = tmp_path / "c.json"
    write_calibration(path, calibration)
    calibration.check_model({"model": "other", "layout": "schema-first"})  # a model may go by another name
    with pytest.raises(UserError, match=r"fitted with layout 'schema-first', not 'context-first'"):
        calibration.check_model({"model": "toy", "layout": "context-first"})
    with pytest.raises(UserError, match="does not exist"):
        read_calibration(tmp_path / "none.json")
    whole = json.loads(path.read_text())
    for change, words in (
        ({"version": 9}, "has version 9"),
        ({"rows": "many"}, "is damaged .*rows"),
        ({"fields": {"severity": {}}}, r"is damaged .*fields\.severity"),
        ({"fields": {}}, "is damaged .*not some of those that are asked"),
        ({"fields": {"other": whole["fields"]["human"]}}, "is damaged .*not some of those that are asked"),
        ({"held_out_rows": 30}, "is damaged .*other numbers of rows"),
        ({"fields": {"human": whole["fields"]["human"] | {"options": -1}}}, r"is damaged .*fields\.human\.options"),
        ({"fields": {"severity": whole["fields"]["severity"] | {"options": 2}}}, "is damaged .*right option 2 of 2"),
        ({"fields": {"human": whole["fields"]["human"] | {"grid": [0.9, 0.1]}}}, "is damaged .*ascend"),
        ({"more": 1}, "is damaged .*more"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(UserError, match=words):
            read_calibration(path)
    for broken in (
        "",
        "[]",
        "{",
        '{"version": 1',
        json.dumps(whole).replace(str(whole["fields"]["human"]["held_out"]["confidence"][0]), "NaN", 1),
    ):
        path.write_text(broken)
        with pytest.raises(UserError, match="damaged"):
            read_calibration(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {
                "fields": [
                    {"name": "severity", "type": "choice", "options": ["low", "high", "fatal"]},
                    {"name": "human", "type": "bool"},
                ],
                "rules": [],
            },
            "field 'severity' differs",
        ),
        ({"fields": [{"name": "human", "type": "bool"}], "rules": []}, "for the fields severity, human, not human"),
        ({"rules": [{"not": {"severity": "critical"}}]}, "other rules"),
        ({"rules": []}, "other rules"),
    ],
)
def test_another_schema_is_refused(calibrated, change, words):
    calibration, _ = calibrated
    calibration.check(SCHEMA, "enforce")
    other = Schema.of(SCHEMA.to_dict() | change)
    with pytest.raises(UserError, match=words):
        calibration.check(other, "enforce")
    with pytest.raises(UserError, match=words):
        decision(other, scores([0.0] * 3, [0.0] * 2)[-len(other.fields) :], [None] * len(other.fields), calibration)


def test_another_way_with_rules_is_refused(calibrated):
    with pytest.raises(UserError, match="--consistency enforce, not measure"):
        calibrated[0].check(SCHEMA, "measure")


def test_options_that_vary_are_not_compared():
    one, two = (Schema.of({"fields": [{"name": "a", "type": "choice", "options": o}]}) for o in (["x", "y"], ["u", "v", "w"]))
    assert asked(one, varying=True) == asked(two, varying=True)
    assert asked(one) != asked(two)


# ---- promises ----


def test_answers_are_automated_from_the_threshold_on(calibrated):
    calibration, held = calibrated
    promises = promise(calibration, max_risk=0.3)
    marked = [promises.keep(_decide(pair, calibration)) for pair in by_example(held)]
    for name, certificate in promises.certificates.items():
        entry = calibration.fields[name]
        automated = [d[name].action == "automate" for d in marked]
        if certificate.threshold is None:
            assert not any(automated)
            continue
        assert sum(automated) == certificate.automated
        wrong = sum(a and not c for a, c in zip(automated, entry.held_out.correct, strict=True))
        assert wrong == certificate.errors
        assert wrong / sum(automated) < 0.3
    assert any(c.threshold is not None for c in promises.certificates.values())


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_hold_the_label_of_as_many_held_out_rows_as_they_say(calibrated, method):
    calibration, held = calibrated
    promises = promise(calibration, sets=0.2, method=method)
    pairs = by_example(held)
    marked = [promises.keep(_decide(pair, calibration)) for pair in pairs]
    for i, field in enumerate(SCHEMA.fields):
        hits = [pair[i].label in d[field.name].options for pair, d in zip(pairs, marked, strict=True)]
        assert 0.8 <= np.mean(hits) <= (0.81 if method == "lac" else 1)
    assert marked[0].to_dict()["fields"]["severity"]["set"] == [
        SCHEMA["severity"].options[i].value for i in marked[0]["severity"].options
    ]
    assert marked[0]["severity"].action is None


def test_sets_per_option_cover_every_label(calibrated):
    calibration, held = calibrated
    promises = promise(calibration, sets=0.2, per_option=True)
    pairs = by_example(held)
    marked = [promises.keep(_decide(pair, calibration)) for pair in pairs]
    for label in range(3):
        hits = [label in d["severity"].options for pair, d in zip(pairs, marked, strict=True) if pair[0].label == label]
        assert np.mean(hits) >= 0.8


def test_what_cannot_be_certified_is_refused_with_what_it_takes(calibrated):
    calibration, _ = calibrated
    with pytest.raises(UserError, match=r"field 'severity' can't be certified at a risk of 0.0001 and"):
        promise(calibration, max_risk=0.0001)
    perfect = calibration.fields["human"].held_out.model_copy(update={"correct": (1,) * 300})
    short = calibration.fields["human"].model_copy(update={"held_out": perfect})
    certificate = promise_field(short, 0.001)
    assert certificate.threshold is None
    assert f"needs about {certificate.more_rows} held-out rows more than its 300" in refusal("human", certificate)
    with pytest.raises(UserError, match=r"sets that miss at most 0.001 need 999 held-out rows"):
        promise(calibration, sets=0.001)


def test_a_field_without_a_calibrator_is_for_review(calibrated):
    calibration, held = calibrated
    fewer = calibration.model_copy(update={"fields": {"severity": calibration.fields["severity"]}})
    found = promise(fewer, max_risk=0.4).keep(_decide(by_example(held)[0], fewer))
    assert found["human"].applied is None
    assert found["human"].action == "review"
    assert "confidence" not in found.to_dict()["fields"]["human"]


def test_a_refusal_says_when_more_rows_are_of_no_use(calibrated):
    calibration, _ = calibrated
    entry = calibration.fields["severity"]
    wrong = entry.held_out.model_copy(update={"correct": (0,) * 300})
    found = promise_field(entry.model_copy(update={"held_out": wrong}), 0.1)
    assert "errs too often at every confidence" in refusal("severity", found)


def _decide(pair, calibration):
    found = tuple(FieldScores(torch.tensor(r.logits), torch.tensor(r.stated_logits), GRID) for r in pair)
    return decision(SCHEMA, found, [None, None], calibration)


def test_a_calibration_is_for_one_model_and_one_way_of_asking(calibrated, tokenizer):
    calibration, _ = calibrated
    engine = tiny_engine(tokenizer, "llama")
    again = LoadedModel(engine.model, engine.encoder.tokenizer, engine.name)
    own = calibration.model_copy(update={"made_by": engine.made_by()})
    answer = DecisionEngine(again, calibration=own).decide(SCHEMA, "All is down.")
    assert answer["human"].applied is not None
    with pytest.raises(UserError, match="for the layout schema-first, and a session holds its text first"):
        DecisionEngine(again, calibration=own).session("All is down.")
    for other, words in (
        ({"permutations": 2}, "permutations 1, not 2"),
        ({"prior": "content-free"}, "prior None, not 'content-free'"),
        ({"contract": Contract(layout="context-first")}, "layout 'schema-first', not 'context-first'"),
        ({"contract": Contract(grid="10")}, "confidence_grid '5', not '10'"),
    ):
        with pytest.raises(UserError, match=words):
            DecisionEngine(again, **other, calibration=own)
    with torch.no_grad():
        next(iter(engine.model.parameters())).add_(1e-6)
    with pytest.raises(UserError, match="other weights, or another adapter"):
        DecisionEngine(again, calibration=own)
