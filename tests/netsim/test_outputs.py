"""Files of packet-level runs: SimAI's FCT and PFC texts, the bandwidth monitor, links over time."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

from netsim import FlowGraph, Topology, rail_optimized
from netsim.backends.packet import PacketBackend
from netsim.backends.packet.backend import PauseEvent, TimeSeries
from netsim.formats.simai_fct import StandaloneTimes, fct_text
from netsim.formats.simai_pfc import interfaces, pfc_text
from netsim.formats.time_series import bandwidth_csv, series_columns, series_csv, series_parquet
from netsim.roce.config import RoceConfig
from netsim.units import LAST_INSTANT_PS
from tests.netsim.strategies import star

US = 1_000_000
LAZY = RoceConfig(congestion_control="none", window="unbounded")


def carry(topology: Topology, graph: FlowGraph, config: RoceConfig, interval_ps: int = 0) -> tuple[PacketBackend, str]:
    """Runs a graph to its very end, acknowledgements included; the backend and its FCT text."""
    backend = PacketBackend(topology, config)
    backend.keep_log()
    backend.sample_every(interval_ps)
    handle = backend.submit(graph, 0)
    while backend.next_event_ps() is not None:
        backend.advance(LAST_INSTANT_PS)
    acknowledged_ps = backend.acknowledged_ps(handle, len(graph))
    return backend, fct_text(graph, backend.flow_times(handle).start_ps, acknowledged_ps, topology, config)


def test_a_flow_alone_has_the_completion_time_of_its_last_acknowledgement_and_the_standalone_time_of_the_formula() -> (
    None
):
    """10,000 bytes at 400 Gbit/s (20 ps per byte) over two links of 500 ns, started at 7 ns.

    Packets of 4148, 4148 and 1860 bytes on the wire: the second is through the switch at 2 · 82.96 + 500 + 82.96 ns,
    then the third follows with 37.2 ns and 500 ns of wire: 1286.08 ns. Its acknowledgement takes 2 · (1.2 + 500) ns.
    Standalone: 2 · 1000 + 2 · 81.92 + (10,000 + 3 · 52) · 0.02 = 2366.96 ns.
    """
    graph = FlowGraph.from_lists([0], [2], [10_000], ready_ps=[7_000])
    assert carry(star(3), graph, RoceConfig())[1] == "0b000001 0b000201 10000 100 10000 7 2288 2367\n"


def test_flows_are_written_as_they_complete_with_the_ports_that_ecmp_hashes() -> None:
    """Label 65,539 is source port 10,003 and destination port 101. A flow to its own node and an empty one cross no
    link, so no acknowledgement says that they are done."""
    graph = FlowGraph.from_lists([0, 1, 1, 0], [2, 0, 1, 1], [500_000, 1000, 1000, 0], flow_label=[0, 65_539, 0, 0])
    lines = carry(star(3), graph, RoceConfig())[1].splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["0b000101", "0b000001", "10003", "101", "1000"],
        ["0b000001", "0b000201", "10000", "100", "500000"],
    ]


def test_byte_totals_beyond_32_bits_do_not_wrap() -> None:
    """2³⁴ bytes are 4,194,304 packets of 4096: (2³⁴ + 4,194,304 · 52) · 20 ps, 2 µs and two packets of 81.92 ns."""
    time_ps = StandaloneTimes(star(3), RoceConfig()).time_ps(0, 2, 0, 2**34)
    assert time_ps == (2**34 + 4_194_304 * 52) * 20 + 2 * US + 163_840


def test_nvlink_packets_have_no_header_and_complete_when_they_arrive() -> None:
    """1000 bytes over two NVLinks of 25 ns at 370.8 GB/s, rounded to 2697 ps each: 55.394 ns."""
    topology = rail_optimized(1, 2)
    graph = FlowGraph.from_lists([0], [1], [1000])
    *_, fct_ns, standalone_ns = carry(topology, graph, RoceConfig())[1].split()
    assert fct_ns == "55"
    assert int(standalone_ns) == round((4 * 25_000 + 2 * 11_046 + 2_697) / 1000)


def test_pause_frames_are_written_at_their_receiver_with_interfaces_in_the_order_of_its_links() -> None:
    """Two servers of two GPUs: GPU 0 has NVLink first, then its NIC; the NVSwitch has GPU 0 and then GPU 1."""
    topology = rail_optimized(2, 2)
    leaf = topology.node_name.index("leaf0.0")
    nic = next(
        link for link in range(topology.links) if (topology.link_src[link], topology.link_dst[link]) == (0, leaf)
    )
    down = next(
        link for link in range(topology.links) if (topology.link_src[link], topology.link_dst[link]) == (leaf, 2)
    )
    from_nvswitch = next(
        link for link in range(topology.links) if (topology.link_src[link], topology.link_dst[link]) == (4, 1)
    )
    events = [
        PauseEvent(1_999, nic, 3, True),
        PauseEvent(2_000, nic, 3, False),
        PauseEvent(3_000, down, 3, True),
        PauseEvent(4_000, from_nvswitch, 3, True),
    ]
    assert pfc_text(events, topology) == f"1 0 0 2 1\n2 0 0 2 0\n3 {leaf} 1 2 1\n4 4 2 2 1\n"


def test_every_node_numbers_its_interfaces_from_one() -> None:
    topology = rail_optimized(3, 4)
    numbers = interfaces(topology)
    for node in range(topology.nodes):
        own = numbers[topology.link_src == node]
        assert own.tolist() == list(range(1, len(own) + 1))


def test_pauses_of_an_incast_are_told_to_its_senders_and_end() -> None:
    """Four senders fill a small buffer; hosts are node type 0 with one interface, and no pause is left at the end."""
    graph = FlowGraph.from_lists([0, 1, 2, 3], [4] * 4, [2_000_000] * 4)
    config = LAZY.model_copy(update={"switch_buffer_bytes": 1_000_000})
    backend, _ = carry(star(5), graph, config)
    rows = [tuple(map(int, line.split())) for line in pfc_text(backend.pauses(), star(5)).splitlines()]
    assert {row[1:4] for row in rows} == {(sender, 0, 1) for sender in range(4)}
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    for sender in range(4):
        kinds = [row[4] for row in rows if row[1] == sender]
        assert kinds == [1, 0] * (len(kinds) // 2)
        assert kinds
    assert sum(row[4] for row in rows) == int(backend.counters().pauses.sum())


def test_rows_of_a_series_add_up_to_what_links_have_sent() -> None:
    """Incast of three: bytes of all intervals are those of the counters, and so are marks and pauses."""
    topology = star(4)
    graph = FlowGraph.from_lists([0, 1, 2], [3] * 3, [3_000_000] * 3)
    config = LAZY.model_copy(update={"switch_buffer_bytes": 8_000_000})
    backend, _ = carry(topology, graph, config, interval_ps=10 * US)
    frame = pd.DataFrame(series_columns(backend.time_series(), topology))
    counters = backend.counters()
    duration_ps = frame["end_ps"] - frame["start_ps"]
    capacity_bps = topology.capacity_bps[frame["link"]]
    frame["wire_bytes"] = frame["utilisation"] * duration_ps * capacity_bps / 8e12
    frame["paused_ps"] = frame["paused_share"] * duration_ps
    total = frame.groupby("link")[["wire_bytes", "paused_ps", "pauses", "marks"]].sum()
    for name in total.columns:
        assert total[name].to_numpy() == pytest.approx(getattr(counters, name)[total.index]), name
    assert set(total.index) == set(np.flatnonzero(counters.wire_bytes > 0))
    assert int(counters.marks.sum()) > 0
    assert frame["queue_bytes"].max() > 800_000  # kmin of 400 Gbit/s, or there were no marks
    assert frame.groupby("link")["queue_bytes"].last().sum() == 0
    assert frame["utilisation"].max() < 1.01


def test_nothing_is_sampled_while_nothing_is_under_way() -> None:
    """Two flows of 20 µs, a second apart: 100 000 intervals would pass between them."""
    graph = FlowGraph.from_lists([0, 0], [1, 1], [1_000_000] * 2, ready_ps=[0, 10**12])
    backend, _ = carry(star(2), graph, RoceConfig(), interval_ps=10 * US)
    at_ps = backend.time_series().at_ps
    assert len(at_ps) < 12
    columns = series_columns(backend.time_series(), star(2))
    spans = sorted(set(zip(columns["start_ps"].tolist(), columns["end_ps"].tolist(), strict=True)))
    assert spans[0][0] == 0
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]


def test_a_run_without_samples_has_a_table_without_rows() -> None:
    empty = np.zeros((0, 0), dtype=np.int64)
    columns = series_columns(TimeSeries(np.zeros(0, dtype=np.int64), empty, empty, empty, empty, empty), star(2))
    assert pd.read_csv(io.StringIO(series_csv(columns))).empty
    assert pd.read_parquet(io.BytesIO(series_parquet(columns))).columns.tolist() == list(columns)


def test_csv_and_parquet_hold_the_same_table_and_the_monitor_its_rates() -> None:
    topology = star(3)
    backend, _ = carry(topology, FlowGraph.from_lists([0], [1], [1_000_000]), RoceConfig(), interval_ps=5 * US)
    columns = series_columns(backend.time_series(), topology)
    csv = pd.read_csv(io.StringIO(series_csv(columns)))
    parquet = pd.read_parquet(io.BytesIO(series_parquet(columns)))
    pd.testing.assert_frame_equal(csv, parquet, atol=1e-6, check_dtype=False)
    monitor = pd.read_csv(io.StringIO(bandwidth_csv(backend.time_series(), topology)), skipinitialspace=True)
    assert monitor.columns.tolist() == ["time", "node_id", "port_id", "bandwidth"]
    assert monitor["time"].tolist() == [end / 1000 for end in columns["end_ps"].tolist()]
    assert monitor["bandwidth"].to_numpy() == pytest.approx(400 * csv["utilisation"].to_numpy(), abs=1e-3)
    data = monitor[(monitor["node_id"] == 0) & (monitor["time"] <= 20_000)]
    assert data["bandwidth"].min() > 390  # a flow alone fills its link
