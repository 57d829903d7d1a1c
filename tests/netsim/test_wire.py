"""Headers, ACKs and store-and-forward in `fluid` and `analytical`, against hand formulas and an exact model."""

from __future__ import annotations

from math import ceil, gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import (
    BackendError,
    FlowGraph,
    InputError,
    LinkKind,
    NodeKind,
    Topology,
    WireFormat,
    create_backend,
    rail_optimized,
)
from netsim._core import RATE_UNITS_PER_BPS
from netsim.routing import Router
from netsim.units import PS_PER_S
from tests.netsim.fluid_reference import WeightedFlow, end_times_in_whole_ps, filled_rates
from tests.netsim.strategies import GBPS, LATENCY_PS, networks_with_flows, star

FAR_PS = 10**18
WIRE_1000 = WireFormat(mtu_bytes=1000, header_bytes=48, ack_bytes=60)
LONG = 10**15


def ends(topology: Topology, graph: FlowGraph, wire: WireFormat | None, backend: str = "fluid") -> list[int]:
    network = create_backend(backend, topology, wire=wire)
    handle = network.submit(graph, 0)
    network.advance(FAR_PS)
    return network.flow_times(handle).end_ps.tolist()


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
def test_a_single_flow_takes_its_packets_one_after_the_other_and_one_hop_more(backend: str) -> None:
    """Golden: 20 MB in 20,000 packets of 1048 bytes, 20.96 ns each at 400 Gbit/s, over two links of 500 ns. The sender
    is done after 421.223 µs, when the last ACK (60 bytes, 1.2 ns per hop) is back, so the receiver 1.0024 µs before."""
    graph = FlowGraph.from_lists([0], [1], [20_000_000])
    assert ends(star(2), graph, WIRE_1000, backend) == [421_223_360 - 2 * LATENCY_PS - 2 * 1200]


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
def test_a_single_short_packet_is_sent_once_per_hop(backend: str) -> None:
    """100 bytes and a header of 48 take 2.96 ns per hop."""
    graph = FlowGraph.from_lists([0], [1], [100])
    assert ends(star(2), graph, WIRE_1000, backend) == [2 * 2960 + 2 * LATENCY_PS]


def test_a_short_last_packet_queues_behind_a_full_one() -> None:
    """2,100 bytes: 2,244 on the wire, 44.88 ns at the first hop; the last packet then waits for the full packet in
    front of it at each of three more hops (20.96 ns each)."""
    found = ends(rail_optimized(2), FlowGraph.from_lists([0], [9], [2100]), WIRE_1000)
    assert found == [44_880 + 3 * 20_960 + 4 * LATENCY_PS]


def test_flows_inside_a_server_are_their_bytes() -> None:
    topology = rail_optimized(2)
    graph = FlowGraph.from_lists([0], [1], [10**6])
    assert ends(topology, graph, WireFormat()) == ends(topology, graph, None)


