"""One forward pass answers every field: the engine turns schemas and texts into a token tree and its logits into answers.

`score_batch` keeps the graph for training, `score_runs` streams; `decide`, `decide_many` and the two sessions turn scores into
decisions, joined over several orders of the options if the engine has more than one. Only the final of a tournament and the later
rounds of ``permutations="auto"`` take another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel
from torch import Tensor

from rlcd_lite import ranks
from rlcd_lite.answers import decision
from rlcd_lite.calibration_file import Calibration, digest
from rlcd_lite.candidates import confidence_labels, option_labels
from rlcd_lite.contract import Contract, Prior, PriorKey, agree
from rlcd_lite.decisions import Decision
from rlcd_lite.errors import TooLong, UserError, shorten
from rlcd_lite.folding import Orders, all_settled, field_scores, finals, tournaments
from rlcd_lite.forward import Forward, Prefix
from rlcd_lite.models import LoadedModel, load_model, weights_hash
from rlcd_lite.orders import AUTO_ORDERS, AUTO_ROUNDS
from rlcd_lite.packing import TokenTree
from rlcd_lite.priors import CONTENT_FREE, default_kind
from rlcd_lite.prompts import Prompt
from rlcd_lite.questions import questions
from rlcd_lite.schema import Field, Schema
from rlcd_lite.scores import Scores
from rlcd_lite.settings import (
    DEFAULT_MODEL,
    MAX_ORDERS,
    PROMPT_VERSIONS,
    Attention,
    Confidence,
    Consistency,
    Device,
    Dtype,
    Grid,
    Layout,
    Listing,
    Permutations,
    PriorKind,
    Readout,
    Scoring,
)
from rlcd_lite.tokens import Encoder

CPU_BUDGET = 512  # tokens of a packed row in `decide_many`: the fastest of 256, 512, 1024 and 2048 (docs/architecture.md)
ACCELERATOR_BUDGET = 4096  # short rows leave an accelerator idle; chosen without a measurement
PROMPTS_KEPT = 1024  # of 7 KB for 4 options to 150 KB for 255

SchemaLike = Schema | Mapping[str, Any] | type[BaseModel]
Trace = Callable[[dict[str, Any]], None]
Ask = tuple[Sequence[Prompt], tuple[int, ...]]  # a text from `Prompt.encode`, and all prompts that ask about it


class DecisionEngine:
    """A model that answers schemas over texts.

    ``prior``: what is subtracted from scores: ``none``, ``content-free``, or a measured `Prior`. None: what the model was trained
    with; for one that was not trained, ``content-free`` where options are scored verbatim by their ``sum`` or ``mean``.
    ``permutations``: orders in which a list of options is shown, whose answers are joined; ``auto`` takes up to `AUTO_ORDERS`, as
    many as it needs until more would hardly change the answer (`orders.settled`). ``calibration``: of a schema's fields, applied to
    every decision. ``consistency``: ``enforce`` decides given the schema's rules, ``measure`` says which of them are broken.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        contract: Contract | None = None,
        *,
        prior: PriorKind | Prior | None = None,
        permutations: Permutations = 1,
        calibration: Calibration | None = None,
        consistency: Consistency = "enforce",
    ) -> None:
        self.model: Any = loaded.model
        self.name = loaded.name
        self.contract = contract or loaded.contract or Contract()
        if prior is not None and self.contract.prior.logits:
            raise UserError(f"model {self.name!r} was trained with a prior of its own: leave --prior out.")
        if permutations != "auto" and not 1 <= permutations <= MAX_ORDERS:
            raise UserError(f"permutations are {permutations}: use 1 to {MAX_ORDERS}, or auto.")
        self.permutations, self.prior = permutations, prior
        self.calibration, self.consistency = calibration, consistency
        self.encoder = Encoder(loaded.tokenizer)
        self.forward = Forward(loaded, self.encoder)
        self._prompts: dict[tuple[Schema, Layout, int, int], Prompt] = {}  # the last used stands last
        self._content_free: WeakKeyDictionary[Prompt, list[Tensor]] = WeakKeyDictionary()
        labels = self.labels()
        for label, token in self.contract.labels.items():
            if labels.get(label) != token:
                raise UserError(
                    f"the adapter of model {self.name!r} was trained with the token {token} for label {label!r}, and the tokenizer "
                    f"has {labels.get(label)}: give it the tokenizer it was trained with."
                )
        if calibration is not None:
            calibration.check_model(self.made_by())

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
        scoring: Scoring | None = None,
        readout: Readout | None = None,
        options: Listing | None = None,
        prior: PriorKind | Prior | None = None,
        permutations: Permutations = 1,
        calibration: Calibration | None = None,
        consistency: Consistency = "enforce",
    ) -> DecisionEngine:
        """An engine for a hub id, a local folder, a GGUF file or ``smollm2``; see `rlcd_lite.models.load_model`.

        ``layout`` to ``options``: as in `Contract`; None: as the model was trained, else the defaults there. Raises `UserError`
        for one that differs from what the model was trained with.
        """
        loaded = load_model(str(name), None if adapter is None else Path(adapter), device, dtype, attention)
        asked = {"layout": layout, "confidence": confidence, "grid": grid}
        given = asked | {"scoring": scoring, "readout": readout, "options": options}
        contract = agree(loaded.contract, str(adapter or name), given)
        return cls(loaded, contract, prior=prior, permutations=permutations, calibration=calibration, consistency=consistency)

    # ---- what is asked ----

    def prompt(self, schema: SchemaLike, layout: Layout | None = None, order: int = 0, count: int = 1) -> Prompt:
        """What the first pass asks about a schema, in one of ``count`` orders of the options; kept until many others were made."""
        key = (Schema.of(schema), layout or self.contract.layout, order, count)
        prompt = self._prompts.pop(key, None)
        if prompt is None:
            asked = [q for field in key[0].fields for q in questions(field, self.contract, order, count)]
            prompt = Prompt(self.encoder, asked, replace(self.contract, layout=key[1]), self.forward.max_length)
        self._prompts[key] = prompt
        if len(self._prompts) > PROMPTS_KEPT:
            del self._prompts[next(iter(self._prompts))]
        return prompt

    def prompts(self, schema: SchemaLike, layout: Layout | None = None) -> list[Prompt]:
        """The prompts of all orders in which a schema's options are shown; a single one if no list is shown."""
        fields = Schema.of(schema).fields
        if not any(question.listed for field in fields for question in questions(field, self.contract)):
            return [self.prompt(schema, layout)]
        count = AUTO_ORDERS if self.permutations == "auto" else self.permutations
        return [self.prompt(schema, layout, order, count) for order in range(count)]

    def first(self, schema: SchemaLike) -> list[Prompt]:
        """The prompts of the first pass."""
        return self.prompts(schema)[: AUTO_ROUNDS[0] if self.permutations == "auto" else None]

    def encode(self, schema: SchemaLike, context: str, layout: Layout | None = None) -> tuple[int, ...]:
        """Token ids of a text that fits into the window with every prompt of the schema; `UserError` for one that does not."""
        return max(self.prompts(schema, layout), key=lambda prompt: prompt.around).encode(context)

    def passes(self, schema: Schema) -> bool:
        """Whether a schema may take more than one pass."""
        return self.permutations == "auto" or bool(self._tournaments(schema))

    def _tournaments(self, schema: Schema) -> list[Field]:
        found = tournaments(schema, self.contract)
        if found and self.permutations == "auto":
            raise UserError(f"field {shorten(found[0].name)} is decided by a tournament: give --permutations a number.")
        if found and isinstance(self.prior, Prior):
            raise UserError(
                f"field {shorten(found[0].name)} is decided by a tournament, for whose final no prior can be measured: "
                f"use --prior content-free or none."
            )
        return found

    def labels(self) -> dict[str, int]:
        """Token ids of the first labels of options and of confidences: what an adapter's contract keeps of the tokenizer."""
        stem = '"answer": "'
        found = [option_labels(self.encoder, stem, 26), confidence_labels(self.encoder, stem, 5)]
        return {label: token for part in found for label, token in zip(part.labels, part.ids, strict=True)}

    def made_by(self) -> dict[str, Any]:
        """What the scores of a text depend on: the model and the way it is asked."""
        prior = self.contract.prior if self.contract.prior.logits else self.prior
        return {
            "model": self.name,
            "weights": weights_hash(self.model),
            "dtype": str(self.forward.dtype).removeprefix("torch."),
            "labels": digest(self.labels()),
            **self.contract.settings(),
            "prompt_version": PROMPT_VERSIONS[self.contract.layout],
            "permutations": self.permutations,
            "prior": digest(prior.to_dict()) if isinstance(prior, Prior) else prior,
        }

    # ---- scores ----

    def score(self, schema: SchemaLike, contexts: Sequence[str]) -> list[Scores]:
        """Scores of every field over every text from one packed forward, differentiable under grad mode."""
        return self.score_batch([(schema, context) for context in contexts])

    def score_batch(self, batch: Sequence[tuple[SchemaLike, str]]) -> list[Scores]:
        """Scores for texts that have a schema each, from one packed forward: what training uses, differentiable under grad mode.

        Options are shown in the schema's own order. Raises `UserError` for a tournament, which takes two passes.
        """
        asks: list[Ask] = []
        for schema, context in batch:
            if found := self._tournaments(Schema.of(schema)):
                raise UserError(f"field {shorten(found[0].name)} has a tournament, which takes two passes: use another --scoring.")
            prompt = self.prompt(schema)
            asks.append(([prompt], prompt.encode(context)))
        answers, _, _ = self._run(asks)
        return [field_scores(Schema.of(schema), self.contract, orders) for (schema, _), orders in zip(batch, answers, strict=True)]

    def score_runs(
        self,
        runs: Iterable[tuple[SchemaLike, Iterable[str]]],
        *,
        coverage: bool = False,
        budget: int | None = None,
        trace: Trace | None = None,
        spread: bool = False,
    ) -> Iterator[Scores]:
        """Logits of every field over runs of texts that have a schema each, on the CPU, without a graph: a stream in input order.

        Texts share packed rows of up to ``budget`` tokens (a longer text has a row of its own; None: `CPU_BUDGET` or
        `ACCELERATOR_BUDGET`), and the part of the prompt that all of them share is run once. ``trace`` is given one record per
        read-out, in order. Raises `UserError` for a text that does not fit and for a logit that is not a number.

        ``spread``: share the rows out among the processes of the run (`rlcd_lite.ranks`). Each of them must make the same calls
        with the same texts, each is given all scores, and the scores are those of one process, to the bit on equal machines.
        """
        budget = budget or self.budget
        processes, own = (ranks.world(), ranks.rank()) if spread else (1, 0)
        for batches in ranks.rounds(self._batches(runs, budget), processes):
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

    @property
    def budget(self) -> int:
        """Tokens of a packed row that runs fast."""
        return CPU_BUDGET if self.forward.device.type == "cpu" else ACCELERATOR_BUDGET

    def _batches(self, runs: Iterable[tuple[SchemaLike, Iterable[str]]], budget: int) -> Iterator[_Batch]:
        done = 0
        for schema, contexts in runs:
            session = SchemaSession(self, schema)
            for texts, alone in self._filled(session.schema, contexts, budget):
                yield _Batch(session, texts, done, alone)
                done += len(texts)

    def _filled(self, schema: Schema, contexts: Iterable[str], budget: int) -> Iterator[tuple[list[tuple[int, ...]], bool]]:
        """Encoded texts in runs that fill a packed row of ``budget`` tokens, in order, at least one text a run; and whether a run
        is the only one.
        """
        prompts = self.first(schema)
        tree = TokenTree()
        shared = len({prompt.plant(tree) for prompt in prompts})  # beginnings that a text stands behind
        roots = sum(len(segment.ids) for segment in tree.segments)
        for prompt in prompts:
            prompt.grow(tree, (0,))
        asked = sum(len(segment.ids) for segment in tree.segments) - roots - shared
        batch: list[tuple[int, ...]] = []
        used = roots
        alone = True
        for context in contexts:
            ids = self.encode(schema, context)
            cost = shared * len(ids) + asked
            if batch and used + cost > budget:
                alone = False
                yield batch, alone
                batch, used = [], roots
            batch.append(ids)
            used += cost
        if batch:
            yield batch, alone

    def _answer(self, batch: _Batch, coverage: bool, traced: bool) -> tuple[list[Scores], list[dict[str, Any]]] | UserError:
        """Scores of a batch and the records of its trace, or what is wrong: another process may have to say it."""
        if not batch.alone:
            batch.session.run_shared()
        records: list[dict[str, Any]] = []
        try:
            scores = batch.session.score(batch.texts, coverage, records if traced else None)
        except UserError as error:
            return error
        records.sort(key=lambda record: record["context"])  # the passes of a tournament follow each other
        return scores, [record | {"context": record["context"] + batch.first} for record in records]

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
        """Answer ``schema`` over each text: the scores of `score_runs`, read as decisions; the numbers of `decide` to rounding."""
        if isinstance(contexts, str):
            raise UserError(f"contexts are the single text {shorten(contexts)}: give a list of texts, or use decide.")
        schema = Schema.of(schema)
        for scores in self.score_runs([(schema, contexts)], coverage=coverage, budget=budget, trace=trace, spread=spread):
            yield self.decision(schema, scores)

    def decide(self, schema: SchemaLike, context: str, *, coverage: bool = False, trace: Trace | None = None) -> Decision:
        """Answer every field of ``schema`` over one text in one forward pass."""
        (decision,) = self.decide_many(schema, [context], coverage=coverage, trace=trace)
        return decision

    def decision(self, schema: Schema, scores: Scores) -> Decision:
        """Scores of a text as an answer that names what was done to it."""
        priors = [self.prior_name(field) for field in schema.fields]
        return decision(schema, scores, priors, self.calibration, self.consistency)

    def session(self, context: str) -> ContextSession:
        """Hold a text, so that each further schema costs its questions alone (context-first layout)."""
        if self.calibration is not None and self.contract.layout != "context-first":
            raise UserError(
                "the calibration is for the layout schema-first, and a session holds its text first: fit one for context-first."
            )
        return ContextSession(self, context)

    def schema_session(self, schema: SchemaLike) -> SchemaSession:
        """Hold a schema, so that each further text costs itself and the read-outs alone."""
        return SchemaSession(self, schema)

    # ---- passes ----

    @torch.inference_mode()
    def ask(
        self,
        asked: Sequence[tuple[Schema, tuple[int, ...]]],
        layout: Layout | None = None,
        *,
        prefix: Prefix | None = None,
        keep: Literal["nothing", "questions", "texts"] = "nothing",
        coverage: bool = False,
        trace: list[dict[str, Any]] | None = None,
    ) -> tuple[list[Scores], Prefix | None]:
        """Scores of schemas over texts from `encode`, on the CPU; and what the next call need not run again: what all texts share,
        or the texts too.

        What two prompts have in common is run once: a text that several schemas are asked about, where it comes before the
        questions. Later passes about it run no token of it again.
        """
        prompts = [self.prompts(schema, layout) for schema, _ in asked]
        twice = [i for i, (schema, _) in enumerate(asked) if self._tournaments(schema)]
        upto = AUTO_ROUNDS if self.permutations == "auto" else (MAX_ORDERS,)
        more = twice or max(map(len, prompts)) > upto[0]
        if keep == "nothing" and more and prompts[0][0].contract.layout == "context-first":
            keep = "texts"
        answers: list[Orders] = [[] for _ in asked]
        open_, kept = list(range(len(asked))), prefix
        for start, end in pairwise((0, *upto)):
            asks: list[Ask] = [(prompts[i][start:end], asked[i][1]) for i in open_]
            found, left, records = self._run(asks, coverage, kept, keep, trace is not None)
            kept = left or kept
            for i, orders in zip(open_, found, strict=True):
                answers[i] += orders
            if trace is not None:
                trace += [r | {"context": open_[r["context"]], "order": start + r["order"]} for r in records]
            open_ = [
                i
                for i in open_
                if end < len(prompts[i]) and not all_settled(asked[i][0], self.contract, answers[i], len(prompts[i]))
            ]
            if not open_:
                break
        won: dict[int, Orders] = {}
        if twice:
            asks = [(self.prompts(finals(asked[i][0], self.contract, answers[i]), layout), asked[i][1]) for i in twice]
            for i, (last, ids) in zip(twice, asks, strict=True):
                if max(prompt.around for prompt in last) + len(ids) > self.forward.max_length:
                    raise TooLong(
                        f"field {shorten(self._tournaments(asked[i][0])[0].name)} has a final that does not fit into the model's "
                        f"window: shorten the options' descriptions or the text."
                    )
            found, _, records = self._run(asks, coverage, kept, "nothing", trace is not None)
            won = dict(zip(twice, found, strict=True))
            if trace is not None:
                trace += [r | {"context": twice[r["context"]]} for r in records]
        scores = [field_scores(schema, self.contract, answers[i], won.get(i)) for i, (schema, _) in enumerate(asked)]
        bad = [
            f.name
            for (schema, _), row in zip(asked, scores, strict=True)
            for f, s in zip(schema.fields, row, strict=True)
            if not s.finite
        ]
        if bad:
            raise UserError(
                f"field {shorten(bad[0])} has a logit that is not a number (NaN or infinity in the weights of model {self.name!r}, "
                f"or an overflow): get the model again, or use --dtype float32."
            )
        return scores, kept

    def _run(
        self,
        asks: Sequence[Ask],
        coverage: bool = False,
        prefix: Prefix | None = None,
        keep: Literal["nothing", "questions", "texts"] = "nothing",
        traced: bool = False,
        raw: bool = False,
    ) -> tuple[list[Orders], Prefix | None, list[dict[str, Any]]]:
        """One pass: the answers of every prompt over every text, less the prior unless ``raw``; the prefix asked for by ``keep``;
        and the records of the trace."""
        tree = TokenTree()
        for segment in prefix.segments if prefix else ():
            tree.add(segment.ids, segment.parent)
        for prompts, ids in asks:
            for prompt in prompts:
                prompt.plant(tree, ids if keep == "texts" else ())
        kept = 0 if keep == "nothing" else len(tree.segments)
        for prompts, ids in asks:
            for prompt in prompts:
                prompt.grow(tree, ids, coverage)
        logits, totals, left = self.forward.read(tree, prefix, kept)
        if not torch.is_grad_enabled():  # one transfer for all read-outs
            logits = list(torch.cat(logits).cpu().split([len(row) for row in logits]))
            known = [total for total in totals if total is not None]
            on_cpu = iter(torch.stack(known).cpu().unbind() if known else ())
            totals = [None if total is None else next(on_cpu) for total in totals]
        rows = iter(zip(logits, totals, strict=True))
        found: list[Orders] = []
        records: list[dict[str, Any]] = []
        at = 0
        for number, (prompts, _) in enumerate(asks):
            found.append([])
            for order, prompt in enumerate(prompts):
                priors = [None] * len(prompt.branches) if raw else self._priors(prompt)
                answers = prompt.answers(rows, coverage)
                found[-1].append([answer.less(prior) for answer, prior in zip(answers, priors, strict=True)])
                if traced:
                    for what in prompt.describe(priors, coverage):
                        path = list(tree.path(tree.readouts[at].segment))
                        records.append({"context": number, "order": order, **what, "path_ids": path, "logits": logits[at].tolist()})
                        at += 1
        return found, left, records

    # ---- priors ----

    def measure_prior(self, pairs: Iterable[tuple[SchemaLike, str]], budget: int | None = None) -> Prior:
        """Mean scores of every question over texts that need no labels, in all orders that the engine shows: labels' by their place
        in the list, verbatim options' by option. ``budget`` as in `score_runs`."""
        found: dict[PriorKey, list[Tensor]] = {}
        count = 0
        runs = ((schema, [text for _, text in run]) for schema, run in groupby(pairs, key=lambda pair: Schema.of(pair[0])))
        for batch in self._batches(runs, budget or self.budget):
            if tournaments := self._tournaments(batch.session.schema):
                raise UserError(f"field {shorten(tournaments[0].name)} has a tournament, which no prior can be measured for.")
            batch.session.run_shared()
            prompts = self.prompts(batch.session.schema)
            with torch.no_grad():
                answers, _, _ = self._run([(prompts, ids) for ids in batch.texts], prefix=batch.session.prefix, raw=True)
            count += len(batch.texts)
            for orders in answers:
                for prompt, order in zip(prompts, orders, strict=True):
                    for branch, answer in zip(prompt.branches, order, strict=True):
                        q = branch.question
                        places = _sorted(q.field) if q.verbatim else list(q.order)
                        found.setdefault(Prior.key(q.field, q.verbatim), []).append(answer.choice[places].float().cpu())
        return Prior({key: tuple(torch.stack(rows).mean(0).tolist()) for key, rows in found.items()}, count)

    def _prior_kind(self, verbatim: bool) -> PriorKind | Prior:
        if self.contract.prior.logits:
            return self.contract.prior
        if self.prior is not None:
            return self.prior
        return default_kind(self.contract, verbatim)

    def prior_name(self, field: Field) -> str | None:
        """What is subtracted from a field's scores, in words."""
        asked = questions(field, self.contract)
        kind = self._prior_kind(asked[0].verbatim)
        if isinstance(kind, Prior):
            known = any(Prior.key(q.field, q.verbatim) in kind.logits for q in asked)
            return f"mean over {kind.texts} texts" if known else None
        return None if kind == "none" else kind

    def _priors(self, prompt: Prompt) -> list[Tensor | None]:
        """What is subtracted from the scores (K,) of each question, in its field's order of options."""
        return [self._prior(prompt, i) for i in range(len(prompt.branches))]

    def _prior(self, prompt: Prompt, at: int) -> Tensor | None:
        question = prompt.branches[at].question
        kind = self._prior_kind(question.verbatim)
        if kind == "none":
            return None
        if kind == "content-free":
            if prompt not in self._content_free:
                with torch.no_grad():
                    (((answers,),), _, _) = self._run([([prompt], prompt.encode(CONTENT_FREE))], raw=True)
                self._content_free[prompt] = [answer.choice for answer in answers]
            return self._content_free[prompt][at]
        logits = kind.logits.get(Prior.key(question.field, question.verbatim))
        if logits is None:
            if kind is self.contract.prior:  # the model is asked something else than it was trained for
                return None
            raise UserError(
                f"the prior was not measured for field {shorten(question.field.name)} with its {len(question.order)} options: "
                f"measure it with this schema, or use content-free or none."
            )
        places = _sorted(question.field) if question.verbatim else list(question.order)
        return torch.tensor([logits[places.index(option)] for option in range(len(places))])


