"""``--config FILE.yaml``: flags from a file, in the place of the command line's, which win over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import read_text
from rlcd_lite.settings import check_choice


def with_config(args: Sequence[str], command: type) -> list[str]:
    """The arguments with those of ``--config`` put before them; each value is then read and checked like any other flag's.

    A file holds a flat mapping from the names of the command's flags to values: ``w-correct: 1.0`` and ``w_correct: 1.0`` are the
    same, and true gives a flag that takes no value. `UserError` for a name that is no flag, naming the nearest, and for a value
    that is none of a flag's choices.
    """
    known = _flags(command)
    before: list[str] = []
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == "--config" and (equals or i + 1 < len(args)):
            before += _read(Path(value if equals else args[i + 1]), known)
    together = [*before, *args]
    for arg, value in pairwise(together):
        kind = known.get(arg.removeprefix("--").replace("-", "_")) if arg.startswith("--") else None
        if get_origin(kind) is Literal and not value.startswith("--"):
            check_choice(value, kind, arg)
    return together


def _read(path: Path, known: dict[str, Any]) -> list[str]:
    try:
        found = yaml.safe_load(read_text(path, "config file"))
    except yaml.YAMLError as error:
        raise UserError(f"config file {str(path)!r} is not YAML ({shorten(str(error), 120)}): mend it.") from None
    if not isinstance(found, dict):
        raise UserError(f"config file {str(path)!r} holds {shorten(found)}: it must map flags to values, such as 'reward: rlcr'.")
    out: list[str] = []
    for key, value in found.items():
        name = str(key).replace("-", "_")
        if name not in known or name == "config":
            close = get_close_matches(name, [k for k in known if k != "config"], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see rlcd-lite train --help."
            raise UserError(f"config file {str(path)!r} has {shorten(key)}, which is no flag: {hint}")
        flag = "--" + name.replace("_", "-")
        if isinstance(value, list | dict):
            raise UserError(f"config file {str(path)!r} has {shorten(key)} = {shorten(value)}: give one value.")
        if value is True:
            out.append(flag)
        elif value is not None and value is not False:
            out += [flag, str(value)]
    return out


def _flags(command: type) -> dict[str, Any]:
    """Names and types of a command's flags, those of the dataclasses inside it too; of ``X | None``, X."""
    found: dict[str, Any] = {}
    hints = get_type_hints(command)
    for part in fields(command):
        kind = hints[part.name]
        if is_dataclass(kind):
            found |= _flags(kind)  # type: ignore[arg-type]  # a dataclass type, not an instance
        else:
            inner = [k for k in get_args(kind) if k is not type(None)]
            found[part.name] = inner[0] if len(inner) == 1 and get_origin(kind) is not Literal else kind
    return found
