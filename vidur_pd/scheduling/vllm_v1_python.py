"""vLLM V1 in Python: the rules of ``core/vllm_v1.hpp`` to read, and to fork for a policy of one's own.

Source: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py. Decides as the core's ``vllm_v1``,
which is the default because it is faster::

    engine: {policy: "vidur_pd.scheduling.vllm_v1_python:VllmV1Python"}
"""

from __future__ import annotations

from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class VllmV1Python(Policy):
    """Running requests first, in order of admission; then, unless one was preempted, those that wait."""

    pipelines_chunks = True

    def decide(self, rank: RankView, decision: Decision) -> None:
        if self._continue_running(rank, decision):
            self._admit(rank, decision)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody can be admitted: the running list or the budget is full, or the first in line does not fit."""
        running = rank.running_requests
        is_full = running >= min(rank.max_seqs, rank.max_batched_tokens)
        return is_full or _next_in_line(rank, rank.max_batched_tokens - running) is None

    def _continue_running(self, rank: RankView, decision: Decision) -> bool:
        """False if a request had to be preempted for the blocks of others."""
        line, position, has_room = rank.running, 0, True
        decided: set[int] = set()
        while position < len(line):
            request = line[position]
            position += 1
            if request.is_in_iteration:
                continue
            tokens = min(_chunk(rank, request), rank.budget_left)
            if tokens == 0:
                break
            while rank.lacking_blocks(request, tokens) > rank.free_blocks:
                victim = _next_victim(rank, line)
                decision.preempt(victim)
                line.remove(victim)
                has_room = False
                if victim is request:
                    return False
                position -= victim.index in decided  # one that ends stays in the count, as in vLLM
            decision.run(request, tokens)
            decided.add(request.index)
        return has_room

    def _admit(self, rank: RankView, decision: Decision) -> None:
        while rank.has_candidates and rank.budget_left > 0 and rank.running_requests < rank.max_seqs:
            request = _next_in_line(rank, rank.budget_left)
            if request is not None:
                decision.run(request, min(_chunk(rank, request), rank.budget_left))
            elif rank.arrived and not rank.running_requests and not rank.is_transferring:
                decision.preempt(rank.arrived[-1])  # vLLM hangs here: those whose KV has come hold all blocks
            else:
                break


def _next_victim(rank: RankView, line: list[RequestView]) -> RequestView:
    """The last of the running list, or by priority the last in that order, of equal ones the first of the list."""
    idle = [request for request in line if request.is_ending or not request.is_in_iteration]
    return max(idle, key=lambda request: (request.priority, request.arrived_ps)) if rank.by_priority else idle[-1]


def _next_in_line(rank: RankView, budget: int) -> RequestView | None:
    """The first whose KV has come, or else the first that waits, if blocks are free now.

    Those for its whole sequence, and those for its first tokens with a look-ahead.
    """
    heads = [*rank.arrived[:1], *rank.waiting[:1]]
    if not heads:
        return None
    if rank.by_priority:
        heads.sort(key=lambda head: (head.priority, head.arrived_ps, head.index))
    request = heads[0]
    spared = rank.watermark_blocks if rank.running_requests else 0
    chunk = _chunk(rank, request)
    if chunk > budget and not rank.chunks_prompts:
        return None
    whole, first = rank.whole_blocks(request), rank.lacking_blocks(request, min(chunk, budget))
    return request if max(whole, first) <= rank.free_blocks - spared else None


def _chunk(rank: RankView, request: RequestView) -> int:
    """The rest of its sequence with its drafts, at most the threshold of long prompts."""
    rest = rank.most_tokens(request)
    return min(rest, rank.long_prefill_token_threshold or rest)
