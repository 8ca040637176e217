"""Write the generated blocks of README.md and docs/*.md; with --check, only say which file is stale.

A block stands between `<!-- generated: NAME ARGUMENT -->` and `<!-- end -->`, where NAME is one of `BLOCKS`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import ab_blocks
import ab_verdicts

from rlcd_lite.datasets import sets_table
from rlcd_lite.report import interval, number
from rlcd_lite.summary import read_eval

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- generated: (\w+)(?: ([^\n]+?))? -->\n)(?:(?!<!-- generated).)*?(<!-- end -->)", re.DOTALL)


def help_text(command: str) -> str:
    """What ``rlcd-lite COMMAND --help`` prints on a terminal of 100 columns."""
    run = subprocess.run(
        [sys.executable, "-m", "rlcd_lite", *command.split(), "--help"],
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return f"```text\n$ rlcd-lite {command} --help\n{run.stdout.strip()}\n```\n"


def tree(folder: str) -> str:
    """Every Python file below a folder with the first sentence of its docstring."""
    lines = []
    for path in sorted((ROOT / folder).rglob("*.py"), key=lambda p: (len(p.relative_to(ROOT / folder).parts) > 1, p)):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"{path.relative_to(ROOT / folder).as_posix():32} {docstring.split(chr(10))[0]}".rstrip())
    return f"```text\n{folder}/\n" + "\n".join(f"  {line}" for line in lines) + "\n```\n"


def include(path: str) -> str:
    """A file of the repository, such as a benchmark's output."""
    return (ROOT / path).read_text(encoding="utf-8").strip() + "\n"


def sets(_: str) -> str:
    """The registry of data sets."""
    return sets_table() + "\n"


# The seed's figures for the untrained Qwen2.5-0.5B-Instruct: accuracy, then ECE of softmax, stated and softmax_ts, then flip rate
SEED_PUBLIC = {
    "boolq": ("0.62", "0.264", "0.087", "0.097", "0.52"),
    "mmlu": ("0.49", "0.155", "0.202", "0.108", "0.46"),
    "banking77": ("0.015", "0.249", "0.819", "0.033", "–"),
    "clinc150": ("0.020", "0.273", "0.866", "0.027", "–"),
}
# accuracy, ECE, Brier, REL, RES, log loss, AURC, mean confidence; the seed's tickets are not ours
SEED_SYNTHETIC = {
    "softmax": ("0.490", "0.180", "0.254", "0.053", "0.048", "0.712", "0.371", "0.61"),
    "stated": ("0.490", "0.395", "0.393", "0.166", "0.023", "1.112", "0.568", "0.77"),
    "softmax_ts": ("0.490", "0.169", "0.223", "0.044", "0.071", "0.636", "0.311", "0.46"),
}


