"""What a trained adapter and the engine that uses it must agree on: ``decision.json``, beside the weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlcd_lite.errors import UserError, shorten
from rlcd_lite.schema import Field
from rlcd_lite.settings import DEFAULT_LAYOUT, PROMPT_VERSIONS, Confidence, Grid, Layout, Listing, Readout, Scoring, check_choice

FILE = "decision.json"
_VERSION = 2

PriorKey = tuple[str, int | tuple[str, ...]]


@dataclass(frozen=True)
class Prior:
    """Mean scores of every question over texts whose answers nobody knew: they are subtracted from the question's scores.

    ``logits``: of labels by place in the list, under the question's name and its number of options, since what is measured is the
    pull of places; of verbatim options by the sorted texts of the options, under the name and these. ``texts``: how many were seen.
    """

    logits: Mapping[PriorKey, tuple[float, ...]] = field(default_factory=dict)
    texts: int = 0

    @staticmethod
    def key(field: Field, verbatim: bool) -> PriorKey:
        return field.name, tuple(sorted(option.text for option in field.options)) if verbatim else len(field.options)

    def to_dict(self) -> dict[str, Any]:
        entries = [
            {"field": name, "options": options if isinstance(options, int) else list(options), "logits": list(logits)}
            for (name, options), logits in self.logits.items()
        ]
        return {"texts": self.texts, "questions": entries}

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> Prior:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what `to_dict` did not write."""
        logits: dict[PriorKey, tuple[float, ...]] = {}
        for entry in source["questions"]:
            options = entry["options"] if isinstance(entry["options"], int) else tuple(map(str, entry["options"]))
            numbers = tuple(map(float, entry["logits"]))
            if len(numbers) != (options if isinstance(options, int) else len(options)):
                raise ValueError("a prior has not one number per option")
            logits[str(entry["field"]), options] = numbers
        return cls(logits, int(source["texts"]))


@dataclass(frozen=True)
class Contract:
    """How a model is asked.

    ``layout``: of the prompt. ``confidence``: ``independent`` states it in a branch that does not see the choice, ``conditioned``
    in a branch under every option's label or text. ``grid``: what the confidence labels stand for (`rewards.confidence_grid`).
    ``scoring``: of fields that don't say it themselves (`rlcd_lite.questions`). ``readout``: of verbatim options
    (`rlcd_lite.trie`). ``options``: whether the prompt lists them; ``auto`` lists those that have labels, and verbatim ones not.
    ``prior``: what the model was trained with. ``labels``: token ids of labels, to tell another tokenizer; empty before training.
    """

    layout: Layout = DEFAULT_LAYOUT
    confidence: Confidence = "independent"
    grid: Grid = "5"
    scoring: Scoring = "labels"
    readout: Readout = "sum"
    options: Listing = "auto"
    prior: Prior = field(default_factory=Prior)
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.layout, Layout, "layout")
        check_choice(self.confidence, Confidence, "confidence")
        check_choice(self.grid, Grid, "confidence grid")
        check_choice(self.scoring, Scoring, "scoring")
        check_choice(self.readout, Readout, "readout")
        check_choice(self.options, Listing, "options")

    def settings(self) -> dict[str, str]:
        """What a user may choose of it, for the records of runs."""
        return {
            "layout": self.layout,
            "confidence": self.confidence,
            "confidence_grid": self.grid,
            "scoring": self.scoring,
            "readout": self.readout,
            "options": self.options,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "prompt_version": PROMPT_VERSIONS[self.layout],
            **self.settings(),
            "labels": dict(self.labels),
            "prior": self.prior.to_dict(),
        }

    def write(self, folder: Path) -> None:
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")


def agree(trained: Contract | None, where: str, asked: Mapping[str, str | None], taught: Collection[str] = ()) -> Contract:
    """The contract that a model was trained with, or one with the settings that are asked for (by `Contract`'s names; None: not
    asked for); `UserError` if the two differ, but in the settings ``taught``, which training that goes on may choose anew."""
    given = {name: value for name, value in asked.items() if value is not None}
    if trained is None:
        return Contract(**given)  # type: ignore[arg-type]  # each value has the type of its name
    free = () if trained.prior.logits else taught  # a prior was measured for the questions as they were
    for name, value in given.items():
        if value != getattr(trained, name) and name not in free:
            flag = "confidence-grid" if name == "grid" else name
            raise UserError(f"{where!r} was trained with {name} {getattr(trained, name)!r}, not {value!r}: leave --{flag} out.")
    return replace(trained, **{name: given[name] for name in free if name in given})  # type: ignore[arg-type]  # as above


def read_contract(folder: Path) -> Contract | None:
    """The contract beside an adapter's or a model's weights; None if there is none. `UserError` for one of another version."""
    where = f"{str(folder / FILE)!r}"
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        check_choice(found["layout"], Layout, "layout")
        ours = _VERSION, PROMPT_VERSIONS[found["layout"]]
        if (found["version"], found["prompt_version"]) != ours:
            raise UserError(
                f"{where} has version {shorten(found['version'])} and prompt version {shorten(found['prompt_version'])}, this "
                f"program has {ours[0]} and {ours[1]}: train again, or use the release that trained it."
            )
        labels = {str(label): int(token) for label, token in found["labels"].items()}
        settings = {"grid" if name == "confidence_grid" else name: found[name] for name in Contract().settings()}
        return Contract(**settings, prior=Prior.from_dict(found["prior"]), labels=labels)
    except FileNotFoundError:
        return None
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where} is damaged ({shorten(str(error))}): save the adapter again.") from None
