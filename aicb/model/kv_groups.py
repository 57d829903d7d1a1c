"""Groups of layers that share blocks of the KV cache, as vLLM's hybrid KV cache manager makes them.

A block holds some tokens of one group. Groups have equally many layers of one kind, so that all blocks are of one size
and one pool serves all; a request holds blocks of each group. Layers that see all keys keep every token; those within a
span give back what has left it.

Source: vLLM 0.24.0, ``vllm/v1/core/kv_cache_utils.py`` (`_get_kv_cache_groups_uniform_page_size`) and
``single_type_kv_cache_manager.py``. Ignored: blocks that the chunk of a prompt being computed holds beyond its span.
"""

from __future__ import annotations

from dataclasses import dataclass

from aicb.model.architecture import Model, layer_kv_bytes_per_rank, span_of, stage_range
from aicb.model.key_span import KeySpan
from aicb.model.partition import Partition
from aicb.model.precision import Precision, ceil_div
from boundary.errors import InputError

NEARLY_EQUAL = 1.25
"""Where one kind has fewer than so many times the layers of the other, groups have those of the larger (vLLM)."""


@dataclass(frozen=True, slots=True)
class KvGroups:
    """Groups of the layers of one pipeline stage."""

    token_bytes: int
    """One token in one group on one rank; 0 where no layer has a KV cache."""
    whole: int = 1
    """Groups that keep every token of a request."""
    spanned: int = 0
    """Groups that keep those of ``span``."""
    span: KeySpan | None = None

    def most_spanned_blocks(self, block_tokens: int) -> int:
        """Blocks that each of the ``spanned`` groups holds at most of a request; 0 without such groups."""
        return 0 if self.span is None else self.span.most_blocks(block_tokens)

    def blocks(self, tokens: int, block_tokens: int) -> int:
        """Blocks that a request of so many tokens holds."""
        filled = ceil_div(tokens, block_tokens)
        return self.whole * filled + self.spanned * min(filled, self.most_spanned_blocks(block_tokens))


KvLayers = list[tuple[int, KeySpan | None, int]]
"""Bytes of one token on one rank, keys that a query sees, and number of such layers."""


def kv_layers(model: Model, partition: Partition, precision: Precision, stage: int = 0) -> KvLayers:
    """Layers of a stage as far as their KV goes."""
    return [
        (layer_kv_bytes_per_rank(layer.attention, partition, precision), span_of(layer.attention), count)
        for layer, count in model.count_layers(stage_range(model, partition, stage))
    ]


def kv_groups(
    model: Model, partition: Partition, precision: Precision, stage: int = 0, behind: KvLayers | None = None
) -> KvGroups:
    """Groups of a stage, and of the layers ``behind`` it that draft.

    Raises:
        InputError: spans differ, or KV per token does between layers with and without.
    """
    counts: dict[KeySpan | None, int] = {}
    sizes: dict[int, int] = {}
    for size, span, count in [*kv_layers(model, partition, precision, stage), *(behind or [])]:
        counts[span] = counts.get(span, 0) + (count if size else 0)
        sizes[size] = sizes.get(size, 0) + count
    spans = [span for span in counts if span is not None]
    if not spans:
        return KvGroups(sum(size * count for size, count in sizes.items()))
    if len(spans) > 1 or len(sizes) > 1:
        found = f"{len(spans)} spans, {sorted(sizes)} bytes of KV per token and layer"
        raise InputError(f"model {model.name}: found {found}, expected one span and layers of one size")
    whole, spanned = counts.get(None, 0), counts[spans[0]]
    fewest, most = min(whole, spanned) or spanned, max(whole, spanned)
    in_group = most if most < NEARLY_EQUAL * fewest else fewest
    return KvGroups(in_group * min(sizes), ceil_div(whole, in_group), ceil_div(spanned, in_group), spans[0])
