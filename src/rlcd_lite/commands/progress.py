"""Progress of long work: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_PLAIN_SECONDS = 10.0


@contextmanager
def progress(total: int, title: str) -> Iterator[Callable[[], None]]:
    """A function that counts one more row: a bar on a terminal's stderr, a plain line every ten seconds elsewhere."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)
        return
    done, told = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, told
        done += 1
        if time.monotonic() - told >= _PLAIN_SECONDS:
            told = time.monotonic()
            print(f"{title}: {done} of {total} rows", file=sys.stderr)

    yield advance
