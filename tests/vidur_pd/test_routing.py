"""Which instance and rank gets the next request."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.integration.small_runs import config, pool, simulate
from vidur_pd._core import Loop
from vidur_pd.config import RoutingPolicy
from vidur_pd.kv import CountingBlockPool
from vidur_pd.request import Request
from vidur_pd.routing import Router
from vidur_pd.scheduling import VllmV1Scheduler


def scheduler(role: str = "prefill") -> VllmV1Scheduler:
    return VllmV1Scheduler(
        CountingBlockPool(1000, 16),
        role=role,  # type: ignore[arg-type]
        max_batched_tokens=512,
        max_seqs=8,
        max_model_len=8192,
    )


def loop_of(ranks: list[list[VllmV1Scheduler]]) -> Loop:
    loop = Loop(len(ranks), False, 0, 1)
    traits = {"has_runs": False, "has_drafts": False, "tells_launches": False, "launches_itself": True}
    for each in ranks:
        loop.add_instance(each, 1, **traits, pricing=[])
    return loop


def request(index: int, prompt: int) -> Request:
    return Request(index, f"r{index}", prompt, 4, 0, None)


def router(policy: RoutingPolicy, candidates: list[int], loop: Loop) -> Router:
    return Router(policy, candidates, np.random.default_rng(0), loop.least_loaded)


def test_a_chunk_in_flight_is_work_until_it_ends() -> None:
    """700 prompt tokens in chunks of 512: 700 to compute in the first step, 188 after it, none after the second."""
    one = scheduler()
    one.add(request(0, 700))
    found = []
    for _ in range(2):
        batch = one.schedule()
        assert batch is not None
        found.append(one.load)
        one.finish(batch)
    assert [*found, one.load] == [(1, 700), (1, 188), (0, 0)]


def test_the_context_of_requests_is_load_where_decodes_run() -> None:
    """From the assignment on: waiting (4), in transfer (4), then running (1); 300 tokens all the time."""
    one = scheduler("decode")
    moved = request(0, 300)
    one.add_remote(moved)
    loads = [one.load]
    assert one.admit_remote() == [moved]
    loads.append(one.load)
    one.remote_arrived(moved, 300)
    batch = one.schedule()
    assert batch is not None
    loads.append(one.load)
    assert loads == [(4, 300), (4, 300), (1, 300)]
    one.finish(batch)
    one.clear()
    assert one.load == (0, 0)


def test_an_abandoned_transfer_leaves_nothing() -> None:
    one = scheduler("decode")
    moved = request(0, 300)
    one.add_remote(moved)
    one.abandon_remote(moved)
    assert one.load == (0, 0)


def test_the_least_loaded_instance_is_chosen_and_equal_ones_take_turns() -> None:
    """Instances 0 to 3; 1 has a prompt of 100 tokens, 2 two of 40: by tokens 2 has less to do, by requests 1."""
    ranks = [[scheduler()] for _ in range(4)]
    loop = loop_of(ranks)
    ranks[1][0].add(request(0, 100))
    for index in (1, 2):
        ranks[2][0].add(request(index, 40))
    by_tokens, by_requests = (router(policy, [0, 1, 2, 3], loop) for policy in ("least_tokens", "least_requests"))
    assert [by_tokens.choose() for _ in range(4)] == [0, 3, 0, 3]
    assert (by_tokens.choose([1, 2]), by_requests.choose([1, 2])) == (2, 1)
    ranks[0][0].add(request(3, 8))
    assert by_tokens.choose() == 3


def test_the_load_of_an_instance_is_that_of_its_ranks() -> None:
    """Ranks with 10 + 60 tokens against 40 + 20: the second instance has less, the first has the idlest rank."""
    ranks = [[scheduler(), scheduler()], [scheduler(), scheduler()]]
    loop = loop_of(ranks)
    for index, (instance, rank, prompt) in enumerate([(0, 0, 10), (0, 1, 60), (1, 0, 40), (1, 1, 20)]):
        ranks[instance][rank].add(request(index, prompt))
    assert router("least_tokens", [0, 1], loop).choose() == 1
    assert [loop.least_loaded_rank(instance, True, -1) for instance in (0, 1)] == [0, 1]
    ranks[0][1].clear()
    assert router("least_tokens", [0, 1], loop).choose() == 0


def test_round_robin_goes_on_after_the_last_choice() -> None:
    chosen = router("round_robin", [2, 5, 7], loop_of([]))
    assert [chosen.choose() for _ in range(4)] == [2, 5, 7, 2]
    assert [chosen.choose([2, 7]), chosen.choose(), chosen.choose([5])] == [7, 2, 5]


def test_random_draws_from_its_own_stream() -> None:
    chosen = router("random", [3, 4], loop_of([]))
    counts = Counter(chosen.choose() for _ in range(400))
    assert set(counts) == {3, 4}
    assert min(counts.values()) > 150


LONG_AND_SHORT = [(60_000 * i, 6_000 if i % 2 == 0 else 60, 3) for i in range(24)]
"""A long prompt (150 ms) every 120 ms, and a short one: instances in turns give one of them all the long ones."""


def ttft_s(**routing: Any) -> NDArray[np.float64]:
    pools = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]
    result = simulate(config(pools, routing=routing), LONG_AND_SHORT)
    return np.array([(each.first_token_ps - each.arrived_ps) / 1e12 for each in result.requests])


def test_the_default_spreads_prompts_by_their_tokens() -> None:
    assert ttft_s().mean() < 0.75 * ttft_s(policy="round_robin").mean()
    assert np.array_equal(ttft_s(), ttft_s(policy="least_tokens"))


def test_decode_instances_have_a_policy_of_their_own() -> None:
    """All prompts of one instance, each sent at its own instant: in turns, whatever the prompts."""
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    requests = [(400 * i, 6_000 if i % 2 == 0 else 60, 40) for i in range(8)]
    by_turns = simulate(config(pools, routing={"decode_policy": "round_robin"}), requests).requests
    assert [each.decode_instance for each in by_turns] == ["d-0", "d-1"] * 4
    by_load = simulate(config(pools), requests).requests
    assert {each.decode_instance for each in by_load} == {"d-0", "d-1"}


@pytest.mark.parametrize("field", ["policy", "decode_policy", "rank_policy"])
def test_an_unknown_policy_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="least_tokens"):
        config([pool("m", "mixed")], routing={field: "best"})
