"""Users' files: streamed, with one bad row kept out and named, and whole files refused before any work."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcd_lite.errors import UserError
from rlcd_lite.rows import inspect, read_rows

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=15)


@given(st.lists(st.dictionaries(text, text, min_size=1, max_size=3), min_size=1, max_size=6))
def test_json_lines_come_back_with_their_numbers(tmp_path_factory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8", newline="")
    read = list(read_rows(path))
    assert [(r.line, r.values, r.problem) for r in read] == [(1 + 2 * i, row, None) for i, row in enumerate(rows)]
    assert inspect(path).rows == len(rows)


@given(st.lists(st.tuples(text, text), min_size=1, max_size=6))
def test_csv_cells_come_back_with_the_line_they_start_on(tmp_path_factory, cells: list[tuple[str, str]]) -> None:
    cells = [(a.replace("\x00", ""), b.replace("\x00", "")) for a, b in cells]
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("a", "b"), *cells])
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text("\ufeff" + out.getvalue(), encoding="utf-8", newline="")
    read = list(read_rows(path))
    assert [(r.values["a"], r.values["b"]) for r in read] == cells
    lines = [r.line for r in read]
    assert lines[0] == 2
    assert lines == sorted(set(lines))


def test_bad_json_lines_are_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{bad\n[1]\n' + "[" * 100_000 + '\n"x"\n{"a": 2}\n')
    rows = list(read_rows(path))
    assert [r.line for r in rows if r.problem is None] == [1, 6]
    problems = {r.line: r.problem for r in rows if r.problem}
    assert set(problems) == {2, 3, 4, 5}
    assert "JSON" in problems[2]
    assert "object" in problems[3]


def test_bad_csv_records_are_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,2\n1\n1,2,3\n"x"y,2\n\n5,6\n"never closed,7\n8,9\n')
    rows = list(read_rows(path))
    assert [(r.line, r.values["a"]) for r in rows if r.problem is None] == [(2, "1"), (7, "5")]
    assert [r.line for r in rows if r.problem] == [3, 4, 5, 8]


def test_long_cells_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\n" + "x" * 300_000 + "\n")
    assert len(next(iter(read_rows(path))).values["text"]) == 300_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.txt", b"x", "neither .jsonl nor .csv"),
        ("rows.jsonl", b"", "no rows"),
        ("rows.csv", b"", "no header"),
        ("rows.csv", b"text\n", "no rows"),
        ("rows.csv", b"a,b,a\n1,2,3\n", "'a' twice"),
        ("rows.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', "line 2"),
        ("rows.jsonl", '{"a": 1}\n'.encode("utf-16"), "UTF-8"),
    ],
)
def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        inspect(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        inspect(tmp_path / "none.csv")


def test_a_hash_tells_files_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("a\n1\n")
    two.write_text("a\n2\n")
    assert inspect(one).sha256 != inspect(two).sha256
