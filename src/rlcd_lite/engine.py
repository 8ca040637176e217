"""One forward pass answers every field: the engine runs a packed token tree and reads the label logits.

`DecisionEngine.read` is the only place where the model runs. `score` puts a schema and texts through it and keeps the graph for
training; `decide`, `decide_many` and the two sessions turn scores into decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from rlcd_lite import ranks
from rlcd_lite.attention import BLOCKS, blocks
from rlcd_lite.candidates import Candidates, confidence_labels, option_labels
from rlcd_lite.contract import Contract, agree
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.models import LoadedModel, base_model, load_model
from rlcd_lite.packing import ROOT, Packed, TokenTree, attention_mask, pack
from rlcd_lite.prompts import Prompt
from rlcd_lite.schema import Decision, Field, FieldDecision, Schema
from rlcd_lite.settings import DEFAULT_MODEL, Attention, Confidence, Device, Dtype, Grid, Layout
from rlcd_lite.tokens import Encoder

CPU_BUDGET = 512  # tokens of a packed row in `decide_many`: the fastest of 256, 512, 1024 and 2048 (docs/architecture.md)
ACCELERATOR_BUDGET = 4096  # short rows leave an accelerator idle; chosen without a measurement
PROMPTS_KEPT = 64

SchemaLike = Schema | Mapping[str, Any] | type[BaseModel]
Trace = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class FieldScores:
    """Float32 logits of one field over one text: ``choice`` (K,) in option order, less the contract's prior if it has one, and
    ``stated`` (C,) over the confidence ``grid``; (K, C) if it is conditioned, one row per option that may be chosen.

    ``coverage``: share in [0, 1] of the full vocabulary's probability that lies on the choice labels, if it was asked for.
    """

    choice: Tensor
    stated: Tensor
    grid: tuple[float, ...]
    coverage: float | None = None

    def stated_in(self, option: int) -> Tensor:
        """Logits (C,) of the confidence that is stated in an option."""
        return self.stated if self.stated.dim() == 1 else self.stated[option]

    @property
    def finite(self) -> bool:
        """Whether every logit, and the coverage if there is one, is a number."""
        known = self.coverage is None or math.isfinite(self.coverage)
        return known and bool(self.choice.isfinite().all() and self.stated.isfinite().all())

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: NumPy sends the numbers, where torch would send the whole of what they are a view of."""
        return _received, (self.choice.numpy(), self.stated.numpy(), self.grid, self.coverage)


def _received(choice: Any, stated: Any, grid: tuple[float, ...], coverage: float | None) -> FieldScores:
    return FieldScores(torch.from_numpy(choice), torch.from_numpy(stated), grid, coverage)


Scores = tuple[FieldScores, ...]  # one text's, in the order of the schema's fields


