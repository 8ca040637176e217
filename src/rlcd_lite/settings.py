"""The choices a user has about a model. Free of torch, so that ``--help`` stays instant."""

from difflib import get_close_matches
from typing import Any, Literal, get_args

from rlcd_lite.errors import UserError, shorten

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
EMBEDDED_MODEL = "smollm2"

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "sdpa", "eager"]
Layout = Literal["schema-first", "context-first"]
Confidence = Literal["independent", "conditioned"]
Grid = Literal["5", "10", "per-field"]
Scoring = Literal["labels", "verbatim", "tournament", "auto"]
Readout = Literal["constrained", "sum", "mean"]
Listing = Literal["auto", "listed", "unlisted"]
PriorKind = Literal["none", "content-free"]
Permutations = int | Literal["auto"]
Consistency = Literal["measure", "enforce"]
SetMethod = Literal["lac", "aps"]

DEFAULT_LAYOUT: Layout = "schema-first"  # measured: docs/architecture.md

MAX_ORDERS = 32  # of a list, in one pass
LISTED = 26  # options that one list may show: `auto` scores longer ones verbatim, `tournament` cuts them into several

# goes up with any change of the words in `prompts`: outputs, adapters, priors and calibrators belong to one version
PROMPT_VERSIONS: dict[Layout, int] = {"schema-first": 1, "context-first": 2}


def check_choice(value: object, choices: Any, name: str) -> None:
    """`UserError` unless ``value`` is one of the literal type's values: for calls from Python, which no parser has checked."""
    known = get_args(choices)
    if value not in known:
        close = get_close_matches(value, known, n=1) if isinstance(value, str) else []
        raise UserError(
            f"{name} is {shorten(value)}: " + (f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}.")
        )
