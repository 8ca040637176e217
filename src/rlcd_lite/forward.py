"""The one place where the model runs: a token tree goes in as one packed row, the logits of its read-outs come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from rlcd_lite.attention import BLOCKS, blocks
from rlcd_lite.errors import UserError
from rlcd_lite.models import LoadedModel, base_model
from rlcd_lite.packing import ROOT, Packed, Segment, TokenTree, attention_mask, pack
from rlcd_lite.tokens import Encoder

VOCABULARY_ROWS = 128  # read-outs whose logits over the full vocabulary are held at once


Layers = tuple[tuple[Tensor, Tensor], ...]  # per layer keys and values of P tokens: (1, heads, P, head width)


@dataclass(frozen=True)
class Prefix:
    """Segments that were run and their keys and values.

    Nothing ever writes into them: each use copies them into a cache of its own. A prefix belongs to the weights that made it.
    """

    segments: tuple[Segment, ...]
    layers: Layers


def cut(prefix: Prefix, at: int) -> Layers:
    """Keys and values of one segment: a copy, which does not hold the rest in memory, in one piece: thousands of small ones would
    leave gaps where they are given up."""
    start = sum(len(segment.ids) for segment in prefix.segments[:at])
    end = start + len(prefix.segments[at].ids)
    parts = [part[:, :, start:end] for layer in prefix.layers for part in layer]
    states = torch.stack(parts)  # (2 layers, 1, heads, length, width)
    return tuple(zip(states[0::2], states[1::2], strict=True))


def join(segments: Sequence[Segment], parts: Sequence[Layers]) -> Prefix:
    """Segments that were run, each with its own keys and values, as a prefix; parents are indices into ``segments``.

    A segment may have been run in another row, behind the same path: its keys hold their positions, which are depths in the path.
    """
    layers = ((torch.cat([k for k, _ in layer], 2), torch.cat([v for _, v in layer], 2)) for layer in zip(*parts, strict=True))
    return Prefix(tuple(segments), tuple(layers))


class Forward:
    """A model's decoder and output head.

    When it is built, it runs a small tree, and one of its paths by a plain forward with the full head, and refuses a model for
    which the two differ: a mask that is ignored, a head that is scaled, a NaN in the weights.
    """

    def __init__(self, loaded: LoadedModel, encoder: Encoder) -> None:
        self.model: Any = loaded.model.eval()  # dropout would make two equal calls differ
        self.name = loaded.name
        base = base_model(loaded.model)
        config = base.config.get_text_config()
        self._decoder, self._head = base.get_decoder(), base.get_output_embeddings()
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._windows = _windows(config, self.name)
        self._eager = config._attn_implementation == "eager"
        if config._attn_implementation == "sdpa":
            base.set_attn_implementation(BLOCKS)
        elif config._attn_implementation not in ("eager", BLOCKS):
            raise UserError(f"attention {config._attn_implementation!r} takes no tree-shaped mask: use --attention sdpa or eager.")
        if len(loaded.tokenizer) > len(self._head.weight):
            raise UserError(
                f"model {self.name!r} has a vocabulary of {len(self._head.weight)} tokens and its tokenizer one of "
                f"{len(loaded.tokenizer)}: give it the tokenizer it was trained with."
            )
        self.max_length: int = config.max_position_embeddings
        self.tokens_run = 0  # by all forwards so far
        self.check(encoder)

    @property
    def device(self) -> torch.device:
        device: torch.device = self._head.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._decoder.dtype
        return dtype

    @property
    def attention(self) -> str:
        return "eager" if self._eager else "sdpa"

    def read(
        self, tree: TokenTree, prefix: Prefix | None = None, keep: int = 0
    ) -> tuple[list[Tensor], list[Tensor | None], Prefix | None]:
        """Logits of every read-out of a tree from one forward pass.

        Parameters
        ----------
        prefix : segments that an earlier call ran, which must be the tree's leading ones; they are not run again.
        keep : how many leading segments to return as the next call's prefix.

        Returns
        -------
        logits : one float32 tensor per read-out, in the order of its ``label_ids``; differentiable under grad mode.
        totals : the log-sum-exp of the full vocabulary's logits, a float32 number per read-out that asked for its ``total``.
        kept : the prefix asked for by ``keep``, or None.
        """
        packed = pack(tree, prefix.segments if prefix else (), self.device)
        self.tokens_run += packed.ids.shape[1]
        cache = DynamicCache(prefix.layers if prefix else None) if prefix or keep else None
        cut = {} if self._eager else {"tree_blocks": blocks(packed.visible, packed.cuts)}
        out = self._decoder(
            input_ids=packed.ids,
            position_ids=packed.positions,
            attention_mask=self._masks(packed),
            cache=cache,
            use_cache=cache is not None,
            **cut,
        )
        hidden = out.last_hidden_state[0, packed.readouts]  # (R, d)
        logits: list[Tensor] = [hidden] * len(tree.readouts)
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, readout in enumerate(tree.readouts):
            groups.setdefault(readout.label_ids, []).append(i)
        for label_ids, members in groups.items():
            rows = self._project(hidden[members], torch.tensor(label_ids, device=self.device))  # (members, labels)
            for i, row in zip(members, rows, strict=True):
                logits[i] = row
        wanted = {readout.segment: i for i, readout in enumerate(tree.readouts) if readout.total}  # each place once
        at: dict[int, Tensor] = {}
        for start in range(0, len(wanted), VOCABULARY_ROWS):
            part = list(wanted.items())[start : start + VOCABULARY_ROWS]
            rows = self._project(hidden[[i for _, i in part]], None)  # (VOCABULARY_ROWS, V)
            at |= zip((segment for segment, _ in part), rows.logsumexp(-1), strict=True)
        totals = [at[readout.segment] if readout.total else None for readout in tree.readouts]
        kept = None
        if keep:
            assert cache is not None
            length = sum(len(segment.ids) for segment in tree.segments[:keep])
            layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
            states = tuple((_head_of(layer.keys, length), _head_of(layer.values, length)) for layer in layers)
            kept = Prefix(tuple(tree.segments[:keep]), states)
        return logits, totals, kept

    def _masks(self, packed: Packed) -> Tensor | dict[str, Tensor]:
        additive = self._decoder.dtype if self._eager else None
        masks = {kind: attention_mask(packed, window, additive) for kind, window in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _project(self, hidden: Tensor, label_ids: Tensor | None) -> Tensor:
        """Logits ``(R, labels)`` in float32 from the head's rows of ``label_ids``; of the full vocabulary for None."""
        weight, bias = self._head.weight, getattr(self._head, "bias", None)
        if label_ids is not None:
            weight, bias = weight[label_ids], None if bias is None else bias[label_ids]
        with torch.autocast(hidden.device.type, enabled=False):
            logits = torch.nn.functional.linear(hidden.float(), weight.float(), None if bias is None else bias.float())
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def check(self, encoder: Encoder) -> None:
        """Compare a small tree with a plain forward of its last path and the full head; `UserError` if the numbers differ."""
        (ids,) = encoder.data(["Each answer is read where a forward pass of its own would read it."])
        tree = TokenTree()
        trunk = tree.add(ids[:4], ROOT)
        for part in (ids[4:7], ids[7:9], ids[9:12]):
            tree.read(tree.add(part, trunk), ids)
        last = tree.readouts[-1]  # it shows every fault: other branches that it sees, positions that ran on, a head of another kind
        with torch.inference_mode():
            ours = self.read(tree)[0][-1]
            plain = self.reference(tree.path(last.segment), last.label_ids)
        if not plain.isfinite().all():
            raise UserError(
                f"the weights of model {self.name!r} hold NaN or infinity: its logits are not numbers, so get it again."
            )
        slack = 1e-4 if self._decoder.dtype == torch.float32 else 0.1
        difference = float((ours - plain).abs().max())
        if not difference <= slack * max(1.0, float(plain.abs().max())):  # "not": a NaN in ours alone is a difference too
            raise UserError(
                f"model {self.name!r} can't be scored in one pass: its logits differ by {difference:.2g} from plain forwards "
                f"(its mask or output head is of a kind that is not supported), so use a Llama, Qwen2, Qwen3 or Gemma3 model."
            )

    def reference(self, path: Sequence[int], label_ids: Sequence[int]) -> Tensor:
        """The slow way, for checks: logits of ``label_ids`` after ``path`` by a plain forward with the full head, in float32."""
        ids = torch.tensor([path], device=self.device)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
        return logits[list(label_ids)]


def _head_of(states: Tensor | None, length: int) -> Tensor:
    """The first ``length`` positions of keys or values (1, heads, N, width)."""
    assert states is not None
    return states[:, :, :length]


def _windows(config: PreTrainedConfig, name: str) -> dict[str, int | None]:
    """The kinds of attention layer of a model, and the sliding window of each in tokens (None: it sees everything)."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise UserError(f"model {name!r} has layers of the kind {min(unknown)!r}: use a Llama, Qwen2, Qwen3 or Gemma3 model.")
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
