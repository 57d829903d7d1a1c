"""The requests that run on one rank, in order of admission, with their counters as columns of one array."""

from __future__ import annotations

from itertools import compress

import numpy as np
from numpy.typing import NDArray

from vidur_pd.request import COMPUTED, Request

PROMPT = 2
"""Row of prompt tokens."""
END = 3
"""Row of prompt + output tokens after which the request is done here."""
CAPACITY = 4
"""Row of tokens that fit into the KV blocks held."""
_ROWS = 5


class RunningTable:
    """At most ``max_seqs`` running requests.

    ``counters`` is [counter, slot]; a request keeps its slot while it runs. ``order`` holds the slots, and ``requests``
    the requests, in order of admission; both are replaced, never changed in place, so batches may keep them.
    """

    def __init__(self, max_seqs: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self.counters = np.zeros((_ROWS, max_seqs), dtype=np.int64)
        self.order: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.requests: list[Request] = []
        self._vacant = list(range(max_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.requests)

    def append(self, requests: list[Request], new_tokens: list[int], end_tokens: list[int]) -> NDArray[np.intp]:
        """Admit requests at the tail, with blocks for what they have and ``new_tokens`` more; returns their slots."""
        slots = np.array([self._vacant.pop() for _ in requests], dtype=np.intp)
        for request, slot in zip(requests, slots.tolist(), strict=True):
            request.bind(self.counters[:, slot])
        self.counters[PROMPT, slots] = [request.prompt_tokens for request in requests]
        self.counters[END, slots] = end_tokens
        kv_tokens = self.counters[COMPUTED, slots] + new_tokens
        self.counters[CAPACITY, slots] = -(-kv_tokens // self._block_tokens) * self._block_tokens
        self.order = np.concatenate((self.order, slots))
        self.requests = self.requests + requests
        return slots

    def remove(self, leaving: NDArray[np.bool_]) -> None:
        """Drop the requests at the positions where ``leaving`` [requests] is true; they take their progress along."""
        for request in compress(self.requests, leaving.tolist()):
            request.unbind()
        self._vacant.extend(self.order[leaving].tolist())
        staying = ~leaving
        self.order = self.order[staying]
        self.requests = list(compress(self.requests, staying.tolist()))

    def missing_blocks(self, kv_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """[requests] blocks that each lacks for ``kv_tokens`` [requests]."""
        room = self.counters[CAPACITY, self.order] - kv_tokens
        missing: NDArray[np.int64] = np.maximum(-(room // self._block_tokens), 0)
        return missing

    def add_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Note ``blocks`` [requests] more for each."""
        self.counters[CAPACITY, self.order] += blocks * self._block_tokens
