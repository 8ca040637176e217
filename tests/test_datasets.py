"""The named sets: counts and byte traps of the data README, splits, ids, both sources, and the user's mistakes."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from hub_layout import write_hub
from rlcd_lite.datasets import (
    SETS,
    SPLITS,
    Division,
    Example,
    data_hash,
    divided,
    goemotions,
    load,
    mmlu,
    named_set,
    normalise,
)
from rlcd_lite.datasets import clinc150 as clinc
from rlcd_lite.datasets.sources import local_csv
from rlcd_lite.datasets.splits import split_of
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Field, Option, Schema
from rlcd_lite.shape import Object

# Rows per published part, as the data README gives them.
PUBLISHED = {
    "banking77": {"train": 10_003, "test": 3_080},
    "clinc150": {"train": 15_250, "validation": 3_100, "test": 5_500},
    "clinc150:in-scope": {"train": 15_000, "validation": 3_000, "test": 4_500},
    "boolq": {"validation": 3_270},
    "mmlu:all": {"dev": 285, "validation": 1_531, "test": 14_042},
    "arc:easy": {"validation": 570, "test": 2_376},
    "arc:challenge": {"validation": 299, "test": 1_172},
    "snli": {"validation": 9_842, "test": 9_824},
    "goemotions": {"train": 43_410, "validation": 5_426, "test": 5_427},
}


@cache
def local(name: str, data_dir: Path) -> Division:
    """The set from the local files; kept, since many tests read the same."""
    return divided(name, data_dir=data_dir)[0]


def examples(name: str, data_dir: Path) -> list[Example]:
    division = local(name, data_dir)
    return [e for split in SPLITS for e in division.splits[split]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones_and_no_row_is_lost_in_silence(name: str, data_dir: Path) -> None:
    division = local(name, data_dir)
    assert division.read == PUBLISHED[name]
    kept = sum(len(part) for part in division.splits.values())
    assert kept + division.unlabelled + sum(division.leaks.values()) == sum(PUBLISHED[name].values())


@pytest.mark.parametrize("name", [*SETS, "mmlu:all", "clinc150:in-scope,domains"])
def test_no_text_stands_in_two_splits_and_every_id_is_unique(name: str, data_dir: Path) -> None:
    division = local(name, data_dir)
    texts = {s: {normalise(e.context) for e in division.splits[s]} for s in SPLITS}
    assert not texts["train"] & texts["calibration"]
    assert not texts["train"] & texts["test"]
    assert not texts["calibration"] & texts["test"]
    everything = [e for s in SPLITS for e in division.splits[s]]
    assert len({e.id for e in everything}) == len(everything)
    assert all(e.context == e.context.strip() != "" for e in everything)


@pytest.mark.parametrize("name", SETS)
def test_registry_states_the_rows_of_each_split(name: str, data_dir: Path) -> None:
    division = local(name, data_dir)
    assert {s: len(division.splits[s]) for s in SPLITS} == dict(SETS[name].rows)
    assert min(SETS[name].rows.values()) > 100


def test_duplicates_and_leaks_by_number(data_dir: Path) -> None:
    banking = local("banking77", data_dir)
    assert banking.leaks == {"train": 8, "calibration": 3, "test": 0}
    assert banking.duplicates == {"train": 5, "calibration": 1, "test": 1}
    emotions = local("goemotions", data_dir)
    assert emotions.unlabelled == 54_263 - 36_308 - 4_548 - 4_590


def test_premises_and_passages_stay_together(data_dir: Path) -> None:
    for name, cut in (("snli", "\nHypothesis: "), ("boolq", "\n\nQuestion: ")):
        division = local(name, data_dir)
        shared = {s: {e.context.split(cut)[0] for e in division.splits[s]} for s in SPLITS}
        assert not shared["train"] & shared["calibration"]
        assert not shared["train"] & shared["test"]
        assert not shared["calibration"] & shared["test"]


# ---- byte traps ----


def test_banking77_keeps_line_breaks_inside_texts_and_odd_label_names(data_dir: Path) -> None:
    found = examples("banking77", data_dir)
    cells = [text for part in ("train", "test") for text, _ in local_csv(data_dir / f"banking77/{part}.csv", columns=2)]
    assert sum("\n" in text for text in cells) == 13
    assert sum(text != text.strip() for text in cells) == 12
    assert sum("\n" in e.context for e in found) == 1  # the other 12 stood at an end, where white space is dropped
    assert not any("\r" in e.context for e in found)
    assert {"Refund_not_showing_up", "reverted_card_payment?"} <= {e.labels["intent"] for e in found}
    assert Counter(e.labels["intent"] for e in local("banking77", data_dir).splits["test"]).most_common()[-1][1] == 40


def test_clinc150_variants_agree(data_dir: Path) -> None:
    plain, domains, scoped = (load(f"clinc150{v}", "test", data_dir=data_dir) for v in ("", ":domains", ":in-scope"))
    assert [e.id for e in plain] == [e.id for e in domains]
    assert all(
        e.labels == {"intent": p.labels["intent"], "domain": clinc.DOMAIN_OF[str(p.labels["intent"])]}
        for e, p in zip(domains, plain, strict=True)
    )
    assert {e.id: e.labels for e in scoped} == {e.id: e.labels for e in plain if e.labels["intent"] != "oos"}
    assert [len(f.options) for f in clinc.schema(("domains",)).fields] == [11, 151]
    assert [len(f.options) for f in clinc.schema(("in-scope", "domains")).fields] == [10, 150]


def test_clinc150_domains_are_those_of_the_published_file(data_dir: Path) -> None:
    import json

    published = json.loads((data_dir / "clinc150" / "domains.json").read_text())
    assert {domain: intents.split() for domain, intents in clinc.DOMAINS.items()} == published


def test_mmlu_keeps_choices_that_look_like_missing_values_and_joins_repeated_ones(data_dir: Path) -> None:
    found = examples("mmlu:all", data_dir)
    odd = [
        e
        for e in found
        if {"None", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"} & {o.value for o in e.schema["answer"].options}
    ]
    assert len(odd) == 12
    assert Counter(len(e.schema["answer"].options) for e in found) == {4: len(found) - 13, 3: 13}
    assert any("\r" in o.text or "\n" in o.text for e in found for o in e.schema["answer"].options)


def test_arc_has_three_to_five_options_and_numbered_keys(data_dir: Path) -> None:
    found = examples("arc", data_dir)
    assert Counter(len(e.schema["answer"].options) for e in found) == {4: len(found) - 25, 3: 15, 5: 10}


def test_goemotions_groups_are_those_of_the_published_files(data_dir: Path) -> None:
    groups = (data_dir / "goemotions/group/labels.txt").read_text().split()
    assert list(goemotions.EMOTIONS) == (data_dir / "goemotions/original/labels.txt").read_text().split()
    for part in ("train", "dev", "test"):
        rows = [
            [
                line.split("\t")[1]
                for line in gzip.decompress((data_dir / f"goemotions/{kind}/{part}.tsv.gz").read_bytes()).decode().split("\n")[:-1]
            ]
            for kind in ("original", "group")
        ]
        for emotion, group in zip(*rows, strict=True):
            if "," not in emotion:
                assert goemotions.GROUP_OF[goemotions.EMOTIONS[int(emotion)]] == groups[int(group)]


# ---- order, ids, hash ----


def test_a_prefix_is_a_sample_and_the_seed_changes_it(data_dir: Path) -> None:
    whole = load("banking77", "test", data_dir=data_dir)
    few = load("banking77", "test", 300, data_dir=data_dir)
    other = load("banking77", "test", 300, data_dir=data_dir, seed=1)
    assert few.examples == whole.examples[:300] == load("banking77", "test", 300, data_dir=data_dir).examples
    assert few.hash != other.hash
    assert len({e.labels["intent"] for e in few}) > 60  # the published file is sorted by label
    assert whole.hash == data_hash(whole) == data_hash(list(whole))
    assert whole.schema is whole[0].schema
    assert load("arc", "test", 1, data_dir=data_dir).schema is None


def test_the_hash_of_examples_stays_and_knows_no_rules() -> None:
    examples = list(load("synthetic", "test", 20))
    assert data_hash(examples) == "23998601410988d5"  # stands in committed results
    fields = examples[0].schema.fields
    ruled = Schema.of({**examples[0].schema.to_dict(), "rules": [{"not": {"severity": "critical", "needs_human": False}}]})
    shaped = Schema(fields, shape=Object((("all", Object(tuple((f.name, f.name) for f in fields))),)))
    for schema in (ruled, shaped):
        assert data_hash(replace(e, schema=schema) for e in examples) == "23998601410988d5"


def test_ids_do_not_depend_on_the_variant(data_dir: Path) -> None:
    assert {e.id for e in examples("arc:easy", data_dir)} < {e.id for e in examples("arc", data_dir)} | {"-"}
    assert named_set("mmlu:virology,astronomy") == named_set("mmlu:astronomy,virology")
    assert mmlu.chosen(()) == mmlu.DEFAULT_SUBJECTS
    assert set(mmlu.DEFAULT_SUBJECTS) < set(mmlu.SUBJECTS)


def test_normalised_text_ignores_case_width_and_white_space() -> None:
    assert normalise("A dog , ran .\r\n") == normalise("a  DOG, ran\u00a0.") == "adog,ran."
    assert split_of("A dog.", {"train": 0.5, "test": 0.5}) == split_of(" a dog .", {"train": 0.5, "test": 0.5})


# ---- the hub ----


@pytest.fixture(scope="module")
def hub(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    write_hub(data_dir, root)
    return root


@pytest.fixture
def on_the_hub(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets.load_dataset` reads the Parquet files of the test in the place of the hub's."""
    import datasets

    real = datasets.load_dataset
    monkeypatch.delenv("RLCD_DATA_DIR", raising=False)
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda repository, config, split: real(str(hub / repository), config, split=split, cache_dir=str(hub / "cache")),
    )


