"""The schema of a multiple-choice item: one field, whose options are the item's own choices."""

from __future__ import annotations

from collections.abc import Sequence

from rlcd_lite.schema import Field, Option, Schema


def choice_schema(texts: Sequence[str]) -> Schema:
    """The field ``answer`` over the texts, in their order.

    Options of a field must differ, so a choice that an item prints twice is *one* option: whichever of its letters is right, its
    text is the right answer, and the item has an option less.
    """
    return Schema((Field("answer", "choice", tuple(Option(text) for text in dict.fromkeys(texts)), "The right answer."),))
