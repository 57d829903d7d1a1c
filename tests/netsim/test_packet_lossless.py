"""Shared buffers: incast at the capacity bound, PFC without loss, loss without PFC, and where every byte has gone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import FlowGraph, NodeKind, Topology, rail_optimized
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig, headroom_bytes
from netsim.topologies.defaults import LinkRates
from tests.netsim.packet_times import ALONE, Hop, Wire, jain, run, transfer_ps
from tests.netsim.strategies import GBPS, star, star_of

ALIGNED = ALONE.model_copy(update={"window": "fixed", "acks_first": True})
"""Senders with a window, acknowledgements out of the way of the data."""


def least_buffer(topology: Topology, config: RoceConfig) -> int:
    """Memory in bytes that headroom and reserves of the largest switch need."""
    needed = np.zeros(topology.nodes, dtype=np.int64)
    np.add.at(needed, topology.link_dst, headroom_bytes(config, topology) + config.reserve_bytes)
    return int(needed[topology.node_kind != NodeKind.GPU].max())


def with_least_buffer(topology: Topology, config: RoceConfig, extra_bytes: int = 0) -> RoceConfig:
    return config.model_copy(update={"switch_buffer_bytes": least_buffer(topology, config) + extra_bytes})


@pytest.mark.parametrize("senders", [2, 3, 8, 15, 31, 63])
def test_an_incast_takes_what_its_bytes_take_on_the_last_link(senders: int) -> None:
    """Σ wire bytes at 400 Gbit/s and the latency of the first packet (82.96 ns and 1 µs), within 0.2 %; all senders get
    the same share."""
    size = 2_000_000
    graph = FlowGraph.from_lists(list(range(senders)), [senders] * senders, [size] * senders)
    _, times = run(star(senders + 1), graph, ALIGNED)
    bound = senders * sum(Wire().packets(size)) * 20 + transfer_ps([Hop(400 * GBPS, 500_000)], 4096) + 500_000
    assert bound <= times.end_ps.max() <= bound * 1.002
    assert jain(1 / times.end_ps) > 0.99


def test_the_published_incast_of_63_is_met() -> None:
    """63 senders of 2 MB with 1000-B packets and headers of 48 B, no control: 63 · 2,096,000 B · 20 ps are 2,641 µs."""
    config = ALIGNED.model_copy(update={"mtu_bytes": 1000, "header_bytes": 48})
    graph = FlowGraph.from_lists(list(range(63)), [63] * 63, [2_000_000] * 63)
    backend, times = run(star(64), graph, config)
    assert times.end_ps.max() == 63 * 2000 * 20_960 + 20_960 + 1_000_000
    assert backend.counters().drops.sum() == 0


@pytest.mark.parametrize("mtu_bytes", [1000, 4096, 9000])
def test_pauses_slow_an_incast_down_by_nothing(mtu_bytes: int) -> None:
    """A switch with hardly any memory beyond headroom: the last link never runs dry, and nothing is lost."""
    topology = star(9)
    config = with_least_buffer(topology, ALONE.model_copy(update={"mtu_bytes": mtu_bytes, "acks_first": True}), 400_000)
    graph = FlowGraph.from_lists(list(range(8)), [8] * 8, [2_000_000] * 8)
    backend, times = run(topology, graph, config)
    bound = 8 * sum(Wire(mtu_bytes).packets(2_000_000)) * 20
    assert bound < times.end_ps.max() <= bound * 1.002 + 1_200_000
    counters = backend.counters()
    assert counters.drops.sum() == 0
    assert (counters.pauses[:16:2] > 0).all()
    assert jain(1 / times.end_ps) > 0.99


def conserved(topology: Topology, graph: FlowGraph, backend: PacketBackend) -> None:
    """On a network without loss, every switch sends what it receives and every byte reaches its destination once."""
    counters = backend.counters()
    src, dst = np.array(topology.link_src), np.array(topology.link_dst)
    remote = graph.src != graph.dst
    for node in range(topology.nodes):
        into, out = counters.payload_bytes[dst == node].sum(), counters.payload_bytes[src == node].sum()
        if node < topology.gpus:
            assert into == graph.size_bytes[remote & (graph.dst == node)].sum()
            assert out == graph.size_bytes[remote & (graph.src == node)].sum()
        else:
            assert into == out
    assert counters.queued_bytes.sum() == 0


def pauses_pair_up(backend: PacketBackend) -> None:
    """Of each link and class: pause, resume, pause, resume … and nobody is left paused."""
    events = sorted(backend.pauses(), key=lambda event: (event.link, event.priority))
    for _, group in itertools.groupby(events, key=lambda event: (event.link, event.priority)):
        kinds = [event.is_pause for event in group]
        assert kinds == [True, False] * (len(kinds) // 2)
    assert len(events) == 2 * backend.counters().pauses.sum()


def mixed_star(draw: st.DrawFn) -> Topology:
    rates = st.sampled_from([100 * GBPS, 200 * GBPS, 400 * GBPS])
    latency = st.sampled_from([0, 500_000, 5_000_000])
    return star_of(draw(st.lists(rates, min_size=3, max_size=6)), draw(latency))


def small_rails(draw: st.DrawFn) -> Topology:
    rates = LinkRates(nic_bps=draw(st.sampled_from([100 * GBPS, 400 * GBPS])))
    return rail_optimized(3, 2, nodes_per_segment=1, spines=2, oversubscription=2, rates=rates)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Topology, FlowGraph, RoceConfig]:
    """Many flows at once in several classes, mostly into few hosts, over a switch with next to no shared memory."""
    topology = draw(st.sampled_from([mixed_star, small_rails]))(draw)
    hosts = topology.gpus
    flows = draw(
        st.lists(
            st.tuples(
                st.integers(0, hosts - 1),
                st.integers(0, min(hosts - 1, 2)),
                st.integers(1, 400_000),
                st.integers(0, 5_000_000),
                st.sampled_from([1, 3, 3, 3, 7]),
            ),
            min_size=2,
            max_size=16,
        )
    )
    src, dst, size, ready, priority = zip(*flows, strict=True)
    config = RoceConfig(
        congestion_control=draw(st.sampled_from(["none", "none", "dcqcn", "hpcc"])),
        window=draw(st.sampled_from(["unbounded", "fixed"])),
        acks_first=draw(st.booleans()),
        mtu_bytes=draw(st.sampled_from([1000, 4096, 9000])),
        cell_packets=draw(st.sampled_from([1, 1, 1, 4])),
        reserve_bytes=draw(st.sampled_from([0, 4096, 20_000])),
        load_balancing=draw(st.sampled_from(["ecmp", "adaptive"])),
        threshold_shift=draw(st.sampled_from([0, 3, 16])),
        retransmission_timeout="1s",
    )
    config = with_least_buffer(topology, config, draw(st.sampled_from([1, 50_000, 2_000_000])))
    return topology, FlowGraph.from_lists(src, dst, size, ready_ps=ready, priority=priority), config


@given(loads())
@settings(max_examples=150)
def test_the_automatic_headroom_never_loses_a_packet(case: tuple[Topology, FlowGraph, RoceConfig]) -> None:
    topology, graph, config = case
    backend, times = run(topology, graph, config)
    assert backend.counters().drops.sum() == 0
    assert not times.has_failed.any()
    conserved(topology, graph, backend)
    pauses_pair_up(backend)


def test_three_packets_arrive_after_a_pause_was_decided() -> None:
    """The case that sizes headroom. Nothing leaves (the receiver's link is storming) and all memory is headroom, so the
    first packet goes there and asks for a pause. The frame waits for a full packet on the way to the sender, which has
    just begun another one: with what is on the cable, three packets and a round trip have to fit. Senders start at
    moments that differ by less than two packets."""
    topology = star(3)
    for offset_ps in range(0, 200_000, 5_000):
        config = with_least_buffer(topology, ALONE.model_copy(update={"threshold_shift": 16, "reserve_bytes": 0}))
        backend = PacketBackend(topology, config)
        backend.keep_log()
        backend.set_storm(3, 3, True)  # switch to host 1
        graph = FlowGraph.from_lists([0, 2], [1, 0], [400_000, 400_000], priority=[3, 5], ready_ps=[offset_ps, 0])
        backend.submit(graph, 0)
        backend.advance(100_000_000)
        assert [event.is_pause for event in backend.pauses() if event.priority == 3] == [True]
        assert backend.counters().drops.sum() == 0


def test_without_headroom_packets_are_lost_and_sent_again() -> None:
    """The same incast as with pauses, in 200 kB and with headroom taken away."""
    config = ALONE.model_copy(update={"headroom_bytes": 0, "switch_buffer_bytes": 200_000})
    graph = FlowGraph.from_lists(list(range(8)), [8] * 8, [2_000_000] * 8)
    backend, times = run(star(9), graph, config)
    assert backend.counters().drops.sum() > 0
    assert not times.has_failed.any()
    assert (times.end_ps > 0).all()


@pytest.mark.parametrize("recovery", ["go_back_n", "selective_repeat"])
@pytest.mark.parametrize("packets_per_ack", [1, 16])
def test_without_pauses_every_byte_still_arrives(recovery: str, packets_per_ack: int) -> None:
    """An incast of 8 into 100 kB of memory: payload is sent more than once, delivered once. Selective repeat sends
    again no more than was lost or late; go-back-N much more."""
    config = ALONE.model_copy(
        update={
            "pfc": False, "headroom_bytes": 0, "switch_buffer_bytes": 100_000, "recovery": recovery, "window": "fixed",
            "packets_per_ack": packets_per_ack, "nack_interval": 20_000_000, "retransmission_timeout": 200_000_000,
            "max_retries": 50,
        }
    )  # fmt: skip
    graph = FlowGraph.from_lists(list(range(8)), [8] * 8, [500_000] * 8)
    backend, times = run(star(9), graph, config)
    counters = backend.counters()
    assert counters.drops.sum() > 0
    assert counters.pauses.sum() == 0
    assert not times.has_failed.any()
    sent = counters.payload_bytes[:16:2].sum()
    assert sent >= 8 * 500_000 + 4096 * (counters.drops.sum() // 2)
    assert counters.payload_bytes[17] >= 8 * 500_000
    assert (backend.acknowledged_ps(backend.submit(graph, backend.now_ps), 8) == -1).all()


@given(
    sizes=st.lists(st.integers(1, 300_000), min_size=2, max_size=8),
    recovery=st.sampled_from(["go_back_n", "selective_repeat"]),
    mtu_bytes=st.sampled_from([1000, 4096]),
    cell_packets=st.sampled_from([1, 4]),
    packets_per_ack=st.sampled_from([1, 5]),
    buffer_bytes=st.sampled_from([40_000, 60_000, 150_000]),
)
@settings(max_examples=60)
def test_lossy_networks_deliver_everything(
    sizes: list[int], recovery: str, mtu_bytes: int, cell_packets: int, packets_per_ack: int, buffer_bytes: int
) -> None:
    config = ALONE.model_copy(
        update={
            "pfc": False, "headroom_bytes": 0, "switch_buffer_bytes": buffer_bytes, "recovery": recovery,
            "mtu_bytes": mtu_bytes, "cell_packets": cell_packets, "packets_per_ack": packets_per_ack,
            "window": "fixed", "retransmission_timeout": 100_000_000, "nack_interval": 10_000_000, "max_retries": 100,
            "reserve_bytes": 0, "threshold_shift": 0,
        }
    )  # fmt: skip
    hosts = len(sizes)
    graph = FlowGraph.from_lists(list(range(hosts)), [hosts] * hosts, sizes)
    backend, times = run(star(hosts + 1), graph, config)
    assert (times.end_ps > 0).all()
    assert not times.has_failed.any()
    delivered = backend.counters().payload_bytes[2 * hosts + 1]  # into the receiver, duplicates included
    assert delivered >= sum(sizes)
