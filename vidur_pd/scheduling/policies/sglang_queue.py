"""SGLang's waiting queue, in the order of its schedule policy.

Source: SGLang 0.5.23, python/sglang/srt/managers/schedule_policy.py (``SchedulePolicy``).
"""

from __future__ import annotations

from math import inf
from typing import Final

from vidur_pd.scheduling.policy import Decision, RankView, RequestView

MOST_MATCHED: Final = 128
"""Waiting requests beyond which ``lpm`` is as ``fcfs``; also those whose prefixes the other orders keep in use."""
REFRESH_INTERVAL: Final = 32
"""Rounds of admission between two such refreshes."""
SHARED_PREFIX: Final = 32
"""Tokens: requests with no longer cached prefix that share so many with an earlier one wait until it is cached."""


class WaitingQueue:
    """Requests that wait, in SGLang's order, which stays from round to round; the rank keeps its own."""

    def __init__(self, schedule_policy: str, eviction_policy: str) -> None:
        self._policy, self._eviction = schedule_policy, eviction_policy
        self._line: list[RequestView] = []
        self._rounds = 0

    def append(self, rank: RankView, request: RequestView) -> None:
        """A request that is about to lose its KV is the last."""
        self._follow(rank)
        self._line.append(request)

    def in_order(self, rank: RankView, decision: Decision) -> list[RequestView]:
        self._follow(rank)
        match self._policy:
            case "lpm" if len(self._line) <= MOST_MATCHED:
                self._sort_by_prefix(rank, decision)
                return list(self._line)
            case "dfs-weight":
                self._line = [self._line[place] for place in rank.depth_first(self._line)]
                return list(self._line)
            case "lof":
                self._line.sort(key=lambda request: -request.max_output_tokens)
        self._keep_in_use(rank, decision)
        return list(self._line)

    def _follow(self, rank: RankView) -> None:
        """Drops those that wait no more, and appends those that came."""
        waiting = {request.index: request for request in rank.waiting}
        self._line = [request for request in self._line if waiting.pop(request.index, None) is not None]
        self._line += waiting.values()

    def _sort_by_prefix(self, rank: RankView, decision: Decision) -> None:
        """Longest cached prefix first; last those that had better wait for an earlier one."""
        keys, begun = {}, set[int]()
        for request in self._line:
            found = decision.touch(request, request.sequence_tokens)
            keys[request.index] = -float(min(found, request.sequence_tokens - 1))
            if found > SHARED_PREFIX or request.sequence_tokens < SHARED_PREFIX:
                continue
            content = rank.content(request, SHARED_PREFIX)
            if content in begun:
                keys[request.index] = inf
            elif content is not None:
                begun.add(content)
        self._line.sort(key=lambda request: keys[request.index])

    def _keep_in_use(self, rank: RankView, decision: Decision) -> None:
        """From time to time the prefixes of waiting requests count as used, the first request's last."""
        if not self._line or self._eviction != "lru" or rank.role == "decode":
            return
        if self._rounds % REFRESH_INTERVAL == 0:
            for request in reversed(self._line[:MOST_MATCHED]):
                decision.touch(request, request.sequence_tokens)
        self._rounds += 1
