"""What held-out rows let one promise about acting on an answer: which answers to automate, and which options to keep.

Both promises are about the fields one by one, hold for any model, and rest on one assumption: the texts to come are drawn from the
source that the held-out rows were drawn from, independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rlcd_lite.calibration_file import CalibratedField, Calibration
from rlcd_lite.conformal import class_limits, limit, prediction_set
from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.selective import Certificate, certify, passed
from rlcd_lite.settings import SetMethod


@dataclass(frozen=True)
class Promises:
    """``certificates``: per field, the threshold for automation (`certify`), if a risk was promised. ``limits``: per field, a limit
    for all options or one each (`rlcd_lite.conformal`), if sets were, by ``method``."""

    certificates: Mapping[str, Certificate]
    limits: Mapping[str, float | tuple[float, ...]]
    method: SetMethod

    def keep(self, decision: Decision) -> Decision:
        """The decision with what to do about each field: ``automate`` or ``review``, and the set of options that may be right.

        A field that was not calibrated, or whose risk could not be certified, is for review.
        """
        return replace(decision, fields=tuple(self._kept(answer) for answer in decision.fields))

    def _kept(self, answer: FieldDecision) -> FieldDecision:
        name = answer.field.name
        if self.certificates:
            threshold = self.certificates[name].threshold if name in self.certificates else None
            sure = threshold is not None and answer.applied is not None and passed(answer.applied.confidence, threshold)
            answer = replace(answer, action="automate" if sure else "review")
        if name in self.limits:
            answer = replace(answer, options=prediction_set(answer.probabilities, self.limits[name], self.method))
        return answer


def promise(
    calibration: Calibration,
    *,
    max_risk: float | None = None,
    delta: float = 0.1,
    sets: float | None = None,
    method: SetMethod = "lac",
    per_option: bool = False,
) -> Promises:
    """What the held-out rows of a calibration allow.

    ``max_risk``: the error rate among automated answers, kept with probability 1 - ``delta``. ``sets``: the share of sets that may
    miss the right option; ``per_option``: also for the texts of each right option. Raises `UserError` where no field at all can be
    certified, and where the rows are too few for sets.
    """
    certificates = {} if max_risk is None else {n: promise_field(f, max_risk, delta) for n, f in calibration.fields.items()}
    if certificates and all(c.threshold is None for c in certificates.values()):
        raise UserError(" ".join(refusal(name, c) for name, c in certificates.items()))
    limits = {} if sets is None else {n: _limits(n, f, sets, method, per_option) for n, f in calibration.fields.items()}
    return Promises(certificates, limits, method)


def refusal(name: str, certificate: Certificate) -> str:
    """Why a field can't be automated, and what would help."""
    if certificate.more_rows is None:
        reason = "errs too often at every confidence, however many rows there were: allow a higher risk, or train the model."
    else:
        more = f"{certificate.more_rows} held-out rows more than its {certificate.rows}"
        reason = f"needs about {more}: hold out more, or allow a higher risk."
    return f"field {shorten(name)} can't be certified at a risk of {certificate.max_risk:g} and {reason}"


def promise_field(entry: CalibratedField, max_risk: float, delta: float = 0.1) -> Certificate:
    """What the held-out rows of one field prove about automating it."""
    return certify(entry.held_out.confidence, entry.held_out.correct, entry.grid, max_risk, delta)


def _limits(name: str, entry: CalibratedField, alpha: float, method: SetMethod, per_option: bool) -> float | tuple[float, ...]:
    rows = entry.held_out
    scores = 1 - np.array(rows.label_probability) if method == "lac" else np.array(rows.label_mass)
    if not per_option:
        return limit(scores, alpha)
    if entry.options is None:
        raise UserError(
            f"field {shorten(name)} has other options from text to text, which no limit per option is for: leave it out."
        )
    return tuple(class_limits(scores, rows.label, entry.options, alpha).tolist())
