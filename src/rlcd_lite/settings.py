"""The choices a user has about a model. Free of torch, so that ``--help`` stays instant."""

from typing import Literal

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
EMBEDDED_MODEL = "smollm2"

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "sdpa", "eager"]
Layout = Literal["schema-first", "context-first"]

DEFAULT_LAYOUT: Layout = "schema-first"  # measured: docs/architecture.md
