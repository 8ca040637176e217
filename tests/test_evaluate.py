"""From examples to eval.json: tables that keep every number, summaries as functions of tables, and the command around them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from scipy.special import softmax

from conftest import tiny_engine, tiny_model
from rlcd_lite.calibration import brier, ece, log_loss
from rlcd_lite.cli import main
from rlcd_lite.commands.eval import dataset_names
from rlcd_lite.datasets import Dataset, Example, load
from rlcd_lite.datasets.synthetic import SCHEMA
from rlcd_lite.decision_table import (
    CALIBRATION,
    TEST,
    DecisionRow,
    fit_temperatures,
    logit_matrix,
    probabilities,
    read_table,
    select,
    signals,
    write_table,
)
from rlcd_lite.enforced import rule_summary
from rlcd_lite.errors import UserError
from rlcd_lite.evaluate import Part, decide_part, parts
from rlcd_lite.schema import Field, Option, Schema
from rlcd_lite.scores import FieldScores, Scores
from rlcd_lite.summary import EVAL_VERSION, compare, order_summary, read_eval, summarise, write_eval

QUICK = {"resamples": 50, "seed": 0}


class Reader:
    """An engine that reads the options and not their places: a logit depends on the text and on the option alone."""

    def score_runs(self, runs: Iterable[tuple[Schema, Iterable[str]]], **_: bool) -> Iterator[Scores]:
        for schema, context in ((schema, context) for schema, contexts in runs for context in contexts):
            yield tuple(
                FieldScores(
                    torch.tensor([Random(f"{context}{f.name}{o.text}").uniform(-2, 2) for o in f.options]),
                    torch.tensor([Random(f"{context}{f.name}{i}").uniform(-2, 2) for i in range(5)]),
                    GRID,
                    0.5,
                )
                for f in schema.fields
            )


def tickets(split: str, n: int) -> Dataset:
    return load("synthetic", split, n)  # type: ignore[arg-type]


def table(n: int = 40, permutations: int = 2, engine: object = None, seed: int = 0) -> list[DecisionRow]:
    work = parts(tickets("calibration", n), tickets("test", n), permutations, n // 2, seed)
    return [row for part in work for row in decide_part(engine or Reader(), part, lambda: None)]  # type: ignore[arg-type]


# ---- running ----


def test_rows_hold_what_the_engine_says(tokenizer) -> None:
    engine = tiny_engine(tokenizer)
    engine.consistency = "measure"  # a table has the fields' answers one by one
    examples = tickets("test", 5)
    rows = list(decide_part(engine, Part(TEST, examples.examples), lambda: None))
    assert [(r.example, r.field) for r in rows] == [(e.id, f.name) for e in examples for f in SCHEMA.fields]
    for row, example in zip(rows, (e for e in examples for _ in SCHEMA.fields), strict=True):
        answer = engine.decide(SCHEMA, example.context, coverage=True)[row.field]
        assert softmax(row.logits) == pytest.approx(answer.probabilities, abs=1e-4)
        assert row.choice == answer.choice
        assert row.coverage == pytest.approx(answer.coverage, abs=1e-4)
        assert row.label == SCHEMA[row.field].index(example.labels[row.field])
        assert row.posterior == example.posterior[row.field]  # type: ignore[index]


def test_shuffled_options_come_back_in_the_schemas_order() -> None:
    rows = table()
    at = {(r.example, r.field): r for r in select(rows, TEST)}
    shuffled = [r for r in rows if r.split.startswith("order-")]
    assert {r.split for r in shuffled} == {"order-1", "order-2"}
    assert len(shuffled) == 2 * 20 * 3
    for row in shuffled:
        assert row.logits == at[row.example, row.field].logits
        assert row.label == at[row.example, row.field].label


def test_a_model_that_reads_places_is_caught(tokenizer) -> None:
    class Placed(Reader):
        def score_runs(self, runs: Iterable[tuple[Schema, Iterable[str]]], **_: bool) -> Iterator[Scores]:
            for schema in (schema for schema, contexts in runs for _ in contexts):
                yield tuple(
                    FieldScores(-torch.arange(len(f.options)).float() * 3, torch.zeros(5), GRID, 0.5) for f in schema.fields
                )

    found = order_summary(table(permutations=4, engine=Placed()), **QUICK)
    assert found is not None
    assert found["flip_rate"]["estimate"] > 0.3
    assert found["total_variation"]["estimate"] > 0.3
    honest = order_summary(table(permutations=4), **QUICK)
    assert honest is not None
    assert honest["flip_rate"]["estimate"] == honest["total_variation"]["estimate"] == 0
    assert order_summary(table(permutations=0), **QUICK) is None


def test_examples_with_their_own_options_are_decided_each(tokenizer) -> None:
    def example(i: int, k: int) -> Example:
        schema = Schema((Field("answer", "choice", tuple(Option(f"{i}-{j}") for j in range(k))),))
        return Example(f"e{i}", f"question {i}", schema, {"answer": f"{i}-0"})

    examples = [example(i, 3 + i % 2) for i in range(6)]
    rows = list(decide_part(tiny_engine(tokenizer), Part(TEST, examples, Random(0)), lambda: None))
    assert [len(r.logits) for r in rows] == [3, 4] * 3
    assert all(r.label == 0 and r.posterior is None for r in rows)


# ---- tables ----

floats = st.floats(-50, 50, width=32)
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


@given(
    st.lists(
        st.builds(
            DecisionRow,
            st.sampled_from([TEST, CALIBRATION]),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
            st.sampled_from(["a", 'b,"c"\n']),
            st.integers(0, 1),
            st.tuples(floats, floats),
            st.tuples(floats, floats, floats),
            st.just((0.1, 0.5, 0.9)),
            st.floats(0, 1),
            st.none() | st.just((0.25, 0.75)),
        ),
        max_size=5,
    )
)
def test_a_table_comes_back_as_it_was(tmp_path_factory, rows: list[DecisionRow]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    rows += [
        DecisionRow(CALIBRATION, "c", field, 0, (0.0, 1.0), (0.0, 0.0, 0.0), (0.1, 0.5, 0.9), 1.0) for field in ("a", 'b,"c"\n')
    ]
    for name in ("one", "two"):
        write_table(folder / name, rows)
    assert read_table(folder / "one") == rows
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


@pytest.mark.parametrize("example", ["\r", "\n", "\r\n", '"', ",", "a\rb"])
def test_any_id_survives_a_table(tmp_path: Path, example: str) -> None:
    rows = [DecisionRow(split, example, "a", 0, (0.0, 1.0), (0.0,) * 5, GRID, 1.0) for split in (CALIBRATION, TEST)]
    write_table(tmp_path / "t.csv.gz", rows)
    assert read_table(tmp_path / "t.csv.gz") == rows


def test_a_file_tells_every_signals_confidence(tmp_path: Path) -> None:
    rows = table()
    write_table(tmp_path / "t.csv.gz", rows)
    found = signals(rows, fit_temperatures(rows))
    with gzip.open(tmp_path / "t.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for i, cells in enumerate(csv.DictReader(file)):
            assert int(cells["choice"]) == rows[i].choice
            assert int(cells["correct"]) == (rows[i].choice == rows[i].label)
            for name, confidence in found.confidence.items():
                assert float(cells[name]) == confidence[i]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    write_table(path, table(4, 0))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"junk"):
        path.write_bytes(content)
        if content:
            with pytest.raises(UserError, match="can't be read"):
                read_table(path)
    with pytest.raises(UserError, match="can't be read"):
        read_table(tmp_path / "none")


def test_options_that_are_not_there_get_no_probability() -> None:
    rows = [
        DecisionRow(TEST, "a", "f", 0, (1.0, 2.0), (0.0,), (0.5,), 1.0),
        DecisionRow(TEST, "b", "f", 0, (1.0, 2.0, 3.0), (0.0,), (0.5,), 1.0),
    ]
    assert logit_matrix(rows).shape == (2, 3)
    assert probabilities(rows)[0] == pytest.approx([*softmax([1.0, 2.0]), 0.0], abs=1e-15)
    hot = softmax(logit_matrix(rows)[0] / 20)
    assert hot == pytest.approx([*softmax([0.05, 0.1]), 0.0], abs=1e-15)


def test_signals_are_what_their_names_say() -> None:
    rows = table()
    temperatures = fit_temperatures(rows)
    assert set(temperatures) == {f.name for f in SCHEMA.fields}
    test = select(rows, TEST)
    found = signals(test, temperatures)
    for i, row in enumerate(test):
        p, c = softmax(row.logits), softmax(row.stated_logits)
        assert found.confidence["softmax"][i] == pytest.approx(p.max())
        assert found.confidence["stated"][i] == GRID[int(c.argmax())]
        assert found.confidence["stated_mean"][i] == pytest.approx(float(c @ np.array(GRID)))
        scaled = softmax(np.array(row.logits) / temperatures[row.field].value)
        assert found.confidence["softmax_ts"][i] == pytest.approx(scaled.max())
        assert found.correct[i] == (row.choice == row.label)
        assert found.truth is not None
        assert row.posterior is not None
        assert found.truth[i] == row.posterior[row.choice]


def test_temperatures_never_see_the_test_split() -> None:
    rows = table()
    flipped = [replace(r, label=(r.label + 1) % len(r.logits)) if r.split == TEST else r for r in rows]
    assert fit_temperatures(rows) == fit_temperatures(flipped)


# ---- summaries ----


def test_a_summary_holds_the_metrics_of_its_table() -> None:
    rows = table()
    summary = summarise(rows, **QUICK)
    found = signals(select(rows, TEST), fit_temperatures(rows))
    assert summary["decisions"] == 120
    assert summary["contexts"] == 40
    for name, signal in summary["signals"].items():
        confidence = found.confidence[name]
        assert signal["brier"]["estimate"] == pytest.approx(float(brier(confidence, found.correct)))
        assert signal["ece"]["estimate"] == pytest.approx(float(ece(confidence, found.correct)))
        assert signal["log_loss"]["estimate"] == pytest.approx(float(log_loss(confidence, found.correct)), abs=1e-9)
        assert signal["brier"]["low"] <= signal["brier"]["estimate"] <= signal["brier"]["high"]
    assert sum(f["accuracy"]["estimate"] for f in summary["fields"].values()) / 3 == pytest.approx(summary["accuracy"]["estimate"])
    assert 0 <= summary["bayes"]["regret"]["estimate"] <= 1


def test_rules_are_broken_before_they_are_enforced_and_never_after() -> None:
    rows = table(permutations=0)
    found = rule_summary(rows, SCHEMA, resamples=50)
    by_example: dict[str, dict[str, int]] = {}
    for row in select(rows, TEST):
        by_example.setdefault(row.example, {})[row.field] = row.choice
    broken = sum(choices["severity"] == 3 and choices["needs_human"] == 1 for choices in by_example.values())
    (before,) = found["before"]
    assert before["rate"]["estimate"] == broken / 40 > 0
    assert before["rate"]["low"] <= before["rate"]["estimate"] <= before["rate"]["high"]
    assert before["rule"] == 'severity = "critical" ⇒ needs_human = true'
    assert {name: rate["estimate"] for name, rate in found["after"].items()} == {"softmax": 0, "softmax_ts": 0}
    test = select(rows, TEST)
    for name, field in found["fields"].items():
        own = [row for row in test if row.field == name]
        right = [row.choice == row.label for row in own]
        confidence = signals(own, fit_temperatures(rows)).confidence
        for signal, effect in field.items():
            assert effect["accuracy"]["before"] == pytest.approx(np.mean(right))
            assert effect["brier"]["before"] == pytest.approx(float(brier(confidence[signal], np.array(right, dtype=int))))
            for metric in ("accuracy", "brier"):
                change = effect[metric]["after"] - effect[metric]["before"]
                assert effect[metric]["difference"]["estimate"] == pytest.approx(change, abs=1e-12)
        if name == "team":  # no rule is about it
            assert field["softmax"]["brier"]["difference"]["estimate"] == 0


def test_an_arm_does_not_differ_from_itself_and_never_from_other_examples() -> None:
    rows = table()
    for signal in compare(rows, rows, **QUICK).values():
        for difference in signal.values():
            assert difference["estimate"] == difference["low"] == difference["high"] == 0
    other = table(seed=1, n=38)
    with pytest.raises(UserError, match="different examples"):
        compare(rows, other, **QUICK)


def test_an_eval_file_is_finite_json_of_a_version(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    write_eval(path, {"version": EVAL_VERSION, "x": [float("nan"), (float("inf"), 1.0)]})
    assert read_eval(path) == {"version": EVAL_VERSION, "x": [None, [None, 1.0]]}
    for content, words in (('{"version": 99}', "version 99"), ("{", "not an eval.json"), ("[]", "not an eval.json")):
        path.write_text(content)
        with pytest.raises(UserError, match=words):
            read_eval(path)
    with pytest.raises(UserError, match="does not exist"):
        read_eval(tmp_path / "none.json")


def test_outcomes_that_are_all_right_or_all_wrong_are_summarised(tmp_path: Path) -> None:
    rows = table(permutations=0)
    for shift in (0, 1):
        forced = [replace(r, label=(r.choice + shift) % len(r.logits)) for r in rows]
        summary = summarise(forced, **QUICK)
        assert summary["accuracy"]["estimate"] == 1 - shift
        write_eval(tmp_path / "eval.json", {"version": EVAL_VERSION, "results": [summary]})


# ---- the command ----


@pytest.fixture
def evaluate(model_folder: Path, tmp_path: Path, capsys):
    def run(*args: object) -> tuple[int, str, str]:
        command = ["eval", "--model", str(model_folder), "--n", "6", "--calibration-n", "5", "--resamples", "20"]
        code = 0
        try:
            main([*command, "--output", str(tmp_path / "out"), *map(str, args)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_writes_tables_and_eval_json(evaluate, tmp_path: Path) -> None:
    code, out, err = evaluate("--permutation-k", 2, "--permutation-n", 3)
    assert code == 0, err
    evaluation = read_eval(tmp_path / "out" / "eval.json")
    (result,) = evaluation["results"]
    assert result["arm"] == "base"
    assert result["order"]["shuffles"] == 2
    assert result["rules"]["contexts"] == 6
    assert evaluation["datasets"]["synthetic"]["n"] == 6
    rows = read_table(tmp_path / "out" / result["table"])
    assert len(rows) == 3 * (5 + 6 + 2 * 3)
    assert "softmax_ts" in out
    assert "of forwards" in err


def test_a_table_that_is_there_is_not_made_again(evaluate, tmp_path: Path, monkeypatch) -> None:
    evaluate()
    first = read_eval(tmp_path / "out" / "eval.json")
    monkeypatch.setattr("rlcd_lite.commands.model_flags.ModelFlags.load", lambda self: pytest.fail("the model was loaded"))
    assert evaluate()[0] == 0
    assert read_eval(tmp_path / "out" / "eval.json") == first
    code, _, err = evaluate("--n", 7)
    assert code == 2
    assert "test_hash" in err
    assert "--overwrite" in err


def test_an_adapter_that_was_trained_again_is_not_taken_for_the_old_one(evaluate, model_folder, tokenizer, tmp_path: Path) -> None:
    for seed in (0, 1):
        model = tiny_model("llama", len(tokenizer))
        model.name_or_path = str(model_folder)
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
        adapted.save_pretrained(tmp_path / "run" / "adapter", save_embedding_layers=False)
        code, _, err = evaluate("--arms", tmp_path / "run")
        assert code == 2 * seed, err
    assert "adapter_sha256" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--n", "1"], "--n is 1"),
        (["--arms", "base,base"], "twice"),
        (["--arms", "no/such/run"], "neither 'base' nor a folder"),
        (["--adapter", "x"], "--arms"),
        (["--datasets", "synthetc"], "did you mean 'synthetic'"),
        (["--datasets", "synthetic,synthetic"], "twice"),
        (["--permutation-k", "2", "--permutation-n", "50"], "--permutation-n"),
    ],
)
def test_mistakes_are_one_sentence(evaluate, tmp_path: Path, args: list[str], words: str) -> None:
    code, _, err = evaluate(*args)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_asking_for_more_rows_than_there_are_names_the_number(evaluate, data_dir: Path) -> None:
    code, _, err = evaluate("--datasets", "mmlu", "--calibration-n", 5000, "--data-dir", data_dir)
    assert code == 2
    assert "172 rows" in err


def test_files_of_ones_own_can_be_evaluated(evaluate, tmp_path: Path) -> None:
    rows = [{"context": f"text {i}", "ok": bool(i % 2), "split": "test" if i % 3 else "calibration"} for i in range(30)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "schema.json").write_text('{"fields": [{"name": "ok", "type": "bool"}]}')
    code, _, err = evaluate("--datasets", tmp_path / "own.jsonl", "--schema", tmp_path / "schema.json")
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "eval.json").read_text())["results"][0]["decisions"] == 6


def test_variants_with_commas_stay_one_name() -> None:
    assert dataset_names("boolq, mmlu:astronomy,virology,arc:easy") == ["boolq", "mmlu:astronomy,virology", "arc:easy"]
    assert dataset_names("clinc150:in-scope,domains,a.csv") == ["clinc150:in-scope,domains", "a.csv"]
    assert dataset_names("boolq,nonsense") == ["boolq", "nonsense"]
