"""Builders of operators from the shapes of their kernels, with weights, and bytes of memory-bound kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel, KernelCost
from aicb.model.partition import Partition
from aicb.model.precision import ELEMENT_BYTES, GemmDtype, Precision, activation_bytes_per_row
from aicb.operators.operator import CollectiveName, Communication, CommunicationGroup, Operator, Phase, TokenExchange

ACTIVATION_BYTES = ELEMENT_BYTES["bf16"]
"""Bytes of an activation element between kernels: bf16."""


@dataclass(frozen=True, slots=True)
class RankShape:
    """Parameters of a rank's operators other than the layer and its tokens."""

    hidden: int
    partition: Partition
    precision: Precision
    count: int
    """Number of identical layers: every operator is repeated this often."""

    @property
    def tp(self) -> int:
        """Attention tensor parallelism."""
        return self.partition.tp

    @property
    def is_fp8(self) -> bool:
        """Whether GEMMs take quantised activations, so that quantisation is listed."""
        return self.precision.weights == "fp8"


def computed(
    name: str, kernel: Kernel, precision: Precision, *, count: int, phase: Phase, weight_elements: int = 0
) -> Operator:
    """Operator of a kernel, with its FLOPs and bytes."""
    return Operator(name, kernel, count, phase, kernel.cost(precision), weight_elements)


def gemm(
    name: str,
    shape: tuple[int, int, int],
    dtype: GemmDtype,
    *,
    count: int = 1,
    phase: Phase = Phase.DENSE,
    output_bytes: int = ACTIVATION_BYTES,
    has_bias: bool = False,
) -> Operator:
    """A product of shape ``(m, n, k)`` with a resident ``[n, k]`` weight; ``output_bytes`` is per element."""
    m, n, k = shape
    kernel = Gemm(m, n, k, dtype, output_bytes=output_bytes, has_bias=has_bias)
    return computed(name, kernel, _ANY, count=count, phase=phase, weight_elements=n * k + (n if has_bias else 0))


_ANY = Precision()
"""Precision passed to kernels that state their formats themselves."""


def batched_gemm(name: str, batch: int, shape: tuple[int, int, int], count: int) -> Operator:
    """``batch`` bf16 products of shape ``(m, n, k)``, each with its own resident ``[k, n]`` weight."""
    m, n, k = shape
    kernel = BatchedGemm(batch, m, n, k)
    return computed(name, kernel, _ANY, count=count, phase=Phase.ATTENTION, weight_elements=batch * n * k)


def grouped_gemm(name: str, kernel: GroupedGemm, count: int) -> Operator:
    """Products of local experts, all of whose weights are resident."""
    elements = kernel.groups * kernel.n * (kernel.k + (1 if kernel.has_bias else 0))
    return computed(name, kernel, _ANY, count=count, phase=Phase.EXPERTS, weight_elements=elements)


def attention_kernel(name: str, kernel: Kernel, shape: RankShape) -> Operator:
    """A kernel of attention without weights."""
    return computed(name, kernel, shape.precision, count=shape.count, phase=Phase.ATTENTION)


def elementwise(
    name: str,
    kernel: str,
    shape: tuple[float, int],
    bytes_per_element: float,
    *,
    count: int = 1,
    weights: int = 0,
    phase: Phase = Phase.NORM,
) -> Operator:
    """A memory-bound kernel over ``shape`` = (rows, columns); fractional expected rows are rounded up.

    ``bytes_per_element`` sums all tensors read and written; bf16 ``weights`` are read once more on top.
    """
    rows, cols = shape
    moved = math.ceil(rows * cols * bytes_per_element) + ACTIVATION_BYTES * weights
    made = Elementwise(kernel, math.ceil(rows), cols, moved)
    return computed(name, made, _ANY, count=count, phase=phase, weight_elements=weights)


def quant(
    name: str, rows: float, cols: int, *, count: int, phase: Phase = Phase.NORM, kernel: str = "quant"
) -> Operator:
    """Dynamic 1x128 quantisation of bf16 activations to e4m3 with fp32 scales."""
    per_element = ACTIVATION_BYTES + activation_bytes_per_row(cols, "fp8") / cols
    return elementwise(name, kernel, (rows, cols), per_element, count=count, phase=phase)


def silu_mul(name: str, rows: float, intermediate: int, shape: RankShape, *, phase: Phase) -> Operator:
    """SwiGLU activation of ``[rows, 2·intermediate]``, quantised on the way out with fp8 weights."""
    written = activation_bytes_per_row(intermediate, shape.precision.dense) / intermediate
    kernel = "silu_mul_quant" if shape.is_fp8 else "silu_mul"
    per_element = 2 * ACTIVATION_BYTES + written
    return elementwise(name, kernel, (rows, intermediate), per_element, count=shape.count, phase=phase)


def communicate(
    name: str,
    op: CollectiveName,
    size_bytes: float,
    group: CommunicationGroup,
    count: int = 1,
    exchange: TokenExchange | None = None,
    behind: tuple[float, ...] = (),
) -> Operator:
    """Operator of a collective; the caller prices its bytes, so it moves none in this rank's HBM."""
    collective = Communication(op, math.ceil(size_bytes), group, exchange, behind)
    return Operator(name, collective, count, Phase.COMMUNICATION, _NOTHING, 0)


_NOTHING = KernelCost(0.0, 0.0, 0.0, "bf16")


def tp_all_reduce(name: str, tokens: int, shape: RankShape) -> list[Operator]:
    """All-reduce of ``[tokens, hidden]`` in the TP group; nothing without tensor parallelism."""
    if shape.tp == 1:
        return []
    return [communicate(name, "all_reduce", tokens * shape.hidden * ACTIVATION_BYTES, "tp", shape.count)]
