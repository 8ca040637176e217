"""``rlcd-lite merge``: an adapter and its base become one model folder."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rlcd_lite.commands.model_flags import ModelFlags
from rlcd_lite.datasets import load, synthetic
from rlcd_lite.errors import UserError, shorten

if TYPE_CHECKING:
    from rlcd_lite.engine import DecisionEngine

_SLACK = 1e-4  # largest difference of a label logit between the adapter beside the base and the merged model, in float32


@dataclass
class Merge:
    """Merge an adapter into its base model, as safetensors with the tokenizer and decision.json, for use as --model OUT.

    Before anything is written under its name, label logits of the merged model are compared with those of base and adapter.
    """

    adapter: Annotated[Path, tyro.conf.Positional]
    """Folder of an adapter, or of a run."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write the model to; it must not exist."""
    model: str | None = None
    """The base model; the one that the adapter was trained on if not given."""

    def run(self) -> None:
        folder = self.adapter / "adapter" if (self.adapter / "adapter").is_dir() else self.adapter
        if self.out.exists():
            raise UserError(f"folder {str(self.out)!r} exists: name one that does not.")
        flags = ModelFlags(self.model or _base_of(folder), adapter=folder, device="cpu", dtype="float32")
        engine = flags.load()

        from rlcd_lite.engine import DecisionEngine
        from rlcd_lite.files import write_folder
        from rlcd_lite.models import LoadedModel

        before = _probe(engine)
        merged = engine.model.merge_and_unload(safe_merge=True)  # safe: refuses NaN
        tokenizer = engine.encoder.tokenizer
        difference = float(
            (_probe(DecisionEngine(LoadedModel(merged, tokenizer, engine.name), engine.contract)) - before).abs().max()
        )
        if not difference <= _SLACK:
            raise UserError(
                f"adapter {str(folder)!r} when merged differs by {difference:.2g} in a label logit, more than {_SLACK:g}: "
                f"use it as an adapter."
            )

        def fill(scratch: Path) -> None:
            merged.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
            replace(engine.contract, labels=engine.labels()).write(scratch)

        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_folder(self.out, fill)
        print(f"{self.out}: label logits differ by {difference:.1g} at most from base and adapter.", file=sys.stderr)


def _base_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{str(folder)!r} holds no adapter that can be read ({shorten(str(error), 90)}): give a run or its adapter."
        ) from None


def _probe(engine: DecisionEngine):  # type: ignore[no-untyped-def]  # a tensor: torch is not imported for --help
    """All label logits over a few synthetic tickets."""
    import torch

    with torch.inference_mode():
        scores = engine.score(synthetic.SCHEMA, [e.context for e in load(synthetic.NAME, "calibration", 4)])
    return torch.cat([part for text in scores for s in text for part in (s.choice, s.stated.flatten())])
