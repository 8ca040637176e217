"""Several processes of one run: they train as one with a batch of all, and decide the bytes that one decides."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import TEXTS, TRIAGE, tiny_engine, tiny_model
from rlcd_lite import launch, models, ranks
from rlcd_lite.cli import main
from rlcd_lite.datasets import load
from rlcd_lite.datasets.synthetic import SCHEMA
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.scores import Scores
from rlcd_lite.trainer import _epoch_order

TIMEOUT = 240  # seconds; two processes that wait for each other must fail a test, not stop it

# Runs commands one after the other in the same processes, whose start costs more than the commands, and notes which files of the
# working folder a process touches.
DRIVER = """
import json, os, sys
from pathlib import Path
from rlcd_lite import cli, ranks
from rlcd_lite.errors import UserError

here, touched = os.getcwd(), []

def watch(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        path = os.path.abspath(os.fsdecode(args[0])) if not isinstance(args[0], int) else ""
        if path.startswith(here):
            touched.append(f"{event} {path[len(here):]}")

sys.addaudithook(watch)
for name, args in json.loads(Path(sys.argv[1]).read_text()).items():
    try:
        cli._run(args)
        said = "fine"
    except UserError as error:
        said = str(error)
    found = list(touched)
    Path(f"{name}.{ranks.rank()}").write_text(json.dumps([said, found]))
    touched.clear()
ranks.leave(0)
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many as each of two processes has: the bytes of a sum depend on it."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")}
    environment = inherited | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ranks.__file__).parents[1])}
    run = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = run.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        run.terminate()  # the launcher ends its processes
        out, err = run.communicate(timeout=60)
        pytest.fail(f"{command} hangs:\n{err}")
    return subprocess.CompletedProcess(command, run.returncode, out, err)


def rows_of(path: Path) -> list[dict]:
    clock = ("seconds", "tokens_per_s", "tokens")  # each process runs the schema
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in path.read_text().splitlines()]


def assert_equal_runs(ours: Path, theirs: Path) -> None:
    for log in ("metrics.jsonl", "evals.jsonl"):
        assert len(rows_of(ours / log)) == len(rows_of(theirs / log)) > 1
        for row, other in zip(rows_of(ours / log), rows_of(theirs / log), strict=True):
            assert row.keys() == other.keys()
            for name, value in row.items():
                assert value == (pytest.approx(other[name], rel=1e-5, abs=1e-5) if isinstance(value, float) else other[name]), name
    for adapter in ("adapter", "adapter-best"):
        weights, others = (load_file(run / adapter / "adapter_model.safetensors") for run in (ours, theirs))
        assert max(float((weights[name] - others[name]).abs().max()) for name in weights | others) < 1e-5


# ---- real processes ----


