"""What a run leaves on the disk, whole or not at all: checkpoints to go on from, adapters to use, and logs line by line.

Everything random in training follows from the seed and the step, so a checkpoint holds no state of a generator: the adapter's
weights, the optimiser's moments, and a few numbers. Weights are safetensors, the rest is JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcd_lite.contract import Contract, read_contract
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import write_folder, write_whole

KEPT = 2


def save_adapter(folder: Path, model: Any, contract: Contract) -> None:
    """The adapter of a PEFT model with its contract, ready for ``--adapter``."""

    def fill(scratch: Path) -> None:
        model.save_pretrained(str(scratch), save_embedding_layers=False)  # "auto" would ask the hub whether they changed
        (scratch / "README.md").unlink(missing_ok=True)  # PEFT's form for a model card, with nothing filled in
        contract.write(scratch)

    write_folder(folder, fill)


def save_checkpoint(
    runs: Path, step: int, model: Any, optimizer: torch.optim.Optimizer, contract: Contract, state: Mapping[str, Any]
) -> None:
    """Write ``checkpoints/step-N`` of a run's folder and delete all but the last `KEPT`."""

    def fill(scratch: Path) -> None:
        weights = {name: value.detach().cpu().contiguous() for name, value in _adapter(model).items()}
        save_file(weights, scratch / "adapter.safetensors")
        save_file(_moments(model, optimizer), scratch / "optimizer.safetensors")
        contract.write(scratch)
        (scratch / "state.json").write_text(json.dumps({"step": step, **state}, indent=1) + "\n", encoding="utf-8")

    folder = runs / "checkpoints"
    write_folder(folder / f"step-{step:06d}", fill)
    for old in checkpoints(runs)[:-KEPT]:
        shutil.rmtree(old)


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if (path / "state.json").exists())


def load_checkpoint(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[Contract, dict[str, Any]]:
    """Put a checkpoint's weights and moments back; returns its contract and state. `UserError` if it is damaged."""
    try:
        state = dict(json.loads((folder / "state.json").read_text(encoding="utf-8")))
        set_peft_model_state_dict(model, load_file(folder / "adapter.safetensors"))
        moments = load_file(folder / "optimizer.safetensors")
        for name, parameter in _trained(model).items():
            keys = [key for key in moments if key.partition("|")[2] == name]
            if keys:
                device = parameter.device
                optimizer.state[parameter] = {k.partition("|")[0]: _moved(moments[k], k, device) for k in keys}
        contract = read_contract(folder)
        if contract is None:
            raise ValueError("decision.json is missing")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"checkpoint {str(folder)!r} can't be read ({shorten(str(error), 120)}): delete it, and --resume takes the one before."
        ) from None
    return contract, state


def _adapter(model: Any) -> dict[str, Tensor]:
    return dict(get_peft_model_state_dict(model, save_embedding_layers=False))


def _moments(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}|{name}": value.detach().cpu().contiguous()
        for name, parameter in _trained(model).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _moved(value: Tensor, key: str, device: torch.device) -> Tensor:
    return value if key.startswith("step|") else value.to(device)  # AdamW counts steps on the CPU


def _trained(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Log:
    """A file of JSON lines that grows by whole lines; what was logged after ``step`` is dropped when it is opened again."""

    def __init__(self, path: Path, step: int = 0) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # a kill cut the last line
                    break
                if row["step"] <= step:
                    self.rows.append(row)
        write_whole(path, "".join(map(_line, self.rows)))

    def append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
        self.rows.append(row)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
