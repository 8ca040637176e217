"""The pictures of a report: reliability, risk-coverage, confidence histogram, and confidence against the true posterior.

One set of pictures a data set, a row of panels per arm. Drawn with matplotlib (the extra ``plot``), which is imported only here
and only when a picture is drawn. The same numbers give the same bytes: no dates, no versions in the files.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcd_lite.calibration import Floats, reliability_bins
from rlcd_lite.calibrators import Temperature
from rlcd_lite.decision_table import SIGNALS, TEST, DecisionRow, Signals, select, signals
from rlcd_lite.errors import UserError
from rlcd_lite.report import Picture, number
from rlcd_lite.selective import risk_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.35  # inches; four panels beside each other are as wide as a README
DPI = 144
COLOURS = dict(zip(SIGNALS, ("#0072B2", "#D55E00", "#CC79A7", "#009E73"), strict=True))  # Okabe & Ito: colour-blind safe
DASHES = dict(zip(SIGNALS, ("-", "--", ":", "-."), strict=True))  # and told apart without colour
WRONG, GREY, BAND, INK = "#B8B8B8", "#767676", "#D5D5D5", "#222222"
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.titlesize": 10,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}

RELIABILITY = (
    "Dots: accuracy of the decisions in each bin of equal mass against their mean confidence; on the diagonal a confidence is "
    "true, below it too high. Grey bars: where 95 % of the dots would lie if every confidence were true, so a dot on its bar is "
    "no evidence of miscalibration. Below: how many decisions each bin holds; equal confidences stay in one bin, so a signal of "
    "few levels has few bins."
)
RISK_COVERAGE = (
    "Error rate among the most confident decisions when only that share of them is answered. A useful confidence starts low at "
    "the left; a useless one runs along the overall error rate. The area below a line is its AURC; ties count as their mean "
    "over a random order. The grey dashed line is a perfect ranking of the same outcomes. At the far left a few decisions make "
    "the rate: it jumps there, and may leave the picture."
)
HISTOGRAM = (
    "How many decisions get which confidence, right ones in colour, wrong ones in grey on top. Vertical lines: the mean "
    "confidence (dashed) and the accuracy (solid); for a calibrated signal they coincide."
)
TRUTH = (
    "The generator of this data set knows how probable every option is. Dots: mean true probability that the choice is right, "
    "in the bins of the reliability diagram; on the diagonal the confidence is the truth. Lines: the middle 80 % of the true "
    "probabilities in the bin; a long line means that one confidence is given to decisions of very different difficulty. No "
    "luck of the labels is in this picture."
)


def draw(
    dataset: str,
    stem: str,
    results: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Sequence[DecisionRow]],
    seed: int,
) -> list[Picture]:
    """The pictures of one data set, in files that begin with ``stem``.

    ``results`` and ``tables`` map its arms to their result in eval.json and to the decision table behind it; ``seed``
    is eval.json's.
    """
    found = {arm: signals(select(rows, TEST), _temperatures(results[arm])) for arm, rows in tables.items()}
    with _style():
        drawn = [
            (
                "reliability",
                "is a decision right as often as its confidence says?",
                RELIABILITY,
                _reliability(found, results, seed),
            ),
            ("risk-coverage", "errors left when only the most confident are answered", RISK_COVERAGE, _risk_coverage(found)),
            ("histogram", "confidence of right and of wrong decisions", HISTOGRAM, _histogram(found, results)),
        ]
        if all(arm.truth is not None for arm in found.values()):
            title = "confidence against the true probability of being right"
            drawn.append(("truth", title, TRUTH, _against_truth(found, results)))
        return [
            Picture(dataset, f"{stem}-{kind}.png", f"{dataset}: {title}", meaning, _png(figure, f"{_short(dataset)}: {title}"))
            for kind, title, meaning, figure in drawn
        ]


def _reliability(found: Mapping[str, Signals], results: Mapping[str, Mapping[str, Any]], seed: int) -> Figure:
    figure, rows = _rows(found, PANEL * 1.56)
    for (arm, s), part in zip(found.items(), rows, strict=True):
        axes = part.subplots(2, len(SIGNALS), sharex=True, sharey="row", height_ratios=(4, 1))
        most = 0
        for name, plot, strip in zip(SIGNALS, *axes, strict=True):
            bins = reliability_bins(s.confidence[name], s.correct, seed=seed)
            ece = results[arm]["signals"][name]["ece"]
            _diagonal(plot, f"{name}\nECE {number(ece['estimate'])}, null floor {number(ece['null_floor']['upper'])}")
            plot.vlines(bins.confidence, bins.null_low, bins.null_high, color=BAND, linewidth=5, zorder=1)
            plot.plot(bins.confidence, bins.accuracy, "o-", color=COLOURS[name], markersize=3.5, linewidth=0.8, zorder=3)
            strip.vlines(bins.confidence, 0, bins.count, color=COLOURS[name], linewidth=3)
            strip.set(xlabel="confidence", box_aspect=0.22)
            strip.yaxis.set_major_locator(_locator(2))
            most = max(most, bins.count.max())
        axes[1, 0].set_ylim(0, 1.1 * most)
        axes[0, 0].set_ylabel("accuracy")
        axes[1, 0].set_ylabel("decisions")
    return figure


def _risk_coverage(found: Mapping[str, Signals]) -> Figure:
    from matplotlib.figure import Figure

    top = max(_risk(s, name)[len(s.correct) // 20 :].max() for s in found.values() for name in SIGNALS)
    columns = min(3, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(PANEL * len(SIGNALS), 0.5 + lines * PANEL * 1.25), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for unused in axes.flat[len(found) :]:
        unused.set_axis_off()
    for (arm, s), plot in zip(found.items(), axes.flat, strict=False):
        share = np.arange(1, len(s.correct) + 1) / len(s.correct)
        plot.plot(share, _oracle(s), color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), label="perfect ranking")
        plot.axhline(1 - s.correct.mean(), color=GREY, linewidth=0.8, label="overall error rate")
        for name in SIGNALS:
            plot.plot(share, _risk(s, name), color=COLOURS[name], linestyle=DASHES[name], linewidth=1.4, label=name)
        plot.set(title=f"arm {_short(arm)}", xlabel="share of decisions answered", ylabel="error rate among them")
        plot.set(xlim=(0, 1), ylim=(0, min(1.08 * top, 1.02) or 1))
        plot.label_outer()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _histogram(found: Mapping[str, Signals], results: Mapping[str, Mapping[str, Any]]) -> Figure:
    figure, rows = _rows(found, PANEL * 1.1)
    edges = np.linspace(-0.025, 1.025, 22)  # stated levels, 0.1 to 0.9, are centres of bins
    for (arm, s), part in zip(found.items(), rows, strict=True):
        axes = part.subplots(1, len(SIGNALS), sharex=True)
        right = s.correct == 1
        for name, plot in zip(SIGNALS, axes, strict=True):
            p, mean = s.confidence[name], results[arm]["signals"][name]["mean_confidence"]
            accuracy = results[arm]["accuracy"]["estimate"]
            plot.hist([p[right], p[~right]], edges, stacked=True, color=[COLOURS["softmax"], WRONG], label=["right", "wrong"])
            plot.axvline(accuracy, color=INK, linewidth=1.2, label="accuracy")
            plot.axvline(mean, color=INK, linewidth=1.2, linestyle="--", label="mean confidence")
            plot.set(title=f"{name}\nmean {number(mean)}, accuracy {number(accuracy)}", xlabel="confidence", xlim=(-0.03, 1.03))
            plot.yaxis.set_major_locator(_locator(4))
        axes[0].set_ylabel("decisions")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _against_truth(found: Mapping[str, Signals], results: Mapping[str, Mapping[str, Any]]) -> Figure:
    figure, rows = _rows(found, PANEL * 1.2)
    for (arm, s), part in zip(found.items(), rows, strict=True):
        axes = part.subplots(1, len(SIGNALS), sharex=True, sharey=True)
        assert s.truth is not None
        for name, plot in zip(SIGNALS, axes, strict=True):
            bins = reliability_bins(s.confidence[name], s.correct, draws=1)
            bin_ = np.searchsorted(bins.low, s.confidence[name], side="right") - 1
            parts = [s.truth[bin_ == b] for b in range(len(bins.low))]
            low, high = np.array([np.quantile(q, [0.1, 0.9]) for q in parts]).T
            error = results[arm]["signals"][name]["posterior_error"]
            _diagonal(plot, f"{name}\nbias {number(error['bias'])}, RMSE {number(error['root_mean_square'])}")
            plot.vlines(bins.confidence, low, high, color=COLOURS[name], linewidth=1, alpha=0.6)
            plot.plot(bins.confidence, [q.mean() for q in parts], "o", color=COLOURS[name], markersize=4)
            plot.set_xlabel("confidence")
        axes[0].set_ylabel("true probability of\nbeing right")
    return figure


def _risk(s: Signals, name: str) -> Floats:
    """Error rate among the k most confident decisions, k = 1 … n, expected over the order of ties; its mean is AURC."""
    curve = risk_coverage(s.confidence[name], s.correct)
    k = np.arange(1, len(s.correct) + 1)
    errors: Floats = np.interp(k, np.append(0, curve.coverage * len(k)), np.append(0, curve.risk * curve.coverage * len(k)))
    return errors / k


def _oracle(s: Signals) -> Floats:
    k = np.arange(1, len(s.correct) + 1)
    return np.asarray(np.maximum(0, k - s.correct.sum()) / k)


def _temperatures(result: Mapping[str, Any]) -> dict[str, Temperature]:
    return {name: Temperature.from_dict(field["temperature"]) for name, field in result["fields"].items()}


# ---- matplotlib ----


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError:
        raise UserError("the pictures of a report need the extra plot: install rlcd-lite[plot].") from None
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in a script that the font lacks: boxes will do
        yield


def _rows(found: Mapping[str, Signals], height: float) -> tuple[Figure, list[Any]]:
    """A figure with a part per arm, below each other; parts are named where there are several."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL * len(SIGNALS), 0.5 + height * len(found)), layout="constrained")
    rows = figure.subfigures(len(found), 1, squeeze=False)[:, 0].tolist()
    for arm, part in zip(found, rows, strict=True):
        part.suptitle(f"arm {_short(arm)}", x=0.01, ha="left", fontsize=9, fontweight="bold")
    return figure, rows


def _diagonal(plot: Axes, title: str) -> None:
    plot.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=2)
    plot.set(title=title, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)


def _locator(ticks: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(ticks, integer=True)


def _short(name: str) -> str:
    """A name that fits above a panel; of a path, the end tells most."""
    return name if len(name) <= 40 else f"…{name[-39:]}"


def _png(figure: Figure, title: str) -> bytes:
    figure.suptitle(title, x=0.01, ha="left")
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()
