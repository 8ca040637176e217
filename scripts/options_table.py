"""results/options: tables of many options and orders → summary.json, from which docs/options.md has its figures.

    uv run --all-extras python scripts/options_table.py results/options

A folder DATASET--MODE is the output of one `rlcd-lite eval`. From scores that were read as plain sums this adds what the priors
and the mean per token make of them, which is arithmetic on the same table: a prior over contexts is the mean over the calibration
split, whose labels are not looked at, and the content-free one is measured here once (content_free.json). The same is done for
labels by their place, and for clinc150's requests in scope, which are asked in the same words where no option is listed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlcd_lite.calibration import Floats
from rlcd_lite.datasets import banking77, clinc150
from rlcd_lite.decision_table import CALIBRATION, DecisionRow, read_table, select
from rlcd_lite.engine import DecisionEngine
from rlcd_lite.priors import CONTENT_FREE
from rlcd_lite.summary import order_summary, read_eval, scope_summary, summarise

SCHEMAS = {"banking77": banking77.SCHEMA, "clinc150-none": clinc150.schema(("none",))}
PAUSED = {"banking77--labels-1", "banking77--verbatim-constrained", "clinc150--labels-1"}  # stopped for a while: no time is known
Rows = list[DecisionRow]


def main() -> None:
    folder = Path(sys.argv[1])
    paths = [path.parent for path in sorted(folder.glob("*--*/eval.json")) if not path.parent.name.startswith("trained")]
    found = [entry for path in paths for entry in entries(path, folder / "content_free.json")]
    text = json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")


def entries(path: Path, content_free: Path) -> Iterator[dict[str, Any]]:
    """The figures of one evaluation and of what follows from its table."""
    dataset, _, mode = path.name.partition("--")
    (result,) = read_eval(path / "eval.json")["results"]
    rows = read_table(path / result["table"])
    record = path / result["table"].replace(".csv.gz", ".json")
    texts = len({(row.split, row.example) for row in rows})
    seconds = None if path.name in PAUSED else json.loads(record.read_text(encoding="utf-8"))["seconds"] / texts
    common = {"seconds": seconds, "scope": (result.get("scope") or {}).get("intent")}
    yield {"dataset": dataset, "mode": mode, "derived": False} | common | figures(rows)
    if mode == "labels-1":
        yield {"dataset": dataset, "mode": "labels-1, contexts", "derived": True} | common | figures(by_place(rows))
    if mode != "verbatim-sum":
        return
    if not content_free.exists():
        content_free.write_text(json.dumps(measured()) + "\n", encoding="utf-8")
    known = json.loads(content_free.read_text(encoding="utf-8"))[dataset]
    tokens, nothing = np.array(known["tokens"]), np.array(known["scores"])
    contexts = np.mean([row.logits for row in select(rows, CALIBRATION)], axis=0)
    derived = {
        "verbatim-sum": rows,
        "verbatim-sum, content-free": less(rows, nothing),
        "verbatim-sum, contexts": less(rows, contexts),
        "verbatim-mean": less(rows, 0 * nothing, tokens),
        "verbatim-mean, contexts": less(rows, contexts, tokens),
    }
    for name, changed in derived.items():
        out: dict[str, Any] = {"mode": name, "derived": True, "seconds": common["seconds"]}
        if name != "verbatim-sum":
            yield {"dataset": dataset} | out | {"scope": scope(changed, dataset)} | figures(changed)
        if dataset == "clinc150-none":
            inside = [replace(r, logits=r.logits[:-1]) for r in changed if r.label < len(r.logits) - 1]
            yield {"dataset": "clinc150-in-scope"} | out | figures(inside)


def figures(rows: Rows) -> dict[str, Any]:
    found = summarise(rows)
    out: dict[str, Any] = {key: found[key] for key in ("accuracy", "contexts")}
    for name in ("softmax", "softmax_ts"):
        out[name] = {key: found["signals"][name][key] for key in ("ece", "aurc", "brier")}
    return out | {"order": order_summary(rows)}


def scope(rows: Rows, dataset: str) -> dict[str, Any] | None:
    return scope_summary(rows, "intent") if dataset == "clinc150-none" else None


def less(rows: Rows, prior: Floats, tokens: Floats | int = 1) -> Rows:
    """The rows with a prior (K,) subtracted from their scores, which are then divided by the options' tokens."""
    return [replace(row, logits=tuple(((np.array(row.logits) - prior) / tokens).tolist())) for row in rows]


def by_place(rows: Rows) -> Rows:
    """Labels' logits less their mean by place among as many options; only the schema's own order says which place is whose."""
    kept = [row for row in rows if not row.split.startswith("order-")]
    seen = select(kept, CALIBRATION)
    means = {n: np.mean([r.logits for r in seen if len(r.logits) == n], axis=0) for n in {len(r.logits) for r in seen}}
    return [replace(r, logits=tuple((np.array(r.logits) - means.get(len(r.logits), 0.0)).tolist())) for r in kept]


def measured() -> dict[str, Any]:
    """Tokens of every option, and its score over the text that says nothing."""
    engine = DecisionEngine.load("smollm2", dtype="bfloat16", scoring="verbatim", prior="none")
    out = {}
    for name, schema in SCHEMAS.items():
        ((scores,),) = engine.score_runs([(schema, [CONTENT_FREE])])
        (branch,) = engine.prompt(schema).branches
        out[name] = {"tokens": [len(tokens) for tokens in branch.choice.spelt], "scores": scores.choice.tolist()}
    return out


if __name__ == "__main__":
    main()