@pytest.mark.usefixtures("on_the_hub")
@pytest.mark.parametrize(
    "name",
    [
        "banking77",
        "clinc150",
        "clinc150:in-scope,domains",
        "boolq",
        "mmlu:miscellaneous,elementary_mathematics",
        "arc",
        "goemotions",
    ],
)
def test_the_hub_gives_the_same_examples(name: str, data_dir: Path) -> None:
    here = local(name, data_dir)
    there, source = divided(name)
    assert here == there
    assert source.startswith("hub: ")


@pytest.mark.usefixtures("on_the_hub")
def test_snli_from_the_hub_differs_in_white_space_alone(data_dir: Path) -> None:
    here = local("snli", data_dir)
    there, _ = divided("snli")
    assert (here.read, here.leaks, here.duplicates) == (there.read, there.leaks, there.duplicates)
    for split in SPLITS:
        pairs = list(zip(here.splits[split], there.splits[split], strict=True))
        assert all(a.id == b.id and a.labels == b.labels and normalise(a.context) == normalise(b.context) for a, b in pairs)


def test_offline_says_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.delenv("RLCD_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        UserError, match=r"(?s)'boolq' has no local files.*'google/boolq'.*reach the hub.*--data-dir.*rlcd-lite\[data\]"
    ):
        load("boolq", "test")
    monkeypatch.setattr("rlcd_lite.datasets.sources.hub_is_installed", lambda: False)
    with pytest.raises(
        UserError, match=r"`datasets` is not installed: give --data-dir .* go online with the extra rlcd-lite\[data\]"
    ):
        load("boolq", "test")


