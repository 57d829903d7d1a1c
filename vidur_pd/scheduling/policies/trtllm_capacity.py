"""TensorRT-LLM's capacity scheduler: which requests have the KV to take part in an iteration.

Source: TensorRT-LLM 1.2.1, cpp/tensorrt_llm/batch_manager: capacityScheduler.cpp and kvCacheManager.cpp
(``getRemainingBlocksToCompletion``, ``getNeededBlocksOneStep``, ``findNewContextBlock``).
"""

from __future__ import annotations

from collections.abc import Callable

from vidur_pd.scheduling.policy import Decision, RankView, RequestView

Pause = Callable[[Decision, RequestView], None]


def is_decode(request: RequestView) -> bool:
    """Its prompt has been computed, or is with the iteration under way."""
    left = request.sequence_tokens - request.computed_tokens
    return request.is_running and left <= 1 and request.computed_tokens >= request.prompt_tokens


def most_tokens_in_all(rank: RankView, request: RequestView) -> int:
    """Prompt and longest output, of which a prefill instance has one token."""
    return request.prompt_tokens + (1 if rank.role == "prefill" else request.max_output_tokens)


class Capacity:
    """One round. Nothing is run in it, so that each request is looked at in the same cache; pauses hold at once.

    Free blocks are those that nobody holds, cached or not. Cached prefixes of those that wait are not deducted.
    """

    def __init__(self, rank: RankView, decision: Decision | None = None, pause: Pause | None = None) -> None:
        """``decision`` and ``pause``: for `fitting`."""
        self._rank, self._decision, self._pause = rank, decision, pause
        self._arrived = {request.index for request in rank.arrived}
        self._begun: set[int] = set()
        """First blocks that requests of this round are going to put into the cache."""
        self.has_paused = False

    def fitting(self, active: list[RequestView], policy: str) -> list[RequestView]:
        """Requests in the order in which the iteration is filled."""
        decodes = [request for request in active if is_decode(request)]
        lacks_kv = sum(self._of_a_step(request) for request in decodes) > self._rank.free_blocks
        if policy != "static_batch":
            for request in active:
                if request.is_running and not is_decode(request):
                    self._begins_known_block(request)
        if policy == "max_utilization" or lacks_kv:
            return self._most(active)
        if policy == "static_batch" and decodes:
            return decodes
        return decodes + self._sure(active, decodes, is_static=policy == "static_batch")

    def could_admit(self, active: list[RequestView], policy: str) -> bool:
        """Whether the first that waits would be admitted, where all those before it decode; it has none to wait for."""
        running = self._rank.running_requests
        decodes, first = active[:running], active[running]
        if policy == "static_batch":
            return not decodes
        of = self._need(policy)
        return of(first) <= self._rank.free_blocks - sum(of(request) for request in decodes)

    def has_room(self, request: RequestView, policy: str) -> bool:
        """Whether it alone could go on."""
        return self._need(policy)(request) <= self._rank.free_blocks

    def _need(self, policy: str) -> Callable[[RequestView], int]:
        return self._of_a_step if policy == "max_utilization" else self._to_the_end

    def _sure(self, active: list[RequestView], decodes: list[RequestView], *, is_static: bool) -> list[RequestView]:
        """Those whose longest output has blocks left by all before them: first those with KV from elsewhere."""
        free = self._rank.free_blocks - sum(self._to_the_end(request) for request in decodes)
        sure = []
        for is_arrived in (True, False):
            is_full = False
            for request in active:
                if is_decode(request) or (request.index in self._arrived) is not is_arrived:
                    continue
                if is_full and not request.is_running:
                    continue
                if not is_static and self._had_better_wait(request):
                    continue
                needed = self._to_the_end(request)
                if needed > free:
                    is_full = True
                    continue
                free -= needed
                sure.append(request)
        return sure

    def _most(self, active: list[RequestView]) -> list[RequestView]:
        """In order, those that have blocks for their next step; where one has not, the last that has begun is paused,
        and nobody behind it takes part."""
        fitting: list[RequestView] = []
        taken, place, end = 0, 0, len(active)
        while place < end:
            request = active[place]
            needed = 0 if self._had_better_wait(request) else self._of_a_step(request)
            if taken + needed <= self._rank.free_blocks:
                if needed or self._has_begun(request):
                    fitting.append(request)
                taken += needed
                place += 1
                continue
            last = self._last_begun(active, place, end)
            if last is None:
                break
            self._give_up(active[last])
            end = last
        return fitting

    def _last_begun(self, active: list[RequestView], start: int, end: int) -> int | None:
        for place in range(end - 1, start - 1, -1):
            request = active[place]
            if self._has_begun(request) and (request.is_ending or not request.is_in_iteration):
                return place
        return None

    def _give_up(self, request: RequestView) -> None:
        assert self._decision is not None
        assert self._pause is not None
        self._pause(self._decision, request)
        self.has_paused = True

    def _has_begun(self, request: RequestView) -> bool:
        return request.is_running or request.index in self._arrived

    def _to_the_end(self, request: RequestView) -> int:
        """Blocks that it lacks for its longest output."""
        tokens = most_tokens_in_all(self._rank, request)
        if not self._has_begun(request):
            return self._rank.blocks(tokens)
        return self._rank.lacking_blocks(request, tokens - request.computed_tokens)

    def _of_a_step(self, request: RequestView) -> int:
        """Blocks that it lacks for its next token, or its whole prompt; with pipeline stages, for two steps."""
        rank = self._rank
        if not self._has_begun(request):
            return rank.blocks(request.sequence_tokens)
        if request.is_running and not is_decode(request):
            return 0
        steps = 2 if rank.pipeline_stages > 1 else 1
        most = most_tokens_in_all(rank, request) - request.computed_tokens
        return rank.lacking_blocks(request, min(steps * (1 + rank.most_drafts(request)), most))

    def _had_better_wait(self, request: RequestView) -> bool:
        """Another request of this round computes the first block that it does not find in the cache."""
        return not self._has_begun(request) and self._begins_known_block(request)

    def _begins_known_block(self, request: RequestView) -> bool:
        """Notes the first whole block that is not cached; whether it was noted before."""
        assert self._decision is not None
        cached = self._decision.touch(request, request.sequence_tokens)
        end = cached + self._rank.block_tokens
        content = self._rank.content(request, end) if end <= request.sequence_tokens else None
        if content is None:
            return False
        is_known = content in self._begun
        self._begun.add(content)
        return is_known
