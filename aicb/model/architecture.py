"""Transformer models as far as their cost goes: layer kinds, dimensions, parameter counts, KV cache and state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from aicb.model.key_span import KeySpan
from aicb.model.partition import Partition, kv_heads_per_rank, split
from aicb.model.precision import (
    ELEMENT_BYTES,
    SCALE_BLOCK,
    SCALE_BYTES,
    KvDtype,
    Precision,
    StateDtype,
    WeightDtype,
    ceil_div,
)
from boundary.errors import InputError

QkNorm = Literal["none", "per_head", "whole", "weightless"]
"""RMSNorm of queries and keys: of each head (Qwen3), of all heads together (MiniMax-M2), of each without weights
(Llama 4)."""


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """Softmax attention of ``heads`` query heads over ``kv_heads`` cached heads (MHA where they are equal)."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    """Leading columns of a head that RoPE turns; 0 without positions (NoPE layers of Llama 4)."""
    qk_norm: QkNorm
    has_output_gate: bool
    """The query projection also yields a sigmoid gate of the attention output (Qwen3-Next)."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_sinks: bool = False
    """A learned logit per head joins the softmax (gpt-oss): a weight, no key, and no time worth counting."""
    span: KeySpan | None = None
    """Keys that a query sees; ``None``: all past ones."""

    @property
    def window(self) -> int | None:
        """Tokens of a sliding window, the query's own included; ``None``: the layer does not slide."""
        return self.span.tokens if self.span and self.span.kind == "sliding" else None

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer."""
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes(self, kv_dtype: KvDtype) -> int:
        """Cached bytes per token and layer, one copy."""
        return self.kv_elements * ELEMENT_BYTES[kv_dtype]

    def parameters(self, hidden: int) -> int:
        """Weights of one layer's attention, its own norms included."""
        query_width = self.heads * self.head_dim
        gated_width = query_width * (2 if self.has_output_gate else 1)
        biases = (gated_width + self.kv_elements if self.has_qkv_bias else 0) + (hidden if self.has_output_bias else 0)
        small = self.norm_parameters + biases + (self.heads if self.has_sinks else 0)
        return hidden * (gated_width + self.kv_elements) + query_width * hidden + small

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms of queries and keys."""
        match self.qk_norm:
            case "per_head":
                return 2 * self.head_dim
            case "whole":
                return (self.heads + self.kv_heads) * self.head_dim
        return 0


@dataclass(frozen=True, slots=True)
class Indexer:
    """Chooses the keys that sparse latent attention attends to (DeepSeek-V3.2: DeepSeek Sparse Attention).

    Small query heads score one fp8 key per past token; the ``topk`` best of each query are kept. Whole on every TP
    rank.
    """

    heads: int
    head_dim: int
    topk: int

    @property
    def cache_bytes(self) -> int:
        """Key cache per token and layer, whatever the format of the latents: e4m3 elements and one fp32 scale."""
        return self.head_dim + SCALE_BYTES

    def parameters(self, hidden: int, q_lora_rank: int) -> int:
        """Queries from the compressed query, key and head weights from the hidden state, LayerNorm of the key."""
        return q_lora_rank * self.heads * self.head_dim + hidden * (self.head_dim + self.heads) + 2 * self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): the cache is one latent per token."""

    heads: int
    q_lora_rank: int | None
    """Width of the compressed query; ``None`` where queries are projected directly."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    """Restricts each query to the keys it chooses; ``None`` where attention is dense."""

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer: latent and shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_bytes(self, kv_dtype: KvDtype) -> int:
        """Cached bytes per token and layer.

        The fp8 cache of sparse attention keeps the rotary key in bf16 and one fp32 scale per 128 elements of the latent
        (FlashMLA's 656-byte layout); that of dense attention is e4m3 throughout, with one scale for all.
        """
        if self.indexer is None:
            return self.kv_elements * ELEMENT_BYTES[kv_dtype]
        scales = SCALE_BYTES * ceil_div(self.kv_lora_rank, SCALE_BLOCK) if kv_dtype == "fp8" else 0
        latent = self.kv_lora_rank * ELEMENT_BYTES[kv_dtype] + scales
        return latent + self.qk_rope_head_dim * ELEMENT_BYTES["bf16"] + self.indexer.cache_bytes

    @property
    def qk_head_dim(self) -> int:
        """Width of an expanded query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer's attention, its latent norms included."""
        query_width = self.heads * self.qk_head_dim
        if self.q_lora_rank is None:
            query = hidden * query_width
        else:
            query = hidden * self.q_lora_rank + self.q_lora_rank + self.q_lora_rank * query_width
        latent = hidden * self.kv_elements + self.kv_lora_rank
        expand = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        index = self.indexer.parameters(hidden, self.q_lora_rank) if self.indexer and self.q_lora_rank else 0
        return query + latent + expand + self.heads * self.v_head_dim * hidden + index


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention by the gated delta rule (arXiv 2412.06464): a fixed state per sequence instead of a KV cache."""

    key_heads: int
    value_heads: int
    head_dim: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution over q, k and v."""
        return (2 * self.key_heads + self.value_heads) * self.head_dim

    @property
    def qkvz_width(self) -> int:
        """Output columns of the fused projection of q, k, v and the output gate z."""
        return (2 * self.key_heads + 2 * self.value_heads) * self.head_dim

    @property
    def state_elements(self) -> int:
        """Recurrent state per sequence and layer, ``[value_heads, head_dim, head_dim]``."""
        return self.value_heads * self.head_dim**2

    @property
    def conv_state_elements(self) -> int:
        """Inputs the convolution remembers per sequence and layer."""
        return self.conv_channels * (self.conv_width - 1)

    def state_bytes(self, state_dtype: StateDtype) -> int:
        """Fixed state per sequence and layer, one copy; the convolution's part is always bf16."""
        return ELEMENT_BYTES[state_dtype] * self.state_elements + ELEMENT_BYTES["bf16"] * self.conv_state_elements

    def parameters(self, hidden: int) -> int:
        """Weights of one layer: projections, convolution, decay (A_log, dt_bias), gated norm, output."""
        projections = hidden * (self.qkvz_width + 2 * self.value_heads)
        small = self.conv_channels * self.conv_width + 2 * self.value_heads + self.head_dim
        return projections + small + self.value_heads * self.head_dim * hidden


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """SwiGLU feed-forward network."""

    intermediate: int

    def parameters(self, hidden: int) -> int:
        """Weights of gate, up and down projections."""
        return 3 * hidden * self.intermediate

    def active_parameters(self, hidden: int) -> int:
        """All of them."""
        return self.parameters(hidden)


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """Routed SwiGLU experts, with an always-active shared expert where ``shared_intermediate`` is not 0."""

    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int
    has_shared_gate: bool
    """A sigmoid gate scales the shared expert's output (Qwen3-Next)."""
    has_correction_bias: bool
    """A bias per expert steers the choice, not the weight, of experts (DeepSeek-V3)."""
    has_fp32_router: bool = False
    """Experts are scored in fp32, by fp32 weights (GLM-4.5, MiniMax-M2)."""
    has_biases: bool = False
    """Router and projections of routed experts add biases (gpt-oss)."""
    groups: int = 1
    """Equal groups of experts (DeepSeek-V3)."""
    groups_per_token: int = 1
    """Groups from which a token takes its experts."""

    def expert_parameters(self, hidden: int) -> int:
        """Weights of one routed expert."""
        return 3 * hidden * self.intermediate + (2 * self.intermediate + hidden if self.has_biases else 0)

    def active_parameters(self, hidden: int) -> int:
        """Weights one token touches: router, shared expert, ``experts_per_token`` experts."""
        router = self.experts * (hidden + (1 if self.has_correction_bias else 0) + (1 if self.has_biases else 0))
        shared = 3 * hidden * self.shared_intermediate + (hidden if self.has_shared_gate else 0)
        return router + shared + self.experts_per_token * self.expert_parameters(hidden)

    def parameters(self, hidden: int) -> int:
        """Weights of router, shared expert and all routed experts."""
        inactive = self.experts - self.experts_per_token
        return self.active_parameters(hidden) + inactive * self.expert_parameters(hidden)


Attention = GroupedQueryAttention | LatentAttention | GatedDeltaNet
Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: an input norm, attention, a second norm, a feed-forward network."""

    attention: Attention
    ffn: Ffn


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only language model. Multi-token-prediction layers and vision towers are not part of it.

    Two models are equal when their architectures are; ``name`` and ``source`` do not count.
    """

    name: str = field(compare=False)
    source: str = field(compare=False)
    """Source of the dimensions."""
    hidden: int
    vocab: int
    has_tied_embeddings: bool
    """The LM head is the transposed embedding."""
    max_context_tokens: int
    kinds: tuple[Layer, ...]
    """Distinct layers, in order of first appearance."""
    pattern: tuple[int, ...]
    """[layers] index into ``kinds``."""
    published_weights: WeightDtype = field(default="bf16", compare=False)
    """Format of the published checkpoint; which one an instance holds is chosen with its engine."""
    draft_layers: int = field(default=0, compare=False)
    """Multi-token-prediction layers of the published checkpoint."""

    def check(self, precision: Precision, field: str = "weights") -> None:
        """Whether the model can be had in these formats.

        Raises:
            InputError: mxfp4 of a model that is not published in it: nothing says which of its weights would be.
        """
        if precision.weights == "mxfp4" != self.published_weights:
            raise InputError(f"{field}: found mxfp4, expected bf16 or fp8 ({self.name} is not published in mxfp4)")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order."""
        return tuple(self.kinds[kind] for kind in self.pattern)

    def count_layers(self, layers: range) -> list[tuple[Layer, int]]:
        """Distinct layers among these and how often each occurs."""
        return [(self.kinds[kind], n) for kind, n in Counter(self.pattern[layers.start : layers.stop]).items()]

    @property
    def parameters(self) -> int:
        """Every weight once: norms, router and biases included, a tied head not counted again."""
        per_layer = [k.attention.parameters(self.hidden) + k.ffn.parameters(self.hidden) for k in self.kinds]
        embeddings = self.vocab * self.hidden * (1 if self.has_tied_embeddings else 2)
        return self._norm_parameters + embeddings + sum(per_layer[kind] for kind in self.pattern)

    @property
    def active_parameters(self) -> int:
        """Weights touched per decoded token: the LM head included, the embedding row not."""
        per_layer = [k.attention.parameters(self.hidden) + k.ffn.active_parameters(self.hidden) for k in self.kinds]
        return self._norm_parameters + self.vocab * self.hidden + sum(per_layer[kind] for kind in self.pattern)

    @property
    def _norm_parameters(self) -> int:
        return (2 * len(self.pattern) + 1) * self.hidden

    def kv_bytes_per_token(self, kv_dtype: KvDtype = "bf16") -> int:
        """KV cache of one token in all layers, one copy. Layers with a `KeySpan` keep it for a while only."""
        per_layer = [layer_kv_bytes(kind.attention, kv_dtype) for kind in self.kinds]
        return sum(per_layer[kind] for kind in self.pattern)

    def kv_bytes(self, tokens: int, kv_dtype: KvDtype = "bf16") -> int:
        """KV cache of a request of so many tokens, one copy: layers with a `KeySpan` keep what it still shows."""
        per_layer = [
            layer_kv_bytes(kind.attention, kv_dtype) * kept_tokens(kind.attention, tokens) for kind in self.kinds
        ]
        return sum(per_layer[kind] for kind in self.pattern)

    @property
    def windows_differ(self) -> bool:
        """Whether softmax attention slides in some layers only, or over windows of several lengths."""
        mixers = [kind.attention for kind in self.kinds]
        return len({mixer.window for mixer in mixers if isinstance(mixer, GroupedQueryAttention)}) > 1

    def state_bytes(self, state_dtype: StateDtype = "bf16") -> int:
        """Fixed state of one request in all layers, one copy; the convolution's part is always bf16."""
        mixers = [layer.attention for layer in self.layers]
        return sum(mixer.state_bytes(state_dtype) for mixer in mixers if isinstance(mixer, GatedDeltaNet))


def layer_kv_bytes(attention: Attention, kv_dtype: KvDtype) -> int:
    """KV cache of one token in one layer, one copy; none of linear attention."""
    return 0 if isinstance(attention, GatedDeltaNet) else attention.kv_bytes(kv_dtype)


def span_of(attention: Attention) -> KeySpan | None:
    """Keys that a query of a layer sees; ``None``: all past ones, or none at all."""
    return attention.span if isinstance(attention, GroupedQueryAttention) else None


def kept_tokens(attention: Attention, tokens: int) -> int:
    """Tokens whose KV a layer keeps of a request of so many."""
    span = span_of(attention)
    return tokens if span is None else span.seen_by_last(tokens)


def stage_layers(model: Model, pp: int) -> list[range]:
    """Layers of each pipeline stage, as vLLM 0.24 divides them (``get_pp_indices``).

    Each stage gets ⌊L/pp⌋ layers and each of the L mod pp stages just before the last one more: 61 layers on 4
    stages are 15, 15, 16, 15.

    Raises:
        InputError: there are more stages than layers.
    """
    layers = len(model.pattern)
    if pp > layers:
        raise InputError(f"pp: found {pp}, expected at most the {layers} layers of {model.name}")
    base, remainder = divmod(layers, pp)
    stages, start = [], 0
    for stage in range(pp):
        size = base + (1 if pp - 1 - remainder <= stage < pp - 1 else 0)
        stages.append(range(start, start + size))
        start += size
    return stages


def stage_range(model: Model, partition: Partition, stage: int) -> range:
    """Layers of one stage.

    Raises:
        InputError: the instance has no such stage.
    """
    if not 0 <= stage < partition.pp:
        raise InputError(f"stage: found {stage}, expected 0…{partition.pp - 1} (pp {partition.pp})")
    return stage_layers(model, partition.pp)[stage]


def kv_bytes_per_token_per_rank(model: Model, partition: Partition, precision: Precision, stage: int = 0) -> int:
    """KV cache of one token on one rank of a stage in all its layers."""
    layers = model.count_layers(stage_range(model, partition, stage))
    return sum(count * layer_kv_bytes_per_rank(layer.attention, partition, precision) for layer, count in layers)


def layer_kv_bytes_per_rank(attention: Attention, partition: Partition, precision: Precision) -> int:
    """KV cache of one token in one layer on one rank: its heads; a latent is whole on every TP rank."""
    if isinstance(attention, GroupedQueryAttention):
        elements = 2 * kv_heads_per_rank(attention.kv_heads, partition.tp) * attention.head_dim
        return elements * ELEMENT_BYTES[precision.kv]
    return layer_kv_bytes(attention, precision.kv)


def state_bytes_per_rank(model: Model, partition: Partition, precision: Precision, stage: int = 0) -> int:
    """Fixed state of one request on one rank of a stage; heads and convolution channels are divided by tp."""
    total = 0
    for layer, count in model.count_layers(stage_range(model, partition, stage)):
        if isinstance(layer.attention, GatedDeltaNet):
            split(layer.attention.key_heads, partition.tp, "key heads of linear attention")
            total += count * layer.attention.state_bytes(precision.state) // partition.tp
    return total
