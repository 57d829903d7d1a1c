"""Prefix hits on the Mooncake traces against a block pool written from vLLM's rules, with whole prefixes as keys.

Source of the rules: vLLM 0.24.0, vllm/v1/core/block_pool.py and kv_cache_utils.py.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.vidur_pd.one_rank import OneRank
from vidur_pd.scheduling.kv_blocks import PrefixCachingBlockPool
from vidur_pd.workload.request import Request

TRACES = Path(__file__).parents[3] / "shared/data/traces"
ID_TOKENS, BLOCK_TOKENS = 512, 16
ASKED = 1_000
TOGETHER = 3
"""Requests that run at a time."""


@dataclass(eq=False)
class Held:
    """A request: the prefix that ends with each of its full blocks, by number, and the blocks that it holds."""

    prefixes: list[int]
    blocks: list[int] = field(default_factory=list)


class HashChainOracle:
    """Blocks with an explicit free queue. Two prefixes have the same number exactly if all their blocks are equal."""

    def __init__(self, usable: int) -> None:
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._queue = OrderedDict.fromkeys(range(usable))
        self._content: dict[int, int] = {}
        self._holders: dict[int, list[int]] = {}
        self._users = [0] * usable
        self.evicted = 0

    def prefixes(self, blocks: Iterator[Hashable]) -> list[int]:
        found, before = [], -1
        for block in blocks:
            before = self._numbers.setdefault((before, block), len(self._numbers))
            found.append(before)
        return found

    def admit(self, request: Held, tokens: int) -> int:
        """Returns the tokens of the hits: at most the full blocks short of the last token."""
        for prefix in request.prefixes[: (tokens - 1) // BLOCK_TOKENS]:
            if not (holders := self._holders.get(prefix)):
                break
            block = holders[0]
            self._queue.pop(block, None)
            self._users[block] += 1
            request.blocks.append(block)
        hits = len(request.blocks) * BLOCK_TOKENS
        self.grow(request, tokens)
        return hits

    def grow(self, request: Held, tokens: int) -> None:
        """Blocks for so many tokens, of which the full ones have their content from now on."""
        while len(request.blocks) * BLOCK_TOKENS < tokens:
            block, _ = self._queue.popitem(last=False)
            if (gone := self._content.pop(block, None)) is not None:
                self._holders[gone].remove(block)
                self.evicted += 1
            self._users[block] = 1
            request.blocks.append(block)
        for block, prefix in zip(request.blocks[: tokens // BLOCK_TOKENS], request.prefixes, strict=False):
            if block not in self._content:
                self._content[block] = prefix
                self._holders.setdefault(prefix, []).append(block)

    def release(self, request: Held) -> None:
        """The tail comes back first: blocks without content to the front, the others to the back."""
        for block in reversed(request.blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._queue[block] = None
                self._queue.move_to_end(block, last=block in self._content)


def prompts(trace: str) -> list[tuple[int, tuple[int, ...]]]:
    """Prompt tokens and ids of their blocks."""
    path = TRACES / f"mooncake_{trace}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(ASKED), strict=False)]
    return [(row["input_length"], tuple(row["hash_ids"])) for row in rows]


def rounds(trace: str, usable: int) -> Iterator[list[Request]]:
    """Requests of the trace that run together: all that fit, up to `TOGETHER`."""
    together: list[Request] = []
    room = usable
    for index, (prompt, ids) in enumerate(prompts(trace)):
        request = Request(index, str(index), prompt, 1 + 7 * index % 40, 0, ids)
        blocks = -(-(prompt + request.output_tokens) // BLOCK_TOKENS)
        if blocks > usable:
            continue
        if blocks > room or len(together) == TOGETHER:
            yield together
            together, room = [], usable
        together.append(request)
        room -= blocks
    yield together


def blocks_of(request: Request, ids: tuple[int, ...]) -> Iterator[Hashable]:
    """Prompt blocks are equal where ids and places in them are; those with tokens of the answer are the request's."""
    for end in range(BLOCK_TOKENS, request.prompt_tokens + request.output_tokens, BLOCK_TOKENS):
        is_shared = end <= request.prompt_tokens
        yield (ids[(end - 1) // ID_TOKENS], end % ID_TOKENS) if is_shared else ("own", request.index, end)


@pytest.mark.parametrize("usable", [8_000, 40_000])
@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_hits_are_those_of_vllms_hash_chain(trace: str, usable: int) -> None:
    """Up to three requests at a time, whose prompts are computed in one step and whose answers end one after another.

    Traces with 128,000 and 640,000 tokens of KV: with the smaller pool most of what could be hit has been evicted.
    """
    pool = PrefixCachingBlockPool(usable + 1, BLOCK_TOKENS, ID_TOKENS)
    rank, oracle = (
        OneRank(pool, max_batched_tokens=10**7, max_seqs=TOGETHER, max_model_len=10**7),
        HashChainOracle(usable),
    )
    hit_tokens = 0
    for together in rounds(trace, usable):
        held = [Held(oracle.prefixes(blocks_of(each, tuple(each.block_hashes or ())))) for each in together]
        for request in together:
            rank.add(request)
        rank.finish(rank.schedule())
        expected = [oracle.admit(mine, each.prompt_tokens) for each, mine in zip(together, held, strict=True)]
        assert [request.cached_tokens for request in together] == expected
        hit_tokens += sum(expected)
        going_on = list(zip(together, held, strict=True))
        for step in range(1, 42):
            for _, mine in [pair for pair in going_on if pair[0].output_tokens == step]:
                oracle.release(mine)
            going_on = [pair for pair in going_on if pair[0].output_tokens > step]
            if not going_on:
                break
            rank.finish(rank.schedule())
            for request, mine in going_on:
                oracle.grow(mine, request.prompt_tokens + step)
    assert hit_tokens > 0
    assert oracle.evicted > usable
