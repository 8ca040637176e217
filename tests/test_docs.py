"""Docs that can't rot: generated blocks are fresh, links inside the repository lead somewhere, and the README's example runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_blocks_are_fresh() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.stdout}run: uv run python scripts/docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_generated_block_has_one_end(page: Path) -> None:
    marks = re.findall(r"<!-- (generated|end)", page.read_text(encoding="utf-8"))
    assert marks == ["generated", "end"] * (len(marks) // 2)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.smollm2
def test_the_first_command_of_the_readme_runs_as_it_stands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)
    assert block is not None
    first = block[1].replace("\\\n", " ").split("\n")[0]
    command = shlex.split(first)
    assert command[:4] == ["uv", "run", "--all-extras", "rlcd-lite"]
    run = subprocess.run([sys.executable, "-m", "rlcd_lite", *command[4:], "--json"], capture_output=True, text=True, check=True)
    assert set(json.loads(run.stdout)["decision"]) == {"severity", "team", "needs_human"}
