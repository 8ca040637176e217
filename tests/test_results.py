"""The published figures follow from the committed decision tables, and `check_results.py` sees when one does not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlcd_lite.decision_table import read_table, write_table
from rlcd_lite.summary import write_eval

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import ab_table  # noqa: E402
import check_results  # noqa: E402
from docs import BLOCK  # noqa: E402

PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in check_results.BARE}
RECORD = ROOT / "results" / "ab-synthetic" / "runs" / "grpo_rlcr-0"


def results(name: str) -> str:
    """The blocks of the arms of a page, under its heading."""
    blocks = [match[0] for match in BLOCK.finditer(PAGES[name]) if match[2].startswith("ab_")]
    return "\n\n".join([check_results.BARE[name] + "Figures", *blocks]) + "\n"


@pytest.mark.parametrize("name", PAGES)
def test_any_changed_digit_of_a_page_is_named(name: str) -> None:
    text = results(name)
    assert list(check_results.page_faults(name, text)) == []
    lines = [m.start() for m in re.finditer(r"(?m)^(?!<!--|\| (?:---|arm|aim|difference)).*\d", text)]
    assert len(lines) > 10
    for start in lines[:: len(lines) // 10]:
        line = text[start:].split("\n")[0]
        digits = [m.start() for m in re.finditer(r"\d", line)]
        at = start + digits[len(digits) // 2]
        changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        (fault,) = check_results.page_faults(name, changed)
        assert fault.startswith(f"{name}: ")
        assert changed[start:].split("\n")[0] in fault


@pytest.mark.parametrize("name", PAGES)
def test_a_number_that_nothing_computes_is_named(name: str) -> None:
    text = results(name) + "\nAn ECE of 0.123 (0.100–0.150).\n"
    found = list(check_results.page_faults(name, text))
    assert [fault.split(" stands ")[0] for fault in found] == [f"{name}: {x}" for x in ("0.123", "0.100–0.150")]


def test_the_pages_hold_no_other_numbers() -> None:
    for name, text in PAGES.items():
        bare = BLOCK.sub("", text)
        assert list(check_results.page_faults(name, bare)) == []


def test_an_evaluation_that_its_table_contradicts_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "eval"
    shutil.copytree(RECORD / "eval", folder)
    path = folder / "eval.json"
    assert check_results.eval_faults(path) == []
    evaluation: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    evaluation["results"][0]["signals"]["stated"]["ece"]["estimate"] += 1e-4
    path.write_text(json.dumps(evaluation), encoding="utf-8")
    (fault,) = check_results.eval_faults(path)
    assert "/signals/stated/ece/estimate" in fault


def test_differences_are_found_in_numbers_keys_and_lengths() -> None:
    ours = {"a": [1.0, {"b": 2}], "c": None, "d": "x"}
    assert check_results.differences(ours, json.loads(json.dumps(ours))) == []
    assert check_results.differences(ours, {**ours, "a": [1.0 + 1e-12, {"b": 2}]}) == []
    for other, place in (
        ({**ours, "a": [1.0, {"b": 3}]}, "/a/1/b"),
        ({**ours, "a": [1.0]}, "/a"),
        ({**ours, "e": 1}, "/e"),
        ({**ours, "c": 0.0}, "/c"),
        ({**ours, "d": "y"}, "/d"),
    ):
        (fault,) = check_results.differences(ours, other)
        assert fault.startswith(f"{place}: ")


def test_a_summary_that_the_tables_contradict_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab_table, "RESAMPLES", 10)
    for arm in ("grpo_rlcr-0", "grpo_binary-0"):
        table = next((RECORD.parent / arm / "eval" / "decisions").glob("*.csv.gz"))
        (tmp_path / "runs" / arm / "eval" / "decisions").mkdir(parents=True)
        rows = [row for row in read_table(table) if int(row.example.split("-")[-1]) % 4 == 0]
        write_table(tmp_path / "runs" / arm / "eval" / "decisions" / table.name, rows)
    write_eval(tmp_path / "summary.json", ab_table.summary(tmp_path))
    assert check_results.summary_faults(tmp_path) == []
    last = len(rows) - 1
    rows[last] = replace(rows[last], label=(rows[last].label + 1) % len(rows[last].logits))
    write_table(tmp_path / "runs" / arm / "eval" / "decisions" / table.name, rows)
    faults = check_results.summary_faults(tmp_path)
    assert any("/arms/grpo_binary/accuracy/estimate: " in fault for fault in faults)
    assert not any("/arms/grpo_rlcr/" in fault for fault in faults)
