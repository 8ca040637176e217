"""Examples for training and evaluation: named sets, files of your own, and a task whose true probabilities are known.

    load("banking77", "test", n=300)                     # from RLCD_DATA_DIR or the hub
    load("mmlu:astronomy,virology", "calibration")
    load("synthetic", "train", n=2000, seed=1)           # unlimited; every example carries its posterior
    load("tickets.csv", "train", schema=Schema.from_file(Path("tickets.json")))

`SETS` is the registry. No part of this package imports torch.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rlcd_lite.datasets import arc, banking77, boolq, clinc150, goemotions, mmlu, snli, synthetic
from rlcd_lite.datasets.example import SPLITS, Dataset, Example, Split, data_hash
from rlcd_lite.datasets.files import SHARES, read_file
from rlcd_lite.datasets.sources import NamedSet, data_directory, local_folder
from rlcd_lite.datasets.splits import Division, divide, normalise, shuffled
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.rows import SUFFIXES
from rlcd_lite.schema import Schema

__all__ = [
    "SETS",
    "SPLITS",
    "Dataset",
    "Division",
    "Example",
    "NamedSet",
    "Split",
    "data_hash",
    "divided",
    "load",
    "named_set",
    "normalise",
    "sets_table",
]

SETS: dict[str, NamedSet] = {
    s.name: s for s in (banking77.SET, clinc150.SET, boolq.SET, mmlu.SET, arc.SET, snli.SET, goemotions.SET)
}


def load(
    name: str,
    split: Split,
    n: int | None = None,
    *,
    schema: Schema | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
) -> Dataset:
    """``n`` examples (None: all) of a split.

    ``name``: `synthetic`, a name of `SETS` with its variants after a colon, or the path of a ``.jsonl`` or ``.csv`` file, which
    needs a ``schema``. ``data_dir``: folder that holds the sets' folders (default: the environment's RLCD_DATA_DIR; without
    one the hub is read). ``seed``: the shuffled order, of which ``n`` takes the beginning; for `synthetic`, the stream of
    tickets. Raises `UserError` for an unknown name or variant, a set that is not to be had, a fault in a file, or more rows
    than there are.
    """
    if split not in SPLITS:
        raise UserError(f"split {shorten(split)} is unknown: use one of {', '.join(SPLITS)}.")
    if n is not None and n < 1:
        raise UserError(f"n is {n}: ask for at least one row, or leave it out for all.")
    if name == synthetic.NAME:
        if schema is not None:
            raise UserError(f"data set {name!r} has a schema of its own: leave --schema out.")
        if n is None:
            raise UserError(f"data set {name!r} has no end: say how many rows with n.")
        tickets = tuple(synthetic.example(seed, split, index) for index in range(n))
        return Dataset(name, split, "generated", synthetic.SCHEMA, tickets)
    division, source = divided(name, schema=schema, data_dir=data_dir)
    examples = shuffled(division.splits[split], seed)
    if n is not None and n > len(examples):
        raise UserError(
            f"data set {name!r} has {len(examples)} rows in its {split} split, not {n}: ask for at most {len(examples)}."
        )
    if not examples:
        raise UserError(f"data set {name!r} has no rows in its {split} split: use another split, or a column 'split' in the file.")
    shared = examples[0].schema if all(e.schema is examples[0].schema for e in examples) else None
    return Dataset(name, split, source, shared, tuple(examples[:n]))


def divided(name: str, *, schema: Schema | None = None, data_dir: Path | None = None) -> tuple[Division, str]:
    """All splits of a named set or file in published order, with what was dropped, and where they were read from, in words."""
    if Path(name).suffix in SUFFIXES:
        if schema is None:
            raise UserError(f"data file {name!r} needs a schema: give one with --schema FILE.")
        path = Path(name)
        return divide(path.stem, read_file(path, schema), SHARES), str(path)
    chosen, variants = named_set(name)
    if schema is not None:
        raise UserError(f"data set {name!r} has a schema of its own: leave --schema out.")
    directory = data_directory(data_dir)
    if directory is None:
        source, read = f"hub: {chosen.hub_id}", chosen.hub(variants)
    else:
        folder = local_folder(chosen.name, directory)
        source, read = str(folder), chosen.local(folder, variants)
    try:
        return divide(chosen.name, read, chosen.shares), source
    except UserError:
        raise
    except (ValueError, KeyError, IndexError, TypeError) as error:  # cut-off JSON, a missing column, an unknown answer letter
        fault = f"{type(error).__name__}: {error}"
        raise UserError(
            f"data set {chosen.name!r} from {source!r} is not as published ({shorten(fault, 90)}): get it anew."
        ) from error


def named_set(name: str) -> tuple[NamedSet, tuple[str, ...]]:
    """The registry's line for a name such as ``mmlu:anatomy,virology`` and its variants, in canonical order."""
    base, colon, rest = name.partition(":")
    known = [synthetic.NAME, *SETS]
    if base not in SETS:
        if base == synthetic.NAME:
            raise UserError(f"data set {name!r} has no rows to read: it is generated and takes nothing after a colon.")
        raise UserError(f"data set {shorten(base)} is unknown: {_nearest(base, known)}, or a file that ends in .jsonl or .csv.")
    chosen = SETS[base]
    wanted = [part.strip() for part in rest.split(",")] if colon else []
    for variant in wanted:
        if not chosen.variants:
            raise UserError(f"data set {base!r} has no variants: leave {shorten(colon + rest)} out.")
        if variant not in chosen.variants:
            raise UserError(f"data set {base!r} has no {shorten(variant)}: {_nearest(variant, list(chosen.variants))}.")
    return chosen, tuple(v for v in chosen.variants if v in wanted)


def sets_table() -> str:
    """The registry as a Markdown table: stands in the docs, where a test compares it."""
    lines = [
        "| name | what | fields × options | train | calibration | test | licence | hub | source |",
        "| --- | --- | --- | --: | --: | --: | --- | --- | --- |",
        f"| `{synthetic.NAME}` | {synthetic.ABOUT} | {synthetic.FIELDS} | ∞ | ∞ | ∞ | – | – | this project |",
    ]
    for s in SETS.values():
        counts = " | ".join(f"{s.rows[split]:,}" for split in SPLITS)
        lines.append(f"| `{s.name}` | {s.about} | {s.fields} | {counts} | {s.licence} | `{s.hub_id}` | {s.source} |")
    return "\n".join(lines)


def _nearest(value: str, known: list[str]) -> str:
    if close := get_close_matches(value, known, n=1):
        return f"did you mean {close[0]!r}"
    shown = ", ".join(known[:10]) + (f", … ({len(known)} in all)" if len(known) > 10 else "")
    return f"use one of {shown}"
