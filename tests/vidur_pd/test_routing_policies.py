"""Routing policies against literal readings of their rules, and by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.integration.small_runs import config, pool, requests, simulate
from vidur_pd.cluster.routing import Candidate, Routing, RoutingContext
from vidur_pd.cluster.routing.late_view import LateView
from vidur_pd.cluster.routing.prefix_index import PrefixIndex
from vidur_pd.cluster.routing.router import routing_class
from vidur_pd.config import NAMED_ROUTING, Role
from vidur_pd.metrics.result import Result
from vidur_pd.scheduling import RequestView
from vidur_pd.simulation import api
from vidur_pd.workload.request import Request
from vidur_pd.workload.workload import BlockHashes

BLOCK = 512
CLOCK = {"now": 0}


class Stated(Candidate):
    """A candidate with the loads that the test states."""

    waiting_requests = running_requests = load_tokens = prefill_tokens = used_blocks = usable_blocks = 0

    def __init__(
        self,
        place: int,
        role: Role = "mixed",
        *,
        cached: int = 0,
        tiers: Mapping[str, int] | None = None,
        transfer: float = 0.0,
        **loads: int,
    ) -> None:
        super().__init__(f"i-{place}", place, [], role=role, block_tokens=16, transfer_s=lambda _: transfer)
        vars(self).update({"usable_blocks": 1000} | loads)
        self._cached, self._in_tiers = cached, tiers or {}

    def tier_tokens(self, request: RequestView) -> Mapping[str, int]:
        del request
        return self._in_tiers

    def cached_tokens(self, request: RequestView) -> int:
        del request
        return self._cached


def policy_of(name: str, seed: int = 0, **options: float) -> Routing:
    made = routing_class("routing.policy", name)
    assert made is not None
    policy = made()
    policy.options = made.Options.model_validate(options)
    policy.context = RoutingContext(
        np.random.default_rng(seed), lambda: CLOCK["now"], BLOCK, lambda request: request.index // 100
    )
    return policy


def request_of(prompt: int = 2048, blocks: Sequence[int] | None = None, index: int = 0) -> Request:
    return Request(index, f"r{index}", prompt, 10, 0, blocks)


# KV-aware.


def dynamo_cost(
    role: str, to_compute: int, prompt: int, cached: int, context: int, requests: int, o: dict[str, float]
) -> float:
    """Dynamo's cost as its documents have it, in blocks of 16."""
    potential_prefill = max(0.0, (to_compute + prompt) / 16 - o["overlap_weight"] * cached / 16)
    potential_decode = (context + prompt) / 16
    parts = {"prefill": o["prefill_weight"] * potential_prefill, "decode": potential_decode}
    cost = sum(parts.values()) if role == "mixed" else parts[role]
    return cost + o["requests_weight"] * requests


LOADS = st.tuples(*[st.integers(0, 200_000)] * 2, st.integers(0, 4096), st.integers(0, 50), st.integers(0, 50))


@given(
    st.sampled_from(["prefill", "decode", "mixed"]),
    st.lists(LOADS, min_size=1, max_size=6),
    st.integers(1, 8192),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 3.0]),
)
def test_kv_aware_takes_the_lowest_of_dynamos_costs(
    role: Role, loads: list[tuple[int, ...]], prompt: int, overlap: float, per_request: float
) -> None:
    options = {"overlap_weight": overlap, "prefill_weight": 1.5, "requests_weight": per_request}
    candidates = [
        Stated(
            place,
            role,
            cached=cached,
            prefill_tokens=work,
            load_tokens=work + context,
            waiting_requests=waiting,
            running_requests=running,
        )
        for place, (work, context, cached, waiting, running) in enumerate(loads)
    ]
    costs = [
        dynamo_cost(role, work, prompt, cached, context, waiting + running, options)
        for work, context, cached, waiting, running in loads
    ]
    chosen = policy_of("kv_aware", 0, **options).choose(request_of(prompt), candidates)
    assert costs[chosen.place] == pytest.approx(min(costs), rel=1e-12)


