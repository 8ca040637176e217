"""The command line: picks the command, prints a user's mistake as one sentence, and exits with 0, 1, 2 or 130."""

from __future__ import annotations

import io
import logging
import os
import sys

from rlcd_lite.errors import UserError, shorten

_DESCRIPTION = "Calibrated decisions from a small causal language model: every field of a schema in one forward pass."


def main(args: list[str] | None = None) -> None:
    """Run one command; `SystemExit` with 2 for a user's mistake."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)  # to stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # JSON is UTF-8, whatever the terminal's code page
    try:
        _run(sys.argv[1:] if args is None else args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of our stdout went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{shorten(os.fspath(error.filename), 200)} can't be read or written ({error.strerror})"
        print(f"error: {reason}: check the path, its permissions and the disk.", file=sys.stderr)
        raise SystemExit(2) from None


def _run(args: list[str]) -> None:
    from importlib.metadata import version

    import tyro  # the imports stand here so that Ctrl-C during them ends the program quietly

    from rlcd_lite.commands.config_file import with_config
    from rlcd_lite.commands.data import Data
    from rlcd_lite.commands.eval import Eval
    from rlcd_lite.commands.infer import Infer
    from rlcd_lite.commands.merge import Merge
    from rlcd_lite.commands.report import Report
    from rlcd_lite.commands.train import Train

    if args == ["--version"]:
        print(f"rlcd-lite {version('rlcd-lite')}")
        return
    if args[:1] == ["train"]:
        args = ["train", *with_config(args[1:], Train)]
    tyro.extras.subcommand_cli_from_dict(
        {"infer": Infer, "train": Train, "eval": Eval, "data": Data, "report": Report, "merge": Merge},
        prog="rlcd-lite",
        description=_DESCRIPTION,
        args=args,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    ).run()
