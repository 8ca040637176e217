"""The words of the prompt: a schema and texts become a token tree. Nothing else in the package writes to the model.

Two layouts of the same parts. *schema-first*: the options of all fields, then the text, then one short branch per read-out, so
that the schema part is shared by all texts. *context-first*: the text, then every field's question in a branch of its own, so
that the text is shared by all questions and no field sees another one.

    schema-first                                      context-first
    fields ── text { ─┬─ "severity": "                text ─┬─ severity? … { ─┬─ "severity": "
                      ├─ "severity_confidence": "           │                 └─ "severity_confidence": "
                      └─ "team": " …                        └─ team? … { ─┬─ "team": " …
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rlcd_lite.candidates import CONFIDENCE_GRID, CONFIDENCE_LABELS, Candidates, confidence_labels, option_labels
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.packing import ROOT, TokenTree
from rlcd_lite.schema import CONFIDENCE_SUFFIX, Field, Schema, check_text
from rlcd_lite.settings import Layout
from rlcd_lite.tokens import Encoder

_TEXT = "Text:\n"
_TASK = "Answer in JSON with one label for each key.\n"
_BUCKETS = ", ".join(f"{label} = {value:.0%}" for label, value in zip(CONFIDENCE_LABELS, CONFIDENCE_GRID, strict=True))
_CONFIDENCE = f'A key that ends in "{CONFIDENCE_SUFFIX}" says how likely the answer is right: {_BUCKETS}\n'
_OPEN = "{"


@dataclass(frozen=True)
class _Branch:
    """What stands behind the text for one field, and the labels that are read there."""

    question: tuple[int, ...]  # empty in the schema-first layout: all fields are asked before the text
    choice_stem: tuple[int, ...]
    stated_stem: tuple[int, ...]
    choice: Candidates
    stated: Candidates


class Prompt:
    """A schema in one layout for one tokenizer; `tree` adds the texts.

    ``max_length`` is the model's window in tokens: every path of a tree fits into it. Raises `UserError` if the tokenizer has too
    few labels for a field, or if the schema leaves no room for a text.
    """

    def __init__(self, encoder: Encoder, schema: Schema, layout: Layout, max_length: int) -> None:
        self.schema, self.layout, self.max_length = schema, layout, max_length
        self._encoder = encoder
        frame = encoder.frame()
        choices = [option_labels(encoder, _stem(f.name), len(f.options)) for f in schema.fields]
        questions = [_question(f, labels) for f, labels in zip(schema.fields, choices, strict=True)]
        (opening,) = encoder.data([_OPEN])
        if layout == "schema-first":
            (before,) = encoder.data([f"{_TASK}{''.join(questions)}{_CONFIDENCE}\n{_TEXT}"])
            self._root, self._behind = frame.before + before, frame.after + opening
            asked: list[tuple[int, ...]] = [() for _ in questions]
        else:
            (before,) = encoder.data([_TEXT])
            self._root, self._behind = frame.before + before, ()
            asked = [ids + frame.after + opening for ids in encoder.data([f"\n\n{_TASK}{q}{_CONFIDENCE}" for q in questions])]
        self.branches = tuple(
            _branch(encoder, f.name, question, labels) for f, question, labels in zip(schema.fields, asked, choices, strict=True)
        )
        longest = max(len(b.question) + max(len(b.choice_stem), len(b.stated_stem)) for b in self.branches)
        self._around = len(self._root) + len(self._behind) + longest  # the longest path without its text
        if self._around >= max_length:
            raise UserError(
                f"the schema alone takes {self._around} of the {max_length} tokens of the model's window: "
                f"use fewer fields, options or descriptions."
            )

    def tree(self, texts: Sequence[tuple[int, ...]]) -> TokenTree:
        """Every read-out of every text in one tree: text by text, field by field, first the choice, then the stated confidence.

        ``texts`` come from `encode`. Segment 0 is what the texts share and segment 1 the first text.
        """
        tree = TokenTree()
        root = tree.add(self._root, ROOT)
        for ids in texts:
            trunk = tree.add(ids, root)
            for branch in self.branches:
                asked = tree.add(branch.question, trunk)
                tree.read(tree.add(branch.choice_stem, asked), branch.choice.ids)
                tree.read(tree.add(branch.stated_stem, asked), branch.stated.ids)
        return tree

    def encode(self, context: str) -> tuple[int, ...]:
        """Token ids of the text and what directly follows it; `UserError` if it is blank or longer than the model's window."""
        if not isinstance(context, str):
            raise UserError(f"the text is {shorten(context)}: it must be a string.")
        if not context.strip():
            raise UserError(f"the text is {shorten(context)}: give a text that is not blank.")
        check_text(context, "the text")
        (ids,) = self._encoder.data([context])
        if (total := self._around + len(ids)) > self.max_length:
            raise UserError(
                f"the text has {len(ids)} tokens, with the schema {total}, and the model's window is {self.max_length}: "
                f"shorten the text to {self.max_length - self._around} tokens or split it."
            )
        return ids + self._behind

    @property
    def shared(self) -> int:
        """Tokens that all texts share."""
        return len(self._root)

    @property
    def asked(self) -> int:
        """Tokens that every text adds beside its own."""
        return sum(len(b.question) + len(b.choice_stem) + len(b.stated_stem) for b in self.branches)


def _branch(encoder: Encoder, name: str, question: tuple[int, ...], labels: Candidates) -> _Branch:
    stated = _stem(name + CONFIDENCE_SUFFIX)
    choice_stem, stated_stem = encoder.data([_stem(name), stated])
    return _Branch(question, choice_stem, stated_stem, labels, confidence_labels(encoder, stated))


def _stem(key: str) -> str:
    return f'{json.dumps(key, ensure_ascii=False)}: "'


def _question(field: Field, labels: Candidates) -> str:
    """One line for the field and one per option; JSON's escapes keep any text on its line."""
    head = f"{json.dumps(field.name, ensure_ascii=False)}" + _remark(field.description)
    options = (
        f"{label} = {_escape(option.text)}{_remark(option.description)}\n"
        for label, option in zip(labels.labels, field.options, strict=True)
    )
    return f"{head}\n{''.join(options)}"


def _remark(description: str | None) -> str:
    return f" ({_escape(description)})" if description else ""


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
