"""Two pictures of the arms over their seeds: how they trained, and how reliable they are.

    uv run --all-extras python scripts/ab_figures.py results/ab-synthetic

Writes FOLDER/training.png (lines: means over seeds of a running mean over 20 steps; bands: from the lowest to the highest seed) and
FOLDER/reliability.png (dots: bins of equal mass over the decisions of all seeds; grey: where 95 % of them would lie if every
confidence were true).
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from ab_blocks import ARMS, log
from ab_table import arms_of
from matplotlib.figure import Figure

from rlcd_lite.calibration import reliability_bins
from rlcd_lite.decision_table import TEST, fit_temperatures, select, signals
from rlcd_lite.figures import BAND, DPI, GREY, STYLE
from rlcd_lite.replicates import Arm

CURVES = {
    "reward_mean": "reward",
    "acc_greedy": "accuracy of the likeliest option",
    "stated_conf_mean": "stated confidence",
    "softmax_conf_mean": "softmax confidence",
    "choice_entropy": "entropy of the choice (nats)",
    "choice_grad_mult": "choice_grad_mult",
}
WINDOW = 20  # steps
COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#009E73", "#E69F00", "#56B4E9", "#B8A800", "#222222", "#7F3C8D", "#11A579")
DASHES = ("-", "--", "-.", ":")
SHOWN = ("softmax", "stated_mean", "softmax_ts")


def training(folder: str, arms: dict[str, Arm]) -> Figure:
    figure = Figure(figsize=(9.4, 5.2), layout="constrained")
    trained = [name for name in arms if name not in ("base", "warm_up")]
    for plot, (key, title) in zip(figure.subplots(2, 3).flat, CURVES.items(), strict=True):
        for i, name in enumerate(trained):
            runs = [[row.get(key) for row in log(folder, name, seed)] for seed in arms[name]]
            if any(value is None for run in runs for value in run):
                continue  # a supervised arm has no reward
            smooth = np.array([np.convolve(run, np.ones(WINDOW) / WINDOW, "valid") for run in runs])
            at = np.arange(smooth.shape[1]) + WINDOW
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
            plot.plot(at, smooth.mean(axis=0), label=name, linewidth=1.3, **style)
            plot.fill_between(at, smooth.min(axis=0), smooth.max(axis=0), color=style["color"], alpha=0.12, linewidth=0)
        plot.set(title=title, xlabel="step")
    handles = {label: line for plot in figure.axes for line, label in zip(*plot.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    return figure


def reliability(arms: dict[str, Arm]) -> Figure:
    across = 4
    down = -(-len(arms) // across)
    figure = Figure(figsize=(9.4, 2.5 * down + 0.4), layout="constrained")
    plots = list(figure.subplots(down, across, squeeze=False).flat)
    marks = dict(zip(SHOWN, ("o", "s", "^"), strict=True))
    for name, plot in zip(arms, plots, strict=False):
        found = [signals(select(rows, TEST), fit_temperatures(rows)) for rows in arms[name].values()]
        correct = np.concatenate([s.correct for s in found])
        for i, signal in enumerate(SHOWN):
            bins = reliability_bins(np.concatenate([s.confidence[signal] for s in found]), correct, seed=0)
            plot.vlines(bins.confidence, bins.null_low, bins.null_high, color=BAND, linewidth=4, zorder=1)
            plot.plot(bins.confidence, bins.accuracy, marks[signal], color=COLOURS[i], markersize=3.5, label=signal, zorder=3)
        plot.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=2)
        plot.set(title=name, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
    for plot in plots[len(arms) :]:
        plot.set_axis_off()
    for plot in plots[::across]:
        plot.set_ylabel("accuracy")
    for plot in plots[-across:]:
        plot.set_xlabel("confidence")
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(SHOWN))
    return figure


def main() -> None:
    folder = sys.argv[1]
    found = arms_of(Path(folder))
    arms = {name: found[name] for name in ARMS if name in found}
    with matplotlib.rc_context(STYLE):
        for name, figure in (("training", training(folder, arms)), ("reliability", reliability(arms))):
            figure.savefig(Path(folder) / f"{name}.png", dpi=DPI, metadata={"Software": None})


if __name__ == "__main__":
    main()
