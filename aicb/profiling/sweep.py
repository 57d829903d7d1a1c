"""Sweep plans: which points to measure for a model, its partitions and a range of token counts.

GEMM and elementwise shapes are read off the operator list of ``aicb`` itself, so that a plan holds what the simulator
will ask for. Attention and expert grids are in ``sweep_attention`` and ``sweep_experts``. Points that several models or
partitions share are measured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, LatentAttention, Model, MoeFfn
from aicb.model.partition import Partition, PartitionError
from aicb.model.precision import KvDtype, Precision, WeightDtype
from aicb.operators.lists import head_operators, token_operators
from aicb.operators.operator import Elementwise, Gemm, Operator
from aicb.profiling.point import Point, point
from aicb.profiling.sweep_attention import attention_points
from aicb.profiling.sweep_experts import expert_points
from boundary.errors import InputError

MAX_TOKENS = 16384
MAX_LOGIT_ROWS = 512
_COARSE_STRIDE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to sweep."""

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
        unknown = sorted(self.only - ALL_OPS)
        if unknown:
            raise InputError(f"--only: found {unknown[0]!r}, expected some of {', '.join(sorted(ALL_OPS))}")
        for name in ("tp", "ep"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise InputError(f"--{name}: found {list(getattr(self, name))}, expected sizes of at least 1")
        if self.max_tokens < 1:
            raise InputError(f"--max-tokens: found {self.max_tokens}, expected at least 1")


ALL_OPS = frozenset(
    {
        *("gemm", "bmm", "grouped_gemm_masked", "grouped_gemm_contiguous", "grouped_gemm_gathered"),
        *("mla_decode", "prefill_attention", "decode_attention", "gdn_prefill", "gdn_decode"),
        *("mla_sparse_prefill", "mla_sparse_decode", "index_logits_prefill", "index_logits_decode"),
        *("index_topk_prefill", "index_topk_decode", "index_write", "index_gather", "grouped_topk", "merge_states"),
        *("latent_write", "latent_write_fp8", "latent_write_sparse_fp8", "kv_write_fp8"),
        *("latent_gather", "latent_gather_fp8", "latent_gather_sparse_fp8"),
        *("rms_norm", "add_rms_norm", "head_norm", "rope", "quant", "silu_mul", "silu_mul_quant", "topk", "moe_align"),
        *("permute", "unpermute", "kv_write", "embedding", "sampling", "conv", "add", "device_copy", "memset"),
    }
)


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
    for kv, tp in product(plan.kv, partitions):
        yield from attention_points(model, kv, tp, (plan.max_tokens, plan.max_kv_tokens))
    if not plan.only or any(op.startswith("grouped_gemm") for op in plan.only):
        yield from expert_points(model, plan.weights, plan.tp, plan.ep, token_counts(plan.max_tokens))


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
            if isinstance(operator.work, Gemm) or index % _COARSE_STRIDE == 0:
                yield from _points_of(operator, model, tp, tokens)
    for rows in [count for count in counts if count <= MAX_LOGIT_ROWS]:
        for operator in head_operators(model, partition, precision, rows=rows):
            yield from _points_of(operator, model, tp, rows)


def _points_of(operator: Operator, model: Model, tp: int, tokens: int) -> Iterator[Point]:
    tag = f"{model.name}/{operator.name}/tp{tp}"
    match operator.work:
        case Gemm(m, n, k, dtype):
            yield point("gemm", dtype, {"m": m, "n": n, "k": k}, tag=tag)
        case Elementwise():
            yield from _elementwise(operator.work, model, tokens, tag)


def _elementwise(work: Elementwise, model: Model, tokens: int, tag: str) -> Iterator[Point]:
    """Kernels this package can run; gates, state copies and the like are priced by their bytes."""
    shape = {"m": work.rows, "n": work.cols}
    match work.kernel:
        case "rms_norm" | "add_rms_norm" | "head_norm" | "silu_mul" | "embedding" | "sampling" | "add":
            yield point(work.kernel, "bf16", shape, tag=tag, priority=1)
        case "quant" | "silu_mul_quant":
            yield point(work.kernel, "bf16->fp8", shape, tag=tag, priority=1)
        case "rope":
            yield point("rope", "bf16", {**shape, "d_qk": _rotary_dim(model)}, tag=tag, priority=1)
        case "topk" | "grouped_topk":
            k = _moe(model).experts_per_token
            yield point(work.kernel, "", {**shape, "experts_per_token": k}, tag=tag, priority=1)
            yield point("moe_align", "", {**shape, "experts_per_token": k}, tag=tag, priority=1)
            rows = {"m": tokens * k, "n": model.hidden, "experts_per_token": k}
            yield point("permute", "bf16", rows, tag=tag, priority=1)
            yield point("unpermute", "bf16", rows, tag=tag, priority=1)
        case "latent_write" | "latent_write_fp8" | "latent_write_sparse_fp8" | "index_write":
            yield point(work.kernel, "", shape, tag=tag, priority=1)
        case "kv_write" | "kv_write_fp8":
            for attention in {layer.attention for layer in model.layers}:
                if isinstance(attention, GroupedQueryAttention):
                    kv = {"kv_heads": work.cols // (2 * attention.head_dim), "d_v": attention.head_dim}
                    yield point(work.kernel, "bf16", {**shape, **kv}, tag=tag, priority=1)


def _rotary_dim(model: Model) -> int:
    for layer in model.layers:
        if isinstance(layer.attention, GroupedQueryAttention):
            return layer.attention.rotary_dim
        if isinstance(layer.attention, LatentAttention):
            return layer.attention.qk_rope_head_dim
    raise AssertionError("no attention with rotary embedding")


def _moe(model: Model) -> MoeFfn:
    return next(layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn))


def _device_points() -> Iterator[Point]:
    for mebibytes in (1, 16, 256, 2048):
        shape = {"m": mebibytes << 9, "n": 1024}
        yield point("device_copy", "bf16", shape, priority=1)
        yield point("memset", "bf16", shape, priority=1)


def has_linear_attention(models: Iterable[Model]) -> bool:
    """Whether some layer is a gated delta rule."""
    return any(isinstance(layer.attention, GatedDeltaNet) for model in models for layer in model.layers)


def count_by_op(points: Sequence[Point]) -> dict[str, int]:
    """Points of each operation, most frequent first."""
    ops = [item.op for item in points]
    return {op: ops.count(op) for op in sorted(set(ops), key=lambda op: (-ops.count(op), op))}
