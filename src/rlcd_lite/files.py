"""Files of a user's: read as text with clear faults, asked about before work is done for them, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from rlcd_lite.errors import UserError


def read_text(path: Path, what: str) -> str:
    """A text file in UTF-8 (a byte-order mark is dropped); `UserError` if it can't be read as one."""
    try:
        return path.read_bytes().decode("utf-8-sig")  # line ends stay as they are: they are part of the text
    except FileNotFoundError:
        raise UserError(f"{what} {str(path)!r} does not exist: check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {str(path)!r} is not UTF-8 (byte {error.start}): convert it, for instance with iconv.") from None
    except OSError as error:
        raise UserError(f"{what} {str(path)!r} can't be read ({error.strerror}): check the path.") from None


def check_writable(path: Path, what: str) -> None:
    """`UserError` unless a file can be written at ``path``; asked before any work is done for it."""
    if not path.parent.is_dir():
        raise UserError(f"the folder of {what} {str(path)!r} does not exist: create it.")
    if path.is_dir():
        raise UserError(f"{what} {str(path)!r} is a folder: name a file.")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"{what} {str(path)!r} can't be written: check its permissions or choose another place.")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; it appears under its name when it is whole, and one that was there stays until then."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_bytes(content.encode() if isinstance(content, str) else content)
    scratch.replace(path)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make ``folder`` from what ``fill`` writes into an empty one; it takes the name, and an earlier one's place, when it is whole.

    If filling fails (a full disk, say), the earlier folder is untouched.
    """
    scratch = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        fill(scratch)
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old")
            folder.rename(old)
            scratch.rename(folder)
            shutil.rmtree(old)
        else:
            scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
