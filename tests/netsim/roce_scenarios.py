"""Random runs of the RoCE model: fabrics, settings, flow graphs and what befalls links meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from netsim import (
    BackendError,
    DragonflyShape,
    FlowGraph,
    GraphHandle,
    LinkKind,
    NodeKind,
    Topology,
    dragonfly,
    fat_tree,
    rail_optimized,
)
from netsim.backends.packet.backend import PacketBackend
from netsim.roce.config import EcnThresholds, RoceConfig, headroom_bytes
from netsim.topology import DuplexLink
from tests.netsim.strategies import GBPS, LATENCY_PS, star_of

FAR_PS = 10**12
"""1 s: after all retries."""
US_PS = 1_000_000


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A cable fails or is repaired, or a storm of pauses begins or ends."""

    at_ps: int
    link: int
    is_good: bool
    storm_priority: int | None = None
    """``None``: failure or repair."""


@dataclass(frozen=True, slots=True)
class Scenario:
    topology: Topology
    config: RoceConfig
    graphs: tuple[tuple[int, FlowGraph], ...]
    """With their times of submission, in order."""
    events: tuple[LinkEvent, ...] = ()
    """In order."""


Outcome = dict[str, NDArray[np.int64] | list[object] | int | str]


def outcome(start: Callable[[Topology, RoceConfig], PacketBackend], scenario: Scenario, step_ps: int) -> Outcome:
    """All that a backend tells of a run in steps of ``step_ps`` up to 200 µs, and then in one."""
    with contextlib.closing(start(scenario.topology, scenario.config)) as backend:
        backend.keep_log()
        backend.sample_every(61 * US_PS)
        handles: list[GraphHandle] = []
        told: list[object] = []
        error = ""
        try:
            for at_ps, act in _acts(backend, scenario, handles):
                told += _advance(backend, at_ps, step_ps)
                act()
            told += _advance(backend, max(200 * US_PS, backend.now_ps), step_ps) + _advance(backend, FAR_PS, FAR_PS)
        except BackendError as caught:
            error = str(caught)
        result: Outcome = {"error": error, "completions": told, "now": backend.now_ps, "hops": backend.packet_hops()}
        result["pauses"] = list(backend.pauses())
        for handle, (_, graph) in zip(handles, scenario.graphs, strict=False):
            times = backend.flow_times(handle)
            result |= {f"{handle} start": times.start_ps, f"{handle} end": times.end_ps}
            result[f"{handle} failed"] = times.has_failed.astype(np.int64)
            result[f"{handle} acknowledged"] = backend.acknowledged_ps(handle, len(graph))
        for part in (backend.counters(), backend.time_series()):
            result |= {f"{type(part).__name__} {field.name}": getattr(part, field.name) for field in fields(part)}
        return result


def _acts(
    backend: PacketBackend, scenario: Scenario, handles: list[GraphHandle]
) -> list[tuple[int, Callable[[], object]]]:
    """Submissions and events with their times, in order."""
    acts: list[tuple[int, Callable[[], object]]] = []
    for at_ps, graph in scenario.graphs:
        acts.append((at_ps, lambda graph=graph, at_ps=at_ps: handles.append(backend.submit(graph, at_ps))))
    for event in scenario.events:
        acts.append((event.at_ps, lambda event=event: _befall(backend, event)))
    return sorted(acts, key=lambda act: act[0])


def _befall(backend: PacketBackend, event: LinkEvent) -> None:
    if event.storm_priority is None:
        backend.set_link_up(event.link, event.is_good)
    else:
        backend.set_storm(event.link, event.storm_priority, not event.is_good)


def _advance(backend: PacketBackend, until_ps: int, step_ps: int) -> list[object]:
    told: list[object] = []
    while backend.now_ps < until_ps or backend.next_event_ps() == until_ps:
        told += backend.advance(min(until_ps, backend.now_ps + step_ps))
    return told


def assert_equal(first: Outcome, second: Outcome) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(second[name]), err_msg=name)


