"""Numbers of (query, key) pairs that attention computes, per request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core

Tokens = NDArray[np.int64] | NDArray[np.float64]


def causal_pairs(new_tokens: Tokens, kv_tokens: Tokens) -> NDArray[np.float64]:
    """[requests] pairs under a causal mask aligned at the end: ``q·(S − q) + q·(q + 1)/2``, exact below 2^53."""
    return _core.causal_pairs(new_tokens.astype(np.float64), kv_tokens.astype(np.float64))


def chosen_pairs(new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64], topk: int) -> NDArray[np.int64]:
    """[requests] Σ over queries of min(keys seen, ``topk``): pairs of attention to chosen keys."""
    past = kv_tokens - new_tokens
    few = np.clip(topk - past, 0, new_tokens)  # queries that see at most topk keys
    return np.asarray(few * past + few * (few + 1) // 2 + (new_tokens - few) * topk)