def test_kv_aware_by_hand() -> None:
    """1,600 tokens are 100 blocks. On 0 nothing waits and nothing is cached: 100. On 1 there are 800 tokens to compute
    and 1,120 of the prompt cached: 150 - 70 = 80. With half the weight of what is cached it is 115."""
    candidates = [Stated(0, "prefill"), Stated(1, "prefill", prefill_tokens=800, cached=1120)]
    assert policy_of("kv_aware").choose(request_of(1600), candidates).place == 1
    assert policy_of("kv_aware", overlap_weight=0.5).choose(request_of(1600), candidates).place == 0


def test_kv_aware_by_hand_with_tiers() -> None:
    """1,600 tokens are 100 blocks. On 0 80 are in CPU memory: 100 - 0.75 · 80 = 40. On 1 as many are on disks, 80, on 2
    64 of them are cached, 36. A store that all have counts for all. Without weights tiers do not count."""
    tiers: list[dict[str, int]] = [{"cpu": 1280}, {"nvme": 1280}, {}]
    candidates = [Stated(place, "prefill", tiers=each, cached=1024 * (place == 2)) for place, each in enumerate(tiers)]
    weights = {"host_weight": 0.75, "disk_weight": 0.25}
    for offered, best, options in [
        (candidates, 2, weights),
        (candidates[:2], 0, weights),
        (candidates[1:2], 1, weights),
        (candidates, 0, weights | {"host_weight": 1.0}),
        (candidates, 2, {}),
        ([*candidates[:2], Stated(3, tiers={"pooled": 1584}, role="prefill")], 3, weights | {"shared_weight": 1.0}),
    ]:
        assert policy_of("kv_aware", **options).choose(request_of(1600), offered).place == best


def test_temperature_draws_by_a_softmax_of_costs() -> None:
    """Costs 100, 150 and 200 are 0, 1/2 and 1: with temperature 1 the weights are 1, e^-0.5 and e^-1."""
    candidates = [Stated(place, "prefill", prefill_tokens=800 * place) for place in range(3)]
    policy = policy_of("kv_aware", seed=1, temperature=1.0)
    chosen = np.bincount([policy.choose(request_of(1600), candidates).place for _ in range(6000)], minlength=3) / 6000
    weights = np.exp([0.0, -0.5, -1.0])
    assert chosen == pytest.approx(weights / weights.sum(), abs=0.02)


def test_equal_costs_are_drawn() -> None:
    policy, candidates = policy_of("kv_aware"), [Stated(place, "prefill") for place in range(4)]
    assert {policy.choose(request_of(), candidates).place for _ in range(100)} == {0, 1, 2, 3}


# Prefix affinity.


class LiteralSglang:
    """The router of SGLang, its tree as sets of prefixes."""

    def __init__(self, workers: int) -> None:
        self.seen: list[set[tuple[int, ...]]] = [set() for _ in range(workers)]

    def choose(self, prompt: int, blocks: list[int], loads: list[int]) -> int:
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            chosen = loads.index(min(loads))
        else:
            rates = [self.rate(seen, prompt, blocks) for seen in self.seen]
            if max(rates) > 0.3:
                chosen = rates.index(max(rates))
            else:
                sizes = [len(seen) for seen in self.seen]
                chosen = sizes.index(min(sizes))
        self.seen[chosen] |= {tuple(blocks[: end + 1]) for end in range(len(blocks))}
        return chosen

    def rate(self, seen: set[tuple[int, ...]], prompt: int, blocks: list[int]) -> float:
        matched = 0
        while matched < len(blocks) and tuple(blocks[: matched + 1]) in seen:
            matched += 1
        return matched * BLOCK / prompt


PROMPTS = st.lists(
    st.tuples(
        st.integers(1, 4), st.integers(0, 3), st.integers(0, 511), st.lists(st.integers(0, 150), min_size=3, max_size=3)
    ),
    max_size=25,
)


