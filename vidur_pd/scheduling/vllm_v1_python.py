"""vLLM V1 in Python: the rules of ``core/vllm_v1.hpp`` to read, and to fork for a policy of one's own.

Source: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py, first-come-first-served. Decides as the core's ``vllm_v1``,
which is the default because it is faster::

    engine: {policy: "vidur_pd.scheduling.vllm_v1_python:VllmV1Python"}
"""

from __future__ import annotations

from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class VllmV1Python(Policy):
    """Running requests first, in order of admission; then, unless one was preempted, those that wait."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        if self._continue_running(rank, decision):
            self._admit(rank, decision)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody can be admitted: the running list or the budget is full, or the first in line does not fit."""
        is_full = rank.running_requests >= min(rank.max_seqs, rank.max_batched_tokens)
        return is_full or _next_in_line(rank) is None

    def _continue_running(self, rank: RankView, decision: Decision) -> bool:
        """False if a request had to be preempted for the blocks of others."""
        has_room = True
        for request in rank.running:
            if request.is_in_iteration or not request.is_running:
                continue
            tokens = min(_chunk(rank, request), rank.budget_left)
            if tokens == 0:
                break
            while rank.lacking_blocks(request, tokens) > rank.free_blocks:
                victim = [other for other in rank.running if other.is_ending or not other.is_in_iteration][-1]
                decision.preempt(victim)
                has_room = False
                if victim is request:
                    return False
            decision.run(request, tokens)
        return has_room

    def _admit(self, rank: RankView, decision: Decision) -> None:
        while rank.has_candidates and rank.budget_left > 0 and rank.running_requests < rank.max_seqs:
            request = _next_in_line(rank)
            if request is not None:
                decision.run(request, min(_chunk(rank, request), rank.budget_left))
            elif rank.arrived and not rank.running_requests and not rank.is_transferring:
                decision.preempt(rank.arrived[-1])  # vLLM hangs here: those whose KV has come hold all blocks
            else:
                break


def _next_in_line(rank: RankView) -> RequestView | None:
    """The first whose KV has come, or else the first that waits, if blocks for its whole sequence are free now."""
    line = rank.arrived or rank.waiting
    if not line:
        return None
    spared = rank.watermark_blocks if rank.running_requests and not rank.arrived else 0
    fits = rank.lacking_blocks(line[0], rank.most_tokens(line[0])) <= rank.free_blocks - spared
    return line[0] if fits else None


def _chunk(rank: RankView, request: RequestView) -> int:
    """The rest of its sequence, at most the threshold of long prompts, plus its drafts."""
    drafts = rank.most_drafts(request)
    rest = rank.most_tokens(request) - drafts
    return min(rest, rank.long_prefill_token_threshold or rest) + drafts
