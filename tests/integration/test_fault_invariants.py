"""What holds whatever fails: every request ends, nothing comes early, blocks return, bytes add up, clocks go on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aicb.model.catalog import load_model
from netsim.backends.contract import capabilities_of
from tests.integration.random_faults import random_fault
from tests.integration.small_runs import config, pool, requests
from vidur_pd.cluster.faults.recovery import NO_INSTANCE, STOOD_STILL
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.coupling.plan import KV
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate
from vidur_pd.workload.request import RequestStatus

ENDS = (RequestStatus.COMPLETED, RequestStatus.REJECTED, RequestStatus.FAILED)
ROWS = st.lists(st.tuples(st.integers(0, 150_000), st.integers(1, 2_000), st.integers(1, 25)), min_size=1, max_size=10)
"""(arrival in µs, prompt tokens, output tokens)"""
CLUSTERS = {
    "p2d2": [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)],
    "p1d2m": [pool("p", "prefill", tp=2), pool("d", "decode", instances=2), pool("m", "mixed")],
    "m2": [pool("m", "mixed", instances=2, tp=2)],
    "pp": [pool("p", "prefill", pp=2), pool("d", "decode", instances=2, pp=2)],
    "dp": [pool("p", "prefill", instances=2), pool("d", "decode", dp=2)],
}
NETWORKS = [
    {"backend": "fluid", "coupling": "fluid"},
    {"backend": "fluid", "coupling": "isolated"},
    {"backend": "fluid", "coupling": "exact"},
    {"backend": "analytical", "coupling": "isolated"},
    {"backend": "packet", "coupling": "isolated"},
    {"backend": "packet", "coupling": "exact"},
]
ROCE = {"retransmission_timeout": "100us", "max_retries": 2, "reroute_delay": "50us", "packets_per_ack": 16}
TOPOLOGY = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "100Gbps", "spines": 2, "nodes_per_segment": 1}
CONNECTORS = [
    "ideal",
    "ideal",
    {"kind": "nixl", "handshake_descriptor_us": 0.01},
    {"kind": "nixl", "path": "host"},
    "mooncake",
    "lmcache",
    {"kind": "sglang_nixl", "nics": 2},
]
UNTIL_S = 0.2
"""Faults begin before."""


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[SimulationConfig, list[tuple[int, int, int]]]:
    """A small cluster, what fails in it, and its requests."""
    name = draw(st.sampled_from(sorted(CLUSTERS)))
    network: dict[str, Any] = dict(draw(st.sampled_from(NETWORKS)))
    if name == "pp" and network["coupling"] == "exact":
        network["coupling"] = "isolated"
    if network["backend"] == "packet":
        network["roce"] = ROCE
    sections = {
        "engine": {
            "estimator": "roofline",
            "num_kv_blocks": draw(st.sampled_from([160, 2_000])),
            "max_batched_tokens": draw(st.sampled_from([256, 2_048])),
            "prefix_caching": draw(st.booleans()),
        },
        "kv_transfer": {
            "mode": draw(st.sampled_from(["pull", "push", "chunked", "layerwise"])),
            "connector": draw(st.sampled_from(CONNECTORS)),
            "first_token": draw(st.sampled_from(["prefill", "decode_after_transfer", "decode_recompute"])),
        },
        "network": network,
        "routing": {"policy": draw(st.sampled_from(["round_robin", "least_requests"]))},
        "recovery": {
            "requests": draw(st.sampled_from(["recompute", "retry", "fail"])),
            "max_attempts": draw(st.sampled_from([1, 3])),
            "transfer_retries": draw(st.sampled_from([0, 2])),
            "without_instance": draw(st.sampled_from(["wait", "fail"])),
            "degraded": draw(st.sampled_from(["keep", "drain"])),
        },
        "topology": TOPOLOGY,
    }
    bare = config(CLUSTERS[name], **sections)
    choose = draw(st.randoms(use_true_random=False))
    faults = [random_fault(choose, bare, UNTIL_S) for _ in range(choose.randint(1, 4))]
    return config(CLUSTERS[name], faults=faults, **{**sections, "topology": TOPOLOGY}), draw(ROWS)


@given(scenarios())
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
def test_nothing_is_lost_whatever_fails(scenario: tuple[SimulationConfig, list[tuple[int, int, int]]]) -> None:
    """The run itself checks that no KV block is held and no hand-over open at its end, and that clocks go on."""
    tree, rows = scenario
    result = simulate(tree, requests(rows))
    check_every_request_has_an_end(result, len(rows))
    check_the_order_of_stamps(result)
    check_kv_bytes(result)
    check_iterations(result)
    check_nothing_was_given_up_for_want_of_events(result)
    again = tree
    if tree.network.coupling == "isolated":  # runs of iterations are cut by faults where single ones end
        again = tree.model_copy(update={"engine": tree.engine.model_copy(update={"fast_forward": False})})
    assert "".join(requests_csv(result.table)) == "".join(requests_csv(simulate(again, requests(rows)).table))


def check_every_request_has_an_end(result: Result, rows: int) -> None:
    """Completed with all its tokens, or ended with a reason; what the summary counts is what there is."""
    ended = result.requests
    assert len(ended) == rows
    for request in ended:
        assert request.status in ENDS
        if request.status is RequestStatus.COMPLETED:
            assert request.generated_tokens == request.output_tokens
        else:
            assert request.status_reason
    summary = result.summary
    assert summary.completed + summary.rejected + summary.failed == summary.requests == rows


def check_the_order_of_stamps(result: Result) -> None:
    """Stages are those of the last attempt, in order; tokens of earlier ones may come before. KV precedes decode."""
    for request in result.requests:
        if request.status is not RequestStatus.COMPLETED:
            continue
        assert request.scheduled_ps is not None
        assert request.prefill_completed_ps is not None
        stages = [request.arrived_ps, request.scheduled_ps, request.prefill_completed_ps]
        if request.kv_arrived_ps is not None:
            assert request.kv_sent_ps is not None
            assert request.kv_sent_ps <= request.kv_arrived_ps
            stages.append(request.kv_arrived_ps)
        stages.append(request.completed_ps)
        assert stages == sorted(stages)
        assert request.arrived_ps < request.first_token_ps <= request.last_token_ps == request.completed_ps


def check_kv_bytes(result: Result) -> None:
    """What requests count as moved, cut transfers included, is what links into GPUs have carried.

    A flow that is cut counts in whole bytes, less than one below what it has sent. Packets that are lost or sent again
    are carried and do not count. A stripe enters up to three GPUs: that whose NIC it takes, its like, and its own.
    """
    into_gpus = result.topology.link_dst < result.topology.gpus
    carried = result.links.total_bytes(KV)[into_gpus].sum()
    counted = sum(record.kv_bytes or 0 for record in result.requests)
    assert all((record.kv_bytes or 0) >= 0 for record in result.requests)
    assert carried >= counted - 1
    if not capabilities_of(result.config.network.backend).simulates_packets:
        entered = 3 if result.config.kv_transfer.connector.nics > 1 else 1
        assert carried <= entered * (counted + 1 + cut_flows(result))


def cut_flows(result: Result) -> int:
    """Most flows that faults can have cut: one for each layer and pair of GPUs of a transfer."""
    faults = result.summary.faults
    if faults is None:
        return 0
    cuts = sum(asdict(faults.requests).values()) + faults.transfers_retried
    gpus = max(pool.gpus // pool.instances for pool in result.summary.pools)
    return cuts * len(load_model(result.config.model).pattern) * gpus


def check_nothing_was_given_up_for_want_of_events(result: Result) -> None:
    """Where every fault ends and requests may wait, nothing fails because the simulation has come to rest."""
    faults = result.config.faults
    ends = all(not hasattr(fault, "for_s") or fault.for_s is not None for fault in faults)
    if ends and result.config.recovery.without_instance == "wait":
        reasons = {record.status_reason for record in result.requests}
        assert not reasons & {NO_INSTANCE, STOOD_STILL}


def check_iterations(result: Result) -> None:
    """Iterations of an instance take time, and without pipeline stages never overlap."""
    stages = {placement.name: placement.pp for placement in result.config.cluster.pools}
    last_end: dict[int, int] = {}
    for run in result.iterations.runs:
        assert np.all(np.diff(run.ends_ps, prepend=run.start_ps) > 0)
        assert np.all(run.communication_ps >= 0)
        if stages[result.iterations.instances[run.instance][1]] == 1:
            assert run.start_ps >= last_end.get(run.instance, 0)
        last_end[run.instance] = int(run.ends_ps[-1])
