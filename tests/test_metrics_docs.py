"""docs/metrics.md names every public function of the metric modules, and their constants as they are."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rlcd_lite import calibration, calibrators, consistency, resample, selective

DOCS = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
PARTS = {"tally", "unit_interval", "row_weights", "logit_rows", "log_odds_row", "zero_one", "top_log_odds", "total_variation"}
PARTS |= {"damaged", "passed", "rule_text"}  # steps on the way to a number


@pytest.mark.parametrize("module", [calibration, calibrators, consistency, resample, selective], ids=lambda m: m.__name__)
def test_every_number_is_documented(module):
    functions = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    for name in functions:
        assert name.startswith("_") or name in PARTS or f"`{name}`" in DOCS, name
        assert inspect.getdoc(getattr(module, name)) or name.startswith("_"), name


def test_the_constants_are_documented_as_they_are():
    assert calibration.LOG_CLIP == 2.0**-52
    assert "ε = 2⁻⁵²" in DOCS
    assert f"at most {calibration.BINS} (`BINS`)" in DOCS
    assert f"T in [{calibrators.T_MIN}, {calibrators.T_MAX:.0f}]" in DOCS
    assert selective.GATE_TOLERANCE == 1e-6
    assert f"{resample.RESAMPLES:,} times" in DOCS
