"""Scripted faults, each with what has to follow from it by hand.

One GPU per server unless a scenario says otherwise: GPU *i* is the *i*-th instance, and its only cable leads to
leaf0.0. Kernels are priced by the roofline, which is enough here.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.units import PS_PER_S
from tests.integration.small_runs import NO_HOST, config, pool, requests
from tests.integration.test_fault_invariants import (
    check_every_request_has_an_end,
    check_iterations,
    check_kv_bytes,
    check_the_order_of_stamps,
)
from vidur_pd.cluster.faults.recovery import NO_INSTANCE, STOOD_STILL
from vidur_pd.kv.transfer.delivery import GIVEN_UP
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary_file import summary_tree
from vidur_pd.metrics.verdict.limits import Limit
from vidur_pd.simulation.api import simulate
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.workload import BlockHashes
from vidur_pd.workload.request import Request, RequestStatus

HOSTS = {"kind": "rail_optimized", "gpus_per_node": 1}
TWO_AND_TWO = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]
PAIR = [pool("p", "prefill"), pool("d", "decode")]
MIXED = [pool("m", "mixed", instances=2)]
ROWS = [(20_000 * index, 800, 40) for index in range(12)]
"""A request every 20 ms; each decodes for some 200 ms."""
MODES = ["pull", "push", "layerwise"]
QUICK = {"retransmission_timeout": "100us", "max_retries": 2, "reroute_delay": "10us"}


def run(
    pools: list[dict[str, Any]], *faults: dict[str, Any], rows: list[tuple[int, int, int]] = ROWS, **sections: Any
) -> Result:
    """A run under faults, with the invariants checked."""
    sections = {"topology": HOSTS, "engine": {"estimator": "roofline"}, **sections}
    result = simulate(config(pools, faults=list(faults), **sections), requests(rows))
    check_every_request_has_an_end(result, len(rows))
    check_the_order_of_stamps(result)
    check_kv_bytes(result)
    check_iterations(result)
    return result


def ended(result: Result) -> list[Request]:
    return result.requests


def reasons(result: Result) -> set[str | None]:
    return {request.status_reason for request in ended(result)}


def acted(result: Result) -> dict[str, int]:
    counts: dict[str, int] = asdict(result.summary.faults.requests)
    return {name: count for name, count in counts.items() if count}


def launches_between(result: Result, name: str, begin_s: float, end_s: float) -> int:
    """Iterations of an instance that begin in a span of time."""
    names = [instance for instance, _ in result.iterations.instances]
    starts = [run.start_ps / PS_PER_S for run in result.iterations.runs if names[run.instance] == name]
    return sum(begin_s < start < end_s for start in starts)


def step_ends_ps(result: Result) -> NDArray[np.int64]:
    """[iterations] of a run with one instance."""
    return np.concatenate([run.ends_ps for run in result.iterations.runs])


def routed_to(result: Result, name: str, role: str = "decode_instance") -> list[int]:
    return [record.index for record in result.requests if getattr(record, role) == name]


@pytest.mark.parametrize("mode", MODES)
def test_a_decode_instance_that_fails_loses_its_requests_to_the_other(mode: str) -> None:
    """d-0 has no iteration from 100 ms to 200 ms; with `recompute` nobody gets a token twice: all requests together get
    the 480 that were asked for, with 468 gaps between them."""
    fault = {"kind": "instance", "instance": "d-0", "at_s": 0.1, "for_s": 0.1}
    result = run(TWO_AND_TWO, fault, kv_transfer={"mode": mode})
    assert result.summary.completed == 12
    assert launches_between(result, "d-0", 0.1, 0.2) == 0
    assert launches_between(result, "d-0", 0.2, 9.0) > 0
    assert acted(result)["recomputed"] > 0
    restarted = [record for record in result.requests if record.restarts]
    assert {record.decode_instance for record in restarted} == {"d-1"}
    assert result.iterations.gaps()[1].sum() == 12 * 39


def test_retry_starts_over_and_recompute_keeps_what_the_user_has() -> None:
    """Request 0 has its first token long before its decode instance fails: it keeps that stamp with `recompute`; with
    `retry` its first token is one of the second attempt."""
    fault = {"kind": "instance", "instance": "d-0", "at_s": 0.1}
    first = {
        policy: ended(run(TWO_AND_TWO, fault, recovery={"requests": policy}))[0] for policy in ("recompute", "retry")
    }
    assert first["recompute"].first_token_ps is not None
    assert first["recompute"].first_token_ps < 0.1 * PS_PER_S
    assert first["retry"].first_token_ps is not None
    assert first["retry"].first_token_ps > 0.1 * PS_PER_S
    assert first["recompute"].context_tokens > 800 == first["retry"].context_tokens


def test_fail_ends_the_requests_of_the_instance_and_no_others() -> None:
    fault = {"kind": "gpu", "gpu": 2, "at_s": 0.1, "for_s": 0.1}
    result = run(TWO_AND_TWO, fault, recovery={"requests": "fail"})
    failed = [record for record in result.requests if record.status is RequestStatus.FAILED]
    assert {record.status_reason for record in failed} == {"gpu2 failed"}
    assert {record.decode_instance for record in failed} == {"d-0"}
    assert acted(result) == {"failed": len(failed)}
    assert result.summary.completed == 12 - len(failed)


@pytest.mark.parametrize("mode", MODES)
def test_a_prefill_instance_that_fails_for_ever_leaves_all_prompts_to_the_other(mode: str) -> None:
    fault = {"kind": "instance", "instance": "p-0", "at_s": 0.1}
    result = run(TWO_AND_TWO, fault, kv_transfer={"mode": mode})
    assert result.summary.completed == 12
    later = [index for index, (arrived_us, _, _) in enumerate(ROWS) if arrived_us > 100_000]
    assert set(later) <= set(routed_to(result, "p-1", "prefill_instance"))


@pytest.mark.parametrize("policy", ["wait", "fail"])
def test_without_any_decode_instance_requests_wait_or_fail(policy: str) -> None:
    """The only one is away from 50 to 550 ms. Those that wait get nothing but the token of prefill until it is back."""
    fault = {"kind": "instance", "instance": "d-0", "at_s": 0.05, "for_s": 0.5}
    result = run(PAIR, fault, recovery={"without_instance": policy})
    if policy == "wait":
        assert result.summary.completed == 12
        assert min(request.completed_ps or 0 for request in ended(result)) > 0.55 * PS_PER_S
    else:
        assert result.summary.failed == 12
        assert reasons(result) == {NO_INSTANCE}


def test_requests_that_wait_for_an_instance_that_never_returns_fail_in_the_end() -> None:
    result = run(MIXED, *({"kind": "instance", "instance": name, "at_s": 0.1} for name in ("m-0", "m-1")))
    assert reasons(result) == {NO_INSTANCE}
    assert result.summary.failed == 12


@pytest.mark.parametrize("policy", ["vllm_v1", "sarathi", "orca", "sglang", "trtllm"])
@pytest.mark.parametrize("mode", MODES)
def test_prompts_behind_kv_that_nobody_will_fetch_fail_with_it_whoever_schedules(policy: str, mode: str) -> None:
    """120 blocks hold the KV of two prompts, for a decode instance that never returns: the others cannot begin.
    Policies in Python are asked in vain there, as that of the core is."""
    fault = {"kind": "instance", "instance": "d-0", "at_s": 0.0}
    engine = {"estimator": "roofline", "num_kv_blocks": 120, "max_model_len": 1800, "max_batched_tokens": 2048}
    result = run(PAIR, fault, engine={**engine, "policy": policy}, kv_transfer={"mode": mode})
    assert reasons(result) == {NO_INSTANCE}
    assert result.summary.failed == 12


def test_a_gpu_that_is_three_times_slower_makes_its_instance_three_times_slower() -> None:
    """One request alone, no communication: each step that begins after the fault takes three times as long; the step in
    progress goes on as it was."""
    rows = [(0, 100, 200)]
    plain = run([pool("m", "mixed")], rows=rows)
    at_s = 0.5 * (ended(plain)[0].completed_ps or 0) / PS_PER_S
    slow = run([pool("m", "mixed")], {"kind": "slow_gpu", "gpu": 0, "at_s": at_s, "factor": 3.0}, rows=rows)
    steps = [np.diff(step_ends_ps(result)) for result in (plain, slow)]
    ratio = steps[1] / steps[0]
    first_slow = int(np.flatnonzero(ratio > 1)[0])
    assert step_ends_ps(slow)[first_slow - 1] <= at_s * PS_PER_S <= step_ends_ps(slow)[first_slow]
    assert ratio[:first_slow] == pytest.approx(1.0, abs=1e-9)
    assert ratio[first_slow:] == pytest.approx(3.0, rel=1e-9)


def test_a_draining_instance_finishes_what_it_has_and_gets_nothing() -> None:
    """m-0 gets requests 0, 2, 4 by turns until 100 ms, and none from then to 220 ms; nothing is lost."""
    result = run(MIXED, {"kind": "drain", "instance": "m-0", "at_s": 0.09, "for_s": 0.2})
    assert result.summary.completed == 12
    assert routed_to(result, "m-0") == [0, 2, 4]
    assert acted(result) == {}


@pytest.mark.parametrize(("degraded", "expected"), [("keep", [0, 2, 4, 6, 8, 10]), ("drain", [0, 2, 4])])
def test_a_straggler_is_drained_where_the_policy_says_so(degraded: str, expected: list[int]) -> None:
    fault = {"kind": "straggler", "instance": "m-0", "at_s": 0.09, "factor": 1.5}
    result = run(MIXED, fault, recovery={"degraded": degraded})
    assert routed_to(result, "m-0") == expected


@pytest.mark.parametrize("backend", ["fluid", "analytical", "packet"])
@pytest.mark.parametrize("mode", MODES)
def test_a_transfer_over_a_nic_that_fails_is_sent_again(backend: str, mode: str) -> None:
    """One request; its NIC fails in the middle of the transfer, for 5 ms. With retries after 1, 2 and 4 ms the KV gets
    through; 800 tokens of 147,456 B, and no more than once again of it, have crossed."""
    network = {"backend": backend, "coupling": "isolated", **({"roce": QUICK} if backend == "packet" else {})}
    slow = {**HOSTS, "nic": "50Gbps"}
    sections = {"topology": slow, "network": network, "kv_transfer": {"mode": mode}}
    plain = ended(run(PAIR, rows=ROWS[:1], **sections))[0]
    assert plain.kv_sent_ps is not None
    assert plain.kv_arrived_ps is not None
    at_s = (plain.kv_sent_ps + plain.kv_arrived_ps) / 2 / PS_PER_S
    result = run(PAIR, {"kind": "nic", "gpu": 0, "at_s": at_s, "for_s": 0.005}, rows=ROWS[:1], **sections)
    [request] = ended(result)
    assert request.status is RequestStatus.COMPLETED
    assert result.summary.faults.transfers_retried > 0
    assert (request.kv_arrived_ps or 0) > plain.kv_arrived_ps + 0.004 * PS_PER_S
    assert 800 * 147_456 < (result.requests[0].kv_bytes or 0) < 2 * 800 * 147_456


def test_a_transfer_without_retries_left_loses_its_request() -> None:
    """No retries: `fail` ends the request, `recompute` prefills it again; the NIC is back by then."""
    slow = {**HOSTS, "nic": "50Gbps"}
    plain = ended(run(PAIR, rows=ROWS[:1], topology=slow))[0]
    at_s = ((plain.kv_sent_ps or 0) + (plain.kv_arrived_ps or 0)) / 2 / PS_PER_S
    fault = {"kind": "nic", "gpu": 1, "at_s": at_s, "for_s": 1e-4}
    failed = run(PAIR, fault, rows=ROWS[:1], topology=slow, recovery={"requests": "fail", "transfer_retries": 0})
    assert reasons(failed) == {GIVEN_UP}
    again = run(PAIR, fault, rows=ROWS[:1], topology=slow, recovery={"transfer_retries": 0})
    assert again.summary.completed == 1
    assert acted(again) == {"recomputed": 1}


@pytest.mark.parametrize("backend", ["fluid", "packet"])
def test_a_spine_link_that_flaps_costs_no_request(backend: str) -> None:
    """Two leaves, two spines: transfers go over the other one, or wait for the next attempt."""
    topology = {"kind": "rail_optimized", "gpus_per_node": 1, "nodes_per_segment": 2, "spines": 2, "nic": "50Gbps"}
    network = {"backend": backend, "coupling": "isolated", **({"roce": QUICK} if backend == "packet" else {})}
    flap = {
        "kind": "link_flap",
        "between": ["leaf0.0", "spine0"],
        "at_s": 0.01,
        "count": 50,
        "down_s": 0.002,
        "up_s": 0.002,
    }
    result = run(TWO_AND_TWO, flap, topology=topology, network=network)
    assert result.summary.completed == 12
    assert len(result.summary.faults.events) == 50
    if backend == "fluid":  # another path at once: nothing is cut
        assert result.summary.faults.transfers_retried == 0


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_an_instance_whose_gpus_cannot_reach_each_other_is_down(coupling: str) -> None:
    """Two servers with a GPU each make up the only instance; one of their cables is out from 50 to 250 ms."""
    rows = [(10_000, 300, 60)]
    fault = {"kind": "link", "between": ["gpu1", "leaf0.0"], "at_s": 0.05, "for_s": 0.2}
    result = run([pool("m", "mixed", tp=2)], fault, rows=rows, network={"coupling": coupling})
    assert result.summary.completed == 1
    assert launches_between(result, "m-0", 0.05, 0.25) == 0
    assert launches_between(result, "m-0", 0.0, 0.05) > 0
    assert acted(result) == {"recomputed": 1}


@pytest.mark.parametrize("reroute_delay", ["0us", "30ms"])
def test_an_instance_on_packets_returns_when_routing_has_heard_of_the_repair(reroute_delay: str) -> None:
    """The cable is out from 50 to 90 ms. Collectives fail when their retries are used up; as long as none can start,
    or routing is behind what has happened, no further attempt is made."""
    network = {"backend": "packet", "coupling": "exact", "roce": {**QUICK, "reroute_delay": reroute_delay}}
    fault = {"kind": "link", "between": ["gpu1", "leaf0.0"], "at_s": 0.05, "for_s": 0.04}
    rows = [(10_000, 300, 20), (85_000, 20, 2)]
    result = run([pool("m", "mixed", tp=2)], fault, rows=rows, network=network, recovery={"max_attempts": 2})
    assert result.summary.completed == 2
    back_s = 0.09 if reroute_delay == "0us" else 0.12
    assert launches_between(result, "m-0", back_s - 0.005, back_s) == 0
    assert launches_between(result, "m-0", back_s - 1e-9, back_s + 0.05) > 0


def test_packets_of_a_collective_survive_an_outage_shorter_than_their_patience() -> None:
    """The cable is out for 150 µs; three timeouts of 100 µs later the iteration would have failed. Without the host, as
    some of it would pass in what the iteration waits for its launches."""
    rows = [(10_000, 300, 6)]
    network = {"backend": "packet", "coupling": "exact", "roce": QUICK}
    pools = [pool("m", "mixed", tp=2)]
    sections: dict[str, Any] = {"rows": rows, "network": network, "engine": {"estimator": "roofline", **NO_HOST}}
    plain = run(pools, **sections)
    at_s = (ended(plain)[0].prefill_completed_ps or 0) / PS_PER_S - 1e-3
    result = run(pools, {"kind": "link", "between": ["gpu1", "leaf0.0"], "at_s": at_s, "for_s": 150e-6}, **sections)
    assert result.summary.completed == 1
    assert acted(result) == {}
    assert 150e-6 < result.summary.makespan_s - plain.summary.makespan_s < 500e-6


def test_a_slow_link_slows_the_transfers_over_it_by_what_it_lost() -> None:
    """The first request finds nothing else on the network: the bytes take four times as long at a quarter."""
    slow = {"kind": "slow_link", "between": ["gpu0", "leaf0.0"], "at_s": 0.0, "share": 0.25}
    sections = {"rows": ROWS[:1], "network": {"coupling": "isolated"}}
    plain, hit = (ended(run(PAIR, *faults, **sections))[0] for faults in ([], [slow]))
    taken = [(request.kv_arrived_ps or 0) - (request.kv_sent_ps or 0) for request in (plain, hit)]
    bytes_ps = 800 * 147_456 * 8 * PS_PER_S // (400 * 10**9)
    assert taken[1] - taken[0] == pytest.approx(3 * bytes_ps, rel=1e-6)


SLOW_CABLE = {"kind": "slow_link", "between": ["gpu1", "leaf0.0"], "at_s": 0.0, "share": 0.05}
TENSOR_PAIR = [pool("m", "mixed", tp=2)]
"""Two GPUs on two cables to one leaf; its collectives take the whole of both."""


@pytest.mark.parametrize(("coupling", "backend"), [("isolated", "fluid"), ("fluid", "fluid"), ("isolated", "packet")])
def test_a_slow_link_slows_the_collectives_over_it(coupling: str, backend: str) -> None:
    """Priced on the fabric as it is, they take what flows on the network take."""
    rows = [(10_000, 2_000, 60)]
    priced, simulated, whole = (
        run(TENSOR_PAIR, *faults, rows=rows, network={"coupling": how, "backend": backend}).summary.makespan_s
        for how, faults in ((coupling, [SLOW_CABLE]), ("exact", [SLOW_CABLE]), (coupling, []))
    )
    assert priced > 2.5 * whole
    assert priced == pytest.approx(simulated, rel=1e-5 if backend == "packet" else 1e-12)


@pytest.mark.parametrize("coupling", ["isolated", "fluid"])
@pytest.mark.parametrize("fast_forward", [True, False])
def test_collectives_have_their_time_again_when_a_slow_link_is_repaired(coupling: str, fast_forward: bool) -> None:
    """A run of decodes does not go on at the price of its first iteration."""
    rows, engine = [(0, 500, 200)], {"fast_forward": fast_forward}
    fault = SLOW_CABLE | {"at_s": 0.1, "for_s": 0.1}
    plain, hit = (
        run(TENSOR_PAIR, *faults, rows=rows, network={"coupling": coupling}, engine=engine).iterations.columns()
        for faults in ([], [fault])
    )
    is_slow = hit["communication_s"][1:] > 1.2 * plain["communication_s"][1]
    slow = np.flatnonzero(is_slow)
    begin_s, end_s = hit["start_s"][1:][slow[0]], hit["end_s"][1:][slow[-1]]
    step_s = float((hit["end_s"] - hit["start_s"])[1:].max())
    assert is_slow[slow[0] : slow[-1] + 1].all()
    assert begin_s - 0.1 == pytest.approx(0.0, abs=step_s)
    assert end_s - 0.2 == pytest.approx(0.0, abs=step_s)
    assert hit["communication_s"][-1] == plain["communication_s"][-1]


def test_a_pfc_storm_holds_transfers_for_as_long_as_it_lasts() -> None:
    """The NIC of the prefill instance is paused from 0 to 150 ms: no KV arrives before, and nothing fails."""
    fault = {"kind": "pfc_storm", "between": ["leaf0.0", "gpu0"], "at_s": 0.0, "for_s": 0.15}
    result = run(PAIR, fault, rows=ROWS[:4], network={"backend": "packet", "roce": QUICK})
    assert result.summary.completed == 4
    assert min(request.kv_arrived_ps or 0 for request in ended(result)) > 0.15 * PS_PER_S


def test_a_pfc_storm_without_end_fails_what_waits_for_it() -> None:
    fault = {"kind": "pfc_storm", "between": ["leaf0.0", "gpu0"], "at_s": 0.0}
    result = run(PAIR, fault, rows=ROWS[:2], network={"backend": "packet", "roce": QUICK})
    assert reasons(result) == {STOOD_STILL}


def test_a_pfc_storm_without_end_fails_iterations_that_communicate_through_it() -> None:
    fault = {"kind": "pfc_storm", "between": ["leaf0.0", "gpu0"], "at_s": 0.0}
    network = {"backend": "packet", "coupling": "exact", "roce": QUICK}
    result = run([pool("m", "mixed", tp=2)], fault, rows=[(10_000, 50, 3)], network=network)
    assert reasons(result) == {STOOD_STILL}


def test_a_transfer_given_up_before_its_prefill_ends_does_not_stay_in_hand_over_for_ever() -> None:
    """A chunk is on the network while the next is computed; draining is on, the decode instance that it went to goes
    down, and then the cable of the prefill instance flaps until the retries are used up. All of it passes, and requests
    may begin again as often as it takes: every one completes."""
    sections: dict[str, Any] = {
        "engine": {"estimator": "roofline", "max_batched_tokens": 256},
        "recovery": {"degraded": "drain", "transfer_retries": 1, "max_attempts": 1000},
        "topology": {**HOSTS, "nic": "10Gbps"},
        "rows": [(1_000 * index, 3_000, 10) for index in range(6)],
    }
    recomputed = []
    for mode in ("push", "layerwise"):
        for at_s in (0.01, 0.03, 0.05, 0.1, 0.2):
            faults = [
                {"kind": "instance", "instance": "d-0", "at_s": at_s, "for_s": 0.1},
                {"kind": "drain", "instance": "d-1", "at_s": at_s, "for_s": 0.02},
                {
                    "kind": "link_flap",
                    "between": ["gpu0", "leaf0.0"],
                    "at_s": at_s + 1e-3,
                    "count": 12,
                    "down_s": 4e-3,
                    "up_s": 1e-3,
                },
            ]
            result = run(TWO_AND_TWO, *faults, kv_transfer={"mode": mode}, **sections)
            assert result.summary.completed == 6
            recomputed.append(acted(result).get("recomputed", 0))
    assert max(recomputed[:5]) > 0
    assert max(recomputed[5:]) > 0


def test_waits_for_an_instance_that_is_down_are_faults_and_no_lack_of_kv() -> None:
    rows = [(20 * index, 1000, 20) for index in range(40)]
    down = {"kind": "instance", "instance": "d-0", "at_s": 0.1, "for_s": 5.0}
    sections = {"slo": {"ttft_s": 0.5, "tpot_s": 0.1}, "faults": [down]}
    found = simulate(config([pool("p", "prefill"), pool("d", "decode")], **sections), requests(rows)).summary.verdict
    assert found is not None
    assert (found.limit, found.where) == (Limit.FAULTS, "d")
    assert found.reason == (
        "100 % of the requests beyond the TTFT limit were in the system while d-0 was down from 0.1 s to 5.1 s"
    )


def test_one_instance_of_two_that_is_down_does_not_make_waits_faults() -> None:
    rows = [(20 * index, 1000, 20) for index in range(40)]
    down = {"kind": "instance", "instance": "d-0", "at_s": 0.1, "for_s": 5.0}
    both = [down, {**down, "instance": "d-1", "at_s": 0.2}]
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    for faults, is_outage in (([down], False), (both, True)):
        sections = {"slo": {"ttft_s": 0.5, "tpot_s": 0.1}, "faults": faults}
        found = simulate(config(pools, **sections), requests(rows)).summary.verdict
        assert found is not None
        assert (found.limit == Limit.FAULTS) == is_outage
    assert found.reason.endswith(
        " were in the system while d-0 was down from 0.1 s to 5.1 s and d-1 was down from 0.2 s to 5.2 s"
    )


def test_faults_may_overlap() -> None:
    """Two reasons for one instance to be down: it is back when the second ends; pace is a product and returns to 1."""
    faults = [
        {"kind": "instance", "instance": "m-0", "at_s": 0.05, "for_s": 0.1},
        {"kind": "gpu", "gpu": 0, "at_s": 0.1, "for_s": 0.2},
        {"kind": "straggler", "instance": "m-1", "at_s": 0.02, "for_s": 0.05, "factor": 2.0},
        {"kind": "slow_gpu", "gpu": 1, "at_s": 0.03, "for_s": 0.01, "factor": 1.5},
    ]
    result = run(MIXED, *faults, rows=[*ROWS, (400_000, 100, 5), (400_001, 100, 5)])
    assert result.summary.completed == 14
    assert launches_between(result, "m-0", 0.05, 0.3) == 0
    assert launches_between(result, "m-0", 0.3, 9.0) > 0


def test_a_failed_instance_forgets_its_prefix_cache() -> None:
    """The same 512-token prompt block by block: 496 of 512 tokens are found the second time, none after the failure."""
    engine = {"estimator": "roofline", "prefix_caching": True}
    found = {}
    for faults in ([], [{"kind": "instance", "instance": "m-0", "at_s": 0.5, "for_s": 0.1}]):
        tree = config([pool("m", "mixed")], topology=HOSTS, engine=engine, faults=faults)
        rows = requests([(0, 512, 3), (1_000_000, 512, 3)])
        hashed = replace(rows, block_hashes=BlockHashes(np.array([0, 1, 2]), np.array([7, 7]), 512))
        result = simulate(tree, hashed)
        found[bool(faults)] = ended(result)[1].cached_tokens
    assert found == {False: 496, True: 0}


def test_slo_loss_minutes_are_those_of_windows_below_the_objective() -> None:
    """Ten windows of 0.1 s with a request each; the only instance is away from 0.45 to 0.75 s, and what arrives then
    waits longer than the objective. Windows 4 to 7 overlap the fault; the request of window 4 was served before it."""
    rows = [(100_000 * index, 50, 1) for index in range(10)]
    fault = {"kind": "instance", "instance": "m-0", "at_s": 0.45, "for_s": 0.3}
    slo = {"ttft_s": 0.04, "tpot_s": 1.0, "window_s": 0.1, "attainment": 1.0}
    result = run([pool("m", "mixed")], fault, rows=rows, slo=slo)
    loss = result.summary.faults.slo_loss_minutes
    late = [request.index for request in ended(result) if (request.first_token_ps or 0) - request.arrived_ps > 4e10]
    assert late == [5, 6, 7]
    assert loss.total == pytest.approx(3 * 0.1 / 60)
    assert loss.during_faults == pytest.approx(loss.total)
    assert (loss.before_faults, loss.after_faults) == (0.0, 0.0)
    assert loss.beyond_fault_free == pytest.approx(loss.total)
    assert loss.worst_attainment == 0.0


def test_a_run_without_faults_has_no_account_of_them() -> None:
    assert "faults" not in summary_tree(run(PAIR, rows=ROWS[:2]).summary)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "instance", "instance": "d-7"}, "faults.0.instance: found 'd-7', expected one of p-0, d-0"),
        ({"kind": "gpu", "gpu": 99}, "faults.0.gpu: found 99, expected a GPU of an instance, 0 to 1"),
        ({"kind": "nic", "gpu": 99}, "faults.0.gpu: found 99, expected 0 to 1"),
        (
            {"kind": "link", "between": ["gpu0", "leaf9"]},
            "faults.0.between: found 'leaf9', expected a node such as gpu0",
        ),
        ({"kind": "link", "between": ["gpu0", "gpu1"]}, "faults.0.between: found no cable from gpu0 to gpu1"),
        ({"kind": "pfc_storm", "between": ["gpu0", "leaf0.0"]}, "found 'pfc_storm' with backend 'fluid'"),
    ],
)
def test_faults_that_name_what_is_not_there_are_refused_before_time_starts(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        plan_simulation(config(PAIR, topology=HOSTS, faults=[{**fault, "at_s": 1.0}]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
