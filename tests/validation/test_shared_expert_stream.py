"""What running shared experts beside others takes, against layers inside an engine."""

from __future__ import annotations

from statistics import median

import pytest

from aicb.iteration.overlap import INTERFERENCE
from tests.validation.shared_expert_stream import Together, compare

SINGLE = {"qwen3-next-80b-a3b-tp2", "deepseek-v3-tp1"}
"""Of one request both engines' layers take longer than simulated, by 16 and 4 %."""
ROWS = list(compare())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.engine}-{row.requests}")
def test_a_layer_takes_what_its_streams_make_of_its_kernels(row: Together) -> None:
    error = row.simulated_us / row.measured_us - 1.0
    assert (abs(error) <= 0.02) != (row.requests == 1 and row.engine in SINGLE), f"{error:+.1%}"


def test_a_second_stream_hides_something_and_never_all() -> None:
    """Of 16 to 43 us; the sums of a layer scatter by 1 %, which is as much in DeepSeek-V3 from 16 requests on."""
    assert len(ROWS) == 18
    for row in ROWS:
        if row.measured_us < 1000.0:
            assert 0.0 < row.others_us + row.shared_us - row.measured_us < row.shared_us


def test_interference_is_the_median_of_these_layers() -> None:
    assert median(row.interference for row in ROWS) == pytest.approx(INTERFERENCE, abs=0.01)
