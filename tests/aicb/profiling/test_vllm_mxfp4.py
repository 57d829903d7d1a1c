"""Products of mxfp4 experts as a library of the profiler: its weights, and the experts it routes to."""

import importlib.util

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from aicb.kernels.point import point
from aicb.kernels.routing import expert_rows
from aicb.profiling.kernel_library import relative_error
from aicb.profiling.libraries.gathered_experts import assign
from aicb.profiling.libraries.mxfp4 import LEVELS, dequantise, quantise
from aicb.profiling.libraries.vllm_mxfp4 import VllmMxfp4Experts

SHAPE = {"n": 128, "k": 64, "groups": 4, "active_groups": 4, "rows": 8, "batch": 4}


def test_weights_are_the_nearest_of_eight_levels_a_sign_and_a_power_of_two_per_32() -> None:
    torch.manual_seed(0)
    weights = torch.randn(16, 128, dtype=torch.bfloat16)
    packed, exponents = quantise(weights)
    assert packed.shape == (16, 64)
    assert exponents.shape == (16, 4)
    found = dequantise(packed, exponents)
    assert relative_error(found, weights) < 0.13
    scaled = (found.unflatten(1, (-1, 32)) / torch.exp2(exponents.float() - 127)[..., None]).abs()
    assert {float(level) for level in scaled.unique()} == set(LEVELS)
    again, _ = quantise(found)
    assert torch.equal(dequantise(again, exponents), found)


@pytest.mark.parametrize("tokens", [1, 3, 64, 513])
def test_tokens_get_distinct_experts_and_these_the_rows_of_the_point(tokens: int) -> None:
    rows = expert_rows("multinomial", 32, tokens, 4)
    chosen = assign(rows, tokens, 4)
    assert all(len(set(experts)) == 4 for experts in chosen.tolist())
    assert np.array_equal(np.bincount(chosen.ravel(), minlength=32), rows)


def test_only_products_of_mxfp4_are_taken() -> None:
    library = VllmMxfp4Experts()
    assert library.refusal(point("grouped_gemm_swiglu", "mxfp4", SHAPE)) is None
    assert library.refusal(point("grouped_gemm_gathered", "bf16", SHAPE)) == "grouped products of mxfp4 weights only"
    assert library.refusal(point("grouped_gemm_swiglu", "mxfp4", SHAPE | {"rows": 7})) == "all experts of a layer only"
    if importlib.util.find_spec("vllm") is None:
        assert library.missing() == "vllm: not installed"
