"""Partitions: sizes that fit together, and how dimensions are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import InputError, MoeLayout, Partition, PartitionError, Precision
from aicb.model.partition import kv_heads_per_rank, split


@pytest.mark.parametrize(
    ("partition", "layout", "gpus"),
    [
        (Partition(), MoeLayout.TENSOR, 1),
        (Partition(tp=8), MoeLayout.TENSOR, 8),
        (Partition(tp=2, dp=4, pp=3), MoeLayout.TENSOR, 24),
        (Partition(tp=8, ep=8), MoeLayout.EXPERT_IN_TENSOR, 8),
        (Partition(dp=16, ep=16), MoeLayout.EXPERT_DATA, 16),
        (Partition(tp=4, dp=4, ep=16, pp=2), MoeLayout.EXPERT_DATA, 32),
    ],
)
def test_sizes_decide_the_layout_of_experts(partition: Partition, layout: MoeLayout, gpus: int) -> None:
    assert partition.moe_layout is layout
    assert partition.gpus == gpus


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 0}, "tp: found 0, expected 1 to 65536"),
        ({"pp": -1}, "pp: found -1, expected 1 to 65536"),
        ({"tp": 4, "ep": 2}, r"ep: found 2, expected 1 or tp·dp = 4 \(tp 4, dp 1\)"),
        ({"redundant_experts": -1}, "redundant_experts: found -1, expected 0 to 65536"),
        ({"tp": 4, "redundant_experts": 4}, "redundant_experts: found 4, expected 0 where ep is 1"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        Partition(**sizes)


def test_a_partition_error_is_bad_input() -> None:
    assert issubclass(PartitionError, InputError)
    assert issubclass(InputError, ValueError)


@given(kv_heads=st.sampled_from([1, 2, 4, 8, 32]), tp=st.integers(1, 64))
def test_every_kv_head_has_a_rank_and_ranks_hold_equal_numbers(kv_heads: int, tp: int) -> None:
    if tp % kv_heads and kv_heads % tp:
        with pytest.raises(PartitionError, match=f"found {tp}, expected .* {kv_heads} KV heads"):
            kv_heads_per_rank(kv_heads, tp)
    else:
        held = tp * kv_heads_per_rank(kv_heads, tp)
        assert held == max(tp, kv_heads)


def test_a_dimension_is_divided_exactly_or_refused() -> None:
    assert split(768, 8, "columns") == 96
    with pytest.raises(PartitionError, match="tp: found 7, expected a divisor of the 768 columns of the model"):
        split(768, 7, "columns")


def test_expert_slots_are_divided_over_the_expert_ranks() -> None:
    assert Partition(dp=32, ep=32, redundant_experts=32).expert_slots_per_rank(256) == 9
    with pytest.raises(PartitionError, match="ep: found 16, expected a divisor of the 258 expert slots"):
        Partition(tp=16, ep=16, redundant_experts=2).expert_slots_per_rank(256)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(InputError, match=r"Precision.weights: found 'int4', expected one of bf16, fp8"):
        Precision(weights="int4")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Precision.state: found 'fp8', expected one of bf16, fp32"):
        Precision(state="fp8")  # type: ignore[arg-type]
