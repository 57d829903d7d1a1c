#!/usr/bin/env python3
"""Counts how many KV blocks of a request adjoin in vLLM's caches, which a connector reads as one descriptor.

    python -m tests.validation.block_runs

Replays vLLM 0.24.0's free list (``vllm/v1/core/block_pool.py``) for a prefill and a decode engine: blocks are taken
from its front; a request's are given back with the last first, those with a hash to its end, all others to its front.
Requests are those of the measured pairs (``tests/data/pd/README.md``), for longer. NIXL merges blocks that follow each
other on both sides.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import count, pairwise
from statistics import mean

BLOCK_TOKENS = 16
PREFILL_S, PREFILL_S_A_TOKEN, STEP_S = 0.02, 3e-5, 0.006
"""Of Qwen3-8B on an H200, about."""
BLOCKS = (46_445, 20_000)
"""Of Qwen3-8B beside its weights on an H200, and fewer."""


class FreeList:
    """The free blocks of one engine."""

    def __init__(self, blocks: int, *, has_prefix_cache: bool) -> None:
        self._free = deque(range(1, blocks))  # block 0 is nobody's
        self._has_prefix_cache = has_prefix_cache

    def take(self, blocks: int) -> list[int]:
        return [self._free.popleft() for _ in range(blocks)]

    def give_back(self, blocks: list[int]) -> None:
        last_first = blocks[::-1]
        hashed = last_first[1:] if self._has_prefix_cache else []  # the last block is not full
        self._free.extendleft(reversed(last_first[: len(last_first) - len(hashed)]))
        self._free.extend(hashed)


@dataclass
class Transfer:
    """Blocks of one request on both sides."""

    prompt_tokens: int
    output_tokens: int
    source: list[int] = field(default_factory=list)
    destination: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return -(-self.prompt_tokens // BLOCK_TOKENS)

    @property
    def runs(self) -> int:
        """Of blocks that follow each other on both sides."""
        sides = zip(pairwise(self.source), pairwise(self.destination), strict=True)
        return 1 + sum(not (b == a + 1 and d == c + 1) for (a, b), (c, d) in sides)


def blocks_a_run(blocks: int, requests_per_s: float, *, has_prefix_cache: bool, requests: int = 6000) -> list[float]:
    """Of each thousand requests."""
    draws = random.Random(1)
    prefill, decode = (FreeList(blocks, has_prefix_cache=has_prefix_cache) for _ in range(2))
    events: list[tuple[float, int, str, Transfer]] = []
    number, now_s, counted = count(), 0.0, []
    for _ in range(requests):
        now_s += draws.expovariate(requests_per_s)
        prompt = max(16, min(8000, int(draws.lognormvariate(6.9, 0.9))))
        output = max(4, min(400, int(draws.lognormvariate(4.9, 0.8))))
        heapq.heappush(events, (now_s, next(number), "prefill", Transfer(prompt, output)))
    while events:
        now_s, _, what, transfer = heapq.heappop(events)
        later: list[tuple[float, str]] = []
        prefill_s = PREFILL_S + PREFILL_S_A_TOKEN * transfer.prompt_tokens
        match what:
            case "prefill":
                transfer.source = prefill.take(transfer.blocks)
                later = [(prefill_s, "read")]
            case "read":
                transfer.destination = decode.take(transfer.blocks)
                counted.append((transfer.blocks, transfer.runs))
                room = BLOCK_TOKENS - transfer.prompt_tokens % BLOCK_TOKENS
                grown_s = [token * STEP_S for token in range(room, transfer.output_tokens, BLOCK_TOKENS)]
                end_s = prefill_s + transfer.output_tokens * STEP_S
                later = [(prefill_s, "is read"), *((prefill_s + each, "grow") for each in grown_s), (end_s, "end")]
            case "is read":
                prefill.give_back(transfer.source)
            case "grow":
                transfer.destination += decode.take(1)
            case "end":
                decode.give_back(transfer.destination)
        for after_s, next_what in later:
            heapq.heappush(events, (now_s + after_s, next(number), next_what, transfer))
    thousands = [counted[begin : begin + 1000] for begin in range(0, requests, 1000)]
    return [mean(b for b, _ in part) / mean(r for _, r in part) for part in thousands]


def main() -> int:
    """Prints all cases."""
    for has_prefix_cache in (False, True):
        for blocks in BLOCKS:
            for requests_per_s in (2.0, 12.0):
                found = blocks_a_run(blocks, requests_per_s, has_prefix_cache=has_prefix_cache)
                case = f"prefix cache {'on' if has_prefix_cache else 'off'}, {blocks:,} blocks, {requests_per_s:g}/s"
                print(f"{case:<42}" + "".join(f"{each:>7.2f}" for each in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