@given(PROMPTS)
def test_prefix_affinity_is_that_of_a_literal_reading(prompts: list[tuple[int, int, int, list[int]]]) -> None:
    """Ids name a block with all before it, so those of different prefixes differ."""
    policy, literal = policy_of("prefix_affine"), LiteralSglang(3)
    for index, (whole, family, rest, loads) in enumerate(prompts):
        blocks = [1000 * family + place for place in range(whole)]
        candidates = [Stated(place, running_requests=load) for place, load in enumerate(loads)]
        request = request_of(whole * BLOCK + rest, [*blocks, 10**6 + index], index)
        expected = literal.choose(request.prompt_tokens, blocks, loads)
        assert policy.choose(request, candidates).place == expected


def test_prefix_affinity_by_hand() -> None:
    """The first prompt goes where least is known, the first; the second, unknown, to the second; the third shares two
    of three blocks with the first, more than 0.3. With 100 requests more there it goes to the least loaded."""
    policy, idle = policy_of("prefix_affine"), [Stated(0), Stated(1)]
    assert policy.choose(request_of(1536, [1, 2, 3]), idle).place == 0
    assert policy.choose(request_of(1536, [7, 8, 9]), idle).place == 1
    assert policy.choose(request_of(1536, [1, 2, 4]), idle).place == 0
    assert policy.choose(request_of(1536, [1, 2, 5]), [Stated(0, running_requests=100), Stated(1)]).place == 1


@given(st.lists(st.lists(st.integers(0, 30), max_size=6, unique=True), max_size=20), st.integers(1, 12))
def test_an_index_keeps_what_was_used_last_and_of_a_prompt_its_beginning(prompts: list[list[int]], most: int) -> None:
    index = PrefixIndex(most)
    recent: list[int] = []
    for blocks in prompts:
        index.add(blocks, 0)
        for block in reversed(blocks):
            recent = [other for other in recent if other != block] + [block]
        recent = recent[-most:]
        assert len(index) == len(recent)
        matched = index.matched(blocks, 0)
        assert matched == next((n for n, block in enumerate(blocks) if block not in recent), len(blocks))


# The others.


def test_turns_of_a_session_stay_where_the_first_was_while_that_is_offered() -> None:
    policy, both = policy_of("session"), [Stated(0, load_tokens=5), Stated(1)]
    assert policy.choose(request_of(index=100), both).place == 1
    busy = [Stated(0), Stated(1, load_tokens=10**6)]
    assert policy.choose(request_of(index=101), busy).place == 1
    assert policy.choose(request_of(index=200), busy).place == 0
    assert policy.choose(request_of(index=102), [busy[0]]).place == 0
    assert policy.choose(request_of(index=103), busy).place == 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 1000))
def test_power_of_two_never_takes_the_most_loaded_of_three_or_more(loads: list[int], seed: int) -> None:
    candidates = [Stated(place, waiting_requests=load) for place, load in enumerate(loads)]
    chosen = policy_of("power_of_two", seed).choose(request_of(), candidates)
    if len(set(loads)) == len(loads) > 1:
        assert loads[chosen.place] < max(loads)


def test_free_memory_counts_requests_on_their_way() -> None:
    policy = policy_of("free_memory")
    assert policy.choose(request_of(), [Stated(0, used_blocks=10), Stated(1, used_blocks=9)]).place == 1
    assert policy.choose(request_of(), [Stated(0, load_tokens=9), Stated(1, load_tokens=8)]).place == 1


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 1000)), min_size=1, max_size=6), st.integers(1, 16_000))
def test_network_aware_weighs_transfer_room_and_load(states: list[tuple[float, int]], prompt: int) -> None:
    candidates = [Stated(place, "decode", transfer=t, used_blocks=used) for place, (t, used) in enumerate(states)]
    chosen = policy_of("network_aware").choose(request_of(prompt), candidates)
    needed = math.ceil(prompt / 16)
    costs = [t + 0.05 * (used + needed) / 1000 + (1.0 if used + needed > 1000 else 0.0) for t, used in states]
    assert costs[chosen.place] == pytest.approx(min(costs))


