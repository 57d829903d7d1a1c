"""Shorthands for tests that look into operator lists."""

from __future__ import annotations

from aicb import Batch, Operator, Partition, Precision, iteration_operators, load_model
from aicb.operators.operator import Communication, Elementwise, Gemm, GroupedGemm

BF16, FP8 = Precision(), Precision(weights="fp8")
ONE = Partition()
DECODE = Batch.decode([1000] * 4)


def listed(name: str, partition: Partition, batch: Batch, precision: Precision = BF16) -> dict[str, Operator]:
    """Operators of the only stage by name."""
    operators = iteration_operators(load_model(name), partition, precision, batch)
    assert len({op.name for op in operators}) == len(operators)
    return {op.name: op for op in operators}


def gemm_shape(operator: Operator) -> tuple[float, int, int]:
    work = operator.work
    assert isinstance(work, Gemm | GroupedGemm)
    return (work.m if isinstance(work, Gemm) else work.rows, work.n, work.k)


def elementwise(operator: Operator) -> Elementwise:
    assert isinstance(operator.work, Elementwise)
    return operator.work


def communication(operator: Operator) -> Communication:
    assert isinstance(operator.work, Communication)
    return operator.work


def grouped(operator: Operator) -> GroupedGemm:
    assert isinstance(operator.work, GroupedGemm)
    return operator.work
