"""Captures of backend `ns3`: files as tcpdump writes them, frames as real RoCEv2 and PFC."""

from __future__ import annotations

import contextlib
import gc
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from netsim import (
    BackendError,
    BackendUnavailable,
    FlowGraph,
    InputError,
    Topology,
    rail_optimized,
    single_switch,
    to_simai,
)
from netsim.backends.ns3 import Ns3Backend
from netsim.backends.ns3.extension import load_extension
from netsim.commands.run import run
from netsim.roce.config import RoceConfig
from tests.netsim.roce_scenarios import EARLY_MARKS, FAR_PS, LOSSY, clos, with_shared_bytes
from tests.netsim.strategies import star

pytestmark = pytest.mark.ns3

try:
    load_extension()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

INCAST = FlowGraph.from_lists(range(7), [7] * 7, [200_000] * 7, priority=[1, 2, 3] * 2 + [3])
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, ACKNOWLEDGE = 0x06, 0x07, 0x08, 0x0A, 0x11


@dataclass(frozen=True, slots=True)
class Record:
    at_ns: int
    kept: bytes
    frame_bytes: int
    """On the wire."""

    @property
    def is_pause(self) -> bool:
        return self.kept[12:14] == b"\x88\x08"

    @property
    def ecn(self) -> int:
        return self.kept[15] & 3

    @property
    def opcode(self) -> int:
        return self.kept[42]

    @property
    def has_backward_mark(self) -> bool:
        return bool(self.kept[46] & 0x40)

    @property
    def sequence(self) -> int:
        return int.from_bytes(self.kept[51:54], "big")

    @property
    def syndrome(self) -> int:
        return self.kept[54]


def read_pcap(path: Path) -> list[Record]:
    """By the libpcap file format: nanoseconds, Ethernet, little endian."""
    content = path.read_bytes()
    magic, major, minor, zone, figures, _, link_type = struct.unpack_from("<IHHiIII", content)
    assert (magic, major, minor, zone, figures, link_type) == (0xA1B23C4D, 2, 4, 0, 0, 1)
    records, at = [], 24
    while at < len(content):
        seconds, nanoseconds, kept, length = struct.unpack_from("<IIII", content, at)
        records.append(Record(seconds * 10**9 + nanoseconds, content[at + 16 : at + 16 + kept], length))
        at += 16 + kept
    assert at == len(content)
    return records


def capture(folder: Path, topology: Topology, config: RoceConfig, graph: FlowGraph, **options: object) -> Ns3Backend:
    """Runs the graph to the end; the files are complete once the caller has closed the backend."""
    backend = Ns3Backend(topology, config)
    backend.pcap(folder, **options)  # type: ignore[arg-type]
    backend.submit(graph, 0)
    while backend.next_event_ps() is not None:
        backend.advance(FAR_PS)
    return backend


def test_a_write_of_three_packets_and_its_acknowledgements_are_captured_at_both_hosts(tmp_path: Path) -> None:
    """10,000 B at 4096 B, 400 Gbit/s (20 ps per byte), two links of 500 ns, in the model's sizes: 52 B of headers, 60 B
    for an acknowledgement. Packets leave at 0, 82.96 and 165.92 ns and arrive after two serialisations and 1 µs, the
    first at 1165.92 ns; the second right behind it; the third, of 1808 B (37.2 ns), when it has been sent again behind
    the second: 1248.88 + 37.2 ns. The acknowledgement of the first is back 1 µs and 2.4 ns later, 2168.32 ns."""
    config = RoceConfig(congestion_control="none")
    capture(tmp_path, star(3), config, FlowGraph.from_lists([0], [1], [10_000])).close()
    sender, receiver = read_pcap(tmp_path / "0-0.pcap"), read_pcap(tmp_path / "1-0.pcap")
    assert [(r.at_ns, r.opcode, r.sequence) for r in sender] == [
        (0, WRITE_FIRST, 0),
        (82, WRITE_MIDDLE, 1),
        (165, WRITE_LAST, 2),
        (2168, ACKNOWLEDGE, 0),
        (2251, ACKNOWLEDGE, 1),
        (2288, ACKNOWLEDGE, 2),
    ]
    assert [(r.at_ns, r.opcode) for r in receiver] == [
        (1165, WRITE_FIRST),
        (1165, ACKNOWLEDGE),
        (1248, WRITE_MIDDLE),
        (1248, ACKNOWLEDGE),
        (1286, WRITE_LAST),
        (1286, ACKNOWLEDGE),
    ]
    assert read_pcap(tmp_path / "2-0.pcap") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.pcap" for name in ("0-0", "1-0", "2-0", "3-0", "3-1", "3-2")
    ]


