"""Shorthands for tests that look into operator lists."""

from __future__ import annotations

from aicb import Batch, Operator, Partition, Precision, iteration_operators, load_model
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.operators.operator import Communication

BF16, FP8 = Precision(), Precision(weights="fp8")
ONE = Partition()
DECODE = Batch.decode([1000] * 4)


def listed(name: str, partition: Partition, batch: Batch, precision: Precision = BF16) -> dict[str, Operator]:
    """Operators of the only stage by name."""
    operators = iteration_operators(load_model(name), partition, precision, batch)
    assert len({op.name for op in operators}) == len(operators)
    return {op.name: op for op in operators}


def gemm_shape(operator: Operator) -> tuple[float, int, int]:
    work = operator.kernel
    assert isinstance(work, Gemm | GroupedGemm)
    return (work.m if isinstance(work, Gemm) else work.rows, work.n, work.k)


def elementwise(operator: Operator) -> Elementwise:
    assert isinstance(operator.kernel, Elementwise)
    return operator.kernel


def communication(operator: Operator) -> Communication:
    assert isinstance(operator.kernel, Communication)
    return operator.kernel


def grouped(operator: Operator) -> GroupedGemm:
    assert isinstance(operator.kernel, GroupedGemm)
    return operator.kernel