def clos(hosts: int = 8, leaves: int = 2, spines: int = 2) -> Topology:
    """Leaves and spines with one cable per pair, half as much up as down."""
    nodes = [(NodeKind.GPU, f"gpu{i}") for i in range(hosts)]
    nodes += [(NodeKind.LEAF, f"leaf{i}") for i in range(leaves)] + [
        (NodeKind.SPINE, f"spine{i}") for i in range(spines)
    ]
    cables = [DuplexLink(i, hosts + i * leaves // hosts, 100 * GBPS, LATENCY_PS, LinkKind.NIC) for i in range(hosts)]
    cables += [
        DuplexLink(hosts + leaf, hosts + leaves + spine, 100 * GBPS, LATENCY_PS, LinkKind.FABRIC)
        for leaf in range(leaves)
        for spine in range(spines)
    ]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


FABRICS = (
    star_of([100 * GBPS] * 6, LATENCY_PS),
    star_of([7 * GBPS, 10 * GBPS, 30 * GBPS, 400 * GBPS], 0),
    clos(),
    rail_optimized(nodes=2, gpus_per_node=2),
    rail_optimized(nodes=4, gpus_per_node=2, nodes_per_segment=2, spines=2, oversubscription=2),
    fat_tree(4),
    dragonfly(DragonflyShape(2, 2, 1, 3)),
)


def switch_reserve_bytes(config: RoceConfig, topology: Topology) -> int:
    """Headroom and reserves of the switch that needs most."""
    needs = np.zeros(topology.nodes, dtype=np.int64)
    np.add.at(needs, topology.link_dst, headroom_bytes(config, topology) + config.reserve_bytes)
    is_switch = (topology.node_kind != NodeKind.GPU) & (topology.node_kind != NodeKind.NVSWITCH)
    return int(needs[is_switch].max())


def with_shared_bytes(topology: Topology, shared_bytes: int, **settings: object) -> RoceConfig:
    """Switches with so much memory beside what is reserved, so that little makes them pause or drop."""
    config = RoceConfig.model_validate({"reserve_bytes": 512, **settings})
    size = switch_reserve_bytes(config, topology) + shared_bytes
    return RoceConfig.model_validate({**config.model_dump(mode="json"), "switch_buffer_bytes": size})


LOSSY = {"pfc": False, "headroom_bytes": 0}
EARLY_MARKS = EcnThresholds(kmin_bytes=3_000, kmax_bytes=30_000, pmax=0.5)


@st.composite
def configs(draw: st.DrawFn, topology: Topology) -> RoceConfig:
    """Every congestion control, way of recovery and kind of routing, on roomy and on tight switches."""
    balancing = draw(st.sampled_from(["ecmp", "ecmp", "flowlet", "adaptive"]))
    recovery = draw(st.sampled_from(["go_back_n", "selective_repeat"]))
    settings: dict[str, object] = {
        "congestion_control": draw(st.sampled_from(["dcqcn", "hpcc", "timely", "dctcp", "none"])),
        "window": draw(st.sampled_from([None, None, "fixed", "variable", "unbounded"])),
        "mtu_bytes": draw(st.sampled_from([1000, 4096])),
        "packets_per_ack": draw(st.sampled_from([1, 1, 4])),
        "cell_packets": draw(st.sampled_from([1, 1, 4])),
        "load_balancing": balancing,
        "recovery": None if balancing == "adaptive" else recovery,
        "ecn_thresholds": draw(st.sampled_from([None, EARLY_MARKS])),
        "reroute_delay": draw(st.sampled_from(["0ns", "5us"])),
        "retransmission_timeout": "100us",
        "flowlet_gap": "1us",
        "ecmp_seed": draw(st.integers(0, 2)),
        "seed": draw(st.integers(0, 2)),
    }
    tight = draw(st.sampled_from([None, {}, LOSSY]))
    if tight is None:
        return RoceConfig.model_validate(settings)
    return with_shared_bytes(topology, draw(st.sampled_from([20_000, 60_000])), **settings, **tight)


@st.composite
def incasts(draw: st.DrawFn, topology: Topology) -> FlowGraph:
    """Flows towards few GPUs within some microseconds, some of which wait for others in every way there is."""
    count = draw(st.integers(1, 16))
    gpu = st.integers(0, topology.gpus - 1)
    row = st.tuples(
        gpu,
        st.one_of(gpu, st.integers(0, 1)),
        st.sampled_from([0, 1, 999, 30_000, 100_000, 150_000]),
        st.integers(0, 5 * US_PS),
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 5 * GBPS, 30 * GBPS]),
        st.integers(1, 3),
        st.booleans(),
    )
    rows = draw(st.lists(row, min_size=count, max_size=count))
    src, dst, sizes, ready, labels, caps, priority, notify = zip(*rows, strict=True)
    edges = [draw(st.lists(st.integers(0, i - 1), max_size=1)) if i else [] for i in range(count)]
    kinds = draw(st.lists(st.sampled_from(["deps", "credits", "after", "none"]), min_size=count, max_size=count))
    after = [-1] * count
    for i, (kind, edge) in enumerate(zip(kinds, edges, strict=True)):
        if kind == "after" and edge and edge[0] not in after:
            after[i] = edge[0]
    return FlowGraph.from_lists(
        src,
        dst,
        sizes,
        ready_ps=ready,
        flow_label=labels,
        max_rate_bps=caps,
        priority=priority,
        notify=notify,
        after=after,
        deps=[edge if kind == "deps" else [] for kind, edge in zip(kinds, edges, strict=True)],
        credits=[edge if kind == "credits" else [] for kind, edge in zip(kinds, edges, strict=True)],
    )


@st.composite
def link_events(draw: st.DrawFn, topology: Topology) -> tuple[LinkEvent, ...]:
    """Up to two failures or storms, most of which end."""
    events = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        link = draw(st.integers(0, topology.links - 1))
        priority = draw(st.sampled_from([None, None, 1, 2]))
        begin_ps = draw(st.integers(0, 60 * US_PS))
        events.append(LinkEvent(begin_ps, link, False, priority))
        if draw(st.sampled_from([True, True, False])) or priority is not None:
            events.append(LinkEvent(begin_ps + draw(st.integers(1, 80 * US_PS)), link, True, priority))
    return tuple(sorted(events, key=lambda event: event.at_ps))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    topology = draw(st.sampled_from(FABRICS))
    graphs = [(0, draw(incasts(topology)))]
    if draw(st.booleans()):
        graphs.append((draw(st.integers(0, 50 * US_PS)), draw(incasts(topology))))
    return Scenario(topology, draw(configs(topology)), tuple(graphs), draw(link_events(topology)))
