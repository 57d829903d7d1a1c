"""Sweep plans: which points to measure for a model, its partitions and a range of token counts.

GEMM and elementwise shapes are read off the operator list of ``aicb`` itself, so that a plan holds what the simulator
will ask for; grids of attention and experts follow from the model. Each kernel states its own points. Those that
several models or partitions share are measured once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from aicb.kernels.gemm import Gemm
from aicb.kernels.kernel import Kernel
from aicb.kernels.point import ListedPlace, Point, SweptModel, point
from aicb.kernels.registry import kernel_classes
from aicb.model.architecture import Model
from aicb.model.partition import Partition, PartitionError
from aicb.model.precision import KvDtype, Precision, WeightDtype
from aicb.operators.lists import head_operators, token_operators
from aicb.operators.operator import Operator
from boundary.errors import InputError

MAX_TOKENS = 16384
MAX_LOGIT_ROWS = 512
_COARSE_STRIDE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Models, formats and sizes to sweep."""

    models: tuple[Model, ...]
    weights: tuple[WeightDtype, ...] = ("bf16", "fp8")
    kv: tuple[KvDtype, ...] = ("bf16",)
    tp: tuple[int, ...] = (1, 2, 4, 8)
    ep: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    max_tokens: int = MAX_TOKENS
    max_kv_tokens: int = 32768
    only: frozenset[str] = frozenset()
    """Operations to keep; empty keeps all."""

    def __post_init__(self) -> None:
        known = profiled_operations()
        unknown = sorted(self.only - known)
        if unknown:
            raise InputError(f"--only: found {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
        for name in ("tp", "ep"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise InputError(f"--{name}: found {list(getattr(self, name))}, expected sizes of at least 1")
        if self.max_tokens < 1:
            raise InputError(f"--max-tokens: found {self.max_tokens}, expected at least 1")


DEVICE_OPS = ("device_copy", "memset")
"""Bandwidth of the device, whatever the model."""


def profiled_operations() -> frozenset[str]:
    """Operations that a profile may have."""
    return frozenset({*(name for kind in kernel_classes() for name in kind.profiled_operations()), *DEVICE_OPS})


def plan_points(plan: Plan) -> list[Point]:
    """Distinct points of a plan, in a deterministic order.

    Raises:
        InputError: the plan is empty, or no partition of a model is possible.
    """
    found: dict[Point, Point] = {}
    for model in plan.models:
        for item in _model_points(model, plan):
            known = found.setdefault(item, item)
            if item.priority < known.priority:
                found[item] = item
    for item in _device_points():
        found.setdefault(item, item)
    kept = [item for item in found.values() if not plan.only or item.op in plan.only]
    if not kept:
        raise InputError(f"--only: found {', '.join(sorted(plan.only))}, expected operations these models have")
    return kept


def token_counts(most: int) -> list[int]:
    """Powers of two and the points at 3/4 between them, from 24 on: 1, 2, 4, 8, 16, 24, 32, 48 … ``most``."""
    counts = {1 << i for i in range(most.bit_length())} | {3 << i for i in range(3, most.bit_length())}
    return sorted(count for count in counts if count <= most)


def _model_points(model: Model, plan: Plan) -> Iterator[Point]:
    partitions = [tp for tp in plan.tp if _divides(model, tp)]
    if not partitions:
        raise InputError(f"--tp: found {list(plan.tp)}, expected a size that divides {model.name}")
    for weights, kv, tp in product(plan.weights, plan.kv, partitions):
        yield from _listed_points(model, plan, Precision(weights, kv), tp)
    swept = SweptModel(
        model=model,
        weights=plan.weights,
        kv=plan.kv,
        tp=plan.tp,
        dividing_tp=tuple(partitions),
        ep=plan.ep,
        max_tokens=plan.max_tokens,
        most_counted_tokens=max(token_counts(plan.max_tokens)),
        max_kv_tokens=plan.max_kv_tokens,
    )
    for kind in kernel_classes():
        if not plan.only or plan.only & set(kind.operations):
            yield from kind.swept_points(swept)


def _divides(model: Model, tp: int) -> bool:
    try:
        token_operators(model, Partition(tp=tp), Precision(), tokens=1)
    except PartitionError:
        return False
    return True


def _listed_points(model: Model, plan: Plan, precision: Precision, tp: int) -> Iterator[Point]:
    """GEMMs at all token counts; elementwise kernels at every second; heads at the rows that need logits."""
    partition = Partition(tp=tp)
    counts = token_counts(plan.max_tokens)
    for index, tokens in enumerate(counts):
        listed = token_operators(model, partition, precision, tokens=tokens)
        for operator in listed:
            if isinstance(operator.kernel, Gemm) or index % _COARSE_STRIDE == 0:
                yield from _points_of(operator, model, tp, tokens)
    for rows in [count for count in counts if count <= MAX_LOGIT_ROWS]:
        for operator in head_operators(model, partition, precision, rows=rows):
            yield from _points_of(operator, model, tp, rows)


def _points_of(operator: Operator, model: Model, tp: int, tokens: int) -> Iterator[Point]:
    if isinstance(operator.kernel, Kernel):
        yield from operator.kernel.listed_points(ListedPlace(model, operator.name, tp, tokens))


def _device_points() -> Iterator[Point]:
    for mebibytes in (1, 16, 256, 2048):
        shape = {"m": mebibytes << 9, "n": 1024}
        for op in DEVICE_OPS:
            yield point(op, "bf16", shape, priority=1)


def count_by_op(points: Sequence[Point]) -> dict[str, int]:
    """Points of each operation, most frequent first."""
    ops = [item.op for item in points]
    return {op: ops.count(op) for op in sorted(set(ops), key=lambda op: (-ops.count(op), op))}
