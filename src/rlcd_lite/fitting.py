"""Which calibrator for which signal: fitted per field on the calibration split, and chosen by what it does for rows it hasn't seen.

A *signal* is a forecast that the choice is right, as log odds: ``softmax`` (the probability of the choice), ``stated`` (the level
stated as most likely), ``stated_mean`` (the mean of the stated levels) and ``fused`` (both channels in one). The choice is the
arg-max of the raw logits throughout; no calibrator moves it. Free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from scipy.special import expit, log_softmax, logit, softmax

from rlcd_lite.calibration import Floats, Ints, logit_rows, top_log_odds
from rlcd_lite.calibrators import (
    Beta,
    Ensemble,
    Frozen,
    Fusion,
    Identity,
    Isotonic,
    LevelTable,
    Number,
    Platt,
    Temperature,
    damaged,
    fit_beta,
    fit_ensemble,
    fit_fusion,
    fit_isotonic,
    fit_platt,
    fit_table,
    fit_temperature,
)
from rlcd_lite.decision_table import DecisionRow, logit_matrix
from rlcd_lite.errors import UserError
from rlcd_lite.resample import mean_interval

LEAST_ROWS = 50
LEAST_OF_EACH = 2  # right and wrong choices: then every fold is fitted on both kinds
FOLDS = 5

Signal = Literal["softmax", "stated", "stated_mean", "fused"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
Calibrator = Identity | Temperature | Ensemble | Platt | Beta | Isotonic | LevelTable | Fusion

# The methods that are tried, the one to beat first. Of `distribution`, the whole of the options' probabilities is scored.
METHODS: Mapping[str, tuple[str, ...]] = {
    "distribution": ("identity", "temperature", "ensemble"),
    "softmax": ("identity", "temperature", "ensemble", "platt", "beta", "isotonic"),
    "stated": ("identity", "platt", "beta", "isotonic", "table"),
    "stated_mean": ("identity", "platt", "beta", "isotonic"),
    "fused": ("fusion",),
}


# ---- what a calibrator sees ----


@dataclass(frozen=True)
class Evidence:
    """What a model says about n decisions of one field.

    ``logits`` ``(n, K)``; ``log_odds`` maps each signal but ``fused`` to log odds ``(n,)`` that the choice is right. ``features``
    ``(n, 5)`` are what `Fusion` sees: log odds of the choice, log p of the choice less that of the next option, entropy of the
    options in nats, log odds of the stated mean, log odds of the stated level.
    """

    logits: Floats
    log_odds: Mapping[str, Floats]
    features: Floats


def evidence(logits: npt.ArrayLike, stated_logits: npt.ArrayLike, grid: npt.ArrayLike) -> Evidence:
    """From logits ``(n, K)``, logits of the stated levels ``(n, C)``, and what these stand for ``(n, C)``, each inside (0, 1)."""
    z, stated, levels = logit_rows(logits), logit_rows(stated_logits), np.asarray(grid, dtype=np.float64)
    if stated.shape != levels.shape or len(stated) != len(z) or not ((levels > 0) & (levels < 1)).all():
        raise UserError(
            f"logits, stated logits and grid have the shapes {z.shape}, {stated.shape} and {levels.shape}: give one row a decision "
            "each, and levels between 0 and 1."
        )
    share = softmax(stated, axis=1)
    log_p = log_softmax(z, axis=1)
    best = np.sort(z, axis=1)[:, -2:]
    odds = {
        "softmax": top_log_odds(z),
        "stated": logit(levels[np.arange(len(z)), stated.argmax(axis=1)]),
        "stated_mean": np.log((share * levels).sum(axis=1)) - np.log((share * (1 - levels)).sum(axis=1)),
    }
    entropy = -(np.exp(log_p) * log_p).sum(axis=1)
    columns = [odds["softmax"], best[:, 1] - best[:, 0], entropy, odds["stated_mean"], odds["stated"]]
    return Evidence(z, odds, np.stack(columns, axis=1))


@dataclass(frozen=True)
class Labelled:
    """Rows of one field with what came true: ``label`` and ``correct`` ``(n,)``; ``levels``: log odds of all stated levels."""

    seen: Evidence
    label: Ints
    correct: Ints
    example: npt.NDArray[np.str_]
    levels: Floats

    def take(self, rows: npt.NDArray[np.bool_]) -> Labelled:
        odds = {name: values[rows] for name, values in self.seen.log_odds.items()}
        seen = Evidence(self.seen.logits[rows], odds, self.seen.features[rows])
        return Labelled(seen, self.label[rows], self.correct[rows], self.example[rows], self.levels)


def labelled(rows: Sequence[DecisionRow]) -> Labelled:
    """Rows of one field as arrays, in the order given."""
    grid = np.array([row.grid for row in rows])
    return Labelled(
        seen=evidence(logit_matrix(rows), [row.stated_logits for row in rows], grid),
        label=np.array([row.label for row in rows], dtype=np.int64),
        correct=np.array([row.choice == row.label for row in rows], dtype=np.int64),
        example=np.array([row.example for row in rows]),
        levels=logit(np.unique(grid)),
    )


# ---- one method for one signal ----


def fit(signal: str, method: str, rows: Labelled) -> Calibrator:
    """The calibrator of `METHODS` by its name, fitted to all rows."""
    return _FITS[method](signal, rows)


_FITS: Mapping[str, Callable[[str, Labelled], Calibrator]] = {
    "identity": lambda signal, rows: Identity(),
    "temperature": lambda signal, rows: fit_temperature(rows.seen.logits, rows.label),
    "ensemble": lambda signal, rows: fit_ensemble(rows.seen.logits, rows.label),
    "platt": lambda signal, rows: fit_platt(rows.seen.log_odds[signal], rows.correct),
    "beta": lambda signal, rows: fit_beta(rows.seen.log_odds[signal], rows.correct),
    "isotonic": lambda signal, rows: fit_isotonic(rows.seen.log_odds[signal], rows.correct),
    "table": lambda signal, rows: fit_table(rows.seen.log_odds[signal], rows.correct, rows.levels),
    "fusion": lambda signal, rows: fit_fusion(rows.seen.features, rows.correct),
}


def calibrated_odds(signal: str, calibrator: Calibrator, seen: Evidence) -> Floats:
    """Log odds ``(n,)`` that the choice is right, by one signal."""
    if isinstance(calibrator, Temperature | Ensemble):
        return top_log_odds(calibrator.apply(seen.logits))
    return calibrator.apply(seen.features if isinstance(calibrator, Fusion) else seen.log_odds[signal])


def losses(signal: str, calibrator: Calibrator, rows: Labelled) -> Floats:
    """Log loss ``(n,)`` in nats: of the right option for ``distribution``, of the choice's outcome for a signal."""
    if signal == "distribution":
        return np.asarray(-log_softmax(calibrator.apply(rows.seen.logits), axis=1)[np.arange(len(rows.label)), rows.label])
    m = calibrated_odds(signal, calibrator, rows.seen)
    return np.asarray(np.logaddexp(0, np.where(rows.correct == 1, -m, m)))


