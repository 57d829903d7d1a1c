"""Token counts for which an engine captures CUDA graphs."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from aicb.model.architecture import GroupedQueryAttention, Model

MOST_CAPTURED_WITH_SINKS = 1024
"""Tokens of the largest graph of gpt-oss, the only model with attention sinks here
(``vllm/model_executor/models/config.py``: ``GptOssForCausalLMConfig``)."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Token counts for which there are graphs, ascending; none: nothing is replayed."""

    decodes: tuple[int, ...]
    """Of batches without prompts, whole."""
    prompts: tuple[int, ...]
    """Of batches with prompts, of what lies between attentions."""
    replays_divided: bool = True
    """Also where some data-parallel ranks have prompts and others decodes alone. Not in SGLang 0.5.17, whose
    graphs are of either (``model_executor/runner``): of two such ranks each step with a prompt on one was launched
    kernel by kernel on both, 105 to 142 ms for 48 layers
    (``tests/data/engine/sglang-h200-dp2-ep2-qwen3-30b-a3b.json.gz``)."""

    def of(self, *, has_prompts: bool) -> tuple[int, ...]:
        return self.prompts if has_prompts else self.decodes

    def covers(self, tokens: int, *, has_prompts: bool, is_divided: bool = False) -> bool:
        """Whether a batch of so many tokens is replayed; ``is_divided``: between ranks with prompts and others
        (`aicb.operators.batch.are_divided`)."""
        sizes = self.of(has_prompts=has_prompts)
        return bool(sizes) and tokens <= sizes[-1] and (self.replays_divided or not is_divided)

    def padded(self, tokens: int, *, has_prompts: bool, is_divided: bool = False) -> int:
        """Tokens that a batch is padded to: the next captured size; as they are where nothing is replayed."""
        if not self.covers(tokens, has_prompts=has_prompts, is_divided=is_divided):
            return tokens
        sizes = self.of(has_prompts=has_prompts)
        return sizes[bisect_left(sizes, tokens)]


def capture_sizes(
    max_seqs: int, max_batched_tokens: int = 8192, queries: int = 1, most: int | None = None
) -> list[int]:
    """Token counts for which vLLM 0.24 captures CUDA graphs, with ``queries`` tokens per decode (drafts and one).

    1, 2, 4, 8…248 by 8, 256… by 16, up to ``most`` or, without one, min(512, 2·max_seqs·queries), within
    max_batched_tokens, where speculative decoding rounds each up to a multiple of its tokens per decode
    (``vllm/config/vllm.py``: ``_set_cudagraph_sizes``; ``vllm/config/compilation.py``:
    ``adjust_cudagraph_sizes_for_spec_decode``).
    """
    largest = min(most or min(512, 2 * max_seqs * queries), max_batched_tokens)
    listed = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]
    return sorted({rounded for size in listed if (rounded := -(-size // queries) * queries) <= largest})


def most_captured(model: Model) -> int | None:
    """Tokens of the largest graph where the model decides it."""
    has_sinks = any(
        isinstance(kind.attention, GroupedQueryAttention) and kind.attention.has_sinks for kind in model.kinds
    )
    return MOST_CAPTURED_WITH_SINKS if has_sinks else None
