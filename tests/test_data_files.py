"""Files of one's own: what is written comes back, and every fault is one sentence with its place."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcd_lite.datasets import SPLITS, divided, load
from rlcd_lite.datasets.files import read_file
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema

SCHEMA = Schema.of(
    {
        "fields": [
            {"name": "team", "type": "choice", "options": ["billing", "auth", 'a, "b"\nc']},
            {"name": "urgent", "type": "bool"},
            {"name": "stars", "type": "int", "minimum": 1, "maximum": 5},
        ]
    }
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda t: t.strip() != "")
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "context": TEXTS,
            "team": st.sampled_from(["billing", "auth", 'a, "b"\nc']),
            "urgent": st.booleans(),
            "stars": st.integers(1, 5),
        }
    ),
    min_size=1,
    max_size=8,
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(buffer.getvalue().encode())
    return path


def write_jsonl(path: Path, rows: list[Any], *, ascii_only: bool = False) -> Path:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode())
    return path


# ---- what is written comes back ----


@same_folder
@given(rows=ROWS, ascii_only=st.booleans())
def test_rows_come_back_as_written(rows: list[dict[str, Any]], ascii_only: bool, tmp_path: Path) -> None:
    for path in (write_csv(tmp_path / "a.csv", rows), write_jsonl(tmp_path / "a.jsonl", rows, ascii_only=ascii_only)):
        read = read_file(path, SCHEMA)
        assert [{"context": r.context, **(r.labels or {})} for r in read] == rows
        assert all(type(r.labels["urgent"]) is bool and type(r.labels["stars"]) is int for r in read if r.labels)
        division, _ = divided(str(path), schema=SCHEMA)
        assert sum(len(part) for part in division.splits.values()) == len(rows)


@same_folder
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_any_bytes_give_rows_or_one_sentence(content: bytes, tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"file .*a\.") as caught:
            read_file(tmp_path / name, SCHEMA)
        assert "\n" not in str(caught.value)


@same_folder
@given(
    row=st.dictionaries(
        st.sampled_from(["context", "text", "labels", "posterior", "id", "split", "team", "urgent", "stars"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=5)
            | st.sampled_from(["auth", "train", "true"]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["team", "urgent", "stars", "auth"]), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_any_object_gives_a_row_or_one_sentence(row: dict[str, Any], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row], ascii_only=True)
    read, fault = None, ""
    try:
        (read,) = read_file(path, SCHEMA)
    except UserError as error:
        fault = str(error)
    assert (read is None) == fault.startswith("line 1 of file")
    assert "\n" not in fault
    if read is not None:
        assert read.labels is not None
        for field in SCHEMA.fields:
            field.index(read.labels[field.name])


def test_an_empty_cell_or_null_is_the_label_of_an_optional_field(tmp_path: Path) -> None:
    fields = [{"name": "team", "type": "choice", "options": ["a", "b"], "optional": True}, {"name": "ok", "type": "bool"}]
    schema = Schema.of({"fields": fields})
    cells = write_csv(tmp_path / "a.csv", [{"text": "t", "team": team, "ok": "true"} for team in ("", "null", "a")])
    lines = write_jsonl(tmp_path / "a.jsonl", [{"text": "t", "team": team, "ok": True} for team in (None, "null", "a")])
    for path in (cells, lines):
        assert [row.labels["team"] for row in read_file(path, schema) if row.labels] == [None, None, "a"]
    with pytest.raises(UserError, match="field 'ok' has no option ''"):
        read_file(write_csv(tmp_path / "b.csv", [{"text": "t", "team": "a", "ok": ""}]), schema)


def test_a_byte_order_mark_and_foreign_columns_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffcontext,team,urgent,stars,note\r\nHelp,auth,TRUE,3,x\r\n\r\n".encode())
    (row,) = read_file(path, SCHEMA)
    assert (row.context, row.labels) == ("Help", {"team": "auth", "urgent": True, "stars": 3})


def test_exported_rows_are_read_back_with_their_posteriors(tmp_path: Path) -> None:
    tickets = load("synthetic", "test", 50)
    path = write_jsonl(tmp_path / "t.jsonl", [e.to_dict() | {"split": "test"} for e in tickets])
    back = load(str(path), "test", schema=tickets.schema)
    assert sorted(back, key=lambda e: e.id) == sorted(tickets, key=lambda e: e.id)


def test_splits_by_hash_or_by_column(tmp_path: Path) -> None:
    rows = [{"context": f"ticket {i}", "team": "auth", "urgent": True, "stars": 1} for i in range(1000)]
    division, _ = divided(str(write_jsonl(tmp_path / "a.jsonl", rows)), schema=SCHEMA)
    assert [round(len(division.splits[s]) / 1000, 1) for s in SPLITS] == [0.7, 0.2, 0.1]
    marked = [row | {"split": "calibration"} for row in rows]
    path = write_csv(tmp_path / "a.csv", marked)
    assert len(load(str(path), "calibration", schema=SCHEMA)) == 1000
    with pytest.raises(UserError, match="has no rows in its test split"):
        load(str(path), "test", schema=SCHEMA)
    # the same text in two splits stays in the later one
    twice = [rows[0] | {"split": "train"}, rows[0] | {"split": "test"}]
    division, _ = divided(str(write_jsonl(tmp_path / "b.jsonl", twice)), schema=SCHEMA)
    assert division.leaks == {"train": 1, "calibration": 0, "test": 0}


# ---- mistakes ----

GOOD = {"context": "Help", "team": "auth", "urgent": True, "stars": 3}
NESTED = {"context": "Help", "labels": {"team": "auth", "urgent": True, "stars": 3}}
TEAMS = {"billing": 0.5, "auth": 0.25, 'a, "b"\nc': 0.25}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (GOOD | {"team": "legal"}, r"^line 2 of file '.*': field 'team' has no option 'legal': its options are 'billing'"),
        (GOOD | {"stars": 6}, r"^line 2 .*: field 'stars' has no option 6"),
        (GOOD | {"stars": True}, r"^line 2 .*: field 'stars' has no option True"),
        (GOOD | {"urgent": 1}, r"^line 2 .*: field 'urgent' has no option 1"),
        (GOOD | {"team": None}, r"^line 2 .*: field 'team' has no option None"),
        (GOOD | {"context": " "}, r"^line 2 .* has ' ' in the column 'context'"),
        (GOOD | {"context": 3}, r"^line 2 .* has 3 in the column 'context'"),
        (GOOD | {"context": "\ud800"}, r"^line 2 .* half of a surrogate pair at character 0"),
        (GOOD | {"text": "Help"}, r"^line 2 .* has both the columns 'context' and 'text'"),
        ({"team": "auth"}, r"^line 2 .* has neither the column 'context' nor 'text'"),
        ({"context": "Help", "team": "auth", "stars": 1}, r"^line 2 .* has no column 'urgent'"),
        (GOOD | {"id": "1"}, r"^line 2 .* has the id '1' again"),
        (GOOD | {"id": [1]}, r"^line 2 .* has the id \[1\]: an id is a string"),
        (GOOD | {"id": ""}, r"^line 2 .* has the id '': an id is a string that is not empty, or an integer"),
        (GOOD | {"split": "dev"}, r"^line 2 .* has the split 'dev': use one of train, calibration, test"),
        (GOOD | {"split": ["train"]}, r"^line 2 .* has the split \['train'\]"),
        (NESTED | {"posterior": {"team": {"auth": 1.0}}}, r"^line 2 .* of field 'team': give every option its probability"),
        (
            NESTED | {"posterior": {"team": TEAMS | {"auth": 0.5}}},
            r"^line 2 .* of field 'team': it must be probabilities with sum 1",
        ),
        (NESTED | {"posterior": {"team": TEAMS | {"auth": True}}}, r"^line 2 .* of field 'team': it must be probabilities"),
        ([1], r"^line 2 .* \(\[1\] is not a JSON object"),
    ],
)
def test_a_bad_json_line(row: Any, sentence: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [GOOD | {"id": 1}, row], ascii_only=True)
    with pytest.raises(UserError, match=sentence):
        load(str(path), "train", schema=SCHEMA)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"context": "Help",}\n', r"^line 1 of file '.*a\.jsonl' is bad \(not valid JSON \(column 20: "),
        ("a.jsonl", b"[" * 100_000, r"^line 1 .* is bad \(not valid JSON \(nested too deeply\)"),
        ("a.jsonl", b'{"a": ' + b"1" * 5000 + b"}", r"^line 1 .* is bad \(not valid JSON"),
        ("a.jsonl", b"", r"holds no rows: give it at least one"),
        ("a.jsonl", b"\n \n", r"holds no rows"),
        ("a.csv", b"", r"has no header"),
        ("a.csv", b"context,team,urgent,stars\n", r"holds no rows"),
        (
            "a.csv",
            b"context;team;urgent;stars\nHelp;auth;true;3\n",
            r"has one column, .* so it uses semicolons: use commas",
        ),
        ("a.csv", b"context\tteam\nHelp\tauth\n", r"so it uses tabs"),
        ("a.csv", "context,team,urgent,stars\nZürich,auth,true,3\n".encode("latin-1"), r"is not UTF-8 \(line 2\): convert it"),
        ("a.csv", "context,team\n".encode("utf-16"), r"is not UTF-8 \(line 1\)"),
        ("a.csv", b"context,team,team\nHelp,auth,auth\n", r"has the column 'team' twice"),
        ("a.csv", b"context,team,urgent\nHelp,auth,true\n", r"^line 2 .* has no column 'stars'"),
        (
            "a.csv",
            b'context,team,urgent,stars\n"two\nlines",auth,true,3\nHelp, me,auth,true,3\n',
            r"^line 4 .* is bad \(5 cells under a header of 4",
        ),
        (
            "a.csv",
            b'context,team,urgent,stars\n"two\nlines",auth,true,3\nHelp,auth,true,\n',
            r"^line 4 .*: field 'stars' has no option ''",
        ),
        (
            "a.csv",
            b'context,team,urgent,stars\n"Help,auth,true,3\n',
            r"^line 2 .* is bad \(not valid CSV \(unexpected end of data\)",
        ),
    ],
)
def test_a_bad_file(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load(str(tmp_path / name), "train", schema=SCHEMA)


def test_a_missing_file_or_schema(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"file '.*none\.csv' can't be read"):
        load(str(tmp_path / "none.csv"), "train", schema=SCHEMA)
    with pytest.raises(UserError, match=r"data file 'tickets\.csv' needs a schema: give one with --schema FILE"):
        load("tickets.csv", "train")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"folder\.csv' can't be read"):
        load(str(tmp_path / "folder.csv"), "train", schema=SCHEMA)
