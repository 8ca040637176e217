"""What the model answers whatever the text says, measured without labels, and subtracted.

``content-free``: the scores over a text that says nothing (Zhao et al. 2021, arXiv 2102.09690), for exactly the question asked;
of verbatim options this is the domain-conditional prior of Holtzman et al. (2021, arXiv 2104.08315). ``contexts``: the mean scores
over texts of the kind that is to be decided, whose answers nobody needs to know (the batch prior of Zhou et al. 2024, arXiv
2309.17249). A file keeps the latter, and what made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcd_lite.contract import Contract, Prior
from rlcd_lite.errors import UserError, shorten
from rlcd_lite.files import write_whole
from rlcd_lite.settings import PriorKind

CONTENT_FREE = "N/A"  # Zhao et al. (2021); the text that says nothing
CONTEXTS = 400  # texts that a prior is measured on, if so many are there
_VERSION = 1


def default_kind(contract: Contract, verbatim: bool) -> PriorKind:
    """What is subtracted if nobody says: content-free scores, from verbatim sums and means of a model that was not trained."""
    untrained = not contract.labels
    return "content-free" if untrained and verbatim and contract.readout != "constrained" else "none"


def write_prior(path: Path, prior: Prior, made_by: Mapping[str, Any]) -> None:
    """Keep a prior and what made it: the model, its adapter and how it was asked."""
    document = {"version": _VERSION, "made_by": dict(made_by), "prior": prior.to_dict()}
    write_whole(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def read_prior(path: Path, made_by: Mapping[str, Any]) -> Prior:
    """A prior that `write_prior` kept; `UserError` for one of another model or other settings, which it would be wrong for."""
    where = f"prior {str(path)!r}"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _VERSION:
            raise UserError(f"{where} has version {shorten(found['version'])}, this program reads {_VERSION}: measure it again.")
        for key, value in made_by.items():
            if found["made_by"].get(key) != value:
                raise UserError(
                    f"{where} was measured with {key} {shorten(found['made_by'].get(key))}, not {shorten(value)}: measure it again "
                    f"with rlcd-lite prior."
                )
        return Prior.from_dict(found["prior"])
    except FileNotFoundError:
        raise UserError(f"{where} does not exist: write it with rlcd-lite prior, or use content-free or none.") from None
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where} is damaged ({shorten(str(error))}): measure it again with rlcd-lite prior.") from None