def test_two_processes_are_one(model_folder: Path, tmp_path: Path, monkeypatch, capsys, one_thread) -> None:
    monkeypatch.chdir(tmp_path)
    model = ["--model", str(model_folder)]
    recipe = ["--steps", "6", "--warmup-steps", "2", "--rollouts", "4", "--inner-epochs", "2", "--beta-kl", "0.1", "--eval-n", "8"]
    train = ["train", *model, *recipe, "--eval-every", "3", "--checkpoint-every", "3"]

    # training, by the command of the documentation
    main([*train, "--batch", "4", "--run-name", "one"])
    capsys.readouterr()
    flags = ["--num_processes", "2", "--cpu", "--main_process_port", str(free_port())]
    run = start(["accelerate.commands.launch", *flags, "-m", "rlcd_lite", *train, "--batch", "2", "--run-name", "two"], tmp_path)
    assert run.returncode == 0, run.stderr
    assert_equal_runs(Path("runs/two"), Path("runs/one"))
    assert json.loads(Path("runs/two/config.json").read_text())["options"]["world_size"] == 2
    assert run.stdout.count("step\t") == 1
    assert run.stderr.count("the adapter of step 6. Evaluate it") == 1

    # the rest, in one start: rows of many batches, sets of one and of several, errors, and a run that is continued
    texts = [f"ticket {i} " + "word " * (i * 13 % 60) for i in range(30)] + ["word " * 3000]
    Path("rows.jsonl").write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    Path("schema.json").write_text(json.dumps(TRIAGE))
    Path("tickets.json").write_text(json.dumps(SCHEMA.to_dict()))
    infer = ["infer", *model, "--schema", "schema.json", "--input", "rows.jsonl"]
    sets = ["--n", "14", "--calibration-n", "12", "--permutation-k", "1", "--permutation-n", "2", "--resamples", "5"]
    evaluate = ["eval", *model, *sets, "--arms", "base,runs/one", "--output"]
    main([*infer, "--output", "one.jsonl", "--trace", "one.json"])
    main([*infer])
    printed = capsys.readouterr().out
    main([*evaluate, "one-eval"])
    shutil.copytree("runs/two", "runs/again")
    shutil.rmtree("runs/again/checkpoints/step-000006")
    shutil.rmtree("runs/again/adapter")
    shutil.copy("one.jsonl", "cut.jsonl")
    half = Path("one.jsonl").read_bytes()
    Path("cut.jsonl").write_bytes(half[: half.index(b"\n", len(half) // 2) + 20])
    record = json.loads(Path("one.jsonl.run.json").read_text())
    Path("cut.jsonl.run.json").write_text(json.dumps(record | {"complete": False}))
    write_tickets(Path("long.jsonl"), place=2)  # of the four of the first step, the second process takes the last two
    commands = {
        "infer": [*infer, "--output", "two.jsonl", "--trace", "two.json"],
        "printed": infer,
        "resumed": [*infer, "--output", "cut.jsonl", "--resume"],
        "exists": [*infer, "--output", "two.jsonl"],
        "eval": [*evaluate, "two-eval"],
        "long": [*train, "--dataset", "long.jsonl", "--schema", "tickets.json", "--batch", "2", "--run-name", "long"],
        "again": [*train, "--batch", "2", "--run-name", "again", "--resume"],  # the last: it parts from the other process
    }
    Path("commands.json").write_text(json.dumps(commands))
    Path("driver.py").write_text(DRIVER)
    flags = ["--nproc-per-node", "2", "--master-port", str(free_port())]
    run = start(["torch.distributed.run", *flags, "driver.py", "commands.json"], tmp_path)
    assert run.returncode == 0, run.stderr
    said, touched = {}, {}
    for name in commands:
        said[name], touched[name] = zip(*(json.loads(Path(f"{name}.{rank}").read_text()) for rank in range(2)), strict=True)
    assert {name for name, (main_process, _) in touched.items() if main_process} == set(commands) - {"exists", "printed"}
    assert not any(other for _, other in touched.values())
    assert all(first == second for first, second in said.values())
    assert {name for name, (first, _) in said.items() if first == "fine"} == set(commands) - {"exists", "long"}
    assert "two.jsonl' exists" in said["exists"][0]
    assert "shorten the text" in said["long"][0]

    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert Path("two.json").read_bytes() == Path("one.json").read_bytes()
    assert [line for line in run.stdout.splitlines() if line.startswith("{")] == printed.splitlines()
    assert [json.loads(line)["line"] for line in Path("cut.jsonl").read_text().splitlines()] == list(range(1, 31))
    assert run.stderr.count("decided 30 of 31 rows, 1 left out.") == 2
    assert run.stderr.count("line 31 is left out") == 3
    names = sorted(path.name for path in Path("one-eval/decisions").iterdir())
    assert names == sorted(path.name for path in Path("two-eval/decisions").iterdir())
    for name in [name for name in names if name.endswith(".gz")]:
        assert Path("two-eval/decisions", name).read_bytes() == Path("one-eval/decisions", name).read_bytes()
    assert Path("two-eval/eval.json").read_bytes() == Path("one-eval/eval.json").read_bytes()
    assert_equal_runs(Path("runs/again"), Path("runs/two"))


def write_tickets(path: Path, place: int) -> None:
    """Tickets to train on with seed 0; the one that stands at a place of the first step is too long."""
    tickets = [e.to_dict() | {"split": "train" if i < 30 else "calibration"} for i, e in enumerate(load("synthetic", "train", 60))]
    path.write_text("".join(json.dumps(ticket) + "\n" for ticket in tickets))
    shown = load(str(path), "train", schema=SCHEMA)
    long = shown[_epoch_order(len(shown), 0, 0)[place]].id
    for ticket in tickets:
        ticket["context"] += " word" * 3000 * (ticket["id"] == long)
    path.write_text("".join(json.dumps(ticket) + "\n" for ticket in tickets))


# ---- two processes as two threads: every way in which rows can fall ----

OTHER = {"fields": [{"name": "mood", "type": "score", "options": ["sad", "flat", "glad"]}]}
RUNS = {
    "one text": [(TRIAGE, TEXTS[:1])],
    "one row": [(TRIAGE, TEXTS)],
    "many rows": [(TRIAGE, TEXTS * 4)],
    "a schema each": [({"fields": [{"name": f"f{i}", "type": "bool"}]}, [text]) for i, text in enumerate(TEXTS[:3])],
    "of all": [(TRIAGE, TEXTS[:1]), (OTHER, TEXTS * 9), (TRIAGE, TEXTS), (OTHER, [])],
    "nothing": [],
    "too long": [(TRIAGE, [*TEXTS, *TEXTS, "word " * 3000, *TEXTS])],
    "not a number": [(TRIAGE, [*TEXTS, *TEXTS, "\u0416", *TEXTS])],
}


def asked(engine: DecisionEngine, runs: list, spread: bool) -> tuple[list[Scores], list[dict], str]:
    """Scores, trace and error of a stream."""
    scores: list[Scores] = []
    records: list[dict] = []
    try:
        for found in engine.score_runs(runs, coverage=True, budget=700, trace=records.append, spread=spread):
            scores.append(found)
    except UserError as error:
        return scores, records, str(error)
    return scores, records, ""


def faulty_engine(tokenizer) -> DecisionEngine:
    """A tiny engine for which one letter is not a number."""
    model = tiny_model("llama", len(tokenizer))
    engine = tiny_engine(tokenizer, model=model)
    (ids,) = engine.encoder.data(["\u0416"])
    with torch.no_grad():
        model.model.embed_tokens.weight[list(ids)] = float("nan")
    return engine


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("processes", [2, 3])
def test_spread_rows_are_those_of_one_process(tokenizer, monkeypatch, one_thread, runs: list, processes: int) -> None:
    expected = asked(faulty_engine(tokenizer), runs, spread=False)
    engines = [faulty_engine(tokenizer) for _ in range(processes)]
    before = [engine.forward.tokens_run for engine in engines]
    own = threading.local()
    barrier = threading.Barrier(processes, timeout=60)
    items: list = [None] * processes

    def gather(item: object) -> list:
        items[own.rank] = item
        barrier.wait()
        found = list(items)
        barrier.wait()
        return found

    monkeypatch.setattr(ranks, "world", lambda: processes)
    monkeypatch.setattr(ranks, "rank", lambda: own.rank)
    monkeypatch.setattr(ranks, "gather", gather)
    results: list = [None] * processes

    def work(rank: int) -> None:
        own.rank = rank
        torch.set_num_threads(1)  # of this thread
        results[rank] = asked(engines[rank], runs, spread=True)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scores, records, error in results:
        assert error == expected[2]
        assert records == expected[1]
        assert len(scores) == len(expected[0])
        for ours, theirs in zip(scores, expected[0], strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert torch.equal(a.choice, b.choice)
                assert torch.equal(a.stated, b.stated)
                assert a.coverage == b.coverage
    if len(expected[0]) > 8:
        assert all(engine.forward.tokens_run > start for engine, start in zip(engines, before, strict=True))  # each had its share


# ---- who am I ----


def test_an_ordinary_process_is_alone() -> None:
    tensors = [torch.ones(2), torch.zeros(1, 3)]
    assert (ranks.world(), ranks.rank(), ranks.local_rank(), ranks.is_main()) == (1, 0, 0, True)
    assert ranks.gather("x") == ranks.agree(lambda: "x") == ["x"]
    assert ranks.told(lambda: "x") == "x"
    assert [t is o for t, o in zip(ranks.total(tensors), tensors, strict=True)] == [True, True]
    ranks.wait()
    ranks.leave(0)


def test_mpi_numbers_are_read(monkeypatch) -> None:
    for name, value in (("SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert (ranks.world(), ranks.rank(), ranks.local_rank(), ranks.is_main()) == (4, 3, 1, False)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert models._device("auto") == torch.device("cuda")
    for rank, gpu in ((0, 0), (1, 1), (2, 0)):
        monkeypatch.setenv("WORLD_SIZE", "3")
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert models._device("auto") == models._device("cuda") == torch.device("cuda", gpu)
        assert models._device("cpu") == torch.device("cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert models._device("auto") == torch.device("cpu")


def test_accelerate_on_cpus_is_given_the_processes_it_was_asked_for(monkeypatch) -> None:
    command = ["python", "accelerate", "launch", "--cpu", "--num_machines=2", "--machine_rank", "1", "--num-processes", "4"]
    assert launch._asked([*command, "-m", "rlcd_lite", "eval", "--n", "3"]) == (2, 1, 4)
    assert launch._asked(["accelerate", "launch", "--cpu", "x.py"]) == (1, 0, None)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    launch.complete(["data"])  # accelerate was asked for one
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match="torchrun"):
        launch.complete(["data"])  # by pytest, whose command says nothing
    monkeypatch.setenv("WORLD_SIZE", "1")
    launch.complete(["data"])  # a launcher has started us
