"""A model whose answers are known: each option has a weight, and the odds of two options are those of their weights.

It reads the prompt as a person would: which labels stand for which options, what of a text is written already. So it is symmetric
in the options' order, obeys Luce's axiom of choice, and gives the same probabilities to labels and to options verbatim.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from conftest import tiny_engine
from rlcd_lite.contract import Contract
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.forward import Prefix
from rlcd_lite.packing import TokenTree

LISTED = re.compile(r"^([A-Za-z]{1,2}) = (\S+)(?: \(.*\))?$", re.MULTILINE)


class ToyForward:
    """Reads trees as `Forward` does. ``weights``: of every option's text; a group's is the sum of its options'.

    ``lean``: what the place in the list adds to a label's logit.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, weights: dict[str, float], lean: Callable[[int], float]) -> None:
        self.tokenizer, self.weights, self.lean = tokenizer, weights, lean
        self.tokens_run = 0
        self.passes = 0
        self.max_length = 100_000
        self.device = torch.device("cpu")

    def read(self, tree: TokenTree, prefix: Prefix | None = None, keep: int = 0) -> tuple[list[Tensor], list[Any], None]:
        self.passes += 1
        logits = [self._logits(self.tokenizer.decode(tree.path(r.segment)), r.label_ids) for r in tree.readouts]
        totals = [row.logsumexp(-1) if r.total else None for r, row in zip(tree.readouts, logits, strict=True)]
        return logits, totals, None

    def _logits(self, path: str, ids: tuple[int, ...]) -> Tensor:
        names = [self.tokenizer.decode([token]) for token in ids]
        question, _, written = path.rpartition('": "')
        key = question.rpartition('{"')[2]
        if key.endswith("_confidence"):
            return torch.zeros(len(ids))
        listed = {}
        for line in question.rpartition(f'"{key}"\n')[2].splitlines():
            if (found := LISTED.match(line)) is None:
                break
            listed[found[1]] = found[2]
        if not written and set(names) <= set(listed):
            places = list(listed)
            return torch.tensor([self.weights[listed[n]] for n in names]).log() + torch.tensor(
                [self.lean(places.index(n)) for n in names]
            )
        words = {f'{option.replace("_", " ")}"': weight for option, weight in self.weights.items()}
        mass = [sum(w for text, w in words.items() if text.startswith(written + name)) for name in names]
        return torch.tensor(mass).clamp(min=1e-30).log()


def toy_engine(
    tokenizer: PreTrainedTokenizerFast,
    weights: dict[str, float],
    contract: Contract | None = None,
    lean: Callable[[int], float] = lambda place: 0.0,
    **chosen: Any,
) -> DecisionEngine:
    engine = tiny_engine(tokenizer)
    engine.contract = contract or Contract()
    for name, value in chosen.items():
        setattr(engine, name, value)
    engine.forward = ToyForward(tokenizer, weights, lean)  # type: ignore[assignment]
    return engine