@dataclass(frozen=True)
class Prefix:
    """Tokens that were run and their keys and values: per layer two tensors of shape (1, heads, P, head width).

    Nothing ever writes into them: each use copies them into a cache of its own. A prefix belongs to the weights that made it.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]


class DecisionEngine:
    """A model that answers schemas over texts.

    When it is built, the engine runs a small tree, and one of its paths by a plain forward with the full head, and refuses a model
    for which the two differ: a mask that is ignored, a head that is scaled, a NaN in the weights.
    """

    def __init__(self, loaded: LoadedModel, contract: Contract | None = None) -> None:
        self.model, self.name = loaded.model.eval(), loaded.name  # dropout would make two equal calls differ
        self.contract = contract or loaded.contract or Contract()
        self.encoder = Encoder(loaded.tokenizer)
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
        self._prompts: dict[tuple[Schema, Layout], Prompt] = {}
        labels = self.labels()
        for label, token in self.contract.labels.items():
            if labels.get(label) != token:
                raise UserError(
                    f"the adapter of model {self.name!r} was trained with the token {token} for label {label!r}, and the tokenizer "
                    f"has {labels.get(label)}: give it the tokenizer it was trained with."
                )
        self.check()

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT_MODEL,
        *,
        adapter: str | Path | None = None,
        device: Device = "auto",
        dtype: Dtype = "auto",
        attention: Attention = "auto",
        layout: Layout | None = None,
        confidence: Confidence | None = None,
        grid: Grid | None = None,
    ) -> DecisionEngine:
        """An engine for a hub id, a local folder, a GGUF file or ``smollm2``; see `rlcd_lite.models.load_model`.

        ``layout``, ``confidence``, ``grid``: as in `Contract`; None: as the model was trained, else the defaults there. Raises
        `UserError` for one that differs from what the model was trained with.
        """
        loaded = load_model(str(name), None if adapter is None else Path(adapter), device, dtype, attention)
        return cls(loaded, agree(loaded.contract, str(adapter or name), layout, confidence, grid))

    # ---- the one place where the model runs ----

    def read(
        self, tree: TokenTree, prefix: Prefix | None = None, keep: int = 0, coverage: bool = False
    ) -> tuple[list[Tensor], list[float], Prefix | None]:
        """Label logits of every read-out of a tree from one forward pass, and on request what else the pass knows.

        Parameters
        ----------
        prefix : tokens that an earlier call ran, which must be the tree's leading segments; they are not run again.
        keep : how many leading segments (each the only child of the one before) to return as the next call's prefix.
        coverage : also the full vocabulary's probability mass on each read-out's labels.

        Returns
        -------
        logits : one float32 tensor per read-out, in the order of its ``label_ids``; differentiable under grad mode.
        coverages : one number in [0, 1] per read-out, or an empty list.
        kept : the prefix asked for by ``keep``, or None.
        """
        device = self._head.weight.device
        packed = pack(tree, prefix.ids if prefix else (), device)
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
            rows = self._project(hidden[members], torch.tensor(label_ids, device=device))  # (members, labels)
            for i, row in zip(members, rows, strict=True):
                logits[i] = row
        coverages: list[float] = []
        if coverage:
            total = self._project(hidden, None).logsumexp(-1)  # (R,)
            coverages = [float((row.logsumexp(-1) - all_).exp()) for row, all_ in zip(logits, total, strict=True)]
        kept = None
        if keep:
            assert cache is not None
            ids = tuple(token for segment in tree.segments[:keep] for token in segment.ids)
            layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
            kept = Prefix(ids, tuple((_head_of(layer.keys, len(ids)), _head_of(layer.values, len(ids))) for layer in layers))
        return logits, coverages, kept

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

    def check(self) -> None:
        """Compare a small tree with a plain forward of its last path and the full head; `UserError` if the numbers differ."""
        (ids,) = self.encoder.data(["Each answer is read where a forward pass of its own would read it."])
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
        ids = torch.tensor([path], device=self._head.weight.device)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
        return logits[list(label_ids)]

    # ---- scores and decisions ----

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

    def prompt(self, schema: SchemaLike, layout: Layout | None = None) -> Prompt:
        """The schema's prompt for this model; made once, and kept until many others were made."""
        key = (Schema.of(schema), layout or self.contract.layout)
        if key not in self._prompts:
            if len(self._prompts) >= PROMPTS_KEPT:
                del self._prompts[next(iter(self._prompts))]
            self._prompts[key] = Prompt(self.encoder, key[0], replace(self.contract, layout=key[1]), self.max_length)
        return self._prompts[key]

    def labels(self) -> dict[str, int]:
        """Token ids of the first labels of options and of confidences: what an adapter's contract keeps of the tokenizer."""
        stem = '"answer": "'
        found = [option_labels(self.encoder, stem, 26), confidence_labels(self.encoder, stem, 5)]
        return {label: token for part in found for label, token in zip(part.labels, part.ids, strict=True)}

    def score(self, schema: SchemaLike, contexts: Sequence[str]) -> list[Scores]:
        """Logits of every field over every text from one packed forward, differentiable under grad mode."""
        return self.score_batch([(schema, context) for context in contexts])

    def score_batch(self, batch: Sequence[tuple[SchemaLike, str]]) -> list[Scores]:
        """Logits for texts that have a schema each, from one packed forward: what training uses, differentiable under grad mode.

        Texts of one schema share its part of the prompt, wherever they stand in the batch.
        """
        members: dict[Schema, list[int]] = {}
        for i, (schema, _) in enumerate(batch):
            members.setdefault(Schema.of(schema), []).append(i)
        tree = TokenTree()
        for schema, places in members.items():
            prompt = self.prompt(schema)
            prompt.tree([prompt.encode(batch[i][1]) for i in places], tree)
        logits, _, _ = self.read(tree)
        found: dict[int, Scores] = {}
        for schema, places in members.items():
            prompt = self.prompt(schema)
            used = len(places) * sum(map(prompt.readouts, prompt.branches))
            found |= zip(places, self._by_text(prompt, logits[:used], []), strict=True)
            logits = logits[used:]
        return [found[i] for i in range(len(batch))]

    def prior(self, field: Field) -> tuple[float, ...] | None:
        """What the contract subtracts from a field's choice logits."""
        return self.contract.prior.get(Contract.key(field))

    def _by_text(self, prompt: Prompt, logits: Sequence[Tensor], coverages: Sequence[float]) -> list[Scores]:
        """Scores per text and field: read-outs come text by text, field by field, the choice before what is stated in it."""
        fields: list[FieldScores] = []
        at = 0
        while at < len(logits):
            branch = prompt.branches[len(fields) % len(prompt.branches)]
            choice, *stated = logits[at : at + prompt.readouts(branch)]
            if (prior := self.prior(prompt.schema.fields[len(fields) % len(prompt.branches)])) is not None:
                choice = choice - choice.new_tensor(prior)
            rows = torch.stack(stated) if prompt.conditioned else stated[0]  # (K, C) or (C,)
            fields.append(FieldScores(choice, rows, branch.grid, coverages[at] if coverages else None))
            at += prompt.readouts(branch)
        count = len(prompt.branches)
        return [tuple(fields[i : i + count]) for i in range(0, len(fields), count)]

    def score_many(
        self,
        schema: SchemaLike,
        contexts: Iterable[str],
        *,
        coverage: bool = False,
        budget: int | None = None,
        trace: Trace | None = None,
        spread: bool = False,
    ) -> Iterator[Scores]:
        """Logits of every field over each text, on the CPU and without a graph: a stream in input order.

        Texts share packed rows of up to ``budget`` tokens (a longer text has a row of its own; None: `CPU_BUDGET` or
        `ACCELERATOR_BUDGET`), and the part of the prompt that all of them share is run once. ``trace`` is given one record per
        read-out, in order. Raises `UserError` for a text that does not fit and for a logit that is not a number.

        ``spread``: share the rows out among the processes of the run (`rlcd_lite.ranks`). Each of them must make the same calls
        with the same texts, each is given all scores, and the scores are those of one process, to the bit on equal machines.
        """
        if isinstance(contexts, str):
            raise UserError(f"contexts are the single text {shorten(contexts)}: give a list of texts, or use decide.")
        return self.score_runs([(schema, contexts)], coverage=coverage, budget=budget, trace=trace, spread=spread)

    def score_runs(
        self,
        runs: Iterable[tuple[SchemaLike, Iterable[str]]],
        *,
        coverage: bool = False,
        budget: int | None = None,
        trace: Trace | None = None,
        spread: bool = False,
    ) -> Iterator[Scores]:
        """`score_many` over runs of texts that have a schema each: one stream, whose texts are counted through."""
        if budget is None:
            budget = CPU_BUDGET if self._head.weight.device.type == "cpu" else ACCELERATOR_BUDGET
        processes, own = (ranks.world(), ranks.rank()) if spread else (1, 0)
        for batches in _rounds(self._batches(runs, budget), processes):
            answer = self._answer(batches[own], coverage, trace is not None) if own < len(batches) else None
            answers = ranks.gather(answer) if spread else [answer]
            for given in answers[: len(batches)]:
                if isinstance(given, UserError):
                    raise given
                assert given is not None
                scores, records = given
                if trace is not None:
                    for record in records:
                        trace(record)
                yield from scores

    def _batches(self, runs: Iterable[tuple[SchemaLike, Iterable[str]]], budget: int) -> Iterator[_Batch]:
        done = 0
        for schema, contexts in runs:
            session = SchemaSession(self, schema)
            for texts, alone in _filled(session.prompt, contexts, budget):
                yield _Batch(session, texts, done, alone)
                done += len(texts)

    def _answer(self, batch: _Batch, coverage: bool, traced: bool) -> tuple[list[Scores], list[dict[str, Any]]] | UserError:
        """Scores of a batch and the records of its trace, or what is wrong: another process may have to say it."""
        if not batch.alone:
            batch.session.run_shared()
        try:
            tree, scores = batch.session.score(batch.texts, coverage)
        except UserError as error:
            return error
        return scores, list(self._trace_records(batch.session.prompt, tree, scores, batch.first)) if traced else []

    def decide_many(
        self,
        schema: SchemaLike,
        contexts: Iterable[str],
        *,
        coverage: bool = False,
        budget: int | None = None,
        trace: Trace | None = None,
        spread: bool = False,
    ) -> Iterator[Decision]:
        """Answer ``schema`` over each text: the decisions of `score_many`, with the numbers of `decide` to rounding."""
        schema = Schema.of(schema)
        for scores in self.score_many(schema, contexts, coverage=coverage, budget=budget, trace=trace, spread=spread):
            yield _decision(schema, scores)

    def decide(self, schema: SchemaLike, context: str, *, coverage: bool = False, trace: Trace | None = None) -> Decision:
        """Answer every field of ``schema`` over one text in one forward pass."""
        (decision,) = self.decide_many(schema, [context], coverage=coverage, trace=trace)
        return decision

    def session(self, context: str) -> ContextSession:
        """Hold a text, so that each further schema costs its questions alone (context-first layout)."""
        return ContextSession(self, context)

    def schema_session(self, schema: SchemaLike) -> SchemaSession:
        """Hold a schema, so that each further text costs itself and the read-outs alone."""
        return SchemaSession(self, schema)

    @torch.inference_mode()
    def _run(
        self, prompt: Prompt, texts: Sequence[tuple[int, ...]], prefix: Prefix | None, keep: int, coverage: bool
    ) -> tuple[TokenTree, list[Scores], Prefix | None]:
        """The tree of encoded texts, its scores on the CPU, and the prefix asked for by ``keep``."""
        tree = prompt.tree(texts)
        logits, coverages, kept = self.read(tree, prefix, keep, coverage)
        flat = torch.cat(logits).cpu()  # one transfer for all read-outs
        scores = self._by_text(prompt, flat.split([len(row) for row in logits]), coverages)
        bad = [f.name for row in scores for f, s in zip(prompt.schema.fields, row, strict=True) if not s.finite]
        if bad:
            raise UserError(
                f"field {shorten(bad[0])} has a logit that is not a number (NaN or infinity in the weights of model {self.name!r}, "
                f"or an overflow): get the model again, or use --dtype float32."
            )
        return tree, scores, kept

    def _trace_records(self, prompt: Prompt, tree: TokenTree, scores: Sequence[Scores], first: int) -> Iterator[dict[str, Any]]:
        """One record per read-out with the full token path to it, so that a plain forward can check the logits (less the prior)."""
        readouts = iter(tree.readouts)
        for number, text in enumerate(scores, start=first):
            for field, branch, score in zip(prompt.schema.fields, prompt.branches, text, strict=True):
                options = [o.value for o in field.options]
                rows: list[tuple[dict[str, Any], Candidates, list[Any], Tensor]]
                prior = self.prior(field)
                rows = [({"kind": "choice"} | ({"prior": list(prior)} if prior else {}), branch.choice, options, score.choice)]
                if prompt.conditioned:
                    rows += [
                        ({"kind": "stated", "answer": option}, branch.stated, list(branch.grid), row)
                        for option, row in zip(options, score.stated, strict=True)
                    ]
                else:
                    rows.append(({"kind": "stated"}, branch.stated, list(branch.grid), score.stated))
                for what, candidates, meanings, logits in rows:
                    yield {
                        "context": number,
                        "field": field.name,
                        **what,
                        "path_ids": list(tree.path(next(readouts).segment)),
                        "label_ids": list(candidates.ids),
                        "labels": list(candidates.labels),
                        "options": meanings,
                        "logits": logits.tolist(),
                    }


