"""``rlcd-lite calibrate`` and what infer makes of its file, on a tiny model and a data file."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest

from conftest import Command
from rlcd_lite.cli import main

SCHEMA = {
    "fields": [{"name": "severity", "type": "choice", "options": ["low", "high", "critical"]}, {"name": "human", "type": "bool"}],
    "rules": [{"if": {"severity": "critical"}, "then": {"human": True}}],
}


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema, labelled examples, and a calibration that was fitted to them."""
    place = tmp_path_factory.mktemp("calibrate")
    (place / "schema.json").write_text(json.dumps(SCHEMA))
    rng = random.Random(0)
    rows = []
    for i in range(100):
        labels = {"severity": rng.choice(["low", "high", "critical"]), "human": rng.random() < 0.5}
        rows.append({"text": f"ticket {i} {rng.random()}", "split": "calibration", **labels})
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:90]))
    (place / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:50] * 2))
    (place / "sure.jsonl").write_text("".join(json.dumps(row | {"human": True, "severity": "low"}) + "\n" for row in rows))
    (place / "new.jsonl").write_text("".join(json.dumps({"id": i, "text": f"new {i}"}) + "\n" for i in range(5)))
    args = ["--dataset", str(place / "rows.jsonl"), "--schema", str(place / "schema.json"), "--n", "50", "--held-out-n", "50"]
    main(["calibrate", "--model", str(model_folder), *args, "--output", str(place / "calibration.json")])
    return place


