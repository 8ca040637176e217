"""Labels: a single token for every option, checked for the tokenizer at hand.

Options are listed in the prompt under labels (``A = low, B = medium``) and the answer is read as the label after the field's
quote. So an answer is one token, however long its option's text and however many options there are. A label is used only if it is
exactly one token after the quote *and* before the closing one: the text ``"severity": "A"`` then has no other spelling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase

from rlcd_lite.errors import UserError
from rlcd_lite.tokens import Encoder

_DIGITS = {5: "12345", 10: "0123456789"}  # by the number of confidence levels


@dataclass(frozen=True)
class Candidates:
    """The label of each option and its token id, in option order; all ids differ."""

    labels: tuple[str, ...]
    ids: tuple[int, ...]


@lru_cache(maxsize=256)  # asked for by every prompt
def option_labels(encoder: Encoder, stem: str, count: int) -> Candidates:
    """Labels for ``count`` options after the text ``stem``, which ends in the field's quote.

    Tried in order: ``A``-``Z``, pairs of capitals, pairs of capital and small letter, small letters, their pairs. Digits are
    left to the stated confidence. Raises `UserError` with the number that can be labelled if there are too few.
    """
    labels: list[str] = []
    ids: list[int] = []
    for chunk in _chunks(_pool(), 128):
        for label, token in zip(chunk, _single_tokens(encoder, stem, chunk), strict=True):
            if token is not None and token not in ids:
                labels.append(label)
                ids.append(token)
            if len(ids) == count:
                return Candidates(tuple(labels), tuple(ids))
    raise UserError(
        f"{stem.strip()} has {count} options and the tokenizer has single-token labels for {len(ids)}: use {len(ids)} at most."
    )


@lru_cache(maxsize=256)
def confidence_labels(encoder: Encoder, stem: str, levels: int) -> Candidates:
    """The labels of the stated confidence after ``stem``: ``1``-``5`` for 5 levels, ``0``-``9`` for 10, lowest first.

    `UserError` if one of them is not a single token.
    """
    labels = tuple(_DIGITS[levels])
    ids = _single_tokens(encoder, stem, labels)
    known = tuple(token for token in ids if token is not None)
    if len(set(known)) != levels:
        span = f"{labels[0]} to {labels[-1]}"
        raise UserError(f"the tokenizer has no single token for each of the digits {span} after {stem.strip()}: use another model.")
    return Candidates(labels, known)


def _pool() -> Iterator[str]:
    upper, lower = ascii_uppercase, ascii_lowercase
    yield from upper
    for first, second in ((upper, upper), (upper, lower), (lower, ""), (lower, lower)):
        yield from (a + b for a in first for b in second or ("",))


def _chunks(items: Iterator[str], size: int) -> Iterator[tuple[str, ...]]:
    while chunk := tuple(itertools.islice(items, size)):
        yield chunk


def _single_tokens(encoder: Encoder, stem: str, labels: tuple[str, ...]) -> list[int | None]:
    """The token id of each label if it is one token between ``stem`` and a closing quote, else None."""
    before, *closed = encoder.data([stem, *(f'{stem}{label}"' for label in labels)])
    _, *open_ = encoder.data([stem, *(stem + label for label in labels)])
    n = len(before)
    return [o[n] if o[:n] == before and len(o) == n + 1 and c[: n + 1] == o else None for o, c in zip(open_, closed, strict=True)]