class SchemaSession:
    """One schema over many texts: the part of the prompt that they share is run once, by the first call, and kept."""

    def __init__(self, engine: DecisionEngine, schema: SchemaLike) -> None:
        self.schema = Schema.of(schema)
        self.prompt = engine.prompt(self.schema)
        self._engine = engine
        self._prefix: Prefix | None = None

    def decide(self, context: str, *, coverage: bool = False) -> Decision:
        _, (scores,) = self.score([self.prompt.encode(context)], coverage)
        return _decision(self.schema, scores)

    def run_shared(self) -> None:
        """Run what the texts share by itself, unless that is done: then no text's numbers depend on which was the first."""
        if self._prefix is None:
            with torch.inference_mode():
                _, _, self._prefix = self._engine.read(self.prompt.tree([]), keep=1)

    def score(self, texts: Sequence[tuple[int, ...]], coverage: bool = False) -> tuple[TokenTree, list[Scores]]:
        """Scores of texts from `Prompt.encode` in one packed row, and its tree."""
        keep = 0 if self._prefix else 1  # what the texts share
        tree, scores, kept = self._engine._run(self.prompt, texts, self._prefix, keep, coverage)
        self._prefix = self._prefix or kept
        return tree, scores


class ContextSession:
    """Many schemas over one text: the text is run by the first call and kept, always in the context-first layout."""

    def __init__(self, engine: DecisionEngine, context: str) -> None:
        self.context = context
        self._engine = engine
        self._prefix: Prefix | None = None

    def decide(self, schema: SchemaLike, *, coverage: bool = False) -> Decision:
        schema = Schema.of(schema)
        prompt = self._engine.prompt(schema, "context-first")
        keep = 0 if self._prefix else 2  # what texts share, and this text
        _, (scores,), kept = self._engine._run(prompt, [prompt.encode(self.context)], self._prefix, keep, coverage)
        self._prefix = self._prefix or kept
        return _decision(schema, scores)


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


