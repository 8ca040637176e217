"""The infer command as a user meets it: outputs, resuming, traces, and a sentence with exit code 2 for every mistake."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from conftest import TRIAGE
from rlcd_lite.cli import main
from rlcd_lite.engine import DecisionEngine

SCHEMA = json.dumps(TRIAGE)
TEXT = "Prod DB timing out on writes."
NAMES = [f["name"] for f in TRIAGE["fields"]]


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def infer(model_folder: Path, capsys):
    """Runs `rlcd-lite infer` in this process on the tiny model."""

    def run(*args: object, schema: str | None = SCHEMA) -> Result:
        command = ["infer", "--model", str(model_folder), *map(str, args)]
        if schema is not None:
            command += ["--schema-json", schema]
        code = 0
        try:
            main(command)
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "text": f"ticket {i} " + "x" * (i % 7)}) + "\n" for i in range(12)))
    return path


# ---- one text ----


def test_json_is_one_object_with_every_promised_key(infer) -> None:
    result = infer("--context", TEXT, "--json", "--coverage")
    answer = json.loads(result.out)
    assert result.code == 0
    assert list(answer) == ["decision", "probability", "fields"]
    assert answer["probability"] == pytest.approx(math.prod(field["probability"] for field in answer["fields"].values()))
    assert list(answer["decision"]) == list(answer["fields"]) == NAMES
    for name, field in answer["fields"].items():
        expected = {"value", "probabilities", "probability", "stated", "stated_mean", "coverage"}
        assert set(field) == expected | ({"expectation"} if name == "stars" else set())
        assert field["value"] == answer["decision"][name]
        assert sum(field["probabilities"].values()) == pytest.approx(1)
    assert "coverage" not in json.loads(infer("--context", TEXT, "--json").out)["fields"]["team"]


def test_the_command_and_the_library_agree(infer, model_folder: Path) -> None:
    decision = DecisionEngine.load(str(model_folder)).decide(TRIAGE, TEXT)
    assert json.loads(infer("--context", TEXT, "--json").out) == json.loads(json.dumps(decision.to_dict()))


def test_the_table_shows_every_field(infer) -> None:
    result = infer("--context", TEXT)
    assert all(name in result.out for name in NAMES)
    assert "(mean " in result.out


def test_markup_in_names_is_shown_as_it_is(infer) -> None:
    schema = '{"fields": [{"name": "[red]a[/red]", "type": "choice", "options": ["[b]", "[/b]"]}]}'
    assert "[red]a[/red]" in infer("--context", TEXT, schema=schema).out


def test_files_and_standard_input_hold_the_text(infer, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\ufeff" + TEXT, encoding="utf-8")
    expected = infer("--context", TEXT, "--json").out
    assert infer("--context-file", path, "--json").out == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert infer("--context-file", "-", "--json").out == expected


def test_json_schema_files_work(infer, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}}')
    assert isinstance(json.loads(infer("--context", TEXT, "--schema", path, "--json", schema=None).out)["decision"]["ok"], bool)


def test_a_nested_schema_gives_a_nested_object_and_columns_of_its_leaves(infer, rows: Path, tmp_path: Path) -> None:
    tags = {"type": "array", "items": {"enum": ["a", "b"]}}
    customer = {"type": "object", "properties": {"seats": {"type": ["integer", "null"], "minimum": 1, "maximum": 3}}}
    schema = json.dumps({"properties": {"customer": customer, "tags": tags, "version": {"const": 2}}})
    leaves = ["customer.seats", "tags includes a", "tags includes b"]
    answer = json.loads(infer("--context", TEXT, "--json", schema=schema).out)
    assert list(answer["fields"]) == leaves
    assert answer["decision"] == {
        "customer": {"seats": answer["fields"][leaves[0]]["value"]},
        "tags": [name for name in "ab" if answer["fields"][f"tags includes {name}"]["value"]],
        "version": 2,
    }
    assert list(answer["fields"][leaves[0]]["probabilities"]) == ["1", "2", "3", "null"]
    infer("--input", rows, "--output", tmp_path / "out.csv", schema=schema)
    with (tmp_path / "out.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [name for name in read[0] if name in leaves] == leaves
    assert {row["customer.seats"] for row in read} <= {"1", "2", "3", "null"}
    assert "tags" not in read[0]


def test_one_text_can_be_written_to_a_file(infer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert infer("--context", TEXT, "--output", out).out == ""
    assert json.loads(out.read_text())["line"] == 1


# ---- many texts ----


def test_jsonl_in_jsonl_out(infer, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = infer("--input", rows, "--output", out)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["line"], row["id"]) for row in written] == [(i + 1, f"t{i}") for i in range(12)]
    assert "decided 12 of 12 rows." in result.err
    assert result.out == ""
    streamed = infer("--input", rows).out.splitlines()
    assert [json.loads(line) for line in streamed] == written
    alone = json.loads(infer("--context", "ticket 3 xxx", "--json").out)
    assert written[3]["decision"] == alone["decision"]


def test_csv_in_csv_out(infer, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text('id,body\n1,"two\nlines"\n2,"a ""quote"""\n', encoding="utf-8")
    schema = json.dumps({"fields": [{"name": "kind", "type": "choice", "options": ['say "x"\ny', "日本"]}, TRIAGE["fields"][3]]})
    assert infer("--input", source, "--text-column", "body", "--output", out, "--coverage", schema=schema).code == 0
    with out.open(newline="", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [(row["line"], row["id"]) for row in written] == [("2", "1"), ("4", "2")]
    for row in written:
        probabilities = json.loads(row["kind.probabilities"])
        assert probabilities[row["kind"]] == float(row["kind.probability"]) == max(probabilities.values())
        assert 1 <= float(row["stars.expectation"]) <= 5
        assert 0 <= float(row["kind.coverage"]) <= 1


def test_bad_rows_are_named_and_kept_out(infer, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    long = "word " * 3000
    bad = ["{bad", '{"text": ""}', '{"other": "x"}', '{"text": 3}', json.dumps({"text": long}), '{"text": "\\ud800"}']
    source.write_text("\n".join(['{"text": "first"}', *bad, '{"text": "last"}']) + "\n")
    result = infer("--input", source, "--output", out)
    assert result.code == 0
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [1, 8]
    for line in range(2, 8):
        assert f"line {line} is left out" in result.err
    assert "decided 2 of 8 rows, 6 left out." in result.err


def test_ids_that_can_not_be_written_are_bad_rows(infer, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    ids = ['"\\ud800"', "NaN", "[1]", "1.5", "null", "7", '"x"']
    source.write_text("".join(f'{{"text": "t", "id": {value}}}\n' for value in ids))
    result = infer("--input", source, "--output", out)
    assert result.code == 0, result.err
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["line"], row.get("id")) for row in written] == [(5, None), (6, 7), (7, "x")]
    assert "decided 3 of 7 rows, 4 left out." in result.err


def test_a_run_that_decides_nothing_leaves_the_old_output(infer, rows: Path, tmp_path: Path) -> None:
    bad, out = tmp_path / "bad.jsonl", tmp_path / "out.jsonl"
    bad.write_text("{bad\n")
    infer("--input", rows, "--output", out)
    before = out.read_bytes(), (tmp_path / "out.jsonl.run.json").read_bytes()
    assert infer("--input", bad, "--output", out, "--overwrite").code == 2
    assert (out.read_bytes(), (tmp_path / "out.jsonl.run.json").read_bytes()) == before


@pytest.mark.parametrize(
    ("suffix", "tail"),
    [(".jsonl", "garbage\n"), (".jsonl", '{"id": 1}\n'), (".jsonl", "[]\n"), (".csv", "garbage,\n"), (".csv", "\n")],
)
def test_an_output_that_is_not_ours_is_not_continued(infer, rows: Path, tmp_path: Path, suffix: str, tail: str) -> None:
    out, record = tmp_path / f"out{suffix}", tmp_path / f"out{suffix}.run.json"
    infer("--input", rows, "--output", out)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"complete": False}))
    with out.open("a") as file:
        file.write(tail)
    before = out.read_bytes()
    result = infer("--input", rows, "--output", out, "--resume")
    assert result.code == 2
    assert "did not write" in result.err
    assert result.err.count("\n") == 1
    assert out.read_bytes() == before


