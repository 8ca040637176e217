"""The loop: examples → one packed forward → a loss per decision → one update; with logs, evaluations, checkpoints and resume.

The loss of a step is the mean over its decisions (every field of every example of every process counts once), however they are
split over forwards and processes. Whatever is random follows from (seed, step, place in the batch): so micro-batches and processes
change nothing but rounding, and a resumed run draws what the uninterrupted one drew.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlcd_lite import ranks, rules
from rlcd_lite.checkpoints import Log, checkpoints, load_checkpoint, save_adapter, save_checkpoint
from rlcd_lite.contract import Contract, Prior
from rlcd_lite.datasets import Dataset, Example
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.evaluate import held_out
from rlcd_lite.health import symptoms
from rlcd_lite.objectives import (
    Policy,
    Rollouts,
    action_values,
    advantages,
    choice_cross_entropy,
    divergence,
    draw,
    entropy,
    expected_loss,
    log_probs,
    order_divergence,
    rollout_rewards,
    sampled_loss,
    supervised_loss,
)
from rlcd_lite.orders import other_order, reordered, shuffled
from rlcd_lite.questions import scoring
from rlcd_lite.recipe import PRIOR_CONTEXTS, Recipe
from rlcd_lite.schema import Field, Schema
from rlcd_lite.scores import FieldScores

# Means over the decisions of a step; what a phase does not have is null in the log.
STATISTICS = (
    "loss",
    "reward_mean",
    "zero_variance_group_frac",
    "zero_variance_choice_frac",
    "zero_variance_stated_frac",
    "stated_conf_mean",
    "softmax_conf_mean",
    "acc",
    "acc_greedy",
    "choice_entropy",
    "choice_grad_mult",
    "kl",
    "clip_frac",
    "order_kl",
    "rules_broken",
)


@dataclass(frozen=True)
class Shown:
    """An example as the model is shown it, and its place in the step's batch over all processes."""

    example: Example
    schema: Schema
    place: int


