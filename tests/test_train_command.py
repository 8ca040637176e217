"""``rlcd-lite train`` and ``merge`` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlcd_lite import checkpoints
from rlcd_lite.cli import main
from rlcd_lite.commands import merge as merge_command
from rlcd_lite.commands.config_file import with_config
from rlcd_lite.commands.train import Train
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.health import symptoms
from rlcd_lite.recipe import Recipe

ROOT = Path(__file__).parents[1]
SCHEMA = {"fields": [{"name": "kind", "type": "choice", "options": ["bug", "bill"]}, {"name": "urgent", "type": "bool"}]}
SMALL = ["--steps", "4", "--batch", "2", "--warmup-steps", "2", "--eval-every", "2", "--eval-n", "4", "--checkpoint-every", "1"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Runs a command in a folder of its own; ``train`` on a small file with a tiny model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    lines = [
        {"id": i, "text": f"{'crash' if i % 2 else 'invoice'} {i}", "kind": "bug" if i % 2 else "bill", "urgent": i % 3 == 0}
        for i in range(60)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(command: str, *flags: str) -> tuple[int, str, str]:
        given = ["--model", str(model_folder), "--dataset", "data.jsonl", "--schema", "schema.json"] if command == "train" else []
        try:
            main([command, *given, *flags])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_run_leaves_what_the_docs_say(cli: Run, tmp_path: Path, model_folder: Path) -> None:
    code, out, err = cli(
        "train", *SMALL, "--run-name", "a", "--prior-correction", "--confidence", "conditioned", "--confidence-grid", "10"
    )
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["step", "0", "2", "4"]
    assert "rlcd-lite eval --arms base,runs/a" in err
    folder = tmp_path / "runs/a"
    assert {p.name for p in folder.iterdir()} >= {"config.json", "metrics.jsonl", "evals.jsonl", "checkpoints", "adapter"}
    config = json.loads((folder / "config.json").read_text())
    assert config["options"]["reward"] == "rlcr"
    asked = {"layout": "schema-first", "confidence": "conditioned", "confidence_grid": "10"}
    assert config["contract"] == asked | {"scoring": "labels", "readout": "sum", "options": "auto"}
    assert set(config["packages"]) >= {"torch", "transformers", "peft"}
    assert config["data"]["train_n"] > 10
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in metrics] == ["warm-up", "warm-up", "rl", "rl"]
    documented = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert [key for key in metrics[0] if f"`{key}`" not in documented and key != "step"] == []
    # the adapter carries its contract: no flag is needed, and none may contradict it
    code, out, _ = cli(
        "infer", "--model", str(model_folder), "--adapter", "runs/a/adapter", "--schema", "schema.json", "--context", "x", "--json"
    )
    assert code == 0
    assert json.loads(out)["fields"]["kind"]["stated"] in [round(0.05 + i / 10, 2) for i in range(10)]
    infer = ("infer", "--model", str(model_folder), "--schema", "schema.json", "--context", "x")
    code, _, err = cli(*infer, "--adapter", "runs/a/adapter", "--confidence", "independent")
    assert (code, err.count("\n")) == (2, 1)
    assert "was trained with confidence 'conditioned', not 'independent': leave --confidence out" in err


def test_training_that_goes_on_may_choose_how_the_confidence_is_stated_and_nothing_else(cli: Run, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--run-name", "a")[0] == 0
    on = ("train", *SMALL, "--adapter", "runs/a/adapter")
    assert cli(*on, "--run-name", "b", "--confidence", "conditioned", "--confidence-grid", "10")[0] == 0
    contract = json.loads((tmp_path / "runs/b/adapter/decision.json").read_text())
    assert (contract["confidence"], contract["confidence_grid"]) == ("conditioned", "10")
    code, _, err = cli(*on, "--run-name", "c", "--scoring", "verbatim")
    assert (code, err.count("\n")) == (2, 1)
    assert "was trained with scoring 'labels', not 'verbatim': leave --scoring out" in err
    # a prior was measured for the questions as they were
    assert cli("train", *SMALL, "--run-name", "d", "--prior-correction")[0] == 0
    code, _, err = cli("train", *SMALL, "--adapter", "runs/d/adapter", "--run-name", "e", "--confidence", "conditioned")
    assert code == 2
    assert "was trained with confidence 'independent', not 'conditioned': leave --confidence out" in err


def test_eval_takes_a_run_as_an_arm(cli: Run, model_folder: Path) -> None:
    assert cli("train", *SMALL, "--run-name", "a", "--confidence", "conditioned")[0] == 0
    flags = (
        "--datasets",
        "data.jsonl",
        "--schema",
        "schema.json",
        "--n",
        "6",
        "--calibration-n",
        "6",
        "--resamples",
        "20",
        "--output",
        "e",
    )
    assert cli("eval", "--model", str(model_folder), "--arms", "base,runs/a", *flags)[0] == 0
    results = json.loads(Path("e/eval.json").read_text())["results"]
    assert [r["contract"]["confidence"] for r in results] == ["independent", "conditioned"]


def test_an_existing_run_is_not_touched_and_is_resumed_by_the_same_options_only(cli: Run, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--run-name", "a")[0] == 0
    before = {p: p.read_bytes() for p in tmp_path.glob("runs/a/**/*") if p.is_file()}
    for flags, sentence in (
        ((), "run 'runs/a' exists: go on with --resume, replace it with --overwrite, or give another --run-name"),
        (("--resume", "--lr", "1e-3"), "was started with lr 0.0003, not 0.001"),
        (("--resume", "--reward", "binary"), "was started with reward 'rlcr', not 'binary'"),
        (("--resume", "--overwrite"), "give one of the two"),
        (("--resume", "--confidence-grid", "10"), "was started with confidence_grid None, not '10'"),
    ):
        code, out, err = cli("train", *SMALL, "--run-name", "a", *flags)
        assert (code, out) == (2, "")
        assert sentence in err
    assert {p: p.read_bytes() for p in tmp_path.glob("runs/a/**/*") if p.is_file()} == before
    assert cli("train", *SMALL, "--run-name", "a", "--resume")[0] == 0  # nothing is left to do
    assert cli("train", *SMALL, "--run-name", "b", "--resume")[0] == 2
    assert cli("train", *SMALL, "--run-name", "a", "--overwrite", "--reward", "binary")[0] == 0


def test_a_dry_run_writes_nothing(cli: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = cli("train", *SMALL, "--dry-run")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == [
        "data",
        "fields",
        "options",
        "text",
        "forward",
        "adapter",
        "memory",
        "time",
    ]
    assert "nothing was written" in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--reward", "rclr"), "--reward is 'rclr': did you mean 'rlcr'?"),
        (("--run-name", "../x"), "--run-name is '../x': give a name for a folder"),
        (("--dataset", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--train-n", "9999"), "rows in its train split, not 9999"),
        (("--steps", "0"), "--steps is 0"),
        (("--lr", "nan"), "--lr is nan"),
        (("--objective", "sft-ce", "--reward", "brier"), "is taught the label and draws nothing: leave --reward out"),
        (("--estimator", "exact", "--rollouts", "4"), "--estimator exact draws nothing: leave --rollouts out"),
        (("--feedback", "bandit", "--estimator", "exact"), "--estimator exact needs the label"),
        (
            ("--reward", "binary", "--w-calibration", "2"),
            "--reward binary has no term for the confidence: leave --w-calibration out",
        ),
        (("--reward", "brier", "--w-correct", "2"), "--reward brier without --decouple has no term for correctness"),
        (("--objective", "sft-ce", "--w-correct", "0", "--w-calibration", "0"), "are both 0"),
        (("--config", "none.yaml"), "none.yaml"),
        ((), "--eval-n is 100, which takes 150 held-out examples, and the calibration split of 'data.jsonl' has"),
        (("--tracker", "trackio", "--eval-n", "4"), "--tracker trackio can't be used"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(cli: Run, tmp_path: Path, flags: tuple[str, ...], sentence: str) -> None:
    code, out, err = cli("train", *flags)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_is_told_in_a_sentence(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = checkpoints.save_file, 0

    def full(tensors: Any, path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device", str(path))
        real(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full)
    code, _, err = cli("train", *SMALL, "--run-name", "a")
    assert code == 2
    assert "No space left on device): make room, and go on from the last whole checkpoint with --resume" in err
    assert [p.name for p in (tmp_path / "runs/a/checkpoints").iterdir()] == ["step-000001"]


def test_a_tracker_writes_into_the_run(cli: Run, tmp_path: Path) -> None:
    for flags in ((), ("--overwrite",)):
        assert cli("train", *SMALL, "--run-name", "a", "--tracker", "tensorboard", *flags)[0] == 0
        events = list(tmp_path.glob("runs/a/**/events.out.tfevents.*"))
        assert sum(b"held-out/nll_ts" in path.read_bytes() for path in events) == 1


# ---- configs ----


def test_every_config_can_be_run() -> None:
    found = sorted((ROOT / "configs").glob("*.yaml"))
    assert len(found) == 13
    for path in found:
        args = with_config(["--config", str(path)], Train)
        assert "--steps" in args
        values = {k: v for k, v in yaml.safe_load(path.read_text()).items() if k in Recipe.__dataclass_fields__}
        Recipe(**values).check()


def test_flags_win_over_the_config(cli: Run, tmp_path: Path) -> None:
    Path("c.yaml").write_text("steps: 9\nreward: binary\ndecouple: true\nlora-rank: 2\nprior_correction: false\n")
    assert cli("train", "--config", "c.yaml", *SMALL, "--run-name", "a")[0] == 0
    options = json.loads((tmp_path / "runs/a/config.json").read_text())["options"]
    assert [options[k] for k in ("steps", "reward", "decouple", "lora_rank", "prior_correction")] == [4, "binary", True, 2, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rewrd: rlcr", "has 'rewrd', which is no flag: did you mean 'reward'?"),
        ("reward: rclr", "--reward is 'rclr': did you mean 'rlcr'?"),
        ("- a", "it must map flags to values"),
        ("a: [", "is not YAML"),
        ("lr: [1]", "give one value"),
        ("config: other.yaml", "which is no flag"),
    ],
)
def test_a_config_with_a_mistake(cli: Run, text: str, sentence: str) -> None:
    Path("c.yaml").write_text(text)
    code, _, err = cli("train", "--config", "c.yaml")
    assert code == 2
    assert sentence in err


# ---- merge ----


def test_a_merged_model_is_base_and_adapter(cli: Run, model_folder: Path, tmp_path: Path) -> None:
    flags = ("--confidence", "conditioned", "--prior-correction", "--lr", "3e-2")
    assert cli("train", *SMALL, "--run-name", "a", *flags)[0] == 0
    code, _, err = cli("merge", "runs/a", "merged")
    assert code == 0
    assert "differ by" in err
    assert sorted(p.name for p in Path("merged").glob("*.safetensors")) == ["model.safetensors"]
    both = DecisionEngine.load(model_folder, adapter="runs/a/adapter")
    merged = DecisionEngine.load("merged")
    base = DecisionEngine.load(model_folder)
    assert merged.contract == both.contract
    with torch.no_grad():
        ours, theirs, untrained = (e.score(SCHEMA, ["crash 1", "invoice"]) for e in (merged, both, base))
    pairs = [(a, b, c) for x, y, z in zip(ours, theirs, untrained, strict=True) for a, b, c in zip(x, y, z, strict=True)]
    assert max(float((a.choice - b.choice).abs().max()) for a, b, _ in pairs) <= 1e-4
    assert max(float((a.stated - b.stated).abs().max()) for a, b, _ in pairs) <= 1e-4
    assert max(float((a.choice - c.choice).abs().max()) for a, _, c in pairs) > 1e-2  # else the adapter did nothing
    code, _, err = cli("merge", "runs/a", "merged")
    assert code == 2
    assert "exists" in err


def test_a_merge_that_changes_answers_is_refused(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("train", *SMALL, "--run-name", "a")[0] == 0
    probes = iter([torch.zeros(3), torch.tensor([0.0, 2e-4, 0.0])])
    monkeypatch.setattr(merge_command, "_probe", lambda engine: next(probes))
    code, _, err = cli("merge", "runs/a", "merged")
    assert code == 2
    assert "differs by 0.0002 in a label logit" in err
    assert not (tmp_path / "merged").exists()


# ---- health ----


def row(**values: Any) -> dict[str, Any]:
    healthy = {"zero_variance_group_frac": 0.4, "choice_entropy": 0.6, "choice_grad_mult": 1.2, "stated_conf_mean": 0.6, "acc": 0.6}
    return {"phase": "rl", "grad_norm": 0.5} | healthy | values


@pytest.mark.parametrize(
    ("rows", "evals", "name"),
    [
        ([row()] * 30, [{"acc": 0.5}] * 4, None),
        ([row(zero_variance_group_frac=0.95)] * 20, [], "equal rewards"),
        ([row(zero_variance_group_frac=None)] * 20, [], None),
        ([row(choice_entropy=0.6 - 0.031 * i) for i in range(20)], [], "entropy collapse"),
        ([row(choice_grad_mult=-0.3)] * 20, [], "brier trap"),
        ([row(stated_conf_mean=0.9, acc=0.5)] * 20, [], "overconfident"),
        ([row(phase="warm-up", stated_conf_mean=0.9, acc=0.2)] * 40, [], None),
        ([row(grad_norm=0.0)] * 3, [], "no gradient"),
        ([row()], [{"acc": 0.7}, {"acc": 0.6}, {"acc": 0.5}, {"acc": 0.59}], "accuracy lost"),
        ([row()], [{"acc": 0.7}, {"acc": 0.5}, {"acc": 0.7}, {"acc": 0.5}], None),
    ],
)
def test_what_looks_sick_is_said(rows: list[dict[str, Any]], evals: list[dict[str, Any]], name: str | None) -> None:
    assert list(symptoms(rows, evals)) == ([] if name is None else [name])
