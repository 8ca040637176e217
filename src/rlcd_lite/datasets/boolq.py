"""BoolQ: yes/no questions about a Wikipedia passage (Clark et al. 2019, arXiv 1905.10044).

Only the published validation part is used: it is the part that both sources have. It is divided by *passage*, since several
questions share one. The title of the local files is left out, because the hub has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlcd_lite.datasets.sources import NamedSet, field_sizes, hub_table, local_lines
from rlcd_lite.datasets.splits import Row
from rlcd_lite.schema import Field, Option, Schema

SCHEMA = Schema((Field("answer", "bool", (Option(True), Option(False)), "Is the answer to the question yes?"),))


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for line in local_lines(folder / "dev.jsonl.gz"):
        item = json.loads(line)
        yield _row(item["question"], item["passage"], item["answer"])


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for item in hub_table("boolq", SET.hub_id, "default", "validation"):
        yield _row(item["question"], item["passage"], item["answer"])


def _row(question: str, passage: str, answer: bool) -> Row:
    passage = passage.strip()
    return Row("validation", f"{passage}\n\nQuestion: {question.strip()}?", SCHEMA, {"answer": answer}, group=passage)


SET = NamedSet(
    name="boolq",
    about="yes/no questions about a passage",
    source="Clark et al. 2019",
    licence="CC BY-SA 3.0",
    fields=field_sizes(SCHEMA),
    variants=(),
    hub_id="google/boolq",
    local=local,
    hub=hub,
    shares={"validation": {"train": 0.5, "calibration": 0.2, "test": 0.3}},
    rows={"train": 1675, "calibration": 671, "test": 924},
)
