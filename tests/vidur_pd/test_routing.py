"""Routing policies on real schedulers, against a search through all candidates."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.small_runs import config, pool, requests, simulate
from tests.vidur_pd.one_rank import OneRank
from tests.vidur_pd.vllm_v1_steps import requests_of, scheduler_of
from vidur_pd.cluster.routing.router import BuiltInRouter, Span
from vidur_pd.config import RankPolicy, RoutingPolicy
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload.request import Request

PLACES = 4
ANY = Request(99, "any", 1, 1, 0)
"""Routers of the core do not look at the request."""
SPANS: list[list[Span]] = [[(0, 4)], [(0, 1), (2, 4)], [(1, 2)], [(1, 3)]]
ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, PLACES - 1), st.integers(1, 36)),
    st.tuples(st.just("step"), st.integers(0, PLACES - 1), st.integers(1, 8)),
    st.tuples(st.just("clear"), st.integers(0, PLACES - 1), st.just(0)),
    st.tuples(st.just("toggle"), st.integers(0, PLACES - 1), st.just(0)),
    st.tuples(st.just("choose"), st.integers(0, len(SPANS) - 1), st.just(0)),
)


class Candidate:
    """Two ranks with few blocks, so that requests are preempted."""

    def __init__(self) -> None:
        self.ranks = [scheduler_of(12, budget=32, seqs=4), scheduler_of(12, budget=32, seqs=4)]
        self.requests = 0
        self.is_open = True

    def add(self, prompt: int) -> None:
        self.ranks[self.requests % 2].add(Request(self.requests, f"r{self.requests}", prompt, 9, 0))
        self.requests += 1

    def step(self, steps: int) -> None:
        for rank in self.ranks:
            for _ in range(steps):
                batch = rank.schedule()
                if batch is not None:
                    rank.finish(batch)

    def clear(self) -> None:
        for rank in self.ranks:
            rank.clear()

    def load(self, policy: RoutingPolicy) -> tuple[int, int]:
        """As it is now (`test_vllm_v1_reference` says what it is)."""
        tokens = sum(rank.load_tokens for rank in self.ranks)
        requests = sum(4 * rank.waiting_requests + rank.running_requests for rank in self.ranks)
        return (tokens if policy == "least_tokens" else 0, requests)


class SearchingRouter:
    """The policies as one would write them down."""

    def __init__(self, policy: RoutingPolicy, candidates: list[Candidate], random: np.random.Generator) -> None:
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
    policy: RoutingPolicy, actions: list[tuple[str, int, int]]
) -> None:
    candidates = [Candidate() for _ in range(PLACES)]
    router = BuiltInRouter(policy, [candidate.ranks for candidate in candidates], np.random.default_rng(1))
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
                assert router.choose(ANY, SPANS[place]) == searching.choose(SPANS[place])


def test_requests_on_their_way_to_a_decode_rank_count_until_they_are_given_up() -> None:
    ranks = [scheduler_of(role="decode") for _ in range(2)]
    router = BuiltInRouter("least_requests", [[rank] for rank in ranks])
    first, second, third = requests_of((20, 4), (20, 4), (20, 4))
    ranks[0].add_remote(first)
    assert router.choose(ANY) == 1
    ranks[1].add_remote(second)
    ranks[1].add_remote(third)
    assert router.choose(ANY) == 0
    ranks[0].admit_remote()
    assert router.choose(ANY) == 0
    for request in (second, third):
        ranks[1].abandon_remote(request)
    assert router.choose(ANY) == 1


def test_a_preempted_request_counts_all_its_tokens_again() -> None:
    """Two prompts of 8 tokens fill 4 blocks of 4; the first decode preempts the second request, which has 9 tokens to
    compute again: 9 + 16 of context are more than the 8 + 8 of the other rank, and less than 16 + 16."""
    small, other = scheduler_of(4), scheduler_of()
    router = BuiltInRouter("least_tokens", [[small], [other]])
    first, second, third, fourth = requests_of((8, 4), (8, 4), (8, 4), (8, 4))
    small.add(first)
    small.add(second)
    for _ in range(2):
        batch = small.schedule()
        assert batch is not None
        small.finish(batch)
    assert (second.preemptions, second.computed_tokens, second.generated_tokens) == (1, 0, 1)
    other.add(third)
    assert router.choose(ANY) == 1
    other.add(fourth)
    assert router.choose(ANY) == 0


@pytest.mark.parametrize("candidates", [10, 1000])
def test_a_choice_reads_the_loads_that_have_changed_alone(candidates: int) -> None:
    """After all have been read once, each choice is followed by one request to the chosen, whose load is read again."""
    ranks: list[OneRank] = [scheduler_of() for _ in range(candidates)]
    router = BuiltInRouter("least_tokens", [[rank] for rank in ranks])
    choices = 8
    for request in requests_of(*[(10, 2)] * choices):
        place = router.choose(ANY)
        assert place is not None
        ranks[place].add(request)
    assert router.choose(ANY) is not None
    assert router.loads_read == candidates + choices


def test_a_chunk_in_flight_is_work_until_it_ends() -> None:
    """140 prompt tokens in chunks of 100: 140 to compute in the first step, 40 in the second, none after it."""
    one = scheduler_of(role="prefill")
    one.add(requests_of((140, 2))[0])
    found = []
    for _ in range(2):
        batch = one.schedule()
        assert batch is not None
        found.append(one.load_tokens)
        one.finish(batch)
    assert [*found, one.load_tokens] == [140, 40, 0]


def test_the_context_of_requests_is_load_where_decodes_run() -> None:
    """From the assignment on, in transfer and running, until the end or until it is given up."""
    one = scheduler_of(role="decode")
    moved, lost = requests_of((300, 2), (80, 2))
    one.add_remote(moved)
    one.add_remote(lost)
    assert one.load_tokens == 380
    one.abandon_remote(lost)
    assert one.admit_remote() == [moved]
    one.remote_arrived(moved, 300)
    assert one.load_tokens == 300
    batch = one.schedule()
    assert batch is not None
    assert one.load_tokens == 300
    assert one.finish(batch).finished == [moved]
    assert one.load_tokens == 0


LONG_AND_SHORT = [(60_000 * i, 6_000 if i % 2 == 0 else 60, 3) for i in range(24)]
"""A long prompt (150 ms) every 120 ms, and a short one: instances in turns give one of them all the long ones."""


def ttft_s(pools: list[dict[str, Any]], **routing: Any) -> list[float]:
    result = simulate(config(pools, routing=routing), LONG_AND_SHORT)
    return [(each.first_token_ps - each.arrived_ps) / 1e12 for each in result.requests]


def test_the_default_spreads_prompts_by_their_tokens() -> None:
    pools = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]
    by_tokens, in_turns = ttft_s(pools), ttft_s(pools, policy="round_robin")
    assert sum(by_tokens) < 0.75 * sum(in_turns)
    assert by_tokens == ttft_s(pools, policy="least_tokens", decode_policy="least_tokens")


@pytest.mark.parametrize(
    ("pools", "usual", "other"),
    [
        ([pool("p", "prefill", dp=2, ep=2), pool("d", "decode")], "least_tokens", "least_requests"),
        ([pool("m", "mixed", dp=2, ep=2)], "least_requests", "least_tokens"),
        ([pool("p", "prefill"), pool("d", "decode", dp=2, ep=2)], "least_requests", "round_robin"),
    ],
)
def test_ranks_that_prefill_are_chosen_by_tokens_and_others_by_requests(
    pools: list[dict[str, Any]], usual: RankPolicy, other: RankPolicy
) -> None:
    rows = [(9_000 * i, 6_000 if i % 3 == 0 else 60, 2 + 7 * i % 20) for i in range(24)]

    def ends(**routing: Any) -> list[int]:
        result = simulate(config(pools, model="qwen3-30b-a3b", routing=routing), rows)
        return [each.completed_ps for each in result.requests]

    assert ends() == ends(rank_policy=usual) != ends(rank_policy=other)


def test_decode_instances_have_a_policy_of_their_own() -> None:
    """One prefill instance; prompts are sent one after the other."""
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    rows = [(1_000_000 * i, 6_000 if i % 2 == 0 else 60, 4) for i in range(6)]
    in_turns = simulate(config(pools, routing={"decode_policy": "round_robin"}), rows).requests
    assert [each.decode_instance for each in in_turns] == ["d-0", "d-1"] * 3
    by_load = simulate(config(pools), rows).requests
    assert {each.decode_instance for each in by_load} == {"d-0"}  # idle both, each time


@pytest.mark.parametrize("mode", ["pull", "push", "layerwise"])
def test_no_load_is_left_when_all_requests_have_ended(mode: str) -> None:
    """Where the decode instance is chosen before the prefill, a request counts on two ranks at a time."""
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    state = assemble(plan_simulation(config(pools, kv_transfer={"mode": mode})))
    with closing(state.network):
        result = Simulation(state, requests([(1_000 * i, 300 + 7 * i, 1 + i % 9) for i in range(30)])).run()
    assert result.summary.completed == 30
    assert [rank.state.load_tokens for instance in state.instances for rank in instance.ranks] == [0, 0, 0]
