"""FLOPs and bytes of a point, and how many operand sets take turns when it is timed."""

from __future__ import annotations

import numpy as np

from aicb.kernels.pairs import causal_pairs, chosen_pairs
from aicb.kernels.point import Point
from aicb.kernels.registry import kernel_classes
from aicb.model.precision import WeightDtype, activation_bytes_per_row, weight_matrix_bytes

BF16_BYTES = 2
FP32_BYTES = 4
SPARSE_FP8_KEY_BYTES = 656
"""A cached latent as sparse FlashMLA reads it: 512 e4m3, 4 fp32 scales, 64 bf16."""
HOST_OPS = ("null_kernel", "empty_event_pair", "eager_launch_host", "graph_node", "graph_replay_host")
"""Costs of launching; their times are not those of a kernel with operands."""


def flops(p: Point) -> float:
    """Algorithmic FLOPs; 0 for memory-bound kernels."""
    match p.op:
        case "gemm":
            return 2.0 * p["m"] * p["n"] * p["k"]
        case "bmm":
            return 2.0 * p["heads"] * p["m"] * p["n"] * p["k"]
        case "grouped_gemm_masked" | "grouped_gemm_contiguous" | "grouped_gemm_gathered":
            return 2.0 * p["rows"] * p["n"] * p["k"]
        case "prefill_attention" | "decode_attention" | "mla_decode":
            return 2.0 * p["heads"] * (p["d_qk"] + p["d_v"]) * _pairs(p)
        case "mla_sparse_prefill" | "mla_sparse_decode":
            return 2.0 * p["heads"] * (p["d_qk"] + p["d_v"]) * _chosen_pairs(p)
        case "index_logits_prefill" | "index_logits_decode":
            return 2.0 * p["heads"] * p["d_qk"] * _pairs(p)
    return 0.0


def _pairs(p: Point) -> int:
    return int(causal_pairs(np.array(p.queries, np.int64), np.array(p.lengths, np.int64)).sum())


def _chosen_pairs(p: Point) -> int:
    """(query, key) pairs where each query keeps at most k keys."""
    return int(chosen_pairs(np.array(p.queries, np.int64), np.array(p.lengths, np.int64), p["k"]).sum())


def moved_bytes(p: Point) -> float:
    """Bytes of operands read once and results written once."""
    match p.op:
        case "gemm":
            m, n, k = p["m"], p["n"], p["k"]
            dtype = _weight_dtype(p)
            return float(m * activation_bytes_per_row(k, dtype) + weight_matrix_bytes(n, k, dtype) + m * n * BF16_BYTES)
        case "bmm":
            m, n, k = p["m"], p["n"], p["k"]
            return float(BF16_BYTES * p["heads"] * (m * k + n * k + m * n))
        case "grouped_gemm_masked" | "grouped_gemm_contiguous" | "grouped_gemm_gathered":
            n, k = p["n"], p["k"]
            dtype = _weight_dtype(p)
            per_row = activation_bytes_per_row(k, dtype) + BF16_BYTES * n
            return float(p["rows"] * per_row + p["active_groups"] * weight_matrix_bytes(n, k, dtype))
        case "prefill_attention" | "decode_attention":
            width, element = p["d_qk"] + p["d_v"], 1 if p.dtype == "fp8" else BF16_BYTES
            queries = p["heads"] * sum(p.queries) * (element * p["d_qk"] + BF16_BYTES * p["d_v"])
            return float(queries + element * width * p["kv_heads"] * sum(p.lengths))
        case "mla_decode":
            element = 1 if p.dtype == "fp8" else BF16_BYTES
            per_query = p["heads"] * (element * p["d_qk"] + BF16_BYTES * p["d_v"])
            return float(element * p["d_qk"] * sum(p.lengths) + per_query * sum(p.queries))
        case "mla_sparse_prefill" | "mla_sparse_decode":
            per_key = SPARSE_FP8_KEY_BYTES if p.dtype == "fp8" else BF16_BYTES * p["d_qk"]
            keys = min(_chosen_pairs(p), sum(p.lengths))
            return float(per_key * keys + BF16_BYTES * p["heads"] * (p["d_qk"] + p["d_v"]) * sum(p.queries))
        case "index_logits_prefill" | "index_logits_decode":
            keys, per_query = sum(p.lengths), p["heads"] * (p["d_qk"] + FP32_BYTES)
            return float((p["d_qk"] + FP32_BYTES) * keys + per_query * sum(p.queries) + FP32_BYTES * _pairs(p))
        case "index_topk_prefill" | "index_topk_decode":
            return float(FP32_BYTES * (_pairs(p) + p["k"] * sum(p.queries)))
        case "gdn_decode":
            return float(2 * FP32_BYTES * p["batch"] * p["heads"] * p["d_qk"] * p["d_v"])
        case "gdn_prefill":
            per_token = 2 * p["kv_heads"] * p["d_qk"] + 2 * p["heads"] * p["d_v"]
            states = 2 * FP32_BYTES * p["batch"] * p["heads"] * p["d_qk"] * p["d_v"]
            return float(BF16_BYTES * per_token * sum(p.queries) + states)
    return _elementwise_bytes(p) if p.op not in HOST_OPS else 0.0


