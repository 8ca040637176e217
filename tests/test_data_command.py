"""`rlcd-lite data`: results on stdout, one sentence for a mistake, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tyro

from rlcd_lite.commands.data import Data
from rlcd_lite.datasets import SETS, load
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema

Capture = pytest.CaptureFixture[str]


def run(arguments: str) -> None:
    tyro.cli(Data, args=arguments.split()).run()


def test_list_names_every_set_and_where_it_would_be_read_from(
    data_dir: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLCD_DATA_DIR", raising=False)
    run(f"--list --data-dir {data_dir}")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["name", "synthetic", *SETS]
    assert all(line.endswith("\tyes") for line in lines[1:])
    run(f"--list --data-dir {tmp_path}")
    assert capsys.readouterr().out.count("\tno\n") == len(SETS)
    run("--list --json")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["banking77"]["source"] == "hub: legacy-datasets/banking77"
    assert rows["banking77"]["there"] == "when online"
    assert rows["banking77"]["rows"] == {"train": 9008, "calibration": 984, "test": 3080}
    assert rows["synthetic"]["rows"]["train"] is None
    monkeypatch.setattr("rlcd_lite.commands.data.hub_is_installed", lambda: False)
    run("--list")
    assert "no (needs rlcd-lite[data])" in capsys.readouterr().out


def test_list_on_a_terminal_is_a_table(data_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run(f"--list --data-dir {data_dir}")
    out = capsys.readouterr().out
    assert "goemotions" in out
    assert "\t" not in out


def test_show(data_dir: Path, capsys: Capture) -> None:
    run("synthetic --show 2 --split test --seed 3")
    out = capsys.readouterr().out
    assert out.count("synthetic-test-3-") == 2
    assert out.count("probabilities: low ") == 2
    run(f"arc:easy --show 2 --split test --data-dir {data_dir} --json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = load("arc:easy", "test", 2, data_dir=data_dir)
    assert [row["labels"] for row in rows] == [e.labels for e in expected]
    assert [Schema.of(row["schema"]) for row in rows] == [e.schema for e in expected]
    run(f"clinc150 --show 1 --data-dir {data_dir}")
    assert "… (151)" in capsys.readouterr().out


def test_export_writes_the_documented_rows_whole_or_not_at_all(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "t.jsonl"
    run(f"synthetic --export {path} --split calibration --n 3")
    captured = capsys.readouterr()
    tickets = load("synthetic", "calibration", 3)
    assert captured.out == ""
    assert f"3 examples, hash {tickets.hash}" in captured.err
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [set(row) for row in rows] == [{"id", "context", "labels", "posterior"}] * 3
    assert rows[0]["posterior"]["team"].keys() == {"billing", "auth", "infra", "frontend"}
    assert rows[0]["posterior"]["needs_human"].keys() == {"true", "false"}
    assert [row["id"] for row in rows] == [e.id for e in tickets]
    with pytest.raises(UserError, match=r"t\.jsonl' exists: choose another name or give --overwrite"):
        run(f"synthetic --export {path} --n 1")
    run(f"synthetic --export {path} --n 1 --overwrite")
    assert len(path.read_text().splitlines()) == 1
    with pytest.raises(UserError, match="can't be written"):
        run(f"synthetic --export {tmp_path / 'no' / 't.jsonl'} --n 1")
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_check_of_synthetic_prints_the_bayes_numbers(capsys: Capture) -> None:
    run("synthetic --check --n 200")
    out = capsys.readouterr().out
    assert "texts in two splits: 0" in out
    assert "severity\t0.8830\t" in out
    run("synthetic --check --n 200 --json")
    report = json.loads(capsys.readouterr().out)
    assert report["bayes"]["needs_human"]["accuracy"] > 0.85
    assert report["splits"]["test"]["rows"] == 200


def test_check_of_a_set_and_of_a_file(data_dir: Path, tmp_path: Path, capsys: Capture) -> None:
    run(f"goemotions --check --data-dir {data_dir}")
    out = capsys.readouterr().out
    assert "rows read: train 43,410, validation 5,426, test 5,427" in out
    assert "left out without a single label: 8,817" in out
    run(f"mmlu --check --json --data-dir {data_dir}")
    report = json.loads(capsys.readouterr().out)
    assert set(report["splits"]["test"]["labels"]["answer"]) == {"option 1", "option 2", "option 3", "option 4"}
    assert report["texts_in_two_splits"] == 0
    schema, rows = tmp_path / "s.json", tmp_path / "r.csv"
    schema.write_text('{"fields": [{"name": "ok", "type": "bool"}]}')
    rows.write_text("text,ok\n" + "".join(f"row {i},{'true' if i % 3 else 'false'}\n" for i in range(100)))
    run(f"{rows} --schema {schema} --check")
    assert "rows read: file 100" in capsys.readouterr().out


def test_check_counts_tokens(tmp_path: Path, capsys: Capture) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(tmp_path)
    run(f"synthetic --check --n 20 --json --tokenizer {tmp_path}")
    tokens = json.loads(capsys.readouterr().out)["splits"]["train"]["tokens"]
    lengths = sorted(len(e.context.split()) for e in load("synthetic", "train", 20))
    assert (tokens["least"], tokens["most"]) == (lengths[0], lengths[-1])
    with pytest.raises(UserError, match=r"'.*none' does not exist"):
        run(f"synthetic --check --n 20 --tokenizer {tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "asked for 0 things: give one of --list, --show, --check and --export"),
        ("boolq --show 3 --check", "asked for 2 things"),
        ("boolq --list", "--list shows all sets, not 'boolq' alone"),
        ("--show 3", "no data set is named"),
        ("boolqq --show 3", "did you mean 'boolq'"),
        ("boolq --check --n 3", "--check counts all rows of 'boolq': leave --n out"),
        ("synthetic --show 0", "n is 0"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(arguments)
