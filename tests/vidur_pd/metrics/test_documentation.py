"""The page of result files."""

from __future__ import annotations

from pathlib import Path

from vidur_pd.metrics.documentation import page

PAGE = Path(__file__).parents[3] / "docs" / "results.md"


def test_the_page_of_result_files_is_that_of_the_definitions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m vidur_pd.metrics.documentation docs/results.md"
