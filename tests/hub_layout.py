"""Writes the data sets as Parquet files in the layout, columns and types that they have on the hub, from the local files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Features, List, Value
from datasets import Dataset as Table

from rlcd_lite.datasets import banking77, clinc150, goemotions

HUB_PARTS = {"dev": "validation", "val": "validation"}
text = Value("string")


def write_hub(data_dir: Path, root: Path) -> None:
    """Every set into ``root/<hub id>``. MMLU: two subjects (its other files have the same form)."""
    _banking77(data_dir / "banking77", root / "legacy-datasets/banking77")
    _clinc150(data_dir / "clinc150", root / "clinc/clinc_oos")
    _boolq(data_dir / "boolq", root / "google/boolq")
    _mmlu(data_dir / "mmlu", root / "cais/mmlu", ("miscellaneous", "elementary_mathematics"))
    _arc(data_dir / "arc", root / "allenai/ai2_arc")
    _snli(data_dir / "snli", root / "stanfordnlp/snli")
    _goemotions(data_dir / "goemotions", root / "google-research-datasets/go_emotions")


def _write(folder: Path, features: Features, tables: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    """``tables`` maps (config, part) to rows."""
    configs: dict[str, list[str]] = {}
    for (config, part), rows in tables.items():
        path = folder / config / f"{part}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        Table.from_list(rows, features=features).to_parquet(path)
        configs.setdefault(config, []).append(f"  - split: {part}\n    path: {config}/{part}-*\n")
    entries = "".join(f"- config_name: {config}\n  data_files:\n{''.join(files)}" for config, files in configs.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n{entries}---\n")


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]


def _csv(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))


def _banking77(source: Path, folder: Path) -> None:
    labels = ClassLabel(names=list(banking77.INTENTS))
    assert labels.str2int("activate_my_card") == 0  # as the README has it
    assert labels.str2int("card_arrival") == 11
    tables = {
        ("default", part): [{"text": t, "label": label} for t, label in _csv(source / f"{part}.csv")[1:]]
        for part in ("train", "test")
    }
    _write(folder, Features({"text": text, "label": labels}), tables)


def _clinc150(source: Path, folder: Path) -> None:
    names = [intent for intent in clinc150.DOMAIN_OF if intent != "oos"]
    random.Random(0).shuffle(names)  # an order of the hub's own
    names.insert(42, "oos")
    items = json.loads(gzip.decompress((source / "data_oos_plus.json.gz").read_bytes()))
    tables = {
        ("plus", HUB_PARTS.get(key, key)): [{"text": t, "intent": intent} for t, intent in items[key] + items[f"oos_{key}"]]
        for key in ("train", "val", "test")
    }
    _write(folder, Features({"text": text, "intent": ClassLabel(names=names)}), tables)


def _boolq(source: Path, folder: Path) -> None:
    rows = [json.loads(line) for line in _lines(source / "dev.jsonl.gz")]
    features = Features({"question": text, "answer": Value("bool"), "passage": text})
    _write(folder, features, {("default", "validation"): [{name: row[name] for name in features} for row in rows]})


def _mmlu(source: Path, folder: Path, subjects: tuple[str, ...]) -> None:
    features = Features({"question": text, "subject": text, "choices": List(text), "answer": ClassLabel(names=list("ABCD"))})
    tables = {}
    for subject in subjects:
        for part in ("dev", "val", "test"):
            rows = _csv(source / part / f"{subject}_{part}.csv")
            tables[subject, "dev" if part == "dev" else HUB_PARTS.get(part, part)] = [
                {"question": q, "subject": subject, "choices": choices, "answer": letter} for q, *choices, letter in rows
            ]
    _write(folder, features, tables)


def _arc(source: Path, folder: Path) -> None:
    features = Features(
        {"id": text, "question": text, "choices": {"text": List(text), "label": List(text)}, "answerKey": text},
    )
    tables = {}
    for config in ("ARC-Easy", "ARC-Challenge"):
        for part in ("Dev", "Test"):
            items = [json.loads(line) for line in (source / f"{config}-{part}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
            tables[config, HUB_PARTS.get(part.lower(), part.lower())] = [
                {
                    "id": item["id"],
                    "question": item["question"]["stem"],
                    "choices": {key: [choice[key] for choice in item["question"]["choices"]] for key in ("text", "label")},
                    "answerKey": item["answerKey"],
                }
                for item in items
            ]
    _write(folder, features, tables)


def _snli(source: Path, folder: Path) -> None:
    """The hub's texts have no space before a full stop, and its rows without a gold label carry -1."""
    features = Features(
        {"premise": text, "hypothesis": text, "label": ClassLabel(names=["entailment", "neutral", "contradiction"])}
    )
    tables = {}
    for short in ("dev", "test"):
        columns = [_lines(source / f"{name}.{short}.gz") for name in ("s1", "s2", "labels")]
        rows = [
            {"premise": p.replace(" .", ".").strip(), "hypothesis": h.replace(" .", ".").strip(), "label": label}
            for p, h, label in zip(*columns, strict=True)
        ]
        rows.insert(3, {"premise": "A dog runs.", "hypothesis": "A dog sleeps.", "label": -1})
        tables["plain_text", HUB_PARTS.get(short, short)] = rows
    _write(folder, features, tables)


def _goemotions(source: Path, folder: Path) -> None:
    features = Features({"text": text, "labels": List(ClassLabel(names=list(goemotions.EMOTIONS))), "id": text})
    tables = {}
    for short in ("train", "dev", "test"):
        rows = [line.split("\t") for line in _lines(source / "original" / f"{short}.tsv.gz")]
        tables["simplified", HUB_PARTS.get(short, short)] = [
            {"text": t, "labels": [int(i) for i in labels.split(",")], "id": id_} for t, labels, id_ in rows
        ]
    _write(folder, features, tables)
