"""FlashInfer's fused experts as a library of the profiler: which points it takes, and whom tokens choose."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")

import torch

from aicb.kernels.point import Point, point
from aicb.profiling.libraries.flashinfer_experts import FlashInferExperts, _chosen


def shared(tokens: int, lengths: tuple[int, ...], *, experts: int = 16, k: int = 4, width: int = 256) -> Point:
    shape = {"m": tokens * k, "n": width, "k": 128, "groups": len(lengths), "rows": sum(lengths), "batch": tokens}
    distribution = f"multinomial of {experts}"
    return point("fused_experts", "fp8", shape | {"experts_per_token": k}, lengths=lengths, distribution=distribution)


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is not None, reason="FlashInfer is installed")
def test_without_flashinfer_the_library_says_so() -> None:
    assert FlashInferExperts().missing() == "flashinfer: not installed"


def test_whole_scale_blocks_of_fp8_experts_are_taken() -> None:
    library = FlashInferExperts()
    assert library.refusal(shared(3, (1, 2, 0, 3))) is None
    assert "scale block" in str(library.refusal(shared(3, (1, 2, 0, 3), width=192)))
    assert library.refusal(point("grouped_gemm_gathered", "fp8", {"n": 128, "k": 128})) is not None


@pytest.mark.parametrize("lengths", [(1, 2, 0, 3), (6, 6, 6, 6), (0, 0, 0, 0), (6, 0, 0, 1)])
def test_no_token_chooses_an_expert_twice(lengths: tuple[int, ...]) -> None:
    """6 tokens of 4 of 16 experts; the first four are the rank's, and which of these has how many rows is drawn."""
    chosen = _chosen(shared(6, lengths))
    assert chosen.shape == (6, 4)
    assert chosen.dtype == torch.int32
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    counts = torch.bincount(chosen.flatten(), minlength=16).tolist()
    assert sorted(counts[:4]) == sorted(lengths)
    assert max(counts[4:]) - min(counts[4:]) <= 1


def test_operand_sets_of_a_point_reach_other_experts() -> None:
    torch.manual_seed(0)
    sets = [_chosen(shared(6, (6, 0, 0, 0))) for _ in range(8)]
    assert len({int(chosen.min()) for chosen in sets}) > 1
