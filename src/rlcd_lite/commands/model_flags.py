"""The flags that say which model decides, shared by every command that runs one."""

from __future__ import annotations

import gc
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlcd_lite.settings import DEFAULT_LAYOUT, DEFAULT_MODEL, Attention, Device, Dtype, Layout

if TYPE_CHECKING:
    from rlcd_lite.engine import DecisionEngine


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
    layout: Layout = DEFAULT_LAYOUT
    """schema-first shares the schema over texts; context-first asks each field in a branch that no other field sees."""

    def load(self) -> DecisionEngine:
        """The engine, with the libraries' own progress bars off."""
        gc.disable()  # imports and loading make millions of objects that stay: looking through them again and again costs 0.5 s
        try:
            return self._load()
        finally:
            gc.freeze()
            gc.enable()

    def _load(self) -> DecisionEngine:
        import logging

        from transformers.utils import logging as transformers_logging

        from rlcd_lite.engine import DecisionEngine

        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        logging.getLogger("rlcd_lite").setLevel(logging.INFO)
        return DecisionEngine.load(
            self.model,
            adapter=self.adapter,
            device=self.device,
            dtype=self.dtype,
            attention=self.attention,
            layout=self.layout,
        )
