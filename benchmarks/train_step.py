"""What a training step costs here and elsewhere: one step on the same tickets, taken in three ways, side by side in one run.

    uv run --all-extras --group bench python benchmarks/train_step.py

Every way trains the same LoRA (r = 16, all linear layers) of the same model on the same batch of synthetic tickets, with G rollouts
a ticket, temperature 1 and the reward rlcr on every field:

- shared tree: `Trainer.step` as it is, one packed forward in which the tickets share the schema's part of the prompt.
- padded rows: the same trainer and loss without that sharing. Each ticket is a row with the schema's part and all its branches,
  padded on the right to the longest, and the batch is one forward with a dense mask per row. Its scores are checked to be those of
  the shared tree, to 1e-4 in float32, before anything is timed.
- generated JSON: `GRPOTrainer` of TRL, which writes the answers by sampling (`generate` of transformers, all rollouts at once, no
  vLLM), parses the JSON and is paid the sum of the same reward over the fields. The prompt is token for token that of the other
  two, up to the opening brace. A completion may be as long as the whole JSON of all fields with their confidences and an end token,
  and no longer. The loss pass takes one ticket's rollouts a forward, without gradient checkpointing (about 11 GB for G = 8). There
  is no reference model (beta 0) and one update for each draw. With --precision bf16, TRL samples in float32 all the same.

The ways take turns in rounds of --steps steps each, so that a drift of the machine's speed meets all of them; each takes one step
more beforehand, which is not counted. Tables give the median over all counted steps and their range, one table for --batch tickets
and one for 4, each with the minutes that 200 such steps take.

Tokens are what is run forward, padding included, counted in the same way for all: by a hook on the model's embedding. For generated
JSON these are the prompts of all rollouts, one token per rollout and sampled place, and prompts and completions once more in the
loss pass. A backward pass adds nothing to the count, so tokens/s compares ways of unlike mix only roughly: seconds are what counts.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import huggingface_hub.constants
import torch
import tyro
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlcd_lite.attention import Block
from rlcd_lite.datasets import Dataset, Example, load
from rlcd_lite.engine import DecisionEngine, SchemaLike
from rlcd_lite.folding import field_scores
from rlcd_lite.models import load_model, trainable
from rlcd_lite.packing import attention_mask, pack
from rlcd_lite.recipe import Recipe
from rlcd_lite.schema import CONFIDENCE_SUFFIX, Schema
from rlcd_lite.scores import Scores
from rlcd_lite.trainer import Trainer

SHARED, PADDED, GENERATED = "shared tree", "padded rows", "generated JSON"
SMALL_BATCH, RUN_STEPS = 4, 200  # the run whose minutes are wanted; a second table has this batch


@dataclass
class Args:
    model: str = "smollm2"
    """Model to train."""
    batch: int = 8
    """Tickets of a step."""
    rollouts: int = 8
    """G: answers drawn for each ticket."""
    rounds: int = 3
    """Turns of every way."""
    steps: int = 2
    """Steps of every way in its turn."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Weights are float32; bf16 computes under autocast."""
    skip_trl: bool = False
    """Leave generated JSON out: it needs TRL, and most of the time."""


class PaddedEngine(DecisionEngine):
    """An engine that scores a batch as padded rows, one per text, which share nothing."""

    def score_batch(self, batch: Sequence[tuple[SchemaLike, str]]) -> list[Scores]:
        forward, device = self.forward, self.forward.device
        prompts = [self.prompt(schema) for schema, _ in batch]
        trees = [prompt.tree([prompt.encode(text)]) for prompt, (_, text) in zip(prompts, batch, strict=True)]
        rows = [pack(tree, device=device) for tree in trees]
        width = max(row.ids.shape[1] for row in rows)
        spare = [width - row.ids.shape[1] for row in rows]
        ids = torch.cat([pad(row.ids, (0, n)) for row, n in zip(rows, spare, strict=True)])  # (B, N)
        positions = torch.cat([pad(row.positions, (0, n)) for row, n in zip(rows, spare, strict=True)])
        itself = torch.eye(width, dtype=torch.bool, device=device)  # softmax over nothing is NaN: padding sees itself
        masks = {
            kind: itself | torch.cat([pad(attention_mask(row, window), (0, n, 0, n)) for row, n in zip(rows, spare, strict=True)])
            for kind, window in forward._windows.items()
        }  # (B, 1, N, N)
        forward.tokens_run += ids.numel()
        whole = {}
        if device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # a block: the shared tree's detour around a slow kernel
            whole = {"tree_blocks": [Block(0, width, torch.arange(width))]}
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        out = forward._decoder(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, **whole)
        hidden = torch.cat([states[row.readouts] for states, row in zip(out.last_hidden_state, rows, strict=True)])  # (R, d)
        labels = [readout.label_ids for tree in trees for readout in tree.readouts]
        logits: list[Tensor] = [hidden] * len(labels)
        for label_ids in set(labels):
            members = [i for i, other in enumerate(labels) if other == label_ids]
            found = forward._project(hidden[members], torch.tensor(label_ids, device=device))
            for i, row_logits in zip(members, found, strict=True):
                logits[i] = row_logits
        rest = iter([(row, None) for row in logits])
        return [
            field_scores(Schema.of(schema), self.contract, [prompt.answers(rest)])
            for (schema, _), prompt in zip(batch, prompts, strict=True)
        ]


