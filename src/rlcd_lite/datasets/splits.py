"""The one rule that makes train, calibration and test parts, the same for every set and for a file of your own.

A published part of a set (its train, validation or test file) goes to our splits by fixed shares. Which split a row goes to is
decided by a hash of its *normalised text*, so the rule needs no random state, doesn't depend on the order of the rows, and puts
equal texts on the same side. A text that still stands in two splits, because two published parts share it, stays in the later
one only (test before calibration before train): published test parts are kept whole.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlcd_lite.datasets.example import SPLITS, Example, Split
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Schema, Value

Shares = Mapping[Split, float]
"""Share of a published part that goes to each split; they sum to 1."""


@dataclass(frozen=True)
class Row:
    """A row as published.

    ``part``: the published part it stands in. ``labels``: None where the row has no single answer; such rows are left out and
    counted. ``group``: the text that must not stand in two splits (the passage of a question, say) and ``content``: what tells the
    row from others (the question with its choices, say), both where it is not the context itself. ``id``: an id of the row's own,
    where a user's file has one.
    """

    part: str
    context: str
    schema: Schema
    labels: dict[str, Value] | None
    group: str | None = None
    content: str | None = None
    posterior: dict[str, tuple[float, ...]] | None = None
    id: str | None = None


@dataclass(frozen=True)
class Division:
    """A set divided into splits, with what was found on the way.

    ``read``: rows per published part. ``unlabelled``: rows without a single answer, left out. ``leaks``: rows per split that were
    left out because their text stands in a later split. ``duplicates``: rows per split that repeat an earlier row's text (and
    choices, where it has its own) in the same split; they are kept.
    """

    splits: dict[Split, tuple[Example, ...]]
    read: dict[str, int]
    unlabelled: int
    leaks: dict[Split, int]
    duplicates: dict[Split, int]


def normalise(text: str) -> str:
    """The text for comparisons: NFKC, case folded, without any white space (so tokenised and plain text agree)."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def split_of(text: str, shares: Shares) -> Split:
    """The split that a text belongs to: its normalised hash, read as a number in [0, 1), against the cumulated shares."""
    point = int.from_bytes(hashlib.sha256(f"split:{normalise(text)}".encode()).digest()[:8], "big") / 2**64
    total = 0.0
    for split, share in shares.items():
        total += share
        if point < total:
            return split
    return split  # the shares' sum fell short of 1 by rounding


def divide(name: str, rows: Iterable[Row], shares: Mapping[str, Shares]) -> Division:
    """Rows to splits by the rule above; ``shares`` maps each published part to its shares, ``name`` starts the ids.

    Raises `UserError` for a label outside its field's options.
    """
    read: Counter[str] = Counter()
    unlabelled = 0
    placed: dict[Split, list[tuple[str, Row]]] = {split: [] for split in SPLITS}
    for row in rows:
        read[row.part] += 1
        if row.labels is None:
            unlabelled += 1
            continue
        for field in row.schema.fields:
            try:
                field.index(row.labels[field.name])
            except UserError as error:
                raise UserError(f"data set {name!r} has a wrong label: {error}") from None
        text = row.group or row.context
        placed[split_of(text, shares[row.part])].append((normalise(text), row))
    splits: dict[Split, tuple[Example, ...]] = {}
    leaks: dict[Split, int] = {}
    duplicates: dict[Split, int] = {}
    taken: set[str] = set()
    for split in reversed(SPLITS):
        kept = [row for text, row in placed[split] if text not in taken]
        leaks[split] = len(placed[split]) - len(kept)
        taken |= {text for text, _ in placed[split]}
        splits[split], duplicates[split] = _examples(name, kept)
    return Division({s: splits[s] for s in SPLITS}, dict(read), unlabelled, leaks, duplicates)


def shuffled(examples: Iterable[Example], seed: int) -> list[Example]:
    """The examples in an order that depends on the seed and their ids alone; a prefix of it is a fair sample."""
    return sorted(examples, key=lambda e: hashlib.sha256(f"order:{seed}:{e.id}".encode()).digest())


def _examples(name: str, rows: Iterable[Row]) -> tuple[tuple[Example, ...], int]:
    """Examples with content-based ids (a repeated text gets ``-2``, ``-3``, …), and how many repeat an earlier one."""
    seen: Counter[str] = Counter()
    out: list[Example] = []
    for row in rows:
        assert row.labels is not None
        key = hashlib.sha256(normalise(row.content or row.context).encode()).hexdigest()[:12]
        seen[key] += 1
        id_ = row.id or f"{name}-{key}" + (f"-{seen[key]}" if seen[key] > 1 else "")
        group = hashlib.sha256(normalise(row.group or row.context).encode()).hexdigest()[:12]
        out.append(Example(id_, row.context, row.schema, row.labels, row.posterior, group))
    return tuple(out), sum(n - 1 for n in seen.values())
