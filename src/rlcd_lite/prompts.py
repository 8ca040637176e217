"""The words of the prompt: a schema and texts become a token tree. Nothing else in the package writes to the model.

Two layouts of the same parts. *schema-first*: the options of all fields, then the text, then one short branch per read-out, so
that the schema part is shared by all texts. *context-first*: the text, then every field's question in a branch of its own, so
that the text is shared by all questions and no field sees another one.

With a *conditioned* confidence, the confidence branch stands under the label of every option instead, so that the number may
depend on the answer that it rates: ``"severity": "`` ── ``A`` ── ``", "confidence": "``.

    schema-first                                      context-first
    fields ── text { ─┬─ "severity": "                text ── task ─┬─ severity? … { ─┬─ "severity": "
                      ├─ "severity_confidence": "                   │                 └─ "severity_confidence": "
                      └─ "team": " …                                └─ team? … { ─┬─ "team": " …
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from rlcd_lite import trie
from rlcd_lite.candidates import Candidates, confidence_labels, option_labels
from rlcd_lite.contract import Contract
from rlcd_lite.errors import TooLong, UserError, check_text, shorten
from rlcd_lite.packing import ROOT, TokenTree
from rlcd_lite.questions import Question
from rlcd_lite.rewards import confidence_grid
from rlcd_lite.schema import CONFIDENCE_SUFFIX
from rlcd_lite.tokens import Encoder
from rlcd_lite.trie import Trie

_TEXT = "Text:\n"
_TASK = "Answer in JSON with one label for each key.\n"
_CONFIDENCE = {
    "independent": f'A key that ends in "{CONFIDENCE_SUFFIX}" says how likely the answer is right',
    "conditioned": 'The key "confidence" behind an answer says how likely it is right',
}
_CONDITIONED_STEM = '", "confidence": "'
_OPEN = "{"

Logits = tuple[Tensor, Tensor | None]  # of a read-out: its tokens', and the log-sum-exp of the full vocabulary's if asked for


@dataclass(frozen=True)
class Answer:
    """What is read for one question over one text: ``choice`` (K,), scores in the field's order of options; ``stated`` (C,), logits
    of the confidence, or (K, C) if it is conditioned, None if it was not asked for; ``coverage`` as in `FieldScores`."""

    choice: Tensor
    stated: Tensor | None
    grid: tuple[float, ...]
    coverage: float | None

    def less(self, prior: Tensor | None) -> Answer:
        """The answer with a prior (K,) subtracted from the choice's scores."""
        return self if prior is None else replace(self, choice=self.choice - prior.to(self.choice.device))


@dataclass(frozen=True)
class Branch:
    """What stands behind the text for one question, what is read there, and what the confidence labels stand for."""

    question: Question
    asked: tuple[int, ...]  # empty in the schema-first layout: everything is asked before the text
    stem: tuple[int, ...]  # the tokens that the two stems share; none when the confidence is conditioned or not asked for
    choice_stem: tuple[int, ...]
    stated_stem: tuple[int, ...]  # behind `stem`, or behind the choice's stem and an answer
    choice: Trie
    stated: Candidates
    grid: tuple[float, ...]
    conditioned: bool

    @cached_property
    def back(self) -> list[int]:
        """At which place each option is shown, in the field's order."""
        place = {option: i for i, option in enumerate(self.question.order)}
        return [place[option] for option in range(len(place))]

    @property
    def confidences(self) -> int:
        """Read-outs of the stated confidence."""
        if not self.question.stated:
            return 0
        return len(self.choice.spelt) if self.conditioned else 1

    @property
    def longest(self) -> int:
        """Tokens of the longest path behind the text."""
        start = len(self.asked + self.stem)
        ways = [start + len(self.choice_stem) + self.choice.depth]
        if self.question.stated:
            answer = len(self.choice_stem) + max(map(len, self.choice.spelt)) if self.conditioned else 0
            ways.append(start + answer + len(self.stated_stem))
        return max(ways)