# In a cluster.

ROOFLINE = {"estimator": "roofline", "request_latency_ms": 0}


def repeated(
    routing: dict[str, Any], gap_us: int = 400_000, pools: list[dict[str, Any]] | None = None, **sections: Any
) -> Result:
    """Four prompts of 2,048 tokens by turns, three times each."""
    contents = [[100 * (i % 4) + block for block in range(4)] for i in range(12)]
    hashes = BlockHashes(np.arange(13) * 4, np.array(contents).ravel(), BLOCK)
    workload = replace(requests([(gap_us * i, 2048, 4) for i in range(12)]), block_hashes=hashes)
    engine = ROOFLINE | {"prefix_caching": True}
    instances = pools or [pool("m", "mixed", instances=3)]
    return api.simulate(config(instances, engine=engine, routing=routing, **sections), workload)


def hits(result: Result) -> int:
    return sum(record.cached_tokens for record in result.requests)


@pytest.mark.parametrize("policy", ["kv_aware", "prefix_affine"])
def test_prompts_go_where_they_are_cached(policy: str) -> None:
    """By turns over three instances none of four prompts comes back to where it was; known prompts hit 2,032 tokens."""
    assert hits(repeated({"policy": policy})) == 8 * 2032
    assert hits(repeated({"policy": "round_robin"})) == 0


def test_what_a_router_hears_of_too_late_it_cannot_use() -> None:
    """A prompt comes again after 1.6 s. Known after 1 s all come back; after 1.7 s those of the second round do not,
    but those of the third, of which the first round is known, may."""
    known = hits(repeated({"policy": "kv_aware"}))
    assert hits(repeated({"policy": "kv_aware", "index_delay_s": 1.0})) == known
    assert hits(repeated({"policy": "kv_aware", "index_delay_s": 1.7})) < known


def test_a_late_router_sends_what_comes_at_once_to_one_instance() -> None:
    """Eight requests within 8 ms on four idle instances: the router hears of none of them for a second."""
    rows = [(1000 * i, 2048, 4) for i in range(8)]
    pools = [pool("m", "mixed", instances=4)]

    def used(routing: dict[str, Any]) -> set[str]:
        result = simulate(config(pools, engine=ROOFLINE, routing=routing), rows)
        return {record.prefill_instance for record in result.requests}

    assert len(used({"policy": "least_tokens"})) == 4
    assert len(used({"policy": "least_tokens", "index_delay_s": 1.0})) == 1
    assert len(used({"policy": "round_robin", "index_delay_s": 1.0})) == 4


def test_a_late_view_is_the_loads_at_the_last_decision_before_the_delay() -> None:
    now = {"ps": 0}
    live = Stated(0)
    view = LateView([live], 100, lambda: now["ps"], BLOCK)
    known = []
    for at_ps, load in ((0, 5), (60, 7), (110, 9), (170, 11), (400, 13)):
        now["ps"] = at_ps
        vars(live)["load_tokens"] = load
        view.before_choice()
        known.append(view.candidates[0].load_tokens)
    assert known == [0, 0, 5, 7, 11]


PD = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]


def test_short_and_cached_prompts_are_prefilled_where_they_decode() -> None:
    """100 tokens stay, 1,000 do not."""
    rows = [(0, 100, 3), (400_000, 1000, 3)]
    tree = config(PD, engine=ROOFLINE, routing={"disaggregate": {"min_prompt_tokens": 500, "min_new_share": 2}})
    short, long = simulate(tree, rows).requests
    assert short.prefill_instance == short.decode_instance == "d-0"
    assert short.kv_bytes is None
    assert long.prefill_instance == "p-0"
    assert long.kv_bytes
    cached = repeated({"disaggregate": {"min_prompt_tokens": 500}}, pools=[pool("p", "prefill"), pool("d", "decode")])
    first, *_, last = cached.requests
    assert first.kv_bytes
    assert last.kv_bytes is None
    assert last.cached_tokens == 2032