def test_frames_are_those_of_rocev2_byte_by_byte(tmp_path: Path) -> None:
    """Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16, payload 1000, ICRC 4; queue pair 2 is the receiver's end of the
    first flow, 3 the sender's; DSCP 24 is class 3. An acknowledgement: AETH 4, ICRC 4."""
    config = RoceConfig(congestion_control="none")
    graph = FlowGraph.from_lists([0], [1], [1000], priority=[3], flow_label=[7])
    capture(tmp_path, star(2), config, graph).close()
    write, answer = read_pcap(tmp_path / "0-0.pcap")
    assert write.frame_bytes == len(write.kept) == 14 + 20 + 8 + 12 + 16 + 1000 + 4
    assert write.kept[:14] == bytes.fromhex("020000000001 020000000000 0800")
    assert write.kept[14:24] == bytes.fromhex("45 62 0424 0000 4000 40 11")  # 1060 B, ECN-capable
    assert write.kept[26:34] == bytes([11, 0, 0, 1, 11, 0, 1, 1])
    assert struct.unpack(">HHHH", write.kept[34:42]) == (10_007, 4791, 1040, 0)
    assert write.kept[42:54] == bytes.fromhex("0a 40 ffff 00 000002 80 000000")
    assert write.kept[54:70] == bytes(8) + bytes(4) + (1000).to_bytes(4, "big")
    assert write.kept[70:1070] == bytes(1000)
    assert answer.frame_bytes == len(answer.kept) == 14 + 20 + 8 + 12 + 4 + 4
    assert answer.kept[:14] == bytes.fromhex("020000000000 020000000001 0800")
    assert answer.kept[42:58] == bytes.fromhex("11 40 ffff 00 000003 00 000000 1f 000000")
    for frame in (write.kept, answer.kept):
        assert internet_sum(frame[14:34]) == 0xFFFF
        assert frame[-4:] == invariant_crc(frame[:-4])