@dataclass(frozen=True)
class _Batch:
    """Encoded texts that share a packed row. ``first``: number of the first of them; ``alone``: no other batch has the session."""

    session: SchemaSession
    texts: list[tuple[int, ...]]
    first: int
    alone: bool


def _rounds(batches: Iterable[_Batch], size: int) -> Iterator[list[_Batch]]:
    """``size`` batches at a time; what stands before an error comes before it, as it does one by one."""
    waiting: list[_Batch] = []
    try:
        for batch in batches:
            waiting.append(batch)
            if len(waiting) == size:
                yield waiting
                waiting = []
    except UserError:
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def _filled(prompt: Prompt, contexts: Iterable[str], budget: int) -> Iterator[tuple[list[tuple[int, ...]], bool]]:
    """Encoded texts in runs that fill a packed row of ``budget`` tokens, in order, at least one text a run; and whether a run is
    the only one.
    """
    batch: list[tuple[int, ...]] = []
    used = prompt.shared
    alone = True
    for context in contexts:
        ids = prompt.encode(context)
        cost = len(ids) + prompt.asked
        if batch and used + cost > budget:
            alone = False
            yield batch, alone
            batch, used = [], prompt.shared
        batch.append(ids)
        used += cost
    if batch:
        yield batch, alone


def _decision(schema: Schema, scores: Scores) -> Decision:
    fields = []
    for field, score in zip(schema.fields, scores, strict=True):
        # float64, so that the probabilities sum to 1 as closely as a JSON number can say
        probabilities = score.choice.double().softmax(0).tolist()
        stated = score.stated_in(int(score.choice.argmax())).double().softmax(0).tolist()
        fields.append(
            FieldDecision(
                field,
                tuple(probabilities),
                stated=score.grid[stated.index(max(stated))],
                stated_mean=sum(p * c for p, c in zip(stated, score.grid, strict=True)),
                coverage=score.coverage,
            )
        )
    return Decision(schema, tuple(fields))
