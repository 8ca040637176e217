"""How a field's options are spelt behind its quote, and what has to be read to score them.

A *label* is one token, so all of them are read at one place. A *verbatim* option is its own text and the closing quote, often of
several tokens: the options form a trie, in which shared beginnings are run and read once. With the closing quote no option is the
beginning of another. Three read-outs of a trie, of option o with tokens o₁ … oₙ:

``constrained``  Σ log P(oᵢ | o₁ … oᵢ₋₁, one of the options follows): the masked softmax that decoding under a grammar samples from.
                 The probabilities sum to 1. Only forks are run and read: where one token can follow, its probability is 1.
``sum``          Σ log P(oᵢ | o₁ … oᵢ₋₁) over the full vocabulary: the probability of the text.
``mean``         ``sum`` / n: per token, as long options lose more in a sum (Brown et al. 2020, arXiv 2005.14165).

Less a prior, ``sum`` is pointwise mutual information, which asks how much more probable the text makes an option than it is
anyway (Holtzman et al. 2021, arXiv 2104.08315); `rlcd_lite.priors` measures priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcd_lite.candidates import Candidates
from rlcd_lite.packing import TokenTree
from rlcd_lite.settings import Readout
from rlcd_lite.tokens import Encoder


@dataclass(frozen=True)
class Trie:
    """The spellings of K options.

    ``names``: what each option is called in the answer. ``spelt``: its tokens. ``reads``: after which tokens which are read.
    ``edges``: per option, where its tokens stand among all that are read. ``readout``: None for labels, whose logits are scores.
    """

    names: tuple[str, ...]
    spelt: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    edges: tuple[tuple[int, ...], ...]
    readout: Readout | None

    @property
    def forks_late(self) -> bool:
        """Whether nothing is read where the options begin, because all begin alike."""
        return self.reads[0][0] != ()

    @property
    def depth(self) -> int:
        """Tokens of the longest way to a read-out."""
        return max(len(path) for path, _ in self.reads)

    @property
    def nodes(self) -> int:
        """Tokens to be run."""
        return len({path[:i] for path, _ in self.reads for i in range(1, len(path) + 1)})

    def grow(self, tree: TokenTree, segment: int, coverage: bool) -> None:
        """Ask for all that is read, behind ``segment``; with ``coverage`` the first read-out is of the first tokens."""
        if coverage and self.forks_late:
            tree.read(segment, tuple(dict.fromkeys(tokens[0] for tokens in self.spelt)), total=True)
        for i, (path, tokens) in enumerate(self.reads):
            total = self.readout in ("sum", "mean") or (coverage and i == 0)
            tree.read(follow(tree, segment, path), tokens, total)

    def scores(self, rows: Sequence[Tensor], totals: Sequence[Tensor | None]) -> Tensor:
        """Scores (K,) whose softmax are the options' probabilities, from the logits of each read-out and the full vocabulary's
        log-sum-exp there."""
        flat = torch.cat(list(rows))  # (E,) one entry per token that is read
        if self.readout is None:
            return flat
        widths = [len(tokens) for _, tokens in self.reads]
        if self.readout == "constrained":
            at = torch.full((len(widths), max(widths)), len(flat), device=flat.device)  # (R, W), filled up with a place of its own
            known = torch.arange(max(widths), device=flat.device) < torch.tensor(widths, device=flat.device)[:, None]
            at[known] = torch.arange(len(flat), device=flat.device)
            padded = torch.cat([flat, flat.new_full((1,), -torch.inf)])[at]  # (R, W)
            flat = padded.log_softmax(-1)[known]
        else:
            there = torch.stack([total for total in totals if total is not None])
            flat = flat - there.repeat_interleave(torch.tensor(widths, device=flat.device))
        owner = torch.tensor([k for k, edges in enumerate(self.edges) for _ in edges], device=flat.device)
        edges = torch.tensor([edge for edges in self.edges for edge in edges], device=flat.device)
        sums = flat.new_zeros(len(self.edges)).index_add(0, owner, flat[edges])
        if self.readout == "mean":
            sums = sums / sums.new_tensor([len(tokens) for tokens in self.spelt])
        return sums


def follow(tree: TokenTree, segment: int, tokens: Sequence[int]) -> int:
    """The segment behind ``segment`` that ends with ``tokens``, one segment a token, so that other paths can part anywhere."""
    for token in tokens:
        segment = tree.add((token,), segment)
    return segment


def in_words(texts: Sequence[str]) -> list[str]:
    """Identifiers as words, ``card_arrival`` as ``card arrival``, which a language model has seen more of; as they are where two
    texts would become one."""
    words = [text if " " in text else text.replace("_", " ").strip() or text for text in texts]
    return words if len(set(words)) == len(words) else list(texts)


def of_labels(labels: Candidates) -> Trie:
    spelt = tuple((token,) for token in labels.ids)
    return Trie(labels.labels, spelt, (((), labels.ids),), tuple((i,) for i in range(len(spelt))), None)


def of_texts(encoder: Encoder, stem: str, texts: Sequence[str], readout: Readout) -> Trie:
    """The trie of texts, as they stand in JSON, behind ``stem``, which ends in the field's quote."""
    spelt = _spelt(encoder, stem, texts)
    children: dict[tuple[int, ...], dict[int, int]] = {}
    for tokens in spelt:
        for i, token in enumerate(tokens):
            children.setdefault(tokens[:i], {}).setdefault(token, 0)
    reads = {path: follow for path, follow in children.items() if readout != "constrained" or len(follow) > 1}
    place = 0
    for tokens_there in reads.values():
        for token in tokens_there:
            tokens_there[token], place = place, place + 1
    edges = tuple(tuple(reads[o[:i]][token] for i, token in enumerate(o) if o[:i] in reads) for o in spelt)
    return Trie(tuple(texts), spelt, tuple((path, tuple(tokens)) for path, tokens in reads.items()), edges, readout)


def _spelt(encoder: Encoder, stem: str, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Tokens of each text and its closing quote: as the tokenizer writes them behind the stem, unless it joins the two there."""
    before, *joined = encoder.data([stem, *(f'{stem}{text}"' for text in texts)])
    alone = encoder.data([f'{text}"' for text in texts])
    n = len(before)
    return tuple(ids[n:] if ids[:n] == before else own for ids, own in zip(joined, alone, strict=True))