def base_public(_: str) -> str:
    """The embedded model on the seed's public sets, beside the seed's model; from results/base/public/eval.json."""
    lines = ["| data set | options | acc | softmax ECE | stated ECE | temp-scaled ECE | order flip rate |", "| --- " * 7 + "|"]
    for result in read_eval(ROOT / "results/base/public/eval.json")["results"]:
        s, seed = result["signals"], SEED_PUBLIC[result["dataset"]]
        ours = [interval(result["accuracy"]), *(interval(s[name]["ece"]) for name in ("softmax", "stated", "softmax_ts"))]
        cells = [f"{a}; {b}" for a, b in zip([*ours, interval(result["order"]["flip_rate"])], seed, strict=True)]
        options = {"boolq": "2", "mmlu": "4", "banking77": "77", "clinc150": "151"}[result["dataset"]]
        lines.append(f"| {result['dataset']} | {options} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def base_synthetic(_: str) -> str:
    """The embedded model on synthetic tickets, beside the seed's model on the seed's; from results/base/synthetic/eval.json."""
    lines = ["| signal | acc | ECE (null floor) | Brier | REL | RES | log loss | AURC | mean conf |", "| --- " * 9 + "|"]
    (result,) = read_eval(ROOT / "results/base/synthetic/eval.json")["results"]
    for name, s in result["signals"].items():
        ours = (
            interval(result["accuracy"]),
            f"{interval(s['ece'])} ({number(s['ece']['null_floor']['upper'])})",
            interval(s["brier"]),
            number(s["murphy"]["reliability"]),
            number(s["murphy"]["resolution"]),
            number(s["log_loss"]["estimate"]),
            interval(s["aurc"]),
            number(s["mean_confidence"], 2),
        )
        seed = SEED_SYNTHETIC.get(name, ("–",) * 8)
        lines.append(f"| {name} | " + " | ".join(f"{a}; {b}" for a, b in zip(ours, seed, strict=True)) + " |")
    return "\n".join(lines) + "\n"


def starts(folder: str) -> str:
    """Runs that looked for a warm start: accuracy in training over their first and last ten steps, from FOLDER/*.jsonl."""
    lines = ["| run | steps | accuracy, first 10 steps | last 10 |", "| --- | --: | --: | --: |"]
    for path in sorted((ROOT / folder).glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        first, last = (fmean(row["acc_greedy"] for row in part) for part in (rows[:10], rows[-10:]))
        lines.append(f"| {path.stem} | {len(rows)} | {first:.2f} | {last:.2f} |")
    return "\n".join(lines) + "\n"


SETS = {"boolq": 2, "mmlu": 4, "arc-easy": 4, "banking77": 77, "clinc150-in-scope": 150, "clinc150-none": 151, "clinc150": 151}
MODES = (
    "labels-1",
    "labels-1, contexts",
    "labels-4",
    "labels-8",
    "tournament",
    "verbatim-constrained",
    "verbatim-sum",
    "verbatim-cf",
    "verbatim-sum, content-free",
    "verbatim-sum, contexts",
    "verbatim-mean",
    "verbatim-mean, contexts",
)


def options_orders(_: str) -> str:
    """Labels in 1, 2, 4, 8 orders and as many as auto takes; from results/options/*--orders/orders.json."""
    lines = [
        "| data set | K | accuracy | softmax ECE | ECE after T | flips | total variation | auto: orders tried, answers as all 8 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for path in sorted((ROOT / "results/options").glob("*--orders/orders.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for count in ("1", "2", "4", "8", "auto"):
            e = found[count]
            auto = f"{interval(e['tried'], 2)}, {interval(e['agreement'])}" if count == "auto" else ""
            cells = [
                path.parent.name.removesuffix("--orders"),
                count,
                interval(e["accuracy"]),
                interval(e["softmax"]["ece"]),
                interval(e["softmax_ts"]["ece"]),
                interval(e["order"]["flip_rate"]),
                interval(e["order"]["total_variation"]),
                auto,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _options_summary() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "results/options/summary.json").read_text(encoding="utf-8"))
    places = {(d, m): (i, j) for i, d in enumerate((*SETS, "clinc150-hierarchy")) for j, m in enumerate(MODES)}
    return sorted(found, key=lambda entry: places[entry["dataset"], entry["mode"]])


def options(_: str) -> str:
    """Every way to score options on every set; from results/options/summary.json."""
    lines = [
        "| data set | options | way | accuracy | softmax ECE | ECE after T | AURC after T | s a text |",
        "| --- | --: | --- | --- | --- | --- | --- | --: |",
    ]
    for e in _options_summary():
        name = e["mode"].replace("verbatim-cf", "verbatim-sum, content-free") + (" †" if e["derived"] else "")
        cells = [
            e["dataset"],
            str(SETS.get(e["dataset"], 150)),
            name,
            interval(e["accuracy"]),
            interval(e["softmax"]["ece"]),
            interval(e["softmax_ts"]["ece"]),
            interval(e["softmax_ts"]["aurc"]),
            number(e["seconds"], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def options_scope(_: str) -> str:
    """Out-of-scope scores of clinc150 with none of the above; from results/options/summary.json."""
    lines = ["| way | score | AUROC | false alarm at 90 % recall | ECE raw; Platt |", "| --- | --- | --- | --: | --- |"]
    for e in _options_summary():
        if not e.get("scope"):
            continue
        way, found = e["mode"] + (" †" if e["derived"] else ""), e["scope"]
        for name, score in found["scores"].items():
            honest = f"{number(found['raw']['ece'])}; {number(found['platt']['ece'])}" if name == "none_of_the_above" else ""
            alarm = number(score["false_alarm_at_90_recall"])
            lines.append(f"| {way} | {name} | {interval(score['auroc'])} | {alarm} | {honest} |")
    return "\n".join(lines) + "\n"


def options_trained(_: str) -> str:
    """banking77 before and after training; from results/options."""
    lines = ["| run | accuracy | signal | ECE | AURC | Brier |", "| --- | --- | --- | --- | --- | --- |"]
    for path in sorted((ROOT / "results/options").glob("trained-*/eval.json")):
        for result in read_eval(path)["results"]:
            for name, s in result["signals"].items():
                cells = [path.parent.name, interval(result["accuracy"]), name, *(interval(s[k]) for k in ("ece", "aurc", "brier"))]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def acting_calibrators(table: str) -> str:
    """Every calibrator of every signal on one table's test split; from results/acting/calibrators.json."""
    found = json.loads((ROOT / "results/acting/calibrators.json").read_text(encoding="utf-8"))[table]
    known = "posterior_error" in found["methods"][0]
    lines = [
        f"| signal | calibrator | Brier | log loss | REL | RES | ECE | floor | AURC |{' true |' if known else ''}",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |" + (" --- |" if known else ""),
    ]
    for m in found["methods"]:
        if m["method"] == "selected":
            continue
        taken = sum(f[m["signal"]]["kind"] == m["method"] for f in found["fields"].values())
        cells = [
            m["signal"],
            m["method"] + (f" ({taken} of {len(found['fields'])})" if taken else ""),
            *(number(m[key]) for key in ("brier", "log_loss", "reliability_debiased", "resolution_debiased")),
            interval(m["ece"]),
            number(m["ece"]["null_floor"]["mean"]),
            number(m["aurc"]),
            *([number(m["posterior_error"]["mean_absolute"])] if known else []),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def acting_differences(table: str) -> str:
    """What calibration gains, paired; from results/acting/calibrators.json."""
    found = json.loads((ROOT / "results/acting/calibrators.json").read_text(encoding="utf-8"))[table]
    lines = ["| difference | Brier | AURC |", "| --- | --- | --- |"]
    said = {"single": "best single signal", "chosen": "confidence to act on"}
    for d in found["differences"]:
        (one, how), (two, other) = d["first"], d["second"]
        name = f"{said.get(one, one)}, {how} − {said.get(two, two)}, {other}"
        lines.append(f"| {name} | {interval(d['brier'])} | {interval(d['aurc'])} |")
    return "\n".join(lines) + "\n"


def acting_risks(_: str) -> str:
    """Certified thresholds over many draws of held-out rows; from results/acting/summary.json."""
    lines = [
        "| table | field | accuracy | risk promised | draws certified | automated | risk kept | certificates broken |",
        "| --- | --- | --- | --- | --: | --: | --: | --: |",
    ]
    for name, entry in _acting():
        for field, f in entry["fields"].items():
            for risk, r in f["risks"].items():
                shares = [f"{r[key]:.0%}" for key in ("certified", "coverage")]
                cells = [name, field, number(f["accuracy"]), risk, *shares, number(r["risk"]), f"{r['broken']:.1%}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def acting_sets(_: str) -> str:
    """Coverage and size of prediction sets over many draws of held-out rows; from results/acting/summary.json."""
    lines = [
        "| table | field | sets | coverage (± 2 standard errors) | mean size |",
        "| --- | --- | --- | --: | --: |",
    ]
    for name, entry in _acting():
        for field, f in entry["fields"].items():
            for kind, found in f["sets"].items():
                method, alpha = kind.rsplit(" ", 1)
                if alpha == "0.1":
                    coverage = f"{number(found['coverage'])} ± {number(found['band'])}"
                    lines.append(f"| {name} | {field} | {method} | {coverage} | {number(found['size'], 2)} |")
    return "\n".join(lines) + "\n"


def _acting() -> list[tuple[str, Any]]:
    return list(json.loads((ROOT / "results/acting/summary.json").read_text(encoding="utf-8")).items())


BLOCKS = {block.__name__: block for block in ab_blocks.BLOCKS + ab_verdicts.BLOCKS} | {
    "acting_calibrators": acting_calibrators,
    "acting_differences": acting_differences,
    "acting_risks": acting_risks,
    "acting_sets": acting_sets,
    "options": options,
    "options_orders": options_orders,
    "options_scope": options_scope,
    "options_trained": options_trained,
    "help": help_text,
    "tree": tree,
    "include": include,
    "sets": sets,
    "base_public": base_public,
    "base_synthetic": base_synthetic,
    "starts": starts,
}


def fresh(text: str) -> str:
    """A page with every generated block written anew."""
    return BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]](m[3] or "") + m[4], text)


def main() -> None:
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if (new := fresh(text)) != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    if "--check" in sys.argv:
        sys.exit(bool(stale))


if __name__ == "__main__":
    main()
