"""Nodes, devices and channels by which ns-3 knows a network: what they show is what the model holds."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from netsim import (
    BackendError,
    BackendUnavailable,
    FlowGraph,
    InputError,
    LinkKind,
    NodeKind,
    Topology,
    create_backend,
    rail_optimized,
)
from netsim.backends.ns3 import Ns3Backend, TraceRow
from netsim.backends.ns3.extension import load_extension
from netsim.roce.config import RoceConfig, ecn_thresholds, headroom_bytes
from tests.netsim.roce_scenarios import EARLY_MARKS, FAR_PS, LOSSY, US_PS, clos, with_shared_bytes
from tests.netsim.strategies import built_topologies, star

pytestmark = pytest.mark.ns3

try:
    load_extension()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

DEVICES = "/NodeList/*/DeviceList/*/$ns3::RoceNetDevice"
INCAST = FlowGraph.from_lists(range(7), [7] * 7, [200_000] * 7, priority=[1, 2, 3] * 2 + [3])
RAILS = rail_optimized(nodes=2, gpus_per_node=2)


@pytest.fixture
def rails() -> Iterator[Ns3Backend]:
    with contextlib.closing(Ns3Backend(RAILS)) as backend:
        yield backend


def tight(**config: object) -> Ns3Backend:
    """Switches that mark, and pause or drop, soon."""
    return Ns3Backend(clos(), with_shared_bytes(clos(), 60_000, ecn_thresholds=EARLY_MARKS, **config))


def finish(backend: Ns3Backend) -> None:
    while backend.next_event_ps() is not None:
        backend.advance(FAR_PS)


def by_link(backend: Ns3Backend, attribute: str) -> list[str]:
    """Of the device that sends by each link."""
    links = [int(link) for link in backend.attributes(f"{DEVICES}/Link").values()]
    values = backend.attributes(f"{DEVICES}/{attribute}").values()
    return [value for _, value in sorted(zip(links, values, strict=True))]


@given(topology=built_topologies())
@settings(max_examples=30)
def test_lists_of_ns3_hold_every_node_port_and_cable_of_the_topology(topology: Topology) -> None:
    """Nodes in order, ports in the order of the node's links, one channel per cable with its latency."""
    with contextlib.closing(Ns3Backend(topology, RoceConfig(switch_buffer_bytes=2**40))) as backend:
        roles = {NodeKind.GPU: "Host", NodeKind.NVSWITCH: "NvSwitch"}
        expected = [roles.get(NodeKind(kind), "Switch") for kind in topology.node_kind]
        linked = set(topology.link_src.tolist())
        found = backend.attributes("/NodeList/*/$ns3::RoceNode/Role")
        assert list(found) == [f"/NodeList/{node}/$ns3::RoceNode/Role" for node in range(topology.nodes)]
        assert all(role == expected[node] for node, role in enumerate(found.values()) if node in linked)
        for node, name in enumerate(topology.node_name):
            assert backend.attributes(f"/Names/{name}/Id") == {f"/Names/{name}/Id": str(node)}
        if not topology.links:
            return
        ports: Counter[int] = Counter()
        paths = {}
        for link, node in enumerate(topology.link_src.tolist()):
            paths[f"/NodeList/{node}/DeviceList/{ports[node]}/$ns3::RoceNetDevice/Link"] = str(link)
            ports[node] += 1
        assert backend.attributes(f"{DEVICES}/Link") == paths
        assert by_link(backend, "DataRate") == [f"{bps}bps" for bps in topology.capacity_bps.tolist()]
        delays = backend.attributes("/ChannelList/*/$ns3::RoceChannel/Delay").values()
        cables = topology.link_src < topology.link_dst
        assert sorted(delays) == sorted(f"+{latency}ps" for latency in topology.latency_ps[cables].tolist())


def test_addresses_and_settings_are_those_of_the_model() -> None:
    """The longest packet is 1000 B of payload and 60 B of IPv4, UDP, BTH, RETH and ICRC."""
    config = RoceConfig(mtu_bytes=1000, ecn_thresholds=EARLY_MARKS)
    with contextlib.closing(Ns3Backend(RAILS, config)) as backend:
        assert list(backend.attributes("/NodeList/[0-1]/Address").values()) == ["11.0.0.1", "11.0.1.1"]
        assert set(by_link(backend, "Mtu")) == {"1060"}
        kmin, kmax, pmax = ecn_thresholds(config, RAILS)
        assert by_link(backend, "EcnKMin") == [str(value) for value in kmin]
        assert by_link(backend, "EcnKMax") == [str(value) for value in kmax]
        assert by_link(backend, "EcnPMax") == [str(value) for value in pmax]
        leaf = RAILS.node_name.index("leaf0.0")
        assert set(backend.attributes(f"/NodeList/{leaf}/DeviceList/*/Headroom").values()) == {
            str(value) for value in headroom_bytes(config, RAILS)[RAILS.link_dst == leaf]
        }
        assert backend.attributes(f"/NodeList/{leaf}/BufferSize").popitem()[1] == str(32 * 2**20)
        assert backend.attributes(f"/NodeList/{leaf}/Pfc").popitem()[1] == "true"
        assert backend.attributes("/NodeList/0/BufferSize").popitem()[1] == "0"


