"""FlashInfer's fused MoE of block-scaled fp8 experts on SM90, called as vLLM's ``FlashInferExperts`` does.

Tokens are bf16, results bf16 sums weighted by the router. Up projections hold the linear half before the gated one.
Experts of other ranks are skipped; the rank measured is the first. The products are TensorRT-LLM's DeepGEMM, each
(n, k, experts, tile) of which is compiled at first use.

Weights of one shape are kept: operand sets that take turns differ in the experts that are chosen. Signatures of
FlashInfer 0.6 are used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch

from aicb.kernels.expert_points import experts_of_all_ranks
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flashinfer_gemm import KEEPS_COMPILED

TOLERANCE = 2.0**-5
"""Activations are quantised twice, with scales rounded otherwise than in the reference, so that some become the next
fp8 value (`aicb.profiling.libraries.flashinfer_gemm`); between the products they are rounded to bf16."""
_LARGEST_PROFILED = 512
"""Tokens up to which FlashInfer would tune, vLLM's largest captured size."""


class FlashInferExperts:
    """``cutlass_fused_moe`` of an installed FlashInfer, with DeepSeek's block scales."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int, int], tuple[torch.Tensor, ...]] = {}
        self._call: Any = None
        self._missing = None if importlib.util.find_spec("flashinfer") else "flashinfer: not installed"

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"flashinfer {version('flashinfer-python')}, cutlass_fused_moe"

    def refusal(self, point: Point) -> str | None:
        if point.op != "fused_experts" or point.dtype != "fp8":
            return "fused fp8 experts only"
        if point["n"] % reference.SCALE_COLUMNS or point["k"] % reference.SCALE_COLUMNS:
            return "widths that are no multiple of the scale block"
        return None

    def kernel(self, point: Point) -> Kernel:
        if self._call is None:
            os.environ.update(KEEPS_COMPILED)
            self._call = importlib.import_module("flashinfer.fused_moe").cutlass_fused_moe
        call, groups, tokens = self._call, point["groups"], point["batch"]
        up, up_scales, down, down_scales = self._weights_of(groups, point["n"], point["k"])
        x = normal(tokens, point["k"], device="cuda")
        chosen = _chosen(point).to("cuda")
        router = torch.rand(chosen.shape, device="cuda")
        out = torch.empty(tokens, point["k"], device="cuda", dtype=torch.bfloat16)

        def run() -> None:
            call(
                input=x,
                token_selected_experts=chosen,
                token_final_scales=router,
                fc1_expert_weights=up,
                fc2_expert_weights=down,
                output=out,
                output_dtype=torch.bfloat16,
                quant_scales=[up_scales, down_scales],
                ep_size=experts_of_all_ranks(point) // groups,
                ep_rank=0,
                use_deepseek_fp8_block_scale=True,
                tune_max_num_tokens=_LARGEST_PROFILED,
            )

        def error() -> float:
            rows = some_rows(tokens, 16)
            rounded = reference.dequantise_rows(*reference.quantise_rows(x[rows]))
            expected = torch.zeros(len(rows), point["k"], device="cuda")
            for row, experts in enumerate(chosen[rows].tolist()):
                for place, expert in enumerate(experts):
                    if expert < groups:
                        weights = (up[expert], up_scales[expert]), (down[expert], down_scales[expert])
                        expected[row] += router[rows[row], place] * _expert(rounded[row : row + 1], *weights)[0]
            return relative_error(out[rows], expected)

        return Kernel("flashinfer/cutlass_fused_moe", run, [out], error, TOLERANCE)

    def _weights_of(self, groups: int, width: int, hidden: int) -> tuple[torch.Tensor, ...]:
        """``[groups, n, k]`` values and ``[groups, n / 128, k / 128]`` scales of both projections."""
        key = groups, width, hidden
        if key not in self._weights:
            made = [_quantised(groups, *shape) for shape in ((2 * width, hidden), (hidden, width))]
            self._weights[key] = (*made[0], *made[1])
        return self._weights[key]


def _quantised(groups: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal weights of variance 1 / k, so that results stay as large as what goes in."""
    block = reference.SCALE_COLUMNS
    values = torch.empty(groups, n, k, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(groups, n // block, k // block, device="cuda")
    for index in range(groups):
        values[index], scales[index] = reference.quantise_blocks(normal(n, k, device="cuda", scale=k**-0.5))
    return values, scales


Weights = tuple[torch.Tensor, torch.Tensor]
"""fp8 values and the scales of their blocks."""


def _expert(x: torch.Tensor, up: Weights, down: Weights) -> torch.Tensor:
    """[rows, hidden] of one expert in float32, rounded to bf16 and fp8 where the kernels do so."""
    linear, gated = (x @ reference.dequantise_blocks(*up).T).bfloat16().float().chunk(2, dim=-1)
    between = (torch.nn.functional.silu(gated) * linear).bfloat16()
    rounded = reference.dequantise_rows(*reference.quantise_rows(between))
    return (rounded @ reference.dequantise_blocks(*down).T).bfloat16().float()


def _chosen(point: Point) -> torch.Tensor:
    """[tokens, k] int32 experts, distinct for each token, those of the rank first.

    The stated rows, over the rank's experts in random order; other pairs are even over the other ranks' experts.
    Pairs in the order of experts are dealt to the tokens in turns, so that no token gets an expert twice.
    """
    groups, tokens = point["groups"], point["batch"]
    own = torch.tensor(point.lengths)[torch.randperm(groups)]
    others, left = experts_of_all_ranks(point) - groups, point["m"] - point["rows"]
    elsewhere = torch.full((others,), left // max(others, 1))
    elsewhere[: left - int(elsewhere.sum())] += 1
    counts = torch.cat([own, elsewhere])
    dealt = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts).view(-1, tokens).T
    return dealt[torch.randperm(tokens)].contiguous()
