"""The command line: picks the command, prints a user's mistake as one sentence, and exits with 0, 1, 2 or 130."""

from __future__ import annotations

import io
import logging
import os
import sys
import time

from rlcd_lite import launch, ranks
from rlcd_lite.errors import UserError, shorten

_DESCRIPTION = "Calibrated decisions from a small causal language model: every field of a schema in one forward pass."
_OTHERS_SPEAK = 10.0  # seconds


def main(args: list[str] | None = None) -> None:
    """Run one command; `SystemExit` with 2 for a user's mistake."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)  # to stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # JSON is UTF-8, whatever the terminal's code page
    code = _exit_code(args)
    ranks.leave(code)
    if code:
        raise SystemExit(code)


def _exit_code(args: list[str] | None) -> int:
    """Run one command and say in a sentence what is wrong, if something is."""
    try:
        if args is None:
            launch.complete(sys.argv[1:])
        _run(sys.argv[1:] if args is None else args)
        sys.stdout.flush()  # here, where a reader that went away is no surprise
    except UserError as error:
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our stdout went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{shorten(os.fspath(error.filename), 200)} can't be read or written ({error.strerror})"
        _say(f"error: {reason}: check the path, its permissions and the disk.")
        return 2
    return 0


def _say(sentence: str) -> None:
    """Print an error, once for all processes of a machine."""
    if ranks.local_rank():
        # The first process has most likely found the same. It says so and ends, and then its launcher ends this one; were this one
        # faster, the launcher would end the first before it spoke.
        time.sleep(_OTHERS_SPEAK)
    print(sentence, file=sys.stderr)


def _run(args: list[str]) -> None:
    from importlib.metadata import version

    import tyro  # the imports stand here so that Ctrl-C during them ends the program quietly

    from rlcd_lite.commands.calibrate import Calibrate
    from rlcd_lite.commands.config_file import with_config
    from rlcd_lite.commands.data import Data
    from rlcd_lite.commands.eval import Eval
    from rlcd_lite.commands.infer import Infer
    from rlcd_lite.commands.merge import Merge
    from rlcd_lite.commands.prior import Prior
    from rlcd_lite.commands.report import Report
    from rlcd_lite.commands.serve import Serve
    from rlcd_lite.commands.train import Train

    if args == ["--version"]:
        print(f"rlcd-lite {version('rlcd-lite')}")
        return
    if args[:1] == ["train"]:
        args = ["train", *with_config(args[1:], Train)]
    tyro.extras.subcommand_cli_from_dict(
        {
            "infer": Infer,
            "train": Train,
            "eval": Eval,
            "calibrate": Calibrate,
            "data": Data,
            "report": Report,
            "merge": Merge,
            "prior": Prior,
            "serve": Serve,
        },
        prog="rlcd-lite",
        description=_DESCRIPTION,
        args=args,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    ).run()
