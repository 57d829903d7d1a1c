"""LightLLM, as Vidur has it: KV by the token, and admission by the peak of KV that all requests will come to."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

from boundary.errors import InputError
from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class LightLlm(Policy):
    """A batch prefills or decodes; prompts, whole, are tried after every ``max_waiting_iterations`` decodes.

    The peak of KV is computed from the true lengths of outputs, which no engine knows: an oracle. Vidur ends with an
    error where a decode finds no room, which happens only with KV from elsewhere; here the latest request is
    recomputed.
    """

    max_waiting_iterations: ClassVar[int] = 10

    def __init__(self) -> None:
        self._decodes = 0
        """Iterations since prompts were last tried."""

    def begin(self, rank: RankView) -> None:
        for field, found in (("engine.block_tokens", rank.block_tokens), ("pp", rank.pipeline_stages)):
            if found != 1:
                raise InputError(f"{field}: found {found}, expected 1 with lightllm")
        if rank.drafts_per_step:
            raise InputError("engine.speculative: found drafts, expected none with lightllm")
        residents.check_decodes(rank, "lightllm")

    def decide(self, rank: RankView, decision: Decision) -> None:
        line = residents.by_arrival(residents.idle(rank))
        if not line:
            if self._prefill(rank, decision, line):
                self._decodes = 0
            return
        if self._decodes >= self.max_waiting_iterations:
            self._decodes = 0
            if self._prefill(rank, decision, line):
                return
        self._decodes += 1
        while len(line) > rank.free_blocks:
            decision.preempt(line.pop())
        for request in line:
            if residents.may_run(rank, request):
                decision.run(request, rank.most_tokens(request))

    def is_steady(self, rank: RankView) -> bool:
        """Decodes are counted."""
        del rank
        return False

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        longest = residents.longest_sequence(rank, request)
        peak = max(request.prompt_tokens + 1, longest)
        if peak >= rank.usable_blocks:
            return f"its peak of {peak} tokens of KV is not below the {rank.usable_blocks} of the pool"
        recomputed = longest if rank.role == "decode" else request.sequence_tokens
        return residents.refusal_by_budget(rank, recomputed)

    def _prefill(self, rank: RankView, decision: Decision, line: list[RequestView]) -> bool:
        """Whether prompts start with this iteration."""
        held = [_held_and_left(rank, request) for request in line]
        started = 0
        for request in rank.waiting:
            tokens = rank.most_tokens(request)
            has_room = tokens <= rank.budget_left and rank.lacking_blocks(request, tokens) <= rank.free_blocks
            if not has_room or rank.running_requests == rank.max_seqs:
                break
            left = 0 if rank.role == "prefill" else max(residents.tokens_to_come(request) - 2, 0)
            held.append((request.sequence_tokens + 1, left))
            if _peak(held) >= rank.usable_blocks:
                break
            decision.run(request, tokens)
            started += 1
        return started > 0


def _held_and_left(rank: RankView, request: RequestView) -> tuple[int, int]:
    """Tokens of a resident request, the last one sampled included, and those that it will still add."""
    left = 0 if rank.role == "prefill" else max(residents.tokens_to_come(request) - 1, 0)
    return request.sequence_tokens, left


def _peak(held: list[tuple[int, int]]) -> int:
    """The most KV that requests come to, if all decode together: at the end of each, with those that end later."""
    ordered = sorted(held, key=lambda each: -each[1])
    sums = accumulate(tokens for tokens, _ in ordered)
    return max(left * number + total for number, ((_, left), total) in enumerate(zip(ordered, sums, strict=True), 1))
