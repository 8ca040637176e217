"""What was aimed at, and the seed's findings, each with the verdict that follows from FOLDER/summary.json; for `docs.py`."""

from __future__ import annotations

import json
from statistics import fmean

from ab_blocks import ROOT, log, read_arms, read_summary, shown

from rlcd_lite.report import interval, number
from rlcd_lite.rewards import confidence_grid
from rlcd_lite.summary import read_eval

AIM_ECE, AIM_TIMES, AIM_RESOLUTION, AIM_AURC, AIM_RAW = 0.05, 3, 0.02, 0.02, 0.03  # of issue 8


def ab_aims(folder: str) -> str:
    """What was aimed at beforehand, and what came out."""
    arms = read_arms(folder)
    stated = {name: arm["signals"]["stated"] for name, arm in arms.items()}
    rlcr, binary = stated["grpo_rlcr"], stated["grpo_binary"]
    above = rlcr["ece"]["estimate"] - rlcr["null_floor"]["upper"]
    base_rate = arms["grpo_rlcr"]["base_rate_brier"]
    rates = arms["grpo_rlcr"]["accuracy"]["seeds"].values()
    constant = fmean(rate * (1 - rate) + min((rate - level) ** 2 for level in confidence_grid("5", 2)) for rate in rates)
    times = binary["ece"]["estimate"] / rlcr["ece"]["estimate"]
    rows = [
        (f"rlcr: stated ECE at most {AIM_ECE} above the null floor", f"{number(above)} above", above <= AIM_ECE),
        (
            "rlcr: stated Brier better than its own base rate's",
            f"{interval(rlcr['brier'])} against {number(base_rate)}; the grid's best single level: {number(constant)}",
            rlcr["brier"]["estimate"] < base_rate,
        ),
        (f"binary: stated ECE at least {AIM_TIMES} × rlcr's", f"{times:.1f} ×", times >= AIM_TIMES),
    ]
    if "rlcr_conditioned" in arms:
        own = arms["rlcr_conditioned"]["signals"]
        gap = own["stated_mean"]["aurc"]["estimate"] - own["softmax_ts"]["aurc"]["estimate"]
        resolution = own["stated_mean"]["resolution"]
        rows += [
            (
                f"conditioned confidence: resolution at least {AIM_RESOLUTION}",
                interval(resolution),
                resolution["estimate"] >= AIM_RESOLUTION,
            ),
            (f"its AURC within {AIM_AURC} of the calibrated softmax's", f"{number(gap)} apart", gap <= AIM_AURC),
        ]
    raw = {name: arms[name]["signals"]["softmax"]["ece"] for name in ("dist_brier", "sft_brier") if name in arms}
    if raw:
        best = min(raw.values(), key=lambda found: float(found["estimate"]))
        said = "; ".join(f"{name} {interval(found)}" for name, found in raw.items())
        rows.append((f"dist-brier or sft-brier: raw softmax ECE at most {AIM_RAW}", said, best["estimate"] <= AIM_RAW))
    runs = [run for arm in arms.values() for run in arm["rules"].values()]
    worst = max(run["after"]["softmax"]["estimate"] for run in runs)
    lost = min(f["softmax"]["accuracy"]["difference"]["high"] for run in runs for f in run["fields"].values())
    rows.append(
        (
            "rules: no violation when enforced, and no accuracy lost",
            f"{number(worst)}; worst upper end {number(lost)}",
            worst == 0 and lost >= 0,
        )
    )
    lines = ["| aim | found | met |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {aim} | {found} | {'yes' if met else 'no'} |" for aim, found, met in rows)]) + "\n"


