"""Several processes of one run, as ``accelerate launch`` or ``torchrun`` starts them: who am I, and what have the others.

In an ordinary process this is rank 0 of 1, and nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor  # this file is imported by --help, which stays instant

T = TypeVar("T")


def world() -> int:
    """Number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def gather(item: T) -> list[T]:
    """The item of every process, by rank; each process must call it."""
    if world() == 1:
        return [item]
    _connect()
    from accelerate.utils import gather_object

    return list(gather_object([item]))


def total(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor summed over the processes, in one transfer; each process must call it with the same shapes."""
    if world() == 1:
        return list(tensors)
    _connect()
    import torch
    from accelerate.utils import reduce

    flat = reduce(torch.cat([t.flatten() for t in tensors]), reduction="sum")
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def wait() -> None:
    """Until every process is here."""
    if world() > 1:
        _connect().wait_for_everyone()


def _connect():  # type: ignore[no-untyped-def]  # the type is accelerate's, which is imported here
    from accelerate import PartialState

    return PartialState()