class Meter:
    """Seconds and forward tokens of each counted step of one way."""

    def __init__(self, name: str, model: PreTrainedModel) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self._run = self._tokens_before = 0
        self._started = 0.0
        model.get_input_embeddings().register_forward_hook(self._see)

    def _see(self, module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._run += inputs[0].numel()

    def start(self) -> None:
        self._tokens_before, self._started = self._run, _now()

    def stop(self, counted: bool = True) -> None:
        seconds = _now() - self._started
        print(f"{self.name}: {seconds:.1f} s{'' if counted else ', not counted'}", file=sys.stderr, flush=True)
        if counted:
            self.seconds.append(seconds)
            self.tokens.append(self._run - self._tokens_before)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Turns(TrainerCallback):
    """Measures the steps of TRL's loop, and lets the other ways take theirs between its turns."""

    def __init__(self, meter: Meter, steps: int, others: Callable[[], None]) -> None:
        self.meter, self.steps, self.others = meter, steps, others

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.meter.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        done = state.global_step - 1  # the first is not counted
        self.meter.stop(counted=done > 0)
        if done % self.steps == 0 and state.global_step < state.max_steps:
            self.others()


class Written:
    """The task as TRL is given it: prompts in words, how long an answer may be, and what one is paid."""

    def __init__(self, engine: DecisionEngine, recipe: Recipe, data: Dataset) -> None:
        self.engine, self.reward, self.data = engine, recipe.paid, data
        self.lengths: list[int] = []  # of the completions
        self.whole = 0  # completions of which every field is paid
        self.prompts = [self._words(example) for example in data]
        answers = [self._answer(example) for example in data]
        self.longest = 1 + max(map(len, engine.encoder.data(answers)))  # with the token that ends the turn

    def _words(self, example: Example) -> str:
        prompt, tokenizer = self.engine.prompt(example.schema), self.engine.encoder.tokenizer
        ids = prompt.tree([prompt.encode(example.context)]).path(1)
        words = str(tokenizer.decode(list(ids)))
        assert tuple(tokenizer(words).input_ids) == ids, "the prompt in words has other tokens"
        return words

    def _answer(self, example: Example) -> str:
        """The JSON behind its opening brace; all labels are one token, so every answer is as long."""
        branches = zip(example.schema.fields, self.engine.prompt(example.schema).branches, strict=True)
        keys = [f'"{f.name}": "{b.choice.names[0]}", "{f.name}{CONFIDENCE_SUFFIX}": "{b.stated.labels[0]}"' for f, b in branches]
        return ", ".join(keys) + "}"

    def rewards(self, completions: list[str], completion_ids: list[list[int]], example: list[int], **_: Any) -> list[float]:
        """TRL's reward function; ``example`` is a column of its data set."""
        self.lengths += map(len, completion_ids)
        return [self._paid(self.data[i], completion) for i, completion in zip(example, completions, strict=True)]

    def _paid(self, example: Example, completion: str) -> float:
        """The sum of the fields' rewards; 0 for a field that is not answered with labels, and for what is no JSON."""
        try:
            answer, _ = json.JSONDecoder().raw_decode("{" + completion)
        except ValueError:
            return 0.0
        paid: list[float] = []
        for field, branch in zip(example.schema.fields, self.engine.prompt(example.schema).branches, strict=True):
            choice, stated = answer.get(field.name), answer.get(field.name + CONFIDENCE_SUFFIX)
            if choice in branch.choice.names and stated in branch.stated.labels:
                correct = float(branch.choice.names.index(choice) == field.index(example.labels[field.name]))
                confidence = branch.grid[branch.stated.labels.index(stated)]
                paid.append(self.reward.correctness(correct, 0.0) + self.reward.calibration(correct, confidence))
        self.whole += len(paid) == len(example.schema.fields)
        return sum(paid)

    def train(self, args: Args, recipe: Recipe, others: Callable[[], None]) -> Meter:
        """TRL's own loop over all rounds, with the turns of the others in between."""
        huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL reports its use otherwise
        from datasets import Dataset as Table
        from transformers import PrinterCallback

        trl: Any = import_module("trl")  # untyped, because type checks run without it
        loaded = trainable(load_model(args.model, dtype="float32"), recipe.lora_rank, recipe.lora_alpha, recipe.seed)
        meter = Meter(GENERATED, loaded.model)
        with tempfile.TemporaryDirectory() as folder:
            config = trl.GRPOConfig(
                output_dir=folder,
                max_steps=1 + args.rounds * args.steps,
                per_device_train_batch_size=recipe.rollouts,
                gradient_accumulation_steps=recipe.batch,
                num_generations=recipe.rollouts,
                max_completion_length=self.longest,
                temperature=recipe.rollout_temp,
                beta=0.0,
                scale_rewards="none",  # as here
                learning_rate=recipe.lr,
                max_grad_norm=recipe.max_grad_norm,
                gradient_checkpointing=False,
                bf16=args.precision == "bf16",
                use_cpu=self.engine.forward.device.type == "cpu",
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            )
            trainer = trl.GRPOTrainer(
                model=loaded.model,
                reward_funcs=self.rewards,
                args=config,
                train_dataset=Table.from_dict({"prompt": self.prompts, "example": list(range(len(self.data)))}),
                processing_class=loaded.tokenizer,
                callbacks=[Turns(meter, args.steps, others)],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return meter


def check_scores(engines: Sequence[DecisionEngine], data: Dataset) -> float:
    """The largest difference of a score between the engines, which is refused above 1e-4."""
    with torch.no_grad():
        ours, theirs = ([s for row in e.score_batch([(x.schema, x.context) for x in data]) for s in row] for e in engines)
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in ((a.choice, b.choice), (a.stated, b.stated))]
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    assert worst < 1e-4, f"padded rows differ from the shared tree by {worst}"
    return worst


def compare(args: Args, batch: int) -> None:
    """Time all ways at one batch size and print their table."""
    recipe = Recipe(steps=2 + args.rounds * args.steps, batch=batch, rollouts=args.rollouts, warmup_steps=0, eval_every=0)
    recipe.check()
    data = load("synthetic", "train", batch)  # every step takes all of it
    loaded = trainable(load_model(args.model, dtype="float32"), recipe.lora_rank, recipe.lora_alpha, recipe.seed)
    engines = {SHARED: DecisionEngine(loaded), PADDED: PaddedEngine(loaded)}
    accelerator = Accelerator(
        cpu=engines[SHARED].forward.device.type == "cpu", mixed_precision="bf16" if args.precision == "bf16" else "no"
    )
    trainers = {n: Trainer(e, recipe, accelerator, data, (data, data), Path(), print) for n, e in engines.items()}
    meters = [Meter(name, loaded.model) for name in engines]

    def turns(steps: int = args.steps, counted: bool = True) -> None:
        for meter in meters:
            for _ in range(steps):
                meter.start()
                trainers[meter.name].step(2 + len(meter.seconds) if counted else 1)
                meter.stop(counted)

    turns(1, counted=False)
    worst = check_scores(list(engines.values()), data)  # behind a step: a fresh adapter changes nothing
    written = Written(engines[SHARED], recipe, data)
    if args.skip_trl:
        for _ in range(args.rounds):
            turns()
    else:
        meters.append(written.train(args, recipe, turns))
    lengths = [len(written.engine.encoder.tokenizer(words).input_ids) for words in written.prompts]
    facts = [f"prompts of {min(lengths)} to {max(lengths)} tokens", f"largest difference of a score {worst:.1g}"]
    if written.lengths:
        parsed = f"{written.whole} of {len(written.lengths)} answered every field"
        facts.append(f"completions of {statistics.mean(written.lengths):.0f} of at most {written.longest} tokens ({parsed})")
    print(f"\nBatch of {batch}, median of {args.rounds * args.steps} steps: {'; '.join(facts)}\n")
    print(f"| way | s a step | range | way / {SHARED} | tokens a step | tokens/s | {RUN_STEPS} steps, min |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    first = statistics.median(meters[0].seconds)
    for meter in meters:
        seconds, tokens = statistics.median(meter.seconds), statistics.median(meter.tokens)
        span = f"{min(meter.seconds):.2f}–{max(meter.seconds):.2f}"
        speed = sum(meter.tokens) / sum(meter.seconds)
        cells = f"{seconds:.2f} | {span} | {seconds / first:.1f} | {tokens:.0f} | {speed:.0f} | {seconds * RUN_STEPS / 60:.0f}"
        print(f"| {meter.name} | {cells} |", flush=True)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    try:
        packages = ["torch", "transformers", "peft", *([] if args.skip_trl else ["trl"])]
        versions = ", ".join(f"{name} {version(name)}" for name in packages)
    except ModuleNotFoundError:
        sys.exit("TRL is not installed: run this with `uv run --all-extras --group bench`, or with --skip-trl.")
    print(f"model {args.model}, {args.precision}, {torch.get_num_threads()} threads, G = {args.rollouts}; {versions}")
    for batch in dict.fromkeys((args.batch, SMALL_BATCH)):
        compare(args, batch)


if __name__ == "__main__":
    main()