def ab_findings(folder: str) -> str:
    """The seed's findings: what it says, what was found here, and whether it holds."""
    arms, found = read_arms(folder), read_summary(folder)["comparisons"]
    signals = {name: arm["signals"] for name, arm in arms.items()}
    by = {(c["first"], c["second"], c["signal"], c["metric"]): c for c in found}
    trap = by["grpo_brier", "warm_up", "", "accuracy"]
    paid = [[row["choice_grad_mult"] for row in log(folder, "grpo_brier", seed)] for seed in arms["grpo_brier"]["seeds"]]
    first, last = (fmean(v for run in paid for v in run[part]) for part in (slice(None, 5), slice(-5, None)))
    primary, same = by["grpo_rlcr", "grpo_binary", "stated", "brier"], by["grpo_rlcr", "grpo_binary", "", "accuracy"]
    rlcr, binary, own = signals["grpo_rlcr"], signals["grpo_binary"], signals["rlcr_conditioned"]
    saturated = [by[arm, "warm_up", "softmax", "ece"] for arm in ("grpo_rlcr", "grpo_binary")]
    broken = {name: fmean(run["before"][0]["rate"]["estimate"] for run in arm["rules"].values()) for name, arm in arms.items()}
    drifts = min(broken["grpo_rlcr"], broken["grpo_binary"]) > broken["warm_up"]
    base = {result["dataset"]: result for result in read_eval(ROOT / "results/base/public/eval.json")["results"]}
    ways = {(e["dataset"], e["mode"]): e for e in json.loads((ROOT / "results/options/summary.json").read_text(encoding="utf-8"))}
    listed, verbatim = (ways["banking77", mode]["accuracy"] for mode in ("labels-1", "verbatim-sum, contexts"))
    orders = json.loads((ROOT / "results/options/mmlu--orders/orders.json").read_text(encoding="utf-8"))
    moved = [orders[k]["order"]["total_variation"] for k in ("1", "4")]
    rows = [
        (
            "1. Brier on the stated confidence alone is a trap: accuracy falls",
            f"accuracy less the start's {interval(trap)}; `choice_grad_mult` {number(first, 2)} in the first five steps, "
            f"{number(last, 2)} in the last (above 0 right answers pay)",
            "reproduced" if shown(trap) and trap["high"] < 0 else "not reproduced",
        ),
        (
            "2. rlcr gets accuracy and a calibrated stated confidence, binary only accuracy",
            f"accuracy, rlcr less binary, {interval(same)}; stated ECE {interval(rlcr['stated']['ece'])} against "
            f"{interval(binary['stated']['ece'])}; stated Brier, difference {interval(primary)}",
            "reproduced" if shown(primary) and primary["high"] < 0 and same["low"] <= 0 <= same["high"] else "refined",
        ),
        (
            "3. Calibrated is not informative: no resolution",
            f"resolution of rlcr's stated confidence {interval(rlcr['stated']['resolution'])}, AURC "
            f"{interval(rlcr['stated']['aurc'])} against {interval(rlcr['softmax_ts']['aurc'])} of its softmax_ts; "
            f"stated under the chosen answer (mean): resolution "
            f"{interval(own['stated_mean']['resolution'])}, AURC {interval(own['stated_mean']['aurc'])}",
            "reproduced" if rlcr["stated"]["resolution"]["estimate"] < AIM_RESOLUTION / 4 else "not reproduced",
        ),
        (
            "4. RL collapses the raw softmax; one temperature repairs it",
            f"softmax ECE, less the start's: rlcr {interval(saturated[0])}, binary {interval(saturated[1])}; mean softmax "
            f"{number(rlcr['softmax']['mean_confidence'], 2)} and {number(binary['softmax']['mean_confidence'], 2)}; after a "
            f"temperature ECE {interval(rlcr['softmax_ts']['ece'])} and {interval(binary['softmax_ts']['ece'])}; "
            f"not so dist-brier, raw "
            f"{interval(signals['dist_brier']['softmax']['ece'])}",
            "reproduced" if all(shown(c) and c["low"] > 0 for c in saturated) else "not reproduced",
        ),
        (
            "5. Fields that are scored independently drift apart under RL",
            f"critical without needs_human: start {number(broken['warm_up'])}, rlcr {number(broken['grpo_rlcr'])}, binary "
            f"{number(broken['grpo_binary'])}; enforced: none",
            "reproduced" if drifts else "not reproduced",
        ),
        (
            "6. Labels do not survive many options",
            f"banking77, untrained, by labels {interval(listed)}; scored verbatim, less a prior, {interval(verbatim)}",
            "reproduced, and refined",
        ),
        (
            "7. The order of the options moves the answer half the time",
            f"flips: boolq {interval(base['boolq']['order']['flip_rate'])}, mmlu "
            f"{interval(base['mmlu']['order']['flip_rate'])}; 4 orders in one pass: "
            f"total variation {interval(moved[0])} → {interval(moved[1])} on mmlu",
            "reproduced, and refined",
        ),
    ]
    lines = ["| the seed's finding | here | verdict |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {claim} | {here} | **{verdict}** |" for claim, here, verdict in rows)]) + "\n"


BLOCKS = (ab_aims, ab_findings)
