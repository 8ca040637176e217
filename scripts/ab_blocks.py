"""The tables and sentences about the arms over their seeds, for `docs.py`: every number is read from FOLDER/summary.json."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from rlcd_lite.decision_table import SIGNALS
from rlcd_lite.report import interval, number

ROOT = Path(__file__).resolve().parents[1]

ARMS = {  # in the order of the tables, with what each optimises
    "base": "– (untrained)",
    "warm_up": "cross-entropy on the choice (the start of all arms below)",
    "grpo_binary": "`1[correct]`",
    "grpo_brier": "`−(c − correct)²`",
    "grpo_brier_dec": "Brier, decoupled advantages",
    "grpo_rlcr": "`correct − (c − correct)²`",
    "exact_rlcr": "the same, summed over all options and levels",
    "rlcr_conditioned": "the same, confidence stated under the chosen answer",
    "dist_brier": "Brier score of the whole distribution",
    "dist_rlcr": "that, and Brier of the stated confidence",
    "sft_ce": "supervised: cross-entropy, and Brier of the stated confidence",
    "sft_brier": "supervised: Brier score, and Brier of the stated confidence",
}
# the seed's Qwen2.5-0.5B: accuracy, stated ECE, stated Brier, softmax ECE, softmax_ts ECE, best AURC
SEED = {
    "base": ("0.49", "0.395", "0.393", "0.180", "0.169", "0.311"),
    "grpo_binary": ("0.76", "0.352", "0.402", "0.232", "0.106", "0.088"),
    "grpo_brier": ("0.21", "0.086", "0.176", "0.756", "0.216", "0.730"),
    "grpo_brier_dec": ("0.76", "0.105", "0.208", "0.229", "0.096", "0.063"),
    "grpo_rlcr": ("0.78", "0.084", "0.176", "0.211", "0.125", "0.067"),
}


def ab_arms(folder: str) -> str:
    """The arms, on synthetic tickets beside the seed's: means over the seeds with two-level intervals."""
    beside = SEED if "synthetic" in folder else {}
    known = [arm["bayes_accuracy"] for arm in read_arms(folder).values() if "bayes_accuracy" in arm]
    bayes = f" (Bayes {number(known[0])})" if known else ""
    lines = [
        f"| arm | optimises | seeds | acc{bayes} | stated ECE (floor) | stated Brier | softmax ECE | softmax_ts ECE "
        "| best AURC (signal) |",
        "| --- | --- | --: " + "| --- " * 6 + "|",
    ]
    for name, arm in read_arms(folder).items():
        s = arm["signals"]
        best = min(SIGNALS, key=lambda signal: float(s[signal]["aurc"]["estimate"]))
        ours = (
            interval(arm["accuracy"]),
            f"{interval(s['stated']['ece'])} ({number(s['stated']['null_floor']['upper'])})",
            interval(s["stated"]["brier"]),
            interval(s["softmax"]["ece"]),
            interval(s["softmax_ts"]["ece"]),
            f"{interval(s[best]['aurc'])} ({best})",
        )
        cells = [f"{a}; {b}" for a, b in zip(ours, beside[name], strict=True)] if name in beside else list(ours)
        seeds = str(sum(seed >= 0 for seed in arm["seeds"]) or "–")
        lines.append(f"| `{name}` | {ARMS[name]} | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ab_full(folder: str) -> str:
    """Every arm and signal."""
    lines = ["| arm | signal | acc | ECE (floor) | Brier | REL | RES | log loss | AURC | mean conf | true |", "| --- " * 11 + "|"]
    for name, arm in read_arms(folder).items():
        for signal in SIGNALS:
            s = arm["signals"][signal]
            cells = [
                f"`{name}`",
                signal,
                number(arm["accuracy"]["estimate"]),
                f"{interval(s['ece'])} ({number(s['null_floor']['upper'])})",
                interval(s["brier"]),
                number(s["reliability"]),
                number(s["resolution"]["estimate"]),
                number(s["log_loss"]["estimate"]),
                interval(s["aurc"]),
                number(s["mean_confidence"], 2),
                number(s.get("posterior_error")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ab_seeds(folder: str) -> str:
    """What each seed found by itself."""
    lines = ["| arm | seed | acc | stated Brier | stated ECE | stated RES | softmax ECE | softmax_ts ECE |", "| --- " * 8 + "|"]
    for name, arm in read_arms(folder).items():
        for seed in map(str, arm["seeds"]):
            s = arm["signals"]
            values = [
                arm["accuracy"],
                *(s["stated"][metric] for metric in ("brier", "ece", "resolution")),
                s["softmax"]["ece"],
                s["softmax_ts"]["ece"],
            ]
            cells = [f"`{name}`", "–" if seed == "-1" else seed, *(number(value["seeds"][seed]) for value in values)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ab_comparisons(folder: str) -> str:
    """The primary comparison, then the secondary ones."""
    lines = ["| difference | signal, metric | mean (95 %) | by seed | p | p, Holm |", "| --- " * 6 + "|"]
    for c in read_summary(folder)["comparisons"]:
        what = ", ".join(filter(None, (c["signal"], c["metric"])))
        seeds = ", ".join(number(value) for value in c["seeds"].values())
        holm = number(c["p_holm"]) if "p_holm" in c else "primary"
        lines.append(f"| `{c['first']}` − `{c['second']}` | {what} | {interval(c)} | {seeds} | {number(c['p'])} | {holm} |")
    return "\n".join(lines) + "\n"


def ab_primary(folder: str) -> str:
    """The primary comparison as a sentence."""
    found = read_summary(folder)["comparisons"][0]
    seeds = ", ".join(number(value) for value in found["seeds"].values())
    said = "**the proper reward is the more honest one**" if shown(found) and found["high"] < 0 else "**nothing is shown**"
    return (
        f"Named beforehand, Brier score of the stated confidence, rlcr less binary, paired over examples and seeds: "
        f"{interval(found)}; by seed {seeds}: {said}.\n"
    )


def ab_rules(folder: str) -> str:
    """The rule before and after it is enforced: shares of tickets, and accuracy and Brier score of two fields, means over seeds."""
    names = ("severity", "needs_human")
    head = " | ".join(f"{name}: accuracy | {name}: Brier" for name in names)
    lines = [f"| arm | broken before, by seed | after | {head} |", "| --- " * 7 + "|"]
    for arm, found in read_arms(folder).items():
        runs = list(found["rules"].values())
        before = ", ".join(number(run["before"][0]["rate"]["estimate"]) for run in runs)
        cells = [f"`{arm}`", before, number(max(run["after"]["softmax"]["estimate"] for run in runs))]
        for name in names:
            for metric in ("accuracy", "brier"):
                parts = [run["fields"][name]["softmax"][metric] for run in runs]
                cells.append(" → ".join(number(fmean(part[when] for part in parts)) for when in ("before", "after")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ab_fusion(folder: str) -> str:
    """What the fused confidence gains on the best single signal, both calibrated on the 300 calibration tickets; by seed."""
    lines = ["| arm | Brier, fused − best single, by seed | AURC, fused − best single, by seed |", "| --- " * 3 + "|"]
    for name, arm in read_arms(folder).items():
        cells = [", ".join(interval(d[metric]) for d in arm["fusion"].values()) for metric in ("brier", "aurc")]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ab_training(folder: str) -> str:
    """What the training logs say: first and last ten steps of each arm, means over seeds."""
    keys = ("acc_greedy", "stated_conf_mean", "softmax_conf_mean", "choice_entropy", "choice_grad_mult")
    lines = [f"| arm | {' | '.join(keys)} | minutes |", "| --- " * (len(keys) + 2) + "|"]
    for name, arm in read_arms(folder).items():
        runs = [log(folder, name, seed) for seed in arm["seeds"] if seed >= 0]
        if not runs:
            continue
        cells = []
        for key in keys:
            ends = [
                fmean(v for run in runs for row in run[part] if (v := row.get(key)) is not None)
                for part in (slice(None, 10), slice(-10, None))
                if runs[0][0].get(key) is not None
            ]
            cells.append(" → ".join(number(end, 2) for end in ends) or "–")
        minutes = fmean(sum(row["seconds"] for row in run) / 60 for run in runs)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {minutes:.0f} |")
    return "\n".join(lines) + "\n"


def log(folder: str, arm: str, seed: int) -> list[dict[str, Any]]:
    """The steps of a run."""
    with gzip.open(ROOT / folder / "runs" / f"{arm}-{seed}" / "metrics.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def shown(comparison: dict[str, Any]) -> bool:
    """Whether a difference is claimed: its interval is on one side of 0, and so are all seeds."""
    return bool(comparison["agree"] and comparison["low"] * comparison["high"] > 0)


def read_summary(folder: str) -> dict[str, Any]:
    """What `ab_table.py` wrote."""
    found: dict[str, Any] = json.loads((ROOT / folder / "summary.json").read_text(encoding="utf-8"))
    return found


def read_arms(folder: str) -> dict[str, Any]:
    """The arms that were evaluated, in the order of the tables."""
    found = read_summary(folder)["arms"]
    return {name: found[name] for name in ARMS if name in found}


BLOCKS = (ab_arms, ab_full, ab_seeds, ab_comparisons, ab_primary, ab_rules, ab_fusion, ab_training)
