"""Arms × data sets → decision tables: the part of an evaluation that runs the model.

Each arm and data set is a table of its own on disk, written whole, so that a killed evaluation goes on behind the last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlcd_lite.datasets import Dataset, Example
from rlcd_lite.decision_table import CALIBRATION, TEST, DecisionRow
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.schema import Field, Schema


@dataclass(frozen=True)
class Part:
    """Examples to decide as one split of the table, with the order in which each field's options are shown (None: as they are)."""

    split: str
    examples: Sequence[Example]
    shuffle: random.Random | None = None


def parts(calibration: Dataset, test: Dataset, permutations: int, permuted: int, seed: int) -> list[Part]:
    """The calibration split, the test split, and ``permutations`` shuffles over the first ``permuted`` test examples.

    A shuffle shows one random order of the options, other than the schema's, to all examples that share a schema: with two options
    that is always the swapped one. Ordered fields are shuffled as well, since what is measured is how far order alone moves the
    answer.
    """
    out = [Part(CALIBRATION, calibration.examples), Part(TEST, test.examples)]
    for k in range(1, permutations + 1):
        out.append(Part(f"order-{k}", test.examples[:permuted], random.Random(f"order-{seed}-{k}")))
    return out


def decide_part(engine: DecisionEngine, part: Part, advance: Callable[[], None]) -> Iterator[DecisionRow]:
    """The rows of one split, in the order of its examples; ``advance`` is called once a text."""
    for schema, examples in _runs(part.examples):
        orders = {f.name: _order(f, part.shuffle) for f in schema.fields}
        shown = Schema(tuple(_reordered(f, orders[f.name]) for f in schema.fields))
        scores = engine.score_many(shown, (e.context for e in examples), coverage=True)
        for example, answers in zip(examples, scores, strict=True):
            for f, answer in zip(schema.fields, answers, strict=True):
                logits = answer.choice.tolist()
                back = [0.0] * len(logits)
                for place, option in enumerate(orders[f.name]):
                    back[option] = logits[place]
                posterior = None if example.posterior is None else example.posterior[f.name]
                assert answer.coverage is not None
                yield DecisionRow(
                    part.split,
                    example.id,
                    f.name,
                    f.index(example.labels[f.name]),
                    tuple(back),
                    tuple(answer.stated.tolist()),
                    answer.coverage,
                    posterior,
                )
            advance()


def _runs(examples: Sequence[Example]) -> Iterator[tuple[Schema, list[Example]]]:
    """Neighbours with one schema, so that what they share is run once."""
    run: list[Example] = []
    for example in examples:
        if run and example.schema is not run[-1].schema:
            yield run[-1].schema, run
            run = []
        run.append(example)
    if run:
        yield run[-1].schema, run


def _order(field: Field, shuffle: random.Random | None) -> list[int]:
    """Option indices in the order shown; a shuffle is never the order of the schema, which would show no effect by luck."""
    order = list(range(len(field.options)))
    while shuffle is not None and order == sorted(order):
        shuffle.shuffle(order)
    return order


def _reordered(field: Field, order: list[int]) -> Field:
    """The field with its options in another order. A bool or int has an order of its own: it is shown as a choice of its values."""
    if order == sorted(order):
        return field
    kind = field.type if field.type == "score" else "choice"
    return Field(field.name, kind, tuple(field.options[i] for i in order), field.description)
