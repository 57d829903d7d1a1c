"""Kernels that engines run for block-scaled fp8 experts, and where they can.

``deep_gemm``: grouped products, masked in decodes and contiguous in prefills. ``triton``: vLLM's fused MoE kernel,
which gathers the rows of an expert by their indices and takes its tiles from the tokens (``fused_moe.py``). Experts in
bf16 and mxfp4 run in a gathering kernel whichever is chosen.

vLLM 0.24.0 on SM90 (``fused_moe/oracle/fp8.py``, ``_get_priority_backends``) tries Triton first where every rank holds
all experts, and FlashInfer's CUTLASS kernels first where ranks share them; for the latter ``deep_gemm`` stands in.
"""

from __future__ import annotations

from typing import Literal, get_args

from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision
from boundary.errors import InputError

ExpertsKernel = Literal["deep_gemm", "triton"]


def check_experts_kernel(chosen: str, partition: Partition, precision: Precision) -> None:
    """Whether fp8 experts can be priced with a kernel.

    Raises:
        InputError: no such kernel, or it has no measured times where ranks share experts.
    """
    if chosen not in get_args(ExpertsKernel):
        raise InputError(f"experts_kernel: found {chosen!r}, expected one of {', '.join(get_args(ExpertsKernel))}")
    shares_experts = partition.moe_layout is not MoeLayout.TENSOR
    if chosen == "triton" and precision.weights == "fp8" and shares_experts:
        raise InputError(
            f"experts_kernel: found triton with ep {partition.ep}, expected deep_gemm (the Triton kernel of fp8 "
            "experts is measured with all experts on every rank only)"
        )
