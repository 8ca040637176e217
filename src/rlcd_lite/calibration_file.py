"""``calibration.json``: the calibrators of a model's fields, what they were fitted for, and the held-out rows that speak for them.

A calibration belongs to one model, adapter, prompt, tokenizer, schema and way of asking, and is refused for any other. Of the
held-out rows it keeps numbers alone, no text: from these every promise about acting is computed (`rlcd_lite.promises`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from rlcd_lite.calibrators import Ensemble, Frozen, Identity, Temperature
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import write_whole
from rlcd_lite.fitting import FieldCalibration
from rlcd_lite.schema import Field as SchemaField
from rlcd_lite.schema import Schema
from rlcd_lite.settings import Consistency

VERSION: Literal[2] = 2
Distribution = Annotated[Identity | Temperature | Ensemble, Field(discriminator="kind")]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class HeldOut(Frozen):
    """One field of n rows that nothing was fitted on, decided as texts are at inference; each entry is (n,).

    ``confidence``: that the value is right; ``correct``: whether it is; ``label``: the right option; ``label_probability``: its
    probability; ``label_mass``: that of all options at least as probable.
    """

    confidence: tuple[Unit, ...]
    correct: tuple[Literal[0, 1], ...]
    label: tuple[Annotated[int, Field(ge=0)], ...]
    label_probability: tuple[Unit, ...]
    label_mass: tuple[Unit, ...]

    @model_validator(mode="after")
    def _aligned(self) -> HeldOut:
        if len({len(getattr(self, name)) for name in HeldOut.model_fields}) != 1 or not self.confidence:
            raise ValueError("held-out rows need one entry of each kind")
        return self


class Ece(Frozen):
    """Expected calibration error on the held-out rows, its 95 % bootstrap interval, and its mean if the confidence were true."""

    estimate: Unit
    low: Unit
    high: Unit
    null_floor: Unit


class CalibratedField(Frozen):
    """``distribution``: of the options' probabilities, before the rules; ``fitted``: of the confidence in the choice, behind them;
    ``grid``: candidate thresholds. All three are from the rows for fitting. ``options``: how many the field has, None where that
    differs from text to text."""

    distribution: Distribution
    fitted: FieldCalibration
    grid: tuple[Unit, ...]
    held_out: HeldOut
    ece: Ece
    options: Annotated[int, Field(ge=2)] | None

    @model_validator(mode="after")
    def _whole(self) -> CalibratedField:
        if not self.grid or list(self.grid) != sorted(self.grid):
            raise ValueError("the grid is not a list of thresholds that ascend")
        if self.options is not None and max(self.held_out.label) >= self.options:
            raise ValueError(f"a held-out row has the right option {max(self.held_out.label)} of {self.options}")
        return self


class Calibration(Frozen):
    """Calibrators of some or all ``fields`` of a schema.

    ``made_by``: the model and how it is asked (`DecisionEngine.made_by`); ``asked``: per field of
    the schema, in order, a hash of what is asked (without the options where these differ from text to text, ``varying``); ``tied``:
    hash of the rules and of the object's shape; ``rows`` and ``held_out_rows``: how many texts were fitted on and held out.
    """

    version: Literal[2]
    made_by: dict[str, Any]
    dataset: str
    asked: dict[str, str]
    varying: bool
    tied: str
    consistency: Consistency
    rows: int
    held_out_rows: int
    fields: dict[str, CalibratedField]

    @model_validator(mode="after")
    def _whole(self) -> Calibration:
        if not self.fields or not set(self.fields) <= set(self.asked):
            raise ValueError("the calibrated fields are not some of those that are asked")
        for name, entry in self.fields.items():
            if (entry.fitted.rows, len(entry.held_out.label)) != (self.rows, self.held_out_rows):
                raise ValueError(f"field {shorten(name)} has other numbers of rows than the file says")
        return self

    def check_model(self, made_by: Mapping[str, Any]) -> None:
        """`UserError` unless the calibration was fitted for this model and way of asking. A model may go by another name."""
        for key, value in made_by.items():
            was = self.made_by.get(key)
            if key == "model" or was == value:
                continue
            if key in ("weights", "labels"):
                what = "other weights, or another adapter," if key == "weights" else "another tokenizer"
                raise UserError(
                    f"the calibration was fitted with {what} than model {shorten(made_by['model'])} has (it was for "
                    f"{shorten(self.made_by.get('model'))}): use those, or fit one for this."
                )
            differ = f"{key} {shorten(was)}, not {shorten(value)}"
            raise UserError(f"the calibration was fitted with {differ}: use the same, or fit one for this.")

    def check(self, schema: Schema, consistency: Consistency) -> None:
        """`UserError` unless the calibration was fitted for this schema and this way to treat its rules."""
        found = asked(schema, self.varying)
        if list(found) != list(self.asked):
            raise UserError(
                f"the calibration is for the fields {', '.join(self.asked)}, not {', '.join(found)}: fit one for this schema."
            )
        for name, said in found.items():
            if said != self.asked[name]:
                raise UserError(
                    f"field {shorten(name)} differs from the one that was calibrated: fit a calibration for this schema."
                )
        if consistency != self.consistency:
            raise UserError(f"the calibration was fitted with --consistency {self.consistency}, not {consistency}: use the same.")
        if tied(schema) != self.tied:
            raise UserError(
                "the schema has other rules or another shape than the one that was calibrated: fit a calibration for it."
            )


@lru_cache(maxsize=64)  # looked at in every decision
def asked(schema: Schema, varying: bool = False) -> Mapping[str, str]:
    """Per field, in order, a hash of all that the prompt says about it."""
    return {field.name: digest(_without_options(field) if varying else field.to_dict()) for field in schema.fields}


@lru_cache(maxsize=64)
def tied(schema: Schema) -> str:
    """A hash of what ties the fields' answers together."""
    return digest({key: value for key, value in schema.to_dict().items() if key != "fields"})


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file; it appears whole."""
    write_whole(path, json.dumps(calibration.model_dump(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_calibration(path: Path) -> Calibration:
    """A calibration that `write_calibration` wrote; an engine refuses one that was fitted for another."""
    where = f"calibration {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text)["version"]
    except FileNotFoundError:
        raise UserError(f"{where} does not exist: write it with rlcd-lite calibrate.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where} is damaged ({shorten(str(error))}): fit it again with rlcd-lite calibrate.") from None
    if version != VERSION:
        raise UserError(f"{where} has version {shorten(version)}, this program reads {VERSION}: fit it again.")
    try:
        return Calibration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{where} is damaged ({shorten(place)}: {first['msg']}): fit it again with rlcd-lite calibrate.") from None


def _without_options(field: SchemaField) -> dict[str, Any]:
    return {"name": field.name, "type": field.type, "description": field.description, "scoring": field.scoring}


def digest(value: Any) -> str:
    """A short hash of what JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