ROTATED_BYTES = 150 << 20
"""Operand sets that take turns fill this much, 2.5 times the L2 of an H200."""
MAX_OPERAND_SETS = 32


def operand_sets(p: Point) -> int:
    """Operand sets that take turns when the point is timed as in an engine; 1 where its operands are warm."""
    if not any(p.op in kind.cold_operations for kind in kernel_classes()):
        return 1
    return min(max(round(ROTATED_BYTES / max(moved_bytes(p), 1.0)), 1), MAX_OPERAND_SETS)


def _weight_dtype(p: Point) -> WeightDtype:
    return "fp8" if p.dtype == "fp8" else "bf16"


def _elementwise_bytes(p: Point) -> float:
    """Per element of ``[m, n]``, as the kernels of this package read and write."""
    scale = FP32_BYTES / 128
    per_element = {
        "rms_norm": 2 * BF16_BYTES,
        "head_norm": 2 * BF16_BYTES,
        "add_rms_norm": 4 * BF16_BYTES,
        "rope": 2 * BF16_BYTES,
        "quant": BF16_BYTES + 1 + scale,
        "silu_mul": 3 * BF16_BYTES,
        "silu_mul_quant": 2 * BF16_BYTES + 1 + scale,
        "topk": FP32_BYTES,
        "permute": 2 * BF16_BYTES,
        "unpermute": BF16_BYTES * (1 + 1 / max(p.get("experts_per_token", 1), 1)),
        "grouped_topk": FP32_BYTES,
        "kv_write": 2 * BF16_BYTES,
        "kv_write_fp8": BF16_BYTES + 1,
        "latent_write": 2 * BF16_BYTES,
        "latent_write_fp8": BF16_BYTES + 1,
        "latent_write_sparse_fp8": BF16_BYTES + SPARSE_FP8_KEY_BYTES / 576,
        "latent_gather": 2 * BF16_BYTES,
        "latent_gather_fp8": BF16_BYTES + 1,
        "latent_gather_sparse_fp8": BF16_BYTES + SPARSE_FP8_KEY_BYTES / 576,
        "merge_states": 3 * BF16_BYTES,
        "index_write": BF16_BYTES + 1 + scale,
        "index_gather": 2 * (1 + scale),
        "embedding": 2 * BF16_BYTES,
        "sampling": BF16_BYTES,
        "add": 3 * BF16_BYTES,
        "gating": 3 * BF16_BYTES,
        "conv": 2 * BF16_BYTES,
        "device_copy": 2 * BF16_BYTES,
        "memset": BF16_BYTES,
    }.get(p.op, 2 * BF16_BYTES)
    return per_element * p.get("m", 0) * p.get("n", 0)
