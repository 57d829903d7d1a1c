"""Published deployments: the document states what the examples give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.validation.inferencex import DEPLOYMENTS
from tests.validation.performance_lab import FILE
from tests.validation.published import FOLDER, ROWS, UNBALANCED_ROWS, Row, gain_of_balance, score
from tests.validation.published_sweeps import SWEEPS

DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy" / "published.md"
QUICK = [row for row in ROWS if "prefill" in row.name or row.name == "vllm-decode-32"]
"""Other decodes, of 40,000 requests and more, take a minute together."""


def documented() -> dict[float, float]:
    """Simulated figures in the document by the published ones."""
    cells = re.findall(r"\| ([\d,]+) [^|]*\| ([\d,]+) \| [+−-]\d+ % \|", DOCUMENT.read_text(encoding="utf-8"))
    return {float(published.replace(",", "")): float(found.replace(",", "")) for published, found in cells}


def test_every_file_has_a_row_in_the_document() -> None:
    swept = {sweep.file for sweep in SWEEPS.values()} | {deployment.file for deployment in DEPLOYMENTS.values()}
    assert {row.file for row in ROWS} | swept | {FILE} == {file.stem for file in FOLDER.glob("*.yaml")}
    assert documented().keys() == {row.published for row in ROWS}


@pytest.mark.parametrize("row", QUICK, ids=[row.name for row in QUICK])
def test_an_example_gives_the_documented_figure(row: Row) -> None:
    assert score(row) == pytest.approx(documented()[row.published], rel=1e-3)


def test_experts_that_nothing_balances_are_as_uneven_as_balancing_gained() -> None:
    """1.49 published by SGLang."""
    assert gain_of_balance() == pytest.approx(1.49, abs=0.02)


@pytest.mark.parametrize("row", UNBALANCED_ROWS, ids=[row.name for row in UNBALANCED_ROWS])
def test_prefills_of_unbalanced_experts_give_the_documented_figure(row: Row) -> None:
    (found,) = re.findall(rf"\| {row.published:,.0f} \| [^|]*\| ([\d,]+), [+−]", DOCUMENT.read_text(encoding="utf-8"))
    assert score(row) == pytest.approx(float(found.replace(",", "")), rel=1e-3)
