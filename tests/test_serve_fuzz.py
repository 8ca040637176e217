"""A short run of ``scripts/fuzz_serve.py``: no 5xx, no hang, bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from transformers import PreTrainedTokenizerFast

from rlcd_lite.serve.bodies import BodyLimits
from served import Served, roomy_engine, serving

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from fuzz_serve import Figures, fuzz_bodies, fuzz_connections, fuzz_description, memory_mib


@pytest.fixture(scope="module")
def target(tokenizer: PreTrainedTokenizerFast) -> Iterator[Served]:
    with serving(roomy_engine(tokenizer, window=2048), bodies=BodyLimits(seconds=0.5)) as found:
        yield found
        assert httpx.get(found.url + "/health").json()["waiting"] == 0


def check(figures: Figures) -> None:
    print(figures)
    assert figures.failures == []
    assert figures.slowest < 10


def test_mutated_bodies_are_refused_or_answered(target: Served) -> None:
    before = memory_mib()
    found = list(fuzz_bodies(target.url, 200))
    for figures in found:
        check(figures)
    assert sum(figures.statuses["422"] for figures in found) > 50
    assert memory_mib() - before < 700  # the client's bombs are made in this process too


def test_slow_and_broken_connections_are_given_up(target: Served) -> None:
    figures = fuzz_connections(target.url, 24, patience=5)
    check(figures)
    assert figures.statuses["408"] > 0


def test_what_the_description_allows_is_never_a_5xx(target: Served) -> None:
    for figures in fuzz_description(target.url, 6):
        check(figures)