def test_the_environment_names_the_data_directory(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCD_DATA_DIR", str(data_dir))
    assert load("boolq", "test", 2).examples == load("boolq", "test", 2, data_dir=data_dir).examples
    with pytest.raises(UserError, match="'boolq' is not in the data directory"):
        load("boolq", "test", 2, data_dir=tmp_path)


def test_the_package_imports_neither_torch_nor_the_hub_library() -> None:
    code = "import sys, rlcd_lite.datasets; sys.exit(bool({'torch', 'datasets', 'pandas', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- mistakes ----

ONE_FIELD = Schema((Field("a", "choice", (Option("x"), Option("y"))),))


@pytest.mark.parametrize(
    ("name", "split", "n", "schema", "sentence"),
    [
        ("bankin77", "test", None, None, r"data set 'bankin77' is unknown: did you mean 'banking77'"),
        ("qqqq", "test", None, None, r"data set 'qqqq' is unknown: use one of synthetic, banking77.* \.csv"),
        ("mmlu:astronmy", "test", None, None, r"data set 'mmlu' has no 'astronmy': did you mean 'astronomy'"),
        ("mmlu:", "test", None, None, r"data set 'mmlu' has no '': use one of all, .*58 in all"),
        ("boolq:easy", "test", None, None, r"data set 'boolq' has no variants: leave ':easy' out"),
        ("synthetic:easy", "test", 3, None, r"takes nothing after a colon"),
        ("synthetic", "test", None, None, r"data set 'synthetic' has no end: say how many"),
        ("synthetic", "test", 3, ONE_FIELD, r"data set 'synthetic' has a schema of its own"),
        ("boolq", "test", 3, ONE_FIELD, r"data set 'boolq' has a schema of its own"),
        ("boolq", "test", 925, None, r"data set 'boolq' has 924 rows in its test split, not 925: ask for at most 924"),
        ("boolq", "test", 0, None, r"n is 0: ask for at least one row"),
        ("boolq", "dev", 3, None, r"split 'dev' is unknown: use one of train, calibration, test"),
    ],
)
def test_a_mistake_is_one_sentence(
    name: str, split: str, n: int | None, schema: Schema | None, sentence: str, data_dir: Path
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        load(name, split, n, schema=schema, data_dir=data_dir)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_damaged_local_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "banking77"
    folder.mkdir()
    with pytest.raises(UserError, match=r"train\.csv' does not exist"):
        load("banking77", "test", data_dir=tmp_path)
    (folder / "train.csv").write_text("text,category\nhello,card_arrival,more\n")
    with pytest.raises(UserError, match=r"row 2 of data file .*train\.csv' has 3 columns instead of 2"):
        load("banking77", "test", data_dir=tmp_path)
    (folder / "train.csv").write_text("text,category\nhello,card_arival\n")
    (folder / "test.csv").write_text("text,category\n")
    with pytest.raises(UserError, match=r"'banking77' has a wrong label: field 'intent' has no option 'card_arival'"):
        load("banking77", "test", data_dir=tmp_path)
    (folder / "train.csv").write_bytes(b"text,category\n\xff,card_arrival\n")
    with pytest.raises(UserError, match=r"train\.csv' is damaged"):
        load("banking77", "test", data_dir=tmp_path)


@pytest.mark.parametrize("content", ['{"question": "is it', '{"question": "is it", "answer": true}', '["is it"]'])
def test_local_files_of_another_form_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq/dev.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(UserError, match=r"data set 'boolq' from '.*boolq' is not as published \(.*: get it anew"):
        load("boolq", "test", data_dir=tmp_path)
