"""Sarathi-Serve (Agrawal et al., OSDI 2024), as Vidur has it: prompts in chunks join decodes, which never stall."""

from __future__ import annotations

from typing import ClassVar

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class Sarathi(Policy):
    """Every iteration decodes all resident requests and fills the rest of the chunk with prompts.

    Chunk: ``engine.max_batched_tokens`` (512 in Vidur). First decodes, in order of arrival; then prompts that have
    begun; then new ones, with blocks for the whole prompt above the watermark. Preempts as vLLM before V1.
    """

    watermark: ClassVar[float] = 0.01

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        """Tokens of running requests, by index, that count as prompt: all that they had when they were admitted."""

    def begin(self, rank: RankView) -> None:
        residents.check_decodes(rank, "sarathi")

    def decide(self, rank: RankView, decision: Decision) -> None:
        self._prompts = {request.index: self._prompts.get(request.index, 0) for request in rank.running}
        begun, taken = self._decode(rank, decision)
        for request in begun:
            tokens = min(rank.most_tokens(request), rank.budget_left)
            if tokens and request.is_running:
                decision.run(request, tokens)
                taken += 1
        self._admit(rank, decision, residents.micro_batch(rank) - taken)

    def is_steady(self, rank: RankView) -> bool:
        is_full = rank.running_requests >= min(rank.max_seqs, rank.max_batched_tokens)
        return residents.decodes_go_on(rank, is_full=is_full)

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        return residents.refusal_by_watermark(rank, request)

    def _decode(self, rank: RankView, decision: Decision) -> tuple[list[RequestView], int]:
        """Prompts that have begun and kept their KV so far, and how many requests decode."""
        line, begun, decoded = residents.by_arrival(residents.idle(rank)), [], 0
        while line and decoded < residents.micro_batch(rank):
            request = line.pop(0)
            if request.computed_tokens < self._prompts.get(request.index, 0):
                begun.append(request)
            elif residents.may_run(rank, request):
                decoded += residents.decode(rank, decision, request, line)
        return begun, decoded

    def _admit(self, rank: RankView, decision: Decision, most: int) -> None:
        for request in rank.waiting[: max(most, 0)]:
            if rank.running_requests == rank.max_seqs or not rank.budget_left:
                break
            if not residents.fits_above_watermark(rank, request):
                break
            tokens = min(rank.most_tokens(request), rank.budget_left)
            self._prompts[request.index] = request.sequence_tokens
            decision.run(request, tokens, held_tokens=request.sequence_tokens)
