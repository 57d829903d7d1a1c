"""The backend without contention."""

from __future__ import annotations

from hypothesis import given, settings

from netsim import FlowGraph, Topology
from netsim.backends.analytical import AnalyticalBackend
from netsim.routing import Router
from tests.netsim.strategies import GBPS, networks_with_flows, star_of


def test_flows_on_one_link_do_not_slow_each_other() -> None:
    """800 kB at the 4 Gbit/s of host 2 are 1.6 ms, for both flows; its link then carries twice its capacity."""
    backend = AnalyticalBackend(star_of([10 * GBPS, 20 * GBPS, 4 * GBPS]))
    handle = backend.submit(FlowGraph.from_lists([0, 1], [2, 2], [800_000, 800_000]), 0)
    backend.advance(10**18)
    assert backend.flow_times(handle).end_ps.tolist() == [1_600_000_000] * 2
    assert backend.link_stats().carried_bytes[5] == 1_600_000
    assert backend.link_stats().busy_ps[5] == 1_600_000_000


@given(networks_with_flows())
@settings(max_examples=60)
def test_every_flow_takes_its_bytes_over_its_bottleneck_or_cap_plus_its_latency(
    case: tuple[Topology, FlowGraph],
) -> None:
    topology, graph = case
    backend = AnalyticalBackend(topology)
    handle = backend.submit(graph, 0)
    backend.advance(10**18)
    times = backend.flow_times(handle)
    router = Router(topology)
    columns = (graph.size_bytes.tolist(), graph.max_rate_bps.tolist())
    rows = zip(graph.src, graph.dst, graph.flow_label, *columns, strict=True)
    for (src, dst, label, size, cap), took in zip(rows, (times.end_ps - times.start_ps).tolist(), strict=True):
        bottleneck = router.bottleneck_bps(src, dst, label) if src != dst else 1
        drain = -(-size * 8 * 10**12 // min(bottleneck, cap or bottleneck))
        assert took == (drain + router.path_latency_ps(src, dst, label) if size and src != dst else 0)
