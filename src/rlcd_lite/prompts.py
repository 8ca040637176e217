"""The words of the prompt: a schema and texts become a token tree. Nothing else in the package writes to the model.

Two layouts of the same parts. *schema-first*: the options of all fields, then the text, then one short branch per read-out, so
that the schema part is shared by all texts. *context-first*: the text, then every field's question in a branch of its own, so
that the text is shared by all questions and no field sees another one.

With a *conditioned* confidence, the confidence branch stands under the label of every option instead, so that the number may
depend on the answer that it rates: ``"severity": "`` ── ``A`` ── ``", "confidence": "``.

    schema-first                                      context-first
    fields ── text { ─┬─ "severity": "                text ─┬─ severity? … { ─┬─ "severity": "
                      ├─ "severity_confidence": "           │                 └─ "severity_confidence": "
                      └─ "team": " …                        └─ team? … { ─┬─ "team": " …
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rlcd_lite.candidates import Candidates, confidence_labels, option_labels
from rlcd_lite.contract import Contract
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.packing import ROOT, TokenTree
from rlcd_lite.rewards import confidence_grid
from rlcd_lite.schema import CONFIDENCE_SUFFIX, Field, Schema, check_text
from rlcd_lite.tokens import Encoder

_TEXT = "Text:\n"
_TASK = "Answer in JSON with one label for each key.\n"
_CONFIDENCE = {
    "independent": f'A key that ends in "{CONFIDENCE_SUFFIX}" says how likely the answer is right',
    "conditioned": 'The key "confidence" behind an answer says how likely it is right',
}
_CONDITIONED_STEM = '", "confidence": "'
_OPEN = "{"


@dataclass(frozen=True)
class _Branch:
    """What stands behind the text for one field, the labels that are read there, and what the confidence labels stand for."""

    question: tuple[int, ...]  # empty in the schema-first layout: all fields are asked before the text
    stem: tuple[int, ...]  # the tokens that the two stems share; none when the confidence is conditioned
    choice_stem: tuple[int, ...]
    stated_stem: tuple[int, ...]  # behind `stem`, or behind the choice's stem and a label
    choice: Candidates
    stated: Candidates
    grid: tuple[float, ...]


class Prompt:
    """A schema under one contract for one tokenizer; `tree` adds the texts.

    ``max_length`` is the model's window in tokens: every path of a tree fits into it. Raises `UserError` if the tokenizer has too
    few labels for a field, or if the schema leaves no room for a text.
    """

    def __init__(self, encoder: Encoder, schema: Schema, contract: Contract, max_length: int) -> None:
        self.schema, self.max_length = schema, max_length
        self.conditioned = contract.confidence == "conditioned"
        self._encoder = encoder
        frame = encoder.frame()
        grids = [confidence_grid(contract.grid, len(f.options)) for f in schema.fields]
        stated = [_stated(encoder, f.name, len(grid), self.conditioned) for f, grid in zip(schema.fields, grids, strict=True)]
        choices = [option_labels(encoder, _stem(f.name), len(f.options)) for f in schema.fields]
        questions = [_question(f, labels) for f, labels in zip(schema.fields, choices, strict=True)]
        if len(set(grids)) == 1:
            said = f"{_CONFIDENCE[contract.confidence]}: {_levels(stated[0], grids[0])}\n"
        else:
            said = f"{_CONFIDENCE[contract.confidence]}.\n"
            questions = [f"{q}confidence: {_levels(s, g)}\n" for q, s, g in zip(questions, stated, grids, strict=True)]
        (opening,) = encoder.data([_OPEN])
        if contract.layout == "schema-first":
            (before,) = encoder.data([f"{_TASK}{''.join(questions)}{said}\n{_TEXT}"])
            self._root, self._behind = frame.before + before, frame.after + opening
            asked: list[tuple[int, ...]] = [() for _ in questions]
        else:
            (before,) = encoder.data([_TEXT])
            self._root, self._behind = frame.before + before, ()
            asked = [ids + frame.after + opening for ids in encoder.data([f"\n\n{_TASK}{q}{said}" for q in questions])]
        parts = zip(schema.fields, asked, choices, stated, grids, strict=True)
        self.branches = tuple(self._branch(f.name, q, labels, levels, grid) for f, q, labels, levels, grid in parts)
        self._around = len(self._root) + len(self._behind) + max(map(self._longest, self.branches))  # without the text
        if self._around >= max_length:
            raise UserError(
                f"the schema alone takes {self._around} of the {max_length} tokens of the model's window: "
                f"use fewer fields, options or descriptions."
            )

    def tree(self, texts: Sequence[tuple[int, ...]], tree: TokenTree | None = None) -> TokenTree:
        """Every read-out of every text in one tree: text by text, field by field, first the choice, then the stated confidence,
        which has one read-out, or one per option if it is conditioned.

        ``texts`` come from `encode`. Segment 0 is what the texts share and segment 1 the first text. ``tree``: one to grow on, for
        a batch of several schemas; the texts then stand beside what it holds.
        """
        tree = TokenTree() if tree is None else tree
        root = tree.add(self._root, ROOT)
        for ids in texts:
            trunk = tree.add(ids, root)
            for branch in self.branches:
                stem = tree.add(branch.stem, tree.add(branch.question, trunk))
                choice = tree.add(branch.choice_stem, stem)
                tree.read(choice, branch.choice.ids)
                if self.conditioned:
                    for label in branch.choice.ids:
                        tree.read(tree.add((label, *branch.stated_stem), choice), branch.stated.ids)
                else:
                    tree.read(tree.add(branch.stated_stem, stem), branch.stated.ids)
        return tree

    def readouts(self, branch: _Branch) -> int:
        """How many read-outs a field has in the tree of one text."""
        return 1 + (len(branch.choice.ids) if self.conditioned else 1)

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

    def _longest(self, branch: _Branch) -> int:
        """Tokens of a field's longest path behind the text."""
        ways = len(branch.choice_stem), len(branch.stated_stem)
        return len(branch.question + branch.stem) + (sum(ways) + 1 if self.conditioned else max(ways))

    @property
    def shared(self) -> int:
        """Tokens that all texts share."""
        return len(self._root)

    @property
    def asked(self) -> int:
        """Tokens that every text adds beside its own."""
        return sum(
            len(b.question + b.stem + b.choice_stem)
            + (len(b.choice.ids) * (1 + len(b.stated_stem)) if self.conditioned else len(b.stated_stem))
            for b in self.branches
        )

    def _branch(
        self, name: str, question: tuple[int, ...], choice: Candidates, stated: Candidates, grid: tuple[float, ...]
    ) -> _Branch:
        if self.conditioned:
            choice_stem, stated_stem = self._encoder.data([_stem(name), _CONDITIONED_STEM])
            return _Branch(question, (), choice_stem, stated_stem, choice, stated, grid)
        choice_stem, stated_stem = self._encoder.data([_stem(name), _stem(name + CONFIDENCE_SUFFIX)])
        shared = next(i for i, (a, b) in enumerate(zip(choice_stem, stated_stem, strict=False)) if a != b)
        return _Branch(question, choice_stem[:shared], choice_stem[shared:], stated_stem[shared:], choice, stated, grid)


def _stated(encoder: Encoder, name: str, levels: int, conditioned: bool) -> Candidates:
    return confidence_labels(encoder, _CONDITIONED_STEM if conditioned else _stem(name + CONFIDENCE_SUFFIX), levels)


def _levels(stated: Candidates, grid: tuple[float, ...]) -> str:
    return ", ".join(f"{label} = {value:.0%}" for label, value in zip(stated.labels, grid, strict=True))


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
