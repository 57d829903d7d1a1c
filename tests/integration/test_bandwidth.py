"""What bandwidth does to KV transfers and to what waits for them.

Claim, per transfer: with the same start and the same other traffic, half the rate is never earlier. Claim, per request:
where nothing that follows from a transfer feeds back into what is sent when, every arrival is later or equal. Feedback
is batching on the prefill side after blocks return (``pull``: blocks are held until the KV is gone), which can start
another request's prefill earlier or later. Such a queueing anomaly is real; the runs here hold enough blocks and let
arrivals, not returns, decide what is prefilled when, in every hand-off mode and in both couplings without feedback.
With ``fluid`` and ``exact`` coupling, slower NICs also slow the collectives of prefill, which is feedback as well: there
the order is claimed for the mean and for the last arrival.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from netsim import FlowGraph, Topology, create_backend
from netsim.config import build, parse_spec
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.execution.communication import FAR_PS
from vidur_pd.simulation import Result

RATES_GBPS = (400, 200, 100, 50, 25)
MODES = ("pull", "push", "layerwise")
FIRST_TOKENS = ("prefill", "decode_after_transfer", "decode_recompute")
FAST = {"estimator": "roofline"}
SLOW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
ROWS = st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 2_500), st.integers(2, 12)), min_size=1, max_size=12)
"""(arrival in µs, prompt tokens, output tokens)"""
POOLS = st.sampled_from(
    [
        [pool("p", "prefill"), pool("d", "decode")],
        [pool("p", "prefill", instances=2), pool("d", "decode")],
        [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)],
        [pool("p", "prefill", tp=2), pool("d", "decode", dp=2)],
    ]
)


def run(pools: list[dict[str, Any]], gbps: int, rows: list[tuple[int, int, int]], **sections: Any) -> Result:
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": f"{gbps}Gbps", **sections.pop("fabric", {})}
    routing = {"policy": "round_robin", "rank_policy": "round_robin"}
    return simulate(config(pools, topology=topology, engine=FAST, routing=routing, **sections), rows)


def kv_arrivals(result: Result) -> list[int]:
    return [journey.request.kv_arrived_ps or 0 for journey in result.journeys]


def check_decode_follows_kv(result: Result) -> None:
    """The decode instance produces nothing of a request before its KV is there: the second token at the earliest, or
    the first where it is recomputed; and what it recomputes or continues takes a step."""
    recomputes = result.config.kv_transfer.first_token == "decode_recompute"
    for journey in result.journeys:
        request = journey.request
        assert request.kv_arrived_ps is not None
        assert request.last_token_ps > request.kv_arrived_ps
        if recomputes:
            assert request.first_token_ps > request.kv_arrived_ps


@SLOW
@given(POOLS, ROWS, st.sampled_from(MODES), st.sampled_from(FIRST_TOKENS), st.sampled_from(["fluid", "packet"]))
def test_half_the_rate_never_makes_the_kv_of_any_request_arrive_earlier(
    pools: list[dict[str, Any]], rows: list[tuple[int, int, int]], mode: str, first_token: str, backend: str
) -> None:
    arrivals = []
    for gbps in RATES_GBPS:
        result = run(
            pools,
            gbps,
            rows,
            kv_transfer={"mode": mode, "first_token": first_token},
            network={"backend": backend, "coupling": "isolated"},
        )
        check_decode_follows_kv(result)
        arrivals.append(kv_arrivals(result))
    for faster, slower in pairwise(arrivals):
        assert all(s >= f for s, f in zip(slower, faster, strict=True))


@pytest.mark.parametrize("coupling", ["fluid", "exact"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_with_feedback_half_the_rate_delays_kv_on_average_and_at_the_end(coupling: str, mode: str, seed: int) -> None:
    """Instances of four GPUs on two nodes each, whose collectives cross the NICs."""
    random = np.random.default_rng(seed)
    rows = [
        (int(at), int(prompt), int(output))
        for at, prompt, output in zip(
            random.integers(0, 80_000, 8), random.integers(200, 2_500, 8), random.integers(2, 9, 8), strict=True
        )
    ]
    pools = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]
    arrivals = []
    for gbps in (200, 100, 50):
        result = run(pools, gbps, rows, kv_transfer={"mode": mode}, network={"coupling": coupling})
        check_decode_follows_kv(result)
        arrivals.append(kv_arrivals(result))
    for faster, slower in pairwise(arrivals):
        assert np.mean(slower) > np.mean(faster)
        assert max(slower) > max(faster)


def nodes(gbps: int) -> Topology:
    spec = {"kind": "rail_optimized", "gpus_per_node": 1, "nodes": 6, "nic": f"{gbps}Gbps", "oversubscription": 2}
    return build(parse_spec(spec))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 10**7), st.integers(0, 10**9)),
        min_size=1,
        max_size=12,
    )
)
def test_flows_that_start_at_the_same_times_end_later_at_half_the_rate(
    flows: list[tuple[int, int, int, int]],
) -> None:
    """On the network itself, whatever the flows: half of all rates at the same submissions. One that comes late finds
    more of the others still there."""
    ends = []
    for gbps in RATES_GBPS:
        backend = create_backend("fluid", nodes(gbps))
        sources = [src for src, _, _, _ in flows]
        destinations = [(src + step) % 6 for src, step, _, _ in flows]
        graph = FlowGraph.from_lists(
            sources, destinations, [size for _, _, size, _ in flows], ready_ps=[at for _, _, _, at in flows]
        )
        handle = backend.submit(graph, 0)
        while not any(done.flow is None for done in backend.advance(FAR_PS)):
            pass
        ends.append(backend.flow_times(handle).end_ps)
    for faster, slower in pairwise(ends):
        assert (slower >= faster).all()