def internet_sum(header: bytes) -> int:
    """RFC 1071: all ones for a header with a right checksum."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def invariant_crc(frame: bytes) -> bytes:
    """CRC-32 from IPv4 on, behind eight bytes of ones, with ones for DSCP and ECN, time to live, both checksums and the
    byte of BTH with congestion bits (InfiniBand annex A17.3.3)."""
    masked = bytearray(frame[14:])
    for at in (1, 8, 10, 11, 26, 27, 32):
        masked[at] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def test_a_payload_is_padded_to_words_and_says_so(tmp_path: Path) -> None:
    capture(tmp_path, star(2), RoceConfig(), FlowGraph.from_lists([0], [1], [5])).close()
    write = read_pcap(tmp_path / "0-0.pcap")[0]
    assert write.frame_bytes == 14 + 20 + 8 + 12 + 16 + 8 + 4
    assert write.kept[43] == 0x40 | 3 << 4
    assert write.kept[-4:] == invariant_crc(write.kept[:-4])


def test_pause_frames_are_those_of_ieee_802_1(tmp_path: Path) -> None:
    """Every pause that a sender obeys arrives in its capture: class vector, and the longest time for the class, or none
    to resume."""
    config = with_shared_bytes(clos(), 20_000, congestion_control="none")
    with contextlib.closing(capture(tmp_path, clos(), config, INCAST)) as backend:
        obeyed = backend.counters().pauses
    for host in range(7):
        frames = [record for record in read_pcap(tmp_path / f"{host}-0.pcap") if record.is_pause]
        cls = int(INCAST.priority[host])
        times = [0xFFFF, 0] * int(obeyed[2 * host])
        assert len(times) > 0
        for record, time in zip(frames, times, strict=True):
            vector = bytearray(16)
            struct.pack_into(">H", vector, 2 * cls, time)
            assert record.kept[:6] == bytes.fromhex("0180c2000001")
            assert record.kept[6:12] == bytes.fromhex("0200000000") + bytes([8 + host // 4])
            assert record.kept[12:] == bytes.fromhex("88080101") + (1 << cls).to_bytes(2, "big") + vector + bytes(26)


def test_marks_of_switches_are_congestion_experienced_at_the_receiver_and_told_back(tmp_path: Path) -> None:
    config = with_shared_bytes(clos(), 10**6, congestion_control="none", ecn_thresholds=EARLY_MARKS)
    with contextlib.closing(capture(tmp_path, clos(), config, INCAST, links=[14])) as backend:
        to_receiver = int(backend.counters().packets[15])
    assert [path.name for path in tmp_path.iterdir()] == ["7-0.pcap"]
    records = read_pcap(tmp_path / "7-0.pcap")
    writes = [record for record in records if record.opcode != ACKNOWLEDGE]
    answers = [record for record in records if record.opcode == ACKNOWLEDGE]
    marked = sum(record.ecn == 3 for record in writes)
    assert 10 < marked < len(writes)
    assert {record.ecn for record in records} == {2, 3}
    assert sum(record.has_backward_mark for record in answers) == marked
    assert not any(record.has_backward_mark for record in writes)
    assert len(writes) == to_receiver


def test_losses_show_as_sequence_errors(tmp_path: Path) -> None:
    """A negative acknowledgement names the packet that is missing, which is then sent again."""
    config = with_shared_bytes(clos(), 60_000, congestion_control="none", recovery="go_back_n", **LOSSY)
    with contextlib.closing(capture(tmp_path, clos(), config, INCAST)) as backend:
        assert backend.counters().drops.sum() > 0
    repeated = 0
    for host in range(7):
        records = read_pcap(tmp_path / f"{host}-0.pcap")
        sent = [record.sequence for record in records if record.opcode != ACKNOWLEDGE]
        missing = {r.sequence for r in records if r.opcode == ACKNOWLEDGE and r.syndrome == 0x60}
        assert all(sent.count(number) > 1 for number in missing)
        repeated += len(missing)
    assert repeated > 5


def test_flows_of_more_than_2_gib_are_several_writes(tmp_path: Path) -> None:
    """InfiniBand's longest message is 2 GiB. With packets of 64 KiB the second write has one packet, number 32,768, to
    the address behind the first. Its length does not fit IPv4's field, which says 0."""
    config = RoceConfig(mtu_bytes=65536, congestion_control="none")
    with contextlib.closing(Ns3Backend(star(2), config)) as backend:
        backend.submit(FlowGraph.from_lists([0], [1], [2**31 + 2**16]), 0)
        backend.advance(42_970_000_000)  # 32,768 packets of 65,588 B take 42.98 ms
        backend.pcap(tmp_path, links=[0], snap_bytes=70)
        backend.advance(FAR_PS)
    writes = [record for record in read_pcap(tmp_path / "0-0.pcap") if record.opcode != ACKNOWLEDGE]
    assert [record.opcode for record in writes[-3:]] == [WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY]
    assert writes[-1].sequence == 2**15
    assert struct.unpack(">QII", writes[-1].kept[54:70]) == (2**31, 0, 2**16)
    assert writes[-1].kept[16:18] == bytes(2)


def test_no_more_than_asked_for_is_kept(tmp_path: Path) -> None:
    graph = FlowGraph.from_lists([0], [1], [4096])
    for name, options, kept in (("default", {}, 4170), ("short", {"snap_bytes": 60}, 60)):
        capture(tmp_path / name, star(2), RoceConfig(), graph, **options).close()
        write, answer = read_pcap(tmp_path / name / "0-0.pcap")
        assert (len(write.kept), write.frame_bytes) == (kept, 4170)
        assert len(answer.kept) == min(kept, 62)


