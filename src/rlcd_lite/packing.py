"""A tree of token segments, laid out in one row so that every read-out equals an independent forward.

A node's text follows its ancestors' text. Packing puts the segments behind each other; a token sees itself, the earlier tokens
of its own segment and its ancestors, and its position is its depth in tokens. This file holds tensors and integers only: it
knows no prompt and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """A place where the logits of ``label_ids`` are wanted: after the last token of ``segment``."""

    segment: int
    label_ids: tuple[int, ...]


@dataclass
class TokenTree:
    """Segments, each behind its parent, and the read-outs. Grown with `add` and `read`; never changed otherwise."""

    segments: list[Segment] = field(default_factory=list)
    readouts: list[Readout] = field(default_factory=list)

    def add(self, ids: Sequence[int], parent: int) -> int:
        """Append a segment and return its index; with no ids, return ``parent``: nothing stands between."""
        if not ROOT <= parent < len(self.segments):
            raise IndexError(f"parent {parent} of a segment is not among the {len(self.segments)} before it")
        if not ids:
            return parent
        self.segments.append(Segment(tuple(ids), parent))
        return len(self.segments) - 1

    def read(self, segment: int, label_ids: Sequence[int]) -> None:
        """Ask for the logits of ``label_ids`` after ``segment``; they come back in the order of the calls."""
        if not 0 <= segment < len(self.segments):
            raise IndexError(f"a read-out needs a segment, and {segment} is none of the {len(self.segments)}")
        self.readouts.append(Readout(segment, tuple(label_ids)))

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


def pack(tree: TokenTree, prefix: Sequence[int] = (), device: torch.device | str = "cpu") -> Packed:
    """Lay the tree out in one row, leaving out the leading segments whose tokens are ``prefix``.

    ``prefix`` must be, id for id, the tokens of the tree's first segments, each the child of the one before: anything else
    raises ``ValueError``, because a cache of other tokens would answer another question.
    """
    first = _trunk(tree, prefix)
    starts: list[int] = []  # depth of each segment's first token
    for segment in tree.segments:
        above = segment.parent
        starts.append(0 if above == ROOT else starts[above] + len(tree.segments[above].ids))
    run = tree.segments[first:]
    lengths = torch.tensor([len(s.ids) for s in run])
    ends = lengths.cumsum(0) - 1  # (S,) index in the row of each segment's last token
    n, p = int(lengths.sum()), len(prefix)
    ids = torch.tensor([token for s in run for token in s.ids])
    offset = torch.arange(n) - (ends + 1 - lengths).repeat_interleave(lengths)  # (N,) place within the segment
    positions = torch.tensor(starts[first:]).repeat_interleave(lengths) + offset

    lineage = torch.eye(len(run), dtype=torch.bool)  # (S, S) segment i is j or follows j
    for i, segment in enumerate(run):
        if segment.parent >= first:
            lineage[i] |= lineage[segment.parent - first]
    owner = torch.arange(len(run)).repeat_interleave(lengths)  # (N,) the segment of each token
    visible = lineage[owner][:, owner].tril_()  # ancestors stand earlier in the row, so the triangle cuts own segments only
    on_trunk = torch.tensor([_follows_trunk(tree, first, i) for i in range(first, len(tree.segments))])
    visible = torch.cat([on_trunk[owner][:, None].expand(n, p), visible], dim=1)  # (N, P + N)

    if any(r.segment < first for r in tree.readouts):
        raise ValueError("a read-out lies inside the prefix, whose hidden states are not kept")
    readouts = ends[[r.segment - first for r in tree.readouts]]
    return Packed(
        ids=ids[None].to(device),
        positions=positions[None].to(device),
        key_positions=torch.cat([torch.arange(p), positions]).to(device),
        visible=visible.to(device),
        readouts=readouts.to(device),
        cuts=_cuts(run, first),
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


def _trunk(tree: TokenTree, prefix: Sequence[int]) -> int:
    """Number of leading segments that ``prefix`` covers exactly."""
    covered = first = 0
    while covered < len(prefix):
        if first == len(tree.segments) or tree.segments[first].parent != first - 1:
            raise ValueError("the cached prefix is longer than the trunk of the tree")
        ids = tree.segments[first].ids
        if tuple(prefix[covered : covered + len(ids)]) != ids:
            raise ValueError("the cached prefix holds other tokens than the tree")
        covered, first = covered + len(ids), first + 1
    if first == len(tree.segments):
        raise ValueError("nothing is left to run behind the cached prefix")
    return first


def _follows_trunk(tree: TokenTree, first: int, segment: int) -> bool:
    """Whether ``segment`` descends from the last cached segment (always so when nothing is cached)."""
    while segment >= first:
        segment = tree.segments[segment].parent
    if segment == first - 1:
        return True
    raise ValueError("a segment branches off inside the cached prefix")
