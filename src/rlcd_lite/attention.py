"""Attention over a packed row in blocks: queries that see the same part of the row are computed against that part alone.

In a row of N tokens most of the N² pairs are masked: a text sees what all texts share and itself. SDPA computes the masked pairs
too. Here the row is cut into runs of queries, and each run meets only the keys that at least one of its queries sees. How the row
is cut changes the speed and nothing else, because the keys of a run are read off the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

BLOCKS = "rlcd_blocks"  # the name under which transformers knows it


@dataclass(frozen=True)
class Block:
    """Queries ``start`` to ``end`` of the row, and the indices (M,) of the keys that they see."""

    start: int
    end: int
    keys: Tensor


def blocks(visible: Tensor, cuts: Sequence[int]) -> list[Block]:
    """The blocks of a row with the mask ``visible`` (N, P + N), cut before the queries ``cuts``: ascending, none of them 0."""
    edges = [0, *cuts, len(visible)]
    return [Block(start, end, visible[start:end].any(0).nonzero()[:, 0]) for start, end in pairwise(edges)]


def _forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree_blocks: Sequence[Block] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA block by block; query (1, heads, N, width), key and value (1, key heads, P + N, width) → (1, N, heads, width)."""
    if tree_blocks is None or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    dtype = query.dtype
    if query.device.type == "cpu" and dtype != torch.float32:  # torch's CPU kernel is slower in bfloat16 than in float32
        query, key, value = query.float(), key.float(), value.float()
    parts = []
    for block in tree_blocks:
        rows = attention_mask[:, :, block.start : block.end].index_select(3, block.keys)
        seen = key.index_select(2, block.keys), value.index_select(2, block.keys)
        parts.append(sdpa_attention_forward(module, query[:, :, block.start : block.end], *seen, rows, **kwargs)[0])
    return torch.cat(parts, dim=1).to(dtype), None


AttentionInterface.register(BLOCKS, _forward)
AttentionMaskInterface.register(BLOCKS, sdpa_mask)
