"""What a data set gives: examples with their labels, as a frozen collection with a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rlcd_lite.schema import Schema, Value

Split = Literal["train", "calibration", "test"]
SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


@dataclass(frozen=True)
class Example:
    """One text with the right answer to every field.

    ``id``: stable across runs, sources and variants of a set. ``labels``: the value of the right option, per field.
    ``posterior``: where the truth is known, per field the probability of every option given the text, in option order, summing
    to 1; else None. Examples of `mmlu` and `arc` have a schema each (their options are the item's choices); those of any other
    set share one `Schema` object. ``group``: equal where two examples are not independent, because they have a text, or the passage
    of a question, in common; empty for one that stands alone.
    """

    id: str
    context: str
    schema: Schema
    labels: dict[str, Value]
    posterior: dict[str, tuple[float, ...]] | None = None
    group: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """``{"id", "context", "labels": {field: option}, "posterior": {field: {option: p}}}``, the last where it is known."""
        out: dict[str, Any] = {"id": self.id, "context": self.context, "labels": dict(self.labels)}
        if self.posterior is not None:
            out["posterior"] = {
                name: {o.text: p for o, p in zip(self.schema[name].options, probabilities, strict=True)}
                for name, probabilities in self.posterior.items()
            }
        return out


@dataclass(frozen=True)
class Dataset:
    """Examples of one split of one set, in their shuffled order.

    ``source``: where they were read from, in words. ``schema``: the one that all examples share, or None where each has its own.
    """

    name: str
    split: Split
    source: str
    schema: Schema | None
    examples: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def __getitem__(self, position: int) -> Example:
        return self.examples[position]

    @property
    def hash(self) -> str:
        """`data_hash` of the examples: goes into run records."""
        return data_hash(self.examples)


def data_hash(examples: Iterable[Example]) -> str:
    """The first 16 hex digits of a SHA-256 over ids, texts, options, labels and posteriors, in order."""
    digest = hashlib.sha256()
    for example in examples:
        asked = {"fields": [field.to_dict() for field in example.schema.fields]}  # rules change what is answered, not what is known
        digest.update(json.dumps([example.to_dict(), asked], sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