# ---- the choice of a method and of a signal ----


class Score(Frozen):
    """Cross-fitted log loss in nats, and what is gained on a reference: the mean over rows with its 95 % interval."""

    log_loss: Number
    gain: Number
    low: Number
    high: Number


class FieldCalibration(Frozen):
    """The calibrators of one field, and what they were chosen by.

    ``signal`` is the one whose confidence to act on. ``methods`` has the score of every method of every signal, its gain being
    on ``identity`` (of ``fused``: on the raw softmax); ``signals`` that of every signal as calibrated, its gain being on
    ``softmax`` as calibrated. ``rows`` and ``seed`` say what it was fitted on.
    """

    field: str
    rows: Annotated[int, Field(strict=True, ge=LEAST_ROWS)]
    seed: Annotated[int, Field(strict=True)]
    signal: Signal
    distribution: Annotated[Identity | Temperature | Ensemble, Field(discriminator="kind")]
    softmax: Annotated[Identity | Temperature | Ensemble | Platt | Beta | Isotonic, Field(discriminator="kind")]
    stated: Annotated[Identity | Platt | Beta | Isotonic | LevelTable, Field(discriminator="kind")]
    stated_mean: Annotated[Identity | Platt | Beta | Isotonic, Field(discriminator="kind")]
    fused: Fusion
    methods: dict[str, dict[str, Score]]
    signals: dict[Signal, Score]

    def apply(self, logits: npt.ArrayLike, stated_logits: npt.ArrayLike, grid: npt.ArrayLike) -> Calibrated:
        """What the model says, made truer: logits ``(n, K)``, stated logits ``(n, C)`` and grid ``(n, C)``, for any n from 1 up."""
        seen = evidence(logits, stated_logits, grid)
        odds: dict[Signal, Floats] = {name: calibrated_odds(name, getattr(self, name), seen) for name in SIGNALS}
        return Calibrated(self.distribution.apply(seen.logits), odds, np.asarray(expit(odds[self.signal])))

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, source: object) -> FieldCalibration:
        """The inverse of `to_dict`; `UserError` for anything else."""
        try:
            return cls.model_validate(source)
        except ValidationError as error:
            raise damaged("the calibration of a field", error) from None


@dataclass(frozen=True)
class Calibrated:
    """Calibrated answers of n decisions: ``logits`` ``(n, K)`` of the options, with the arg-max of the raw ones; ``log_odds``
    ``(n,)`` of every signal that the choice is right; ``confidence`` ``(n,)`` in [0, 1], of the chosen signal."""

    logits: Floats
    log_odds: Mapping[Signal, Floats]
    confidence: Floats


