"""SGLang's kernels as libraries of the profiler: which points they take, and what they launch."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from aicb.kernels.expert_points import ALSO, SHARED, UNIFORM, sglang_points, sglang_shared_points
from aicb.kernels.point import Point, point
from aicb.model.architecture import MoeFfn
from aicb.model.catalog import load_model
from aicb.profiling.libraries.sglang_attention import SglangAttention
from aicb.profiling.libraries.sglang_fused_moe import SglangFusedMoe, _places
from aicb.profiling.libraries.sglang_ops import SglangOps

DEEPSEEK = load_model("deepseek-v3")
MOE = next(kind.ffn for kind in DEEPSEEK.kinds if isinstance(kind.ffn, MoeFfn))


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang is installed")
def test_without_sglang_the_libraries_say_so() -> None:
    assert SglangFusedMoe().missing() == SglangOps().missing() == "sglang: not installed"
    assert SglangAttention().missing() == "sgl_kernel: not installed"


def test_points_of_fused_experts_have_one_that_all_tokens_choose() -> None:
    """DeepSeek-V3 with TP 8: 257 experts of 256 columns, of which a token has nine."""
    points = list(sglang_points(MOE, DEEPSEEK.hidden, "fp8", (1, 64), slices=8, is_fused=True))
    assert [(p["n"], p["k"], p["experts_per_token"]) for p in points[:2]] == [(512, 7168, 9), (7168, 256, 1)]
    for p in points:
        assert (p["groups"], p["rows"], p.lengths[-1]) == (257, 9 * p["batch"], p["batch"])
        assert p.distribution == f"{UNIFORM}{ALSO}"


def test_points_of_shared_experts_are_of_the_busiest_rank() -> None:
    points = list(sglang_shared_points(MOE, DEEPSEEK.hidden, "fp8", (512,), ranks=8))
    assert {(p["groups"], p["m"], p.distribution) for p in points} == {(32, 4096, f"{UNIFORM}{SHARED}256")}
    assert all(p["rows"] == sum(p.lengths) > 512 for p in points)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SglangFusedMoe:
    """On a host without SGLang, whose files have tiles of their own for the down projections of 257 experts."""
    made = SglangFusedMoe()
    up, down = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64}, {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "USE_TMA": True}

    def optimal(w1: tuple[int, ...], *_: object, **__: object) -> object:
        return up, ((down, 64) if w1[0] == 257 else (None, None))

    tiles = SimpleNamespace(
        try_get_optimal_moe_config=optimal, get_moe_configs=lambda experts, *_: experts == 257 or None
    )
    monkeypatch.setattr(made, "_tiles", tiles, raising=False)
    return made


def of(groups: int, per_row: int) -> Point:
    n, k = (512, 7168) if per_row > 1 else (7168, 256)
    shape = {"n": n, "k": k, "groups": groups, "rows": 36, "batch": 4, "experts_per_token": per_row}
    return point("grouped_gemm_sglang", "fp8", shape)


def test_a_down_projection_may_have_tiles_of_its_own_and_read_by_tma(library: SglangFusedMoe) -> None:
    first, second = library.launch(of(257, 9)), library.launch(of(257, 1))
    assert (first.config["BLOCK_SIZE_N"], second.config["BLOCK_SIZE_N"]) == (64, 128)
    assert "USE_TMA" not in second.config
    assert first.by_tma
    assert second.by_tma
    plain = library.launch(of(64, 1))
    assert (plain.config["BLOCK_SIZE_N"], plain.by_tma, plain.is_tuned) == (64, False, False)


def test_rows_in_the_order_of_experts_are_found_by_their_pairs() -> None:
    """Pairs 2, 0 of the first expert and 1 of the second, in tiles of four; 3 is no pair."""
    assert _places(torch.tensor([2, 0, 3, 3, 1, 3, 3, 3]), 3).tolist() == [1, 4, 0]


def test_points_of_others_are_refused() -> None:
    dense = point("gemm", "bf16", {"m": 1, "n": 128, "k": 128})
    assert SglangFusedMoe().refusal(dense) is not None
    assert SglangOps().refusal(dense) is not None
    assert SglangAttention().refusal(dense) is not None
    broken = point("grouped_gemm_sglang", "fp8", {"n": 192, "k": 128, "groups": 2, "rows": 4, "batch": 2})
    assert "scale block" in str(SglangFusedMoe().refusal(broken))
    two = point("sglang_sum", "bf16", {"m": 8, "n": 4096, "experts_per_token": 2})
    assert SglangOps().refusal(two) == "results of two experts are added by torch"
