"""`rlcd-lite data`: list the data sets, show, check and export their examples."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rlcd_lite.datasets import SETS, SPLITS, Dataset, Example, Split, data_hash, divided, load, named_set, normalise, synthetic
from rlcd_lite.datasets.sources import data_directory, hub_is_installed
from rlcd_lite.errors import UserError
from rlcd_lite.rows import SUFFIXES
from rlcd_lite.schema import Schema

CHECKED_TICKETS = 2000  # tickets per split that --check draws of the unlimited set when --n is not given


@dataclass(frozen=True)
class Data:
    """List the data sets, show some examples, check a set, or export it as JSON lines."""

    name: tyro.conf.Positional[str | None] = None
    """A data set (see --list), with variants after a colon (mmlu:astronomy,virology), or a .jsonl or .csv file with --schema."""
    list_sets: Annotated[bool, tyro.conf.arg(name="list")] = False
    """List all sets: fields × options, rows per split, licence, where each would be read from and whether it is there."""
    show: int | None = None
    """Show this many examples of the split."""
    check: bool = False
    """Count rows, duplicates, leaks and labels of all splits, with a hash of each; for synthetic also its Bayes numbers."""
    export: Path | None = None
    """Write the examples of the split to this file as JSON lines."""
    split: Split = "train"
    """Which part --show and --export take: train, calibration or test."""
    n: int | None = None
    """How many examples --export writes (all, if left out) and --check draws of synthetic per split (2000, if left out)."""
    seed: int = 0
    """Seed of the order of the examples; for synthetic, of the tickets themselves."""
    data_dir: Path | None = None
    """Folder that holds the sets' folders; without it RLCD_DATA_DIR, without that the hub."""
    schema: Path | None = None
    """Schema file of a data file of your own."""
    tokenizer: str | None = None
    """Let --check also give the lengths of the texts in tokens of this tokenizer: smollm2, a folder or a hub id."""
    json: bool = False
    """Print JSON (for --show one line per example)."""
    overwrite: bool = False
    """Let --export replace a file that exists."""

    def run(self) -> None:
        asked = [self.list_sets, self.show is not None, self.check, self.export is not None]
        if self.name is not None and Path(self.name).suffix not in SUFFIXES and self.name != synthetic.NAME:
            named_set(self.name)  # an unknown name is the first thing to say
        if sum(asked) != 1:
            raise UserError(f"data was asked for {sum(asked)} things: give one of --list, --show, --check and --export.")
        if self.list_sets:
            if self.name is not None:
                raise UserError(f"--list shows all sets, not {self.name!r} alone: leave the name out, or use --check.")
            _print_list(self.data_dir, self.json)
            return
        if self.name is None:
            raise UserError("no data set is named: give a name (see rlcd-lite data --list) or a file.")
        schema = None if self.schema is None else Schema.from_file(self.schema)
        if self.check:
            _print_report(_report(self.name, schema, self.data_dir, self.seed, self.n, self.tokenizer), self.json)
            return
        wanted = self.n if self.export is not None else self.show
        dataset = load(self.name, self.split, wanted, schema=schema, data_dir=self.data_dir, seed=self.seed)
        if self.export is not None:
            _write(self.export, dataset, self.overwrite)
            print(f"{self.export}: {len(dataset):,} examples, hash {dataset.hash}", file=sys.stderr)
        elif self.json:
            print(*_json_lines(dataset), sep="\n")
        else:
            _print_examples(dataset)


# ---- --list ----


def _print_list(data_dir: Path | None, as_json: bool) -> None:
    directory = data_directory(data_dir)
    unlimited = dict.fromkeys(SPLITS, None)
    rows: list[dict[str, Any]] = [
        {
            "name": synthetic.NAME,
            "fields": synthetic.FIELDS,
            "rows": unlimited,
            "licence": None,
            "source": "generated",
            "there": "yes",
        }
    ]
    for s in SETS.values():
        if directory is not None:
            source, there = str(directory / s.name), "yes" if (directory / s.name).is_dir() else "no"
        else:
            source, there = f"hub: {s.hub_id}", "when online" if hub_is_installed() else "no (needs rlcd-lite[data])"
        rows.append(
            {"name": s.name, "fields": s.fields, "rows": dict(s.rows), "licence": s.licence, "source": source, "there": there}
        )
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_table(
        ("name", "fields × options", *SPLITS, "licence", "read from", "there"),
        [
            (
                r["name"],
                r["fields"],
                *("∞" if r["rows"][s] is None else f"{r['rows'][s]:,}" for s in SPLITS),
                r["licence"] or "–",
                r["source"],
                r["there"],
            )
            for r in rows
        ],
    )
    print("Or a file of your own: FILE.jsonl or FILE.csv, with --schema FILE.", file=sys.stderr)


# ---- --show and --export ----


def _json_lines(dataset: Dataset) -> Iterator[str]:
    """The examples as JSON; where the options are each example's own, with its schema."""
    for example in dataset:
        row = example.to_dict()
        if dataset.schema is None:
            row["schema"] = example.schema.to_dict()
        yield json.dumps(row, ensure_ascii=False)


def _print_examples(examples: Iterable[Example]) -> None:
    for example in examples:
        print(f"── {example.id}\n{example.context}")
        for field in example.schema.fields:
            label = example.labels[field.name]
            shown = ", ".join(o.text for o in field.options[:6]) + (f", … ({len(field.options)})" if len(field.options) > 6 else "")
            print(f"  {field.name} = {field.options[field.index(label)].text}   of {shown}")
            if example.posterior is not None:
                known = zip(field.options, example.posterior[field.name], strict=True)
                print("    probabilities: " + ", ".join(f"{o.text} {p:.3g}" for o, p in known))
        print()


