"""Splitwise's machines (Patel et al., ISCA 2024): prompts whole and first, with the decodes that still fit.

Rules: ``SplitwiseInstance`` of its simulator, github.com/Mutinifni/splitwise-sim (8f99e7d), ``instance.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView

MOST_LEFT_OUT: Final = 4
"""Iterations after which a request goes first (``max_preemptions`` in ``configs/start_state/splitwise.yaml``)."""


class Splitwise(Policy):
    """An iteration takes up to ``engine.max_batched_tokens`` (2048 there) of ``engine.max_seqs`` (512) requests.

    Order: those that wait and that four iterations have left out; prompts; decodes that the iteration before has left
    out; its decodes, those that have joined it first; all others, by arrival. Who is left out keeps its KV. A category
    ends at the first request that lacks tokens or blocks. A prompt takes blocks for its tokens, a decode that begins
    those for all of its output, as there, so that none loses its KV later; where prompts have taken all blocks before,
    the latest gives its own up, as nothing would ever run again.

    On purpose otherwise than there: a prompt longer than the budget is computed in chunks, of what others leave of it,
    and requests that were left out four times go first whoever else waits (there only if all that wait were).
    """

    def __init__(self) -> None:
        self._left_out: dict[int, int] = {}
        """Iterations that have left out a request since it came, by index."""
        self._decoding: list[int] = []
        """Indices of the decodes of the last iteration, in the order in which they have joined."""
        self._blocked: list[int] = []
        """Indices of decodes that have begun and were left out since, in that order."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        chosen: dict[int, bool] = {}
        for line in (self._overdue, self._prompts, self._paused, self._current, self._others):
            for request in line(rank):
                if request.index in chosen:
                    continue
                decodes = not _is_prompt(request)
                if not self._take(rank, decision, request):
                    break
                chosen[request.index] = decodes
        is_at_rest = not rank.is_transferring and not any(each.is_in_iteration for each in rank.running)
        if not chosen and is_at_rest and _candidates(rank):
            chosen = self._make_room(rank, decision)
        self._note(rank, chosen)

    def is_steady(self, rank: RankView) -> bool:
        fits = rank.running_requests <= rank.max_batched_tokens
        begun = all(request.index in self._decoding for request in rank.running)
        return fits and begun and not rank.has_candidates

    # Lines, each in its order.

    def _overdue(self, rank: RankView) -> list[RequestView]:
        out = [each for each in _candidates(rank) if each.index not in self._decoding]
        return residents.by_arrival([each for each in out if self._left_out.get(each.index, 0) >= MOST_LEFT_OUT])

    def _prompts(self, rank: RankView) -> list[RequestView]:
        begun = [each for each in residents.idle(rank) if _is_prompt(each)]
        return [*begun, *rank.waiting]

    def _paused(self, rank: RankView) -> list[RequestView]:
        return _named(self._blocked, rank)

    def _current(self, rank: RankView) -> list[RequestView]:
        return _named(self._decoding, rank)

    def _others(self, rank: RankView) -> list[RequestView]:
        return residents.by_arrival(_candidates(rank))

    # Entries.

    def _take(self, rank: RankView, decision: Decision, request: RequestView) -> bool:
        """Runs a request, if there are tokens, a place and blocks for it."""
        rest, budget = rank.most_tokens(request), rank.budget_left
        is_split = rest > rank.max_batched_tokens or (request.is_running and _is_prompt(request))
        if not budget or (rest > budget and not is_split) or not residents.may_run(rank, request):
            return False
        held = _held_tokens(rank, request)
        to_come = held - request.sequence_tokens + rest - rank.most_drafts(request)
        if rank.lacking_blocks(request, to_come) > rank.free_blocks:
            return False
        decision.run(request, min(rest, budget), held_tokens=held)
        return True

    def _make_room(self, rank: RankView, decision: Decision) -> dict[int, bool]:
        """The latest requests give up their KV until the first one can run: its index, and whether it decodes."""
        line = residents.by_arrival(_candidates(rank))
        decodes = not _is_prompt(line[0])
        while len(line) > 1:
            latest = next((each for each in reversed(line) if each.is_running or each in rank.arrived), None)
            if latest is None or latest is line[0]:
                break
            decision.preempt(latest)
            if self._take(rank, decision, line[0]):
                return {line[0].index: decodes}
        return {}

    def _note(self, rank: RankView, chosen: dict[int, bool]) -> None:
        """Who was left out, and who decodes; ``chosen``: by index, whether it was a decode when it was chosen."""
        candidates = {each.index: each for each in _all(rank)}
        out = [index for index, each in candidates.items() if index not in chosen and not each.is_in_iteration]
        self._left_out = {index: self._left_out.get(index, 0) + (index in out) for index in candidates}
        decodes = [index for index in candidates if chosen.get(index)]
        began = [index for index in (*self._decoding, *self._blocked) if index in candidates]
        self._blocked = [index for index in (*self._blocked, *self._decoding) if index in began and index in out]
        stay = [index for index in self._decoding if index in candidates and index not in out]
        self._decoding = [*stay, *(index for index in decodes if index not in stay)]


def _all(rank: RankView) -> Iterator[RequestView]:
    yield from rank.running
    yield from rank.arrived
    yield from rank.waiting


def _candidates(rank: RankView) -> list[RequestView]:
    return [*residents.idle(rank), *rank.waiting]


def _named(indices: list[int], rank: RankView) -> list[RequestView]:
    """Those of the idle requests, in the order of the indices."""
    idle = {request.index: request for request in residents.idle(rank)}
    return [idle[index] for index in indices if index in idle]


def _is_prompt(request: RequestView) -> bool:
    """Other tokens than the last one generated have to be computed."""
    is_behind = request.sequence_tokens - request.computed_tokens > 1
    return is_behind or request.computed_tokens < request.prompt_tokens


def _held_tokens(rank: RankView, request: RequestView) -> int:
    """KV for which blocks are taken: a prompt's tokens, or all that a decode will ever have."""
    if _is_prompt(request) or rank.role == "prefill":
        return request.sequence_tokens
    return residents.longest_sequence(rank, request)
