"""Max-min sharing: hand examples, and agreement with an independent model in exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import BackendError, FlowGraph, Topology
from netsim._core import RATE_UNITS_PER_BPS
from netsim.backends.fluid import FluidBackend
from netsim.routing import Router
from tests.netsim.fluid_reference import ReferenceFlow, end_times_ps, max_min_rates
from tests.netsim.strategies import GBPS, LATENCY_PS, networks_with_flows, star, star_of, topologies

S = 10**12
LONG = 10**15
"""Bytes that do not drain within a test."""


def ends(topology: Topology, graph: FlowGraph) -> list[int]:
    backend = FluidBackend(topology)
    handle = backend.submit(graph, 0)
    backend.advance(10**18)
    return backend.flow_times(handle).end_ps.tolist()


def uplink_rates(topology: Topology, graph: FlowGraph) -> list[float]:
    """Rates just after the start, on the cable of each source GPU: link 2g of a star leaves GPU g."""
    backend = FluidBackend(topology)
    backend.submit(graph, 0)
    backend.advance(0)
    return backend.link_rates_bps()[2 * graph.src].tolist()


def test_a_long_flow_on_an_idle_link_is_exact_to_the_picosecond() -> None:
    """10¹¹ bytes are 8·10¹¹ bit: 1 s at 800 Gbit/s, and two links of 500 ns."""
    assert ends(star(2, 800 * GBPS), FlowGraph.from_lists([0], [1], [10**11])) == [S + 2 * LATENCY_PS]


def test_two_flows_on_one_link_take_twice_as_long() -> None:
    """400 kB are 8 µs at 400 Gbit/s, and 16 µs at half of it."""
    assert ends(star(3), FlowGraph.from_lists([0, 1], [2, 2], [400_000, 400_000])) == [17_000_000, 17_000_000]


def test_a_shorter_flow_leaves_its_share_to_the_longer_one() -> None:
    """At 200 Gbit/s each, 100 kB take 4 µs; the other 300 kB then have 200 kB left, 4 µs at 400 Gbit/s."""
    assert ends(star(3), FlowGraph.from_lists([0, 1], [2, 2], [100_000, 300_000])) == [5_000_000, 9_000_000]


def test_a_flow_with_a_narrower_bottleneck_leaves_the_rest_of_a_link_to_others() -> None:
    """Hosts 0, 1, 2 with 1, 10, 10 Gbit/s send to host 3 with 7 Gbit/s: 1 is all that host 0 has, and (7 − 1)/2 = 3
    is left for each of the others."""
    topology = star_of([GBPS, 10 * GBPS, 10 * GBPS, 7 * GBPS])
    graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [LONG] * 3)
    assert uplink_rates(topology, graph) == [GBPS, 3 * GBPS, 3 * GBPS]


def test_max_min_is_solved_over_several_levels_of_bottlenecks() -> None:
    """A line of sharing: into host 3 (4 Gbit/s) go flows 0 and 1; out of host 1 (10 Gbit/s) go flows 1 and 2; flow 2
    ends at host 4 (7 Gbit/s). Level one: 4/2 = 2 for flows 0 and 1. Level two: host 4 gives flow 2 all of its 7."""
    topology = star_of([10 * GBPS, 10 * GBPS, 10 * GBPS, 4 * GBPS, 7 * GBPS])
    backend = FluidBackend(topology)
    backend.submit(FlowGraph.from_lists([0, 1, 1], [3, 3, 4], [LONG] * 3), 0)
    backend.advance(0)
    into_hosts = backend.link_rates_bps()[1::2]
    assert into_hosts.tolist() == [0, 0, 0, 4 * GBPS, 7 * GBPS]
    assert backend.link_rates_bps()[0:4:2].tolist() == [2 * GBPS, 9 * GBPS]


def test_a_capped_flow_leaves_the_rest_of_a_link_to_others() -> None:
    """Three flows into host 3 with 7 Gbit/s: one may have 1, so that (7 − 1)/2 = 3 is left for each of the others. A
    cap above that share changes nothing, nor does one that no link could exceed."""
    topology = star_of([10 * GBPS, 10 * GBPS, 10 * GBPS, 7 * GBPS])
    for other_cap in (0, 4 * GBPS, 2**62):
        graph = FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [LONG] * 3, max_rate_bps=[GBPS, other_cap, 0])
        assert uplink_rates(topology, graph) == [GBPS, 3 * GBPS, 3 * GBPS]


def test_a_capped_flow_alone_takes_its_bytes_over_its_cap() -> None:
    """400 kB at 100 of 400 Gbit/s take 32 µs, and what others leave behind makes it no faster."""
    graph = FlowGraph.from_lists([0, 2], [1, 1], [400_000, 100_000], max_rate_bps=[100 * GBPS, 0])
    assert ends(star(3), graph) == [32_000_000 + 2 * LATENCY_PS, 2_666_667 + 2 * LATENCY_PS]


def test_caps_below_every_share_are_all_given() -> None:
    """Four flows capped at 1, 2, 3 and 4 Gbit/s share 10 Gbit/s: each gets its cap. With 9, the largest gets 3."""
    for capacity, largest in ((10, 4), (9, 3)):
        topology = star_of([10 * GBPS] * 4 + [capacity * GBPS])
        caps = [GBPS, 2 * GBPS, 3 * GBPS, 4 * GBPS]
        graph = FlowGraph.from_lists([0, 1, 2, 3], [4] * 4, [LONG] * 4, max_rate_bps=caps)
        assert uplink_rates(topology, graph) == [GBPS, 2 * GBPS, 3 * GBPS, largest * GBPS]


def test_disjoint_paths_do_not_interact() -> None:
    alone = ends(star(4), FlowGraph.from_lists([0], [1], [123_457]))
    beside = ends(star(4), FlowGraph.from_lists([0, 2, 2], [1, 3, 3], [123_457, 99_991, 1]))
    assert beside[0] == alone[0]


def test_opposite_directions_do_not_interact() -> None:
    assert ends(star(2), FlowGraph.from_lists([0, 1], [1, 0], [400_000, 400_000])) == [9_000_000, 9_000_000]


@given(networks_with_flows(with_deps=False))
@settings(max_examples=150)
def test_completion_times_agree_with_an_exact_model(case: tuple[Topology, FlowGraph]) -> None:
    """Rates are rounded down to 1/5040 bit/s and ends up to whole ps. At the smallest rates here (1 Gbit/s among at
    most 24 flows) the former costs less than 10⁻¹¹ of at most 20 ms per change of rates, the latter 1 ps per change:
    below 30 ps over at most 48 changes."""
    topology, graph = case
    router = Router(topology)
    flows, expected = [], {}
    for i, (src, dst, label) in enumerate(zip(graph.src, graph.dst, graph.flow_label, strict=True)):
        path = tuple(router.route(src, dst, label).tolist())
        size, start, cap = int(graph.size_bytes[i]), int(graph.ready_ps[i]), int(graph.max_rate_bps[i])
        if size and path:
            flows.append((i, ReferenceFlow(path, size, start, router.path_latency_ps(src, dst, label), cap)))
        else:
            expected[i] = start
    if flows:
        reference = end_times_ps([flow for _, flow in flows], topology.capacity_bps.tolist())
        expected |= {i: float(end) for (i, _), end in zip(flows, reference, strict=True)}
    found = ends(topology, graph)
    assert found == pytest.approx([expected[i] for i in range(len(graph))], rel=0, abs=30)


@given(topologies(), st.data())
@settings(max_examples=100)
def test_allocations_are_feasible_and_max_min_fair_at_every_change(topology: Topology, data: st.DataObject) -> None:
    """One flow per source, so the rate on the source's first link is the flow's. Flows come and go; at every instant
    the rates are those of a full solution, up to one unit per flow."""
    targets = data.draw(st.lists(st.integers(0, topology.gpus - 1), min_size=topology.gpus, max_size=topology.gpus))
    sizes = data.draw(st.lists(st.integers(1, 10**6), min_size=topology.gpus, max_size=topology.gpus))
    starts = data.draw(st.lists(st.integers(0, 10**7), min_size=topology.gpus, max_size=topology.gpus))
    router = Router(topology)
    flows = [src for src, dst in enumerate(targets) if dst != src]
    paths = {src: router.route(src, targets[src]).tolist() for src in flows}
    backend = FluidBackend(topology)
    caps = data.draw(st.lists(st.sampled_from([0, 0, GBPS // 2, 5 * GBPS]), min_size=len(flows), max_size=len(flows)))
    graph = FlowGraph.from_lists(
        flows,
        [targets[f] for f in flows],
        [sizes[f] for f in flows],
        ready_ps=[starts[f] for f in flows],
        max_rate_bps=caps,
    )
    handle = backend.submit(graph, 0)
    shared_first_link = len({path[0] for path in paths.values()}) < len(paths)
    assert not shared_first_link
    while (instant := backend.next_event_ps()) is not None:
        backend.advance(instant)
        rates = backend.link_rates_bps()
        some = np.arange(topology.links - 1, -1, -2)
        assert backend.link_rates_bps(some).tolist() == rates[some].tolist()
        assert (rates <= topology.capacity_bps).all()
        started = backend.flow_times(handle).start_ps >= 0
        active = {src: paths[src] for src, has in zip(flows, started, strict=True) if has and rates[paths[src][0]] > 0}
        expected = max_min_rates(active, topology.capacity_bps.tolist(), dict(zip(flows, caps, strict=True)))
        for src, rate in expected.items():
            assert rates[paths[src][0]] == pytest.approx(float(rate), rel=1e-12, abs=len(flows) / RATE_UNITS_PER_BPS)


@given(networks_with_flows())
@settings(max_examples=100)
def test_the_bytes_of_every_flow_pass_every_link_of_its_path_exactly_once(case: tuple[Topology, FlowGraph]) -> None:
    topology, graph = case
    backend = FluidBackend(topology)
    backend.submit(graph, 0)
    backend.advance(10**18)
    router = Router(topology)
    expected = np.zeros(topology.links)
    for src, dst, size, label in zip(graph.src, graph.dst, graph.size_bytes, graph.flow_label, strict=True):
        expected[router.route(src, dst, label)] += size
    assert backend.link_stats().carried_bytes.tolist() == expected.tolist()
    assert not backend.link_rates_bps().any()


@given(st.integers(1, 10**9), st.integers(10**6, 10**15), st.integers(10**6, 10**15))
def test_more_capacity_never_slows_a_single_flow(size: int, capacity: int, other: int) -> None:
    slower, faster = sorted((capacity, other))
    graph = FlowGraph.from_lists([0], [1], [size])
    assert ends(star(2, faster), graph) <= ends(star(2, slower), graph)


def test_background_takes_capacity_from_the_instant_it_is_set() -> None:
    """500 kB in 10 µs at 400 Gbit/s. After 5 µs, 250 kB are left and 100 Gbit/s remain: 20 µs more."""
    backend = FluidBackend(star(2))
    backend.submit(FlowGraph.from_lists([0], [1], [500_000]), 0)
    backend.advance(5_000_000)
    backend.set_background_bps(np.array([0]), np.array([300e9]))
    assert backend.link_rates_bps().tolist() == [100e9, 0, 0, 100e9]
    assert backend.advance(10**9)[0].at_ps == 25_000_000 + 2 * LATENCY_PS


def test_a_flow_without_capacity_waits_until_background_leaves() -> None:
    """Nothing will happen by itself meanwhile, so there is no next event; 8 µs of transfer follow the release."""
    backend = FluidBackend(star(2))
    backend.set_background_bps(np.array([0]), np.array([400e9]))
    backend.submit(FlowGraph.from_lists([0], [1], [400_000]), 0)
    assert backend.advance(3_000_000) == []
    assert backend.next_event_ps() is None
    backend.set_background_bps(np.array([0]), np.array([0.0]))
    assert backend.advance(10**9)[0].at_ps == 3_000_000 + 8_000_000 + 2 * LATENCY_PS


@given(st.lists(st.integers(0, 7 * GBPS), min_size=1, max_size=6))
def test_changing_background_keeps_rates_max_min(backgrounds: list[int]) -> None:
    """Re-solves after a change of capacity equal a solution from scratch with that capacity."""
    capacities = [3 * GBPS, 10 * GBPS, 10 * GBPS, 7 * GBPS]
    topology = star_of(capacities)
    backend = FluidBackend(topology)
    backend.submit(FlowGraph.from_lists([0, 1, 2], [3, 3, 3], [LONG] * 3), 0)
    backend.advance(0)
    for background in backgrounds:
        backend.set_background_bps(np.array([7]), np.array([float(background)]))
        left = [*topology.capacity_bps.tolist()[:7], 7 * GBPS - background]
        paths = {0: (0, 7), 1: (2, 7), 2: (4, 7)}
        expected = [float(rate) for _, rate in sorted(max_min_rates(paths, left).items())]
        assert backend.link_rates_bps()[[0, 2, 4]].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("link", "rate"), [(0, -1.0), (0, 500e9), (0, float("nan")), (4, 1.0), (-1, 1.0)])
def test_wrong_background_is_refused_and_changes_nothing(link: int, rate: float) -> None:
    backend = FluidBackend(star(2))
    with pytest.raises(BackendError, match="found"):
        backend.set_background_bps(np.array([2, link]), np.array([400e9, rate]))
    backend.submit(FlowGraph.from_lists([1], [0], [400_000]), 0)
    assert backend.advance(10**9)[0].at_ps == 8_000_000 + 2 * LATENCY_PS


@given(networks_with_flows(with_deps=False), st.sampled_from([0.001, 0.05, 0.5]))
@settings(max_examples=60)
def test_a_rate_tolerance_bounds_loads_and_leaves_no_flow_behind(
    case: tuple[Topology, FlowGraph], tolerance: float
) -> None:
    """At every instant no link carries more than 1 + tolerance of its capacity, and on the way of every flow without a
    cap there is a link that carries at least 1 − tolerance (floor effects are below one bit/s here)."""
    topology, graph = case
    backend = FluidBackend(topology, rate_tolerance=tolerance)
    handle = backend.submit(graph, 0)
    router = Router(topology)
    while (instant := backend.next_event_ps()) is not None:
        backend.advance(instant)
        loads = backend.link_rates_bps() / topology.capacity_bps
        assert (loads <= 1 + tolerance + 1e-9).all()
        times = backend.flow_times(handle)
        for i in np.flatnonzero((times.start_ps == instant) & (times.end_ps < 0) & (graph.max_rate_bps == 0)):
            route = router.route(graph.src[i], graph.dst[i], graph.flow_label[i])
            assert loads[route].max() >= 1 - tolerance - 1e-9
    assert (backend.flow_times(handle).end_ps >= 0).all()


def test_without_a_rate_tolerance_a_small_change_of_share_counts_and_within_it_not() -> None:
    """Ten flows into one host at 400 Gbit/s get 40 each. When one of them ends, 44.4 are right for the others: within
    a tolerance of 20 % they keep their 40."""
    topology = star(11)
    sizes = [100_000] + [400_000] * 9
    graph = FlowGraph.from_lists(list(range(10)), [10] * 10, sizes)
    for tolerance, rate_bps in ((0, 400e9 / 9), (0.09, 400e9 / 9), (0.2, 40e9)):
        backend = FluidBackend(topology, rate_tolerance=tolerance)
        backend.submit(graph, 0)
        backend.advance(20_000_000 + 1)
        assert backend.link_rates_bps()[2] == pytest.approx(rate_bps, rel=1e-12)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_rate_tolerance_that_is_no_fraction_is_refused(tolerance: float) -> None:
    with pytest.raises(BackendError, match="rate_tolerance: found"):
        FluidBackend(star(2), rate_tolerance=tolerance)
