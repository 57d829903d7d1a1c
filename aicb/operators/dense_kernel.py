"""Kernels that engines run for dense block-scaled fp8 products.

``deep_gemm``: DeepGEMM for any number of rows, behind a kernel that quantises its input. ``flashinfer``: below 32 rows
TensorRT-LLM's kernel with swapped operands, which quantises bf16 activations itself, DeepGEMM above. vLLM 0.24.0 takes
the latter on SM90 (``scaled_mm/flashinfer.py``: "M < 32"), for widths that both take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Literal, get_args

from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import SWAPPED_BELOW_ROWS, Gemm, SwappedGemm
from aicb.model.precision import Precision
from aicb.operators.build import ACTIVATION_BYTES, elementwise
from aicb.operators.moe_kernels import MoeKernelsOfModel, chosen_by
from aicb.operators.operator import Operator
from aicb.operators.quantisation import NOT_OF_PRODUCTS, QuantKernel, quantised_by
from boundary.errors import InputError

DenseKernel = Literal["deep_gemm", "flashinfer"]


def check_dense_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(DenseKernel):
        raise InputError(f"dense_kernel: found {chosen!r}, expected one of {', '.join(get_args(DenseKernel))}")


def multiplied_by(kernel: DenseKernel, operators: Iterable[Operator]) -> list[Operator]:
    """The operators of dense layers and attention, whose products are DeepGEMM's, as ``kernel`` runs them.

    A list with a product that the swapped kernel does not take (widths of other than whole 64 columns and 128 rows of
    weights) stays as it is.
    """
    listed = list(operators)
    if kernel == "deep_gemm":
        return listed
    products = (each.kernel for each in listed if isinstance(each.kernel, Gemm) and each.kernel.dtype == "fp8")
    first = next(products, None)
    if first is None or not all(map(_can_swap, chain((first,), products))):
        return listed
    return [each for operator in listed for each in _swapped(operator)]


def as_run(
    operators: Iterable[Operator],
    quant_kernel: QuantKernel,
    dense_kernel: DenseKernel,
    moe_kernels: MoeKernelsOfModel = "generic",
) -> list[Operator]:
    """Operators of tokens and attention as an engine's kernels run them."""
    return multiplied_by(dense_kernel, quantised_by(quant_kernel, chosen_by(moe_kernels, operators)))


def _can_swap(product: Gemm) -> bool:
    return product.m < SWAPPED_BELOW_ROWS and not product.n % 64 and not product.k % 128


def _swapped(operator: Operator) -> Iterator[Operator]:
    kernel, count, phase = operator.kernel, operator.count, operator.phase
    if isinstance(kernel, Gemm) and kernel.dtype == "fp8":
        swapped = SwappedGemm(kernel.m, kernel.n, kernel.k)
        yield replace(operator, kernel=swapped, cost=swapped.cost(Precision()))
    elif not isinstance(kernel, Elementwise) or operator.name in NOT_OF_PRODUCTS:
        yield operator
    elif kernel.name == "silu_mul_quant":
        size = (kernel.rows, kernel.cols)
        yield elementwise(operator.name, "silu_mul", size, 3 * ACTIVATION_BYTES, count=count, phase=phase)
    elif kernel.name not in ("quant", "group_quant"):
        yield operator
