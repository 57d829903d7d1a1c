"""vLLM before V1, as Vidur has it: prompts whole and before all decodes, which they stall."""

from __future__ import annotations

from typing import ClassVar

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class VllmV0(Policy):
    """A batch prefills or decodes.

    Waiting prompts come first, in their order, as long as their blocks leave the watermark free and the batch, padded
    to its longest prompt, is within the budget. Only where none can start do all resident requests decode, in order of
    arrival; for lack of blocks the latest of those that have not had their turn is preempted.

    A request that was preempted is a prompt of all its tokens. Where Vidur would wait for ever for the budget, or the
    blocks, of such a one, the request is refused from the start: prompt and output have to fit as a prompt.
    """

    watermark: ClassVar[float] = 0.01

    def begin(self, rank: RankView) -> None:
        residents.check_decodes(rank, "vllm_v0")

    def decide(self, rank: RankView, decision: Decision) -> None:
        if not self._prefill(rank, decision):
            self._decode(rank, decision)

    def is_steady(self, rank: RankView) -> bool:
        return residents.decodes_go_on(rank, is_full=rank.running_requests == rank.max_seqs)

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        longest = residents.longest_sequence(rank, request)
        return residents.refusal_by_budget(rank, longest) or residents.refusal_by_watermark(rank, request)

    def _prefill(self, rank: RankView, decision: Decision) -> int:
        """Prompts that start with this iteration."""
        started = longest = 0
        for request in rank.waiting:
            tokens = rank.most_tokens(request)
            longest = max(longest, tokens)
            if not residents.fits_above_watermark(rank, request):
                break
            if (started + 1) * longest > rank.max_batched_tokens:
                break
            if rank.running_requests == rank.max_seqs or started == residents.micro_batch(rank):
                break
            decision.run(request, tokens)
            started += 1
        return started

    def _decode(self, rank: RankView, decision: Decision) -> None:
        line, decoded = residents.by_arrival(residents.idle(rank)), 0
        while line and decoded < residents.micro_batch(rank):
            request = line.pop(0)
            if residents.may_run(rank, request):
                decoded += residents.decode(rank, decision, request, line)
