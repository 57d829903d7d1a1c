"""DeepSeek Sparse Attention: what a layer of DeepSeek-V3.2 executes, and what its kernels cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import Batch, Partition, Precision, get_gpu, instance_memory, load_model
from aicb.estimators.estimator import Estimator
from aicb.estimators.forest import ForestEstimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator, roofline_us
from aicb.estimators.transfer import TransferEstimator
from aicb.iteration.model import IterationModel
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.pairs import chosen_pairs
from aicb.kernels.sparse_decode import SparseMlaDecode, keys_by_step
from aicb.kernels.sparse_prefill import SparseMlaPrefill, SparseStep
from tests.aicb.operator_rows import BF16, DECODE, ONE, gemm_shape, listed

H200 = get_gpu("h200")
FP8_CACHE = Precision("fp8", "fp8")
KERNELS: tuple[SparseStep, ...] = ("index_logits", "index_topk", "attention")


def decode(kv: list[int], kernel: SparseStep, heads: int = 128) -> SparseMlaDecode:
    return SparseMlaDecode(np.array(kv), heads, 576, 512, kernel, 128, 2048, 64, 128)


def prefill(new: list[int], kv: list[int], kernel: SparseStep) -> SparseMlaPrefill:
    return SparseMlaPrefill(np.array(new), np.array(kv), kernel, 128, 576, 512, 2048, 64, 128)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 60))
def test_chosen_pairs_count_each_query_up_to_topk(new: int, past: int, topk: int) -> None:
    expected = sum(min(past + query + 1, topk) for query in range(new))
    assert chosen_pairs(np.array([new]), np.array([new + past]), topk).tolist() == [expected]


def test_the_indexer_is_whole_on_every_rank() -> None:
    """Queries 64·128 from 1536, key 128 and head weights 64 from 7168, at tp 1 and 8."""
    for tp in (1, 8):
        operators = listed("deepseek-v3.2", Partition(tp=tp), DECODE)
        assert gemm_shape(operators["index_q"]) == (4, 8192, 1536)
        assert gemm_shape(operators["index_k"]) == (4, 128, 7168)
        assert gemm_shape(operators["index_weights"]) == (4, 64, 7168)


def test_prefills_run_absorbed_and_expand_nothing() -> None:
    operators = listed("deepseek-v3.2", ONE, Batch.prefill([4096], [1000]))
    assert not {"kv_b", "past_kv_b", "prefill_attention", "past_merge"} & set(operators)
    assert {"q_absorb", "index_gather", "index_logits_prefill", "index_topk_prefill", "mla_sparse_prefill"} < set(
        operators
    )
    dense = set(listed("deepseek-v3", ONE, Batch.prefill([4096], [1000])))
    assert {"kv_b", "past_kv_b", "past_latent_gather", "past_merge"} < dense


def test_flops_of_scores_grow_with_all_keys_and_those_of_attention_with_the_chosen_ones() -> None:
    """A decode of 10,000 keys: 2·64·128 FLOPs per key; 2·128·1088 for each of 2048."""
    operators = listed("deepseek-v3.2", ONE, Batch.decode([10_000]))
    assert operators["index_logits_decode"].flops == 2 * 64 * 128 * 10_000
    assert operators["mla_sparse_decode"].flops == 2 * 128 * 1088 * 2048
    assert operators["mla_sparse_decode"].moved_bytes == 2048 * 1152 + 2 * 128 * 1088
    short = listed("deepseek-v3.2", ONE, Batch.decode([500]))
    assert short["mla_sparse_decode"].flops == 2 * 128 * 1088 * 500


def test_an_fp8_cache_is_read_in_656_bytes_and_expanded_for_prefills() -> None:
    operators = listed("deepseek-v3.2", ONE, Batch.prefill([512], [512]), FP8_CACHE)
    gathered = operators["latent_gather"].kernel
    assert isinstance(gathered, Elementwise)
    assert gathered.name == "latent_gather_sparse_fp8"
    assert gathered.moved_bytes == 1024 * (656 + 1152)
    decoded = listed("deepseek-v3.2", ONE, Batch.decode([10_000]), FP8_CACHE)["mla_sparse_decode"]
    assert decoded.moved_bytes == 2048 * 656 + 2 * 128 * 1088
    assert "latent_gather" not in listed("deepseek-v3.2", ONE, Batch.prefill([512], [512]))


def test_few_heads_are_padded_to_what_the_kernel_takes() -> None:
    """16 heads at tp 8 run as 64."""
    for batch, name in ((DECODE, "mla_sparse_decode"), (Batch.prefill([64]), "mla_sparse_prefill")):
        work = listed("deepseek-v3.2", Partition(tp=8), batch)[name].kernel
        assert isinstance(work, SparseMlaDecode | SparseMlaPrefill)
        assert work.heads == 64


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_attention_stops_growing_at_topk_and_scores_do_not(kv: str) -> None:
    estimator = InterpolationEstimator(H200, dataclasses.replace(BF16, kv=kv), "graph")
    times = {
        kernel: [estimator.price(decode([length] * 64, kernel)).time_us for length in (2048, 8192, 65536)]
        for kernel in KERNELS
    }
    assert times["attention"][0] == times["attention"][2]
    assert times["index_logits"][2] > 4 * times["index_logits"][1]
    assert times["index_topk"][0] < times["index_topk"][1] < times["index_topk"][2]


def test_sparse_kernels_of_the_h200_are_measured() -> None:
    """4096 queries of 2048 keys each: 3.7 to 4.3 ms (128 heads); fp8 decode of 128: 0.21 ms; scores at 4 TB/s. The SM
    clock that times are stated at may differ from that of the measurement by a tenth."""
    estimator = InterpolationEstimator(H200, Precision(kv="fp8"), "graph")
    attention = estimator.price(prefill([4096], [20480], "attention"))
    assert not attention.is_estimate
    assert 3400 < attention.time_us < 4700
    decoded = estimator.price(decode([32768] * 128, "attention"))
    assert not decoded.is_estimate
    assert decoded.time_us == pytest.approx(210, rel=0.15)
    scores = estimator.price(decode([32768] * 128, "index_logits"))
    assert 132 * 128 * 32768 / scores.time_us / 1e6 == pytest.approx(4.0, rel=0.1)


ESTIMATORS: list[Estimator] = [
    InterpolationEstimator(H200, Precision(kv="fp8")),
    InterpolationEstimator(H200),
    ForestEstimator(H200),
    RooflineEstimator(H200),
    TransferEstimator(get_gpu("h100")),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("kernel", KERNELS)
def test_steps_equal_one_price_per_step(estimator: Estimator, kernel: SparseStep) -> None:
    """Lengths pass topk on the way, one after another."""
    kv = np.array([2040, 2047, 5000, 100])
    times, _ = estimator.decode_times(decode([1], kernel), len(kv))(kv, 20)
    single = [estimator.price(decode((kv + step).tolist(), kernel)).time_us for step in range(20)]
    assert times.tolist() == single


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 40))
def test_keys_by_step_are_those_of_each_request(kv: list[int], steps: int) -> None:
    expected = [sum(min(length + step, 2048) for length in kv) for step in range(steps)]
    assert keys_by_step(np.array(kv), steps, 2048).tolist() == expected
    whole = [sum(length + step for length in kv) for step in range(steps)]
    assert keys_by_step(np.array(kv), steps, None).tolist() == whole


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=8))
def test_no_sparse_time_is_below_the_roofline(kernel: SparseStep, kv: list[int]) -> None:
    estimator = ESTIMATORS[0]
    work = decode(kv, kernel)
    bound_us = roofline_us(work.cost(Precision(kv="fp8")), H200, is_resident=True)
    assert estimator.price(work).time_us >= bound_us * (1 - 1e-9)


def test_two_prompts_cost_their_own_pairs_not_those_of_one_long_prompt() -> None:
    estimator = InterpolationEstimator(H200, timing="graph")
    whole = estimator.price(prefill([8192], [8192], "index_logits")).time_us
    halves = estimator.price(prefill([4096, 4096], [4096, 4096], "index_logits")).time_us
    assert 0.4 * whole < halves < 0.7 * whole


def test_drafts_choose_keys_of_their_own() -> None:
    """Two queries of each of 32 requests take the kernel as long as 64 requests."""
    estimator = InterpolationEstimator(H200, Precision(kv="fp8"), "graph")
    pair = estimator.price(decode([8192] * 32, "attention", heads=256)).time_us
    assert pair == estimator.price(decode([8192] * 64, "attention")).time_us


def test_long_contexts_decode_faster_than_with_dense_attention() -> None:
    """16 requests of 128 k tokens per rank; at 2 k the indexer costs more than it saves."""
    ranks, milliseconds = Partition(dp=32, ep=32), {}
    for name in ("deepseek-v3", "deepseek-v3.2"):
        model = IterationModel(load_model(name), ranks, Precision("fp8"), H200)
        for length in (2000, 128_000):
            milliseconds[name, length] = model.price([Batch.decode([length] * 16)] * 32).compute_ps / 1e9
    assert milliseconds["deepseek-v3.2", 128_000] < 0.6 * milliseconds["deepseek-v3", 128_000]
    assert milliseconds["deepseek-v3.2", 2000] > milliseconds["deepseek-v3", 2000]


def test_the_index_cache_takes_blocks_from_memory() -> None:
    dense, sparse = (
        instance_memory(load_model(name), Partition(dp=16, ep=16), Precision("fp8"), H200)
        for name in ("deepseek-v3", "deepseek-v3.2")
    )
    assert sparse.kv_bytes_per_token_per_rank - dense.kv_bytes_per_token_per_rank == 61 * 132
    assert sparse.num_kv_blocks < dense.num_kv_blocks
