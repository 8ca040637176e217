"""``rlcd-lite train``: an adapter that decides better and says honestly how sure it is."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rlcd_lite import ranks
from rlcd_lite.commands.model_flags import ModelFlags
from rlcd_lite.commands.progress import progress
from rlcd_lite.datasets import Dataset, load, synthetic
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.recipe import Recipe
from rlcd_lite.rows import SUFFIXES
from rlcd_lite.schema import Schema
from rlcd_lite.settings import PROMPT_VERSIONS

if TYPE_CHECKING:
    from accelerate import Accelerator

    from rlcd_lite.engine import DecisionEngine
    from rlcd_lite.prompts import Branch
    from rlcd_lite.trainer import Trainer

Tracker = Literal["none", "tensorboard", "wandb", "trackio"]
_FREE = ("config", "run_name", "resume", "overwrite", "dry_run", "tracker", "data_dir")  # may differ when a run is continued


@dataclass
class Train:
    """Train a LoRA adapter on a data set, so that decisions are right and the stated confidence is honest.

    The run is left in runs/NAME: config.json, metrics.jsonl (a row a step), evals.jsonl, checkpoints/, adapter/ (as it was at the
    end) and adapter-best/. Evaluate it with `rlcd-lite eval --arms base,runs/NAME`. Ctrl-C saves; --resume goes on.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    recipe: Annotated[Recipe, tyro.conf.OmitArgPrefixes] = field(default_factory=Recipe)
    config: Path | None = None
    """YAML file of flags (reward: rlcr), which flags on the command line overrule; configs/ has one for each published arm."""
    dataset: str = "synthetic"
    """Data set (see rlcd-lite data --list), with variants after a colon, or a file with --schema."""
    schema: Path | None = None
    """Schema file of a data file of your own."""
    data_dir: Path | None = None
    """Folder that holds the sets' folders; without it RLCD_DATA_DIR, without that the hub."""
    run_name: str | None = None
    """Name of the run's folder in runs/; DATASET-REWARD or DATASET-OBJECTIVE if not given."""
    resume: bool = False
    """Go on from the run's last checkpoint; the options must be the same."""
    overwrite: bool = False
    """Delete an earlier run of this name."""
    dry_run: bool = False
    """Check everything, take one step without keeping it, say what a run would cost, and write nothing."""
    tracker: Tracker = "none"
    """Also send the logs there; needs the package, and an account only where the package does."""

    def run(self) -> None:
        self.recipe.check()
        if self.resume and self.overwrite:
            raise UserError("--resume keeps what is there and --overwrite deletes it: give one of the two.")
        folder = self._folder()
        if not self.dry_run:
            ranks.told(lambda: self._check_folder(folder))
        train, held = self._data()
        most = max(len(field.options) for example in train.examples for field in example.schema.fields)
        for doubt in self.recipe.doubts(self.model.contract(training=True).grid, most, self.model.adapter is not None):
            _say(f"note: {doubt}")
        engine = self._engine()
        if self.overwrite and not self.dry_run and ranks.is_main() and folder.exists():
            shutil.rmtree(folder)  # before a tracker writes into it
        accelerator = self._accelerator(folder, engine)

        from rlcd_lite.trainer import Trainer

        trainer = Trainer(engine, self.recipe, accelerator, train, held, folder, lambda text: _say(f"warning: {text}"))
        if self.dry_run:
            self._rehearse(trainer)
            return
        if ranks.is_main():
            self._start(folder, train, held, engine, accelerator)
        ranks.wait()
        if self.resume:
            trainer.resume()
            _say(f"going on behind step {trainer.state.step}.")
        with (
            progress(self.recipe.steps, f"training {folder.name}", "steps", done=trainer.state.step) as advance,
            _stopping() as stopping,
        ):
            try:
                trainer.run(advance, stopping)
            except KeyboardInterrupt:
                _say(f"stopped and saved behind step {trainer.state.step}: the same command with --resume goes on.")
                raise
            except OSError as error:
                reason = f"{shorten(str(error.filename or folder), 200)} can't be written ({error.strerror or error})"
                raise UserError(f"{reason}: make room, and go on from the last whole checkpoint with --resume.") from error
        accelerator.end_training()
        self._finish(trainer)

    # ---- before ----

    def _folder(self) -> Path:
        name = self.run_name
        if name is None:
            name = f"{Path(self.dataset).stem}-{self.recipe.objective if self.recipe.supervised else self.recipe.reward}"
            name = name.replace(":", "-").replace(",", "-")
        if not name or name != Path(name).name or name.startswith("."):
            raise UserError(f"--run-name is {shorten(name)}: give a name for a folder in runs/, without slashes.")
        return Path("runs") / name

    def _check_folder(self, folder: Path) -> None:
        if not folder.exists():
            if self.resume:
                raise UserError(f"run {str(folder)!r} does not exist, so there is nothing to resume: check --run-name.")
            return
        if self.overwrite:
            return
        if not self.resume:
            raise UserError(
                f"run {str(folder)!r} exists: go on with --resume, replace it with --overwrite, or give another --run-name."
            )
        try:
            earlier = json.loads((folder / "config.json").read_text(encoding="utf-8"))["options"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"run {str(folder)!r} has no config.json that can be read: --overwrite it.") from None
        for name, value in self._options().items():
            if name not in _FREE and earlier.get(name) != value:
                raise UserError(
                    f"run {str(folder)!r} was started with {name} {shorten(earlier.get(name))}, not {shorten(value)}: "
                    f"go on with the same options, or give another --run-name."
                )

    def _options(self) -> dict[str, Any]:
        """Every option by its flag's name, as JSON holds it."""
        own = {key: value for key, value in asdict(self).items() if key not in ("model", "recipe")}
        options = {**asdict(self.model), **asdict(self.recipe), **own, "world_size": ranks.world()}
        return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}

    def _data(self) -> tuple[Dataset, tuple[Dataset, Dataset]]:
        """Training examples, and those held out: for the temperatures of an evaluation, and to be measured."""
        recipe = self.recipe
        schema = Schema.from_file(self.schema) if self.schema is not None and Path(self.dataset).suffix in SUFFIXES else None
        n = recipe.train_n
        if n is None and self.dataset == synthetic.NAME:
            n = recipe.steps * recipe.batch * ranks.world()
        train = load(self.dataset, "train", n, schema=schema, data_dir=self.data_dir, seed=recipe.seed)
        cut, needed = recipe.eval_n // 2, recipe.eval_n + recipe.eval_n // 2
        limit = needed if self.dataset == synthetic.NAME else None
        held = load(self.dataset, "calibration", limit, schema=schema, data_dir=self.data_dir, seed=recipe.seed)
        if recipe.eval_every and len(held) < needed:
            raise UserError(
                f"--eval-n is {recipe.eval_n}, which takes {needed} held-out examples, and the calibration split of "
                f"{self.dataset!r} has {len(held)}: give --eval-n {max(4, len(held) * 2 // 3)}, or --eval-every 0."
            )
        parts = [replace(held, examples=part) for part in (held.examples[:cut], held.examples[cut:needed])]
        return train, (parts[0], parts[1])

    def _engine(self) -> DecisionEngine:
        """The engine around a model with a fresh adapter, or with the one of --adapter."""
        from rlcd_lite.models import trainable

        recipe = self.recipe
        return self.model.load(
            lambda loaded: trainable(loaded, recipe.lora_rank, recipe.lora_alpha, recipe.seed),
            training=True,
        )

    def _accelerator(self, folder: Path, engine: DecisionEngine) -> Accelerator:
        from accelerate import Accelerator

        if self.tracker != "none" and find_spec(self.tracker) is None:  # accelerate would go on without it
            raise UserError(f"--tracker {self.tracker} can't be used (its package is not installed): install it, or leave it out.")
        where = engine.forward.device.type
        precision = self.recipe.precision if self.recipe.precision != "auto" else "bf16" if where == "cuda" else "fp32"
        accelerator = Accelerator(
            cpu=where == "cpu",
            mixed_precision="bf16" if precision == "bf16" else "no",
            log_with=None if self.tracker == "none" or self.dry_run else self.tracker,
            project_dir=folder,
        )
        if self.tracker != "none" and not self.dry_run:
            config = {k: v for k, v in self._options().items() if isinstance(v, str | int | float)}
            try:
                accelerator.init_trackers("rlcd-lite", config)
            except Exception as error:  # a missing package, a login, a network: each tracker has errors of its own
                raise UserError(
                    f"--tracker {self.tracker} can't be used ({shorten(str(error), 120)}): install it, or leave it out."
                ) from error
        return accelerator

    def _start(
        self, folder: Path, train: Dataset, held: tuple[Dataset, Dataset], engine: DecisionEngine, accelerator: Accelerator
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.resume:
            return
        packages = ("rlcd-lite", "torch", "transformers", "peft", "accelerate", "numpy")
        config = {
            "options": self._options(),
            "contract": engine.contract.settings(),
            "prompt_version": PROMPT_VERSIONS[engine.contract.layout],
            "warmup_steps": self.recipe.warmup,
            "model": {
                "name": engine.name,
                "revision": getattr(engine.model.config, "_commit_hash", None),
                "dtype": str(engine.forward.dtype).removeprefix("torch."),
                "attention": engine.forward.attention,
                "device": str(engine.forward.device),
                "mixed_precision": accelerator.mixed_precision,
            },
            "data": {
                "train_n": len(train),
                "train_hash": train.hash,
                "temperature_hash": held[0].hash,
                "held_out_hash": held[1].hash,
            },
            "packages": {name: version(name) for name in packages},
            "git_commit": _git_commit(),
        }
        scratch = folder / "config.json.part"
        scratch.write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        scratch.replace(folder / "config.json")

    def _rehearse(self, trainer: Trainer) -> None:
        """One step that is thrown away, and what it says about a run."""
        recipe, engine, train = self.recipe, trainer.engine, trainer.train
        lengths = [len(engine.prompt(e.schema).encode(e.context)) for e in train.examples[:200]]
        prompt = engine.prompt(train.examples[0].schema)
        row = [trainer.step(step) for step in (recipe.warmup + 1 if recipe.warmup < recipe.steps else 1,) * 2][-1]
        trained = sum(p.numel() for p in trainer.parameters)
        weights = sum(p.numel() * p.element_size() for p in engine.model.parameters())
        memory = (weights + 12 * trained) / 2**20  # a gradient and two moments, in float32
        if not ranks.is_main():
            return
        lines = {
            "data": f"{train.name}: {len(train)} training examples, {len(trainer.held[1])} held out",
            "fields": ", ".join(f"{f.name} × {len(f.options)}" for f in train.examples[0].schema.fields),
            "options": "; ".join(_spelling(b) for b in prompt.branches),
            "text": f"{min(lengths)} to {max(lengths)} tokens, median {statistics.median(lengths):.0f}; window {prompt.max_length}",
            "forward": f"{row['tokens']} tokens for {recipe.batch * ranks.world()} examples, {prompt.shared} of them shared by all",
            "adapter": f"{trained:,} trained numbers on {engine.name}",
            "memory": f"{memory:,.0f} MiB for weights, gradient and moments, and activations beside them",
            "time": f"{row['seconds']:.1f} s a step, {row['seconds'] * recipe.steps / 60:.0f} minutes for {recipe.steps} steps",
        }
        for name, value in lines.items():
            print(f"{name}\t{value}")
        _say("nothing was written.")

    # ---- after ----

    def _finish(self, trainer: Trainer) -> None:
        if not ranks.is_main():
            return
        folder, state = trainer.folder, trainer.state
        if trainer.evals.rows:
            last = trainer.evals.rows[-1]
            names = ("acc", "softmax_ece", "stated_ece", "stated_mean_ece", "softmax_ts_ece", "nll")
            print("\t".join(("step", *names)))
            for row in trainer.evals.rows:
                print("\t".join((str(row["step"]), *(f"{row[name]:.3f}" for name in names))))
            if state.step < self.recipe.steps:
                _say(f"stopped at step {last['step']}: no better {self.recipe.best_metric} in {self.recipe.patience} evaluations.")
            if state.best_step:
                _say(f"{folder / 'adapter-best'}: the adapter of step {state.best_step}, best by {self.recipe.best_metric}.")
        _say(f"{folder / 'adapter'}: the adapter of step {state.step}. Evaluate it: rlcd-lite eval --arms base,{folder}")


def _spelling(branch: Branch) -> str:
    names, trie = branch.choice.names, branch.choice
    how = "verbatim" if branch.question.verbatim else "labels"
    ways = "one token each" if max(map(len, trie.spelt)) == 1 else f"{trie.nodes} tokens to run"
    return f"{len(names)} {how} {names[0]} … {names[-1]}, {ways}"


def _git_commit() -> str | None:
    try:
        command = ["git", "rev-parse", "HEAD"]
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


@contextmanager
def _stopping() -> Iterator[Any]:
    """A function that says whether Ctrl-C or a termination was asked for; the second time, the program ends at once."""
    asked = False

    def ask(number: int, _: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        _say("stopping behind this step; again to stop at once.")

    handled = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, ask) for number in handled}
    try:
        yield lambda: asked
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    if ranks.is_main():
        print(text, file=sys.stderr, flush=True)
