"""ARC: grade-school science questions with 3 to 5 choices (Clark et al. 2018, arXiv 1803.05457).

`arc` holds both sets, `arc:easy` and `arc:challenge` one. The options of an example are the texts of its own choices. The
published validation part gives train and calibration; the published train part is on the hub alone and is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcd_lite.datasets.choices import choice_schema
from rlcd_lite.datasets.sources import NamedSet, hub_table, local_lines
from rlcd_lite.datasets.splits import Row

PARTS = {"Dev": "validation", "Test": "test"}
VARIANTS = ("easy", "challenge")


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for variant in variants or VARIANTS:
        for name, part in PARTS.items():
            for line in local_lines(folder / f"ARC-{variant.capitalize()}-{name}.jsonl"):
                item = json.loads(line)
                choices = item["question"]["choices"]
                yield _row(
                    part, item["question"]["stem"], [c["text"] for c in choices], [c["label"] for c in choices], item["answerKey"]
                )


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for variant in variants or VARIANTS:
        for part in PARTS.values():
            item: Any
            for item in hub_table("arc", SET.hub_id, f"ARC-{variant.capitalize()}", part):
                yield _row(part, item["question"], item["choices"]["text"], item["choices"]["label"], item["answerKey"])


def _row(part: str, question: str, texts: list[str], keys: list[str], answer: str) -> Row:
    """``keys`` name the choices: A to E, or 1 to 5."""
    texts = [text.strip() for text in texts]
    content = "\n".join([question, *texts])
    return Row(part, question.strip(), choice_schema(texts), {"answer": texts[keys.index(answer)]}, content=content)


SET = NamedSet(
    name="arc",
    about="science exam questions",
    source="Clark et al. 2018",
    licence="CC BY-SA 4.0",
    fields="answer × 3–5",
    variants=VARIANTS,
    hub_id="allenai/ai2_arc",
    local=local,
    hub=hub,
    shares={"validation": {"train": 0.5, "calibration": 0.5}, "test": {"test": 1.0}},
    rows={"train": 451, "calibration": 416, "test": 3548},
)
