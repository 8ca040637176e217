"""The order in which the parts may import each other, and what stays out of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rlcd_lite"

# top to bottom: a part imports only from parts above it
ORDER = [
    "errors",
    "files",
    "settings",
    "ranks",
    "launch",
    "json_schema",
    "shape",
    "schema",
    "decisions",
    "rewards",
    "recipe",
    "health",
    "contract",
    "priors",
    "rows",
    "outputs",
    "datasets.example",
    "datasets.splits",
    "datasets.sources",
    "datasets.choices",
    "datasets.banking77",
    "datasets.clinc150",
    "datasets.boolq",
    "datasets.mmlu",
    "datasets.arc",
    "datasets.snli",
    "datasets.goemotions",
    "datasets.synthetic_phrases",
    "datasets.synthetic",
    "datasets.files",
    "datasets",
    "calibration",
    "calibrators",
    "selective",
    "conformal",
    "resample",
    "consistency",
    "decision_table",
    "fitting",
    "comparison",
    "replicates",
    "calibration_file",
    "promises",
    "scope",
    "summary",
    "merge",
    "report_columns",
    "report",
    "figures",
    "report_page",
    "tokens",
    "candidates",
    "packing",
    "attention",
    "trie",
    "orders",
    "questions",
    "prompts",
    "models",
    "forward",
    "scores",
    "folding",
    "rules",
    "answers",
    "held_out",
    "enforced",
    "engine",
    "serve.kept_texts",
    "serve.worker",
    "serve.failures",
    "serve.bodies",
    "serve.acting",
    "serve.wire",
    "serve.systemone",
    "serve.openai_decisions",
    "serve.native",
    "serve.metrics",
    "serve.access",
    "serve.app",
    "evaluate",
    "objectives",
    "checkpoints",
    "trainer",
    "commands.model_flags",
    "commands.act_flags",
    "commands.progress",
    "commands.data",
    "commands.infer",
    "commands.prior",
    "commands.eval",
    "commands.calibrate",
    "commands.train",
    "commands.config_file",
    "commands.merge",
    "commands.report",
    "commands.serve",
    "cli",
    "__main__",
]
TORCH_FREE = ["rlcd_lite", "rlcd_lite.cli", "rlcd_lite.schema", "rlcd_lite.outputs", "rlcd_lite.datasets", "rlcd_lite.report"]


def part(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlcd_lite."):
            module = (node.module or "").removeprefix("rlcd_lite.")
            inner = {f"{module}.{a.name}" for a in node.names} & set(ORDER)  # from a package: its parts, not the package
            found |= inner or {module}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("rlcd_lite.") for a in node.names if a.name.startswith("rlcd_lite.")}
    return found


def test_every_part_has_its_place() -> None:
    named = {name: path for path in SOURCE.rglob("*.py") if (name := part(path)) not in ("__init__", "commands", "serve")}
    assert set(named) == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_part_imports_only_from_above(name: str) -> None:
    above = set(ORDER[: ORDER.index(name)])
    (path,) = (path for path in SOURCE.rglob("*.py") if part(path) == name)
    assert imports(path) <= above


def test_no_file_is_longer_than_600_lines() -> None:
    assert {p.name for p in SOURCE.rglob("*.py") if len(p.read_text(encoding="utf-8").splitlines()) > 600} == set()


@pytest.mark.parametrize("module", TORCH_FREE)
def test_some_parts_start_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()