@pytest.mark.parametrize("settings", [{}, LOSSY])
def test_counts_of_devices_are_those_of_the_links(settings: dict[str, object]) -> None:
    with contextlib.closing(tight(**settings)) as backend:
        backend.submit(INCAST, 0)
        waited = 0
        for until_ps in (2 * US_PS, 20 * US_PS, 40 * US_PS):
            backend.advance(until_ps)
            counters = backend.counters()
            for attribute, values in (
                ("SentPackets", counters.packets),
                ("SentBytes", counters.wire_bytes),
                ("QueuedBytes", counters.queued_bytes),
                ("Marks", counters.marks),
                ("Drops", counters.drops),
                ("Pauses", counters.pauses),
                ("PausedTimePs", counters.paused_ps),
            ):
                assert by_link(backend, attribute) == [str(value) for value in values.tolist()]
            waited += int(counters.queued_bytes.sum())
        assert waited > 0
        assert (counters.drops if settings else counters.paused_ps).max() > 0


def test_counts_of_a_port_that_is_paused_show_the_priority() -> None:
    """A storm of pauses for class 5: bit 5."""
    with contextlib.closing(Ns3Backend(star(2))) as backend:
        backend.set_storm(0, 5, True)
        assert by_link(backend, "PausedPriorities")[0] == "32"


def test_a_failed_cable_is_down_until_it_is_repaired(rails: Ns3Backend) -> None:
    for is_up, shown in ((True, "true"), (False, "false"), (True, "true")):
        rails.set_link_up(3, is_up)
        states = by_link(rails, "LinkUp")
        assert states[3] == shown
        assert set(states[:3] + states[4:]) == {"true"}


def traced(sources: tuple[str, ...], **config: object) -> tuple[Ns3Backend, dict[str, list[TraceRow]]]:
    """An incast on tight switches, with the rows of each trace source."""
    backend = tight(**config)
    for source in sources:
        backend.trace(source)
    backend.keep_log()
    backend.submit(INCAST, 0)
    finish(backend)
    rows: dict[str, list[TraceRow]] = {}
    for row in backend.traced():
        rows.setdefault(row.path.rpartition("/")[2], []).append(row)
    return backend, rows


FRAMES = tuple(f"{DEVICES}/{name}" for name in ("Enqueue", "Dequeue", "PhyTxBegin", "PhyRxEnd", "Drop", "Mark"))


@pytest.mark.parametrize("settings", [{}, LOSSY])
def test_traces_of_frames_tell_of_every_packet(settings: dict[str, object]) -> None:
    """What begins to be sent arrives, as no cable fails; what is queued at a port leaves it. Data of hosts is in no
    queue: the 7 senders queue nothing, the receiver its acknowledgements."""
    backend, rows = traced(FRAMES, **settings)
    with contextlib.closing(backend):
        counters = backend.counters()
        assert len(rows["PhyTxBegin"]) == len(rows["PhyRxEnd"]) == backend.packet_hops()
        assert len(rows["Enqueue"]) == len(rows["Dequeue"])
        assert len(rows["Mark"]) == counters.marks.sum() > 0
        assert len(rows.get("Drop", [])) == counters.drops.sum()
        assert (counters.drops.sum() > 0) == bool(settings)
        per_port = Counter(row.path.removesuffix("/PhyTxBegin") for row in rows["PhyTxBegin"])
        links = {path.removesuffix("/Link"): int(link) for path, link in backend.attributes(f"{DEVICES}/Link").items()}
        assert {links[path]: sent for path, sent in per_port.items()} == {
            link: sent for link, sent in enumerate(counters.packets.tolist()) if sent
        }


def test_traces_of_pauses_are_the_log_of_the_model() -> None:
    backend, rows = traced((f"{DEVICES}/Pause", f"{DEVICES}/Resume"))
    with contextlib.closing(backend):
        found = [(row.at_ps, row.path.endswith("Pause"), row.values) for row in backend.traced()]
        assert found == [(event.at_ps, event.is_pause, (event.priority,)) for event in backend.pauses()]
        assert len(rows["Pause"]) == len(rows["Resume"]) == backend.counters().pauses.sum() > 0


def test_traces_of_flows_give_arrival_and_last_acknowledgement_at_their_nodes() -> None:
    backend, rows = traced(("/NodeList/*/$ns3::RoceNode/Delivered", "/NodeList/*/$ns3::RoceNode/QueuePairDone"))
    with contextlib.closing(backend):
        times, acknowledged = backend.flow_times(0), backend.acknowledged_ps(0, len(INCAST))
        arrived = {(row.values, row.path.split("/")[2]): row.at_ps for row in rows["Delivered"]}
        assert arrived == {((0, flow), "7"): end for flow, end in enumerate(times.end_ps.tolist())}
        done = {(row.values, row.path.split("/")[2]): row.at_ps for row in rows["QueuePairDone"]}
        assert done == {((0, flow), str(flow)): at for flow, at in enumerate(acknowledged.tolist())}


