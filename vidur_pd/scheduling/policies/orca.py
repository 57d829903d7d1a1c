"""Orca (Yu et al., OSDI 2022), as Vidur has it: batching by iteration, with room for the longest sequence reserved."""

from __future__ import annotations

from boundary.errors import InputError
from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


def check_reservation(rank: RankView, policy: str) -> None:
    """Raises: InputError, where not even one request of the longest kind has room."""
    blocks = rank.blocks(rank.max_model_len)
    if blocks > rank.usable_blocks:
        raise InputError(
            f"engine.max_model_len: found {rank.max_model_len} ({blocks} KV blocks), expected at most the "
            f"{rank.usable_blocks} blocks of the pool: {policy} reserves them for every request"
        )


def has_room(rank: RankView, request: RequestView, kept: int = 0) -> bool:
    """The blocks that a request which does not run yet lacks for the longest sequence are free.

    ``kept``: reservations of requests that have ended.
    """
    past = request.computed_tokens or rank.cached_tokens(request)
    needed = rank.lacking_blocks(request, rank.max_model_len - past) + kept * rank.blocks(rank.max_model_len)
    return needed <= rank.free_blocks


def line(rank: RankView, decision: Decision) -> list[RequestView]:
    """Those that may start, in order: with their KV here, then those that wait.

    Where nothing runs and requests whose KV has come hold the blocks that each of them needs, the last gives up its KV.
    """
    while rank.arrived and not rank.running_requests and not rank.is_transferring:
        if has_room(rank, rank.arrived[0]):
            break
        decision.preempt(rank.arrived[-1])
    return [*rank.arrived, *rank.waiting]


class Orca(Policy):
    """Resident requests compute a token each, in the order in which they came out of their last iteration; prompts join
    them whole, as long as blocks for ``engine.max_model_len`` are free, which nobody else gets until the end."""

    has_token_budget = False

    def __init__(self) -> None:
        self._turns = 0
        self._last_turn: dict[int, int] = {}
        """Of resident requests, by index."""

    def begin(self, rank: RankView) -> None:
        check_reservation(rank, "orca")

    def decide(self, rank: RankView, decision: Decision) -> None:
        running = [request for request in rank.running if not request.is_in_iteration]
        running.sort(key=lambda request: self._last_turn.get(request.index, 0))
        batch = running[: residents.micro_batch(rank)]
        for request in batch:
            decision.run(request, rank.most_tokens(request))
        for request in line(rank, decision):
            is_full = len(batch) == residents.micro_batch(rank) or rank.running_requests == rank.max_seqs
            if is_full or not has_room(rank, request):
                break
            decision.run(request, rank.most_tokens(request), held_tokens=rank.max_model_len)
            batch.append(request)
        self._turns += 1
        kept = {request.index: self._last_turn.get(request.index, 0) for request in rank.running}
        self._last_turn = kept | dict.fromkeys((request.index for request in batch), self._turns)

    def is_steady(self, rank: RankView) -> bool:
        candidates = [*rank.arrived, *rank.waiting]
        return not candidates or rank.running_requests == rank.max_seqs or not has_room(rank, candidates[0])