@pytest.mark.parametrize(
    ("ack_bytes", "packets_per_ack", "nic_gbps", "packet_ps"),
    [(60, 1, 277, 32_000), (60, 4, 1063, 8_000), (0, 4, 262, 32_000)],
)
def test_acks_of_opposite_flows_take_their_share_of_the_links(
    ack_bytes: int, packets_per_ack: int, nic_gbps: int, packet_ps: int
) -> None:
    """Each link carries, per packet, 1048 bytes of data and 60, 60/4 or no bytes of ACK. At rates that divide these,
    1108 bytes take 32 ns at 277 Gbit/s, 1063 bytes 8 ns at 1063, and 1048 bytes 32 ns at 262."""
    wire = WireFormat(mtu_bytes=1000, header_bytes=48, ack_bytes=ack_bytes, packets_per_ack=packets_per_ack)
    graph = FlowGraph.from_lists([0, 1], [1, 0], [20_000_000] * 2)
    second_hop_ps = -(-1048 * 8000 // nic_gbps)
    found = ends(star(2, nic_gbps * GBPS), graph, wire)
    assert found == [20_000 * packet_ps + second_hop_ps + 2 * LATENCY_PS] * 2


def test_acks_on_a_link_of_their_own_data_share_it() -> None:
    """Links go round only: 0 → s → t → 1 and 1 → s, t → 0, so that data and ACKs both cross s → t. 1108 bytes take
    32 ns at 277 Gbit/s, and the first packet 30.268 ns at each of two more hops."""
    src, dst = np.array([0, 2, 3, 1, 3], dtype=np.int32), np.array([2, 3, 1, 2, 0], dtype=np.int32)
    topology = Topology(
        node_kind=np.array([NodeKind.GPU] * 2 + [NodeKind.SWITCH] * 2, dtype=np.int8),
        node_name=("a", "b", "s", "t"),
        link_src=src,
        link_dst=dst,
        capacity_bps=np.full(5, 277 * GBPS),
        latency_ps=np.zeros(5, dtype=np.int64),
        link_kind=np.full(5, LinkKind.FABRIC, dtype=np.int8),
        gpus_per_node=1,
    )
    assert ends(topology, FlowGraph.from_lists([0], [1], [10**6]), WIRE_1000) == [1000 * 32_000 + 2 * 30_268]


def test_a_cap_is_one_of_payload() -> None:
    """20 MB at 100 Gbit/s are 1.6 ms, whatever the headers."""
    graph = FlowGraph.from_lists([0], [1], [20_000_000], max_rate_bps=[100 * GBPS])
    assert ends(star(2), graph, WIRE_1000) == [1_600_000_000 + 20_960 + 2 * LATENCY_PS]


def test_links_count_what_is_on_the_wire() -> None:
    """20,000 packets of 1048 bytes one way (links 0 and 3 of a star), as many ACKs of 60 the other way."""
    backend = create_backend("fluid", star(2), wire=WIRE_1000)
    backend.submit(FlowGraph.from_lists([0], [1], [20_000_000]), 0)
    backend.advance(FAR_PS)
    assert backend.link_stats().carried_bytes.tolist() == [20_960_000, 1_200_000, 1_200_000, 20_960_000]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mtu_bytes": 0}, r"WireFormat.mtu_bytes: found 0, expected 1 to 2³¹ − 1"),
        ({"header_bytes": -1}, r"WireFormat.header_bytes: found -1"),
        ({"ack_bytes": 2**31}, r"WireFormat.ack_bytes: found 2147483648"),
        ({"packets_per_ack": 0}, r"WireFormat.packets_per_ack: found 0"),
        ({"packets_per_ack": 2**20}, r"WireFormat.packets_per_ack: found 4349493248 bytes per ACK"),
    ],
)
def test_impossible_formats_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        WireFormat(**fields)


def test_backends_that_simulate_packets_take_no_wire_format() -> None:
    with pytest.raises(BackendError, match="wire: found one for backend packet, expected none"):
        create_backend("packet", star(2), wire=WireFormat())


