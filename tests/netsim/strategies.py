"""Hypothesis strategies and small topologies for the tests of netsim."""

from __future__ import annotations

from hypothesis import strategies as st

from netsim import FlowGraph, LinkKind, NodeKind, Topology, rail_optimized, single_switch
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
