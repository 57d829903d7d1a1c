"""Indexer of DeepSeek Sparse Attention: fp8 scores of DeepGEMM, choice of keys by vLLM.

A score is the weighted sum over heads of relu(q·k), times the key's scale. Scores of keys a query does not see are not
written (``clean_logits=False``, as engines call it).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.model.precision import SCALE_BYTES
from aicb.profiling.kernel_library import Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries.modules import load_operators, operators

PAGE_TOKENS = 64
_LOGITS_TOLERANCE = 1e-3
"""fp8 operands enter the reference as they are; sums are fp32 in another order."""
_CHECKED_ROWS = 6
_WORKSPACE_BYTES = 1 << 20
_COOPERATIVE_ROWS = 32
"""vLLM 0.24 takes the cooperative kernel up to this many rows, the persistent one beyond."""


class DeepGemmIndexer:
    """``fp8_mqa_logits`` over contiguous keys (prefill) and ``fp8_paged_mqa_logits`` (decode)."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._missing: str | None = None
        try:
            self._module = importlib.import_module("deep_gemm")
        except (ImportError, OSError, RuntimeError, AssertionError) as error:
            self._missing = f"deep_gemm: {type(error).__name__}: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return f"deep_gemm {getattr(self._module, '__version__', 'unknown')}"

    def refusal(self, point: Point) -> str | None:
        names = {"index_logits_prefill": "fp8_mqa_logits", "index_logits_decode": "fp8_paged_mqa_logits"}
        if point.op not in names:
            return "not the indexer's scores"
        return None if hasattr(self._module, names[point.op]) else f"this build has no {names[point.op]}"

    def kernel(self, point: Point) -> Kernel:
        assert self._module is not None
        return (_contiguous if point.op == "index_logits_prefill" else _paged)(point, self._module)


def _contiguous(p: Point, library: ModuleType) -> Kernel:
    tokens, kv, heads, d = p["q_len"], p["kv_len"], p["heads"], p["d_qk"]
    q, weights = _queries(tokens, heads, d)
    keys, scales = _keys(kv, d)
    first = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    end = torch.arange(kv - tokens + 1, kv + 1, dtype=torch.int32, device="cuda")
    holder: list[torch.Tensor] = [weights]

    def run() -> None:
        holder[0] = library.fp8_mqa_logits(q, (keys, scales), weights, first, end, False)

    def error() -> float:
        rows = some_rows(tokens, _CHECKED_ROWS)
        found = [holder[0][row, : int(end[row])] for row in rows]
        expected = [_scores(q[row], keys[: int(end[row])], scales[: int(end[row])], weights[row]) for row in rows]
        return relative_error(torch.cat(found), torch.cat(expected))

    return Kernel("deep_gemm/fp8_mqa_logits", run, [], error, _LOGITS_TOLERANCE)


