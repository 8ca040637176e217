"""What a request wants to be told about acting on its answers, and what the calibration of its schema lets one say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlcd_lite.calibration_file import Calibration
from rlcd_lite.decisions import Decision
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.promises import Promises, promise, promise_field, refusal
from rlcd_lite.settings import SetMethod

_DELTA = 0.1


@dataclass(frozen=True)
class Wanted:
    """``max_risk``, ``delta``, ``sets``, ``method``, ``per_option``: as in `promises.promise`; None: not asked for.
    ``prefix``: of these names on the wire, for errors.

    Raises `UserError` for one that says nothing without another.
    """

    max_risk: float | None = None
    delta: float | None = None
    sets: float | None = None
    method: SetMethod | None = None
    per_option: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        for name, given, about, value in (
            ("delta", self.delta is not None, "max_risk", self.max_risk),
            ("set_method", self.method is not None, "sets", self.sets),
            ("sets_per_option", self.per_option, "sets", self.sets),
        ):
            if given and value is None:
                raise UserError(f"{self.prefix}{name} is about {self.prefix}{about}: give that too, or leave it out.")

    def __bool__(self) -> bool:
        return self.max_risk is not None or self.sets is not None


def kept(decision: Decision, calibration: Calibration | None, wanted: Wanted) -> tuple[Decision, Mapping[str, str]]:
    """The decision with what may be done about it, and for every field that is for review, why.

    Raises `UserError` where nothing can be promised: there is no calibration for the schema, or it has too few rows for sets.
    """
    if not wanted:
        return decision, {}
    if calibration is None:
        asked = " and ".join(
            wanted.prefix + name for name, value in (("max_risk", wanted.max_risk), ("sets", wanted.sets)) if value is not None
        )
        raise UserError(
            f"{asked} can't be promised, because no calibration was fitted for this schema: fit one with rlcd-lite calibrate and "
            f"give it to rlcd-lite serve."
        )
    sets = promise(calibration, sets=wanted.sets, method=wanted.method or "lac", per_option=wanted.per_option)
    if wanted.max_risk is None:
        return sets.keep(decision), {}
    delta = _DELTA if wanted.delta is None else wanted.delta
    certificates = {name: promise_field(entry, wanted.max_risk, delta) for name, entry in calibration.fields.items()}
    found = Promises(certificates, sets.limits, sets.method).keep(decision)
    reasons = {}
    for answer in found.fields:
        name, certificate = answer.field.name, certificates.get(answer.field.name)
        if answer.action != "review":
            continue
        if certificate is None or answer.applied is None:
            reasons[name] = f"field {shorten(name)} was not calibrated."
        elif certificate.threshold is None:
            reasons[name] = refusal(name, certificate)
        else:
            reasons[name] = (
                f"the confidence {answer.applied.confidence:.4g} is below {certificate.threshold:.4g}, the least that keeps a risk "
                f"of {wanted.max_risk:g}."
            )
    return found, reasons
