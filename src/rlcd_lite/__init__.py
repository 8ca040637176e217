"""rlcd-lite: calibrated decisions from a small causal language model, every field in one forward pass."""

from typing import TYPE_CHECKING

from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.errors import UserError
from rlcd_lite.schema import Field, Option, Schema

if TYPE_CHECKING:
    from rlcd_lite.engine import DecisionEngine

__all__ = ["Decision", "DecisionEngine", "Field", "FieldDecision", "Option", "Schema", "UserError"]


def __getattr__(name: str) -> object:
    if name == "DecisionEngine":  # imports torch and transformers, which schemas and --help do without
        from rlcd_lite.engine import DecisionEngine

        return DecisionEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
