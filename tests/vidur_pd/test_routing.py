"""Routing policies on real schedulers, against a search through all candidates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vidur_pd.vllm_v1_steps import requests_of, scheduler_of
from vidur_pd.request import Request, RequestStatus
from vidur_pd.routing.router import Policy, Router, Span
from vidur_pd.scheduling import VllmV1Scheduler

PLACES = 4
SPANS: list[list[Span]] = [[(0, 4)], [(0, 1), (2, 4)], [(1, 2)], [(1, 3)]]
ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, PLACES - 1), st.integers(1, 36)),
    st.tuples(st.just("step"), st.integers(0, PLACES - 1), st.integers(1, 8)),
    st.tuples(st.just("clear"), st.integers(0, PLACES - 1), st.just(0)),
    st.tuples(st.just("toggle"), st.integers(0, PLACES - 1), st.just(0)),
    st.tuples(st.just("choose"), st.integers(0, len(SPANS) - 1), st.just(0)),
)


class Candidate:
    """Two ranks with few blocks, so that requests are preempted, and what is known of their requests from outside."""

    def __init__(self) -> None:
        self.ranks = [scheduler_of(12, budget=32, seqs=4), scheduler_of(12, budget=32, seqs=4)]
        self.requests: list[Request] = []
        self.is_open = True

    def add(self, prompt: int) -> None:
        request = Request(len(self.requests), f"r{len(self.requests)}", prompt, 9, 0)
        self.ranks[len(self.requests) % 2].add(request)
        self.requests.append(request)

    def step(self, steps: int) -> None:
        for rank in self.ranks:
            for _ in range(steps):
                batch = rank.schedule()
                if batch is not None:
                    rank.finish(batch)

    def clear(self) -> None:
        for rank in self.ranks:
            rank.clear()
        self.requests = []

    def load(self, policy: Policy) -> tuple[int, int]:
        live = [request for request in self.requests if request.status is not RequestStatus.COMPLETED]
        tokens = sum(
            request.prompt_tokens + request.generated_tokens - request.computed_tokens
            for request in live
            if request.computed_tokens < request.prompt_tokens
        )
        waiting = sum(request.status is RequestStatus.WAITING for request in live)
        return (tokens if policy == "least_tokens" else 0, 4 * waiting + len(live) - waiting)


class SearchingRouter:
    """The policies as one would write them down."""

    def __init__(self, policy: Policy, candidates: list[Candidate], random: np.random.Generator) -> None:
        self._policy, self._candidates, self._random = policy, candidates, random
        self._turn = 0

    def choose(self, spans: list[Span]) -> int | None:
        places = [place for first, last in spans for place in range(first, last) if self._candidates[place].is_open]
        if not places:
            return None
        if self._policy == "round_robin":
            while self._turn % PLACES not in places:
                self._turn += 1
            self._turn += 1
            return (self._turn - 1) % PLACES
        if self._policy == "random":
            return places[int(self._random.integers(len(places)))]
        return min(places, key=lambda place: self._candidates[place].load(self._policy))


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_requests", "least_tokens"])
@given(actions=st.lists(ACTIONS, max_size=60))
def test_a_router_chooses_as_a_search_through_all_candidates(
    policy: Policy, actions: list[tuple[str, int, int]]
) -> None:
    candidates = [Candidate() for _ in range(PLACES)]
    router = Router(policy, [candidate.ranks for candidate in candidates], np.random.default_rng(1))
    searching = SearchingRouter(policy, candidates, np.random.default_rng(1))
    for what, place, amount in [*actions, ("choose", 0, 0)]:
        match what:
            case "add":
                candidates[place].add(amount)
            case "step":
                candidates[place].step(amount)
            case "clear":
                candidates[place].clear()
            case "toggle":
                candidates[place].is_open ^= True
                router.set_open(place, candidates[place].is_open)
            case "choose":
                assert router.choose(SPANS[place]) == searching.choose(SPANS[place])


def test_requests_on_their_way_to_a_decode_rank_count_until_they_are_given_up() -> None:
    ranks = [scheduler_of(role="decode") for _ in range(2)]
    router = Router("least_requests", [[rank] for rank in ranks])
    first, second, third = requests_of((20, 4), (20, 4), (20, 4))
    ranks[0].add_remote(first)
    assert router.choose() == 1
    ranks[1].add_remote(second)
    ranks[1].add_remote(third)
    assert router.choose() == 0
    ranks[0].admit_remote()
    assert router.choose() == 0
    for request in (second, third):
        ranks[1].abandon_remote(request)
    assert router.choose() == 1


def test_a_preempted_request_counts_all_its_tokens_again() -> None:
    """Two prompts of 8 tokens fill 4 blocks of 4; the first decode preempts the second request, which has 9 tokens to
    compute again: more than the 8 of the other rank, and less than 16."""
    small, other = scheduler_of(4), scheduler_of()
    router = Router("least_tokens", [[small], [other]])
    first, second, third, fourth = requests_of((8, 4), (8, 4), (8, 4), (8, 4))
    small.add(first)
    small.add(second)
    for _ in range(2):
        batch = small.schedule()
        assert batch is not None
        small.finish(batch)
    assert (second.preemptions, second.computed_tokens, second.generated_tokens) == (1, 0, 1)
    other.add(third)
    assert router.choose() == 1
    other.add(fourth)
    assert router.choose() == 0


@pytest.mark.parametrize("candidates", [10, 1000])
def test_a_choice_reads_the_loads_that_have_changed_alone(candidates: int) -> None:
    """After all have been read once, each choice is followed by one request to the chosen, whose load is read again."""
    ranks: list[VllmV1Scheduler] = [scheduler_of() for _ in range(candidates)]
    router = Router("least_tokens", [[rank] for rank in ranks])
    choices = 8
    for request in requests_of(*[(10, 2)] * choices):
        place = router.choose()
        assert place is not None
        ranks[place].add(request)
    assert router.choose() is not None
    assert router.loads_read == candidates + choices
