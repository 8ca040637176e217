"""Progress of long work: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlcd_lite import ranks

_PLAIN_SECONDS = 10.0


@contextmanager
def progress(total: int, title: str, unit: str = "rows", done: int = 0) -> Iterator[Callable[..., None]]:
    """A function that counts one more: a bar on a terminal's stderr, a plain line every ten seconds elsewhere.

    ``done``: how many were counted before. The function takes a note to show beside the count. Only the main process shows it.
    """
    if not ranks.is_main():
        yield lambda note="": None
        return
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total, completed=done, note="")
            yield lambda note="": bar.update(task, advance=1, note=note)
        return
    told = time.monotonic()

    def advance(note: str = "") -> None:
        nonlocal done, told
        done += 1
        if time.monotonic() - told >= _PLAIN_SECONDS:
            told = time.monotonic()
            print(f"{title}: {done} of {total} {unit}" + (f"; {note}" if note else ""), file=sys.stderr, flush=True)

    yield advance