def _paged(p: Point, library: ModuleType) -> Kernel:
    """A page holds the elements of its 64 keys, then their scales."""
    batch, queries, heads, d = p["batch"], p["q_len"], p["heads"], p["d_qk"]
    pages = [-(-length // PAGE_TOKENS) for length in p.lengths]
    keys, scales = _keys(sum(pages) * PAGE_TOKENS, d)
    cache = torch.empty(sum(pages), PAGE_TOKENS * (d + SCALE_BYTES), dtype=torch.uint8, device="cuda")
    cache[:, : PAGE_TOKENS * d] = keys.view(torch.uint8).view(len(cache), -1)
    cache[:, PAGE_TOKENS * d :] = scales.view(torch.uint8).view(len(cache), -1)
    table = torch.zeros(batch, max(pages), dtype=torch.int32, device="cuda")
    filled = torch.arange(max(pages), device="cuda")[None] < torch.tensor(pages, device="cuda")[:, None]
    table[filled] = torch.randperm(sum(pages), device="cuda").to(torch.int32)
    q, weights = _queries(batch * queries, heads, d)
    last = torch.tensor(p.lengths, dtype=torch.int32, device="cuda")
    lengths = last[:, None] - torch.arange(queries - 1, -1, -1, dtype=torch.int32, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    schedule = library.get_paged_mqa_logits_metadata(lengths, PAGE_TOKENS, sms)
    operands = (
        q.view(batch, queries, heads, d),
        cache.view(-1, PAGE_TOKENS, 1, d + SCALE_BYTES),
        weights,
        lengths,
        table,
    )
    longest = max(pages) * PAGE_TOKENS
    holder: list[torch.Tensor] = [weights]

    def run() -> None:
        holder[0] = library.fp8_paged_mqa_logits(*operands, schedule, longest, False)

    def error() -> float:
        worst = 0.0
        for i in some_rows(batch, 3):
            seen = p.lengths[i] - queries + 1  # by the first of the sequence's queries
            slots = (
                table[i, : pages[i], None].long() * PAGE_TOKENS + torch.arange(PAGE_TOKENS, device="cuda")
            ).flatten()
            expected = _scores(q[i * queries], keys[slots[:seen]], scales[slots[:seen]], weights[i * queries])
            worst = max(worst, relative_error(holder[0][i * queries, :seen], expected))
        return worst

    return Kernel("deep_gemm/fp8_paged_mqa_logits", run, [], error, _LOGITS_TOLERANCE)


def _queries(rows: int, heads: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, heads, d] e4m3 and fp32 weights of the heads [rows, heads]."""
    q = normal(rows, heads, d, device="cuda").to(torch.float8_e4m3fn)
    return q, normal(rows, heads, device="cuda", dtype=torch.float32)


def _keys(rows: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, d] e4m3 and fp32 scales [rows]."""
    keys = torch.empty(rows, d, device="cuda", dtype=torch.float8_e4m3fn)
    for part in keys.split(1 << 20):
        part.copy_(normal(*part.shape, device="cuda"))
    return keys, torch.rand(rows, device="cuda") + 0.5


def _scores(q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[keys] scores of one query [heads, d], in float32."""
    return (keys.float() @ q.float().T).relu() @ weights * scales


class VllmIndexer:
    """Choice of the k largest scores of each row: modules ``_C`` of vLLM."""

    def __init__(self, core: Path | None = None):
        self._missing = load_operators("_C_stable_libtorch", core)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _C (stable ABI)"

    def refusal(self, point: Point) -> str | None:
        names = {"index_topk_prefill": "top_k_per_row_prefill", "index_topk_decode": "persistent_topk"}
        if point.op not in names:
            return "not the indexer's choice"
        return None if operators("_C", names[point.op]) else f"torch.ops._C.{names[point.op]} is not registered"

    def kernel(self, point: Point) -> Kernel:
        return _topk_prefill(point) if point.op == "index_topk_prefill" else _topk_decode(point)


def _topk_prefill(p: Point) -> Kernel:
    tokens, kv, topk = p["q_len"], p["kv_len"], p["k"]
    logits = normal(tokens, kv, device="cuda", dtype=torch.float32)
    first = torch.zeros(tokens, dtype=torch.int32, device="cuda")
    end = torch.arange(kv - tokens + 1, kv + 1, dtype=torch.int32, device="cuda")
    chosen = torch.empty(tokens, topk, dtype=torch.int32, device="cuda")
    arguments = (logits, first, end, chosen, tokens, logits.stride(0), logits.stride(1), topk)
    operator = torch.ops._C.top_k_per_row_prefill
    return _choice("vllm/top_k_per_row_prefill", lambda: operator(*arguments), logits, end, chosen)


def _topk_decode(p: Point) -> Kernel:
    batch, topk, longest = p["batch"], p["k"], -(-max(p.lengths) // PAGE_TOKENS) * PAGE_TOKENS
    logits = normal(batch, longest, device="cuda", dtype=torch.float32)
    lengths = torch.tensor(p.lengths, dtype=torch.int32, device="cuda")
    chosen = torch.empty(batch, topk, dtype=torch.int32, device="cuda")
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    name = "cooperative_topk" if batch <= _COOPERATIVE_ROWS else "persistent_topk"
    operator, longest_seen = getattr(torch.ops._C, name), max(p.lengths)
    call = lambda: operator(logits, lengths, chosen, workspace, topk, longest_seen)  # noqa: E731
    return _choice(f"vllm/{name}", call, logits, lengths, chosen)


def _choice(
    label: str, call: Callable[[], object], logits: torch.Tensor, seen: torch.Tensor, chosen: torch.Tensor
) -> Kernel:
    """The chosen scores, sorted, must be the k largest; ties may fall either way."""
    topk = chosen.shape[1]

    def error() -> float:
        worst = 0.0
        for row in some_rows(len(logits), _CHECKED_ROWS):
            visible = logits[row, : int(seen[row])]
            count = min(topk, len(visible))
            picked = chosen[row][(chosen[row] >= 0) & (chosen[row] < len(visible))].long().unique()
            if len(picked) != count:
                return float("inf")
            worst = max(worst, relative_error(visible[picked].sort().values, visible.topk(count).values.flip(0)))
        return worst

    return Kernel(label, call, [chosen], error, 0.0)
