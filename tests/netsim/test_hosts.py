"""Hosts and PCIe: the CPU memory of a server, which its GPUs reach over PCIe switches."""

from __future__ import annotations

import numpy as np
import pytest

from netsim import (
    FlowGraph,
    InputError,
    LinkKind,
    NodeKind,
    Router,
    Topology,
    WireFormat,
    create_backend,
    from_yaml,
    nvswitch,
    rail_optimized,
    to_simai,
    to_yaml,
    with_hosts,
)
from netsim.topologies.build import build, parse_spec
from netsim.topologies.picture import to_svg
from tests.netsim.conformance import BACKENDS, FAR_PS, PACKET_LEVEL

PCIE_BPS = 400 * 10**9
LATENCY_PS = 300_000
SIZE_BYTES = 40_000_000
"""800 µs at the rate of PCIe."""
ALONE_PS = SIZE_BYTES * 20 + 2 * LATENCY_PS
STORED_PS = 3 * 4096 * 20
"""Packets are stored and forwarded by the PCIe switch, and the last one may be short: no more than three packets."""


def server(gpus_per_switch: int = 2) -> Topology:
    """4 GPUs with NVLink, PCIe switches, and a host."""
    return with_hosts(nvswitch(4), PCIE_BPS, pcie_latency_ps=LATENCY_PS, gpus_per_pcie_switch=gpus_per_switch)


def ends_ps(backend_name: str, topology: Topology, ends: list[tuple[int, int]]) -> list[int]:
    """When flows of `SIZE_BYTES` each end that start together."""
    backend = create_backend(backend_name, topology)
    src, dst = zip(*ends, strict=True)
    graph = FlowGraph.from_lists(src=list(src), dst=list(dst), size_bytes=[SIZE_BYTES] * len(ends))
    handle = backend.submit(graph, 0)
    while not any(each.flow is None for each in backend.advance(FAR_PS)):
        pass
    ended: list[int] = backend.flow_times(handle).end_ps.tolist()
    backend.close()
    return ended


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("to_host", [True, False])
def test_bytes_over_pcie_take_their_bytes_over_the_bandwidth_and_the_latency(backend: str, to_host: bool) -> None:
    """There is no header on PCIe here; packets are stored once on the way."""
    topology = server()
    gpu, host = 1, int(topology.hosts_of(0)[0])
    (end_ps,) = ends_ps(backend, topology, [(gpu, host) if to_host else (host, gpu)])
    assert 0 <= end_ps - ALONE_PS <= (STORED_PS if backend in PACKET_LEVEL else 0)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "analytical"])
def test_two_gpus_behind_one_switch_share_its_link_and_others_do_not(backend: str) -> None:
    """GPUs 0 and 1 need twice the time that GPU 2, behind the other switch, has to itself."""
    topology = server()
    host = int(topology.hosts_of(0)[0])
    first, second, other = ends_ps(backend, topology, [(0, host), (1, host), (2, host)])
    twice_ps = ALONE_PS + SIZE_BYTES * 20
    for end_ps, expected_ps in ((first, twice_ps), (second, twice_ps), (other, ALONE_PS)):
        assert end_ps == pytest.approx(expected_ps, rel=1e-3 if backend in PACKET_LEVEL else 1e-12)


def test_a_wire_format_puts_no_headers_on_pcie() -> None:
    topology = server()
    host = int(topology.hosts_of(0)[0])
    backend = create_backend("fluid", topology, wire=WireFormat())
    handle = backend.submit(FlowGraph.from_lists(src=[0], dst=[host], size_bytes=[SIZE_BYTES]), 0)
    backend.advance(FAR_PS)
    assert backend.flow_times(handle).end_ps.tolist() == [ALONE_PS]


def test_gpus_keep_to_nvlink_and_hosts_forward_nothing() -> None:
    """GPUs 0 and 1 could also meet at their PCIe switch, two hops away as well."""
    topology = server()
    kinds = topology.link_kind[Router(topology).route(0, 1)]
    assert set(kinds.tolist()) == {LinkKind.NVLINK}
    bare = with_hosts(nvswitch(4), PCIE_BPS)
    is_nvlink = bare.link_kind == LinkKind.NVLINK
    router = Router(bare)
    for link in np.flatnonzero(is_nvlink).tolist():
        router.set_link_up(link, False)
    assert router.total_hops([0, 1]) is None


def test_nodes_and_links_of_the_topology_without_hosts_keep_their_numbers() -> None:
    plain, hosted = (
        build(parse_spec({"kind": "rail_optimized", "nodes": 2, "gpus_per_node": 4, **pcie}))
        for pcie in ({}, {"pcie": {"rate": "400Gbps", "gpus_per_switch": 2}})
    )
    assert hosted.node_name[: plain.nodes] == plain.node_name
    for column in ("link_src", "link_dst", "capacity_bps", "latency_ps", "link_kind"):
        assert np.array_equal(getattr(hosted, column)[: plain.links], getattr(plain, column))
    assert np.count_nonzero(hosted.node_kind == NodeKind.PCIE_SWITCH) == 4
    assert [hosted.node_name[host] for node in range(2) for host in hosted.hosts_of(node)] == ["host0", "host1"]
    assert len(plain.hosts_of(0)) == 0


def test_a_file_holds_hosts_and_pcie() -> None:
    topology = server()
    text = to_yaml(topology)
    assert "[host, host0]" in text
    assert "[gpu0, pcie0, 400Gbps, 300ns, pcie]" in text
    assert to_yaml(from_yaml(text)) == text


def test_a_picture_leaves_hosts_out_and_simais_text_refuses_them() -> None:
    assert to_svg(with_hosts(rail_optimized(2, 4), PCIE_BPS)) == to_svg(rail_optimized(2, 4))
    with pytest.raises(InputError, match="found a host"):
        to_simai(server())


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("[gpu0, host0, 400Gbps, 1us, pcie]", "kind pcie from 'gpu0' to 'host0'"),
        ("[gpu0, pcie0, 400Gbps, 1us, nic]", "kind nic from 'gpu0' to 'pcie0'"),
        ("[gpu0, gpu1, 400Gbps, 1us, pcie]", "kind pcie from 'gpu0' to 'gpu1'"),
    ],
)
def test_pcie_that_leads_elsewhere_is_refused(link: str, found: str) -> None:
    nodes = "[[gpu, gpu0], [gpu, gpu1], [pcie_switch, pcie0], [host, host0]]"
    with pytest.raises(InputError, match=found):
        from_yaml(f"gpus_per_node: 2\nnodes: {nodes}\nlinks: [{link}]\n")


@pytest.mark.parametrize(
    ("pcie", "found"),
    [
        ({"gpus_per_switch": 3}, "expected a divisor of 4"),
        ({"rate": 5}, "pcie.rate"),
        ({"lanes": 16}, "lanes"),
    ],
)
def test_a_spec_of_pcie_that_does_not_fit_is_refused(pcie: dict[str, object], found: str) -> None:
    with pytest.raises(InputError, match=found):
        build(parse_spec({"kind": "nvswitch", "gpus_per_node": 4, "pcie": pcie}))
