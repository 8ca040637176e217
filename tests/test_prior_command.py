"""``rlcd-lite prior``, and what infer and eval do with its file and with the flags about orders."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from conftest import TRIAGE, Command
from rlcd_lite.decision_table import read_table
from rlcd_lite.summary import read_eval


@pytest.fixture
def call(run_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in a folder with a schema and rows."""
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(json.dumps(TRIAGE))
    rows = [{"text": f"ticket {i} about the {'login' if i % 2 else 'bill'}"} for i in range(6)]
    rows += [{"text": " "}, {"text": "word " * 3000}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_command


def decisions(out: str) -> list[dict]:
    return [json.loads(line)["fields"] for line in out.splitlines()]


@pytest.mark.parametrize("scoring", ["labels", "verbatim"])
def test_a_prior_from_a_file_is_the_prior_of_the_same_rows(call, scoring: str) -> None:
    asked = ("--scoring", scoring, "--schema", "schema.json", "--input", "rows.jsonl")
    code, _, err = call("prior", *asked)
    assert code == 0, err
    assert "prior.json: 4 questions over 6 texts" in err
    code, plain, _ = call("infer", *asked, "--prior", "none")
    assert code == 0
    found = []
    for prior in ("prior.json", "contexts"):
        code, out, err = call("infer", *asked, "--prior", prior)
        assert code == 0, err
        found.append(decisions(out))
    assert len(found[0]) == 6
    for ours, theirs, raw in zip(*found, decisions(plain), strict=True):
        for name, field in ours.items():
            assert field["prior"] == theirs[name]["prior"] == "mean over 6 texts"
            assert list(field["probabilities"].values()) == pytest.approx(list(theirs[name]["probabilities"].values()), abs=1e-5)
            assert list(field["probabilities"].values()) != pytest.approx(list(raw[name]["probabilities"].values()), abs=1e-3)
            assert "prior" not in raw[name]


def test_orders_are_told_in_every_answer(call) -> None:
    asked = ("--schema", "schema.json", "--context", "the login fails", "--json")
    for permutations, tried in (("3", {3}), ("auto", {2, 4, 8})):
        code, out, err = call("infer", *asked, "--permutations", permutations)
        assert code == 0, err
        for field in json.loads(out)["fields"].values():
            assert field["orders"]["tried"] in tried
            assert 0 <= field["orders"]["total_variation"] <= 1
    code, out, _ = call("infer", *asked, "--scoring", "verbatim")
    assert code == 0
    assert all(field["prior"] == "content-free" and "orders" not in field for field in json.loads(out)["fields"].values())


@pytest.mark.parametrize(
    "flags",
    [(), ("--permutations", "2"), ("--scoring", "verbatim"), ("--scoring", "verbatim", "--permutations", "auto", "--coverage")],
    ids=" ".join,
)
def test_a_csv_has_a_column_for_everything_that_is_told(call, flags: tuple[str, ...]) -> None:
    asked = ("--schema", "schema.json", "--input", "rows.jsonl", *flags)
    code, out, err = call("infer", *asked)
    assert code == 0, err
    told = decisions(out)
    code, _, err = call("infer", *asked, "--output", "out.csv")
    assert code == 0, err
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(told)
    for row, fields in zip(rows, told, strict=True):
        for name, field in fields.items():
            for part in field.keys() - {"value"}:
                cell = row[f"{name}.{part}"]
                assert (json.loads(cell) if isinstance(field[part], dict | float) else cell) == field[part]


@pytest.mark.parametrize(
    ("command", "args", "words"),
    [
        ("infer", ("--context", "x", "--prior", "contexts"), "measured on the rows of --input"),
        ("infer", ("--context", "x", "--prior", "no.json"), "does not exist: write it with rlcd-lite prior"),
        ("infer", ("--context", "x", "--prior", "other.json"), "measured with scoring 'verbatim', not 'labels'"),
        ("infer", ("--context", "x", "--prior", "schema.json"), "is damaged"),
        ("infer", ("--context", "x", "--permutations", "0"), "--permutations is 0"),
        ("infer", ("--context", "x", "--permutations", "many"), "permutations"),
        ("infer", ("--context", "x", "--scoring", "letters"), "scoring"),
        ("prior", (), "the texts are needed once"),
        ("prior", ("--input", "rows.jsonl", "--n", "0"), "--n is 0"),
        ("prior", ("--input", "rows.jsonl", "--output", "other.json"), "replace it with --overwrite"),
        ("prior", ("--input", "rows.jsonl", "--text-column", "body"), "name the text with --text-column"),
        ("prior", ("--dataset", "synthetic"), "--dataset names a set of its own schema"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(call, command: str, args: tuple[str, ...], words: str) -> None:
    code, _, err = call(
        "prior", "--scoring", "verbatim", "--schema", "schema.json", "--input", "rows.jsonl", "--output", "other.json"
    )
    assert code == 0, err
    before = Path("other.json").read_bytes()
    code, _, err = call(command, "--schema", "schema.json", *args)
    assert code == 2
    assert words in " ".join(err.split())
    assert Path("other.json").read_bytes() == before
    assert not Path("prior.json").exists()


def test_eval_measures_the_prior_without_labels_and_says_how_it_asked(call, data_dir: Path, monkeypatch) -> None:
    monkeypatch.setenv("RLCD_DATA_DIR", str(data_dir))
    small = ("--n", "6", "--calibration-n", "4", "--resamples", "5", "--datasets", "clinc150:none")
    tables = {}
    for prior in ("none", "contexts"):
        code, _, err = call("eval", *small, "--scoring", "verbatim", "--prior", prior, "--output", prior)
        assert code == 0, err
        tables[prior] = read_table(Path(prior, "decisions", "base--clinc150_none.csv.gz"))
        (result,) = read_eval(Path(prior, "eval.json"))["results"]
        assert (result["contract"]["scoring"], result["contract"]["prior"]) == ("verbatim", prior)
        assert "scope" in result
    mean = [sum(row.logits[k] for row in tables["none"][:4]) / 4 for k in range(151)]
    for raw, less in zip(tables["none"], tables["contexts"], strict=True):
        assert less.logits == pytest.approx([a - b for a, b in zip(raw.logits, mean, strict=True)], abs=1e-3)
    code, _, err = call("eval", *small, "--scoring", "verbatim", "--permutations", "2", "--prior", "none", "--output", "none")
    assert code == 2
    assert "was made with permutations 1, not 2" in err
