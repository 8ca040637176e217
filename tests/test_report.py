"""Reports from simulated decision tables: the numbers, bad input, the page, the pictures; no model."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcd_lite import figures
from rlcd_lite.cli import main
from rlcd_lite.datasets import Split, synthetic
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow, fit_temperatures, read_table, select, signals, write_table
from rlcd_lite.enforced import rule_summary
from rlcd_lite.merge import merge, missing_comparisons
from rlcd_lite.report import GAP, build, interval, markdown, number
from rlcd_lite.report_page import page
from rlcd_lite.selective import aurc
from rlcd_lite.summary import EVAL_VERSION, compare, order_summary, read_eval, summarise, write_eval

ROOT = Path(__file__).parents[1]
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
DRAWS = {"resamples": 30, "seed": 0}
ODD = "odd <b>bold</b> | $x_1$ _it_ & 'q' 票"
NOTES = ("per-field accuracy", "broken rules", "fitted T", "sensitivity", "Bayes", "true posterior")
Tables = dict[tuple[str, str], list[DecisionRow]]


def tickets(noise: float, n: int = 40, seed: int = 0) -> list[DecisionRow]:
    """Synthetic tickets, decided by their posterior with noise; two shuffles of ten of them."""
    rng = np.random.default_rng(seed)
    rows = []
    for split in (CALIBRATION, TEST, "order-1", "order-2"):
        source: Split = "calibration" if split == CALIBRATION else "test"
        for example in (synthetic.example(0, source, i) for i in range(10 if split.startswith("order") else n)):
            assert example.posterior is not None
            for f in synthetic.SCHEMA.fields:
                posterior = example.posterior[f.name]
                logits = np.log(np.array(posterior) + 0.01) + noise * rng.normal(size=len(posterior))
                stated = tuple(rng.normal(size=5).tolist())
                label = f.index(example.labels[f.name])
                rows.append(DecisionRow(split, example.id, f.name, label, tuple(logits.tolist()), stated, GRID, 0.4, posterior))
    return rows


def answers(noise: float, n: int = 30, right: float = 0.7, seed: int = 1) -> list[DecisionRow]:
    """One field of two options, no posterior, no shuffles; no confidence reaches 0.9."""
    rng = np.random.default_rng(seed)
    labels = rng.random(2 * n) < 0.5
    rows = []
    for i, label in enumerate(labels):
        sign = (1 if label else -1) * (1 if rng.random() < right else -1)
        z = sign * min(0.2 + noise * abs(rng.normal()), 1.0)
        split, name = (CALIBRATION, f"c{i}") if i < n else (TEST, f"t{i}")
        rows.append(DecisionRow(split, name, "answer", int(label), (0.0, z), (0.0, 0.0, 1.0, 0.0, 0.0), GRID, 0.3))
    return rows


def write(folder: Path, tables: Tables) -> Path:
    """An evaluation folder as `rlcd-lite eval` leaves it."""
    (folder / "decisions").mkdir(parents=True)
    arms, names = (list(dict.fromkeys(pair[i] for pair in tables)) for i in (0, 1))
    results, comparisons = [], []
    for i, ((arm, name), rows) in enumerate(tables.items()):
        write_table(folder / f"decisions/{i}.csv.gz", rows)
        contract = {"layout": "schema-first", "confidence": "independent", "confidence_grid": "5"}
        result = {"arm": arm, "dataset": name, "table": f"decisions/{i}.csv.gz", "contract": contract} | summarise(rows, **DRAWS)
        result["order"] = order_summary(rows, **DRAWS)
        if name == "synthetic":
            result["rules"] = rule_summary(rows, synthetic.SCHEMA, **DRAWS)
        results.append(result)
    for name in names:
        for a, b in itertools.combinations(arms, 2):
            compared = compare(tables[a, name], tables[b, name], **DRAWS)
            comparisons.append({"dataset": name, "first": a, "second": b, "signals": compared})
    about = {
        name: {
            "source": "generated",
            "fields": list(dict.fromkeys(row.field for row in rows)),
            "options": sorted({len(row.logits) for row in rows}),
            "calibration_n": len({row.example for row in select(rows, CALIBRATION)}),
            "n": len({row.example for row in select(rows, TEST)}),
            "calibration_hash": "c" * 16,
            "test_hash": "e" * 16,
        }
        for (_, name), rows in tables.items()
    }
    evaluation = {
        "version": EVAL_VERSION,
        "settings": {"model": "simulated", "dtype": "float32"} | DRAWS,
        "packages": {"rlcd-lite": "0.1.0"},
        "arms": arms,
        "datasets": about,
        "results": results,
        "comparisons": comparisons,
    }
    write_eval(folder / "eval.json", evaluation)
    return folder


@pytest.fixture(scope="session")
def tables() -> Tables:
    noises = {"base": 2.0, "runs/ab_x": 0.3}
    return {(arm, "synthetic"): tickets(noise) for arm, noise in noises.items()} | {
        (arm, ODD): answers(noise) for arm, noise in noises.items()
    }


@pytest.fixture(scope="session")
def folder(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("evaluation") / "both", tables)


@pytest.fixture(scope="session")
def reported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole report, by the command."""
    output = tmp_path_factory.mktemp("report") / "new"
    main(["report", str(folder), "--output", str(output)])
    return output


