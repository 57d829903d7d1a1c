"""Keys that a query of attention sees where it does not see all past ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core


@dataclass(frozen=True, slots=True)
class KeySpan:
    """The last keys (a sliding window: Mistral, gpt-oss), or those of the query's own chunk (Llama 4)."""

    kind: Literal["sliding", "chunked"]
    tokens: int
    """Of the window, the query's own token included, or of a chunk."""

    @property
    def in_core(self) -> _core.KeySpan:
        """The same in C++, which works it out."""
        return _core.KeySpan(self.tokens, is_chunked=self.kind == "chunked")

    def seen(self, kv_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """[…] keys that the last of ``kv_tokens`` tokens sees: what a decode reads, and what its cache must hold."""
        return self.in_core.seen(kv_tokens)

    def seen_by_last(self, kv_tokens: int) -> int:
        """``seen`` of one request; 0 of none."""
        return int(self.seen(np.array([kv_tokens], dtype=np.int64))[0]) if kv_tokens else 0

    def kernel_requests(
        self, new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """New and KV tokens of the requests that a kernel over prompts gets of these: chunks are requests of their own,
        as in vLLM's kernels; a window is a parameter of the kernel and leaves them as they are."""
        return self.in_core.chunk_requests(new_tokens, kv_tokens) if self.kind == "chunked" else (new_tokens, kv_tokens)

    def most_blocks(self, block_tokens: int) -> int:
        """Blocks of the cache that a request holds at most between iterations, as vLLM V1 frees those left behind."""
        if self.kind == "chunked" and self.tokens % block_tokens == 0:
            return self.tokens // block_tokens
        return -(-(self.tokens - 1) // block_tokens) + 1
