"""``accelerate launch --cpu --num_processes N`` starts one process and leaves the others to MPI: here all N are started.

Without this, such a run would be one of a single process and would not say so.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rlcd_lite import ranks
from rlcd_lite.errors import UserError


def complete(args: Sequence[str]) -> None:
    """Replace this process by ``torchrun`` with the same arguments, if it is the single one of several that were asked for."""
    # accelerate names a meeting point when it was asked for several, and does not say for how many
    if not (ranks.cpu_only() and "MASTER_ADDR" in os.environ) or ranks.launched():
        return
    import psutil  # accelerate depends on it

    machines, machine, processes = _asked(psutil.Process(os.getppid()).cmdline())
    if processes is None:
        raise UserError(
            "accelerate launch started one process of several and can't be asked of how many: give it --num_processes, "
            "or use torchrun --nproc-per-node N -m -- rlcd_lite."
        )
    if processes > 1:
        flags = [
            f"--nnodes={machines}",
            f"--node-rank={machine}",
            f"--nproc-per-node={processes // machines}",
            f"--master-addr={os.environ['MASTER_ADDR']}",
            f"--master-port={os.environ.get('MASTER_PORT', '29500')}",
        ]
        # "--": torchrun would take our --n for one of its own
        torchrun = [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "--", "rlcd_lite", *args]
        os.execv(sys.executable, torchrun)  # noqa: S606  # no shell is wanted


def _asked(command: Sequence[str]) -> tuple[int, int, int | None]:
    """Number of machines, number of this one, and number of processes on all of them, from the words of ``accelerate launch``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_machines", "--num-machines", type=int, default=1)
    parser.add_argument("--machine_rank", "--machine-rank", type=int, default=0)
    parser.add_argument("--num_processes", "--num-processes", type=int)
    found, _ = parser.parse_known_args(list(command))
    return found.num_machines, found.machine_rank, found.num_processes
