"""The examples of docs/serving.md, run against a server."""

from __future__ import annotations

import gc
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
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
    code = compile(program.replace(ADDRESS, served.url), "docs/serving.md", "exec", dont_inherit=True)
    with ThreadPoolExecutor(1) as thread:  # an event loop that is left open ends with its thread, not with a later test
        thread.submit(exec, code, {"__name__": "example"}).result()
    assert re.search("billing|infra|auth", capsys.readouterr().out)
    gc.collect()


@pytest.mark.parametrize("line", LINES, ids=["decide", "systemone", "decisions"])
def test_curl(served: Served, line: str) -> None:
    run = subprocess.run(["sh"], input=line.replace(ADDRESS, served.url), capture_output=True, text=True, check=True)
    assert {"model", "usage"} <= json.loads(run.stdout).keys()
