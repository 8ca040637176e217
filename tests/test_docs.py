"""Docs that can't rot: generated blocks are fresh, links inside the repository lead somewhere, and the README's example runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlcd_lite.decisions import Decision, FieldDecision
from rlcd_lite.schema import Schema

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


def test_the_example_of_the_schemas_page_has_the_fields_and_the_answer_that_it_says() -> None:
    text = (ROOT / "docs" / "schemas.md").read_text(encoding="utf-8")
    source, answer = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    schema = Schema.of(source)
    (said,) = re.findall(r"The fields are the leaves: (.*?)\.\s", text)
    assert [f"`{f.name}`" for f in schema.fields] == said.split(", ")
    chosen = [schema.fields[0].index("high"), schema.fields[1].index("pro"), schema.fields[2].index(None), 0, 1]
    fields = zip(schema.fields, chosen, strict=True)
    decided = tuple(FieldDecision(f, (1 / len(f.options),) * len(f.options), 0.5, 0.5, chosen=i) for f, i in fields)
    assert Decision(schema, decided).values == answer
    for rule in re.findall(r'`"rules": (\[.*?\])` \|', text):
        fields_named = '{"fields": [{"name": "severity", "type": "choice", "options": ["low", "critical"]}, '
        fields_named += (
            '{"name": "team", "type": "choice", "options": ["infra", "auth", "web"]}, {"name": "needs_human", "type": "bool"}]'
        )
        assert len(Schema.from_json(f'{fields_named}, "rules": {rule}}}').rules) == 1
