"""``rlcd-lite eval``: arms × data sets → decision tables → eval.json."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rlcd_lite import ranks
from rlcd_lite.commands.model_flags import AskFlags, ModelFlags
from rlcd_lite.commands.progress import progress
from rlcd_lite.datasets import SETS, Dataset, load, synthetic
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.priors import CONTEXTS, default_kind
from rlcd_lite.rows import SUFFIXES
from rlcd_lite.schema import Schema

if TYPE_CHECKING:  # SciPy and torch are imported where they are used, so that --help stays instant
    from rlcd_lite.decision_table import DecisionRow
    from rlcd_lite.engine import DecisionEngine

BASE = "base"


@dataclass
class Eval:
    """Evaluate arms on data sets: decision tables and eval.json with every metric and its interval.

    A killed evaluation goes on when the same command is given again: each arm and data set is written whole or not at all.
    """

    model: Annotated[ModelFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=ModelFlags)
    ask: Annotated[AskFlags, tyro.conf.OmitArgPrefixes] = field(default_factory=AskFlags)
    arms: str = BASE
    """Comma-separated: base (the model as it is), or folders of adapters or runs."""
    datasets: str = "synthetic"
    """Comma-separated data sets (see rlcd-lite data --list), with variants after a colon, or files with --schema."""
    n: int = 300
    """Test examples of each set."""
    calibration_n: int = 200
    """Calibration examples of each set: the temperatures are fitted on these alone."""
    permutation_k: int = 0
    """Random orders of the options to try, for the order sensitivity; 0 leaves it out."""
    permutation_n: int = 50
    """Test examples that are asked again in every order."""
    resamples: int = 1000
    """Resamples of the bootstrap, which draws contexts."""
    seed: int = 0
    """Seed of the examples' order, the options' orders and the bootstrap."""
    output: Path = Path("runs/eval")
    """Folder for eval.json and decisions/."""
    data_dir: Path | None = None
    """Folder that holds the sets' folders; without it RLCD_DATA_DIR, without that the hub."""
    schema: Path | None = None
    """Schema file of data files of your own."""
    overwrite: bool = False
    """Evaluate again where other settings left tables in the output folder."""

    def run(self) -> None:
        from rlcd_lite.decision_table import read_table, write_table
        from rlcd_lite.summary import write_eval

        started = time.perf_counter()
        for flag, least in (("n", 2), ("calibration_n", 1), ("permutation_k", 0), ("permutation_n", 2), ("resamples", 1)):
            if getattr(self, flag) < least:
                raise UserError(f"--{flag.replace('_', '-')} is {getattr(self, flag)}: it must be at least {least}.")
        self.ask.check()
        arms = [arm.strip() for arm in self.arms.split(",")]
        if len(set(arms)) < len(arms):
            raise UserError(f"--arms {self.arms!r} names an arm twice: name each once.")
        if self.model.adapter is not None:
            raise UserError(f"--adapter {str(self.model.adapter)!r} is an arm of its own here: name it in --arms.")
        adapters = {arm: _adapter(arm) for arm in arms}
        names = dataset_names(self.datasets)
        if self.schema is not None and not any(Path(name).suffix in SUFFIXES for name in names):
            raise UserError(f"--schema is for data files, and --datasets {self.datasets!r} names none: leave it out.")
        sets = {name: self._load(name) for name in names}
        if ranks.is_main():
            (self.output / "decisions").mkdir(parents=True, exist_ok=True)
        tables: dict[tuple[str, str], list[DecisionRow]] = {}
        forward, running = 0.0, 0.0  # seconds of forwards behind all tables, and of loading and forwards in this call
        for arm, adapter in adapters.items():
            engine: DecisionEngine | None = None
            for name, (calibration, test) in sets.items():
                path, settings = self.output / "decisions" / _file_name(arm, name), self._settings(arm, calibration, test)
                if not ranks.told(partial(self._is_done, path, settings)):
                    start = time.perf_counter()
                    engine = engine or self._engine(adapter)
                    loaded = time.perf_counter()
                    rows = self._decide(engine, f"{arm} on {name}", calibration, test)
                    settings["seconds"] = time.perf_counter() - loaded
                    running += time.perf_counter() - start
                    if not ranks.is_main():
                        continue
                    write_table(path, rows)
                    _record(path).write_text(json.dumps(settings, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
                if ranks.is_main():
                    forward += json.loads(_record(path).read_text(encoding="utf-8"))["seconds"]
                    tables[arm, name] = read_table(path)
        if not ranks.is_main():
            return
        evaluation = self._evaluation(arms, sets, tables)
        write_eval(self.output / "eval.json", evaluation)
        _print_summary(evaluation)
        other = time.perf_counter() - started - running
        cost = f"{forward:.0f} s of forwards, {other:.1f} s besides ({other / (forward + other):.1%})"
        print(f"{self.output / 'eval.json'}: {cost}.", file=sys.stderr)

    def _load(self, name: str) -> tuple[Dataset, Dataset]:
        schema = Schema.from_file(self.schema) if self.schema is not None and Path(name).suffix in SUFFIXES else None
        calibration = load(name, "calibration", self.calibration_n, schema=schema, data_dir=self.data_dir, seed=self.seed)
        test = load(name, "test", self.n, schema=schema, data_dir=self.data_dir, seed=self.seed)
        if self.permutation_k and self.permutation_n > len(test):
            raise UserError(f"--permutation-n is {self.permutation_n}, more than the {len(test)} test examples of --n.")
        return calibration, test

    def _settings(self, arm: str, calibration: Dataset, test: Dataset) -> dict[str, Any]:
        """What a table depends on: a table that was made with the same is used again."""
        adapter = _adapter(arm)
        return {
            "arm": arm,
            **replace(self.model, adapter=adapter).made_by(),
            **self.ask.settings(),
            "device": self.model.device,
            "attention": self.model.attention,
            "dataset": test.name,
            "calibration_hash": calibration.hash,
            "test_hash": test.hash,
            "permutation_k": self.permutation_k,
            "permutation_n": self.permutation_n if self.permutation_k else 0,
            "seed": self.seed,
        }

    def _is_done(self, path: Path, settings: dict[str, Any]) -> bool:
        if self.overwrite or not (path.exists() and _record(path).exists()):
            return False
        earlier = json.loads(_record(path).read_text(encoding="utf-8"))
        for key, value in settings.items():
            if earlier.get(key) != value:
                raise UserError(
                    f"table {str(path)!r} was made with {key} {shorten(earlier.get(key))}, not {shorten(value)}: "
                    f"give another --output or --overwrite."
                )
        return True

    def _decide(self, engine: DecisionEngine, title: str, calibration: Dataset, test: Dataset) -> list[DecisionRow]:
        from rlcd_lite.evaluate import decide_part, parts

        if self.ask.prior == "contexts":  # their labels are not looked at
            engine.prior = engine.measure_prior([(e.schema, e.context) for e in calibration.examples[:CONTEXTS]])
        work = parts(calibration, test, self.permutation_k, self.permutation_n, self.seed)
        with progress(sum(len(part.examples) for part in work), title) as advance:
            return [row for part in work for row in decide_part(engine, part, advance)]

    def _engine(self, adapter: Path | None) -> DecisionEngine:
        model = replace(self.model, adapter=adapter)
        return model.load(prior=self.ask.read(model), permutations=self.ask.permutations)

    def _evaluation(
        self, arms: list[str], sets: dict[str, tuple[Dataset, Dataset]], tables: dict[tuple[str, str], list[DecisionRow]]
    ) -> dict[str, Any]:
        from rlcd_lite.enforced import rule_summary
        from rlcd_lite.summary import EVAL_VERSION, compare, order_summary, scope_summary, summarise

        draws = {"resamples": self.resamples, "seed": self.seed}
        results = []
        for (arm, name), rows in tables.items():
            result: dict[str, Any] = {"arm": arm, "dataset": name, "table": f"decisions/{_file_name(arm, name)}"}
            result["contract"] = replace(self.model, adapter=_adapter(arm)).contract().settings() | self.ask.settings()
            result |= summarise(rows, resamples=self.resamples, seed=self.seed)
            result["order"] = order_summary(rows, resamples=self.resamples, seed=self.seed)
            schema = sets[name][1][0].schema
            if self.ask.prior is None:
                result["contract"]["prior"] = self._prior(arm, schema)
            if declared := [f.name for f in schema.fields if f.none_of_the_above]:
                result["scope"] = {field: scope_summary(rows, field, **draws) for field in declared}
            if schema.rules:
                result["rules"] = rule_summary(rows, schema, **draws)
            results.append(result)
        comparisons = []
        for name in sets:
            for first, second in combinations(arms, 2):
                pair = tables[first, name], tables[second, name]
                compared = compare(*pair, resamples=self.resamples, seed=self.seed)
                comparisons.append({"dataset": name, "first": first, "second": second, "signals": compared})
        settings = {"model": self.model.model, "dtype": self.model.dtype}
        versions = {package: version(package) for package in ("rlcd-lite", "torch", "transformers", "numpy", "scipy")}
        return {
            "version": EVAL_VERSION,
            "settings": settings | draws,
            "packages": versions,
            "arms": arms,
            "datasets": {name: _about(calibration, test) for name, (calibration, test) in sets.items()},
            "results": results,
            "comparisons": comparisons,
        }

    def _prior(self, arm: str, schema: Schema) -> str:
        """What is subtracted from scores where no flag says it."""
        from rlcd_lite.questions import scoring

        contract = replace(self.model, adapter=_adapter(arm)).contract()
        if contract.prior.logits:
            return "trained"
        return default_kind(contract, any(scoring(field, contract) == "verbatim" for field in schema.fields))


def dataset_names(text: str) -> list[str]:
    """Names in a comma-separated list; ``mmlu:astronomy,virology`` is one name, because virology is no data set."""
    names: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        base = piece.partition(":")[0]
        if names and base not in (synthetic.NAME, *SETS) and Path(piece).suffix not in SUFFIXES and ":" in names[-1]:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    if len(set(names)) < len(names):
        raise UserError(f"--datasets {text!r} names a set twice: name each once.")
    return names


def _about(calibration: Dataset, test: Dataset) -> dict[str, Any]:
    counts = sorted({len(f.options) for e in test for f in e.schema.fields})
    return {
        "source": "generated" if test.source == "generated" else "hub" if test.source.startswith("hub") else "local files",
        "fields": [f.name for f in test[0].schema.fields],
        "options": counts,
        "calibration_n": len(calibration),
        "n": len(test),
        "calibration_hash": calibration.hash,
        "test_hash": test.hash,
    }


def _adapter(arm: str) -> Path | None:
    """The adapter folder of an arm: none for the base, a run's ``adapter/``, or the folder itself."""
    if arm == BASE:
        return None
    folder = Path(arm)
    if not folder.is_dir():
        raise UserError(f"arm {arm!r} is neither {BASE!r} nor a folder: give the folder of a run or of an adapter.")
    return folder / "adapter" if (folder / "adapter").is_dir() else folder


def _file_name(arm: str, dataset: str) -> str:
    return "--".join(re.sub(r"[^A-Za-z0-9._-]+", "_", part).strip("_") for part in (arm, dataset)) + ".csv.gz"


def _record(table: Path) -> Path:
    return table.with_name(table.name.removesuffix(".csv.gz") + ".json")


def _print_summary(evaluation: dict[str, Any]) -> None:
    """The numbers to look at first, as lines of tab-separated cells."""
    for line in _summary_lines(evaluation):
        print("\t".join(line))


def _summary_lines(evaluation: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield ("dataset", "arm", "signal", "accuracy", "ECE (95 %)", "floor", "Brier", "AURC", "mean confidence")
    for result in evaluation["results"]:
        for name, s in result["signals"].items():
            ece = s["ece"]
            yield (
                result["dataset"],
                result["arm"],
                name,
                f"{result['accuracy']['estimate']:.3f}",
                f"{ece['estimate']:.3f} ({ece['low']:.3f}–{ece['high']:.3f})",
                f"{ece['null_floor']['mean']:.3f}",
                f"{s['brier']['estimate']:.3f}",
                f"{s['aurc']['estimate']:.3f}",
                f"{s['mean_confidence']:.3f}",
            )
