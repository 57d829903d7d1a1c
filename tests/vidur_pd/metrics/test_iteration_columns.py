"""Columns of iterations."""

from __future__ import annotations

from vidur_pd.metrics.iteration_columns import ITERATION_COLUMNS
from vidur_pd.metrics.iterations import PHASES


def test_every_phase_of_compute_time_has_a_column() -> None:
    assert [column.name for column in ITERATION_COLUMNS if column.name.removesuffix("_s") in PHASES] == [
        f"{phase}_s" for phase in PHASES
    ]
