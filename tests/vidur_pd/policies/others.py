"""Policies of other engines, as far as the conformance suite needs them to see that the door is wide enough."""

from __future__ import annotations

from vidur_pd.scheduling import Decision, Policy, RankView, RequestView, VllmV1


class PassThrough(Policy):
    """Asks the core's vLLM V1."""

    def __init__(self) -> None:
        self._core = VllmV1()

    def decide(self, rank: RankView, decision: Decision) -> None:
        self._core.decide(rank, decision)

    def is_steady(self, rank: RankView) -> bool:
        return self._core.is_steady(rank)


def idle(rank: RankView) -> list[RequestView]:
    return [request for request in rank.running if not request.is_in_iteration]


def fits(rank: RankView, request: RequestView) -> bool:
    return rank.lacking_blocks(request, rank.most_tokens(request)) <= rank.free_blocks


def go_on(rank: RankView, decision: Decision) -> None:
    """Every running request computes what it can; the last ones give way for blocks."""
    for request in idle(rank):
        while request.is_running and (tokens := min(rank.most_tokens(request), rank.budget_left)):
            if rank.lacking_blocks(request, tokens) <= rank.free_blocks:
                decision.run(request, tokens)
                break
            decision.preempt(idle(rank)[-1])


def begin(rank: RankView, decision: Decision, request: RequestView) -> bool:
    if not rank.budget_left or rank.running_requests == rank.max_seqs or not fits(rank, request):
        return False
    decision.run(request, min(rank.most_tokens(request), rank.budget_left))
    return True


def begin_in_line(rank: RankView, decision: Decision) -> None:
    """First come, first served, as long as the next one fits."""
    for request in rank.arrived + rank.waiting:
        if not begin(rank, decision, request):
            break
    if rank.arrived and not rank.running and not rank.is_transferring:
        decision.preempt(rank.arrived[-1])
        begin_in_line(rank, decision)


class StaticBatches(Policy):
    """FasterTransformer: a batch is formed when all requests of the one before have ended."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        if rank.running:
            go_on(rank, decision)
        else:
            begin_in_line(rank, decision)


class PrefillFirst(Policy):
    """vLLM before V1, SGLang: prompts go before decodes, which wait."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in idle(rank):
            rest = min(rank.most_tokens(request), rank.budget_left)
            is_prefill = request.computed_tokens < request.prompt_tokens
            if is_prefill and rest and rank.lacking_blocks(request, rest) <= rank.free_blocks:
                decision.run(request, rest)
        before = rank.budget_left
        begin_in_line(rank, decision)
        if rank.budget_left == before == rank.max_batched_tokens:
            go_on(rank, decision)


class RetractsTheShortest(Policy):
    """SGLang's victims: those with the fewest output tokens lose their KV, also where they are in the step already."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in idle(rank):
            while request.is_running and (tokens := min(rank.most_tokens(request), rank.budget_left)):
                if rank.lacking_blocks(request, tokens) <= rank.free_blocks:
                    decision.run(request, tokens)
                    break
                decision.preempt(min(idle(rank), key=lambda other: (other.generated_tokens, -other.index)))
        begin_in_line(rank, decision)
