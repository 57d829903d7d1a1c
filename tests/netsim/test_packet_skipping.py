"""`RoceConfig.skip_tolerance`: what is skipped, how far times are off, and that looking for it stays cheap."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings

from netsim import FlowGraph, FlowTimes, Topology
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from tests.netsim.packet_times import FAR_PS, Hop, chain, run
from tests.netsim.roce_scenarios import Scenario, clos, outcome, scenarios
from tests.netsim.strategies import GBPS

TOLERANCE: Final = 0.01
MOST_INSTANTS: Final = 4096
"""Looks are thought of before anything has been simulated: 64 times anew, in 64 doublings of the step."""
LONG_BYTES: Final = 1 << 24


def graph(pairs: list[tuple[int, int]], size_bytes: int) -> FlowGraph:
    src, dst = zip(*pairs, strict=True)
    return FlowGraph.from_lists(src, dst, [size_bytes] * len(pairs), flow_label=range(len(pairs)))


CASES: Final = {
    "4 KB at 1 kb/s behind a NIC of 400 Gb/s": (chain([Hop(400 * GBPS, 500_000), Hop(1000, 500_000)]), [(0, 1)], 4096),
    "incast": (clos(32, 4, 4), [(host, 0) for host in range(1, 17)], LONG_BYTES),
    "ring": (clos(32, 4, 4), [(host, (host + 1) % 32) for host in range(32)], LONG_BYTES),
    "all-to-all": (clos(16), list(permutations(range(16), 2)), 1 << 18),
}


def with_and_without(
    topology: Topology, flows: FlowGraph, congestion_control: str
) -> tuple[PacketBackend, FlowTimes, PacketBackend, FlowTimes]:
    config = RoceConfig.model_validate({"congestion_control": congestion_control})
    skipping = config.model_copy(update={"skip_tolerance": TOLERANCE})
    return *run(topology, flows, skipping), *run(topology, flows, config)


def assert_cheap(backend: PacketBackend) -> None:
    """Whatever is skipped: an eighth of what was simulated, besides a constant."""
    instants, units = backend.look_effort()
    hops = backend.packet_hops()
    assert units <= hops / 8
    assert instants <= MOST_INSTANTS + hops / 8


class Frugal(PacketBackend):
    """Has looked cheaply by the time that it is closed."""

    def close(self) -> None:
        assert_cheap(self)
        super().close()


@pytest.mark.parametrize("congestion_control", ["none", "dcqcn", "hpcc"])
@pytest.mark.parametrize("case", CASES)
def test_looking_costs_less_than_it_can_save(case: str, congestion_control: str) -> None:
    """Counted, not timed: a link or flow that is gone through takes about as long as a packet hop."""
    topology, pairs, size_bytes = CASES[case]
    skipping, times, whole, expected = with_and_without(topology, graph(pairs, size_bytes), congestion_control)
    assert_cheap(skipping)
    assert skipping.packet_hops() <= whole.packet_hops()
    assert whole.look_effort() == (0, 0)
    assert np.allclose(times.end_ps, expected.end_ps, rtol=TOLERANCE, atol=0)


@given(scenarios())
@settings(max_examples=40)
def test_looking_is_cheap_in_every_scenario(scenario: Scenario) -> None:
    """With links that fail and return, buffers that overflow and flows that give up."""

    def start(topology: Topology, config: RoceConfig) -> PacketBackend:
        return Frugal(topology, config.model_copy(update={"skip_tolerance": TOLERANCE}))

    outcome(start, scenario, FAR_PS)


def test_a_slow_flow_is_looked_at_a_few_times() -> None:
    """It takes 33.2 s, and the shortest step is 83 ns / 1 %: four million of them, or 22 doublings of it."""
    topology, pairs, size_bytes = CASES["4 KB at 1 kb/s behind a NIC of 400 Gb/s"]
    backend, times, *_ = with_and_without(topology, graph(pairs, size_bytes), "none")
    assert times.end_ps[0] > 32 * 10**12
    assert backend.look_effort() == (22, 0)


@pytest.mark.parametrize("case", ["incast", "ring"])
def test_half_of_long_steady_flows_is_skipped(case: str) -> None:
    topology, pairs, size_bytes = CASES[case]
    skipping, times, whole, _ = with_and_without(topology, graph(pairs, size_bytes), "none")
    assert skipping.packet_hops() < whole.packet_hops() / 2
    assert skipping.skipped_ps() > times.end_ps.max() / 2


def test_a_flow_that_comes_meanwhile_breaks_a_skip_off() -> None:
    """The second takes half of the link from a third of the first's time on, while it would be skipped."""
    topology = chain([Hop(100 * GBPS, 500_000)] * 2)
    begin_ps = LONG_BYTES * 8 * 10**12 // (3 * 100 * GBPS)
    ends = []
    for tolerance in (0, TOLERANCE):
        backend = PacketBackend(topology, RoceConfig(congestion_control="none", skip_tolerance=tolerance))
        handles = [backend.submit(graph([(0, 1)], LONG_BYTES), 0)]
        while backend.now_ps < begin_ps:
            backend.advance(begin_ps)
        handles.append(backend.submit(graph([(0, 1)], LONG_BYTES), begin_ps))
        while backend.next_event_ps() is not None:
            backend.advance(FAR_PS)
        ends.append([int(backend.flow_times(handle).end_ps[0]) for handle in handles])
        assert (backend.skipped_ps() > 0) == (tolerance > 0)
    assert ends[1] == pytest.approx(ends[0], rel=TOLERANCE)
    assert ends[0][0] > 1.6 * LONG_BYTES * 8 * 10**12 // (100 * GBPS)