class ExactModel:
    """A topology with flows in the integers that the backend uses, for a wire format or none."""

    def __init__(self, topology: Topology, wire: WireFormat | None) -> None:
        self.topology, self.wire, self.router = topology, wire, Router(topology)
        payload, headers, self.ack_weight = (
            (wire.packets_per_ack * wire.mtu_bytes, wire.packets_per_ack * wire.header_bytes, wire.ack_bytes)
            if wire
            else (1, 0, 0)
        )
        divisor = gcd(payload, headers, self.ack_weight)
        self.payload_weight, self.wire_weight = payload // divisor, (payload + headers) // divisor
        self.ack_weight //= divisor
        finest = 10**15 * RATE_UNITS_PER_BPS // int(topology.capacity_bps.max()) // self.wire_weight
        divisors = [units for units in range(1, RATE_UNITS_PER_BPS + 1) if RATE_UNITS_PER_BPS % units == 0]
        self.units = max(units for units in divisors if units <= finest) * self.wire_weight
        self.capacity = [capacity * self.units for capacity in topology.capacity_bps.tolist()]

    def flow(self, graph: FlowGraph, i: int) -> WeightedFlow:
        ends = int(graph.src[i]), int(graph.dst[i]), int(graph.flow_label[i])
        path = self.router.route(*ends).tolist()
        size, weight, tail_ps = int(graph.size_bytes[i]), self.payload_weight, self.router.path_latency_ps(*ends)
        weights = dict.fromkeys(path, weight)
        if self.wire and (self.topology.link_kind[path] != LinkKind.NVLINK).any():
            weight = self.wire_weight
            first = min(size, self.wire.mtu_bytes) + self.wire.header_bytes
            size += -(-size // self.wire.mtu_bytes) * self.wire.header_bytes
            hop_ps = sorted(-(-first * 8 * PS_PER_S // int(self.topology.capacity_bps[link])) for link in path)
            tail_ps += sum(hop_ps[:-1])
            weights = dict.fromkeys(path, weight)
            for link in self.router.reverse_route(*ends).tolist() if self.ack_weight else ():
                weights[link] = weights.get(link, 0) + self.ack_weight
        cap = int(graph.max_rate_bps[i]) * self.units // self.payload_weight or None
        amount = -(-size * 8 * PS_PER_S * self.units // weight)
        return WeightedFlow(weights, amount, int(graph.ready_ps[i]), tail_ps, cap)


WIRES = st.sampled_from([None, WireFormat(), WIRE_1000, WireFormat(packets_per_ack=16), WireFormat(ack_bytes=0)])


@given(networks_with_flows(with_deps=False), WIRES)
@settings(max_examples=120)
def test_completion_times_are_those_of_solving_from_scratch_to_the_picosecond(
    case: tuple[Topology, FlowGraph], wire: WireFormat | None
) -> None:
    topology, graph = case
    model = ExactModel(topology, wire)
    real = [i for i in range(len(graph)) if graph.size_bytes[i] and graph.src[i] != graph.dst[i]]
    expected = graph.ready_ps.tolist()
    if real:
        flows = [model.flow(graph, i) for i in real]
        for i, end in zip(real, end_times_in_whole_ps(flows, model.capacity), strict=True):
            expected[i] = end
    assert ends(topology, graph, wire) == expected


@pytest.mark.parametrize("wire", [None, WireFormat()])
def test_many_flows_over_many_levels_of_bottlenecks_end_when_an_exact_model_says(wire: WireFormat | None) -> None:
    """200 flows of all sizes over 32 GPUs, eight leaves and three spines, a third with a cap."""
    topology = rail_optimized(8, 4, nodes_per_segment=4, spines=3, oversubscription=2)
    rng = np.random.default_rng(5)
    src = rng.integers(0, 32, 200)
    graph = FlowGraph.from_lists(
        src.tolist(),
        ((src + rng.integers(1, 32, 200)) % 32).tolist(),
        rng.integers(1, 500_000, 200).tolist(),
        ready_ps=rng.integers(0, 20_000_000, 200).tolist(),
        flow_label=list(range(200)),
        max_rate_bps=rng.choice([0, 0, 30 * GBPS], 200).tolist(),
    )
    model = ExactModel(topology, wire)
    expected = end_times_in_whole_ps([model.flow(graph, i) for i in range(200)], model.capacity)
    assert ends(topology, graph, wire) == expected


@given(networks_with_flows(with_deps=False), WIRES, st.data())
@settings(max_examples=120)
def test_rates_after_every_change_are_those_of_solving_from_scratch_to_the_last_unit(
    case: tuple[Topology, FlowGraph], wire: WireFormat | None, data: st.DataObject
) -> None:
    """Flows that never end are submitted, several at once, and cancelled, and background comes and goes; after each
    change, the rate of every link is exactly the sum over a solution from scratch."""
    topology, drawn = case
    real = [i for i in range(len(drawn)) if drawn.src[i] != drawn.dst[i]]
    graph = FlowGraph.from_lists(
        drawn.src, drawn.dst, [LONG] * len(drawn), flow_label=drawn.flow_label, max_rate_bps=drawn.max_rate_bps
    )
    model = ExactModel(topology, wire)
    capacity = list(model.capacity)
    backend = create_backend("fluid", topology, wire=wire)
    running: dict[int, int] = {}
    for step in range(1, 8):
        for i in data.draw(st.lists(st.sampled_from(real), unique=True, max_size=8)) if real else ():
            if i in running:
                backend.cancel(running.pop(i))
            else:
                one = FlowGraph.from_lists(
                    [graph.src[i]],
                    [graph.dst[i]],
                    [LONG],
                    flow_label=[graph.flow_label[i]],
                    max_rate_bps=[graph.max_rate_bps[i]],
                )
                running[i] = backend.submit(one, step)
        link = data.draw(st.integers(0, topology.links - 1))
        taken = data.draw(st.sampled_from([0, 0, 1, 3])) * int(topology.capacity_bps[link]) // 4
        capacity[link] = model.capacity[link] - ceil(float(taken) * model.units)  # background is in floating point
        backend.set_background_bps(np.array([link]), np.array([float(taken)]))
        backend.advance(step)
        flows = {i: model.flow(graph, i) for i in running}
        expected = [0] * topology.links
        for i, rate in filled_rates(flows, capacity).items():
            for crossed, weight in flows[i].weights.items():
                expected[crossed] += rate * weight
        assert backend.link_rates_bps().tolist() == [float(rate) / float(model.units) for rate in expected]


@given(networks_with_flows(), st.lists(st.integers(1, 10**7), max_size=30))
@settings(max_examples=60)
def test_steps_do_not_change_results_with_a_wire_format(case: tuple[Topology, FlowGraph], steps_ps: list[int]) -> None:
    topology, graph = case
    backend = create_backend("fluid", topology, wire=WIRE_1000)
    handle = backend.submit(graph, 0)
    for step in steps_ps:
        backend.advance(backend.now_ps + step)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).end_ps.tolist() == ends(topology, graph, WIRE_1000)
