"""Exact times of single packets and single flows, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import FlowGraph, GraphHandle, single_switch
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from netsim.topologies.defaults import LinkRates
from tests.netsim.packet_times import (
    ALONE,
    FAR_PS,
    Hop,
    Wire,
    ack_ps,
    chain,
    run,
    serialization_ps,
    transfer_ps,
)
from tests.netsim.strategies import GBPS, star

H400 = Hop(400 * GBPS, 500_000)


def times_of_one_flow(hops: list[Hop], size_bytes: int, config: RoceConfig) -> tuple[int, int]:
    """When the last byte has arrived, and when the sender knows of it."""
    backend, times = run(chain(hops), FlowGraph.from_lists([0], [1], [size_bytes]), config)
    return int(times.end_ps[0]), int(backend.acknowledged_ps(GraphHandle(0), 1)[0])


def test_the_reference_flow_takes_421_microseconds() -> None:
    """20 MB in packets of 1000 B over two links of 400 Gbit/s and 500 ns, header 48 B: 20,000 · 20.96 ns until the last
    packet has left, 20.96 ns on the second link, 1 µs of latency; back 1 µs and two times 1.2 ns: 421.223 µs."""
    config = ALONE.model_copy(update={"mtu_bytes": 1000, "header_bytes": 48})
    arrived = 20_000 * 20_960 + 20_960 + 1_000_000
    acknowledged = arrived + 1_000_000 + 2 * 1_200
    assert times_of_one_flow([H400] * 2, 20_000_000, config) == (arrived, acknowledged)
    assert acknowledged // 1_000 == 421_223


@pytest.mark.parametrize("mtu_bytes", [1000, 4096, 9000])
@pytest.mark.parametrize("links", range(1, 7))
def test_a_packet_is_stored_and_forwarded_at_every_hop(links: int, mtu_bytes: int) -> None:
    """n · (wire bytes / 400 Gbit/s + 500 ns), at 20 ps per byte; back n · (60 B + 500 ns)."""
    config = ALONE.model_copy(update={"mtu_bytes": mtu_bytes})
    arrived = links * ((mtu_bytes + 52) * 20 + 500_000)
    acknowledged = arrived + links * (60 * 20 + 500_000)
    assert times_of_one_flow([H400] * links, mtu_bytes, config) == (arrived, acknowledged)


@pytest.mark.parametrize("links", range(1, 7))
def test_a_flow_is_a_pipeline_of_packets(links: int) -> None:
    """100 packets and one of 1 byte: 100 of 82.96 ns leave one behind the other, the small one at their heels; the
    last full one then crosses n − 1 more links, the small one n-th of its 1.06 ns behind it."""
    size = 100 * 4096 + 1
    arrived = (100 + links - 1) * 82_960 + 1_060 + links * 500_000
    assert times_of_one_flow([H400] * links, size, ALONE)[0] == arrived


def test_the_slowest_link_sets_the_pace() -> None:
    """400, 100, 400 Gbit/s: 50 packets cross the middle one in 50 · 331.84 ns, the first and the last link take
    82.96 ns once each."""
    hops = [H400, Hop(100 * GBPS, 700_000), H400]
    assert times_of_one_flow(hops, 50 * 4096, ALONE)[0] == 50 * 331_840 + 2 * 82_960 + 1_700_000


HOPS = st.lists(
    st.builds(
        Hop,
        st.sampled_from([GBPS, 7 * GBPS, 25 * GBPS, 100 * GBPS, 333_333_333_333, 400 * GBPS, 1600 * GBPS]),
        st.sampled_from([0, 1, 25_000, 500_000, 12_345_678]),
    ),
    min_size=1,
    max_size=6,
)


@given(hops=HOPS, size_bytes=st.integers(1, 300_000), mtu_bytes=st.sampled_from([1000, 4096, 9000]))
@settings(max_examples=150)
def test_any_flow_alone_takes_what_its_packets_take(hops: list[Hop], size_bytes: int, mtu_bytes: int) -> None:
    """Mixed rates, latencies and sizes; the acknowledgement of the last packet follows idle links back."""
    config = ALONE.model_copy(update={"mtu_bytes": mtu_bytes, "acks_first": True})
    wire = Wire(mtu_bytes)
    arrived, acknowledged = times_of_one_flow(hops, size_bytes, config)
    assert arrived == transfer_ps(hops, size_bytes, wire)
    if len(wire.packets(size_bytes)) == 1:
        assert acknowledged == arrived + ack_ps(hops, wire)
    else:
        assert acknowledged >= arrived + ack_ps(hops, wire)


@given(
    hops=HOPS, size_bytes=st.integers(1, 300_000), scheme=st.sampled_from(["dcqcn", "hpcc", "timely", "dctcp", "none"])
)
@settings(max_examples=60)
def test_no_flow_is_faster_than_its_packets_whatever_controls_it(hops: list[Hop], size_bytes: int, scheme: str) -> None:
    config = RoceConfig(congestion_control=scheme)
    wire = Wire(header_bytes=config.header_bytes)
    assert times_of_one_flow(hops, size_bytes, config)[0] >= transfer_ps(hops, size_bytes, wire)


@pytest.mark.parametrize("scheme", ["dcqcn", "timely", "dctcp", "none"])
@pytest.mark.parametrize("links", [1, 2, 4, 6])
def test_a_window_of_the_bandwidth_delay_product_does_not_slow_a_flow_alone(links: int, scheme: str) -> None:
    """No queue builds up on equal links, so no scheme has a reason to slow down (HPCC aims below the line rate)."""
    config = RoceConfig(congestion_control=scheme, window="fixed")
    assert times_of_one_flow([H400] * links, 2_000_000, config)[0] == transfer_ps([H400] * links, 2_000_000)


def test_a_window_of_one_packet_waits_for_every_acknowledgement() -> None:
    """A latency of 0 and a link of 400 Gbit/s: the round trip is 84.16 ns, its product 4,208 B and one packet in
    addition make two packets, which is enough; the flow runs at line rate."""
    hops = [Hop(400 * GBPS, 0)]
    config = ALONE.model_copy(update={"window": "fixed"})
    assert times_of_one_flow(hops, 10 * 4096, config)[0] == 10 * 82_960


def test_flows_between_gpus_of_a_server_have_no_headers_and_no_acknowledgements() -> None:
    """NVLink at 2,966.4 Gbit/s: 25 packets over two links of 25 ns; nothing comes back: both ends are done at once."""
    topology = single_switch(2, 8)
    backend, times = run(topology, FlowGraph.from_lists([0], [1], [25 * 4096]), ALONE)
    packet = serialization_ps(4096, 2_966_400_000_000)
    assert times.end_ps[0] == 25 * packet + packet + 50_000
    assert backend.acknowledged_ps(GraphHandle(0), 1)[0] == times.end_ps[0]
    counters = backend.counters()
    assert counters.wire_bytes.sum() == counters.payload_bytes.sum() == 2 * 25 * 4096
    assert counters.packets.sum() == backend.packet_hops() == 50


def test_credits_of_the_default_size_do_not_slow_nvlink_down() -> None:
    rates = LinkRates(nvlink_latency_ps=300_000)
    hops = [Hop(rates.nvlink_bps, 300_000)] * 2
    _, times = run(single_switch(2, 8, rates=rates), FlowGraph.from_lists([0], [1], [4_000_000]), ALONE)
    assert times.end_ps[0] == transfer_ps(hops, 4_000_000, Wire(header_bytes=0))


def test_few_credits_make_nvlink_wait_for_their_return() -> None:
    """One packet fits into the NVSwitch. It is forwarded when it is there (4096 B and 25 ns), has left another
    serialisation later, and its credit takes 25 ns back: a packet every 2 · (serialisation + 25 ns)."""
    config = ALONE.model_copy(update={"nvswitch_input_bytes": 1})
    _, times = run(single_switch(2, 8), FlowGraph.from_lists([0], [1], [10 * 4096]), config)
    packet = serialization_ps(4096, 2_966_400_000_000)
    assert times.end_ps[0] == 10 * 2 * (packet + 25_000)


@pytest.mark.parametrize("links", range(1, 7))
@pytest.mark.parametrize("cell_packets", [4, 8])
def test_cells_on_equal_links_arrive_as_their_packets_would(links: int, cell_packets: int) -> None:
    """A cell goes on when its first packet is there, so over equal links it loses nothing to store and forward."""
    config = ALONE.model_copy(update={"cell_packets": cell_packets})
    size = 5 * cell_packets * 4096
    assert times_of_one_flow([H400] * links, size, config)[0] == transfer_ps([H400] * links, size)


@pytest.mark.parametrize(("first", "second"), [(100, 400), (400, 100), (400, 25)])
def test_a_cell_leaves_no_earlier_than_its_last_packet_has_come(first: int, second: int) -> None:
    """One cell of 8 packets over links of different rates: as its 8 packets."""
    hops = [Hop(first * GBPS, 500_000), Hop(second * GBPS, 500_000)]
    config = ALONE.model_copy(update={"cell_packets": 8})
    assert times_of_one_flow(hops, 8 * 4096, config)[0] == transfer_ps(hops, 8 * 4096)


def test_the_acknowledgement_of_a_cell_is_as_long_as_those_of_its_packets() -> None:
    config = ALONE.model_copy(update={"cell_packets": 8})
    arrived, acknowledged = times_of_one_flow([H400] * 2, 8 * 4096, config)
    assert acknowledged - arrived == 2 * (500_000 + 8 * 60 * 20)


def test_a_cap_spaces_the_packets_of_a_flow() -> None:
    """At 100 of 400 Gbit/s a packet leaves every 331.84 ns; the last of 10 is sent and forwarded at 400 Gbit/s."""
    graph = FlowGraph.from_lists([0], [1], [10 * 4096], max_rate_bps=[100 * GBPS])
    _, times = run(star(2), graph, ALONE)
    assert times.end_ps[0] == 9 * 331_840 + 2 * 82_960 + 1_000_000


def test_a_cap_holds_on_nvlink_too() -> None:
    """100 Gbit/s without headers: a packet every 327.68 ns."""
    graph = FlowGraph.from_lists([0], [1], [10 * 4096], max_rate_bps=[100 * GBPS])
    _, times = run(single_switch(2, 8), graph, ALONE)
    packet = serialization_ps(4096, 2_966_400_000_000)
    assert times.end_ps[0] == 9 * 327_680 + 2 * packet + 50_000


def test_a_flow_that_hardly_sends_is_not_taken_for_lost() -> None:
    """One packet every 1.002 ms, a little more than the retransmission timeout, is sent once."""
    bps = 4148 * 8 * 10**12 // 1_002_000_000
    graph = FlowGraph.from_lists([0], [1], [20 * 4096], max_rate_bps=[bps])
    config = ALONE.model_copy(update={"retransmission_timeout": 1_000_000_000})
    backend, times = run(star(2), graph, config)
    assert backend.counters().payload_bytes.sum() == 2 * 20 * 4096
    assert not times.has_failed.any()


def test_an_instance_ends_where_its_clock_says() -> None:
    backend = PacketBackend(star(2), ALONE)
    backend.submit(FlowGraph.from_lists([0], [1], [4096]), 0)
    assert [c.at_ps for c in backend.advance(FAR_PS)] == [2 * 82_960 + 1_000_000] == [backend.now_ps]
