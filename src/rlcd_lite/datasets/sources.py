"""Where the rows of a named set come from: files in a data directory, or the hub through the `datasets` library."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlcd_lite.datasets.example import Split
from rlcd_lite.datasets.splits import Row, Shares
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.schema import Schema

DATA_DIR = "RLCD_DATA_DIR"


@dataclass(frozen=True)
class NamedSet:
    """One line of the registry.

    ``fields``: fields × options, in words. ``variants``: what may stand after the colon of the name, in canonical order.
    ``local`` and ``hub`` read the same rows from a folder and from the hub, for the chosen variants. ``shares``: how published
    parts become splits. ``rows``: examples per split without a variant, checked by a test. ``source``: author and year.
    """

    name: str
    about: str
    source: str
    licence: str
    fields: str
    variants: tuple[str, ...]
    hub_id: str
    local: Callable[[Path, tuple[str, ...]], Iterable[Row]]
    hub: Callable[[tuple[str, ...]], Iterable[Row]]
    shares: Mapping[str, Shares]
    rows: Mapping[Split, int]


def field_sizes(schema: Schema) -> str:
    """``"domain × 11, intent × 151"``."""
    return ", ".join(f"{f.name} × {len(f.options)}" for f in schema.fields)


# ---- local files ----


def data_directory(data_dir: Path | None) -> Path | None:
    """The data directory that is in force: the argument, else the environment variable RLCD_DATA_DIR, else none."""
    if data_dir is not None:
        return data_dir
    return Path(os.environ[DATA_DIR]) if os.environ.get(DATA_DIR) else None


def local_folder(name: str, data_dir: Path) -> Path:
    """The folder of a set in the data directory; `UserError` if it isn't there (the hub is not tried in its place)."""
    folder = data_dir / name
    if not folder.is_dir():
        raise UserError(
            f"data set {name!r} is not in the data directory {str(data_dir)!r}: put its files into {str(folder)!r}, "
            f"or leave --data-dir and {DATA_DIR} out to read it from the hub."
        )
    return folder


def local_text(path: Path) -> str:
    """A file's text with its line ends as they are; a path that ends in ``.gz`` is unpacked."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except FileNotFoundError:
        raise UserError(f"data file {str(path)!r} does not exist: the set's folder must hold it.") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"data file {str(path)!r} is damaged ({error}): get it anew.") from None
    except OSError as error:
        raise UserError(f"data file {str(path)!r} can't be read ({error.strerror}): check it.") from None


def local_lines(path: Path) -> list[str]:
    """Lines of a file, cut at line feeds alone (texts may hold other line separators)."""
    lines = local_text(path).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def local_csv(path: Path, columns: int) -> list[list[str]]:
    """Cells of a CSV file, line ends inside cells included; `UserError` for a row with another number of columns."""
    rows = list(csv.reader(io.StringIO(local_text(path), newline="")))
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise UserError(f"row {number} of data file {str(path)!r} has {len(row)} columns instead of {columns}: get it anew.")
    return rows


# ---- the hub ----


def hub_is_installed() -> bool:
    return find_spec("datasets") is not None


def hub_table(name: str, repository: str, config: str, part: str) -> Any:
    """A part of a set on the hub as a `datasets.Dataset`: iterate over it for dicts.

    Only repositories that hold Parquet files are named by the sets (`datasets` 4 and later run no loading scripts). Raises a
    `UserError` that says both ways to get the set when the hub can't be reached or the library isn't installed.
    """
    both_ways = (
        f"give --data-dir (or {DATA_DIR}) a folder that holds {name!r}, or go online with the extra rlcd-lite[data] installed."
    )
    if not hub_is_installed():
        raise UserError(f"data set {name!r} has no local files and the library `datasets` is not installed: {both_ways}")
    import datasets

    try:
        return datasets.load_dataset(repository, config, split=part)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # offline, gone, renamed, no such configuration: the library raises all of these
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"data set {name!r} has no local files and {repository!r} can't be read from the hub ({shorten(reason)}): {both_ways}"
        ) from error
