"""NVSwitches in the packet engine: ends of flows, credits and what a flow may end at."""

from __future__ import annotations

import pytest

from netsim import BackendError, FlowGraph, NodeKind, create_backend, rail_optimized
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig

FAR_PS = 10**15
SERVER = rail_optimized(nodes=1, gpus_per_node=4)
NVSWITCH = int((SERVER.node_kind == NodeKind.NVSWITCH).argmax())
LEAF = int((SERVER.node_kind == NodeKind.LEAF).argmax())


def end_ps(src: list[int], dst: list[int], size_bytes: int, config: RoceConfig | None = None) -> list[int]:
    backend = PacketBackend(SERVER, config)
    handle = backend.submit(FlowGraph.from_lists(src, dst, [size_bytes] * len(src)), 0)
    backend.advance(FAR_PS)
    assert backend.counters().drops.sum() == 0
    return [int(end) for end in backend.flow_times(handle).end_ps]


def test_flows_to_and_from_an_nvswitch_take_one_link() -> None:
    """4,096 bytes at 2,966.4 Gbit/s are 11,046 ps, after 25 ns of latency; through the switch it is twice that."""
    one_link_ps = 25_000 + 11_046
    assert end_ps([0], [NVSWITCH], 4096) == [one_link_ps]
    assert end_ps([NVSWITCH], [0], 4096) == [one_link_ps]
    assert end_ps([0], [1], 4096) == [2 * one_link_ps]


@pytest.mark.parametrize("cell_packets", [1, 8])
def test_an_nvswitch_that_adds_up_takes_the_whole_rate_of_every_gpu(cell_packets: int) -> None:
    """Each link sends 4 MiB alone, so four at a time take no longer than one, and credits never stop a link."""
    size = 4 << 20
    config = RoceConfig(cell_packets=cell_packets)
    alone = end_ps([0], [NVSWITCH], size, config)
    assert end_ps([0, 1, 2, 3], [NVSWITCH] * 4, size, config) == alone * 4
    assert alone[0] == pytest.approx(size * 8e12 / 2_966_400_000_000 + 25_000, rel=1e-4)


def test_credits_make_senders_wait_where_gpus_meet() -> None:
    """Three GPUs send to one: its link carries 3 · 1 MiB, and no packet is lost however small the NVSwitch's inputs."""
    size = 1 << 20
    bound_ps = 3 * size * 8e12 / 2_966_400_000_000
    for input_bytes in (4096, 20_000, None):
        ends = end_ps([0, 1, 2], [3, 3, 3], size, RoceConfig(nvswitch_input_bytes=input_bytes))
        assert max(ends) >= bound_ps
        if input_bytes is None:
            assert max(ends) == pytest.approx(bound_ps, rel=0.02)


def test_flows_do_not_end_at_packet_switches() -> None:
    backend = create_backend("packet", SERVER)
    for src, dst in ((0, LEAF), (LEAF, 0)):
        with pytest.raises(BackendError, match=f"node {LEAF}, a switch; expected GPUs, or NVSwitches"):
            backend.submit(FlowGraph.from_lists([src], [dst], [1]), 0)
