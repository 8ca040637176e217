"""The flags that say which model decides, shared by every command that runs one."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcd_lite import ranks
from rlcd_lite.contract import Contract, Prior, agree, read_contract
from rlcd_lite.errors import UserError
from rlcd_lite.priors import read_prior
from rlcd_lite.settings import (
    DEFAULT_MODEL,
    MAX_ORDERS,
    PROMPT_VERSIONS,
    Attention,
    Confidence,
    Consistency,
    Device,
    Dtype,
    Grid,
    Layout,
    Listing,
    Permutations,
    PriorKind,
    Readout,
    Scoring,
)

if TYPE_CHECKING:
    from rlcd_lite.calibration_file import Calibration
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

    scoring: Scoring | None = None
    """labels (default): a letter per option; verbatim: the option's text; tournament: heats of 26; auto: verbatim above 26."""
    readout: Readout | None = None
    """Of verbatim options: sum (default) or mean of log-probabilities, or constrained: what a grammar would let through."""
    options: Listing | None = None
    """Whether the prompt lists the options; auto (default) lists those that have labels, and verbatim ones not."""

    def contract(self, training: bool = False) -> Contract:
        """How the model will be asked: as it was trained, or as the flags say; `UserError` where these differ. ``training``
        that goes on from an adapter teaches the stated confidence, so there the flags say how it's asked for."""
        folder = self.adapter or Path(self.model)
        trained = read_contract(folder) if folder.is_dir() else None
        asked = {"grid" if name == "confidence_grid" else name: getattr(self, name) for name in Contract().settings()}
        return agree(trained, str(folder), asked, ("confidence", "grid") if training else ())

    def made_by(self) -> dict[str, Any]:
        """What decides the scores of a text: in the records of runs, and of priors."""
        return {
            "model": self.model,
            "adapter_sha256": adapter_sha256(self.adapter),
            "dtype": self.dtype,
            **self.contract().settings(),
            "prompt_version": PROMPT_VERSIONS[self.contract().layout],
        }

    def load(
        self,
        change: Callable[[LoadedModel], LoadedModel] | None = None,
        prior: PriorKind | Prior | None = None,
        permutations: Permutations = 1,
        calibration: Calibration | None = None,
        consistency: Consistency = "enforce",
        training: bool = False,
    ) -> DecisionEngine:
        """The engine, with the libraries' own progress bars off; ``change`` is done to the model before the engine is built."""
        gc.disable()  # imports and loading make millions of objects that stay: looking through them again and again costs 0.5 s
        try:
            from rlcd_lite.engine import DecisionEngine

            contract = self.contract(training)  # its faults before the model's
            loaded = self._load()
            return DecisionEngine(
                loaded if change is None else change(loaded),
                contract,
                prior=prior,
                permutations=permutations,
                calibration=calibration,
                consistency=consistency,
            )
        finally:
            gc.freeze()
            gc.enable()

    def _load(self) -> LoadedModel:
        import logging

        from transformers.utils import logging as transformers_logging

        from rlcd_lite.models import load_model

        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        logging.getLogger("rlcd_lite").setLevel(logging.INFO if ranks.is_main() else logging.ERROR)
        return load_model(self.model, self.adapter, self.device, self.dtype, self.attention)


@dataclass
class AskFlags:
    """What may change from call to call, because no model is trained for it."""

    permutations: Permutations = 1
    """Orders in which a list of options is shown, in one pass; their answers are joined. auto: as many of 8 as it takes."""
    prior: str | None = None
    """Subtracted from scores: none, content-free, contexts (mean over the texts at hand), or a file that rlcd-lite prior wrote."""

    def check(self) -> None:
        """`UserError` for a number of orders that is none."""
        if self.permutations != "auto" and not 1 <= self.permutations <= MAX_ORDERS:
            raise UserError(f"--permutations is {self.permutations}: use 1 to {MAX_ORDERS}, or auto.")

    def read(self, model: ModelFlags) -> PriorKind | Prior | None:
        """The prior that the engine is built with; ``contexts`` is measured when the texts are there."""
        if self.prior is None or self.prior in ("none", "content-free"):
            return self.prior  # type: ignore[return-value]  # the two kinds
        if model.contract().prior.logits:
            raise UserError(f"model {model.model!r} was trained with a prior of its own: leave --prior out.")
        return "none" if self.prior == "contexts" else read_prior(Path(self.prior), model.made_by())

    def settings(self) -> dict[str, Any]:
        """What the records of runs keep; of a file, its bytes."""
        file = self.prior not in (None, "none", "content-free", "contexts")
        prior = f"sha256:{hashlib.sha256(Path(str(self.prior)).read_bytes()).hexdigest()}" if file else self.prior
        return {"permutations": self.permutations, "prior": prior}