@pytest.fixture
def call(folder: Path, run_command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in that folder."""
    monkeypatch.chdir(folder)
    return run_command


ASK = ("--schema", "schema.json", "--context", "All is down.")
FIT = ("--dataset", "rows.jsonl", "--schema", "schema.json", "--n", "50", "--held-out-n", "50")


def test_the_summary_says_what_was_taken_and_what_it_is_worth(call) -> None:
    code, out, err = call("calibrate", *FIT, "--output", "again.json")
    assert code == 0, err
    lines = [line.split("\t") for line in out.splitlines()]
    assert [line[0] for line in lines] == ["field", "severity", "human"]
    assert len({len(line) for line in lines}) == 1
    assert Path("again.json").read_bytes() == Path("calibration.json").read_bytes()  # the same rows give the same file
    code, _, err = call("calibrate", *FIT, "--output", "again.json")
    assert code == 2
    assert "--overwrite" in err
    Path("again.json").unlink()


def test_every_answer_says_what_was_applied(call) -> None:
    code, out, err = call("infer", *ASK, "--calibration", "calibration.json", "--json")
    assert code == 0, err
    answer = json.loads(out)
    kept = json.loads(Path("calibration.json").read_text())["fields"]
    assert answer["broken_rules"] == []
    for name, field in answer["fields"].items():
        applied = field["calibration"]
        assert 0 <= field["confidence"] <= 1
        assert (applied["rows"], applied["held_out"]["rows"]) == (50, 50)
        assert applied["held_out"]["ece"] == kept[name]["ece"]
        assert applied["signal"] in ("softmax", "stated", "stated_mean", "fused", "rules")
        assert sum(field["probabilities"].values()) == pytest.approx(1)
        assert "action" not in field
    code, out, _ = call("infer", *ASK, "--calibration", "calibration.json")
    assert code == 0
    assert "confidence" in out.splitlines()[0]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_files_of_decisions_say_what_to_do(call, ending: str, tmp_path: Path) -> None:
    act = ("--calibration", "calibration.json", "--max-risk", "0.9", "--sets", "0.2")
    output = tmp_path / f"out.{ending}"
    code, _, err = call("infer", "--schema", "schema.json", "--input", "new.jsonl", *act, "--output", str(output))
    assert code == 0, err
    if ending == "csv":
        with output.open(newline="") as file:
            found = [
                {n: (r[f"{n}.action"], json.loads(r[f"{n}.set"]), float(r[f"{n}.confidence"])) for n in ("severity", "human")}
                for r in csv.DictReader(file)
            ]
    else:
        lines = [json.loads(line)["fields"] for line in output.read_text().splitlines()]
        found = [{n: (f["action"], f["set"], f["confidence"]) for n, f in fields.items()} for fields in lines]
    assert len(found) == 5
    assert {row["human"][0] for row in found} <= {"automate", "review"}
    assert all(set(row["severity"][1]) <= {"low", "high", "critical"} for row in found)
    code, _, err = call("infer", "--schema", "schema.json", "--input", "new.jsonl", "--output", str(output), "--resume")
    assert code == 2
    assert "was made with calibration_sha256" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-risk", "0.1"), "--max-risk 0.1 rests on held-out rows: give --calibration"),
        (("--sets", "0.1"), "--sets 0.1 rests on held-out rows"),
        (("--calibration", "calibration.json", "--max-risk", "1.5"), "--max-risk is 1.5: use a number between 0 and 1"),
        (("--calibration", "calibration.json", "--max-risk", "0.1", "--delta", "0"), "--delta is 0"),
        (("--calibration", "calibration.json", "--sets-per-option"), "--sets-per-option is about --sets"),
        (("--calibration", "calibration.json", "--delta", "0.2"), "--delta is about --max-risk"),
        (("--calibration", "calibration.json", "--set-method", "aps"), "--set-method is about --sets"),
        (("--calibration", "calibration.json", "--sets", "1e-320"), "use a number between 0 and 1"),
        (("--calibration", "none.json"), "'none.json' does not exist"),
        (("--calibration", "schema.json"), "damaged"),
        (("--calibration", "calibration.json", "--consistency", "measure"), "fitted with --consistency enforce, not measure"),
        (
            ("--calibration", "calibration.json", "--layout", "context-first"),
            "was fitted with layout 'schema-first', not 'context-first'",
        ),
        (("--calibration", "calibration.json", "--permutations", "2"), "was fitted with permutations 1, not 2"),
        (("--calibration", "calibration.json", "--max-risk", "0.0001"), "can't be certified"),
        (("--calibration", "calibration.json", "--sets", "0.001"), "need 999 held-out rows, and there are 50"),
    ],
)
def test_what_infer_refuses(call, flags: tuple[str, ...], words: str) -> None:
    code, out, err = call("infer", *ASK, *flags)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") <= 2


def test_another_schema_or_tokenizer_is_refused(call, tmp_path: Path) -> None:
    other = tmp_path / "schema.json"
    other.write_text(json.dumps(SCHEMA | {"rules": []}))
    code, _, err = call("infer", "--schema", str(other), "--context", "x", "--calibration", "calibration.json")
    assert code == 2
    assert "other rules" in err
    whole = json.loads(Path("calibration.json").read_text())
    for key, words in (("labels", "another tokenizer"), ("weights", "other weights, or another adapter")):
        (tmp_path / "c.json").write_text(json.dumps(whole | {"made_by": whole["made_by"] | {key: "0" * 16}}))
        code, _, err = call("infer", *ASK, "--calibration", str(tmp_path / "c.json"))
        assert code == 2
        assert words in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--n", "10"), "--n is 10: it must be at least 50"),
        (("--held-out-n", "10"), "--held-out-n is 10"),
        (("--dataset", "few.jsonl"), "has 90 examples in its calibration split with texts of their own, not 100"),
        (("--dataset", "twice.jsonl"), " examples in its calibration split with texts of their own, not 100"),
        (("--dataset", "synthetic"), "leave --schema out"),
        (("--fields", "severity,nothing"), "no field 'nothing'"),
        (("--fields", "human,human"), "names a field twice"),
        (("--dataset", "nothing.jsonl"), "nothing.jsonl"),
        (("--prior", "none.json"), "none.json"),
        (("--prior", "contexts"), "--prior contexts differs from file to file"),
        (("--seed", "-1"), "--seed is -1"),
    ],
)
def test_what_calibrate_refuses(call, flags: tuple[str, ...], words: str) -> None:
    code, out, err = call("calibrate", *FIT, "--output", "new.json", *flags)
    assert (code, out) == (2, "")
    assert words in err
    assert not Path("new.json").exists()


def test_a_field_that_is_always_right_is_refused_and_can_be_left_out(call, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in Path("sure.jsonl").read_text().splitlines()]
    code, out, err = call("infer", "--schema", "schema.json", "--input", "sure.jsonl", "--consistency", "measure")
    assert code == 0, err
    answers = [json.loads(line)["decision"] for line in out.splitlines()]
    right = [row | {"human": answer["human"]} for row, answer in zip(rows, answers, strict=True)]
    rng = random.Random(1)
    right = [row | {"severity": rng.choice(["low", "high", "critical"])} for row in right]
    Path("right.jsonl").write_text("".join(json.dumps(row) + "\n" for row in right))
    fit = ("--dataset", "right.jsonl", *FIT[2:], "--output", "right.json")
    code, _, err = call("calibrate", *fit)
    assert code == 2
    assert "field 'human' has 0 wrong choices in 50 rows" in err
    code, _, err = call("calibrate", *fit, "--fields", "severity")
    assert code == 0, err
    assert list(json.loads(Path("right.json").read_text())["fields"]) == ["severity"]
