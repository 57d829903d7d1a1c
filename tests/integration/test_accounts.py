"""Time, bytes and energy of whole runs add up, in every coupling and on every backend."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aicb import get_gpu
from aicb.measurements.power import power_law
from boundary.errors import InputError
from tests.integration.small_runs import config, pool, requests, simulate
from vidur_pd.execution.coupling.plan import COLLECTIVE, KV, plan_coupling
from vidur_pd.metrics.attribution import PARTS, attribute
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import SimulationState, assemble
from vidur_pd.workload.request import RequestStatus

NODES = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "100Gbps"}
TENSOR = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]
"""Both instances span two nodes, so that collectives and KV transfers meet on NICs."""
ROWS = [(5_000 * index, tokens, 6 + index % 3) for index, tokens in enumerate((1024, 1280, 1152, 1536, 1792, 1024))]
"""Prompts whose all-reduces have sizes that are priced as they are, if every prompt is an iteration of its own."""
FAST = {"estimator": "roofline", "max_batched_tokens": 2048, "max_seqs": 1}
NETWORKS: list[dict[str, Any]] = [
    {"coupling": "isolated"},
    {"coupling": "fluid"},
    {"coupling": "exact"},
    {"backend": "packet", "coupling": "isolated"},
    {"backend": "packet", "coupling": "exact"},
    {"backend": "analytical", "coupling": "isolated"},
]
HAS_NS3 = importlib.util.find_spec("netsim._ns3") is not None


def run(network: dict[str, Any], **sections: Any) -> tuple[Result, SimulationState]:
    tree = config(sections.pop("pools", TENSOR), topology=NODES, engine=FAST, network=network, **sections)
    state = assemble(plan_simulation(tree))
    return Simulation(state, requests(ROWS)).run(), state


def name_of(network: dict[str, Any]) -> str:
    return f"{network.get('backend', 'fluid')}-{network['coupling']}"


Finished = tuple[dict[str, Any], Result, SimulationState]


@cache
def finished_on(name: str) -> Finished:
    [network] = [each for each in NETWORKS if name_of(each) == name]
    return network, *run(network)


@pytest.fixture(params=map(name_of, NETWORKS))
def finished(request: pytest.FixtureRequest) -> Finished:
    return finished_on(request.param)


def test_parts_of_every_request_add_up_to_its_latency(finished: Finished) -> None:
    """To the picosecond, and none is negative. Prefill and decode are all there: nothing is left for stalls but the
    wait for a step in progress, which lasts no longer than a decode step."""
    _, result, _ = finished
    longest_step_ps = max(int(np.diff(run.ends_ps, prepend=run.start_ps).max()) for run in decodes(result))
    parts = check_parts(result)
    tokens = np.array([record.output_tokens for record in result.requests])
    assert (parts[:, PARTS.index("stall")] <= longest_step_ps).all()
    assert (parts[:, PARTS.index("decode_compute")] >= (tokens - 1) * shortest_compute_ps(result)).all()
    assert sum(result.summary.attribution_s.values()) == pytest.approx(result.summary.e2e_s.mean, rel=1e-12)


def check_parts(result: Result) -> NDArray[np.int64]:
    """[completed requests, parts], which add up and of which none is negative."""
    parts = attribute(result.table)
    completed = [record for record in result.requests if record.status is RequestStatus.COMPLETED]
    latencies = [record.completed_ps - record.arrived_ps for record in completed]
    assert parts.sum(axis=1).tolist() == latencies
    assert (parts >= 0).all()
    return parts


def decodes(result: Result) -> list[Any]:
    return [run for run in result.iterations.runs if result.iterations.instances[run.instance][1] == "d"]


def shortest_compute_ps(result: Result) -> int:
    return min(int(run.compute_ps.min()) for run in decodes(result))


def test_sources_of_communication_time_are_those_of_the_coupling(finished: Finished) -> None:
    network, result, _ = finished
    found = result.summary.communication
    shares = found.shares
    assert sum(shares.values()) == pytest.approx(1.0)
    expected = {"isolated": "priced", "fluid": "stretched", "exact": "simulated"}[network["coupling"]]
    assert found.collectives == expected
    iterations_s = sum(int(run.communication_ps.sum()) for run in result.iterations.runs) / 1e12
    assert found.collectives_s == pytest.approx(iterations_s)
    on_the_way_s = sum(j.kv_arrived_ps - j.kv_sent_ps for j in result.requests) / 1e12
    assert found.kv_transfers_s == pytest.approx(on_the_way_s)
    kv_share = found.kv_transfers_s / (found.kv_transfers_s + found.collectives_s)
    match name_of(network):
        case "analytical-isolated":
            assert shares["priced"] == 1.0
        case "fluid-exact" | "packet-exact":
            assert shares["simulated"] == 1.0
            assert found.contention_s > 0
        case "fluid-fluid":
            assert shares["simulated"] == pytest.approx(kv_share)
            assert shares["stretched"] > 0
        case _:
            assert shares["simulated"] == pytest.approx(kv_share)
            assert shares["stretched"] == 0.0 == found.contention_s


def test_links_carry_the_bytes_of_transfers_and_collectives(finished: Finished) -> None:
    """The log's bytes of a class are those of its members over their paths, and the network's own counters saw what was
    simulated on it: everything in `exact`, transfers otherwise."""
    network, result, state = finished
    kv, collective = (result.links.total_bytes(traffic) for traffic in (KV, COLLECTIVE))
    into_gpus = state.plan.topology.link_dst < state.plan.topology.gpus
    sent = sum(record.kv_bytes or 0 for record in result.requests)
    assert kv[into_gpus].sum() == pytest.approx(sent, rel=1e-9)
    assert collective[into_gpus].sum() > 0
    simulated = kv + collective if network["coupling"] == "exact" else kv
    carried = state.network.link_stats().carried_bytes
    assert carried == pytest.approx(simulated, rel=1e-9)
    table = result.link_columns()
    assert table["carried_bytes"].sum() == pytest.approx((kv + collective).sum(), rel=1e-9)


def test_bytes_of_collectives_between_priced_sizes_are_near_those_of_their_plans() -> None:
    """Prompts of 1,100 to 1,900 tokens, one at a time: where NCCL's plan changes between two sizes, so do the links
    that it loads. `exact` has the flows themselves."""
    rows = [(500_000 * index, 1_100 + 160 * index, 2) for index in range(6)]
    priced, flown = (
        simulate(config(TENSOR, topology=NODES, engine=FAST, network={"coupling": coupling}), rows)
        for coupling in ("isolated", "exact")
    )
    assert priced.summary.simulator.iterations == flown.summary.simulator.iterations
    carried = [result.links.total_bytes(COLLECTIVE).sum() for result in (priced, flown)]
    assert carried[0] == pytest.approx(carried[1], rel=0.01)


def test_energy_lies_between_idle_and_limit_and_is_that_of_the_pools(finished: Finished) -> None:
    _, result, _ = finished
    law, energy, makespan_s = power_law(get_gpu("h200")), result.summary.energy, result.summary.makespan_s
    assert law is not None
    assert energy.is_estimate
    assert 8 * law.ready_w * makespan_s < energy.gpu_j < 8 * law.limit_w * makespan_s
    assert energy.gpu_j == pytest.approx(sum(energy.pools_j.values()))
    assert energy.total_j == pytest.approx(energy.gpu_j)  # nothing around the GPUs is stated


def test_parts_add_up_with_chunks_pipelines_drafts_and_preemption() -> None:
    """The same where requests are in fewer or more iterations than they have tokens."""
    rows = [(2_000 * index, 700 + 90 * index, 12) for index in range(8)]
    cases: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
        ([pool("m", "mixed")], {"max_batched_tokens": 256}),
        ([pool("m", "mixed", pp=2)], {"max_batched_tokens": 256}),
        ([pool("m", "mixed")], {"num_kv_blocks": 110, "max_batched_tokens": 512}),
        ([pool("p", "prefill", pp=2), pool("d", "decode", dp=2)], {}),
    ]
    for pools, engine in cases:
        result = simulate(config(pools, engine={**FAST, **engine}), rows)
        check_parts(result)


@pytest.mark.parametrize(
    ("backend", "coupling", "in_force", "pricing"),
    [
        ("fluid", "isolated", "isolated", "fluid"),
        ("fluid", "fluid", "fluid", "fluid"),
        ("fluid", "exact", "exact", "fluid"),
        ("packet", "isolated", "isolated", "packet"),
        ("packet", "exact", "exact", "fluid"),
        ("ns3", "isolated", "isolated", "packet"),
        ("ns3", "exact", "exact", "fluid"),
        ("analytical", "fluid", "isolated", "analytical"),
    ],
)
def test_each_backend_carries_its_couplings(backend: str, coupling: str, in_force: str, pricing: str) -> None:
    plan = plan_coupling(config(TENSOR, network={"backend": backend, "coupling": coupling}))
    assert (plan.in_force, plan.pricing_backend) == (in_force, pricing)


@pytest.mark.parametrize(("backend", "coupling"), [("packet", "fluid"), ("ns3", "fluid"), ("analytical", "exact")])
def test_other_couplings_are_refused(backend: str, coupling: str) -> None:
    with pytest.raises(InputError, match=rf"network\.coupling: found '{coupling}' with backend '{backend}'"):
        plan_coupling(config(TENSOR, network={"backend": backend, "coupling": coupling}))


@pytest.mark.ns3
@pytest.mark.skipif(not HAS_NS3, reason="this build has no ns-3")
@pytest.mark.parametrize("coupling", ["isolated", "exact"])
def test_ns3_gives_the_times_of_packet(coupling: str) -> None:
    result, state = run({"backend": "ns3", "coupling": coupling})
    state.network.close()
    _, of_packet, _ = finished_on(f"packet-{coupling}")
    stamps = [[(j.kv_arrived_ps, j.completed_ps) for j in each.requests] for each in (result, of_packet)]
    assert stamps[0] == stamps[1]