def _write(path: Path, dataset: Dataset, overwrite: bool) -> None:
    """JSON lines; the file appears whole or not at all."""
    if path.exists() and not overwrite:
        raise UserError(f"file {str(path)!r} exists: choose another name or give --overwrite.")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in _json_lines(dataset))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"file {str(path)!r} can't be written ({error.strerror}): check the path.") from None


# ---- --check ----


def _report(
    name: str, schema: Schema | None, data_dir: Path | None, seed: int, n: int | None, tokenizer: str | None
) -> dict[str, Any]:
    report: dict[str, Any]
    examples: dict[Split, tuple[Example, ...]]
    if name == synthetic.NAME:
        examples = {s: load(name, s, CHECKED_TICKETS if n is None else n, schema=schema, seed=seed).examples for s in SPLITS}
        report = {"name": name, "source": "generated"}
        duplicates = {s: len(examples[s]) - len({normalise(e.context) for e in examples[s]}) for s in SPLITS}
    else:
        if n is not None:
            raise UserError(f"--check counts all rows of {name!r}: leave --n out.")
        division, source = divided(name, schema=schema, data_dir=data_dir)
        examples, duplicates = division.splits, division.duplicates
        report = {
            "name": name,
            "source": source,
            "read": division.read,
            "unlabelled": division.unlabelled,
            "leaks_dropped": division.leaks,
        }
    texts = {s: {normalise(e.context) for e in examples[s]} for s in SPLITS}
    report["texts_in_two_splits"] = sum(len(texts[a] & texts[b]) for a, b in zip(SPLITS, SPLITS[1:] + SPLITS[:1], strict=True))
    encode = None if tokenizer is None else _tokenizer(tokenizer)
    report["splits"] = {
        s: {
            "rows": len(examples[s]),
            "hash": data_hash(examples[s]),
            "duplicates": duplicates[s],
            "characters": _spread([len(e.context) for e in examples[s]]),
            **({} if encode is None else {"tokens": _spread([len(ids) for ids in encode([e.context for e in examples[s]])])}),
            "labels": _balance(examples[s]),
        }
        for s in SPLITS
    }
    if name == synthetic.NAME:
        report["bayes"] = {field: asdict(numbers) for field, numbers in synthetic.bayes().items()}
        for field, numbers in report["bayes"].items():
            numbers["sampled_accuracy"] = _sampled_accuracy([e for s in SPLITS for e in examples[s]], field)
    return report


def _balance(examples: Sequence[Example]) -> dict[str, dict[str, int]]:
    """Rows per option; where the options are each example's own, rows per position of the right one."""
    counts: dict[str, Counter[str]] = {}
    shared = len({id(e.schema) for e in examples}) <= 1
    for example in examples:
        for f in example.schema.fields:
            i = f.index(example.labels[f.name])
            counts.setdefault(f.name, Counter())[f.options[i].text if shared else f"option {i + 1}"] += 1
    return {name: dict(sorted(c.items(), key=lambda item: (-item[1], item[0]))) for name, c in counts.items()}


def _sampled_accuracy(examples: Sequence[Example], field: str) -> float:
    right = 0
    for e in examples:
        assert e.posterior is not None
        p = e.posterior[field]
        right += e.schema[field].index(e.labels[field]) == p.index(max(p))
    return right / len(examples)


def _spread(lengths: list[int]) -> dict[str, float]:
    if not lengths:
        return {}
    lengths = sorted(lengths)
    return {
        "least": lengths[0],
        "median": statistics.median(lengths),
        "95 %": lengths[int(0.95 * (len(lengths) - 1))],
        "most": lengths[-1],
    }


def _tokenizer(name: str) -> Any:
    """A function from texts to lists of token ids."""
    from rlcd_lite.models import load_tokenizer

    tokenizer = load_tokenizer(name)
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


def _print_report(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    print(f"{report['name']}, read from {report['source']}")
    if "read" in report:
        print("rows read: " + ", ".join(f"{part} {n:,}" for part, n in report["read"].items()))
        print(f"left out without a single label: {report['unlabelled']:,}")
        print(
            "left out because the text stands in a later split: "
            + ", ".join(f"{s} {n}" for s, n in report["leaks_dropped"].items())
        )
    print(f"texts in two splits: {report['texts_in_two_splits']}")
    lengths = [unit for unit in ("characters", "tokens") if unit in report["splits"]["train"]]
    _print_table(
        ("split", "rows", "hash", "duplicates", *(f"{unit} least / median / 95 % / most" for unit in lengths)),
        [
            (
                s,
                f"{r['rows']:,}",
                r["hash"],
                str(r["duplicates"]),
                *(" / ".join(f"{v:g}" for v in r[u].values()) for u in lengths),
            )
            for s, r in report["splits"].items()
        ],
    )
    balance: list[tuple[str, ...]] = []
    for s, r in report["splits"].items():
        for field, counts in r["labels"].items():
            shown = [f"{option} {count / r['rows']:.1%}" for option, count in counts.items()]
            balance.append((s, field, str(len(counts)), shown[0], shown[-1]))
    _print_table(("split", "field", "options seen", "most frequent", "least frequent"), balance)
    if "bayes" in report:
        _print_table(
            ("field", "Bayes accuracy", "sampled", "Bayes Brier", "over all options", f"ambiguous (p < {synthetic.AMBIGUOUS})"),
            [
                (
                    field,
                    f"{b['accuracy']:.4f}",
                    f"{b['sampled_accuracy']:.4f}",
                    f"{b['brier']:.4f}",
                    f"{b['brier_all']:.4f}",
                    f"{b['ambiguous']:.1%}",
                )
                for field, b in report["bayes"].items()
            ],
        )


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A rich table on a terminal, tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(row))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for position, title in enumerate(header):
        table.add_column(title, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
