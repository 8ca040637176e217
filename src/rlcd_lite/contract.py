"""What a trained adapter and the engine that uses it must agree on: ``decision.json``, beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcd_lite.errors import UserError, shorten
from rlcd_lite.schema import Field
from rlcd_lite.settings import DEFAULT_LAYOUT, PROMPT_VERSION, Confidence, Grid, Layout, check_choice

FILE = "decision.json"
_VERSION = 1

PriorKey = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Contract:
    """How a model is asked.

    ``layout``: of the prompt. ``confidence``: ``independent`` states it in a branch that does not see the choice, ``conditioned``
    in a branch under every option's label. ``grid``: what the confidence labels stand for (`rewards.confidence_grid`).
    ``prior``: per field, label logits (K,) by place in the list, which are subtracted from the choice's logits.
    ``labels``: token ids of labels, to tell another tokenizer; empty before training.
    """

    layout: Layout = DEFAULT_LAYOUT
    confidence: Confidence = "independent"
    grid: Grid = "5"
    prior: Mapping[PriorKey, tuple[float, ...]] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.layout, Layout, "layout")
        check_choice(self.confidence, Confidence, "confidence")
        check_choice(self.grid, Grid, "confidence grid")

    @staticmethod
    def key(field: Field) -> PriorKey:
        """What a prior belongs to: the field's name and its options in any order, for it is about places in the list."""
        return field.name, tuple(sorted(option.text for option in field.options))

    def settings(self) -> dict[str, str]:
        """What a user may choose of it, for the records of runs."""
        return {"layout": self.layout, "confidence": self.confidence, "confidence_grid": self.grid}

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "prompt_version": PROMPT_VERSION,
            **self.settings(),
            "labels": dict(self.labels),
            "prior": [{"field": name, "options": list(options), "logits": list(v)} for (name, options), v in self.prior.items()],
        }

    def write(self, folder: Path) -> None:
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")


def agree(
    trained: Contract | None, where: str, layout: Layout | None, confidence: Confidence | None, grid: Grid | None
) -> Contract:
    """The contract that a model was trained with, or the one asked for; `UserError` if the two differ."""
    asked = {"layout": layout, "confidence": confidence, "grid": grid}
    given = {name: value for name, value in asked.items() if value is not None}
    if trained is None:
        return Contract(**given)  # type: ignore[arg-type]  # each value has the type of its name
    for name, value in given.items():
        if value != getattr(trained, name):
            raise UserError(f"{where!r} was trained with {name} {getattr(trained, name)!r}, not {value!r}: leave --{name} out.")
    return trained


def read_contract(folder: Path) -> Contract | None:
    """The contract beside an adapter's or a model's weights; None if there is none. `UserError` for one of another version."""
    where = f"{str(folder / FILE)!r}"
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if (found["version"], found["prompt_version"]) != (_VERSION, PROMPT_VERSION):
            raise UserError(
                f"{where} has version {shorten(found['version'])} and prompt version {shorten(found['prompt_version'])}, this "
                f"program has {_VERSION} and {PROMPT_VERSION}: train again, or use the release that trained it."
            )
        prior = {(p["field"], tuple(p["options"])): tuple(map(float, p["logits"])) for p in found["prior"]}
        if any(len(options) != len(logits) for (_, options), logits in prior.items()):
            raise ValueError("a prior has not one number per option")
        labels = {str(label): int(token) for label, token in found["labels"].items()}
        return Contract(found["layout"], found["confidence"], found["confidence_grid"], prior, labels)
    except FileNotFoundError:
        return None
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where} is damaged ({shorten(str(error))}): save the adapter again.") from None
