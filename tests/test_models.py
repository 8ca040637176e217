"""Names to models: what loads, and one sentence for everything that does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from conftest import TEXTS, TRIAGE, tiny_model
from rlcd_lite import models
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError
from rlcd_lite.models import load_model, load_tokenizer


@pytest.fixture
def copy(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def saved_adapter(folder: Path, base: str, vocabulary: int, targets: tuple[str, ...] = ("q_proj",)) -> Path:
    model = tiny_model("llama", vocabulary)
    model.name_or_path = base
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=list(targets), init_lora_weights=False))
    adapted.save_pretrained(folder, save_embedding_layers=False)  # else PEFT asks the hub
    return folder


def test_a_folder_loads_with_the_choices_asked_for(model_folder: Path) -> None:
    loaded = load_model(str(model_folder), dtype="bfloat16", attention="eager", device="cpu")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.model.config._attn_implementation == "eager"
    assert load_model(str(model_folder)).model.dtype == torch.float32
    assert load_tokenizer(str(model_folder)).get_vocab() == loaded.tokenizer.get_vocab()


def test_bfloat16_decides_nearly_the_same(model_folder: Path) -> None:
    exact, rough = (DecisionEngine.load(str(model_folder), dtype=dtype) for dtype in ("float32", "bfloat16"))
    for ours, theirs in zip(exact.decide(TRIAGE, TEXTS[0]).fields, rough.decide(TRIAGE, TEXTS[0]).fields, strict=True):
        assert ours.probabilities == pytest.approx(theirs.probabilities, abs=0.1)


# ---- folders ----


def test_missing_parts_of_a_folder_are_named(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "empty"): "config.json is missing",
        str(tmp_path / "none"): "does not exist",
        "./none": "does not exist",
        "a/b/c": "does not exist",
        str(copy / "config.json"): "not .gguf",
        str(tmp_path / "none.gguf"): "does not exist",
    }
    for name, words in cases.items():
        with pytest.raises(UserError, match=words):
            load_model(name)


def test_a_folder_without_safetensors_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(UserError, match="no safetensors"):
        load_model(str(copy))


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "none.safetensors"}}'])
def test_a_damaged_index_of_shards_is_refused(copy: Path, index: str) -> None:
    (copy / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="no safetensors"):
        load_model(str(copy))


def test_damaged_files_are_refused(copy: Path) -> None:
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match="can't be loaded"):
        load_model(str(copy))
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer"):
        load_model(str(copy))


def test_missing_weights_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 of its weights.*q_proj"):
        load_model(str(copy))


def test_code_in_a_folder_is_not_run(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UserError, match="can't be loaded"):
        load_model(str(copy))


def test_nan_weights_in_a_folder_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="NaN"):
        DecisionEngine.load(str(copy))


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(model_folder: Path, device: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=device):
        load_model(str(model_folder), device=device)  # type: ignore[arg-type]


# ---- the hub ----


@pytest.fixture
def hub(monkeypatch, model_folder: Path) -> dict[str, Any]:
    """A hub with one model; ``cached`` is what was downloaded before."""
    state: dict[str, Any] = {"cached": None, "online": model_folder, "weights": True}

    def snapshot_download(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        assert ("*.safetensors" in allow_patterns) == state["weights"]
        assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in allow_patterns)
        found = state["cached"] if local_files_only else state["online"]
        if found is None:
            raise FileNotFoundError("offline") from ConnectionError("Name or service not known")
        return str(found)

    monkeypatch.setattr(models, "snapshot_download", snapshot_download)
    return state


def test_a_hub_model_is_downloaded_once(hub: dict[str, Any], model_folder: Path) -> None:
    assert load_model("some/model").name == "some/model"
    hub |= {"cached": model_folder, "online": None}
    assert load_model("some/model").name == "some/model"


def test_a_tokenizer_alone_downloads_no_weights(hub: dict[str, Any], copy: Path) -> None:
    hub["weights"] = False
    assert load_tokenizer("some/model").get_vocab()
    (copy / "model.safetensors").unlink()
    hub |= {"cached": copy, "online": None}
    assert load_tokenizer("some/model").get_vocab() == load_tokenizer(str(copy)).get_vocab()


def test_a_download_that_was_cut_is_taken_up_again(hub: dict[str, Any], copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    hub["cached"] = copy
    assert load_model("some/model").name == "some/model"


def test_a_shard_that_is_missing_counts_as_cut(hub: dict[str, Any], copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    hub["cached"] = copy
    assert load_model("some/model").name == "some/model"


def test_a_misspelt_embedded_model_is_told_from_a_hub_id() -> None:
    with pytest.raises(UserError, match="did you mean 'smollm2'"):
        load_model("smolm2")


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_a_damaged_config_is_named(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        load_model(str(copy))


def test_offline_the_error_says_what_was_tried_and_what_works(hub: dict[str, Any]) -> None:
    hub["online"] = None
    with pytest.raises(UserError, match=r"some/model.*not a folder.*cache.*Name or service.*--model smollm2") as error:
        load_model("some/model")
    assert "\n" not in str(error.value)


def test_a_name_that_is_no_hub_id_is_refused() -> None:
    with pytest.raises(UserError, match="neither a folder nor a hub id"):
        load_model("not a name")


# ---- adapters ----


def test_an_adapter_changes_the_answer(model_folder: Path, tokenizer, tmp_path: Path) -> None:
    adapter = saved_adapter(tmp_path / "adapter", str(model_folder), len(tokenizer))
    base, adapted = DecisionEngine.load(str(model_folder)), DecisionEngine.load(str(model_folder), adapter=adapter)
    assert base.decide(TRIAGE, TEXTS[0]) != adapted.decide(TRIAGE, TEXTS[0])


def test_adapters_of_other_models_and_damaged_ones_are_refused(model_folder: Path, tokenizer, tmp_path: Path) -> None:
    name = str(model_folder)

    def error(adapter: Path) -> str:
        with pytest.raises(UserError) as caught:
            load_model(name, adapter)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "some/other" in error(saved_adapter(tmp_path / "named", "some/other", len(tokenizer)))
    good = saved_adapter(tmp_path / "good", name, len(tokenizer))

    def changed(to: str, **config: object) -> Path:
        folder = Path(shutil.copytree(good, tmp_path / to))
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return folder

    assert "does not fit" in error(changed("rank", r=5))
    assert "does not fit" in error(changed("targets", target_modules=["q_proj", "v_proj"]))
    assert "does not fit" in error(changed("unknown", target_modules=["no_such_layer"]))
    broken = changed("broken")
    (broken / "adapter_config.json").write_text("{")
    assert "damaged" in error(broken)
    for i, content in enumerate(("[]", '"x"', "3")):
        odd = changed(f"odd{i}")
        (odd / "adapter_config.json").write_text(content)
        assert "damaged" in error(odd) or "does not fit" in error(odd)
    assert "'5'" in error(changed("five", base_model_name_or_path=5))
    cut = changed("cut")
    (cut / "adapter_model.safetensors").write_bytes(b"cut")
    assert "does not fit" in error(cut)
    pickled = changed("pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    assert "pickled" in error(pickled)
    assert "adapter_config.json is missing" in error(tmp_path / "nowhere")
    with pytest.raises(UserError, match="--adapter"):
        load_model(str(good))


# ---- GGUF ----


@pytest.mark.parametrize("content", [b"", b"junk", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_a_damaged_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        load_model(str(path))


def test_without_the_package_the_embedded_model_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(models, "_PACKAGE", "no-such-package")
    with pytest.raises(UserError, match=r"rlcd-lite\[smollm2\]"):
        load_model("smollm2")
