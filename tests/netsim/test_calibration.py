"""Measured α and β: found again from times, put onto flows, written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundary.errors import InputError
from netsim import BackendError, FlowGraph, FlowTimes, Topology, WireFormat, create_backend, single_switch
from netsim.backends.calibration import TOLERANCE, Calibration, SizeRange
from netsim.backends.rdma.message_fit import fitted
from netsim.backends.rdma.message_times import MeasuredAgent, MeasuredPairs, MessageSample, PairMeasurement, octaves
from netsim.formats.calibration_file import format_calibration, read_calibration
from netsim.topologies.defaults import LinkRates
from tests.forked_commands import run_forked

NIC_BPS = 100 * 10**9
ALPHA_NS, NS_PER_BYTE = 5000.0, 0.1
"""80 Gbit/s on links of 100 Gbit/s."""
LINE = SizeRange(1024, 1 << 30, ALPHA_NS, NS_PER_BYTE, 0.0)
BACKENDS = ("analytical", "fluid")


def calibration(*ranges: SizeRange) -> Calibration:
    """Agents with nodes 0 and 1, and 2 and 3, the same in both directions."""
    given = ranges or (LINE,)
    return Calibration([(0, 1), (2, 3)], {(0, 1): given, (1, 0): given})


def hosts(count: int) -> Topology:
    """Hosts behind one switch."""
    return single_switch(count, rates=LinkRates(nic_bps=NIC_BPS))


def times_on(backend: str, graph: FlowGraph, known: Calibration) -> FlowTimes:
    """Of a graph on four hosts."""
    network = create_backend(backend, hosts(4), calibration=known)
    handle = network.submit(graph, 0)
    while network.next_event_ps() is not None:
        network.advance(10**15)
    times = network.flow_times(handle)
    network.forget(handle)
    return times


# The fit.


@given(
    alpha_ns=st.floats(0, 1e5),
    ns_per_byte=st.floats(1e-3, 1e3),
    noise=st.lists(st.floats(-0.014, 0.014), min_size=12, max_size=12),
)
def test_a_line_is_one_range_and_found_within_the_noise(
    alpha_ns: float, ns_per_byte: float, noise: list[float]
) -> None:
    """The squares of the residuals are no more than those of the noise, 12 · 0.0142², so that none is above 0.05 and no
    range is divided; from the truth the line is no further than from the times and these from the truth."""
    sizes = octaves(1024 << 11)
    truth = alpha_ns + ns_per_byte * np.array(sizes)
    (found,) = fitted(sizes, (truth * (1 + np.array(noise))).tolist())
    assert (found.first_bytes, found.last_bytes) == (sizes[0], sizes[-1])
    assert found.largest_residual <= TOLERANCE
    line = found.alpha_ns + found.ns_per_byte * np.array(sizes)
    assert (np.abs(line / truth - 1) <= 0.065).all()


def test_two_protocols_are_two_ranges() -> None:
    """Up to 8 KiB 2 µs and 0.5 ns per byte, from there on 30 µs and 0.1 ns per byte: at 8 KiB that is 6.1 and 30.8 µs,
    so that no line holds for both."""
    sizes = octaves(1 << 20)
    times = [2000 + 0.5 * size if size <= 8192 else 30000 + 0.1 * size for size in sizes]
    first, second = fitted(sizes, times)
    assert (first.alpha_ns, first.ns_per_byte) == (pytest.approx(2000), pytest.approx(0.5))
    assert (second.alpha_ns, second.ns_per_byte) == (pytest.approx(30000), pytest.approx(0.1))
    assert (first.last_bytes, second.first_bytes) == (8192, 16384)
    known = calibration(first, second)
    assert known.range_of(0, 2, 8193) == second
    assert known.range_of(0, 2, 1) == first


def test_a_size_that_is_like_none_beside_it_is_a_range_of_its_own() -> None:
    """From 2 µs at 2048 bytes to 8.144 µs at 4096, 3 ns per byte, and then down to 7 µs, which hold from 4097 on."""
    found = fitted((1024, 2048, 4096, 8192), (1000.0, 2000.0, 8144.0, 7000.0))
    assert [(each.first_bytes, each.last_bytes) for each in found] == [(1024, 2048), (4096, 4096), (8192, 8192)]
    assert (found[1].alpha_ns, found[1].ns_per_byte) == (-4144.0, 3.0)
    assert (found[2].alpha_ns, found[2].ns_per_byte) == (7000.0, 0.0)


def test_larger_messages_change_nothing_about_smaller_ones() -> None:
    """1 ns per byte up to 4 KiB, and 8 KiB that continue the line within the tolerance, 2 % above it."""
    small = measurement((1024, 2048, 4096), (1024.0, 2048.0, 4096.0))
    larger = small.extended(measurement((8192,), (8356.0,)))
    assert larger.ranges[: len(small.ranges)] == small.ranges
    above = larger.ranges[-1]
    assert (above.first_bytes, above.last_bytes, above.alpha_ns) == (4097, 8192, 0.0)
    assert above.ns_per_byte == pytest.approx(1.005, abs=1e-3)
    assert [each.size_bytes for each in larger.samples] == [1024, 2048, 4096, 8192]


def test_times_that_do_not_grow_have_no_bytes_per_time_and_ones_through_the_origin_no_alpha() -> None:
    (flat,) = fitted((1024, 2048, 4096), (7000.0, 7000.0, 7000.0))
    assert (flat.alpha_ns, flat.ns_per_byte) == (pytest.approx(7000), pytest.approx(0, abs=1e-9))
    (steep,) = fitted((1024, 2048, 4096), (1024.0, 2049.0, 4100.0))
    assert (steep.alpha_ns, steep.ns_per_byte) == (0.0, pytest.approx(1.0, rel=1e-3))


def measurement(sizes: Sequence[int], times: Sequence[float]) -> PairMeasurement:
    samples = tuple(MessageSample(size, time, time, time) for size, time in zip(sizes, times, strict=True))
    return PairMeasurement(samples, fitted(sizes, times), "rc_verbs/mlx5_0:1", 0)


# Flows.


@pytest.mark.parametrize("backend", BACKENDS)
@given(size_bytes=st.integers(0, 1 << 30))
def test_a_flow_alone_takes_what_was_measured(backend: str, size_bytes: int) -> None:
    """5 µs and 0.1 ns per byte; rates are whole bit/s, which is 1 part in 10¹⁰ here."""
    times = times_on(backend, FlowGraph.from_lists([1], [2], [size_bytes]), calibration())
    expected_ps = 1000 * (ALPHA_NS + NS_PER_BYTE * size_bytes)
    assert times.start_ps[0] == 0
    assert times.end_ps[0] == pytest.approx(expected_ps, rel=1e-9, abs=2)


def test_flows_that_share_a_link_are_as_fast_together_as_the_link() -> None:
    """1 MB from each of two hosts into one: 80 Gbit/s each alone, 50 Gbit/s together, so 160 µs; α 5 µs before."""
    times = times_on("fluid", FlowGraph.from_lists([0, 1], [2, 2], [10**6] * 2), calibration())
    assert times.end_ps.tolist() == pytest.approx([165 * 10**6] * 2, rel=1e-6)


def test_what_follows_another_flow_starts_when_that_has_arrived() -> None:
    """1000 bytes each way: 5.1 µs, and 5.1 µs after that; the start is that of the message, not of its first byte."""
    times = times_on("fluid", FlowGraph.from_lists([0, 2], [2, 0], [1000] * 2, deps=[[], [0]]), calibration())
    assert times.start_ps.tolist() == pytest.approx([0, 5.1e6], abs=2)
    assert times.end_ps.tolist() == pytest.approx([5.1e6, 10.2e6], abs=4)


def test_a_lower_rate_of_the_sender_stays() -> None:
    """8 Gbit/s: 1 MB takes 1 ms after 5 µs, instead of 100 µs."""
    graph = FlowGraph.from_lists([0], [2], [10**6], max_rate_bps=[8 * 10**9])
    assert times_on("fluid", graph, calibration()).end_ps[0] == pytest.approx(1005 * 10**6, rel=1e-9)


def test_an_alpha_below_the_latency_of_the_path_leaves_the_measured_time_as_it_is() -> None:
    """α 0 and 0.1 ns per byte: the path takes 1 µs of the 100 µs of 1 MB, and the bytes the other 99."""
    known = calibration(SizeRange(1024, 1 << 30, 0.0, NS_PER_BYTE, 0.0))
    times = times_on("fluid", FlowGraph.from_lists([0], [2], [10**6]), known)
    assert times.end_ps[0] == pytest.approx(100 * 10**6, rel=1e-6)


def test_flows_inside_an_agent_are_those_of_the_topology() -> None:
    graph = FlowGraph.from_lists([0], [1], [10**6])
    bare = create_backend("fluid", hosts(4))
    handle = bare.submit(graph, 0)
    bare.advance(10**15)
    assert times_on("fluid", graph, calibration()).end_ps.tolist() == bare.flow_times(handle).end_ps.tolist()


@pytest.mark.parametrize(
    ("known", "flow", "message"),
    [
        (calibration(), (0, 5, 8), "node 5 at the end of a flow, expected an agent"),
        (calibration(), (0, 2, 1 << 31), "2147483648 bytes from node 0 to node 2 .* at most 1073741824"),
        (Calibration([(0,), (2,)], {}), (0, 2, 8), "expected a pair that was measured"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_not_measured_is_refused(
    backend: str, known: Calibration, flow: tuple[int, int, int], message: str
) -> None:
    src, dst, size_bytes = flow
    network = create_backend(backend, hosts(6), calibration=known)
    with pytest.raises(InputError, match=message):
        network.submit(FlowGraph.from_lists([src], [dst], [size_bytes]), 0)
    assert network.next_event_ps() is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_the_topology_is_slower_it_counts_and_is_warned_of_once(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """10 MB in 105 µs, on links that need 800 µs and have a latency of 500 ns each, as they say in the warning."""
    graph = FlowGraph.from_lists([0, 1], [2, 3], [10**7] * 2)
    times = times_on(backend, graph, calibration(SizeRange(1024, 1 << 30, 5000.0, 0.01, 0.0)))
    assert times.end_ps.tolist() == [801 * 10**6] * 2
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "10000000 bytes from node 0 to node 2 were measured in 0.105 ms" in warning
    assert "their 0.801 ms count" in warning


def test_a_topology_that_is_slower_by_less_than_the_fit_may_be_wrong_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """10 MB in 780 µs, on links that need 801."""
    known = calibration(SizeRange(1024, 1 << 30, 0.0, 0.078, 0.0))
    times = times_on("fluid", FlowGraph.from_lists([0], [2], [10**7]), known)
    assert times.end_ps.tolist() == [801 * 10**6]
    assert not caplog.records


def test_packets_and_headers_have_no_use_for_it() -> None:
    with pytest.raises(BackendError, match="calibration: found one for backend packet"):
        create_backend("packet", single_switch(4), calibration=calibration())
    with pytest.raises(BackendError, match="wire: found one with a calibration"):
        create_backend("fluid", single_switch(4), wire=WireFormat(), calibration=calibration())


# The file.


def measured_pairs() -> MeasuredPairs:
    agents = (MeasuredAgent((0, 1), "127.0.0.1", "lo"), MeasuredAgent((2, 3), "127.0.0.1", None))
    pair = PairMeasurement((MessageSample(1024, 5102.4, 5000.1, 6000.0),), (LINE,), "rc_verbs/mlx5_0:1", 0)
    return MeasuredPairs("ucx", agents, {(0, 1): pair, (1, 0): pair})


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(format_calibration(measured_pairs()))
    found = read_calibration(path)
    assert (found.agents, found.pairs) == (((0, 1), (2, 3)), {(0, 1): (LINE,), (1, 0): (LINE,)})


def with_first_pair(tree: dict[str, object], changes: Mapping[str, object]) -> str:
    pairs = tree["pairs"]
    assert isinstance(pairs, list)
    return json.dumps({**tree, "pairs": [{**pairs[0], **changes}, *pairs[1:]]})


def test_files_that_are_none_are_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    tree = json.loads(format_calibration(measured_pairs()))
    line = tree["pairs"][0]["ranges"][0]
    wrong = {
        "[": "not JSON",
        json.dumps({**tree, "kind": "else"}): "kind: found 'else'",
        json.dumps({**tree, "agents": [tree["agents"][0]] * 2}): "agents.1.nodes: found 0, which agent 0 has already",
        with_first_pair(tree, {"dst": 7}): "pairs.0: found agents 0 and 7",
        with_first_pair(tree, {"src": 1, "dst": 0}): "pairs.1: found agents 1 and 0, expected a new pair",
        with_first_pair(tree, {"ranges": [line, line]}): "pairs.0.ranges.1: found 1024 to 1073741824 bytes",
        with_first_pair(tree, {"ranges": [{**line, "alpha_ns": -1.0}]}): "pairs.0.ranges.0.alpha_ns: found -1, with",
        with_first_pair(tree, {"ranges": [{**line, "ns_per_byte": -1}]}): "pairs.0.ranges.0.ns_per_byte: found -1",
    }
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(InputError) as error:
            read_calibration(path)
        assert message in str(error.value)
        assert str(error.value).startswith(str(path))


def test_netsim_run_takes_a_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB from node 0 to node 2: 5 µs and 100 µs."""
    monkeypatch.chdir(tmp_path)
    Path("C.json").write_text(format_calibration(measured_pairs()))
    Path("T.yaml").write_text("{kind: single_switch, nodes: 4, nic: 100Gbps}")
    Path("F.csv").write_text("flow_id,src,dst,bytes,deps\na,0,2,1000000,\n")
    common = ("run", "--topology", "T.yaml", "--flows", "F.csv", "-o", "fct.csv", "--calibration", "C.json")
    finished = run_forked("netsim", *common, "--json")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(finished.stdout)["makespan_ps"] == pytest.approx(105 * 10**6, rel=1e-6)
    refused = run_forked("netsim", *common, "--backend", "packet")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--calibration: found backend packet, expected analytical or fluid" in refused.stderr
    Path("F.csv").write_text("flow_id,src,dst,bytes,deps\na,0,2,2000000000,\n")
    refused = run_forked("netsim", *common)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "found a flow of 2000000000 bytes from node 0 to node 2" in refused.stderr
