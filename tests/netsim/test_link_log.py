"""Bytes on links in windows: nothing is lost when windows double, and bytes lie where links carry them."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netsim import BackendError, FlowGraph, LinkLog, LogsLinks, NetworkBackend, Topology, WireFormat, create_backend
from netsim.backends.fluid import FluidBackend
from netsim.backends.packet import PacketBackend
from netsim.backends.packet.memo import MemoisedBackend
from netsim.roce.config import RoceConfig
from netsim.units import PS_PER_S
from tests.netsim.conformance import BACKENDS, FAR_PS, completions_until_idle
from tests.netsim.strategies import GBPS, networks_with_flows, star

WINDOW_PS = PS_PER_S // 64
US = 10**6
SHARING = tuple(name for name in BACKENDS if name != "analytical")

ENTRIES = st.lists(
    st.tuples(st.integers(0, 10 * PS_PER_S), st.integers(0, 3 * PS_PER_S), st.sets(st.integers(0, 9), min_size=1)),
    max_size=20,
)
"""(start, duration, links)"""


def table(log: LinkLog, links: int) -> NDArray[np.float64]:
    """[kinds, windows, links] bytes."""
    traffic, window, link, carried, _ = log.rows()
    found = np.zeros((2, int(window.max(initial=0)) + 1, links))
    np.add.at(found, (traffic, window, link), carried)
    return found


def logging(backend: NetworkBackend, windows: int, window_ps: int) -> LinkLog:
    assert isinstance(backend, LogsLinks)
    return backend.log_links(windows, window_ps)


def test_bytes_are_spread_over_the_windows_of_their_time() -> None:
    """A quarter of the time in the first window, half in the second, a quarter in the third."""
    log = LinkLog(3, 8, WINDOW_PS)
    log.spread(0, np.array([2]), np.array([400.0]), (3 * WINDOW_PS // 2, 7 * WINDOW_PS // 2))
    traffic, window, link, carried, _ = log.rows()
    assert traffic.tolist() == [0, 0, 0]
    assert window.tolist() == [1, 2, 3]
    assert link.tolist() == [2, 2, 2]
    assert carried.tolist() == [100.0, 200.0, 100.0]


def test_bytes_without_duration_are_those_of_their_instant() -> None:
    log = LinkLog(3, 8, WINDOW_PS)
    log.spread(1, np.array([0, 1]), np.array([5.0, 7.0]), (WINDOW_PS, WINDOW_PS))
    traffic, window, link, carried, _ = log.rows()
    assert (traffic.tolist(), window.tolist(), link.tolist()) == ([1, 1], [1, 1], [0, 1])
    assert carried.tolist() == [5.0, 7.0]


def test_windows_double_when_time_outgrows_them() -> None:
    log = LinkLog(1, 4, WINDOW_PS)
    log.spread(0, np.array([0]), np.array([8.0]), (0, 4 * WINDOW_PS - 1))
    assert log.window_ps == WINDOW_PS
    log.spread(0, np.array([0]), np.array([1.0]), (5 * WINDOW_PS, 5 * WINDOW_PS))
    assert log.window_ps == 2 * WINDOW_PS
    _, window, _, carried, _ = log.rows()
    assert window.tolist() == [0, 1, 2]
    assert carried == pytest.approx([4.0, 4.0, 1.0])


@given(ENTRIES)
def test_totals_are_what_was_added_whatever_the_windows(entries: list[tuple[int, int, set[int]]]) -> None:
    log, expected = LinkLog(10, 6, WINDOW_PS), np.zeros(10)
    for start_ps, duration_ps, links in entries:
        chosen = np.array(sorted(links))
        log.spread(0, chosen, 10.0 + chosen, (start_ps, start_ps + duration_ps))
        expected[chosen] += 10.0 + chosen
    assert log.total_bytes(0) == pytest.approx(expected)
    assert not log.total_bytes(1).any()
    _, window, link, carried, _ = log.rows()
    assert (window < 6).all()
    assert np.bincount(link, carried, minlength=10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda log: log.spread(2, np.array([0]), np.array([1.0]), (0, 1)), "traffic: found 2, expected 0 to 1"),
        (lambda log: log.spread(0, np.array([0]), np.array([1.0]), (2, 1)), "a time that does not run backwards"),
        (lambda log: log.spread(0, np.array([0]), np.zeros(0), (0, 1)), "found 0 sizes for 1 links"),
        (lambda log: LinkLog(1, 0, 1), "found 0 windows"),
    ],
)
def test_misuse_is_refused(misuse: object, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        misuse(LinkLog(1, 2, WINDOW_PS))  # type: ignore[operator]


def test_a_flow_that_others_slow_down_is_booked_at_the_rates_that_it_had() -> None:
    """Two flows of 50 kB share a link of 400 Gbit/s (20 ps per byte) from 0 on; from 2 µs on the first is alone, as the
    second was 50 kB and the first 150. Spread over its life it would take 125 % of the first window."""
    backend = FluidBackend(star(3))
    log = backend.log_links(8, 2 * US)
    backend.submit(FlowGraph.from_lists([0, 1], [2, 2], [150_000, 50_000]), 0)
    backend.advance(FAR_PS)
    into_gpu = np.flatnonzero(star(3).link_dst == 2)[0]
    assert table(log, star(3).links)[0, :, into_gpu].tolist() == [100_000.0, 100_000.0]


def test_graphs_say_what_they_are() -> None:
    backend = FluidBackend(star(3))
    log = backend.log_links(8, 2 * US)
    graph = FlowGraph.from_lists([0], [2], [1_000])
    for traffic, times in ((0, 1), (1, 2)):
        for _ in range(times):
            backend.submit(dataclasses.replace(graph, traffic=traffic), backend.now_ps)
    while backend.next_event_ps() is not None:
        backend.advance(FAR_PS)
    assert [log.total_bytes(traffic).sum() for traffic in (0, 1)] == [2_000.0, 4_000.0]
    with pytest.raises(BackendError, match="traffic: found 2, expected 0 to 1"):
        backend.submit(dataclasses.replace(graph, traffic=2), backend.now_ps)


@given(networks_with_flows(), st.sampled_from(BACKENDS), st.integers(1, 9), st.integers(10**4, 10 * US))
@settings(max_examples=100)
def test_the_log_has_every_byte_and_no_window_more_than_the_link_can_carry(
    case: tuple[Topology, FlowGraph], name: str, windows: int, window_ps: int
) -> None:
    """On every backend; where flows do not see each other, only every byte."""
    topology, graph = case
    with contextlib.closing(create_backend(name, topology)) as backend:
        log = logging(backend, windows, window_ps)
        backend.submit(graph, 0)
        completions_until_idle(backend, lambda _: FAR_PS)
        assert isinstance(backend, LogsLinks)
        backend.update_link_log()
        carried = backend.link_stats().carried_bytes
    found = table(log, topology.links)
    assert found[0].sum(axis=0) == pytest.approx(carried, rel=1e-12)
    assert found.shape[1] <= windows + windows % 2
    if name in SHARING:
        most = topology.capacity_bps / 8 / PS_PER_S * log.window_ps
        assert (found.sum(axis=0) <= most * (1 + 1e-12)).all()


@given(networks_with_flows(), st.sampled_from(BACKENDS), st.integers(10**4, 10 * US), st.integers(2, 60))
@settings(max_examples=60)
def test_the_log_does_not_depend_on_the_steps(
    case: tuple[Topology, FlowGraph], name: str, window_ps: int, steps: int
) -> None:
    topology, graph = case
    found, step_ps = [], FAR_PS
    for _ in range(2):
        with contextlib.closing(create_backend(name, topology)) as backend:
            log = logging(backend, 64, window_ps)
            backend.submit(graph, 0)
            told = completions_until_idle(backend, lambda now, step=step_ps: now + step)  # type: ignore[misc]
            assert isinstance(backend, LogsLinks)
            backend.update_link_log()
            found.append(table(log, topology.links))
        step_ps = max((completion.at_ps for completion in told), default=0) // steps + 1
    assert found[0].shape == found[1].shape
    assert found[0] == pytest.approx(found[1], rel=1e-9, abs=1e-6)


@given(networks_with_flows(), st.integers(10**4, 10 * US))
@settings(max_examples=40)
def test_logging_changes_nothing(case: tuple[Topology, FlowGraph], window_ps: int) -> None:
    topology, graph = case
    for name in BACKENDS:
        ends = []
        for is_logged in (False, True):
            with contextlib.closing(create_backend(name, topology)) as backend:
                if is_logged:
                    logging(backend, 16, window_ps)
                handle = backend.submit(graph, 0)
                completions_until_idle(backend, lambda _: FAR_PS)
                ends.append((backend.flow_times(handle).end_ps.tolist(), backend.link_stats().busy_ps.tolist()))
        assert ends[0] == ends[1], name


@given(networks_with_flows(), st.integers(10**4, 10 * US))
@settings(max_examples=30)
def test_headers_and_acknowledgements_of_a_wire_format_are_bytes_too(
    case: tuple[Topology, FlowGraph], window_ps: int
) -> None:
    topology, graph = case
    wire = WireFormat(mtu_bytes=4096, header_bytes=52, ack_bytes=60, packets_per_ack=4)
    backend = FluidBackend(topology, wire)
    log = backend.log_links(32, window_ps)
    backend.submit(graph, 0)
    completions_until_idle(backend, lambda _: FAR_PS)
    found = table(log, topology.links)
    assert found[0].sum(axis=0) == pytest.approx(backend.link_stats().carried_bytes, rel=1e-9, abs=1e-6)
    assert (found[0] <= topology.capacity_bps / 8 / PS_PER_S * log.window_ps * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", SHARING)
def test_a_slow_link_and_a_failed_one_carry_what_they_can(name: str) -> None:
    """From 10 µs on the link into GPU 1 has a quarter of its 400 Gbit/s, from 20 to 30 µs nothing."""
    topology = star(2)
    link = int(np.flatnonzero(topology.link_dst == 1)[0])
    with contextlib.closing(create_backend(name, topology)) as backend:
        log = logging(backend, 2**14, 10 * US)  # 164 ms: lost packets are sent again after a timeout of 67 ms
        backend.submit(FlowGraph.from_lists([0], [1], [1_000_000]), 0)
        backend.advance(10 * US)
        backend.set_capacity_share(link, 0.25)  # type: ignore[attr-defined]
        backend.advance(20 * US)
        backend.set_link_up(link, False)  # type: ignore[attr-defined]
        backend.advance(30 * US)
        backend.set_link_up(link, True)  # type: ignore[attr-defined]
        backend.advance(10**12)
        assert isinstance(backend, LogsLinks)
        backend.update_link_log()
    carried = table(log, topology.links)[0, :, link]
    packet_bytes = 4096 if name != "fluid" else 0
    assert carried[0] <= 500_000
    assert carried[1] <= 125_000 + packet_bytes
    if len(carried) > 2:  # fluids without a way fail at once
        assert carried[2] == 0


def test_a_graph_that_is_replayed_is_logged_over_its_time() -> None:
    """A graph of 64 packets between two hosts, run and then replayed a millisecond later."""
    topology = star(2, 10 * GBPS)
    backend = MemoisedBackend(
        PacketBackend(topology, RoceConfig(congestion_control="none", ecn=False)), has_fixed_routes=True
    )
    log = backend.log_links(8, 1_000 * US)
    graph = dataclasses.replace(FlowGraph.from_lists([0], [1], [64 * 4096]), traffic=1)
    for at_ps in (0, 1_000 * US):
        backend.submit(graph, at_ps)
        backend.advance(FAR_PS)
    backend.update_link_log()
    assert backend.hits == 1
    found = table(log, topology.links)[1]
    assert found.sum(axis=1).tolist() == [2 * 64 * 4096, 2 * 64 * 4096]
    assert found.sum(axis=0) == pytest.approx(backend.link_stats().carried_bytes)


def test_an_idle_network_costs_no_windows() -> None:
    """A million seconds without traffic, then a flow: windows are those of its time."""
    backend = FluidBackend(star(2))
    log = backend.log_links(120)
    backend.submit(FlowGraph.from_lists([0], [1], [1_000]), 10**18)
    backend.advance(2 * 10**18)
    _, window, _, carried, _ = log.rows()
    assert carried.tolist() == [1_000.0, 1_000.0]
    assert (window * log.window_ps <= 10**18).all()
    assert ((window + 1) * log.window_ps > 10**18).all()


def test_a_flow_without_capacity_is_waited_for_without_windows() -> None:
    """Background traffic takes the whole link: nothing is carried, however long that is."""
    topology = star(2)
    backend = FluidBackend(topology)
    log = backend.log_links(4, US)
    links = np.arange(topology.links)
    backend.set_background_bps(links, topology.capacity_bps.astype(np.float64))
    backend.submit(FlowGraph.from_lists([0], [1], [1_000]), 0)
    assert backend.advance(10**15) == []
    assert (log.window_ps, len(log.rows()[0])) == (US, 0)
    backend.set_background_bps(links, np.zeros(topology.links))
    backend.advance(FAR_PS)
    assert log.total_bytes(0).sum() == 2_000


def test_a_burst_keeps_its_height_when_windows_double() -> None:
    """A full window of the first width in a quiet second, then traffic after a minute."""
    log = LinkLog(1, 8, WINDOW_PS)
    for start, amount in ((3, 64.0), (40, 1.0)):
        log.spread(0, np.array([0]), np.array([amount]), (start * WINDOW_PS, (start + 1) * WINDOW_PS))
    log.spread(1, np.array([0]), np.array([2.0]), (60 * PS_PER_S, 60 * PS_PER_S + WINDOW_PS // 2))
    assert log.window_ps > PS_PER_S
    assert log.burst_ps == WINDOW_PS
    _, window, _, carried, burst = log.rows()
    assert carried.tolist() == [65.0, 2.0]
    assert burst.tolist() == [64.0, 2.0]
    assert window[0] == 0


def test_kinds_of_traffic_that_meet_in_a_burst_are_one_burst() -> None:
    log = LinkLog(1, 4, WINDOW_PS)
    for traffic in (0, 1):
        log.spread(traffic, np.array([0]), np.array([10.0]), (0, 2 * WINDOW_PS))
    log.spread(0, np.array([0]), np.array([3.0]), (WINDOW_PS, WINDOW_PS + WINDOW_PS // 3))
    *_, burst = log.rows()
    assert burst.max() == pytest.approx(13.0)


@given(ENTRIES)
def test_a_fullest_burst_lies_between_the_mean_and_all_of_its_window(entries: list[tuple[int, int, set[int]]]) -> None:
    """Whatever comes when, also seconds after its time."""
    log = LinkLog(10, 6, WINDOW_PS)
    for start, duration, links in entries:
        log.spread(start % 2, np.array(sorted(links)), np.full(len(links), 8.0), (start, start + duration))
    _, window, link, carried, burst = log.rows()
    totals = dict.fromkeys(zip(window.tolist(), link.tolist(), strict=True), 0.0)
    for key, amount in zip(zip(window.tolist(), link.tolist(), strict=True), carried.tolist(), strict=True):
        totals[key] += amount
    for key, most in zip(zip(window.tolist(), link.tolist(), strict=True), burst.tolist(), strict=True):
        assert totals[key] * log.burst_ps / log.window_ps * (1 - 1e-9) <= most <= totals[key] * (1 + 1e-9)