def test_line_ends_are_part_of_the_text(infer, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\r\ntwo\r\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert infer("--context-file", path, "--json").out == infer("--context-file", "-", "--json").out


def test_a_schema_that_fills_the_window_is_said_once(infer, rows: Path) -> None:
    options = [f"option number {i} " + "x" * 20 for i in range(200)]
    result = infer("--input", rows, schema=json.dumps({"fields": [{"name": "a", "type": "choice", "options": options}]}))
    assert result.code == 2
    assert "schema alone" in result.err
    assert result.err.count("\n") == 1


def test_control_characters_in_names_do_not_reach_the_terminal(infer) -> None:
    schema = json.dumps({"fields": [{"name": "a\x1b[31m", "type": "bool"}]})
    assert "\x1b" not in infer("--context", TEXT, schema=schema).out


def test_a_file_without_a_usable_row_is_an_error_and_leaves_nothing(infer, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"txt": "x"}\n')
    result = infer("--input", source, "--output", out, "--trace", tmp_path / "trace.json")
    assert result.code == 2
    assert "--text-column" in result.err
    assert not out.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("cut", [0, 1, 7, 40])
def test_resume_continues_a_cut_file_to_the_same_bytes(infer, rows: Path, tmp_path: Path, suffix: str, cut: int) -> None:
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    infer("--input", rows, "--output", whole)
    content = whole.read_bytes()
    out.write_bytes(content[: len(content) // 2 - cut])
    record = json.loads((tmp_path / f"whole{suffix}.run.json").read_text())
    (tmp_path / f"out{suffix}.run.json").write_text(json.dumps(record | {"complete": False}))
    assert infer("--input", rows, "--output", out, "--resume").code == 0

    def lines(data: bytes) -> list[str]:
        parsed = csv.reader(io.StringIO(data.decode(), newline="")) if suffix == ".csv" else map(json.loads, data.splitlines())
        return [str(row[0] if suffix == ".csv" else row["line"]) for row in parsed]  # type: ignore[call-overload]

    assert lines(out.read_bytes()) == lines(content)
    assert "complete" in infer("--input", rows, "--output", out, "--resume").err


def test_a_csv_cut_inside_a_quoted_line_break_is_continued(infer, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    schema = json.dumps({"fields": [{"name": "a", "type": "choice", "options": ["x\ny", "z\nw"]}]})
    infer("--input", rows, "--output", out, schema=schema)
    content = out.read_bytes()
    record = json.loads((tmp_path / "out.csv.run.json").read_text())
    breaks = [i for i, byte in enumerate(content) if byte == 0x0A]
    for cut in breaks[-5:]:
        out.write_bytes(content[: cut + 1])
        (tmp_path / "out.csv.run.json").write_text(json.dumps(record | {"complete": False}))
        assert infer("--input", rows, "--output", out, "--resume", schema=schema).code == 0
        with out.open(newline="") as file:
            assert [row["line"] for row in csv.DictReader(file)] == [str(i + 1) for i in range(12)]


def test_a_killed_run_is_continued_without_repeating_or_losing_a_row(model_folder: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": f"row {i} " + "word " * 200}) + "\n" for i in range(200)))
    command = [sys.executable, "-m", "rlcd_lite", "infer", "--model", str(model_folder), "--schema-json", SCHEMA]
    command += ["--input", str(source), "--output", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size > 5000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = out.read_bytes().count(b"\n")
    assert 0 < done < 200
    finished = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
    assert f"decided {200 - done} of 200 rows" in finished.stderr
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == list(range(1, 201))


def test_resume_refuses_other_settings_and_names_them(infer, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    infer("--input", rows, "--output", out)
    before = out.read_bytes()
    other_rows = tmp_path / "other.jsonl"
    other_rows.write_text('{"text": "x"}\n')
    one_field = json.dumps({"fields": TRIAGE["fields"][:1]})
    for result, words in (
        (infer("--input", rows, "--output", out), "--resume"),
        (infer("--input", rows, "--output", out, "--resume", "--layout", "context-first"), "layout"),
        (infer("--input", rows, "--output", out, "--resume", schema=one_field), "schema"),
        (infer("--input", other_rows, "--output", out, "--resume"), "input_sha256"),
    ):
        assert result.code == 2
        assert words in result.err
    assert out.read_bytes() == before
    (tmp_path / "out.jsonl.run.json").unlink()
    assert "--resume keeps" in infer("--input", rows, "--output", out, "--resume", "--overwrite").err
    assert "can't be continued" in infer("--input", rows, "--output", out, "--resume").err
    assert infer("--input", rows, "--output", out, "--overwrite").code == 0


# ---- traces ----


def test_the_trace_file_is_what_plain_forwards_say(infer, rows: Path, tmp_path: Path, model_folder: Path) -> None:
    path = tmp_path / "trace.json"
    infer("--input", rows, "--trace", path, "--layout", "context-first")
    trace = json.loads(path.read_text())
    assert trace["model"] == str(model_folder)
    assert len(trace["readouts"]) == 12 * len(NAMES) * 2
    assert [r["context"] for r in trace["readouts"]] == [i + 1 for i in range(12) for _ in range(len(NAMES) * 2)]
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    for record in trace["readouts"][::7]:
        with torch.inference_mode():
            logits = model(torch.tensor([record["path_ids"]])).logits[0, -1, record["label_ids"]]
        assert torch.allclose(logits.log_softmax(0), torch.tensor(record["logits"]).log_softmax(0), atol=1e-4)
    assert not path.with_name("trace.json.part").exists()
    assert "exists" in infer("--context", TEXT, "--trace", path).err


# ---- mistakes ----

MISTAKES: list[tuple[list[str], str | None, str]] = [
    (["--context", TEXT], None, "--schema-json or --schema"),
    (["--context", TEXT, "--schema", "x.json"], SCHEMA, "--schema-json or --schema"),
    ([], SCHEMA, "--context, --context-file or --input"),
    (["--context", TEXT, "--input", "x.jsonl"], SCHEMA, "--context, --context-file or --input"),
    (["--context", TEXT], "{", "valid JSON"),
    (["--context", TEXT], '{"fields": []}', "no fields"),
    (["--context", ""], SCHEMA, "not blank"),
    (["--context", " \n"], SCHEMA, "not blank"),
    (["--context", "word " * 3000], SCHEMA, "window"),
    (["--context-file", "{tmp}/none.txt"], SCHEMA, "does not exist"),
    (["--context-file", "{tmp}/latin.txt"], SCHEMA, "UTF-8"),
    (["--context", TEXT, "--schema", "{tmp}/none.json"], None, "does not exist"),
    (["--input", "{tmp}/none.jsonl"], SCHEMA, "can't be read"),
    (["--input", "{tmp}/latin.txt"], SCHEMA, "neither"),
    (["--context", TEXT, "--resume"], SCHEMA, "--resume"),
    (["--context", TEXT, "--output", "{tmp}/out.txt"], SCHEMA, "neither"),
    (["--context", TEXT, "--output", "{tmp}/no/out.csv"], SCHEMA, "folder"),
    (["--context", TEXT, "--trace", "{tmp}/no/trace.json"], SCHEMA, "folder"),
    (["--context", TEXT, "--adapter", "{tmp}/none"], SCHEMA, "adapter_config.json"),
    (["--context", TEXT, "--output", "{tmp}/o.csv"], '{"fields":[{"name":"line","type":"bool"}]}', "'line' twice"),
    (["--context", TEXT, "--output", "{tmp}", "--overwrite"], SCHEMA, "neither"),
    (["--context", TEXT, "--trace", "{tmp}", "--overwrite"], SCHEMA, "folder"),
    (["--context", TEXT, "--output", "/proc/out.jsonl"], SCHEMA, "can't be"),
    (["--context", TEXT, "--json", "--output", "{tmp}/o.jsonl"], SCHEMA, "--json"),
    (["--context-file", "{tmp}/latin.txt", "--trace", "{tmp}/latin.txt", "--overwrite"], SCHEMA, "twice"),
    (["--context", TEXT, "--colour"], SCHEMA, "--colour"),
    (["--input", "{tmp}/latin.txt", "--output", "{tmp}/latin.txt", "--overwrite"], SCHEMA, "twice"),
    (["--context", TEXT, "--output", "{tmp}/o.jsonl", "--trace", "{tmp}/o.jsonl"], SCHEMA, "twice"),
]


@pytest.mark.parametrize(("args", "schema", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(infer, tmp_path: Path, args: list[str], schema: str | None, words: str) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    result = infer(*(arg.replace("{tmp}", str(tmp_path)) for arg in args), schema=schema)
    assert result.code == 2
    assert result.out == ""
    assert words in result.err
    assert "Traceback" not in result.err
    if "--colour" not in args:  # tyro's own message for an unknown flag is a box
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latin.txt"]


def test_help_is_instant_and_explains_every_flag(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rlcd_lite", "infer", "--help"], capture_output=True, text=True, check=True
    )
    assert "| torch\n" not in run.stderr
    assert "transformers" not in run.stderr
    text = " ".join(run.stdout.replace("│", " ").split())
    for flag in ("--context", "--input", "--schema-json", "--output", "--trace", "--resume", "--model", "--adapter", "--layout"):
        assert flag in text
    assert "(default: Qwen/Qwen2.5-0.5B-Instruct)" in text


def test_a_reader_that_goes_away_is_no_error(model_folder: Path, rows: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [
        sys.executable,
        "-m",
        "rlcd_lite",
        "infer",
        "--model",
        str(model_folder),
        "--schema-json",
        SCHEMA,
        "--input",
        str(rows),
    ]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert "Exception ignored" not in run.stderr
