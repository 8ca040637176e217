"""Several processes of one run, as ``accelerate launch``, ``torchrun`` or ``mpirun`` starts them: who am I, what have the others?

In an ordinary process this is rank 0 of 1, and nothing here does anything. Tensors are exchanged where they are (gloo on the CPU,
NCCL between GPUs), everything else on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rlcd_lite.errors import UserError, shorten

if TYPE_CHECKING:
    from torch import Tensor  # this file is imported by --help, which stays instant

T = TypeVar("T")


_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")


def launched() -> bool:
    """Whether a launcher has numbered the processes, be it a single one."""
    return any(name in os.environ for name in _WORLD)


def world() -> int:
    """Number of processes."""
    return _number(_WORLD, otherwise=1)


def rank() -> int:
    """Number of this process, from 0."""
    return _number(_RANK, otherwise=0)


def local_rank() -> int:
    """Number of this process among those of its machine, from 0."""
    return _number(_LOCAL_RANK, otherwise=rank())


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def cpu_only() -> bool:
    """Whether ``accelerate launch --cpu`` keeps the run off every accelerator."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")


def gather(item: T) -> list[T]:
    """The item of every process, by rank; each process must call it."""
    if world() == 1:
        return [item]
    items: list[Any] = [None] * world()
    with _connection() as distributed:
        distributed.all_gather_object(items, item)
    return items


def agree(work: Callable[[], T]) -> list[T]:
    """What ``work`` returns on every process, by rank; the `UserError` of one is raised on all. Each process must call it."""
    if world() == 1:
        return [work()]
    item: T | None = None
    error: UserError | None = None
    try:
        item = work()
    except UserError as mistake:
        error = mistake
    found = gather((item, error))
    for _, mistake_of_one in found:
        if mistake_of_one is not None:
            raise mistake_of_one
    return [item for item, _ in found]  # type: ignore[misc]  # without an error, each is what `work` returned


def told(find: Callable[[], T]) -> T:
    """What ``find`` returns on the main process, which alone calls it, or its `UserError`; each process must call this."""
    return agree(lambda: find() if is_main() else None)[0]  # type: ignore[return-value]  # the first is the main process's


def total(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor summed over the processes, in one transfer; each process must call it with the same shapes."""
    if world() == 1:
        return list(tensors)
    import torch

    device = tensors[0].device
    flat = torch.cat([t.flatten() for t in tensors])
    if device.type != "cuda":
        flat = flat.cpu()
    with _connection() as distributed:
        distributed.all_reduce(flat)
    parts = flat.to(device).split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def wait() -> None:
    """Until every process is here."""
    gather(None)


def leave(code: int) -> None:
    """End this process with an exit code, if it is one of several.

    Not in Python's own way: threads of the connection that are still at work then abort a process now and again.
    """
    if world() == 1:
        return
    if code == 0 and "torch" in sys.modules:
        import torch

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def rounds(batches: Iterable[T], size: int) -> Iterator[list[T]]:
    """``size`` batches at a time; what stands before an error comes before it, as it does one by one."""
    waiting: list[T] = []
    try:
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == size:
                yield waiting
                waiting = []
    except UserError:
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


@contextmanager
def _connection() -> Iterator[Any]:
    """``torch.distributed``, connected on first use."""
    import torch

    try:
        if not torch.distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(backend, rank=rank(), world_size=world())
        yield torch.distributed
    except (RuntimeError, ValueError) as error:  # torch's, when a process is not there any more or was never found
        reason = shorten(str(error).strip().partition("\n")[0], 100)
        raise UserError(
            f"process {rank()} of {world()} can't reach the others ({reason}): see what they said, and start all of them again."
        ) from error


def _number(names: Sequence[str], otherwise: int) -> int:
    """The first of some environment variables that is set."""
    return next((int(os.environ[name]) for name in names if name in os.environ), otherwise)
