"""ECMP, flowlets and adaptive routing over many spines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import FlowGraph, NodeKind, Topology, rail_optimized
from netsim.roce.config import RoceConfig
from netsim.routing import Router
from netsim.topologies.defaults import LinkRates
from tests.netsim.packet_times import ALONE, Wire, run
from tests.netsim.strategies import GBPS

HOSTS = 8
PACKET_PS = 82_960


def clos(hosts: int = HOSTS, spines: int = HOSTS) -> Topology:
    """Two leaves of ``hosts`` hosts each and as many uplinks as NICs: hosts 0 … h − 1 on the first."""
    rates = LinkRates(nic_bps=400 * GBPS, nic_latency_ps=500_000)
    return rail_optimized(2 * hosts, 1, nodes_per_segment=hosts, spines=spines, rates=rates)


def across(size_bytes: int, labels: list[int] | None = None) -> FlowGraph:
    """Every host of the first leaf to its partner on the second, at once."""
    labels = [0] * HOSTS if labels is None else labels
    return FlowGraph.from_lists(range(HOSTS), range(HOSTS, 2 * HOSTS), [size_bytes] * HOSTS, flow_label=labels)


def uplinks(topology: Topology) -> np.ndarray:
    """Links from the first leaf to spines."""
    first_leaf = int(np.flatnonzero(topology.node_kind == NodeKind.LEAF)[0])
    is_up = (topology.link_src == first_leaf) & (topology.node_kind[topology.link_dst] == NodeKind.SPINE)
    return np.flatnonzero(is_up)


def balanced(kind: str, **changes: object) -> RoceConfig:
    return ALONE.model_copy(update={"load_balancing": kind, "window": "fixed", "acks_first": True, **changes})


def test_adaptive_routing_spreads_one_flow_over_all_spines() -> None:
    """Spines of 100 Gbit/s and a flow of 400, whose window has to fill all of them: every uplink carries its share,
    within a few packets, so that the flow is nearly four times as fast as on one."""
    rates = LinkRates(nic_bps=400 * GBPS, nic_latency_ps=500_000)
    topology = rail_optimized(2, 1, nodes_per_segment=1, spines=4, rates=rates)
    backend, times = run(topology, FlowGraph.from_lists([0], [1], [4_000_000]), balanced("adaptive"))
    shares = backend.counters().payload_bytes[uplinks(topology)]
    assert (np.abs(shares - 1_000_000) < 4 * 4096).all()
    single, ecmp = run(topology, FlowGraph.from_lists([0], [1], [4_000_000]), balanced("ecmp"))
    assert ecmp.end_ps[0] > 3.5 * times.end_ps[0]
    assert np.count_nonzero(single.counters().payload_bytes[uplinks(topology)]) == 1


def test_adaptive_routing_of_a_permutation_is_free_of_collisions() -> None:
    """As many uplinks as senders: nearly the time of a flow alone; with ECMP some spine gets two flows or more, which
    take twice as long."""
    topology = clos()
    alone = sum(Wire().packets(2_000_000)) * 20
    _, adaptive = run(topology, across(2_000_000), balanced("adaptive"))
    assert adaptive.end_ps.max() < 1.15 * alone + 2_500_000
    router = Router(topology)
    load = np.bincount([int(router.route(i, HOSTS + i)[1]) for i in range(HOSTS)])
    assert load.max() >= 2
    _, ecmp = run(topology, across(2_000_000), balanced("ecmp"))
    assert abs(ecmp.end_ps.max() / (load.max() * alone) - 1) < 0.03
    assert ecmp.end_ps.max() > 1.6 * adaptive.end_ps.max()


def test_collisions_of_ecmp_follow_the_birthday_problem() -> None:
    """8 flows on 8 spines by 400 sets of labels: all apart in 8!/8⁸ = 0.24 % of the sets, and 8 · (7/8)⁸ = 2.75 spines
    unused on average (σ of the mean over 400 sets 0.04)."""
    topology = clos()
    router = Router(topology)
    rng = np.random.default_rng(1)
    unused, apart = [], 0
    for _ in range(400):
        labels = rng.integers(0, 2**32, HOSTS)
        used = {int(router.route(i, HOSTS + i, int(label))[1]) for i, label in enumerate(labels)}
        unused.append(HOSTS - len(used))
        apart += len(used) == HOSTS
    assert abs(np.mean(unused) - 8 * (7 / 8) ** 8) < 4 * 0.04
    assert apart <= 6


def test_the_slowest_flow_of_an_ecmp_permutation_shares_with_as_many_as_the_hash_says() -> None:
    """Packets take the links that the router names, whatever the seed."""
    topology = clos()
    alone = sum(Wire().packets(1_000_000)) * 20
    for seed in (0, 1, 2, 3):
        router = Router(topology, ecmp_seed=seed)
        load = np.bincount([int(router.route(i, HOSTS + i)[1]) for i in range(HOSTS)]).max()
        _, times = run(topology, across(1_000_000), balanced("ecmp", ecmp_seed=seed))
        assert abs(times.end_ps.max() / (load * alone + 2_500_000) - 1) < 0.03


def test_a_burst_stays_on_its_path_and_the_next_one_may_change() -> None:
    """Flowlets: a flow without a pause uses one uplink; one that pauses longer than the gap uses several."""
    topology = clos()
    steady, _ = run(topology, FlowGraph.from_lists([0], [8], [1_000_000]), balanced("flowlet"))
    assert np.count_nonzero(steady.counters().payload_bytes[uplinks(topology)]) == 1
    paused = FlowGraph.from_lists([0], [8], [100 * 4096], max_rate_bps=[4 * GBPS])  # a packet every 8.3 µs
    backend, _ = run(topology, paused, balanced("flowlet", flowlet_gap=5_000_000))
    assert np.count_nonzero(backend.counters().payload_bytes[uplinks(topology)]) == HOSTS
    backend, _ = run(topology, paused, balanced("flowlet", flowlet_gap=10_000_000))
    assert np.count_nonzero(backend.counters().payload_bytes[uplinks(topology)]) == 1


def test_flowlets_start_where_least_waits() -> None:
    """Flows that start one after the other find the spines that are free: no collision."""
    topology = clos()
    alone = sum(Wire().packets(2_000_000)) * 20
    graph = FlowGraph.from_lists(
        range(HOSTS), range(HOSTS, 2 * HOSTS), [2_000_000] * HOSTS, ready_ps=[i * 200_000 for i in range(HOSTS)]
    )
    _, times = run(topology, graph, balanced("flowlet"))
    _, ecmp = run(topology, graph, balanced("ecmp"))
    assert times.end_ps.max() <= ecmp.end_ps.max()
    assert times.end_ps.max() < 2.1 * alone


def test_a_new_flow_does_not_continue_the_flowlet_of_an_earlier_one() -> None:
    """Two uplinks, of which the other one is empty: a flow that takes over the slot of one just ended chooses anew, as
    a first flow does, so a repetition takes the same time whatever went before."""
    topology = clos(spines=2)
    config = balanced("flowlet", flowlet_gap=1_000_000_000)
    chained = FlowGraph.from_lists([0, 0, 1], [8, 8, 9], [400_000] * 3, deps=[[], [0], [0]])
    backend, times = run(topology, chained, config)
    both = backend.counters().payload_bytes[uplinks(topology)]
    assert (both > 0).all()
    assert not times.has_failed.any()


@given(
    sizes=st.lists(st.integers(1, 200_000), min_size=2, max_size=8),
    buffer_bytes=st.sampled_from([50_000, 100_000]),
    kind=st.sampled_from(["adaptive", "flowlet"]),
    window=st.sampled_from(["fixed", "unbounded"]),
)
@settings(max_examples=40)
def test_selective_repeat_delivers_every_byte_under_loss_and_reordering(
    sizes: list[int], buffer_bytes: int, kind: str, window: str
) -> None:
    """Incast over all spines, little memory and no pauses."""
    config = balanced(
        kind,
        pfc=False,
        headroom_bytes=0,
        reserve_bytes=0,
        switch_buffer_bytes=buffer_bytes,
        window=window,
        retransmission_timeout=100_000_000,
        max_retries=100,
    )
    graph = FlowGraph.from_lists(range(len(sizes)), [HOSTS] * len(sizes), sizes)
    backend, times = run(clos(), graph, config)
    assert (times.end_ps > 0).all()
    assert not times.has_failed.any()
    counters = backend.counters()
    assert counters.payload_bytes.max() >= max(sizes)


def test_without_loss_adaptive_routing_sends_nothing_twice() -> None:
    """Packets overtake one another on eight spines; a hole is not taken for a loss."""
    topology = clos()
    graph = FlowGraph.from_lists(range(HOSTS), [HOSTS, *range(HOSTS, 2 * HOSTS - 1)], [1_000_000] * HOSTS)
    backend, _ = run(topology, graph, balanced("adaptive"))
    sent = backend.counters().payload_bytes[np.flatnonzero(topology.link_src < HOSTS)]
    assert sent.sum() == HOSTS * 1_000_000


def test_go_back_n_is_refused_with_adaptive_routing() -> None:
    with pytest.raises(ValueError, match="selective_repeat"):
        RoceConfig(load_balancing="adaptive", recovery="go_back_n")
