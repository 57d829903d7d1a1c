"""What bandwidth does to KV transfers and to what waits for them.

Claims, from the strongest to the weakest:

- Flows that start together, or that share one destination, end later or at the same time at half the rate.
- Where prefill does not feel the network (collectives inside nodes or none, enough KV blocks) and every decode
  instance hangs on links of its own, no request's KV arrives earlier, if transfers start by what prefill does
  (``push``, ``layerwise``).
- In ``pull`` mode a transfer starts when the decode instance next schedules. A slower network shifts its steps, and a
  request may happen to wait for less of a step: its KV arrives earlier by less than a step, if at all.
- Where collectives and transfers meet, the mean and the last arrival are later. A single request may be served earlier:
  a slower network can change which prompts share a batch.

It does not hold for any flow of any network: fair sharing over several links has anomalies, of which the last test is
one.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netsim import FlowGraph, Topology, create_backend
from netsim.topologies.build import build, parse_spec
from netsim.units import PS_PER_S, PS_PER_US
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.metrics.result import Result

RATES_GBPS = (400, 200, 100, 50, 25)
MODES = ("pull", "push", "layerwise")
EAGER_MODES = ("push", "layerwise")
FIRST_TOKENS = ("prefill", "decode_after_transfer", "decode_recompute")
FAST = {"estimator": "roofline"}
SLOW = settings(
    max_examples=25,
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
    return [record.kv_arrived_ps or 0 for record in result.requests]


def check_decode_follows_kv(result: Result) -> None:
    """The decode instance produces nothing of a request before its KV is there: the second token at the earliest, or
    the first where it is recomputed; and what it recomputes or continues takes a step."""
    recomputes = result.config.kv_transfer.first_token == "decode_recompute"
    for request in result.requests:
        assert request.kv_arrived_ps is not None
        assert request.last_token_ps > request.kv_arrived_ps
        if recomputes:
            assert request.first_token_ps > request.kv_arrived_ps


@SLOW
@given(
    POOLS,
    ROWS,
    st.sampled_from(EAGER_MODES),
    st.sampled_from(FIRST_TOKENS),
    st.sampled_from(["isolated", "fluid", "exact"]),
)
def test_half_the_rate_never_makes_the_kv_of_any_request_arrive_earlier(
    pools: list[dict[str, Any]], rows: list[tuple[int, int, int]], mode: str, first_token: str, coupling: str
) -> None:
    check_no_kv_arrives_earlier(pools, rows, {"mode": mode, "first_token": first_token}, {"coupling": coupling})


@pytest.mark.parametrize("mode", EAGER_MODES)
@pytest.mark.parametrize("seed", range(3))
def test_half_the_rate_of_packets_never_makes_the_kv_of_any_request_arrive_earlier(mode: str, seed: int) -> None:
    pools = [pool("p", "prefill", instances=2), pool("d", "decode")]
    network = {"backend": "packet", "coupling": "exact"}
    check_no_kv_arrives_earlier(pools, random_rows(seed, most_tokens=1_000), {"mode": mode}, network)


@pytest.mark.parametrize("backend", ["fluid", "packet"])
@pytest.mark.parametrize("seed", range(4))
def test_pulled_kv_arrives_earlier_by_less_than_a_decode_step_at_half_the_rate_if_at_all(
    backend: str, seed: int
) -> None:
    pools = [pool("p", "prefill", instances=2), pool("d", "decode")]
    network = {"backend": backend, "coupling": "exact"}
    rows = random_rows(seed, most_tokens=1_000)
    results = [run(pools, gbps, rows, network=network) for gbps in RATES_GBPS]
    step_ps = max(longest_decode_step_ps(result) for result in results)
    for faster, slower in pairwise(map(kv_arrivals, results)):
        assert all(s > f - step_ps for s, f in zip(slower, faster, strict=True))
        assert np.mean(slower) > np.mean(faster)


def longest_decode_step_ps(result: Result) -> int:
    log = result.iterations
    decodes = [run for run in log.runs if log.instances[run.instance][1] == "d"]
    return max(int(np.diff(run.ends_ps, prepend=run.start_ps).max()) for run in decodes)


def check_no_kv_arrives_earlier(
    pools: list[dict[str, Any]], rows: list[tuple[int, int, int]], kv_transfer: dict[str, str], network: dict[str, str]
) -> None:
    results = [run(pools, gbps, rows, kv_transfer=kv_transfer, network=network) for gbps in RATES_GBPS]
    for result in results:
        check_decode_follows_kv(result)
    for faster, slower in pairwise(map(kv_arrivals, results)):
        assert all(s >= f for s, f in zip(slower, faster, strict=True))


def random_rows(seed: int, most_tokens: int = 2_500) -> list[tuple[int, int, int]]:
    random = np.random.default_rng(seed)
    columns = (random.integers(0, 80_000, 8), random.integers(200, most_tokens, 8), random.integers(2, 9, 8))
    return [(int(at), int(prompt), int(output)) for at, prompt, output in zip(*columns, strict=True)]


@pytest.mark.parametrize("coupling", ["fluid", "exact"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_with_feedback_half_the_rate_delays_kv_on_average_and_at_the_end(coupling: str, mode: str, seed: int) -> None:
    """Instances of four GPUs on two nodes each, whose collectives cross the NICs."""
    rows = random_rows(seed)
    pools = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]
    arrivals = []
    for gbps in (200, 100, 50):
        result = run(pools, gbps, rows, kv_transfer={"mode": mode}, network={"coupling": coupling})
        check_decode_follows_kv(result)
        arrivals.append(kv_arrivals(result))
    for faster, slower in pairwise(arrivals):
        assert np.mean(slower) > np.mean(faster)
        assert max(slower) > max(faster)


NODES = 6


@cache
def nodes(gbps: int) -> Topology:
    """Nodes of one GPU at one switch."""
    return build(parse_spec({"kind": "rail_optimized", "gpus_per_node": 1, "nodes": NODES, "nic": f"{gbps}Gbps"}))


def ends_ps(gbps: int, flows: list[tuple[int, int, int, int]]) -> NDArray[np.int64]:
    """[flows] end of each of the flows (source, destination, bytes, start in ps)."""
    backend = create_backend("fluid", nodes(gbps))
    sources, destinations, sizes, starts_ps = zip(*flows, strict=True)
    handle = backend.submit(FlowGraph.from_lists(sources, destinations, sizes, ready_ps=starts_ps), 0)
    while not any(done.flow is None for done in backend.advance(FAR_PS)):
        pass
    return backend.flow_times(handle).end_ps


FLOWS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(1, NODES - 1), st.integers(1, 10**7), st.integers(0, 10**9)),
    min_size=1,
    max_size=12,
)
"""(source, steps to the destination, bytes, start in ps)"""


@settings(max_examples=60)
@given(FLOWS, st.booleans())
def test_flows_that_start_together_or_meet_at_one_end_never_end_earlier_at_half_the_rate(
    drawn: list[tuple[int, int, int, int]], starts_together: bool
) -> None:
    if starts_together:
        flows = [(src, (src + step) % NODES, size, 0) for src, step, size, _ in drawn]
    else:
        flows = [(step, 0, size, at_ps) for _, step, size, at_ps in drawn]
    for faster, slower in pairwise(ends_ps(gbps, flows) for gbps in RATES_GBPS):
        assert (slower >= faster).all()


def test_fair_sharing_can_make_one_flow_end_earlier_at_half_the_rate() -> None:
    """Why no more is claimed. Ten flows from GPU 0 to GPU 1 start at 0 and take 200 us at 400 Gbit/s. Then GPU 0 sends
    two flows to GPU 2, and GPU 3 a third one. At 400 Gbit/s the three share the link into GPU 2: 133 Gbit/s each.

    At 200 Gbit/s the ten are still there, so that those from GPU 0 get a twelfth of its link each, 17 Gbit/s, and the
    third one gets the rest of the link into GPU 2: 167 Gbit/s.
    """
    late_ps = 210 * PS_PER_US
    flows = [(0, 1, 10**6, 0)] * 10 + [(0, 2, 10**7, late_ps)] * 2 + [(3, 2, 2 * 10**6, late_ps)]
    fast, slow = (int(ends_ps(gbps, flows)[-1] - late_ps) for gbps in (400, 200))
    assert fast == pytest.approx(16e6 / 133.33e9 * 1e12, rel=0.02)
    assert slow == pytest.approx(16e6 / 166.67e9 * 1e12, rel=0.02)
    assert slow < fast


def test_a_transfer_is_slowed_for_as_long_as_there_is_load() -> None:
    """A hundred decodes over the NICs of the destination end while a KV is on its way; nothing else happens on the
    network meanwhile. Until then it moves as slowly as beside decodes that go on, afterwards as fast as alone."""
    pools = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "100Gbps"}

    def last_kv_s(coupling: str, decoded: int) -> tuple[float, float]:
        """(how long the KV of the last prompt is on its way, for how long the others decode meanwhile)"""
        rows = [(0, 200, decoded)] * 100 + [(1000, 30_000, 3)]
        table = simulate(config(pools, topology=topology, network={"coupling": coupling}), rows).table
        last = int(np.argmax(table.prompt_tokens))
        sent_ps, others_ps = int(table.kv_sent_ps[last]), int(np.delete(table.completed_ps, last).max())
        return (int(table.kv_arrived_ps[last]) - sent_ps) / PS_PER_S, (others_ps - sent_ps) / PS_PER_S

    alone_s, _ = last_kv_s("isolated", 190)
    beside_s, beside_for_s = last_kv_s("fluid", 190)
    taken_s, for_s = last_kv_s("fluid", 150)
    assert beside_for_s > beside_s > 1.2 * alone_s
    assert 0.1 * taken_s < for_s < 0.8 * taken_s
    assert taken_s - alone_s == pytest.approx(for_s * (1 - alone_s / beside_s), rel=0.2)
