"""What a router believes a candidate to have cached, by the prompts that it has sent there."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from vidur_pd.scheduling import RequestView
from vidur_pd.workload.request import Request


def prompt_blocks(request: RequestView, block_tokens: int) -> list[int]:
    """Identities of the full blocks of a prompt, each of which stands for all before it; none where nobody has said."""
    assert isinstance(request, Request)
    return (request.block_hashes or [])[: request.prompt_tokens // block_tokens]


class PrefixIndex:
    """Blocks of prompts, known from a time of each on; when there are too many the least recently used go first, of one
    prompt its end."""

    def __init__(self, most_blocks: int) -> None:
        self._known_ps: OrderedDict[int, int] = OrderedDict()
        self._most_blocks = most_blocks

    def __len__(self) -> int:
        return len(self._known_ps)

    def matched(self, blocks: list[int], now_ps: int) -> int:
        """How many leading ones are known by now."""
        return sum(1 for _ in takewhile(lambda block: self._known_ps.get(block, now_ps + 1) <= now_ps, blocks))

    def add(self, blocks: list[int], at_ps: int) -> None:
        """A prompt is sent here; what is new of it is known from ``at_ps`` on."""
        for block in reversed(blocks):
            self._known_ps.setdefault(block, at_ps)
            self._known_ps.move_to_end(block)
        while len(self._known_ps) > self._most_blocks:
            self._known_ps.popitem(last=False)
