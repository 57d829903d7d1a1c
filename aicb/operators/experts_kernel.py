"""Kernels that engines run for block-scaled fp8 experts, and where they can.

``deep_gemm``: grouped products, masked in decodes and contiguous in prefills. ``triton``: vLLM's fused MoE kernel,
which gathers the rows of an expert by their indices and takes its tiles from the tokens (``fused_moe.py``).
``triton_sglang``: SGLang's version of it, with tiles of its own, which also runs where ranks share experts.
``flashinfer``: all experts of a rank in one call, which takes bf16 tokens (`aicb.kernels.fused_experts`). Experts in
bf16 and mxfp4 run in a gathering kernel whichever is chosen, and those to which DeepEP brings tokens in ``deep_gemm``.
``marlin``: of mxfp4 experts, vLLM's kernel for GPUs without tensor cores for them, instead of OpenAI's in Triton
(``VLLM_MXFP4_USE_MARLIN``): activation and sum over experts are kernels of their own with it.

vLLM 0.24.0 on SM90 (``fused_moe/oracle/fp8.py``, ``_get_priority_backends``) tries Triton first where every rank holds
all experts, and FlashInfer first where ranks share them.
"""

from __future__ import annotations

from typing import Literal, get_args

from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision, WeightDtype
from aicb.operators.moe_kernels import MoeKernels
from boundary.errors import InputError

ExpertsKernel = Literal["deep_gemm", "flashinfer", "triton", "triton_sglang", "marlin"]
TRITON = ("triton", "triton_sglang")


def experts_kernel_of(chosen: ExpertsKernel, moe_kernels: MoeKernels, weights: WeightDtype) -> ExpertsKernel:
    """What runs experts of a format: bf16 ones of an engine with SGLang's other kernels, which has no choice of them,
    in SGLang's version of the gathering kernel; all others in the chosen one."""
    return "triton_sglang" if moe_kernels == "sglang" and weights == "bf16" else chosen


def check_experts_kernel(chosen: str, partition: Partition, precision: Precision) -> None:
    """Whether fp8 experts can be priced with a kernel.

    Raises:
        InputError: no such kernel, or it has no measured times where ranks share experts, or where they do not.
    """
    if chosen not in get_args(ExpertsKernel):
        raise InputError(f"experts_kernel: found {chosen!r}, expected one of {', '.join(get_args(ExpertsKernel))}")
    shares_experts = partition.moe_layout is not MoeLayout.TENSOR
    if chosen == "marlin" and (precision.weights != "mxfp4" or shares_experts):
        found = f"weights {precision.weights}" if precision.weights != "mxfp4" else f"ep {partition.ep}"
        raise InputError(
            f"experts_kernel: found marlin with {found}, expected mxfp4 weights and all experts on every rank"
        )
    if precision.weights != "fp8":
        return
    if chosen == "triton" and shares_experts:
        raise InputError(
            f"experts_kernel: found triton with ep {partition.ep}, expected deep_gemm or flashinfer, in SGLang "
            "triton_sglang (vLLM's Triton kernel of fp8 experts is measured with all experts on every rank only)"
        )
    if chosen == "flashinfer" and not shares_experts:
        raise InputError(
            f"experts_kernel: found flashinfer with ep {partition.ep}, expected deep_gemm or triton (FlashInfer's "
            "kernel of fp8 experts is measured where ranks share them only)"
        )
