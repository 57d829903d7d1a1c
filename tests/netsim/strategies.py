"""Hypothesis strategies and small topologies for the tests of netsim."""

from __future__ import annotations

from hypothesis import strategies as st

from netsim import (
    DragonflyShape,
    FlowGraph,
    LinkKind,
    NodeKind,
    Topology,
    Uplinks,
    alibaba_hpn,
    dcn_plus,
    dragonfly,
    fat_tree,
    nvl72,
    nvswitch,
    rail_optimized,
    single_switch,
    spectrum_x,
)
from netsim.topologies.defaults import LinkRates
from netsim.topology import DuplexLink

GBPS = 10**9
LATENCY_PS = 500_000


def star(hosts: int, nic_bps: int = 400 * GBPS) -> Topology:
    """Hosts behind one switch; a path has two links of 500 ns."""
    return single_switch(hosts, rates=LinkRates(nic_bps=nic_bps, nic_latency_ps=LATENCY_PS))


def star_of(capacities_bps: list[int], latency_ps: int = 0) -> Topology:
    """One switch with a cable of its own capacity to every host."""
    hosts = len(capacities_bps)
    nodes = [(NodeKind.GPU, f"gpu{i}") for i in range(hosts)] + [(NodeKind.SWITCH, "switch0")]
    cables = [DuplexLink(i, hosts, bps, latency_ps, LinkKind.NIC) for i, bps in enumerate(capacities_bps)]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


def topologies() -> st.SearchStrategy[Topology]:
    """Uneven stars and small rail-optimised fabrics with few spines, so that flows collide."""
    uneven = st.builds(
        star_of,
        st.lists(st.sampled_from([GBPS, 3 * GBPS, 7 * GBPS, 10 * GBPS]), min_size=3, max_size=8),
        st.sampled_from([0, LATENCY_PS]),
    )
    rails = st.builds(
        rail_optimized,
        nodes=st.integers(2, 4),
        gpus_per_node=st.integers(1, 4),
        nodes_per_segment=st.integers(1, 4),
        spines=st.integers(1, 3),
        oversubscription=st.sampled_from([1, 2, 3]),
    )
    return st.one_of(uneven, rails)


def dragonfly_shapes() -> st.SearchStrategy[DragonflyShape]:
    """Small ones, balanced or not, with as many groups as global ports reach or fewer."""
    return (
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
        .flatmap(lambda n: st.tuples(*map(st.just, n), st.integers(1, n[1] * n[2] + 1)))
        .map(lambda n: DragonflyShape(*n))
    )


def built_topologies() -> st.SearchStrategy[Topology]:
    """Every builder, small, with whatever its fields allow."""
    nodes, width, few = st.integers(1, 20), st.integers(1, 4), st.integers(1, 5)
    ratio = st.sampled_from([0.5, 1, 1.1, 2, 3])
    uplinks = st.builds(Uplinks, spines=st.sampled_from([2, 4]), oversubscription=st.none() | ratio)
    return st.one_of(
        st.builds(nvswitch, st.integers(1, 16), nvswitches=few),
        st.builds(nvl72, nvswitches=st.sampled_from([1, 18])),
        st.builds(single_switch, nodes, width),
        st.builds(
            rail_optimized,
            nodes,
            width,
            nvswitches_per_node=few,
            nodes_per_segment=st.none() | few,
            spines=st.none() | few,
            oversubscription=ratio,
        ),
        st.builds(rail_optimized, nodes, st.just(6), rails=st.sampled_from([1, 2, 3, 6]), nodes_per_segment=few),
        st.builds(spectrum_x, nodes, width, uplinks=uplinks),
        st.builds(alibaba_hpn, nodes, width, tors=st.just(2), planes=st.integers(1, 2), uplinks=uplinks),
        st.builds(dcn_plus, nodes, width, tors=st.integers(1, 2), uplinks=uplinks),
        st.builds(
            fat_tree,
            st.sampled_from([2, 4, 6]),
            gpus_per_node=st.integers(1, 2),
            hosts_per_edge=st.none() | st.integers(1, 4),
            oversubscription=ratio,
        ),
        st.builds(dragonfly, dragonfly_shapes(), oversubscription=ratio),
    )


@st.composite
def flow_graphs(draw: st.DrawFn, topology: Topology, *, with_deps: bool = True, max_flows: int = 24) -> FlowGraph:
    """Flows of 0 to 100 kB among GPUs, starting within 20 µs; dependencies point backwards, so there is no cycle.

    One flow in four has a cap, above or below what links carry.
    """
    count = draw(st.integers(1, max_flows))
    gpu = st.integers(0, topology.gpus - 1)
    caps = st.sampled_from([0, 0, 0, 0, 0, 0, 500_000_000, 7 * GBPS // 3, 500 * GBPS])
    columns = draw(
        st.lists(
            st.tuples(gpu, gpu, st.integers(0, 100_000), st.integers(0, 20_000_000), st.integers(0, 7), caps),
            min_size=count,
            max_size=count,
        )
    )
    deps = [
        draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if with_deps and i else [] for i in range(count)
    ]
    src, dst, sizes, ready, labels, max_rate_bps = zip(*columns, strict=True)
    return FlowGraph.from_lists(
        src, dst, sizes, deps=deps, ready_ps=ready, flow_label=labels, max_rate_bps=max_rate_bps
    )


@st.composite
def networks_with_flows(draw: st.DrawFn, *, with_deps: bool = True) -> tuple[Topology, FlowGraph]:
    topology = draw(topologies())
    return topology, draw(flow_graphs(topology, with_deps=with_deps))
