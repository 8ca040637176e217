"""SNLI: does a premise entail, contradict or leave open a hypothesis (Bowman et al. 2015, arXiv 1508.05326).

The published validation part gives train and calibration, divided by *premise* (several hypotheses share one); the published
train part is on the hub alone and is not used. Rows without a gold label are left out. The local texts are tokenised (spaces
round punctuation) and the hub's are not, so the two sources agree in rows, labels and splits but not in white space.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlcd_lite.datasets.sources import NamedSet, field_sizes, hub_table, local_lines
from rlcd_lite.datasets.splits import Row
from rlcd_lite.schema import Field, Option, Schema

RELATIONS = ("entailment", "neutral", "contradiction")
SCHEMA = Schema((Field("relation", "choice", tuple(Option(r) for r in RELATIONS), "How the hypothesis relates to the premise."),))
PARTS = {"dev": "validation", "test": "test"}


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for short, part in PARTS.items():
        columns = [local_lines(folder / f"{name}.{short}.gz") for name in ("s1", "s2", "labels")]
        for premise, hypothesis, label in zip(*columns, strict=True):
            yield _row(part, premise, hypothesis, label)


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for part in PARTS.values():
        for item in hub_table("snli", SET.hub_id, "plain_text", part):
            if item["label"] >= 0:  # -1: the annotators did not agree
                yield _row(part, item["premise"], item["hypothesis"], RELATIONS[item["label"]])


def _row(part: str, premise: str, hypothesis: str, label: str) -> Row:
    premise, hypothesis = premise.strip(), hypothesis.strip()
    return Row(part, f"Premise: {premise}\nHypothesis: {hypothesis}", SCHEMA, {"relation": label}, group=premise)


SET = NamedSet(
    name="snli",
    about="natural language inference",
    source="Bowman et al. 2015",
    licence="CC BY-SA 4.0",
    fields=field_sizes(SCHEMA),
    variants=(),
    hub_id="stanfordnlp/snli",
    local=local,
    hub=hub,
    shares={"validation": {"train": 0.75, "calibration": 0.25}, "test": {"test": 1.0}},
    rows={"train": 7524, "calibration": 2312, "test": 9824},
)
