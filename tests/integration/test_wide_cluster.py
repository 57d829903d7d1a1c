"""Clusters much larger than what is in use: they start, run, and cost no more than their instances."""

from __future__ import annotations

import pytest

from tests.integration.small_runs import config, pool, simulate

ROWS = [(50 * index, 800, 6) for index in range(300)]


@pytest.mark.parametrize(("kind", "backend"), [("rail_optimized", "fluid"), ("fat_tree", "analytical")])
def test_five_hundred_instances_among_four_thousand_servers_serve(kind: str, backend: str) -> None:
    topology = {"kind": kind, "gpus_per_node": 8, "nodes": 4000}
    coupling = "fluid" if backend == "fluid" else "isolated"
    pools = [pool("p", "prefill", tp=8, instances=250), pool("d", "decode", tp=8, instances=250)]
    result = simulate(config(pools, topology=topology, network={"backend": backend, "coupling": coupling}), ROWS)
    assert result.topology.gpus == 32_000
    assert result.summary.completed == len(ROWS)
    assert {record.prefill_instance for record in result.requests} == {f"p-{index}" for index in range(250)}