def change(folder: Path, target: Path, edit: Any) -> Path:
    """A copy of an evaluation folder whose eval.json was edited."""
    shutil.copytree(folder, target)
    evaluation = json.loads((target / "eval.json").read_text(encoding="utf-8"))
    edit(evaluation)
    (target / "eval.json").write_text(json.dumps(evaluation), encoding="utf-8")
    return target


# ---- the numbers ----


def cells(text: str, title: str) -> list[list[str]]:
    """The rows of the Markdown table below a heading, header included, without escapes."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), text.split(f"{title}\n", 1)[1].split("\n"))
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for i, row in enumerate(rows) if i != 1]


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(r"−?\d+\.\d+", text)]


def same(text: str, *expected: float, digits: int = 3) -> None:
    assert numbers(text) == pytest.approx(expected, abs=0.5001 * 10**-digits), text


def ends(found: dict[str, Any]) -> tuple[float, float, float]:
    return found["estimate"], found["low"], found["high"]


def test_every_number_of_the_tables_is_evals(folder: Path, reported: Path) -> None:
    evaluation, text = read_eval(folder / "eval.json"), (reported / "report.md").read_text(encoding="utf-8")
    summary = {tuple(row[:3]): row for row in cells(text, "## The numbers that decide")}
    for result in evaluation["results"]:
        part = text.split("\n## Data set ")[1 + list(evaluation["datasets"]).index(result["dataset"])]
        scores = {tuple(row[:2]): row for row in cells("\n" + part, "\n")}
        gates = {tuple(row[:2]): row for row in cells(part, "### Coverage and accuracy at confidence gates")}
        more = {tuple(row[:2]): row for row in cells(part, "### More about each signal")}
        for name, s in result["signals"].items():
            murphy, gate = s["murphy"], next(g for g in s["gates"] if g["gate"] == 0.9)
            row = summary[result["dataset"], result["arm"], name]
            same(row[3], *ends(result["accuracy"]))
            same(row[4], *ends(s["ece"]))
            same(row[5], s["ece"]["null_floor"]["upper"])
            assert (row[6] == "not shown") == (s["ece"]["estimate"] <= s["ece"]["null_floor"]["upper"])
            same(row[7] + row[8].rjust(9), s["brier"]["estimate"], murphy["uncertainty"])
            same(row[9], gate["coverage"])
            if gate["accuracy"] is None:
                assert row[10] == GAP
            else:
                same(row[10], gate["accuracy"])
            row = scores[result["arm"], name]
            same(row[2], result["accuracy"]["estimate"])
            same(row[3], *ends(s["ece"]))
            same(row[4], s["ece"]["null_floor"]["upper"])
            same(row[5], s["brier"]["estimate"])
            same(row[6], murphy["uncertainty"])
            same(row[7], murphy["reliability"], murphy["reliability_debiased"])
            same(row[8], murphy["resolution"], murphy["resolution_debiased"])
            same(row[9], s["log_loss"]["estimate"])
            same(row[10], s["aurc"]["estimate"])
            same(row[11], s["mean_confidence"])
            for cell, g in zip(gates[result["arm"], name][2:], s["gates"], strict=True):
                same(cell, g["coverage"], *([g["accuracy"], *g["accuracy_interval"]] if g["count"] else []))
                assert cell.endswith(f": {GAP}") == (g["count"] == 0)
            row = more[result["arm"], name]
            for cell, metric in zip(row[2:5], ("brier", "log_loss", "aurc"), strict=True):
                same(cell, *ends(s[metric]))
            same(row[5], s["e_aurc"])
            same(row[6], s["augrc"])
            z, p_value = s["spiegelhalter"]["z"], s["spiegelhalter"]["p_value"]
            if z is None:  # a stated confidence of 0.5 everywhere promises nothing that could be tested
                assert row[7] == f"{GAP} ({GAP})"
            else:
                same(row[7].split(" ")[0], z, digits=2)
                assert row[7].split(" ")[1] == ("(<0.001)" if p_value < 0.0005 else f"({p_value:.3f})")
            if "posterior_error" in s:
                same(row[8], s["posterior_error"]["bias"], s["posterior_error"]["root_mean_square"])
    for comparison in evaluation["comparisons"]:
        part = text.split("\n## Data set ")[1 + list(evaluation["datasets"]).index(comparison["dataset"])]
        compared = {row[1]: row for row in cells(part, "### Arms compared, paired over contexts")}
        for name, metrics in comparison["signals"].items():
            assert compared[name][0] == f"{comparison['first']} − {comparison['second']}"
            for cell, metric in zip(compared[name][2:], ("brier", "log_loss", "ece", "aurc"), strict=True):
                difference, share = cell.rsplit(", ", 1)
                same(difference, *ends(metrics[metric]))
                same(share, 100 * metrics[metric]["other_sign"], digits=1)


def test_every_number_of_the_notes_and_of_the_base_table_is_evals(folder: Path, reported: Path) -> None:
    evaluation, text = read_eval(folder / "eval.json"), (reported / "report.md").read_text(encoding="utf-8")
    base = {row[0]: row for row in cells(text, "## The base model on every data set")}
    for result in evaluation["results"]:
        part = text.split("\n## Data set ")[1 + list(evaluation["datasets"]).index(result["dataset"])]
        (note,) = (line for line in part.split("\n") if line.startswith(f"- {result['arm']}: "))
        told = {start: note.split(start)[1].split(";")[0] for start in NOTES if start in note}
        fields = result["fields"].values()
        same(told["per-field accuracy"], *itertools.chain(*(ends(f["accuracy"]) for f in fields)))
        same(told["fitted T"], *(f["temperature"]["value"] for f in fields), digits=2)
        assert told["fitted T"].count("at the ceiling") == sum(f["temperature"]["at_ceiling"] for f in fields)
        assert ("sensitivity" in told) == (result["order"] is not None)
        assert ("broken rules" in told) == ("Bayes" in told) == ("true posterior" in told) == (result["dataset"] == "synthetic")
        if order := result["order"]:
            same(told["sensitivity"], *ends(order["total_variation"]), *ends(order["flip_rate"]))
            assert told["sensitivity"].endswith(f"(k = {order['shuffles']}, n = {order['contexts']})")
        if result["dataset"] == "synthetic":
            (before,) = result["rules"]["before"]
            same(
                told["broken rules"].replace(before["rule"], ""),
                *ends(before["rate"]),
                0,
            )
            assert before["rule"] in told["broken rules"]
            same(told["Bayes"], result["bayes"]["accuracy"], *ends(result["bayes"]["regret"]))
            same(told["true posterior"], *(s["posterior_error"]["mean_absolute"] for s in result["signals"].values()))
        if result["arm"] == "base":
            row = base[result["dataset"]]
            eces = [result["signals"][name]["ece"]["estimate"] for name in ("softmax", "stated", "softmax_ts")]
            same(" ".join(row[2:6]), result["accuracy"]["estimate"], *eces)
            assert row[6] == GAP if result["order"] is None else numbers(row[6])
            same(row[7], result["coverage"])


def test_numbers_as_text() -> None:
    assert [number(v) for v in (None, 0.0, -0.0, -0.0004, -0.0006, 1.0)] == [GAP, "0.000", "0.000", "0.000", "−0.001", "1.000"]
    assert interval({"estimate": None, "low": 0.0, "high": 1.0}) == f"{GAP} (0.000–1.000)"


def test_null_is_a_dash(folder: Path, tmp_path: Path) -> None:
    def edit(evaluation: dict[str, Any]) -> None:
        for result in evaluation["results"]:
            for s in result["signals"].values():
                s["spiegelhalter"] = {"z": None, "p_value": None}

    edited = change(folder, tmp_path / "edited", edit)
    text = markdown(build(merge({edited: read_eval(edited / "eval.json")})), [])
    assert {row[7] for row in cells(text, "### More about each signal")[1:]} == {f"{GAP} ({GAP})"}


def test_the_curve_drawn_is_the_one_whose_mean_is_aurc(tables: Tables) -> None:
    rows = tables["base", "synthetic"]
    found = signals(select(rows, TEST), fit_temperatures(rows))
    for name, confidence in found.confidence.items():
        assert figures._risk(found, name).mean() == pytest.approx(aurc(confidence, found.correct), abs=1e-12)


# ---- several folders ----


def test_arms_that_were_evaluated_apart_are_compared_as_if_together(folder: Path, tables: Tables, tmp_path: Path) -> None:
    apart = [
        write(tmp_path / str(i), {k: v for k, v in tables.items() if k[0] == arm}) for i, arm in enumerate(("base", "runs/ab_x"))
    ]
    merged = merge({path: read_eval(path / "eval.json") for path in apart})
    for name in merged["datasets"]:
        results = [r for r in merged["results"] if r["dataset"] == name]
        merged["comparisons"] += missing_comparisons(merged, name, {r["arm"]: read_table(Path(r["table"])) for r in results})
    together = read_eval(folder / "eval.json")
    assert merged["comparisons"] == together["comparisons"]
    assert merged["arms"] == together["arms"]
    assert missing_comparisons(together, "synthetic", {arm: tables[arm, "synthetic"] for arm in together["arms"]}) == []


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda e: None, "arm 'base' on 'synthetic' stands in"),
        (lambda e: e["datasets"]["synthetic"].update(test_hash="f" * 16), "data set 'synthetic' has the test_hash eeee"),
        (lambda e: e["settings"].update(model="another"), "evaluated with the settings"),
        (lambda e: e.update(version=EVAL_VERSION + 1), "has the version 3, this program reads 2"),
        (lambda e: e.pop("packages"), "has no 'packages'"),
    ],
)
def test_folders_that_do_not_go_together(folder: Path, tmp_path: Path, capsys: Any, edit: Any, sentence: str) -> None:
    other = change(folder, tmp_path / "other", edit)
    assert sentence in mistake(capsys, folder, other, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- bad input ----


def mistake(capsys: Any, *args: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, args)])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.strip().split("\n")) == 1
    return str(err)


def test_no_evaluation(tmp_path: Path, capsys: Any) -> None:
    assert "does not exist" in mistake(capsys, tmp_path / "nowhere")


def test_a_table_is_missing(folder: Path, tmp_path: Path, capsys: Any) -> None:
    other = change(folder, tmp_path / "other", lambda e: None)
    (other / "decisions" / "1.csv.gz").unlink()
    assert "1.csv.gz' can't be read" in mistake(capsys, other)


def test_a_table_of_another_evaluation(folder: Path, tmp_path: Path, capsys: Any) -> None:
    other = change(folder, tmp_path / "other", lambda e: None)
    shutil.copy(other / "decisions" / "1.csv.gz", other / "decisions" / "0.csv.gz")
    assert "0.csv.gz' is not the one behind its eval.json" in mistake(capsys, other)


def test_an_incomplete_evaluation(folder: Path, tmp_path: Path, capsys: Any) -> None:
    other = change(folder, tmp_path / "other", lambda e: e["results"][0].pop("fields"))
    assert "an eval.json is incomplete" in mistake(capsys, other)
    assert not (other / "report.html").exists()


def test_no_matplotlib(folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "rlcd-lite[plot]" in mistake(capsys, folder, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_right_and_too_unsure_for_any_gate(tmp_path: Path) -> None:
    folder = write(tmp_path / "right", {("base", "set"): answers(0.1, right=1.0)})
    main(["report", str(folder)])
    text = (folder / "report.md").read_text(encoding="utf-8")
    softmax = cells(text, "## The numbers that decide")[1]
    assert softmax[6] == "too unsure"
    assert softmax[8:] == ["0.000", "0.000", GAP]  # the base rate needs no luck, and nothing passes the gate
    assert "### Arms compared" not in text
    assert len(list(folder.glob("*.png"))) == 3


# ---- the page ----


class Page(HTMLParser):
    """Checks that elements nest, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.starts.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="session")