def test_a_decode_instance_with_free_links_is_preferred() -> None:
    """Two nodes of two GPUs, 10 Gbit/s between: the prefill instance shares its node with one decode instance, which
    gets all KV, as others are half a second of transfer away."""
    pools = [pool("p", "prefill"), pool("d", "decode", instances=3)]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "10Gbps"}
    rows = [(300_000 * i, 4096, 3) for i in range(6)]

    def nodes(policy: str) -> list[str]:
        tree = config(pools, engine=ROOFLINE, topology=topology, routing={"decode_policy": policy})
        return [record.decode_instance for record in simulate(tree, rows).requests]

    assert set(nodes("network_aware")) == {"d-0"}
    assert set(nodes("round_robin")) == {"d-0", "d-1", "d-2"}


@pytest.mark.parametrize("policy", sorted(set(NAMED_ROUTING) - {"session"}))
def test_everything_is_served_whatever_chooses(policy: str) -> None:
    routing = {"decode_policy": policy} | ({} if policy == "network_aware" else {"policy": policy})
    for delay_s in (0.0, 0.3):
        result = repeated(routing | {"index_delay_s": delay_s}, gap_us=20_000, pools=PD)
        assert result.summary.completed == 12
        again = repeated(routing | {"index_delay_s": delay_s}, gap_us=20_000, pools=PD)
        assert [record.decode_instance for record in again.requests] == [r.decode_instance for r in result.requests]


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ({"policy": "kv_awre"}, "expected one of least_tokens, least_requests, round_robin, random, prefix_affine"),
        ({"policy": "kv_aware", "policy_options": {"overlap": 2}}, "routing.policy_options.overlap: unknown field"),
        ({"policy": "session", "policy_options": {"a": 2}}, "policy_options.a: unknown field; expected no options"),
        ({"policy": "kv_aware", "policy_options": {"temperature": -1}}, "routing.policy_options.temperature"),
        ({"policy": "network_aware"}, "policy: found network_aware, expected it as decode_policy"),
        ({"policy": "splitwise", "index_delay_s": 1}, "index_delay_s: found with policy splitwise"),
        ({"disaggregate": {"min_prompt_tokens": 0}}, "min_prompt_tokens"),
    ],
)
def test_wrong_routing_is_refused(routing: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        simulate(config(PD, engine=ROOFLINE, routing=routing), [(0, 100, 3)])


def test_conversations_stay_on_their_instances() -> None:
    """Sessions of four turns, on four instances: those of one session are on one, and all instances have some."""
    sessions = {"turns": {"kind": "fixed", "turns": 4}, "think_time": {"kind": "constant", "s": 0.1}}
    workload = {
        "kind": "synthetic",
        "requests": 32,
        "arrivals": {"kind": "poisson", "qps": 8},
        "lengths": {"kind": "fixed", "prefill": 600, "decode": 4},
        "sessions": sessions,
    }
    pools = [pool("m", "mixed", instances=4)]
    result = api.simulate(config(pools, engine=ROOFLINE, routing={"policy": "session"}, workload=workload))
    places: dict[int | None, set[str]] = {}
    for record in result.requests:
        places.setdefault(record.session, set()).add(record.prefill_instance)
    assert len(places) == 8
    assert all(len(place) == 1 for place in places.values())
    assert len(set.union(*places.values())) > 1


def test_session_affinity_needs_sessions() -> None:
    with pytest.raises(InputError, match=r"routing\.policy: found session with a workload that does not say"):
        simulate(config([pool("m", "mixed")], engine=ROOFLINE, routing={"policy": "session"}), [(0, 100, 3)])


def test_a_rule_for_disaggregation_needs_instances_of_both_roles() -> None:
    with pytest.raises(InputError, match=r"routing\.disaggregate: found without pools of the roles"):
        simulate(config([pool("m", "mixed")], engine=ROOFLINE, routing={"disaggregate": {}}), [(0, 100, 3)])
