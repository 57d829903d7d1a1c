"""Attention points of a model: geometry from its layers, grids of batch, query and KV lengths."""

from __future__ import annotations

from collections.abc import Iterator

from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, Indexer, LatentAttention, Model
from aicb.model.partition import kv_heads_per_rank
from aicb.model.precision import KvDtype
from aicb.profiling.point import BF16_BYTES, Point, point
from aicb.profiling.routing import kv_lengths
from aicb.profiling.sweep_sparse import sparse_points

GQA_PAGE_TOKENS = 16
"""vLLM's default block size."""
MLA_PAGE_TOKENS = 64
_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_KV_LENGTHS = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
_QUERIES = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PASTS = (0, 512, 2048, 8192, 30720)
_PROMPTS = ((2, 512), (2, 2048), (2, 4096), (4, 512), (4, 1024), (4, 2048), (8, 256), (8, 1024), (16, 128), (16, 512))
"""(batch, tokens of each) of prefill batches."""
_UNEQUAL_PROMPTS = ((4, 512), (4, 2048), (8, 256), (8, 1024), (16, 512), (32, 128))
"""(batch, mean tokens) of whole prompts of log-normal length."""
_UNEQUAL = ("uniform", "lognormal", "one_long")
_UNEQUAL_BATCHES = (4, 16, 32, 64, 128)
_UNEQUAL_MEANS = (1024, 4096, 8192)
_PAST_TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 32768)
"""Cached latents that a chunk's prefill gathers; new tokens whose two parts of attention are merged."""
_CACHE_LIMIT_BYTES = 18 << 30
"""Largest KV cache of a point."""
_PREFILL_PAIR_LIMIT = 1 << 28
"""Largest q·S of a prefill (16 k tokens of a whole prompt)."""


def attention_points(model: Model, kv: KvDtype, tp: int, most: tuple[int, int]) -> Iterator[Point]:
    """Points of every kind of attention in the model, of one rank of ``tp``.

    ``most`` is (tokens of a prefill, longest KV). Over an fp8 cache grouped-query attention multiplies fp8 operands;
    latents are expanded to bf16 for a prefill, which therefore is the same for both formats.
    """
    max_tokens, max_kv = most
    kinds = dict.fromkeys(layer.attention for layer in model.layers)
    for attention in kinds:
        tag = f"{model.name}/tp{tp}"
        match attention:
            case GroupedQueryAttention():
                heads, kv_heads = attention.heads // tp, kv_heads_per_rank(attention.kv_heads, tp)
                shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": attention.head_dim, "d_v": attention.head_dim}
                yield from _decodes(shape, kv, max_kv, tag)
                yield from _prefills(shape, kv, most, tag)
            case LatentAttention(indexer=Indexer() as index):
                yield from sparse_points(attention, index, kv, tp, most)
            case LatentAttention():
                yield from _latent(attention, kv, tp, most, tag)
            case GatedDeltaNet() if kv == "bf16":
                yield from _linear(attention, tp, max_tokens, tag)


def _latent(attention: LatentAttention, kv: KvDtype, tp: int, most: tuple[int, int], tag: str) -> Iterator[Point]:
    heads, (max_tokens, max_kv) = attention.heads // tp, most
    shape = {"heads": heads, "kv_heads": 1, "d_qk": attention.kv_elements, "d_v": attention.kv_lora_rank}
    for s_q in (1, 2):
        yield from _latent_decodes(shape, kv, s_q, max_kv, tag)
    for tokens in _PAST_TOKENS:
        suffix, width = "_fp8" if kv == "fp8" else "", heads * attention.v_head_dim
        yield point(f"latent_gather{suffix}", "", {"m": tokens, "n": attention.kv_elements}, tag=tag, priority=1)
        if tokens <= max_tokens:
            merged = {"m": tokens, "n": width, "d_v": attention.v_head_dim}
            yield point("merge_states", "bf16", merged, tag=tag, priority=1)
    if kv == "fp8":
        return
    expanded = {"heads": heads, "kv_heads": heads, "d_qk": attention.qk_head_dim, "d_v": attention.v_head_dim}
    yield from _prefills(expanded, "bf16", most, tag)
    for tokens in (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096):
        if tokens <= max_tokens:
            absorb = {"n": attention.kv_lora_rank, "k": attention.qk_nope_head_dim}
            unabsorb = {"n": attention.v_head_dim, "k": attention.kv_lora_rank}
            for part in (absorb, unabsorb):
                yield point("bmm", "bf16", {"m": tokens, "heads": heads, **part}, tag=tag)


