"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data sets, beside the project; without it tests that need it are skipped, in CI they fail."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        message = f"the data sets are not in {path}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