def test_capturing_changes_nothing(tmp_path: Path) -> None:
    config = with_shared_bytes(clos(), 60_000)
    ends = []
    for options in ({}, {"links": []}):
        with contextlib.closing(capture(tmp_path, clos(), config, INCAST, **options)) as backend:
            ends.append(backend.flow_times(0).end_ps)
    np.testing.assert_array_equal(ends[0], ends[1])


def test_what_cannot_be_captured_raises(tmp_path: Path) -> None:
    topology = rail_optimized(nodes=2, gpus_per_node=2)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder" / "0-1.pcap").mkdir(parents=True)
    nic = int(np.flatnonzero(topology.link_src == 0)[1])
    with contextlib.closing(Ns3Backend(topology)) as backend:
        for folder, links, message in (
            ("new", [0], "found link 0 of NVLink, expected one with frames"),
            ("new", [-1], "found link -1, expected 0 to"),
            ("new", [topology.links], "expected 0 to"),
            ("file", None, r"cannot make folder .*file \(File exists\)"),
            ("folder", [nic], r"cannot write .*0-1\.pcap \(Is a directory\)"),
        ):
            with pytest.raises(BackendError, match=message):
                backend.pcap(tmp_path / folder, links=links)
        with pytest.raises(BackendError, match="found 0 bytes of a frame, expected 1 to 65535"):
            backend.pcap(tmp_path / "new", snap_bytes=0)
        backend.pcap(tmp_path / "new")
        assert len(list((tmp_path / "new").iterdir())) == int((topology.link_kind != topology.link_kind[0]).sum())
        with pytest.raises(BackendError, match="found a second capture of device 0-1, expected at most one"):
            backend.pcap(tmp_path / "new", links=[nic])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """T.txt (four hosts behind a switch) and F.csv, a flow of one packet."""
    (tmp_path / "T.txt").write_text(to_simai(single_switch(4)))
    (tmp_path / "F.csv").write_text("flow_id,src,dst,bytes,deps\na,0,3,4000,\n")
    return tmp_path


def simulate(folder: Path, backend: str, pcap: Path) -> None:
    run(topology=folder / "T.txt", flows=folder / "F.csv", backend=backend, output=folder / "out.csv", pcap=pcap)


def test_the_command_captures_all_ports(folder: Path) -> None:
    simulate(folder, "ns3", folder / "captures")
    assert [record.opcode for record in read_pcap(folder / "captures" / "3-0.pcap")] == [WRITE_ONLY, ACKNOWLEDGE]
    assert len(list((folder / "captures").iterdir())) == 8
    Ns3Backend(star(2)).close()  # the command's is closed
    with pytest.raises(InputError, match=r"--pcap: found .*0-0\.pcap, expected a folder without captures"):
        simulate(folder, "ns3", folder / "captures")


@pytest.mark.parametrize(
    ("backend", "place", "flow", "message"),
    [
        ("packet", "captures", "a,0,3,4000,", "^--pcap: found backend packet, expected ns3, whose ports"),
        ("fluid", "captures", "a,0,3,4000,", "^--pcap: found backend fluid, expected ns3, whose ports"),
        ("ns3", "T.txt", "a,0,3,4000,", "^--pcap: cannot make folder .*T.txt"),
        ("ns3", "captures", "a,0,3,4000,a", "cycle"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_captures(
    folder: Path, backend: str, place: str, flow: str, message: str
) -> None:
    (folder / "F.csv").write_text(f"flow_id,src,dst,bytes,deps\n{flow}\n")
    with pytest.raises(InputError, match=message) as caught:
        simulate(folder, backend, folder / place)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["F.csv", "T.txt"]
    del caught
    gc.collect()  # the network that the exception held


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_sees_rocev2(tmp_path: Path) -> None:
    capture(tmp_path, star(3), RoceConfig(), FlowGraph.from_lists([0], [1], [10_000])).close()
    fields = ["-T", "fields", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode"]
    ran = subprocess.run(
        ["tshark", "-r", str(tmp_path / "0-0.pcap"), *fields], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["6", "7", "8", "17", "17", "17"]