def test_tracing_changes_nothing() -> None:
    ends = []
    for sources in ((), FRAMES):
        backend, _ = traced(sources)
        with contextlib.closing(backend):
            ends.append((backend.flow_times(0).end_ps.tolist(), backend.counters().marks.tolist()))
    assert ends[0] == ends[1]


def test_nvlink_packets_are_traced_without_headers(rails: Ns3Backend) -> None:
    rails.trace("/NodeList/0/DeviceList/0/PhyTxBegin")
    rails.submit(FlowGraph.from_lists([0], [1], [5000]), 0)
    finish(rails)
    assert RAILS.link_kind[0] == LinkKind.NVLINK
    assert [row.values for row in rails.traced()] == [(4096,), (904,)]


def test_the_clock_of_ns3_is_that_of_the_backend_at_every_stop() -> None:
    with contextlib.closing(Ns3Backend(star(4))) as backend:
        backend.submit(FlowGraph.from_lists([0, 1], [2, 3], [10_000, 0], ready_ps=[50_000, 9 * US_PS]), 3_000)
        stops = []
        for until_ps in (1_000, 2 * US_PS, 2 * US_PS, 50 * US_PS, 10**12):
            backend.advance(until_ps)
            assert backend.simulator_now_ps == backend.now_ps
            stops.append(backend.now_ps)
        assert len(set(stops)) == 4


@pytest.mark.parametrize(
    "path",
    [
        "",
        "Id",
        "/Id",
        "/NodeList/*/",
        "/NodeList/99/Id",
        "/NodeList/*/Nonesuch",
        "/NodeList/[0-/Id",
        "/NodeList//Id",
        "/NodeList/*/$ns3::Nonesuch/Id",
        "/NodeList/*/$/Id",
        "/NodeList/*/$ns3::RoceNetDevice/DataRate",
        "/Names/nobody/Id",
    ],
)
def test_paths_that_lead_nowhere_raise_where_ns3_might_end_the_process(rails: Ns3Backend, path: str) -> None:
    for call in (rails.attributes, rails.trace):
        with pytest.raises(BackendError, match=r"found path .*expected"):
            call(path)


def test_attributes_are_no_trace_sources_and_the_other_way_round(rails: Ns3Backend) -> None:
    with pytest.raises(BackendError, match="expected a trace source"):
        rails.trace(f"{DEVICES}/DataRate")
    with pytest.raises(BackendError, match="expected an attribute"):
        rails.attributes(f"{DEVICES}/Drop")


def test_skipping_is_refused_in_one_line_and_leaves_nothing_open() -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=r"^skip_tolerance: found 0.01 with backend ns3, expected 0[^\n]*$"):
            create_backend("ns3", star(2), RoceConfig(skip_tolerance=0.01))
    Ns3Backend(star(2)).close()


def test_a_second_network_is_refused_until_the_first_is_closed(rails: Ns3Backend) -> None:
    with pytest.raises(BackendError, match="at most one"):
        Ns3Backend(star(2))
    rails.close()
    Ns3Backend(star(2)).close()


def test_use_after_close_raises(rails: Ns3Backend) -> None:
    rails.close()
    rails.close()
    for use in (
        lambda: rails.attributes("/NodeList/*/Id"),
        lambda: rails.trace("/NodeList/*/Delivered"),
        rails.traced,
        lambda: rails.pcap("unused"),
        lambda: rails.simulator_now_ps,
        lambda: rails.advance(1),
    ):
        with pytest.raises(BackendError, match="after close"):
            use()
    assert not Path("unused").exists()


def test_hundreds_of_networks_in_turn_are_numbered_from_0_and_leave_no_memory_behind() -> None:
    def once() -> list[str]:
        with contextlib.closing(tight()) as backend:
            backend.trace(f"{DEVICES}/PhyTxBegin")
            backend.submit(INCAST, 0)
            backend.advance(3 * US_PS)  # most of it is left behind
            return list(backend.attributes("/NodeList/*/Id"))

    for _ in range(50):
        first = once()
    before = resident_bytes()
    assert all(once() == first for _ in range(200))
    assert resident_bytes() - before < 2_000_000  # a network and its traffic take more than 100 kB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_names_with_a_slash_are_no_paths() -> None:
    """ns-3 would end the process: of such names only the numbers can be used."""
    topology = star(2)
    names = ("a/b", "", "switch")
    renamed = Topology(
        **{
            name: getattr(topology, name)
            for name in topology.__dataclass_fields__
            if topology.__dataclass_fields__[name].init and name != "node_name"
        },
        node_name=names,
    )
    with contextlib.closing(Ns3Backend(renamed)) as backend:
        assert np.all(list(backend.attributes("/Names/switch/Id").values()) == ["2"])
        assert len(backend.attributes("/NodeList/*/Id")) == 3
