"""The flags that say what is made of an answer: calibration, rules, and what is promised about acting on it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcd_lite import ranks
from rlcd_lite.commands.model_flags import AskFlags
from rlcd_lite.errors import UserError
from rlcd_lite.settings import Consistency, SetMethod

if TYPE_CHECKING:  # SciPy is imported where it is used, so that --help stays instant
    from rlcd_lite.calibration_file import Calibration
    from rlcd_lite.promises import Promises

_DELTA = 0.1


@dataclass
class ActFlags:
    calibration: Path | None = None
    """File that rlcd-lite calibrate wrote for this model, schema and way of asking."""
    consistency: Consistency = "enforce"
    """enforce (default) answers with the most probable values that keep the schema's rules; measure reports broken rules."""
    max_risk: float | None = None
    """Mark answers automate or review: among those automated, at most this share is wrong (needs --calibration)."""
    delta: float | None = None
    """Probability that the held-out rows of the calibration mislead about --max-risk (0.1 if not given)."""
    sets: float | None = None
    """Also give the set of options that holds the right one but for this share of texts (needs --calibration)."""
    set_method: SetMethod | None = None
    """lac (default): the smallest sets, some of them empty; aps: never empty, and larger where the model is unsure."""
    sets_per_option: bool = False
    """Keep the promise of --sets for the texts of each right option by itself."""

    def check(self) -> None:
        """`UserError` for a promise without a calibration, or one that is no share."""
        for flag, value in (("max-risk", self.max_risk), ("sets", self.sets)):
            if value is not None and self.calibration is None:
                raise UserError(
                    f"--{flag} {value:g} rests on held-out rows: give --calibration, a file that rlcd-lite calibrate wrote."
                )
        for flag, given, other, value in (
            ("delta", self.delta is not None, "max-risk", self.max_risk),
            ("set-method", self.set_method is not None, "sets", self.sets),
            ("sets-per-option", self.sets_per_option, "sets", self.sets),
        ):
            if given and value is None:
                raise UserError(f"--{flag} is about --{other}: give that too, or leave it out.")
        for flag, value in (("max-risk", self.max_risk), ("delta", self.delta), ("sets", self.sets)):
            if value is not None and not 1e-6 <= value <= 1 - 1e-6:
                raise UserError(f"--{flag} is {value:g}: use a number between 0 and 1, such as 0.1.")

    def read(self, ask: AskFlags) -> tuple[Calibration | None, Promises | None]:
        """The calibration, and what it lets one promise; what it can't is said on stderr."""
        if self.calibration is None:
            return None, None
        refuse_contexts(ask)
        from rlcd_lite.calibration_file import read_calibration
        from rlcd_lite.promises import promise, refusal

        calibration = read_calibration(self.calibration)
        if self.max_risk is None and self.sets is None:
            return calibration, None
        promises = promise(
            calibration,
            max_risk=self.max_risk,
            delta=self.delta or _DELTA,
            sets=self.sets,
            method=self.set_method or "lac",
            per_option=self.sets_per_option,
        )
        for name, certificate in promises.certificates.items():
            if certificate.threshold is None and ranks.is_main():
                print(f"note: all for review: {refusal(name, certificate)}", file=sys.stderr)
        return calibration, promises

    def settings(self) -> dict[str, Any]:
        """What the records of runs keep; of the file, its bytes."""
        promised: dict[str, Any] = {"delta": self.delta or _DELTA} if self.max_risk is not None else {}
        if self.sets is not None:
            promised |= {"set_method": self.set_method or "lac", "sets_per_option": self.sets_per_option}
        digest = None if self.calibration is None else hashlib.sha256(self.calibration.read_bytes()).hexdigest()
        return {
            "calibration_sha256": digest,
            "consistency": self.consistency,
            "max_risk": self.max_risk,
            "sets": self.sets,
        } | promised


def refuse_contexts(ask: AskFlags) -> None:
    """`UserError` for a prior that would be measured on other texts at inference than when the calibration was fitted."""
    if ask.prior == "contexts":
        raise UserError("--prior contexts differs from file to file, so no calibration is for it: keep one with rlcd-lite prior.")