class SchemaSession:
    """One schema over many texts: the part of the prompts that they share is run once, by the first call, and kept."""

    def __init__(self, engine: DecisionEngine, schema: SchemaLike) -> None:
        self.schema = Schema.of(schema)
        self._engine = engine
        self.prefix: Prefix | None = None

    def decide(self, context: str, *, coverage: bool = False) -> Decision:
        (scores,) = self.score([self._engine.encode(self.schema, context)], coverage)
        return self._engine.decision(self.schema, scores)

    def run_shared(self) -> None:
        """Run what the texts share by itself, unless that is done: then no text's numbers depend on which was the first."""
        if self.prefix is None:
            tree = TokenTree()
            for prompt in self._engine.first(self.schema):
                prompt.plant(tree)
            with torch.inference_mode():
                _, _, self.prefix = self._engine.forward.read(tree, keep=len(tree.segments))

    def score(
        self, texts: Sequence[tuple[int, ...]], coverage: bool = False, trace: list[dict[str, Any]] | None = None
    ) -> list[Scores]:
        """Scores of texts from `DecisionEngine.encode` in one packed row; ``trace`` takes a record per read-out."""
        if self._engine.passes(self.schema):
            self.run_shared()
        keep: Literal["nothing", "questions"] = "nothing" if self.prefix else "questions"
        scores, kept = self._engine.ask(
            [(self.schema, ids) for ids in texts], prefix=self.prefix, keep=keep, coverage=coverage, trace=trace
        )
        self.prefix = self.prefix or kept
        return scores


class ContextSession:
    """Many schemas over one text: the text is run by the first call and kept, always in the context-first layout."""

    def __init__(self, engine: DecisionEngine, context: str) -> None:
        self.context = context
        self._engine = engine
        self.prefix: Prefix | None = None

    def decide(self, schema: SchemaLike, *, coverage: bool = False) -> Decision:
        schema = Schema.of(schema)
        ids = self._engine.encode(schema, self.context, "context-first")
        keep: Literal["nothing", "texts"] = "nothing" if self.prefix else "texts"
        (scores,), kept = self._engine.ask([(schema, ids)], "context-first", prefix=self.prefix, keep=keep, coverage=coverage)
        self.prefix = self.prefix or kept
        return self._engine.decision(schema, scores)


def _sorted(field: Field) -> list[int]:
    """Option indices by the options' texts."""
    return sorted(range(len(field.options)), key=lambda i: field.options[i].text)


@dataclass(frozen=True)
class _Batch:
    """Encoded texts that share a packed row. ``first``: number of the first of them; ``alone``: no other batch has the session."""

    session: SchemaSession
    texts: list[tuple[int, ...]]
    first: int
    alone: bool
