"""Write the generated blocks of README.md and docs/*.md; with --check, only say which file is stale.

A block stands between `<!-- generated: NAME ARGUMENT -->` and `<!-- end -->`, where NAME is one of `BLOCKS`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from rlcd_lite.datasets import sets_table

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- generated: (\w+) ?(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def help_text(command: str) -> str:
    """What ``rlcd-lite COMMAND --help`` prints on a terminal of 100 columns."""
    run = subprocess.run(
        [sys.executable, "-m", "rlcd_lite", *command.split(), "--help"],
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return f"```text\n$ rlcd-lite {command} --help\n{run.stdout.strip()}\n```\n"


def tree(folder: str) -> str:
    """Every Python file below a folder with the first sentence of its docstring."""
    lines = []
    for path in sorted((ROOT / folder).rglob("*.py"), key=lambda p: (len(p.relative_to(ROOT / folder).parts) > 1, p)):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"{path.relative_to(ROOT / folder).as_posix():32} {docstring.split(chr(10))[0]}".rstrip())
    return f"```text\n{folder}/\n" + "\n".join(f"  {line}" for line in lines) + "\n```\n"


def include(path: str) -> str:
    """A file of the repository, such as a benchmark's output."""
    return (ROOT / path).read_text(encoding="utf-8").strip() + "\n"


def sets(_: str) -> str:
    """The registry of data sets."""
    return sets_table() + "\n"


BLOCKS = {"help": help_text, "tree": tree, "include": include, "sets": sets}


def main() -> None:
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        fresh = BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]](m[3]) + m[4], text)
        if fresh != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    if "--check" in sys.argv:
        sys.exit(bool(stale))


if __name__ == "__main__":
    main()
