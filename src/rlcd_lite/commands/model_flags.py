"""The flags that say which model decides, shared by every command that runs one."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlcd_lite import ranks
from rlcd_lite.contract import Contract, agree, read_contract
from rlcd_lite.settings import DEFAULT_MODEL, Attention, Confidence, Device, Dtype, Grid, Layout

if TYPE_CHECKING:
    from rlcd_lite.engine import DecisionEngine
    from rlcd_lite.models import LoadedModel


def adapter_sha256(folder: Path | None) -> str | None:
    """What tells an adapter from one that was trained again into the same folder; None without one."""
    weights = None if folder is None else folder / "adapter_model.safetensors"
    if weights is None or not weights.is_file():  # loading says what is wrong with it
        return None
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class ModelFlags:
    model: str = DEFAULT_MODEL
    """Hub id, folder, .gguf file, or smollm2 (embedded: needs no download)."""
    adapter: Path | None = None
    """Folder of a PEFT adapter made for this model."""
    device: Device = "auto"
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    dtype: Dtype = "auto"
    """Precision of the weights; auto is bfloat16 on CUDA and float32 elsewhere."""
    attention: Attention = "auto"
    """Attention implementation; auto is eager on MPS and SDPA elsewhere."""
    layout: Layout | None = None
    """schema-first (default) shares the schema over texts; context-first asks each field in a branch that no other field sees."""
    confidence: Confidence | None = None
    """independent (default) states it without a look at the choice; conditioned states one in every option."""
    confidence_grid: Grid | None = None
    """Levels of the stated confidence: 5 (0.1 to 0.9, default), 10 (0.05 to 0.95), or per-field (5 from 1 / options to 1)."""

    def contract(self) -> Contract:
        """How the model will be asked: as it was trained, or as the flags say; `UserError` where these differ."""
        folder = self.adapter or Path(self.model)
        trained = read_contract(folder) if folder.is_dir() else None
        return agree(trained, str(folder), self.layout, self.confidence, self.confidence_grid)

    def load(self, change: Callable[[LoadedModel], LoadedModel] | None = None) -> DecisionEngine:
        """The engine, with the libraries' own progress bars off; ``change`` is done to the model before the engine is built."""
        gc.disable()  # imports and loading make millions of objects that stay: looking through them again and again costs 0.5 s
        try:
            return self._load(change)
        finally:
            gc.freeze()
            gc.enable()

    def _load(self, change: Callable[[LoadedModel], LoadedModel] | None) -> DecisionEngine:
        import logging

        from transformers.utils import logging as transformers_logging

        from rlcd_lite.engine import DecisionEngine
        from rlcd_lite.models import load_model

        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        logging.getLogger("rlcd_lite").setLevel(logging.INFO if ranks.is_main() else logging.ERROR)
        contract = self.contract()
        loaded = load_model(self.model, self.adapter, self.device, self.dtype, self.attention)
        return DecisionEngine(loaded if change is None else change(loaded), contract)
