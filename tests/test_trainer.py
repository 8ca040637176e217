"""Training: what must not matter (how a batch is split, where a run stopped), and what a run leaves behind."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from conftest import tiny_model
from rlcd_lite import checkpoints, trainer
from rlcd_lite.checkpoints import Log
from rlcd_lite.contract import Contract, Prior, read_contract
from rlcd_lite.datasets import Dataset, Example
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.models import LoadedModel, trainable
from rlcd_lite.recipe import Recipe
from rlcd_lite.schema import Schema
from rlcd_lite.trainer import Trainer

SCHEMA = Schema.of(
    {
        "fields": [
            {"name": "kind", "type": "choice", "options": ["bug", "bill", "login"]},
            {"name": "urgent", "type": "bool"},
        ]
    }
)
WORDS = {
    "bug": ["crash", "error 500", "blank page"],
    "bill": ["invoice", "refund", "charged"],
    "login": ["password", "code", "sso"],
}
QUICK = Recipe(steps=6, batch=4, lr=3e-3, lora_rank=4, lora_alpha=8, warmup_steps=2, eval_every=3, eval_n=4, checkpoint_every=1)
TIMING = ("seconds", "tokens_per_s")


def examples(n: int, split: str = "train") -> Dataset:
    out = []
    for i in range(n):
        kind = list(WORDS)[i % 3]
        text = f"{WORDS[kind][(i // 3) % 3]}{'!' * (i % 2) * 3} {i}"
        out.append(Example(f"{split}-{i}", text, SCHEMA, {"kind": kind, "urgent": i % 2 == 1}))
    return Dataset("tiny", split, "test", SCHEMA, tuple(out))  # type: ignore[arg-type]


def own_options(n: int) -> Dataset:
    """Examples with a schema each, as mmlu's."""
    out = []
    for i in range(n):
        schema = Schema.of({"fields": [{"name": "answer", "type": "choice", "options": [f"a{i}", f"b{i}", "c"][: 2 + i % 2]}]})
        out.append(Example(f"own-{i}", f"question {i}", schema, {"answer": f"a{i}"}))
    return Dataset("own", "train", "test", None, tuple(out))


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer of a tiny model, always the same one."""

    def build(
        recipe: Recipe = QUICK, folder: str = "run", contract: Contract | None = None, data: Dataset | None = None
    ) -> Trainer:
        loaded = LoadedModel(tiny_model("llama", len(tokenizer)), tokenizer, "tiny-llama")
        engine = DecisionEngine(trainable(loaded, recipe.lora_rank, recipe.lora_alpha, recipe.seed), contract)
        (tmp_path / folder).mkdir(exist_ok=True)
        held = examples(3, "calibration"), examples(4, "calibration")
        return Trainer(engine, recipe, Accelerator(cpu=True), data or examples(12), held, tmp_path / folder, lambda text: None)

    return build


def run(trainer: Trainer, stop_behind: int | None = None) -> Trainer:
    trainer.run(lambda note: None, lambda: trainer.state.step == stop_behind)
    return trainer


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.parameters])


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in found]


# ---- how a batch is run does not matter ----

OBJECTIVES = [
    Recipe(objective="sft-ce"),
    Recipe(objective="sft-brier"),
    Recipe(warmup_steps=1),
    Recipe(reward="rlcr", warmup_steps=0),
    Recipe(reward="dist-rlcr", warmup_steps=0, rollout_temp=2.0, baseline="rloo"),
    Recipe(reward="brier", decouple=True, warmup_steps=0, normalise_std=True, entropy=0.1, beta_kl=0.1),
    Recipe(reward="rlcr", estimator="exact", warmup_steps=0, beta_kl=0.3),
    Recipe(reward="rlcr", warmup_steps=0, inner_epochs=2, shuffle_options=True),
]


@pytest.mark.parametrize("recipe", OBJECTIVES, ids=lambda r: f"{r.objective}-{r.reward}-{r.estimator}-{r.inner_epochs}")
@pytest.mark.parametrize("confidence", ["independent", "conditioned"])
def test_micro_batches_change_nothing(make: Callable[..., Trainer], recipe: Recipe, confidence: Any) -> None:
    recipe = replace(recipe, batch=4, lora_rank=4, lora_alpha=8, steps=4)
    means, after = [], []
    for size in (1, 2, 3, 4):
        t = make(replace(recipe, micro_batch=size), contract=Contract(confidence=confidence))
        row = t.step(1)
        means.append([row[name] for name in trainer.STATISTICS] + [row["grad_norm"]])
        after.append(weights(t))
    for other in means[1:]:
        assert other == pytest.approx(means[0], abs=2e-5)
    start = weights(make(recipe))
    for other in after[1:]:  # AdamW's first step divides by the gradient's own size, so tiny gradients may differ in sign
        assert float((other - after[0]).abs().mean()) < 0.02 * float((after[0] - start).abs().mean())


@pytest.mark.parametrize("data", [examples(4), own_options(4)], ids=["one schema", "a schema each"])
@pytest.mark.parametrize("confidence", ["independent", "conditioned"])
def test_one_tree_for_the_batch_equals_separate_examples(make: Callable[..., Trainer], data: Dataset, confidence: Any) -> None:
    """Scores and gradients, with an adapter that does something; and in another order of the batch."""
    t = make(contract=Contract(confidence=confidence, grid="per-field"), data=data)
    torch.manual_seed(1)
    for name, p in t.model.named_parameters():
        if "lora_B" in name:
            p.data.normal_(0, 0.3)
    pairs = [(e.schema, e.context) for e in data]

    def value(scores: Any) -> Tensor:
        return sum(s.choice.square().sum() + s.stated.square().sum() for text in scores for s in text)  # type: ignore[return-value]

    found = []
    for way in (
        lambda: t.engine.score_batch(pairs),
        lambda: [t.engine.score_batch([pair])[0] for pair in pairs],
        lambda: t.engine.score_batch(pairs[::-1])[::-1],
    ):
        t.optimizer.zero_grad()
        loss = value(way())
        loss.backward()
        found.append((loss.item(), torch.cat([p.grad.flatten() for p in t.parameters if p.grad is not None])))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


def test_only_adapters_of_linear_layers_are_trained_and_in_float32(make: Callable[..., Trainer]) -> None:
    names = [name for name, p in make().model.named_parameters() if p.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert not any("embed" in name or "lm_head" in name for name in names)
    assert {name.split(".")[-4] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    bf16 = trainable(LoadedModel(tiny_model("llama", 300).to(torch.bfloat16), None, "x"), 4, 8, 0)  # type: ignore[arg-type]
    assert {p.dtype for p in bf16.model.parameters() if p.requires_grad} == {torch.float32}


def test_the_model_without_its_adapter_is_the_base(make: Callable[..., Trainer]) -> None:
    t = make(replace(QUICK, beta_kl=0.1, warmup_steps=0))
    assert t.step(1)["kl"] == pytest.approx(0, abs=1e-6)
    assert t.step(2)["kl"] > 1e-5


# ---- where a run stopped does not matter ----


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "recipe",
    [QUICK, replace(QUICK, prior_correction=True, shuffle_options=True, inner_epochs=2, rollout_temp=2.0, train_n=5)],
    ids=["plain", "all options"],
)
def test_a_resumed_run_is_the_uninterrupted_one_file_for_file(make: Callable[..., Trainer], stop: int, recipe: Recipe) -> None:
    data = examples(5 if recipe.train_n else 12)
    whole = run(make(recipe, "whole", data=data)).folder
    with pytest.raises(KeyboardInterrupt):
        run(make(recipe, "cut", data=data), stop)
    again = make(recipe, "cut", data=data)
    again.resume()
    assert again.state.step == stop
    cut = run(again).folder
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert rows(cut / name) == rows(whole / name)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file() and p.suffix != ".jsonl")
    assert files == sorted(p.relative_to(cut) for p in cut.rglob("*") if p.is_file() and p.suffix != ".jsonl")
    for name in files:
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_run_that_died_before_its_first_checkpoint_starts_anew(make: Callable[..., Trainer]) -> None:
    recipe = replace(QUICK, checkpoint_every=6)
    whole = run(make(recipe, "whole")).folder
    dead = make(recipe, "dead")
    with pytest.raises(RuntimeError, match="killed"):
        dead.run(_dies_at(2), lambda: False)
    again = make(recipe, "dead")
    again.resume()
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert rows(run(again).folder / name) == rows(whole / name)
        again = make(recipe, "dead")


def test_a_kill_between_checkpoints_repeats_the_steps_behind_the_last_one(make: Callable[..., Trainer]) -> None:
    recipe = replace(QUICK, checkpoint_every=2, eval_every=0)
    whole = run(make(recipe, "whole")).folder
    killed = make(recipe, "killed")
    with pytest.raises(RuntimeError, match="killed"):
        killed.run(_dies_at(4), lambda: False)
    assert len(rows(killed.folder / "metrics.jsonl")) == 4  # the fourth step was logged and not yet saved
    again = make(recipe, "killed")
    again.resume()
    assert again.state.step == 2
    assert rows(run(again).folder / "metrics.jsonl") == rows(whole / "metrics.jsonl")
    assert (killed.folder / "adapter/adapter_model.safetensors").read_bytes() == (
        whole / "adapter/adapter_model.safetensors"
    ).read_bytes()


def _dies_at(step: int) -> Callable[[str], None]:
    count = 0

    def advance(note: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            raise RuntimeError("killed")

    return advance


def test_a_trajectory_is_what_it_was(make: Callable[..., Trainer]) -> None:
    """Thirty steps of the default recipe on a tiny model. A change here changes what a recipe does: say so in CHANGELOG.md."""
    t = run(make(replace(QUICK, steps=30, warmup_steps=9, eval_every=0, checkpoint_every=30)))
    at = {row["step"]: row for row in t.metrics.rows}
    seen = {
        step: [at[step][k] for k in ("loss", "acc", "stated_conf_mean", "choice_entropy", "grad_norm")] for step in (1, 9, 10, 30)
    }
    assert seen == {step: pytest.approx(values, rel=0.02, abs=0.01) for step, values in TRAJECTORY.items()}


TRAJECTORY = {
    1: [1.4045, 0.3929, 0.5438, 0.6901, 3.4847],
    9: [1.1016, 0.3780, 0.5588, 0.8178, 2.9198],
    10: [-0.0000, 0.4375, 0.5302, 0.8041, 1.0823],
    30: [-0.0000, 0.6562, 0.4705, 0.6247, 1.4144],
}


# ---- what a run leaves ----


def test_an_adapter_comes_back_with_the_same_scores_and_its_contract(
    make: Callable[..., Trainer], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    contract = Contract("context-first", "conditioned", "per-field")
    t = make(replace(QUICK, prior_correction=True), contract=contract)
    t.engine.name = str(tmp_path / "base")
    t.model.get_base_model().name_or_path = t.engine.name
    t.model.peft_config["default"].base_model_name_or_path = t.engine.name
    run(t)
    model = tiny_model("llama", len(tokenizer))
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    back = DecisionEngine.load(tmp_path / "base", adapter=t.folder / "adapter", device="cpu")
    assert back.contract == replace(contract, prior=t.engine.contract.prior, labels=t.engine.labels())
    assert back.contract.prior.logits
    texts = [e.context for e in examples(3)]
    with torch.no_grad():
        for ours, theirs in zip(t.engine.score(SCHEMA, texts), back.score(SCHEMA, texts), strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a.choice, b.choice)
                torch.testing.assert_close(a.stated, b.stated)


def test_a_prior_makes_the_mean_logits_zero(make: Callable[..., Trainer]) -> None:
    t = make(replace(QUICK, prior_correction=True))
    before = _mean_choice(t)
    t.engine.contract = replace(t.engine.contract, prior=t.measure_prior())
    assert max(abs(v) for v in before) > 0.01
    assert _mean_choice(t) == pytest.approx([0.0] * 5, abs=1e-4)


def _mean_choice(t: Trainer) -> list[float]:
    with torch.no_grad():
        scores = t.engine.score(SCHEMA, [e.context for e in t.train])
    return torch.cat([torch.stack([text[j].choice for text in scores]).mean(0) for j in range(2)]).tolist()


def test_a_prior_of_options_needs_one_schema_and_one_of_places_does_not(make: Callable[..., Trainer]) -> None:
    with pytest.raises(UserError, match="--prior-correction is about options"):
        make(data=own_options(3), contract=Contract(scoring="verbatim")).measure_prior()
    prior = make(data=own_options(3)).measure_prior()
    assert {key: len(logits) for key, logits in prior.logits.items()} == {("answer", 2): 2, ("answer", 3): 3}


@pytest.mark.parametrize("readout", ["constrained", "sum", "mean"])
@pytest.mark.parametrize("more", [{}, {"estimator": "exact"}, {"objective": "sft-brier", "warmup_steps": 0}], ids=str)
def test_every_objective_trains_verbatim_options(make: Callable[..., Trainer], readout: Any, more: dict[str, Any]) -> None:
    t = run(make(replace(QUICK, **more), contract=Contract(scoring="verbatim", readout=readout)))
    assert all(row["grad_norm"] > 0 for row in t.metrics.rows)
    assert read_contract(t.folder / "adapter") == replace(t.engine.contract, labels=t.engine.labels())
    assert t.engine.decide(SCHEMA, "x")["kind"].prior is None


def test_a_model_trained_on_order_owes_less_to_it(make: Callable[..., Trainer]) -> None:
    """The divergence between two orders falls, and further than without the term."""
    recipe = replace(QUICK, steps=30, objective="sft-ce", warmup_steps=0, lr=1e-2, eval_every=0, shuffle_options=True)
    plain, trained = (run(make(replace(recipe, w_order=w), f"run-{w}")) for w in (0.0, 3.0))
    for shown in trained.batch(1):
        twin = trained._twin(1, shown)
        assert all(
            a.options != b.options and set(a.options) == set(b.options)
            for a, b in zip(shown.schema.fields, twin.fields, strict=True)
        )
    first, last = (sum(row["order_kl"] for row in rows) / 5 for rows in (trained.metrics.rows[:5], trained.metrics.rows[-5:]))
    assert last < first
    assert all(row["order_kl"] is None for row in plain.metrics.rows)
    apart = {}
    for name, t in (("plain", plain), ("trained", trained)):
        t.engine.permutations = 4
        effects = [field.orders for e in t.train for field in t.engine.decide(SCHEMA, e.context).fields]
        apart[name] = sum(effect.total_variation for effect in effects if effect)
    assert apart["trained"] < apart["plain"]


RULED = Schema.of(SCHEMA.to_dict() | {"rules": [{"if": {"kind": ["bug", "bill"]}, "then": {"urgent": True}}]})


def ruled(n: int) -> Dataset:
    """Examples that keep a rule: only logins are not urgent."""
    found = [replace(e, schema=RULED, labels=e.labels | {"urgent": e.labels["kind"] != "login"}) for e in examples(n)]
    return Dataset("ruled", "train", "test", RULED, tuple(found))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_model_trained_on_rules_breaks_them_less(make: Callable[..., Trainer], shuffle: bool) -> None:
    recipe = replace(QUICK, steps=20, objective="sft-ce", warmup_steps=0, lr=1e-2, eval_every=0, shuffle_options=shuffle)
    plain, trained = (run(make(replace(recipe, w_rules=w), f"run-{w}", data=ruled(12))) for w in (0.0, 3.0))
    assert all(row["rules_broken"] is None for row in plain.metrics.rows)
    broken = [row["rules_broken"] for row in trained.metrics.rows]
    assert sum(broken[-3:]) < 0.8 * sum(broken[:3])
    left = {}
    for name, t in (("plain", plain), ("trained", trained)):
        found = [t.engine.decide(SCHEMA, e.context) for e in t.train]
        left[name] = sum((1 - d["kind"].probabilities[2]) * d["urgent"].probabilities[1] for d in found)
    assert left["trained"] < left["plain"]


def test_rules_that_are_not_there_are_not_trained_on(make: Callable[..., Trainer]) -> None:
    with pytest.raises(UserError, match="--w-rules is about rules between fields, and this schema has none"):
        make(replace(QUICK, w_rules=1.0))


@pytest.mark.parametrize("flags", [{"shuffle_options": True}, {"w_order": 1.0}])
@pytest.mark.parametrize("contract", [Contract(options="unlisted"), Contract(scoring="verbatim")])
def test_an_order_that_nobody_sees_is_not_trained_on(make: Callable[..., Trainer], flags: dict, contract: Contract) -> None:
    with pytest.raises(UserError, match="these options are not listed"):
        make(replace(QUICK, **flags), contract=contract)


def test_shuffled_options_keep_their_labels(make: Callable[..., Trainer]) -> None:
    t = make(replace(QUICK, shuffle_options=True))
    orders = set()
    for step in range(1, 4):
        for shown in t.batch(step):
            assert {o.text for o in shown.schema["kind"].options} == set(WORDS)
            assert (
                shown.schema["kind"].options[shown.schema["kind"].index(shown.example.labels["kind"])].value
                in shown.example.labels.values()
            )
            orders.add(tuple(o.text for o in shown.schema["kind"].options))
    assert len(orders) > 3
    assert [s.schema for s in t.batch(1)] == [s.schema for s in make(replace(QUICK, shuffle_options=True)).batch(1)]


def test_every_example_is_seen_once_an_epoch_in_another_order(make: Callable[..., Trainer]) -> None:
    t = make(replace(QUICK, batch=4), data=examples(6))
    seen = [t.index(step, place) for step in (1, 2, 3) for place in range(4)]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert seen[:6] != seen[6:]


def test_the_last_two_checkpoints_are_kept_and_the_best_adapter_beside_the_last(make: Callable[..., Trainer]) -> None:
    t = run(make(replace(QUICK, objective="sft-ce", warmup_steps=None, steps=9, eval_every=3)))
    assert [p.name for p in checkpoints.checkpoints(t.folder)] == ["step-000008", "step-000009"]
    assert [row["step"] for row in t.evals.rows] == [0, 3, 6, 9]
    best = min(t.evals.rows, key=lambda row: row["nll_ts"])
    assert (t.state.best_step, t.state.best) == (best["step"], best["nll_ts"])
    assert (t.folder / "adapter-best").exists() == (best["step"] > 0)
    assert not list(t.folder.rglob("*.bin")) + list(t.folder.rglob("*.pt")) + list(t.folder.rglob("*.pkl"))


def test_patience_ends_a_run_that_gets_no_better(make: Callable[..., Trainer]) -> None:
    t = run(make(replace(QUICK, steps=40, lr=1e-12, warmup_steps=0, eval_every=2, patience=2)))
    assert t.state.step == 4
    assert checkpoints.checkpoints(t.folder)[-1].name == "step-000004"


def test_a_loss_that_is_not_a_number_stops_the_run_names_the_place_and_saves(
    make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = make(replace(QUICK, warmup_steps=6, eval_every=0, checkpoint_every=6))
    real, calls = trainer.choice_cross_entropy, 0

    def poisoned(policy: Any, label: int) -> Tensor:
        nonlocal calls
        calls += 1
        return real(policy, label) * (float("nan") if calls == 8 * 2 + 4 else 1.0)  # step 3, second example, second field

    monkeypatch.setattr(trainer, "choice_cross_entropy", poisoned)
    after_two: list[Tensor] = []
    with pytest.raises(
        UserError, match=r"step 3: the loss of field 'urgent' of example 'train-\d+' is not a number: lower --lr.*step-000002"
    ):
        t.run(lambda note: after_two.append(weights(t)), lambda: False)
    assert torch.equal(weights(t), after_two[1])
    (saved,) = checkpoints.checkpoints(t.folder)
    assert saved.name == "step-000002"
    stored = load_file(saved / "adapter.safetensors")
    assert all(
        torch.equal(stored[name], value) for name, value in get_peft_model_state_dict(t.model, save_embedding_layers=False).items()
    )


def test_a_full_disk_leaves_the_checkpoint_before_intact(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    t = make(replace(QUICK, eval_every=0))
    real, calls = checkpoints.save_file, 0

    def full(tensors: Any, path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:  # the second file of the second checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run(t)
    assert [p.name for p in (t.folder / "checkpoints").iterdir()] == ["step-000001"]
    monkeypatch.undo()
    again = make(replace(QUICK, eval_every=0))
    again.resume()
    assert again.state.step == 1
    run(again)


def test_a_damaged_checkpoint_is_refused(make: Callable[..., Trainer]) -> None:
    t = run(make(replace(QUICK, steps=2, eval_every=0)))
    (t.folder / "checkpoints/step-000002/optimizer.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(UserError, match=r"checkpoint .*step-000002' can't be read .* delete it"):
        make(replace(QUICK, steps=2, eval_every=0)).resume()


def test_a_log_drops_what_came_after_the_checkpoint_and_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for step in (1, 2, 3):
        log.append({"step": step})
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert [row["step"] for row in Log(path, 2).rows] == [1, 2]
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_contract_of_another_version_or_damaged_is_refused(tmp_path: Path) -> None:
    assert read_contract(tmp_path) is None
    prior = Prior({("a", ("x", "y")): (0.5, -0.5), ("a", 3): (1.0, 2.0, 3.0)}, 7)
    contract = Contract("context-first", "conditioned", "10", "verbatim", "constrained", "listed", prior, {"A": 3})
    contract.write(tmp_path)
    assert read_contract(tmp_path) == contract
    whole = (tmp_path / "decision.json").read_text()
    for edit, sentence in (
        (('"prompt_version": 2', '"prompt_version": 7'), "prompt version 7"),
        (('"version": 2', '"version": "old"'), "has version 'old'"),
        (('"conditioned"', '"unconditioned"'), "confidence is 'unconditioned': did you mean 'conditioned'"),
        (('"verbatim"', '"literal"'), "scoring is 'literal'"),
        (('"logits": [\n', '"logits": [1,\n'), "is damaged"),
        (("{", ""), "is damaged"),
    ):
        (tmp_path / "decision.json").write_text(whole.replace(*edit, 1))
        with pytest.raises(UserError, match=sentence):
            read_contract(tmp_path)


def test_training_learns(make: Callable[..., Trainer]) -> None:
    """Three words a kind are learned by heart, by supervision and by each proper reward from a warm start."""
    taught = run(make(replace(QUICK, objective="sft-ce", warmup_steps=None, steps=60, batch=9, eval_every=0, checkpoint_every=60)))
    assert taught.metrics.rows[-1]["acc_greedy"] > 0.9
