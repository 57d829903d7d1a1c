"""FlashMLA's schedule: the division of a batch among the SMs (split KV).

An SM works on up to 64 query heads of one request at a time, in blocks of 64 tokens of its latent cache. The metadata
kernel cuts the sequence of all blocks into as many parts as there are SMs, each with the same *payload*: its blocks
plus an overhead of 5 blocks for every request it touches (FlashMLA, ``get_mla_metadata``). A request that spans
several parts is split; a second kernel combines its partial outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

BLOCK_TOKENS = 64
"""Tokens per KV block."""
OVERHEAD_BLOCKS = 5
"""Cost of starting a request in blocks (``fixed_overhead_num_blocks``)."""
HEAD_TILE = 64
"""Query heads one SM works on."""


class Schedule(NamedTuple):
    """The part that lasts longest, and the most splits of one request."""

    blocks: int
    starts: int
    """Requests the part touches."""
    splits: int


def head_tiles(heads: int) -> int:
    """SMs that share a request's KV."""
    return -(-heads // HEAD_TILE)


def parts_of(heads: int, sms: int) -> int:
    """Parts the blocks are divided into."""
    return max(sms // head_tiles(heads), 1)


def schedule(blocks: Sequence[int], parts: int) -> Schedule:
    """The schedule of requests with so many blocks each."""
    payload = -(-(sum(blocks) + OVERHEAD_BLOCKS * len(blocks)) // parts) + OVERHEAD_BLOCKS
    count = len(blocks)
    longest = (0, 0)
    splits = [0] * count
    request = done = 0
    for _ in range(parts):
        room, work, starts = payload, 0, 0
        while request < count:
            left = blocks[request] - done
            if room >= left + OVERHEAD_BLOCKS:
                room, work, starts = room - left - OVERHEAD_BLOCKS, work + left, starts + 1
                splits[request] += 1
                request, done = request + 1, 0
                continue
            if room > OVERHEAD_BLOCKS:
                done, work, starts = done + room - OVERHEAD_BLOCKS, work + room - OVERHEAD_BLOCKS, starts + 1
                splits[request] += 1
            break
        longest = max(longest, (work + OVERHEAD_BLOCKS * starts, starts))
    return Schedule(longest[0] - OVERHEAD_BLOCKS * longest[1], longest[1], max(splits))


@lru_cache(maxsize=65536)
def equal_schedule(requests: int, blocks: int, parts: int) -> Schedule:
    """The schedule of requests of equal length."""
    return schedule([blocks] * requests, parts)