@dataclass
class State:
    """Where a run stands: what a checkpoint keeps beside weights and moments."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0


class Trainer:
    """Trains the LoRA adapter of an engine's model on a data set, in a run's folder; see `Recipe` for what may be chosen."""

    def __init__(
        self,
        engine: DecisionEngine,
        recipe: Recipe,
        accelerator: Accelerator,
        train: Dataset,
        held: tuple[Dataset, Dataset],
        folder: Path,
        warn: Callable[[str], None],
    ) -> None:
        asked = [branch.question for branch in engine.prompt(train[0].schema).branches]
        if (recipe.shuffle_options or recipe.w_order) and not all(question.listed for question in asked):
            flag = "--shuffle-options" if recipe.shuffle_options else "--w-order"
            raise UserError(f"{flag} is about the order of a list, and these options are not listed: leave it out, or list them.")
        if recipe.w_rules and not all(rules.system(schema) for schema in {example.schema for example in train}):
            raise UserError(
                "--w-rules is about rules between fields, and this schema has none: give it rules, or leave the flag out."
            )
        engine.prior = "none"  # but for the contract's, none stays right while the weights change
        self.engine, self.recipe, self.accelerator, self.folder = engine, recipe, accelerator, folder
        self.train, self.held, self.warn = train, held, warn
        self.state = State()
        self.model: Any = engine.model  # a PEFT model: its type is known at run time only
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
        self._warned: set[str] = set()
        self.metrics: Log
        self.evals: Log

    # ---- the run ----

    def run(self, advance: Callable[[str], None], stopping: Callable[[], bool]) -> None:
        """Train from where the state stands to the last step; ``stopping`` is asked after every step, and saves if it says so."""
        recipe = self.recipe
        if ranks.is_main():
            kept = self.state.step or -1  # a run that starts anew evaluates its step 0 anew
            self.metrics, self.evals = (Log(self.folder / name, kept) for name in ("metrics.jsonl", "evals.jsonl"))
        if self.state.step == 0:
            if recipe.prior_correction:
                self.engine.contract = replace(self.engine.contract, prior=self.measure_prior())
            if recipe.eval_every:
                self._evaluate()
        while self.state.step < recipe.steps and not self._has_enough():
            try:
                row = self.step(self.state.step + 1)
            except FloatingPointError as error:
                if recipe.inner_epochs == 1:  # else updates from the same draws may have been made already
                    self.save()
                saved = checkpoints(self.folder)[-1:]
                where = f"the last checkpoint is {str(saved[0])!r}" if saved else "there is no checkpoint yet"
                raise UserError(f"{error}: lower --lr, or check the data; {where}.") from None
            self.state.step += 1
            if ranks.is_main():
                self.metrics.append(row)
            self.accelerator.log({k: v for k, v in row.items() if isinstance(v, float)}, step=self.state.step)
            advance(_line(row))
            last = self.state.step == recipe.steps
            if recipe.eval_every and (self.state.step % recipe.eval_every == 0 or last):
                self._evaluate()
            if ranks.is_main():
                self._watch()
            if self.state.step % recipe.checkpoint_every == 0 or last or self._has_enough():
                self.save()
            if any(ranks.gather(stopping())):  # a signal reaches the processes at different steps, or one of them
                self.save()
                raise KeyboardInterrupt
        if ranks.is_main():
            save_adapter(self.folder / "adapter", self.model, self.contract())
        ranks.wait()

    def resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        if found := checkpoints(self.folder):
            self.engine.contract, state = load_checkpoint(found[-1], self.model, self.optimizer)
            self.state = State(**state)
        if len(steps := set(ranks.gather(self.state.step))) > 1:
            raise UserError(
                f"the processes find checkpoints of the steps {', '.join(map(str, sorted(steps)))} in {str(self.folder)!r}: "
                f"put runs/ on a disk that all machines share."
            )

    def save(self) -> None:
        """Write a checkpoint of the state as it is, unless it is there already."""
        name = f"step-{self.state.step:06d}"
        if ranks.is_main() and name not in [path.name for path in checkpoints(self.folder)]:
            state = {"best": self.state.best, "best_step": self.state.best_step, "without_better": self.state.without_better}
            save_checkpoint(self.folder, self.state.step, self.model, self.optimizer, self.contract(), state)
        ranks.wait()

    def contract(self) -> Contract:
        return replace(self.engine.contract, labels=self.engine.labels())

    def _has_enough(self) -> bool:
        return self.recipe.patience is not None and self.state.without_better >= self.recipe.patience

    def _evaluate(self) -> None:
        """A row of ``evals.jsonl``, and the adapter kept as the best if it is."""
        with self.accelerator.autocast():
            row = {"step": self.state.step, **held_out(self.engine, *self.held)}
        row = ranks.gather(row)[0]  # machines of another kind round differently, and all must judge alike
        value = row[self.recipe.best_metric]
        sign = -1 if self.recipe.best_metric == "acc" else 1  # of all others, less is better
        better = self.state.best is None or sign * value < sign * self.state.best
        if better:
            self.state.best, self.state.best_step, self.state.without_better = value, self.state.step, 0
        else:
            self.state.without_better += 1
        if ranks.is_main():
            self.evals.append(row)
            if better and self.state.step:
                save_adapter(self.folder / "adapter-best", self.model, self.contract())
        self.accelerator.log({f"held-out/{k}": v for k, v in row.items() if isinstance(v, float)}, step=self.state.step)

    def _watch(self) -> None:
        for name, sentence in symptoms(self.metrics.rows, self.evals.rows).items():
            if name not in self._warned:
                self._warned.add(name)
                self.warn(f"step {self.state.step}: {sentence}")

    # ---- one step ----

    def step(self, step: int) -> dict[str, Any]:
        """One batch, ``inner_epochs`` updates; returns the row of ``metrics.jsonl``. `FloatingPointError` before a bad update."""
        recipe, started, tokens = self.recipe, time.perf_counter(), self.engine.forward.tokens_run
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.lr_at(step)
        batch = self.batch(step)
        rollouts: dict[tuple[int, str], Rollouts] = {}
        epochs = recipe.inner_epochs if recipe.phase(step) == "rl" else 1
        for _ in range(epochs):
            means, grad_norm = self._update(step, batch, rollouts)
        seconds = time.perf_counter() - started
        (run,) = ranks.total([torch.tensor([float(self.engine.forward.tokens_run - tokens)], device=self.engine.forward.device)])
        return {
            "step": step,
            "phase": recipe.phase(step),
            **means,
            "frac_reward_zero_std": means["zero_variance_group_frac"],  # TRL's name for it
            "grad_norm": grad_norm,
            "lr": recipe.lr_at(step),
            "tokens": int(run),
            "tokens_per_s": round(float(run) / seconds, 1),
            "seconds": round(seconds, 3),
        }

    def _update(
        self, step: int, batch: Sequence[Shown], rollouts: dict[tuple[int, str], Rollouts]
    ) -> tuple[dict[str, float | None], float]:
        """Clipped gradient of the step's mean loss, and the update. Fills ``rollouts`` in the first epoch, reads them later."""
        recipe, device = self.recipe, self.engine.forward.device
        decisions = sum(len(self.train[self.index(step, place)].schema.fields) for place in range(recipe.batch * ranks.world()))
        self.optimizer.zero_grad()
        sums = torch.zeros(2, len(STATISTICS), device=device)  # of each statistic, and of how many decisions have it
        size = recipe.micro_batch or recipe.batch

        def backward() -> list[str]:
            bad = []
            for start in range(0, len(batch), size):
                loss, part, found = self._loss(step, batch[start : start + size], rollouts)
                bad.extend(found)
                sums.add_(part)
                (loss / decisions).backward()
            return bad

        if bad := [text for part in ranks.agree(backward) for text in part]:
            raise FloatingPointError(f"step {step}: the loss of {bad[0]} is not a number")
        touched = [p for p in self.parameters if p.grad is not None]
        *grads, sums = ranks.total([*(p.grad for p in touched if p.grad is not None), sums])
        for parameter, grad in zip(touched, grads, strict=True):
            parameter.grad = grad
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, recipe.max_grad_norm))
        if not torch.tensor(norm).isfinite():
            raise FloatingPointError(f"step {step}: the gradient is not a number")
        self.optimizer.step()
        totals, counts = sums.tolist()
        means = {name: total / n if n else None for name, total, n in zip(STATISTICS, totals, counts, strict=True)}
        return means, norm

    def _loss(
        self, step: int, batch: Sequence[Shown], rollouts: dict[tuple[int, str], Rollouts]
    ) -> tuple[Tensor, Tensor, list[str]]:
        """Sum of the losses of a micro-batch's decisions, the sums of their statistics, and which are not finite, in words."""
        pairs = [(shown.schema, shown.example.context) for shown in batch]
        twins = [self._twin(step, shown) for shown in batch] if self.recipe.w_order else []
        with self.accelerator.autocast():
            scores = self.engine.score_batch(
                pairs + [(schema, context) for schema, (_, context) in zip(twins, pairs, strict=False)]
            )
        reference = self._base_scores(pairs) if self.recipe.beta_kl and self.recipe.phase(step) == "rl" else None
        losses: list[Tensor] = []
        statistics: list[list[float | Tensor]] = []
        names: list[str] = []
        for i, shown in enumerate(batch):
            generator = torch.Generator().manual_seed(_seed("rollouts", self.recipe.seed, step, shown.place))
            kept = _kept(shown, scores[i]) if self.recipe.w_rules else None
            for j, field in enumerate(shown.schema.fields):
                base = None if reference is None else reference[i][j]
                label, key = field.index(shown.example.labels[field.name]), (shown.place, field.name)
                if self.recipe.draws(step) and key not in rollouts:
                    rollouts[key] = draw(Policy.of(scores[i][j], self.recipe.rollout_temp), self.recipe.rollouts, generator)
                loss, found = self._decision(self.recipe.phase(step), scores[i][j], label, base, rollouts.get(key))
                if twins:
                    apart = order_divergence(*_same_options(field, scores[i][j], twins[i].fields[j], scores[len(batch) + i][j]))
                    loss = loss + self.recipe.w_order * apart
                    found |= {"order_kl": apart.detach(), "loss": loss.detach()}
                if kept is not None:  # the same for each decision of the text, so that their mean is that over texts
                    loss = loss - self.recipe.w_rules * kept
                    found |= {"rules_broken": -torch.expm1(kept.detach()), "loss": loss.detach()}
                losses.append(loss)
                statistics.append([found.get(name, float("nan")) for name in STATISTICS])
                names.append(f"field {shorten(field.name)} of example {shorten(shown.example.id)}")
        each = torch.stack(losses)
        table = torch.tensor([[float(v) for v in row] for row in statistics], device=each.device)
        known = ~table.isnan()
        bad = [name for name, ok in zip(names, each.detach().isfinite().tolist(), strict=True) if not ok]
        return each.sum(), torch.stack([table.nan_to_num(0.0).sum(0), known.float().sum(0)]), bad

    def _base_scores(self, pairs: Sequence[tuple[Schema, str]]) -> list[tuple[FieldScores, ...]]:
        """Scores of the model without its adapter."""
        with torch.no_grad(), self.model.disable_adapter(), self.accelerator.autocast():
            return self.engine.score_batch(pairs)

    def _decision(
        self,
        phase: str,
        scores: FieldScores,
        label: int,
        base: FieldScores | None,
        rollouts: Rollouts | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss of one decision, and its statistics."""
        recipe, reward = self.recipe, self.recipe.paid
        reported = Policy.of(scores)
        policy = Policy.of(scores, recipe.rollout_temp) if phase == "rl" else reported
        found = _describe(reported, label)
        if phase == "warm-up":
            loss = choice_cross_entropy(policy, label)
        elif phase != "rl":
            loss = supervised_loss(policy, label, recipe.objective, recipe.w_correct, recipe.w_calibration)
        elif rollouts is None:
            loss = expected_loss(policy, reported.choice.exp(), label, reward)
            found["reward_mean"] = -loss.detach()  # what the rewards of rollouts average to
        else:
            correct = (rollouts.choice == label).float()  # all that is seen of the label, and so enough for bandit feedback
            loss, more = self._grpo(policy, reported, rollouts, correct)
            found |= more
        if phase == "rl":
            value, calibration = action_values(policy, label, reward)
            found["choice_grad_mult"] = reward.w if reward.decoupled else _right_over_wrong(policy, value + calibration, label)
            if base is not None:
                kl = divergence(policy, Policy.of(base, recipe.rollout_temp))
                found["kl"] = kl.detach()
                loss = loss + recipe.beta_kl * kl
            if recipe.entropy:
                loss = loss - recipe.entropy * entropy(policy)
        found["loss"] = loss.detach()
        return loss, found

    def _grpo(self, policy: Policy, reported: Policy, rollouts: Rollouts, correct: Tensor) -> tuple[Tensor, dict[str, Any]]:
        recipe, reward = self.recipe, self.recipe.paid
        worth, calibration = rollout_rewards(policy, reported.choice.exp(), rollouts, correct, reward)
        parts = (worth, calibration) if reward.decoupled else (worth + calibration,) * 2
        paid = [advantages(part, recipe.baseline, recipe.normalise_std) for part in parts]
        with torch.no_grad():
            now = log_probs(policy, rollouts.choice, rollouts.stated)
            ratios = torch.cat([now[0] - rollouts.choice_log_prob, now[1] - rollouts.stated_log_prob]).exp()
            found = {
                "reward_mean": (worth + calibration).mean(),
                "zero_variance_group_frac": _equal(worth + calibration),
                "zero_variance_choice_frac": _equal(parts[0]),
                "zero_variance_stated_frac": _equal(parts[1]),
                "acc": correct.mean(),
                "clip_frac": ((ratios - 1).abs() > recipe.clip).float().mean(),
            }
        return sampled_loss(policy, rollouts, paid[0], paid[1], recipe.clip), found

    # ---- data ----

    def index(self, step: int, place: int) -> int:
        """Which training example stands at a place of a step's batch over all processes."""
        position = (step - 1) * self.recipe.batch * ranks.world() + place
        epoch, within = divmod(position, len(self.train))
        return _epoch_order(len(self.train), self.recipe.seed, epoch)[within]

    def batch(self, step: int) -> list[Shown]:
        """This process's examples of a step."""
        first = ranks.rank() * self.recipe.batch
        return [self._shown(step, place) for place in range(first, first + self.recipe.batch)]

    def _shown(self, step: int, place: int) -> Shown:
        example = self.train[self.index(step, place)]
        schema = example.schema
        if self.recipe.shuffle_options:
            schema = shuffled(schema, random.Random(_seed("options", self.recipe.seed, step, place)))
        return Shown(example, schema, place)

    def _twin(self, step: int, shown: Shown) -> Schema:
        """The same example's options in another random order."""
        dice = random.Random(_seed("twin", self.recipe.seed, step, shown.place))
        return Schema(tuple(reordered(f, other_order(f, dice)) for f in shown.schema.fields))

    def measure_prior(self) -> Prior:
        """The mean scores of every question over unlabelled training texts."""
        if self.train.schema is None and any(
            scoring(f, self.engine.contract) == "verbatim" for e in self.train.examples for f in e.schema.fields
        ):
            raise UserError(
                f"--prior-correction is about options, and every example of data set {self.train.name!r} has options of its own: "
                f"leave it out, or use --scoring labels."
            )
        pairs = []
        for number, example in enumerate(self.train.examples[:PRIOR_CONTEXTS]):
            schema = example.schema
            if self.recipe.shuffle_options:
                schema = shuffled(schema, random.Random(_seed("options", self.recipe.seed, 0, number)))
            pairs.append((schema, example.context))
        with self.accelerator.autocast():
            return self.engine.measure_prior(pairs)


@lru_cache(maxsize=2)
def _epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    order = list(range(n))
    random.Random(_seed("order", seed, epoch)).shuffle(order)
    return order


def _seed(*parts: object) -> int:
    """A seed that follows from its parts, the same on every machine."""
    return random.Random(json.dumps(parts)).getrandbits(63)


def _same_options(field: Field, scores: FieldScores, twin: Field, others: FieldScores) -> tuple[Tensor, Tensor]:
    """Log-probabilities (K,) of a field and of its twin, whose options have another order, both in the field's."""
    back = [twin.index(option.value) for option in field.options]
    return scores.choice.log_softmax(-1), others.choice[back].log_softmax(-1)


def _kept(shown: Shown, scores: Sequence[FieldScores]) -> Tensor:
    """log P(all rules of the example's schema hold); the options may have been shown in another order."""
    schema = shown.example.schema
    log_p = [
        found.choice[[there.index(option.value) for option in field.options]].float().log_softmax(-1)
        for field, there, found in zip(schema.fields, shown.schema.fields, scores, strict=True)
    ]
    system = rules.system(schema)
    assert system is not None
    return rules.log_satisfied(system, log_p).to(log_p[0])


@torch.no_grad()
def _describe(reported: Policy, label: int) -> dict[str, Any]:
    """What every phase logs of a decision, at temperature 1."""
    pi = reported.choice.exp()
    stated = (reported.stated.exp() * reported.grid).sum(-1)  # () or (K,)
    return {
        "acc": pi[label],
        "acc_greedy": float(int(pi.argmax()) == label),
        "softmax_conf_mean": pi.max(),
        "stated_conf_mean": (pi * stated).sum(),
        "choice_entropy": -(pi * reported.choice).sum(),
    }


@torch.no_grad()
def _right_over_wrong(policy: Policy, value: Tensor, label: int) -> Tensor:
    """Value of the right option less that of the wrong ones, weighted by their probability: `Reward.choice_multiplier`."""
    wrong = policy.choice.exp().clone()
    wrong[label] = 0.0
    wrong = wrong + 1e-12 * (torch.arange(len(wrong), device=wrong.device) != label)  # all of it may be on the right one
    return value[label] - (wrong * value).sum() / wrong.sum()


def _equal(rewards: Tensor) -> float:
    return float(bool(torch.isclose(rewards, rewards[0]).all()))  # to brier, right at 0.9 is wrong at 0.1, but for rounding


def _line(row: dict[str, Any]) -> str:
    """A step for a person."""
    shown = [f"acc {row['acc']:.2f}", f"softmax {row['softmax_conf_mean']:.2f}", f"stated {row['stated_conf_mean']:.2f}"]
    if row["reward_mean"] is not None:
        shown.insert(0, f"reward {row['reward_mean']:.2f}")
    shown += [f"entropy {row['choice_entropy']:.2f}", f"grad {row['grad_norm']:.2f}", f"{row['seconds']:.1f} s a step"]
    return f"{row['phase']}: " + ", ".join(shown)
