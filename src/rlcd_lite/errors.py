"""The one exception for a user's mistake, and the checks of text and keys that raise it everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class UserError(ValueError):
    """A mistake that the user can mend: one sentence that names the thing, its value and the fix.

    The command line prints the sentence and exits with code 2; in Python it is an ordinary ``ValueError``.
    """


class TooLong(UserError):  # noqa: N818
    """A text, or a schema by itself, that does not fit into the model's window."""


def shorten(value: object, limit: int = 60) -> str:
    """``repr(value)``, cut in the middle when it is longer than ``limit``, for use inside an error sentence."""
    text = repr(value)
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def check_text(text: Any, what: str) -> None:
    """`UserError` unless ``text`` is a string of whole Unicode characters, or None; ``what`` names it."""
    if text is None:
        return
    if not isinstance(text, str):
        raise UserError(f"{what} is {shorten(text)}: it must be a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds half of a surrogate pair at character {error.start}, which is not Unicode text: remove it."
        ) from None


def check_keys(source: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """`UserError` unless every key of ``source`` is known; ``where`` names the source."""
    if unknown := [k for k in source if k not in set(known)]:
        raise UserError(f"{where} has {shorten(unknown[0])}, which is not supported here: known are {', '.join(sorted(known))}.")


def first_duplicate(items: Iterable[str]) -> str | None:
    """The first item that came before, or None where all differ."""
    seen: set[str] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None
