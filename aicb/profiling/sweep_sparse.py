"""Points of DeepSeek Sparse Attention: scores, choice of keys, attention, and gathers from its caches."""

from __future__ import annotations

from collections.abc import Iterator

from aicb.model.architecture import Indexer, LatentAttention
from aicb.model.precision import KvDtype, ceil_div
from aicb.operators.sparse_mla import HEAD_MULTIPLE
from aicb.profiling.point import FP32_BYTES, SPARSE_FP8_KEY_BYTES, Point, point

PAGE_TOKENS = 64
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_KV_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_DRAFT_BATCHES = (1, 8, 32, 64, 128)
"""Batches also measured with two query tokens per sequence."""
_QUERIES = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PASTS = (0, 1024, 4096, 16384, 61440)
_GATHERED = (64, 256, 1024, 4096, 16384, 65536)
_CACHE_LIMIT_BYTES = 12 << 30
_SCORE_LIMIT_BYTES = 1 << 30
"""Largest score matrix; engines cut a prefill into chunks below it (vLLM: 512 MiB)."""


def sparse_points(
    attention: LatentAttention, index: Indexer, kv: KvDtype, tp: int, most: tuple[int, int]
) -> Iterator[Point]:
    """Points of one rank of ``tp``; ``most`` is (tokens of a prefill, longest KV). Heads are padded as kernels need.

    The bf16 sweep has the prefills, whose kernel a bf16 cache's decodes share, and the indexer, which knows one format.
    """
    heads = HEAD_MULTIPLE * ceil_div(attention.heads // tp, HEAD_MULTIPLE)
    shape = {"heads": heads, "kv_heads": 1, "d_qk": attention.kv_elements, "d_v": attention.kv_lora_rank}
    tag = f"sparse/{heads}heads"
    if kv == "fp8":
        yield from _decodes({**shape, "k": index.topk}, most[1], tag)
        for tokens in _GATHERED:
            yield point("latent_gather_sparse_fp8", "", {"m": tokens, "n": attention.kv_elements}, tag=tag, priority=1)
        return
    for new, length in _chunks(most):
        yield _chunk("mla_sparse_prefill", "bf16", {**shape, "k": index.topk}, (new, length), tag)
        if FP32_BYTES * new * length <= _SCORE_LIMIT_BYTES:
            scores = {"heads": index.heads, "kv_heads": 1, "d_qk": index.head_dim}
            yield _chunk("index_logits_prefill", "fp8", scores, (new, length), "sparse/index")
            yield _chunk("index_topk_prefill", "", {"k": index.topk}, (new, length), "sparse/index")
    yield from _index_decodes(index, most[1])
    for tokens in _GATHERED:
        yield point("index_gather", "", {"m": tokens, "n": index.head_dim}, tag="sparse/index", priority=1)


def _chunks(most: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """(new tokens, KV length) of one request: whole prompts, chunks with a past, single tokens with a past."""
    for new in _QUERIES:
        for past in _PASTS:
            if new <= most[0] and new + past <= most[1] and (past or new >= 64):
                yield new, new + past


def _chunk(op: str, dtype: str, shape: dict[str, int], size: tuple[int, int], tag: str) -> Point:
    new, length = size
    columns = {**shape, "batch": 1, "q_len": new, "kv_len": length}
    return point(op, dtype, columns, queries=(new,), lengths=(length,), tag=tag)


def _decodes(shape: dict[str, int], max_kv: int, tag: str) -> Iterator[Point]:
    """Sparse decode reads ``k`` keys whatever the length, so few lengths show what the length still changes."""
    for queries, batch in [*((1, batch) for batch in _BATCHES), *((2, batch) for batch in _DRAFT_BATCHES)]:
        for kv in (1024, 4096, 32768):
            if kv <= max_kv and batch * kv * SPARSE_FP8_KEY_BYTES <= _CACHE_LIMIT_BYTES:
                size = {"batch": batch, "q_len": queries, "kv_len": kv, "page_tokens": PAGE_TOKENS}
                lengths, new = (kv,) * batch, (queries,) * batch
                yield point("mla_sparse_decode", "fp8", {**shape, **size}, lengths=lengths, queries=new, tag=tag)


def _index_decodes(index: Indexer, max_kv: int) -> Iterator[Point]:
    scores = {"heads": index.heads, "kv_heads": 1, "d_qk": index.head_dim, "page_tokens": PAGE_TOKENS}
    for queries, batch in [*((1, batch) for batch in _BATCHES), *((2, batch) for batch in _DRAFT_BATCHES)]:
        for kv in _KV_LENGTHS:
            if kv > max_kv or batch * kv * index.cache_bytes > _CACHE_LIMIT_BYTES:
                continue
            lengths, new = (kv,) * batch, (queries,) * batch
            size = {"batch": batch, "q_len": queries, "kv_len": kv}
            yield point(
                "index_logits_decode", "fp8", {**scores, **size}, lengths=lengths, queries=new, tag="sparse/index"
            )
            if queries == 1:
                choice = {"k": index.topk, **size}
                yield point("index_topk_decode", "", choice, lengths=lengths, queries=new, tag="sparse/index")