def html(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


def test_the_page_is_one_file_without_scripts_or_other_hosts(html: str) -> None:
    found = Page(html)
    tags = [tag for tag, _ in found.starts]
    assert not {"script", "link", "iframe", "object", "form", "base"} & set(tags)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", re.sub(r"base64,[A-Za-z0-9+/=]+", "", html))
    for tag, attributes in found.starts:
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;base64,")


def test_contents_lead_to_sections_and_definitions_stand_by(html: str) -> None:
    starts = Page(html).starts
    ids = [a["id"] for _, a in starts if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for tag, a in starts if tag == "a"} == {f"#{i}" for i in ids}
    tags = [tag for tag, _ in starts]
    assert tags.count("details") == tags.count("table") + tags.count("img")
    assert all(a["alt"] for tag, a in starts if tag == "img")
    assert tags.count("img") == 4 + 3
    assert all(a["tabindex"] == "0" and a["aria-label"] for _, a in starts if a.get("class") == "scroll")


def test_names_from_data_are_text(html: str, reported: Path) -> None:
    found = Page(html)
    assert "<b>bold" not in html
    assert f"Data set {ODD}" in found.text
    text = (reported / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", text)
    assert cells(text, "## The base model on every data set")[2][0] == ODD
    assert all(
        Path(name).name == name and (reported / name).exists() for name in re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE)
    )


def test_page_and_markdown_without_pictures(folder: Path) -> None:
    report = build(merge({folder: read_eval(folder / "eval.json")}))
    assert "img" not in [tag for tag, _ in Page(page(report, [])).starts]
    assert "![" not in markdown(report, [])


# ---- the pictures ----


def test_pictures_are_pngs_and_the_same_again(folder: Path, reported: Path, tables: Tables) -> None:
    files = sorted(path.name for path in reported.glob("*.png"))
    assert len(files) == 7
    evaluation = read_eval(folder / "eval.json")
    results = {r["arm"]: r for r in evaluation["results"] if r["dataset"] == "synthetic"}
    again = figures.draw("synthetic", "synthetic", results, {arm: tables[arm, "synthetic"] for arm in results}, 0)
    assert [picture.file for picture in again] == [
        f"synthetic-{kind}.png" for kind in ("reliability", "risk-coverage", "histogram", "truth")
    ]
    for picture in again:
        assert picture.png.startswith(b"\x89PNG\r\n")
        assert len(picture.png) > 10_000
        assert picture.png == (reported / picture.file).read_bytes()
        assert not re.search(rb"Software|tEXt|tIME", picture.png)


# ---- scripts ----


def test_the_script_is_the_command(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), str(folder / "nowhere")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "does not exist" in run.stderr


@pytest.fixture
def fake_uv(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``uv`` only notes how it was called."""
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def test_ab_eval_of_the_base_alone(fake_uv: dict[str, str]) -> None:
    command = ["bash", str(ROOT / "scripts" / "ab_eval.sh"), "mmlu:virology", "200", "30"]
    run = subprocess.run(command, env=fake_uv | {"ARMS": "base", "MODEL": "smollm2"}, capture_output=True, text=True, check=True)
    evaluate, report, end = run.stdout.split("\n")
    flags = "--model smollm2 --arms base --datasets mmlu:virology --n 30 --output runs/ab-mmlu_virology-base/eval"
    assert evaluate == f"run --all-extras rlcd-lite eval {flags}"
    assert report == "run --all-extras rlcd-lite report runs/ab-mmlu_virology-base/eval --output runs/ab-mmlu_virology-0"
    assert end == ""


def test_ab_eval_trains_each_arm_by_its_config(fake_uv: dict[str, str]) -> None:
    command = ["bash", str(ROOT / "scripts" / "ab_eval.sh"), "no-such-set", "200", "300"]
    arms = ["grpo_rlcr", "sft_ce"]
    settings = {"ARMS": " ".join(["base", *arms]), "TRAIN": "--precision bf16", "EVAL": "--calibration-n 50", "SEEDS": "0 7"}
    run = subprocess.run(command, env=fake_uv | settings, capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    for seed, (train_warm, warm, base, *trained, report) in zip((0, 7), (lines[:8], lines[8:]), strict=True):
        name = f"runs/ab-no-such-set-{{}}-{seed}"
        rest = f"--dataset no-such-set --run-name ab-no-such-set-{{}}-{seed} --precision bf16"
        measure = "run --all-extras rlcd-lite eval --arms {} --datasets no-such-set --n 300 --output {}/eval --calibration-n 50"
        flags = f"--config configs/warm_up.yaml --seed {seed}"
        assert train_warm == f"run --all-extras rlcd-lite train {flags} {rest.format('warm_up')}"
        assert warm == measure.format(*[name.format("warm_up")] * 2)
        assert base == measure.format("base", "runs/ab-no-such-set-base")
        start = f"--seed {100 + seed} --adapter {name.format('warm_up')}/adapter"
        for arm, train, evaluate in zip(arms, trained[::2], trained[1::2], strict=True):
            flags = f"--config configs/{arm}.yaml --steps 200 {start}"
            assert train == f"run --all-extras rlcd-lite train {flags} {rest.format(arm)}"
            assert evaluate == measure.format(*[name.format(arm)] * 2)
        folders = [name.format("warm_up"), "runs/ab-no-such-set-base", *(name.format(arm) for arm in arms)]
        folders = " ".join(f"{folder}/eval" for folder in folders)
        assert report == f"run --all-extras rlcd-lite report {folders} --output runs/ab-no-such-set-{seed}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["synthetic", "200"], "usage"), (["synthetic", "200", "300"], "arm 'ppo' is neither base nor one of")],
)
def test_ab_eval_says_what_is_wrong(fake_uv: dict[str, str], arguments: list[str], sentence: str) -> None:
    command = ["bash", str(ROOT / "scripts" / "ab_eval.sh"), *arguments]
    run = subprocess.run(command, env=fake_uv | {"ARMS": "base ppo"}, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.strip().split("\n")) == 1
    assert sentence in run.stderr
