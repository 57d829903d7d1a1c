"""vLLM's fused MoE GEMM: the Triton kernel of bf16 and block-scaled fp8 experts, with the configuration vLLM chooses.

vLLM takes one configuration per layer and batch for both projections: the entry of its tuned file of
(experts, intermediate columns, device, format) whose token count is nearest, or a rule of thumb where it ships no file.
The configuration is recorded with the times (``settings``, ``is_tuned``). Up projections gather their rows from the
tokens, down projections multiply by the router's weights, as in ``TritonExperts``. Batches of so few tokens that at
most a quarter of the experts can be active skip the sorting and give every pair a tile of its own, as is done here.

fp8 experts have weight scales of 128x128 blocks; activations come quantised, one scale per row and 128 columns, by
kernels of their own (``oracle/fp8.py``: on SM90 this kernel is the first choice unless experts are shared among ranks).

A rank that shares the experts with others gets the pairs of all: vLLM sorts them all, and tiles of experts of other
ranks write zeros (``moe_align_block_size.py``, ``expert_map``). Such points have the pairs of all experts in ``m``,
and their number in the distribution (``multinomial of 128``); ``rows`` and ``lengths`` are of the rank's own experts.

Signatures of vLLM 0.24 are used.
"""

from __future__ import annotations

from typing import Any

import torch

from aicb.kernels.expert_points import experts_of_all_ranks
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import (
    BF16_TOLERANCE,
    FP8_TOLERANCE,
    Kernel,
    relative_error,
    some_rows,
)
from aicb.profiling.libraries.gathered_experts import BLOCK, Routing, expert_operands, pairs_of
from aicb.profiling.libraries.modules import import_modules

_PACKAGE = "vllm.model_executor.layers.fused_moe"
_SPARSITY = 4
"""Sorting is skipped where pairs times this do not exceed the experts (``_prepare_expert_assignment``)."""
_SETTINGS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


class VllmFusedMoe:
    """``fused_moe_kernel`` of an installed vLLM."""

    def __init__(self) -> None:
        found, self._missing = import_modules("vllm", (f"{_PACKAGE}.fused_moe", f"{_PACKAGE}.moe_align_block_size"))
        if not self._missing:
            self._kernels, align = found
            self._align = align.moe_align_block_size

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"vllm {version('vllm')}, fused_moe_kernel"

    def refusal(self, point: Point) -> str | None:
        if point.op != "grouped_gemm_gathered":
            return "fused MoE runs gathered grouped GEMMs only"
        if point.dtype not in ("bf16", "fp8"):
            return "bf16 and fp8 only"
        if point.dtype == "fp8" and (point["n"] % BLOCK[0] or point["k"] % BLOCK[1]):
            return "vLLM refuses widths that are no multiple of the scale block"
        if "batch" not in dict(point.shape) or pairs_of(point) % point["batch"]:
            return "experts of several ranks: the configuration depends on tokens this point does not tell"
        return None

    def configuration(self, point: Point) -> tuple[dict[str, int], bool]:
        """What vLLM launches for this point, and whether it comes from a tuned file."""
        tokens, experts = point["batch"], point["groups"]
        is_up = point["experts_per_token"] > 1
        width, hidden = (point["n"] // 2, point["k"]) if is_up else (point["k"], point["n"])
        shapes = (experts, 2 * width, hidden), (experts, hidden, width)
        dtype, block = ("fp8_w8a8", BLOCK) if point.dtype == "fp8" else (None, None)
        top_k = pairs_of(point) // tokens
        chosen = self._kernels.try_get_optimal_moe_config(*shapes, top_k, dtype, tokens, block_shape=block)
        return dict(chosen), self._kernels.get_moe_configs(experts, width, dtype, *(block or ())) is not None

    def kernel(self, point: Point) -> Kernel:
        config, is_tuned = self.configuration(point)
        pairs, per_row, k = pairs_of(point), point["experts_per_token"], pairs_of(point) // point["batch"]
        is_fp8 = point.dtype == "fp8"
        x, w = expert_operands(point, pairs // per_row)
        out = torch.empty(point["batch"], k, point["n"], device="cuda", dtype=torch.bfloat16)
        routed = Routing.of(point)
        router_weights = torch.rand(point["batch"], k, device="cuda")
        sorted_ids, owners, padded = self._assign(routed.experts, config, point)

        def run() -> None:
            self._kernels.invoke_fused_moe_triton_kernel(
                x.values,
                w.values,
                out,
                x.scales,
                w.scales,
                router_weights if per_row == 1 else None,
                sorted_ids,
                owners,
                padded,
                per_row == 1,
                per_row,
                config,
                compute_type=self._kernels.tl.bfloat16,
                use_fp8_w8a8=is_fp8,
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=False,
                block_shape=BLOCK if is_fp8 else None,
            )

        def error() -> float:
            expert = max(range(point["groups"]), key=lambda e: point.lengths[e])
            all_pairs = (routed.experts.flatten() == expert).nonzero()[:, 0]
            chosen = all_pairs[some_rows(len(all_pairs))]
            expected = x.rows(chosen // per_row) @ w.expert(expert).T
            if per_row == 1:
                expected = expected * router_weights.flatten()[chosen, None]
            return relative_error(out.flatten(0, 1)[chosen], expected)

        settings = {name.lower(): int(config[name]) for name in _SETTINGS if name in config}
        settings["is_tuned"] = int(is_tuned)
        tolerance = FP8_TOLERANCE if is_fp8 else BF16_TOLERANCE
        return Kernel("vllm/fused_moe", run, [out], error, tolerance, settings)

    def _assign(self, experts: torch.Tensor, config: dict[str, int], point: Point) -> tuple[Any, Any, Any]:
        """(pairs sorted by expert or ``None``, expert of each row tile or -1 of other ranks', padded pairs)."""
        groups, total = point["groups"], experts_of_all_ranks(point)
        if total > groups:
            held = torch.full((total,), -1, dtype=torch.int32, device="cuda")
            held[:groups] = torch.arange(groups, dtype=torch.int32)
            shared: tuple[Any, Any, Any] = self._align(experts, config["BLOCK_SIZE_M"], total, held)
            return shared
        if experts.numel() * _SPARSITY <= groups:
            padded = torch.full((1,), experts.numel() * config["BLOCK_SIZE_M"], dtype=torch.int32, device="cuda")
            return None, experts.view(-1), padded
        assigned: tuple[Any, Any, Any] = self._align(experts, config["BLOCK_SIZE_M"], groups)
        return assigned
