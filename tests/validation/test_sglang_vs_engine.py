"""The policy ``sglang`` decides as SGLang's own scheduling classes do; needs an unpacked wheel in SGLANG_SOURCE."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.validation import sglang_overlap
from tests.validation.sglang_source import load
from tests.validation.sglang_vs_engine import compare

FOLDER = os.environ.get("SGLANG_SOURCE")


needs_source = pytest.mark.skipif(FOLDER is None, reason="SGLANG_SOURCE names no unpacked wheel of SGLang 0.5.23")


@needs_source
def test_batches_and_trees_are_those_of_sglang() -> None:
    """Random request sets with retractions, both eviction policies, four orders, mixed chunks, pages of 1, 4 and 16."""
    found = compare(load(Path(FOLDER or "")), range(60), verbose=True)
    assert found.retractions > 10
    assert found.cached_tokens > 10_000
    assert (found.equal, found.equal_sets, found.equal_trees) == (found.steps, found.sets, found.sets)


@needs_source
def test_batches_and_trees_are_those_of_the_overlap_loop() -> None:
    """The same request sets with asynchronous scheduling; retracted requests keep the token that is under way."""
    found = sglang_overlap.compare(load(Path(FOLDER or "")), range(60), verbose=True)
    assert found.retracting > 10
    assert (found.equal, found.unequal) == (found.steps, [])