class Prompt:
    """Questions under one contract for one tokenizer; `grow` adds a text.

    ``max_length`` is the model's window in tokens: every path of a tree fits into it. Raises `UserError` if the tokenizer has too
    few labels for a question, or if the questions leave no room for a text.
    """

    def __init__(self, encoder: Encoder, questions: Sequence[Question], contract: Contract, max_length: int) -> None:
        self.contract, self.max_length = contract, max_length
        self.conditioned = contract.confidence == "conditioned"
        self._encoder = encoder
        frame = encoder.frame
        grids = [confidence_grid(contract.grid, len(q.field.options)) for q in questions]
        stated = [_stated(encoder, q.field.name, len(grid), self.conditioned) for q, grid in zip(questions, grids, strict=True)]
        choices = [self._choice(question) for question in questions]
        words = [_words(q, choice) for q, choice in zip(questions, choices, strict=True)]
        if len(set(grids)) == 1:
            said = f"{_CONFIDENCE[contract.confidence]}: {_levels(stated[0], grids[0])}\n"
        else:
            said = f"{_CONFIDENCE[contract.confidence]}.\n"
            words = [f"{w}confidence: {_levels(s, g)}\n" for w, s, g in zip(words, stated, grids, strict=True)]
        (opening,) = encoder.data([_OPEN])
        if contract.layout == "schema-first":
            (before,) = encoder.data([f"{_TASK}{''.join(words)}{said}\n{_TEXT}"])
            self._root, self._behind = frame.before + before, frame.after + opening
            self.lead: tuple[int, ...] = ()
            asked: list[tuple[int, ...]] = [() for _ in words]
        else:
            before, self.lead = encoder.data([_TEXT, f"\n\n{_TASK}{said}"])
            self._root, self._behind = frame.before + before, ()
            asked = [ids + frame.after + opening for ids in encoder.data(words)]
        parts = zip(questions, asked, choices, stated, grids, strict=True)
        self.branches = tuple(self._branch(*part) for part in parts)
        longest = max(branch.longest for branch in self.branches)
        self.around = len(self._root) + len(self._behind) + len(self.lead) + longest  # the longest path without the text
        if self.around >= max_length:
            raise TooLong(
                f"the schema alone takes {self.around} of the {max_length} tokens of the model's window: "
                f"use fewer fields, options or descriptions."
            )

    def plant(self, tree: TokenTree, ids: tuple[int, ...] = ()) -> int:
        """The segment that a text from `encode` ends, or, without one, what all texts share."""
        return tree.add(ids, tree.add(self._root, ROOT))

    def grow(self, tree: TokenTree, ids: tuple[int, ...], coverage: bool = False) -> None:
        """Add a text from `encode` and every read-out for it: question by question, first the choice's, then the stated
        confidence's: one, or one per option if it is conditioned. What the tree holds already is not added again.
        """
        lead = tree.add(self.lead, self.plant(tree, ids))
        for branch in self.branches:
            stem = tree.add(branch.stem, tree.add(branch.asked, lead))
            choice = tree.add(branch.choice_stem, stem)
            branch.choice.grow(tree, choice, coverage)
            if not branch.question.stated:
                continue
            if self.conditioned:
                for spelt in branch.choice.spelt:
                    tree.read(tree.add(branch.stated_stem, trie.follow(tree, choice, spelt)), branch.stated.ids)
            else:
                tree.read(tree.add(branch.stated_stem, stem), branch.stated.ids)

    def answers(self, logits: Iterator[Logits], coverage: bool = False) -> list[Answer]:
        """The answers to the questions over one text, from the logits of the read-outs that `grow` asked for."""
        out = []
        for branch in self.branches:
            begin = next(logits) if coverage and branch.choice.forks_late else None
            rows, totals = zip(*islice(logits, len(branch.choice.reads)), strict=True)
            shown = branch.choice.scores(rows, totals)  # (K,) in the order shown
            found = [row for row, _ in islice(logits, branch.confidences)]
            stated = None
            if branch.question.stated:
                stated = torch.stack([found[place] for place in branch.back]) if self.conditioned else found[0]
            covered = None
            if coverage:
                first, total = begin or (rows[0], totals[0])
                assert total is not None
                covered = float((first.detach().logsumexp(-1) - total.detach()).exp())
            out.append(Answer(shown[branch.back], stated, branch.grid, covered))
        return out

    def describe(self, priors: Sequence[Tensor | None], coverage: bool = False) -> Iterator[dict[str, Any]]:
        """What each read-out of a text is about, in order, for a trace. A prior is in the order of the options shown."""
        for branch, prior in zip(self.branches, priors, strict=True):
            q, name = branch.question, branch.question.field.name
            shown = [q.field.options[i].value for i in q.order]
            if coverage and branch.choice.forks_late:
                begin = list(dict.fromkeys(tokens[0] for tokens in branch.choice.spelt))
                yield {"field": name, "kind": "coverage", "label_ids": begin}
            for i, (_, tokens) in enumerate(branch.choice.reads):
                labels = [self._encoder.tokenizer.decode([t]) for t in tokens] if q.verbatim else list(branch.choice.names)
                what: dict[str, Any] = {"field": name, "kind": "choice"}
                if prior is not None and i == 0:
                    what["prior"] = prior[list(q.order)].tolist()
                yield what | {"label_ids": list(tokens), "labels": labels, "options": shown}
            for i in range(branch.confidences):
                what = {"field": name, "kind": "stated"} | ({"answer": shown[i]} if self.conditioned else {})
                ids, labels = list(branch.stated.ids), list(branch.stated.labels)
                yield what | {"label_ids": ids, "labels": labels, "options": list(branch.grid)}

    def tree(self, texts: Sequence[tuple[int, ...]]) -> TokenTree:
        """Every read-out of every text in one tree."""
        tree = TokenTree()
        for ids in texts:
            self.grow(tree, ids)
        return tree

    def encode(self, context: str) -> tuple[int, ...]:
        """Token ids of the text and what directly follows it; `UserError` if it is blank or longer than the model's window."""
        if not isinstance(context, str):
            raise UserError(f"the text is {shorten(context)}: it must be a string.")
        if not context.strip():
            raise UserError(f"the text is {shorten(context)}: give a text that is not blank.")
        check_text(context, "the text")
        (ids,) = self._encoder.data([context])
        if (total := self.around + len(ids)) > self.max_length:
            raise TooLong(
                f"the text has {len(ids)} tokens, with the schema {total}, and the model's window is {self.max_length}: "
                f"shorten the text to {self.max_length - self.around} tokens or split it."
            )
        return ids + self._behind

    @property
    def shared(self) -> int:
        """Tokens that all texts share."""
        return len(self._root)

    def _choice(self, question: Question) -> Trie:
        stem = _stem(question.field.name)
        if question.verbatim:
            texts = trie.in_words([question.field.options[i].text for i in question.order])
            return trie.of_texts(self._encoder, stem, [_escape(text) for text in texts], self.contract.readout)
        return trie.of_labels(option_labels(self._encoder, stem, len(question.order)))

    def _branch(
        self, question: Question, asked: tuple[int, ...], choice: Trie, stated: Candidates, grid: tuple[float, ...]
    ) -> Branch:
        name, conditioned = question.field.name, self.conditioned
        # a verbatim option has its closing quote
        behind = _CONDITIONED_STEM[question.verbatim :] if conditioned else _stem(name + CONFIDENCE_SUFFIX)
        choice_stem, stated_stem = self._encoder.data([_stem(name), behind])
        shared = 0
        if question.stated and not conditioned:
            shared = next(i for i, (a, b) in enumerate(zip(choice_stem, stated_stem, strict=False)) if a != b)
        stems = choice_stem[:shared], choice_stem[shared:], stated_stem[shared:]
        return Branch(question, asked, *stems, choice, stated, grid, conditioned)


def _stated(encoder: Encoder, name: str, levels: int, conditioned: bool) -> Candidates:
    return confidence_labels(encoder, _CONDITIONED_STEM if conditioned else _stem(name + CONFIDENCE_SUFFIX), levels)


def _levels(stated: Candidates, grid: tuple[float, ...]) -> str:
    return ", ".join(f"{label} = {value:.0%}" for label, value in zip(stated.labels, grid, strict=True))


def _stem(key: str) -> str:
    return f'{json.dumps(key, ensure_ascii=False)}: "'


def _words(question: Question, choice: Trie) -> str:
    """One line for the field and one per option that is listed; JSON's escapes keep any text on its line."""
    field = question.field
    lines = [json.dumps(field.name, ensure_ascii=False) + _remark(field.description)]
    if question.listed:
        for name, place in zip(choice.names, question.order, strict=True):
            option = field.options[place]
            shown = f"- {name}" if question.verbatim else f"{name} = {_escape(option.text)}"
            lines.append(shown + _remark(option.description))
    return "".join(f"{line}\n" for line in lines)


def _remark(description: str | None) -> str:
    return f" ({_escape(description)})" if description else ""


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
