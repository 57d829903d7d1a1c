"""The tables of docs/afd.md are what its script prints, and its script runs what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.afd_page import TABLES
from vidur_pd.simulation.api import simulate

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "afd.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", sorted(TABLES))
def test_tables_of_the_page_are_those_of_the_script(table: str) -> None:
    assert "\n".join(TABLES[table]()) in PAGE


def test_the_example_serves_its_requests_on_both_kinds_of_workers() -> None:
    result = simulate(REPOSITORY / "examples" / "deepseek-v3-afd.yaml", settings=["workload.requests=60"])
    decode = result.summary.pools[1]
    assert result.summary.completed == 60
    assert decode.ffn is not None
    assert (decode.gpus, decode.ffn.gpus) == (24, 8)
    assert (decode.ffn.attention_busy_share or 0) + (decode.ffn.ffn_busy_share or 0) > 1.2
