"""bf16 experts that ranks share, in vLLM's kernel: points, shipped rows, and the times that come of them."""

from __future__ import annotations

import pytest

from aicb.estimators.selection import select_estimator
from aicb.kernels.expert_points import experts_of_all_ranks, shared_points
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.model.precision import Precision


def shipped(part: str) -> list[KernelRow]:
    found = next(each for each in KernelTable.load("h200").parts if each.file.stem == part)
    return list(found.rows("grouped_gemm_gathered"))


def test_points_have_the_busiest_ranks_rows_and_the_pairs_of_all() -> None:
    """16 tokens of 8 of 128 experts, on two ranks: 128 pairs, at least half of them on the busier; both projections of
    768 columns."""
    up, down = shared_points(128, 8, 2, (2048, 768), [16])
    for point, (n, k, per_row) in ((up, (1536, 2048, 8)), (down, (2048, 768, 1))):
        assert (point["n"], point["k"], point["experts_per_token"]) == (n, k, per_row)
        assert (point["m"], point["groups"], point["batch"], len(point.lengths)) == (128, 64, 16, 64)
        assert 64 <= point["rows"] == sum(point.lengths) < 128
        assert point["active_groups"] == sum(rows > 0 for rows in point.lengths)
        assert experts_of_all_ranks(point) == 128


def test_shipped_rows_of_shared_experts_are_of_one_rank() -> None:
    rows = shipped("vllm_experts_shared")
    assert {row.kernel for row in rows} == {"vllm/fused_moe"}
    assert {row.distribution for row in rows} == {"multinomial of 8", "multinomial of 128", "multinomial of 512"}
    for row in rows:
        total = int(row.distribution.rpartition(" ")[2])
        ranks = total // row["groups"]
        assert ranks in (2, 4, 8)
        assert row["m"] / ranks <= row["rows"] <= row["m"]


@pytest.mark.parametrize(("part", "is_shared"), [("vllm_experts_shared", True), ("vllm_experts_sliced", False)])
def test_measured_experts_are_priced_as_measured(part: str, is_shared: bool) -> None:
    """At the reference clock of 1,600 MHz: as far as the SMs bind, a time is longer by the clock of its measurement."""
    estimator = select_estimator("auto", get_gpu("h200"), Precision())
    rows = shipped(part)
    for row in rows[:: len(rows) // 25]:
        own = GroupedGemm(
            row["rows"],
            row["groups"],
            row["active_groups"],
            row["n"],
            row["k"],
            "bf16",
            "masked",
            tokens=row["batch"],
            is_shared=is_shared,
        )
        priced = estimator.price(own)
        assert priced.source.startswith("measured")
        assert row.rotated_us is not None
        assert row.rotated_clock_mhz is not None
        clocked_us = row.rotated_us * row.rotated_clock_mhz / 1600
        shortest_us, longest_us = sorted((row.rotated_us, clocked_us))
        assert 0.999 * shortest_us <= priced.time_us <= 1.001 * longest_us


def test_untuned_tiles_take_as_long_whether_the_rank_shares_its_experts_or_has_them_all() -> None:
    """16 tokens, 41 of 64 experts: 66 us on an H200, measured of shared experts; no site of 64 others was measured."""
    estimator = select_estimator("auto", get_gpu("h200"), Precision())
    shared, own = (
        estimator.price(GroupedGemm(65, 64, 41, 1536, 2048, "bf16", "masked", tokens=16.0, is_shared=flag)).time_us
        for flag in (True, False)
    )
    assert shared == pytest.approx(66, abs=1.5)
    assert own == pytest.approx(shared, rel=0.05)
