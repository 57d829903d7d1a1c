"""Kernels that quantise activations for block-scaled fp8 products, and what engines run them as.

``triton``: one generated kernel, which computes an activation function and quantises its result in one pass. ``vllm``:
vLLM's ``per_token_group_fp8_quant``, a CUDA kernel that runs apart from the activation function. vLLM 0.24.0 takes it
for the inputs of dense products and of its fused MoE kernel (kernels of DeepSeek-V3's prefills on an H200,
``tests/data/engine/vllm-host-default.json.gz``: 48 before dense products of 8 layers, 10 in 5 layers with experts).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from aicb.kernels.elementwise import Elementwise
from aicb.operators.build import ACTIVATION_BYTES, elementwise, quant
from aicb.operators.operator import Operator
from boundary.errors import InputError

QuantKernel = Literal["triton", "vllm"]
NOT_OF_PRODUCTS = frozenset({"query_quant", "index_q_to_fp8"})
"""Quantisations of queries of attention, which are other kernels."""


def check_quant_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(QuantKernel):
        raise InputError(f"quant_kernel: found {chosen!r}, expected one of {', '.join(get_args(QuantKernel))}")


def quantised_by(kernel: QuantKernel, operators: Iterable[Operator]) -> list[Operator]:
    """The operators, whose quantisations and activations are listed as ``triton`` runs them, as ``kernel`` does."""
    if kernel == "triton":
        return list(operators)
    found: list[Operator] = []
    for operator in operators:
        made = operator.kernel
        if not isinstance(made, Elementwise) or operator.name in NOT_OF_PRODUCTS:
            found.append(operator)
        elif made.name == "quant":
            apart = Elementwise("group_quant", made.rows, made.cols, made.moved_bytes)
            found.append(Operator(operator.name, apart, operator.count, operator.phase, operator.cost, 0))
        elif made.name == "silu_mul_quant":
            found += _apart(operator, made)
        else:
            found.append(operator)
    return found


def _apart(operator: Operator, kernel: Elementwise) -> tuple[Operator, Operator]:
    """An activation, and the quantisation of its result."""
    size, count, phase = (kernel.rows, kernel.cols), operator.count, operator.phase
    quantised = operator.name.replace("silu_mul", "down_quant")
    return (
        elementwise(operator.name, "silu_mul", size, 3 * ACTIVATION_BYTES, count=count, phase=phase),
        quant(quantised, *size, count=count, phase=phase, kernel="group_quant"),
    )