def _latent_decodes(shape: dict[str, int], kv: KvDtype, s_q: int, max_kv: int, tag: str) -> Iterator[Point]:
    for batch, mean, distribution in _decode_grid(shape["d_qk"] * BF16_BYTES, max_kv):
        if s_q > 1 and (distribution != "equal" or mean not in (1024, 4096, 16384)):
            continue
        lengths = tuple(max(length, s_q) for length in kv_lengths(distribution, batch, mean))
        yield point(
            "mla_decode",
            kv,
            {**shape, "batch": batch, "q_len": s_q, "kv_len": sum(lengths) // batch, "page_tokens": MLA_PAGE_TOKENS},
            lengths=lengths,
            queries=(s_q,) * batch,
            distribution=distribution,
            tag=tag,
        )


def _decodes(shape: dict[str, int], kv: KvDtype, max_kv: int, tag: str) -> Iterator[Point]:
    per_token = shape["kv_heads"] * (shape["d_qk"] + shape["d_v"]) * BF16_BYTES
    for batch, mean, distribution in _decode_grid(per_token, max_kv):
        lengths = kv_lengths(distribution, batch, mean)
        yield point(
            "decode_attention",
            kv,
            {**shape, "batch": batch, "q_len": 1, "kv_len": sum(lengths) // batch, "page_tokens": GQA_PAGE_TOKENS},
            lengths=lengths,
            queries=(1,) * batch,
            distribution=distribution,
            tag=tag,
        )


def _decode_grid(bytes_per_token: int, max_kv: int) -> Iterator[tuple[int, int, str]]:
    """(batch, mean KV length, distribution)"""
    for batch in _BATCHES:
        for kv in _KV_LENGTHS:
            if kv <= max_kv and batch * kv * bytes_per_token <= _CACHE_LIMIT_BYTES:
                yield batch, kv, "equal"
    for batch in _UNEQUAL_BATCHES:
        for mean in _UNEQUAL_MEANS:
            if mean <= max_kv and batch * mean * bytes_per_token <= _CACHE_LIMIT_BYTES:
                for distribution in _UNEQUAL:
                    yield batch, mean, distribution


def _prefills(shape: dict[str, int], dtype: KvDtype, most: tuple[int, int], tag: str) -> Iterator[Point]:
    """One prompt or chunk with its past, and batches of equal prompts; few-token chunks only with a past."""
    max_tokens, max_kv = most
    alone = [(1, q, q + past) for q in _QUERIES for past in _PASTS if past or q >= 64]
    together = [(batch, q, q) for batch, q in _PROMPTS]
    for batch, q, kv in [*alone, *together]:
        if batch * q <= max_tokens and kv <= max_kv and q * kv <= _PREFILL_PAIR_LIMIT:
            yield point(
                "prefill_attention",
                dtype,
                {**shape, "batch": batch, "q_len": q, "kv_len": kv},
                queries=(q,) * batch,
                lengths=(kv,) * batch,
                distribution="equal",
                tag=tag,
            )
    for batch, mean in _UNEQUAL_PROMPTS:
        prompts = kv_lengths("lognormal", batch, mean)
        if sum(prompts) <= max_tokens:
            yield point(
                "prefill_attention",
                dtype,
                {**shape, "batch": batch, "q_len": sum(prompts) // batch, "kv_len": sum(prompts) // batch},
                queries=prompts,
                lengths=prompts,
                distribution="lognormal",
                tag=tag,
            )


def _linear(attention: GatedDeltaNet, tp: int, max_tokens: int, tag: str) -> Iterator[Point]:
    """Delta rule and convolution, chunked over prompts and recurrent over batches of single tokens."""
    d = attention.head_dim
    shape = {"heads": attention.value_heads // tp, "kv_heads": attention.key_heads // tp, "d_qk": d, "d_v": d}
    channels = attention.conv_channels // tp
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        if batch <= max_tokens:
            yield point("gdn_decode", "bf16", {**shape, "batch": batch, "q_len": 1}, queries=(1,) * batch, tag=tag)
    prompts = [(1, q) for q in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)]
    for batch, q in [*prompts, (4, 256), (4, 1024), (4, 2048), (8, 1024), (16, 512)]:
        if batch * q <= max(max_tokens, 2 * max_tokens if batch == 1 else 0):
            yield point("gdn_prefill", "bf16", {**shape, "batch": batch, "q_len": q}, queries=(q,) * batch, tag=tag)
            if batch * q <= max_tokens:
                yield point("conv", "bf16", {"m": batch * q, "n": channels, "batch": batch}, tag=tag)
