"""What every column of a report means: the definitions that stand one click beside the numbers. In full: docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass

SUMMARY_GATE = 0.9  # the one gate of the first table; every gate has a table further down


@dataclass(frozen=True)
class Column:
    title: str
    meaning: str


DATASET = Column("data set", "The examples that were decided.")
ARM = Column("arm", "The model that decided: base is the model as it is, others are adapters.")
ARMS = Column("arms", "First arm − second arm. A negative difference is in favour of the first: less is better in all of these.")
SIGNAL = Column(
    "signal",
    "Where the confidence of a decision comes from. softmax: probability of the chosen option. stated: the most probable level "
    "of confidence that the model names. stated_mean: the mean over those levels. softmax_ts: softmax with a temperature per "
    "field that was fitted on the calibration examples.",
)
OPTIONS = Column("options", "Numbers of options that the fields have.")
ACCURACY = Column("acc (95 % CI)", "Share of decisions whose choice is right; all fields pooled.")
ECE = Column(
    "ECE (95 % CI)",
    "Expected calibration error: mean distance between confidence and accuracy over at most 10 bins of equal mass, from 0 to 1, "
    "low is good. It is biased upward on small samples, and its percentile interval more so, which can sit above the estimate: "
    "read it beside the null floor.",
)
FLOOR = Column(
    "null floor",
    "95 % point of the ECE that these confidences would show by chance if every one of them were true. An ECE below it is no "
    "evidence of miscalibration. Decisions are taken as independent.",
)
CALIBRATED = Column(
    "miscalibrated?",
    "Not shown: the ECE is at most its null floor. Otherwise too sure or too unsure: the mean confidence is above or below the "
    "accuracy.",
)
BRIER = Column(
    "Brier",
    "Mean of (confidence − 1 if right, 0 if not)², of the choice alone; from 0 to 1, low is good. Compare it with the base rate.",
)
BASE_RATE = Column(
    "base rate",
    "Brier score of saying the accuracy every time: accuracy · (1 − accuracy), the term UNC. A signal above it is worse than no "
    "signal.",
)
GATE_COVERAGE = Column(f"coverage at {SUMMARY_GATE}", f"Share of decisions with a confidence of at least {SUMMARY_GATE}.")
GATE_ACCURACY = Column(
    "acc there", f"Accuracy of the decisions with a confidence of at least {SUMMARY_GATE}; – where there are none."
)
REL = Column(
    "REL (debiased)",
    "Reliability: mean squared distance between confidence and accuracy over the bins; 0 is calibrated. Debiased: less what "
    "chance alone adds, can be negative; the number to compare calibration by.",
)
RES = Column(
    "RES (debiased)",
    "Resolution: how far the accuracy of the bins spreads around the overall one; 0 is uninformative, UNC the most. Debiased: "
    "less what chance alone adds.",
)
LOG_LOSS = Column(
    "log loss", "Mean of −ln of the probability that was given to what happened (right or not), in nats; low is good."
)
AURC = Column(
    "AURC",
    "Area under the risk-coverage curve: the error rate among the k most confident decisions, averaged over all k and over the "
    "order of ties; low is good, and the error rate if the confidence is uninformative.",
)
MEAN_CONFIDENCE = Column("mean conf", "Mean confidence; equal to the accuracy if the signal is calibrated.")
BRIER_INTERVAL = Column("Brier (95 % CI)", BRIER.meaning)
LOG_LOSS_INTERVAL = Column("log loss (95 % CI)", LOG_LOSS.meaning)
AURC_INTERVAL = Column("AURC (95 % CI)", AURC.meaning)
E_AURC = Column(
    "E-AURC", "AURC less that of a perfect ranking of the same outcomes; comparable between arms of different accuracy."
)
AUGRC = Column(
    "AUGRC", "Mean over k of (errors among the k most confident) / n: the risk of a failure that goes unnoticed; low is good."
)
SPIEGELHALTER = Column(
    "Spiegelhalter z (p)",
    "Test of calibration without bins, with contexts as clusters: about standard normal if calibrated, positive is worse than "
    "promised; p is two-sided.",
)
TRUTH = Column(
    "bias, RMSE to the truth",
    "Confidence less the true probability that the choice is right, which the data's generator knows: mean (positive is too "
    "sure) and root mean square.",
)
FLIP = Column(
    "order flip rate (95 % CI)", "Share of decisions that change when the options are shown in another order; – if not tried."
)
COVERAGE = Column("on labels", "Share of the whole vocabulary's probability that lies on the labels of the options, on average.")

# eval.json's name of a signal, or of a metric, to the column that shows it
SIGNAL_ECE = {
    name: Column(title, f"Expected calibration error of the signal {name}; read it beside its null floor, above and below.")
    for name, title in {"softmax": "softmax ECE", "stated": "stated ECE", "softmax_ts": "temp-scaled ECE"}.items()
}
_PAIRED = (
    "Difference of the two arms (95 % interval over the same resampled contexts), and the share of resamples in which it is 0 "
    "or has the other sign. "
)
DIFFERENCES = {
    name: Column(f"Δ {column.title.removesuffix(' (95 % CI)')}", _PAIRED + column.meaning)
    for name, column in {"brier": BRIER, "log_loss": LOG_LOSS, "ece": ECE, "aurc": AURC}.items()
}


def gate_column(gate: float) -> Column:
    meaning = (
        f"Share of decisions with a confidence of at least {gate:g}, and the accuracy among them with its exact (Clopper–Pearson) "
        "interval, which takes decisions as independent; – where none passes."
    )
    return Column(f"coverage: acc at {gate:g}", meaning)
