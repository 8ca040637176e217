"""The examples of docs/serving.md, run against a server."""

from __future__ import annotations

import gc
import json
import re
import subprocess
from pathlib import Path

import pytest

from served import Served

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LINES = [block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if block.startswith("curl")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the end of a program closes its clients
@pytest.mark.parametrize("program", PROGRAMS, ids=["typesafe", "openai", "pydantic-ai"])
def test_the_clients(served: Served, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program.replace(ADDRESS, served.url), "docs/serving.md", "exec", dont_inherit=True), {"__name__": "example"})
    assert re.search("billing|infra|auth", capsys.readouterr().out)
    gc.collect()


@pytest.mark.parametrize("line", LINES, ids=["decide", "systemone", "decisions"])
def test_curl(served: Served, line: str) -> None:
    run = subprocess.run(["sh"], input=line.replace(ADDRESS, served.url), capture_output=True, text=True, check=True)
    assert {"model", "usage"} <= json.loads(run.stdout).keys()
