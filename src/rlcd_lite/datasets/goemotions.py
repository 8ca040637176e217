"""GoEmotions: the emotion of a Reddit comment, 27 and neutral, with its sentiment group (Demszky et al. 2020, arXiv 2005.00547).

The set is multi-label; a field here has one answer. Rows with more than one emotion (a sixth) are therefore left out and counted;
a row with one emotion always has one group. The groups are the paper's; they stand below because the hub has emotions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlcd_lite.datasets.sources import NamedSet, field_sizes, hub_table, local_lines
from rlcd_lite.datasets.splits import Row
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Field, Option, Schema, Value

GROUPS = {
    "positive": "admiration amusement approval caring desire excitement gratitude joy love optimism pride relief",
    "negative": "anger annoyance disappointment disapproval disgust embarrassment fear grief nervousness remorse sadness",
    "ambiguous": "confusion curiosity realization surprise",
    "neutral": "neutral",
}
GROUP_OF = {emotion: group for group, emotions in GROUPS.items() for emotion in emotions.split()}
EMOTIONS = (*sorted(e for e in GROUP_OF if e != "neutral"), "neutral")  # the published order, which the indices refer to
SCHEMA = Schema(
    (
        Field("sentiment", "choice", tuple(Option(g) for g in GROUPS), "The sentiment of the comment."),
        Field("emotion", "choice", tuple(Option(e) for e in EMOTIONS), "The emotion that the comment expresses."),
    )
)
PARTS = {"train": "train", "dev": "validation", "test": "test"}


def local(folder: Path, variants: tuple[str, ...]) -> Iterator[Row]:
    for short, part in PARTS.items():
        path = folder / "original" / f"{short}.tsv.gz"
        for number, line in enumerate(local_lines(path), 1):
            cells = line.split("\t")
            if len(cells) != 3:
                raise UserError(f"line {number} of data file {str(path)!r} has {len(cells)} columns instead of 3: get it anew.")
            yield _row(part, cells[0], [int(index) for index in cells[1].split(",")])


def hub(variants: tuple[str, ...]) -> Iterator[Row]:
    for part in PARTS.values():
        for item in hub_table("goemotions", SET.hub_id, "simplified", part):
            yield _row(part, item["text"], item["labels"])


def _row(part: str, text: str, indices: Sequence[int]) -> Row:
    labels: dict[str, Value] | None = None
    if len(indices) == 1:
        emotion = EMOTIONS[indices[0]]
        labels = {"sentiment": GROUP_OF[emotion], "emotion": emotion}
    return Row(part, text.strip(), SCHEMA, labels)


SET = NamedSet(
    name="goemotions",
    about="sentiment and emotion of Reddit comments",
    source="Demszky et al. 2020",
    licence="Apache-2.0",
    fields=field_sizes(SCHEMA),
    variants=(),
    hub_id="google-research-datasets/go_emotions",
    local=local,
    hub=hub,
    shares={"train": {"train": 1.0}, "validation": {"calibration": 1.0}, "test": {"test": 1.0}},
    rows={"train": 36_171, "calibration": 4536, "test": 4590},
)