def choose(rows: Sequence[DecisionRow], seed: int = 0) -> FieldCalibration:
    """Calibrators of one field, by the log score of decisions that they were not fitted on (5 folds of examples).

    A signal keeps ``identity`` unless the method with the least cross-fitted log loss gains on it with a 95 % interval above 0;
    the confidence to act on is that of ``softmax`` unless another signal, as calibrated, gains on it so, and then of the one that
    gains most. Intervals are those of `mean_interval`, paired over rows with examples as clusters; they don't allow for the
    choice of the best among several. What is chosen is fitted once more, on all rows. Independent of the rows' order.

    Raises `UserError` for fewer than 50 rows, and for fewer than 2 that are right or wrong.
    """
    data = labelled(_enough(rows))
    held_out = _cross_fitted(data, seed)
    chosen: dict[str, str] = {}
    methods: dict[str, dict[str, Score]] = {}
    for signal, found in held_out.items():
        reference = found.get("identity", held_out["softmax"]["identity"])
        scores = {method: _score(loss, reference, data.example, seed) for method, loss in found.items()}
        best = min(scores, key=lambda method: round(scores[method].log_loss, 4))  # of equals the simpler, which stands first
        chosen[signal] = best if scores[best].low > 0 else METHODS[signal][0]
        methods[signal] = scores
    acted = held_out["softmax"][chosen["softmax"]]
    signals = {name: _score(held_out[name][chosen[name]], acted, data.example, seed) for name in SIGNALS}
    best_signal = max(SIGNALS, key=lambda name: signals[name].gain)
    return FieldCalibration(
        field=rows[0].field,
        rows=len(rows),
        seed=seed,
        signal=best_signal if signals[best_signal].low > 0 else "softmax",
        methods=methods,
        signals=signals,
        **{signal: fit(signal, method, data) for signal, method in chosen.items()},  # type: ignore[arg-type]  # METHODS has the kinds
    )


def _enough(rows: Sequence[DecisionRow]) -> list[DecisionRow]:
    """The rows by example, if they are of one field and can be calibrated on."""
    if len(names := sorted({row.field for row in rows})) > 1:
        raise UserError(f"the rows are of the fields {', '.join(map(repr, names))}: calibrate one field at a time.")
    if len(rows) < LEAST_ROWS:
        whose = f"field {names[0]!r}" if names else "a field"
        raise UserError(f"{whose} has {len(rows)} rows for calibration: give at least {LEAST_ROWS}.")
    wrong = {row.example for row in rows if row.choice != row.label}
    right = {row.example for row in rows} - wrong
    for some, kind, remedy in ((wrong, "wrong", "harder"), (right, "right", "easier")):
        if len(some) < LEAST_OF_EACH:
            raise UserError(
                f"field {names[0]!r} has {len(some)} {kind} choices in {len(rows)} rows for calibration, and at least "
                f"{LEAST_OF_EACH} are needed: add {remedy} rows, or more."
            )
    return sorted(rows, key=lambda row: (row.example, row.label, row.logits, row.stated_logits))


def _cross_fitted(data: Labelled, seed: int) -> dict[str, dict[str, Floats]]:
    """Signal → method → log loss ``(n,)`` of each row by a calibrator that was fitted without its fold."""
    fold = _folds(data, seed)
    out = {signal: {method: np.empty(len(fold)) for method in methods} for signal, methods in METHODS.items()}
    for k in range(FOLDS):
        rest, held = data.take(fold != k), data.take(fold == k)
        for signal, found in out.items():
            for method, loss in found.items():
                loss[fold == k] = losses(signal, fit(signal, method, rest), held)
    return out


def _folds(data: Labelled, seed: int) -> Ints:
    """Fold of each row ``(n,)``: examples are shuffled and dealt round, those with a wrong choice first, so that folds are equally
    hard and each is fitted on both kinds. Depends on the examples and the seed alone."""
    names, of = np.unique(data.example, return_inverse=True)
    wrong = np.bincount(of, data.correct == 0) > 0
    shuffled = np.random.default_rng(seed).permutation(len(names))
    dealt = shuffled[np.argsort(~wrong[shuffled], kind="stable")]
    fold = np.empty(len(names), dtype=np.int64)
    fold[dealt] = np.arange(len(names)) % FOLDS
    return fold[of]


def _score(loss: Floats, reference: Floats, example: npt.NDArray[np.str_], seed: int) -> Score:
    gain = mean_interval(reference - loss, example, seed=seed)
    return Score(log_loss=float(loss.mean()), gain=gain.estimate, low=gain.low, high=gain.high)
