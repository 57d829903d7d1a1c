"""Points of sparse attention and fp8 caches: what a plan holds, what a point counts, which library takes it."""

from __future__ import annotations

import pytest

from aicb.model.catalog import load_model
from aicb.profiling.cost import flops, moved_bytes
from aicb.profiling.sweep import Plan, plan_points
from tests.aicb.profiling_points import at

pytest.importorskip("torch")

from aicb.profiling.libraries.flash_attention import FlashAttention3
from aicb.profiling.libraries.flash_mla_sparse import FlashMlaFp8, FlashMlaSparse
from aicb.profiling.libraries.sparse_indexer import VllmIndexer
from aicb.profiling.libraries.vllm_cache import VllmCache

LATENT = {"heads": 128, "kv_heads": 1, "d_qk": 576, "d_v": 512}


def ops_of(model: str, kv: str) -> set[str]:
    plan = Plan(models=(load_model(model),), weights=("fp8",), kv=(kv,), tp=(1,), ep=(8,))  # type: ignore[arg-type]
    return {point.op for point in plan_points(plan)}


def test_a_plan_of_deepseek_v32_holds_its_sparse_kernels_and_no_expanded_prefill() -> None:
    bf16, fp8 = ops_of("deepseek-v3.2", "bf16"), ops_of("deepseek-v3.2", "fp8")
    assert {"mla_sparse_prefill", "index_logits_prefill", "index_topk_prefill", "index_write", "index_gather"} < bf16
    assert {"index_logits_decode", "index_topk_decode", "latent_write", "grouped_topk"} < bf16
    assert {"mla_sparse_decode", "latent_write_sparse_fp8", "latent_gather_sparse_fp8"} < fp8
    assert not {"prefill_attention", "mla_decode", "bmm"} & (bf16 | fp8)


def test_an_fp8_cache_changes_the_formats_of_attention_and_of_writes() -> None:
    plan = Plan(models=(load_model("qwen3-8b"),), weights=("bf16",), kv=("fp8",), tp=(1,))
    points = plan_points(plan)
    assert {point.dtype for point in points if point.op in ("decode_attention", "prefill_attention")} == {"fp8"}
    assert "kv_write_fp8" in {point.op for point in points}
    assert "kv_write" not in {point.op for point in points}
    assert {"latent_write_fp8", "latent_gather_fp8", "mla_decode"} < ops_of("deepseek-v3", "fp8")


def test_sparse_points_count_chosen_keys_and_scores_count_all() -> None:
    """One query over 10,000 keys keeps 2048: 2·128·1088·2048 FLOPs, 656 bytes per chosen key; 2·64·128 per score."""
    step = {"batch": 1, "q_len": 1, "kv_len": 10_000}
    sparse = at("mla_sparse_decode", "fp8", queries=(1,), lengths=(10_000,), k=2048, **LATENT, **step)
    assert flops(sparse) == 2 * 128 * 1088 * 2048
    assert moved_bytes(sparse) == 656 * 2048 + 2 * 128 * 1088
    scores = at("index_logits_decode", "fp8", queries=(1,), lengths=(10_000,), heads=64, d_qk=128, **step)
    assert flops(scores) == 2 * 64 * 128 * 10_000
    assert moved_bytes(scores) == 132 * 10_000 + 64 * 132 + 4 * 10_000


def test_libraries_refuse_what_their_kernels_do_not_take() -> None:
    step = {"batch": 1, "q_len": 1, "kv_len": 4096, "k": 2048}
    few_heads = at("mla_sparse_prefill", queries=(1,), lengths=(4096,), **{**LATENT, "heads": 16}, **step)
    assert "multiple of 64" in (FlashMlaSparse().refusal(few_heads) or "")
    assert "sparse prefill is bf16" in (
        FlashMlaSparse().refusal(at("mla_sparse_prefill", "fp8", **LATENT, **step)) or ""
    )
    assert FlashMlaFp8().refusal(at("mla_decode", "bf16", **LATENT, **step)) is not None
    unequal = at("prefill_attention", "fp8", heads=8, kv_heads=8, d_qk=192, d_v=128, q_len=64, kv_len=64)
    assert "equal head dimensions" in (FlashAttention3().refusal(unequal) or "")


@pytest.mark.parametrize("library", [FlashMlaSparse, FlashMlaFp8, VllmIndexer, VllmCache])
def test_a_missing_module_is_named(library: type) -> None:
    reason = library().missing()
    assert reason is None or "neither a path was given nor is vllm installed" in reason
