"""Tiny random models and a small tokenizer, built in memory; the embedded model and the data sets for the few that need them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_letters, ascii_uppercase
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlcd_lite.cli import main
from rlcd_lite.contract import Contract
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.models import LoadedModel
from rlcd_lite.settings import Confidence, Grid, Layout

if TYPE_CHECKING:
    from served import Served

# Qwen2's pre-tokenizer: a letter run may take the character before it, digits stand alone
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Command = Callable[..., tuple[int, str, str]]  # what a command gives: exit code, stdout and stderr
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

TRIAGE = {
    "fields": [
        {"name": "severity", "type": "choice", "options": ["low", "medium", "high", "critical"], "description": "how bad"},
        {"name": "team", "type": "choice", "options": [{"value": "billing", "description": "money"}, "auth", "infra"]},
        {"name": "needs_human", "type": "bool"},
        {"name": "stars", "type": "int", "minimum": 1, "maximum": 5},
    ]
}
TEXTS = [
    "Prod DB timing out on writes, all customers affected.",
    "typo",
    "The invoice of March was charged twice; please refund one of them and tell me when it is done. " * 3,
    "Login fails.",
]


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with Qwen2's splits, chat tokens, and enough two-letter merges for 255 labels."""
    pairs = [a + b for a, b in itertools.product(ascii_uppercase, ascii_letters)]
    words = ["answer", "in", "json", "with", "one", "label", "for", "each", "key", "text", "confidence", "likely", "right"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2200,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*pairs * 3, *words * 9, *(" " + w for w in words * 9), '": "' * 9, ' "' * 9], trainer)
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])  # control text that is not "special"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=SPECIAL[2], pad_token=SPECIAL[0], chat_template=CHAT_TEMPLATE
    )


def tiny_model(architecture: str, vocabulary: int, attention: str = "sdpa", window: int = 16) -> PreTrainedModel:
    """A random float32 model whose logits depend on every visible token. Gemma3 and Qwen3 have layers with a ``window``."""
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "initializer_range": 0.15,
        "attn_implementation": attention,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    if architecture == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
    if architecture == "qwen3":
        windows = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}  # layers 1 and 2 slide
        return Qwen3ForCausalLM(Qwen3Config(**sizes, **windows)).eval()
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(**sizes, sliding_window=window, layer_types=layers, query_pre_attn_scalar=16)
    return Gemma3ForCausalLM(config).eval()


def tiny_engine(
    tokenizer: PreTrainedTokenizerFast,
    architecture: str = "llama",
    attention: str = "sdpa",
    layout: Layout = "schema-first",
    confidence: Confidence = "independent",
    grid: Grid = "5",
    model: PreTrainedModel | None = None,
) -> DecisionEngine:
    model = model if model is not None else tiny_model(architecture, len(tokenizer), attention)
    return DecisionEngine(LoadedModel(model, tokenizer, f"tiny-{architecture}"), Contract(layout, confidence, grid))


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerFast) -> DecisionEngine:
    return tiny_engine(tokenizer)


@pytest.fixture(scope="session")
def model_folder(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a folder that save_pretrained wrote."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama", len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run_command(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on the tiny model; exit code, stdout and stderr."""

    def run(name: str, *args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            main([name, "--model", str(model_folder), *args])
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def smollm2() -> DecisionEngine:
    return DecisionEngine.load("smollm2")


@pytest.fixture(scope="session")
def served(tokenizer: PreTrainedTokenizerFast) -> Iterator[Served]:
    """A server of a tiny model."""
    from served import roomy_engine, serving

    with serving(roomy_engine(tokenizer)) as found:
        yield found


@pytest.fixture(scope="session")
def data_dir() -> Path:
    folder = Path(__file__).parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        message = f"the data sets are expected at {folder}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("suite")
