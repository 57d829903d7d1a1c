"""Flows whose own network interface is down: they end, although they can send nothing."""

from __future__ import annotations

import pytest

from netsim import FlowGraph, create_backend, rail_optimized
from netsim.packet import PacketBackend
from netsim.roce import RoceConfig
from tests.netsim.strategies import star

FAR_PS = 10**15
RTO_PS = 50_000_000
SETTINGS = RoceConfig(retransmission_timeout="50us", max_retries=2, reroute_delay="1s")


@pytest.mark.parametrize("cut_ps", [0, 1_000_000, 5_000_000])
def test_a_sender_without_its_cable_fails_when_its_retries_have_run_out(cut_ps: int) -> None:
    """Three timeouts of 50 µs in a row after the last acknowledgement, which at most 4 µs of round trip follow the cut;
    cut at 0, the flow starts on a cable that is down."""
    backend = PacketBackend(star(3), SETTINGS)
    if cut_ps == 0:
        backend.set_link_up(0, False)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [1_000_000]), 0)
    backend.advance(cut_ps)
    backend.set_link_up(0, False)
    (completion,) = backend.advance(FAR_PS)
    assert (completion.handle, completion.flow, completion.is_failed) == (handle, None, True)
    assert 3 * RTO_PS <= completion.at_ps - cut_ps <= 3 * RTO_PS + RTO_PS
    assert backend.flow_times(handle).has_failed.tolist() == [True]


def test_a_cable_that_comes_back_in_time_costs_a_timeout_only() -> None:
    backend = PacketBackend(star(3), SETTINGS)
    handle = backend.submit(FlowGraph.from_lists([0], [1], [1_000_000]), 0)
    backend.advance(5_000_000)
    backend.set_link_up(0, False)
    backend.advance(60_000_000)
    backend.set_link_up(0, True)
    (completion,) = backend.advance(FAR_PS)
    assert not completion.is_failed
    assert 60_000_000 < completion.at_ps < 5 * RTO_PS
    assert backend.flow_times(handle).end_ps.tolist() == [completion.at_ps]


def test_nvlink_flows_fail_with_their_link_and_later_ones_too() -> None:
    """Two senders of NVSwitch 0: the one whose link breaks fails at once, the other is not touched."""
    topology = rail_optimized(1, 4)
    backend = create_backend("packet", topology, SETTINGS)
    assert isinstance(backend, PacketBackend)
    link = next(link for link in range(topology.links) if topology.link_src[link] == 0 and topology.link_dst[link] == 4)
    graph = FlowGraph.from_lists([0, 2, 0], [1, 3, 1], [10_000_000] * 3, ready_ps=[0, 0, 20_000_000])
    handle = backend.submit(graph, 0)
    backend.advance(5_000_000)
    backend.set_link_up(link, False)
    (completion,) = backend.advance(FAR_PS)
    assert completion.is_failed
    assert completion.at_ps <= 20_000_000 + RTO_PS
    assert backend.flow_times(handle).has_failed.tolist() == [True, False, True]
