"""A tree of token segments, laid out in one row so that every read-out equals an independent forward.

A node's text follows its ancestors' text. Packing puts the segments behind each other; a token sees itself, the earlier tokens
of its own segment and its ancestors, and its position is its depth in tokens. This file holds tensors and integers only: it
knows no prompt and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CUT_BELOW = 192  # tokens
SHORTEST_PART = 32  # tokens
ROOT = -1  # the parent of a segment that follows nothing


@dataclass(frozen=True)
class Segment:
    """Token ids that follow those of segment ``parent`` (an earlier index, or `ROOT`)."""

    ids: tuple[int, ...]
    parent: int


@dataclass(frozen=True)
class Readout:
    """A place where the logits of ``label_ids`` are wanted: after the last token of ``segment``.

    ``total``: also the log-sum-exp of the full vocabulary's logits there, which turns them into log-probabilities.
    """

    segment: int
    label_ids: tuple[int, ...]
    total: bool = False


class TokenTree:
    """Segments, each behind its parent, and the read-outs. Grown with `add` and `read`; never changed otherwise."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.readouts: list[Readout] = []
        self._places: dict[Segment, int] = {}

    def add(self, ids: Sequence[int], parent: int) -> int:
        """The index of the segment ``ids`` behind ``parent``: appended, or the one that is there already, so that no token is run
        twice. With no ids, ``parent``: nothing stands between.
        """
        if not ROOT <= parent < len(self.segments):
            raise IndexError(f"parent {parent} of a segment is not among the {len(self.segments)} before it")
        if not ids:
            return parent
        segment = Segment(tuple(ids), parent)
        if segment not in self._places:
            self._places[segment] = len(self.segments)
            self.segments.append(segment)
        return self._places[segment]

    def read(self, segment: int, label_ids: Sequence[int], total: bool = False) -> None:
        """Ask for the logits of ``label_ids`` after ``segment``; they come back in the order of the calls."""
        if not 0 <= segment < len(self.segments):
            raise IndexError(f"a read-out needs a segment, and {segment} is none of the {len(self.segments)}")
        self.readouts.append(Readout(segment, tuple(label_ids), total))

    def path(self, segment: int) -> tuple[int, ...]:
        """Token ids from the root to the end of ``segment``: what an independent forward would be given."""
        parts: list[tuple[int, ...]] = []
        while segment != ROOT:
            parts.append(self.segments[segment].ids)
            segment = self.segments[segment].parent
        return tuple(token for part in reversed(parts) for token in part)


@dataclass(frozen=True)
class Packed:
    """One row of N tokens behind P tokens that a key-value cache already holds (P = 0 without one)."""

    ids: Tensor  # (1, N) int64
    positions: Tensor  # (1, N) int64, depth of each token in its path
    key_positions: Tensor  # (P + N,) int64, the same for every key: the cached ones first
    visible: Tensor  # (N, P + N) bool, True where a query may attend
    readouts: Tensor  # (R,) int64, index in the row of the last token of each read-out's segment
    cuts: tuple[int, ...]  # where the row falls into parts that hardly see each other: before which tokens


def pack(tree: TokenTree, prefix: Sequence[Segment] = (), device: torch.device | str = "cpu") -> Packed:
    """Lay the tree out in one row, leaving out the leading segments, ``prefix``, which a cache holds.

    They must be, id for id and parent for parent, those of the tree: anything else raises ``ValueError``, because a cache of other
    tokens would answer another question.
    """
    first = len(prefix)
    if tree.segments[:first] != list(prefix):
        raise ValueError("the cached prefix holds other segments than the tree")
    if first == len(tree.segments):
        raise ValueError("nothing is left to run behind the cached prefix")
    if any(r.segment < first for r in tree.readouts):
        raise ValueError("a read-out lies inside the prefix, whose hidden states are not kept")
    starts: list[int] = []  # depth of each segment's first token
    for segment in tree.segments:
        above = segment.parent
        starts.append(0 if above == ROOT else starts[above] + len(tree.segments[above].ids))
    lengths = torch.tensor([len(s.ids) for s in tree.segments])
    ends = lengths.cumsum(0) - 1  # (S,) index of each segment's last token, the cached ones included
    p = int(lengths[:first].sum())
    ids = torch.tensor([token for s in tree.segments[first:] for token in s.ids])
    owner = torch.arange(len(lengths)).repeat_interleave(lengths)  # (P + N,) the segment of each token
    positions = torch.tensor(starts)[owner] + torch.arange(len(owner)) - (ends + 1 - lengths)[owner]  # (P + N,)

    lineage = torch.eye(len(lengths), dtype=torch.bool)  # (S, S) segment i is j or follows j
    for i, segment in enumerate(tree.segments):
        if segment.parent != ROOT:
            lineage[i] |= lineage[segment.parent]
    visible = lineage[owner[p:]][:, owner].tril_(p)  # ancestors stand earlier in the row, so the triangle cuts own segments only
    return Packed(
        ids=ids[None].to(device),
        positions=positions[None, p:].to(device),
        key_positions=positions.to(device),
        visible=visible.to(device),
        readouts=(ends[[r.segment for r in tree.readouts]] - p).to(device),
        cuts=_cuts(tree.segments[first:], first),
    )


def _cuts(run: Sequence[Segment], first: int) -> tuple[int, ...]:
    """Before each child of a segment that has much below it, where the part before is not short."""
    below = [0] * len(run)  # tokens that descend from each segment
    for i in reversed(range(len(run))):
        if (above := run[i].parent - first) >= 0:
            below[above] += below[i] + len(run[i].ids)
    cuts: list[int] = []
    at = last = 0
    for segment in run:
        wide = segment.parent < first or below[segment.parent - first] >= CUT_BELOW
        if wide and at - last >= SHORTEST_PART:
            cuts.append(at)
            last = at
        at += len(segment.ids)
    return tuple(cuts)


def attention_mask(packed: Packed, window: int | None = None, additive: torch.dtype | None = None) -> Tensor:
    """The mask ``(1, 1, N, P + N)`` that a transformer's attention takes.

    ``window``: a sliding layer sees the last ``window`` *positions*, the query's own included; measured on positions, because
    neighbours in the row may be far apart in the text. ``additive``: None for a boolean mask (True = attend, what SDPA takes), or
    the dtype of a mask that is added to the scores (0 = attend), which eager attention needs.
    """
    visible = packed.visible
    if window is not None:
        visible = visible & (packed.positions[0][:, None] - packed.key_positions[None, :] < window)
    if additive is None:
        return visible[None, None]
    mask = torch.zeros(visible.shape, dtype=additive, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(additive).min)[None, None]
