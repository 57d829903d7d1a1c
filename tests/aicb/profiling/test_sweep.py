"""Plans, points and routing of the profiler, none of which needs torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb.kernels.gemm import Gemm
from aicb.kernels.point import decode_lengths, encode_lengths
from aicb.kernels.routing import DISTRIBUTIONS, busiest_rank, expert_rows, kv_lengths
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.lists import token_operators
from aicb.profiling.cost import flops, moved_bytes
from aicb.profiling.sweep import Plan, plan_points, token_counts
from boundary.errors import InputError
from tests.aicb.profiling_points import at


def test_token_counts_are_powers_of_two_and_three_quarter_points() -> None:
    assert token_counts(128) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]


def test_a_plan_holds_every_gemm_the_simulator_asks_for() -> None:
    model = load_model("qwen3-8b")
    plan = Plan(models=(model,), weights=("bf16",), tp=(2,), max_tokens=64)
    found = {(p["m"], p["n"], p["k"]) for p in plan_points(plan) if p.op == "gemm"}
    listed = token_operators(model, Partition(tp=2), Precision("bf16"), tokens=48)
    asked = {(op.kernel.m, op.kernel.n, op.kernel.k) for op in listed if isinstance(op.kernel, Gemm)}
    assert len(asked) == 4
    assert asked <= found


def test_shapes_shared_by_models_are_measured_once() -> None:
    """Llama-2-7B and Llama-3.1-8B share the output projection, 4096 x 4096."""
    models = tuple(load_model(name) for name in ("llama-2-7b", "llama-3.1-8b"))
    points = plan_points(Plan(models=models, weights=("bf16",), tp=(1,), max_tokens=1))
    assert len([p for p in points if p.op == "gemm" and (p["n"], p["k"]) == (4096, 4096)]) == 1
    assert len(set(points)) == len(points)


def test_sizes_that_do_not_divide_a_model_are_left_out() -> None:
    """Qwen3-30B-A3B has 32 query heads: tp 64 is impossible, tp 1 remains."""
    points = plan_points(Plan(models=(load_model("qwen3-30b-a3b"),), weights=("bf16",), tp=(1, 64), max_tokens=8))
    assert {p["heads"] for p in points if p.op == "decode_attention"} == {32}


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="--only: found 'gem'"):
        Plan(models=(), only=frozenset({"gem"}))


def test_a_plan_for_impossible_partitions_is_refused() -> None:
    with pytest.raises(InputError, match="--tp"):
        plan_points(Plan(models=(load_model("qwen3-30b-a3b"),), tp=(3,)))


def test_expert_points_carry_the_rows_of_the_busiest_rank() -> None:
    """128 experts, 8 per token, 8 ranks, 16 tokens per rank: 1024 rows, at least 128 on the busiest rank."""
    plan = Plan(models=(load_model("qwen3-30b-a3b"),), weights=("bf16",), tp=(1,), ep=(8,), max_tokens=64)
    points = [p for p in plan_points(plan) if p.op == "grouped_gemm_masked" and p["batch"] == 16 and p["groups"] == 16]
    assert {p.distribution for p in points} == set(DISTRIBUTIONS)
    for p in points:
        assert sum(p.lengths) == p["rows"] >= 128
        assert max(p.lengths) == p["max_rows"] <= p["max_m"]
        assert p["active_groups"] == sum(length > 0 for length in p.lengths)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(experts=st.integers(1, 64), tokens=st.integers(1, 200), data=st.data())
def test_routing_keeps_every_row_and_no_token_picks_an_expert_twice(
    distribution: str, experts: int, tokens: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, experts))
    rows = expert_rows(distribution, experts, tokens, k)
    assert rows.sum() == tokens * k
    assert rows.min() >= 0
    assert rows.max() <= tokens
    assert np.array_equal(rows, expert_rows(distribution, experts, tokens, k))


def test_skewed_routing_loads_the_busiest_rank_more_than_balanced_routing() -> None:
    loads = [
        int(busiest_rank(expert_rows(name, 256, 4096, 8), 32).sum())
        for name in ("balanced", "multinomial", "zipf0.5", "zipf1.0")
    ]
    assert loads == sorted(loads)
    assert loads[0] == 1024
    assert loads[-1] > 2 * loads[0]


@pytest.mark.parametrize("distribution", ["equal", "uniform", "lognormal", "one_long"])
def test_kv_lengths_have_the_mean_asked_for(distribution: str) -> None:
    lengths = kv_lengths(distribution, 256, 2048)
    assert len(lengths) == 256
    assert min(lengths) >= 1
    assert np.mean(lengths) == pytest.approx(2048, rel=0.15)


def test_one_long_sequence_is_eight_times_the_others() -> None:
    """Eight sequences of mean 1500 have 12000 keys: seven of 800 and one of 6400."""
    assert kv_lengths("one_long", 8, 1500) == (800, 800, 800, 800, 6400, 800, 800, 800)


@given(st.lists(st.integers(0, 5), max_size=40))
def test_lengths_survive_run_length_encoding(values: list[int]) -> None:
    assert decode_lengths(encode_lengths(tuple(values))) == tuple(values)


def test_flops_and_bytes_of_a_dense_gemm() -> None:
    """2·3·256·128 FLOPs; bf16 operands 2·(3·128 + 256·128 + 3·256) bytes."""
    p = at("gemm", "bf16", m=3, n=256, k=128)
    assert flops(p) == 196_608
    assert moved_bytes(p) == 67_840


def test_fp8_bytes_include_scales() -> None:
    """3·(128 + 4) of activations, 256·128 + 2·4 of weights, 3·256·2 of output."""
    assert moved_bytes(at("gemm", "fp8", m=3, n=256, k=128)) == 396 + 32_776 + 1_536


def test_attention_flops_count_unmasked_pairs() -> None:
    """Two new tokens after two cached ones see 3 + 4 keys: 7 pairs · 2·(16 + 16) · 4 heads."""
    p = at("prefill_attention", heads=4, kv_heads=1, d_qk=16, d_v=16, queries=(2,), lengths=(4,))
    assert flops(p) == 7 * 64 * 4
    assert moved_bytes(p) == 2 * 32 * (4 * 2 + 4)


def test_inactive_experts_read_no_weights() -> None:
    some = at("grouped_gemm_masked", "fp8", n=256, k=128, groups=8, active_groups=2, rows=4)
    every = at("grouped_gemm_masked", "fp8", n=256, k=128, groups=8, active_groups=8, rows=4)
    assert moved_bytes(every) - moved_bytes(some) == 6 * (256 * 128 + 8)


def test_points_of_equal_shape_are_equal_whatever_their_origin() -> None:
    one, other = (at("gemm", m=1, n=2, k=3, tag=tag) for tag in ("a", "b"))
    assert one == other
    assert one.key == other.key
    assert one.key != at("gemm", m=1, n=2, k=4).key
