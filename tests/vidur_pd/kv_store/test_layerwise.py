"""Layer-wise loads: the layers of a request's first iteration wait for their KV, by timelines worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boundary.errors import InputError
from tests.integration.small_runs import pool
from tests.vidur_pd.kv_store.tiered_runs import CPU, PCIE_BPS, TOKEN_BYTES, prompts, run
from vidur_pd.metrics.attribution import PARTS, attribute
from vidur_pd.metrics.iterations import IterationRun
from vidur_pd.metrics.result import Result

A, B = list(range(10)), list(range(100, 110))
"""Two prompts of 5,120 tokens: 320 of the 400 blocks of 16 tokens that the prefix cache has."""
LAYERS = 36
LAYER_BITS = 15 * 256 * TOKEN_BYTES // LAYERS * 8
"""Of a layer of the 15 chunks that the third prompt of `ROWS` loads (`test_tiers`)."""
ROWS = [(0.0, 5_120, A), (10.0, 5_120, B), (20.0, 5_120, A)]
LATENCY_PS = 5 * 10**6
"""More than that of the links between a host and a GPU, and the rounding of 36 layers."""


def layerwise(rows: list[tuple[float, int, list[int]]], rate_bps: int = PCIE_BPS, **changes: Any) -> Result:
    changes.setdefault("topology", {"kind": "single_switch", "pcie": {"rate": f"{rate_bps}bps"}})
    changes.setdefault("output", {"iterations": True})
    return run(prompts(rows), cache={"layerwise": True}, **changes)


def first_iteration(result: Result, row: int) -> IterationRun:
    """The one with which a request has begun, of instances that had nothing else to do."""
    request = result.requests[row]
    (found,) = [
        each
        for each in result.iterations.runs
        if each.start_ps == request.scheduled_ps
        and result.iterations.instances[each.instance][0] == request.prefill_instance
    ]
    return found


def end_ps(start_ps: int, compute_ps: int, arrivals_ps: NDArray[np.float64]) -> float:
    """When the last of equal layers ends, each of which begins behind the one before and with its KV."""
    at_ps = float(start_ps)
    for arrival_ps in arrivals_ps:
        at_ps = max(at_ps, arrival_ps) + compute_ps / len(arrivals_ps)
    return at_ps


def test_a_load_that_is_faster_than_compute_costs_its_first_layer() -> None:
    """At 5.04 Tbit/s a layer comes in 25 µs, and takes more than 50 µs to compute."""
    result = layerwise(ROWS, 10 * PCIE_BPS)
    third, iteration = result.requests[-1], first_iteration(result, 2)
    compute_ps, layer_ps = int(iteration.compute_ps[0]), LAYER_BITS * 10**12 // (10 * PCIE_BPS)
    assert compute_ps / LAYERS > 2 * layer_ps
    assert iteration.prefill_tokens == 256
    assert (third.cached_tokens, third.tier_tokens) == (4_864, 3_600)
    assert third.scheduled_ps == third.arrived_ps, "it begins at once"
    exact_ps = third.arrived_ps + layer_ps + compute_ps
    assert exact_ps <= (third.first_token_ps or 0) <= exact_ps + LATENCY_PS
    assert third.tier_wait_ps == int(iteration.ends_ps[0]) - iteration.start_ps - compute_ps
    parts = dict(zip(PARTS, attribute(result.table)[-1].tolist(), strict=True))
    assert (parts["queue"], parts["prefill_communication"]) == (0, third.tier_wait_ps)
    assert parts["prefill_compute"] == compute_ps
    assert third.prefill_contention_ps == 0


def test_a_load_that_is_slower_than_compute_costs_all_of_it_and_the_last_layer() -> None:
    """At 50.4 Gbit/s the load takes 90 ms, ten times the compute."""
    result = layerwise(ROWS, PCIE_BPS // 10)
    third, iteration = result.requests[-1], first_iteration(result, 2)
    compute_ps, load_ps = int(iteration.compute_ps[0]), LAYERS * LAYER_BITS * 10**13 // PCIE_BPS
    assert load_ps > 5 * compute_ps
    exact_ps = third.arrived_ps + load_ps + compute_ps / LAYERS
    assert exact_ps - LAYERS <= (third.first_token_ps or 0) <= exact_ps + LATENCY_PS
    (cpu,) = result.summary.tiers or ()
    assert cpu.load_s == pytest.approx(load_ps / 1e12, rel=1e-3)
    whole = run(prompts(ROWS), topology={"kind": "single_switch", "pcie": {"rate": f"{PCIE_BPS // 10}bps"}})
    saved_ps = (whole.requests[-1].first_token_ps or 0) - (third.first_token_ps or 0)
    assert saved_ps == pytest.approx(compute_ps * (LAYERS - 1) / LAYERS, abs=LATENCY_PS)


@pytest.mark.parametrize("rate_bps", [PCIE_BPS, 3 * PCIE_BPS // 2, 2 * PCIE_BPS, 3 * PCIE_BPS])
def test_layers_wait_in_the_middle_where_another_load_shares_pcie(rate_bps: int) -> None:
    """Two instances behind one PCIe switch; the first loads 15 chunks, the second 8 of a prompt whose other part
    has changed, and computes 2,048 tokens. By hand: until the second has all, both have half the rate, then the first
    has all of it. Beside its load the first computes another prompt of 512 tokens, in the same iteration.
    """
    half = [*B[:6], *range(300, 304)]
    rows = [(0.0, 5_120, A), (0.0, 5_120, B), (10.0, 5_120, B), (10.0, 5_120, A)]
    rows += [(20.0, 5_120, A), (20.0, 5_120, half), (20.0, 512, [7_777])]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": f"{rate_bps}bps", "gpus_per_switch": 2}}
    pools = [pool("server", "mixed", instances=2)]
    result = layerwise(rows, topology=topology, pools=pools, routing={"policy": "round_robin"})
    first, second, beside = result.requests[-3:]
    assert (first.prefill_instance, second.prefill_instance, beside.prefill_instance) == (
        "server-0",
        "server-1",
        "server-0",
    )
    chunks = [15, 8]
    assert [first.tier_tokens, second.tier_tokens] == [15 * 256 - 240, 8 * 256 - 240]
    both = first_iteration(result, 4)
    assert both.requests == 2
    assert first.first_token_ps == beside.first_token_ps, "who is beside it waits with it"
    layer_ps = [each * 256 * TOKEN_BYTES // LAYERS * 8e12 / rate_bps for each in chunks]
    shared_ps = 2 * LAYERS * layer_ps[1]
    layers = np.arange(1, LAYERS + 1)
    alone_ps = layers * layer_ps[0]
    arrivals = {
        4: np.where(2 * alone_ps <= shared_ps, 2 * alone_ps, alone_ps + shared_ps / 2),
        5: 2 * layers * layer_ps[1],
    }
    for row, arrivals_ps in arrivals.items():
        iteration = first_iteration(result, row)
        exact_ps = end_ps(iteration.start_ps, int(iteration.compute_ps[0]), iteration.start_ps + arrivals_ps)
        assert exact_ps - LAYERS <= int(iteration.ends_ps[0]) <= exact_ps + LATENCY_PS


@given(
    rate_gbps=st.integers(20, 6_000),
    gap_us=st.integers(0, 9_000),
    others=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    is_fluid=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_nothing_ends_before_its_layers_have_come_and_been_computed(
    rate_gbps: int, gap_us: int, others: list[int], is_fluid: bool
) -> None:
    """Whatever else the instance, of two GPUs, has to do: first iterations take at least their compute, and the load's
    bytes at the links' rate; none takes longer than both after one another, and what others load."""
    rows = [*ROWS]
    rows += [
        (20.0 + (n + 1) * gap_us / 1e6, 512 * ids, [*range(1000 * n + 1000, 1000 * n + 1000 + ids)])
        for n, ids in enumerate(others)
    ]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": f"{rate_gbps}Gbps"}}
    coupling = "fluid" if is_fluid else "exact"
    result = layerwise(rows, topology=topology, pools=[pool("server", "mixed", tp=2)], network={"coupling": coupling})
    assert all(each.status.value == "completed" for each in result.requests)
    third, iteration = result.requests[2], first_iteration(result, 2)
    alone_ps = int(iteration.compute_ps[0])
    load_ps = LAYERS * LAYER_BITS / 2 * 1e12 / (rate_gbps * 10**9)
    length_ps = int(iteration.ends_ps[0]) - iteration.start_ps
    wait_ps = third.tier_wait_ps or 0
    assert length_ps >= max(alone_ps + load_ps / LAYERS, load_ps + alone_ps / LAYERS) - LAYERS
    assert wait_ps <= load_ps + LATENCY_PS
    assert length_ps >= alone_ps + wait_ps
    assert int(iteration.communication_ps[0]) == length_ps - alone_ps


@pytest.mark.parametrize("at_s", [15.0, 20.05])
def test_what_a_failed_link_does_not_bring_is_computed_in_the_same_iteration(at_s: float) -> None:
    """Before the load, or in the middle of its 0.45 s: 3,600 tokens are computed more, none is loaded."""
    slow = {"kind": "single_switch", "pcie": {"rate": "10Gbps"}}
    faults = [{"kind": "link", "at_s": at_s, "between": ["pcie0", "host0"]}]
    result = layerwise(ROWS, topology=slow, faults=faults)
    third, iteration = result.requests[-1], first_iteration(result, 2)
    assert [request.status.value for request in result.requests] == ["completed"] * 3
    assert (third.cached_tokens, third.tier_tokens) == (1_264, 0)
    (cpu,) = result.summary.tiers or ()
    assert (cpu.loads, cpu.failed_loads) == (0, 1)
    lost_ps = max(0, round((at_s - 20) * 1e12))
    never = run(prompts(ROWS), (), topology=slow, output={"iterations": True})
    computed_ps = int(first_iteration(never, 2).compute_ps[0])
    length_ps = int(iteration.ends_ps[0]) - iteration.start_ps
    assert lost_ps + computed_ps * 0.9 <= length_ps <= lost_ps + computed_ps + int(iteration.compute_ps[0])


def test_an_instance_that_fails_during_a_load_begins_again() -> None:
    slow = {"kind": "single_switch", "pcie": {"rate": "10Gbps"}}
    faults = [{"kind": "instance", "at_s": 20.1, "for_s": 1, "instance": "server-0"}]
    third = layerwise(ROWS, topology=slow, faults=faults).requests[-1]
    assert (third.status.value, third.restarts, third.tier_tokens) == ("completed", 1, 0)


@pytest.mark.parametrize("mode", ["pull", "push", "chunked", "layerwise"])
def test_kv_goes_on_to_a_decode_instance_once_it_has_been_loaded(mode: str) -> None:
    """At 50.4 Gbit/s it is there after 90 ms, and no mode sends it on before."""
    pools = [pool("p", "prefill"), pool("d", "decode")]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": f"{PCIE_BPS // 10}bps"}}
    result = layerwise(ROWS, topology=topology, pools=pools, kv_transfer={"mode": mode})
    third = result.requests[-1]
    assert third.status.value == "completed"
    assert third.kv_sent_ps is not None
    assert third.kv_sent_ps - third.arrived_ps >= 14 * 256 * TOKEN_BYTES * 8 * 10**13 // PCIE_BPS


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_policy_in_python_loads_as_the_core_does(is_ahead: bool) -> None:
    """vLLM V1 in Python, which asks for tokens and blocks as any policy of one's own, under prompts that overlap."""
    rows = [*ROWS, (20.0, 900, [5, 6]), (20.01, 5_120, B), (20.02, 700, [9, 10]), (20.03, 5_120, A), (20.3, 5_120, B)]
    twin = "vidur_pd.scheduling.vllm_v1_python:VllmV1Python"
    found = []
    for policy in ("vllm_v1", twin):
        engine = {"policy": policy, "async_scheduling": is_ahead, "max_batched_tokens": 2_048}
        result = layerwise(rows, blocks=420, engine=engine)
        found.append([(each.first_token_ps, each.completed_ps, each.tier_tokens) for each in result.requests])
    assert found[0] == found[1]
    assert sum(bool(tokens) for _, _, tokens in found[0]) >= 2


def test_hits_are_those_of_whole_loads() -> None:
    """One prompt at a time: what is found does not depend on how it is loaded."""
    rows = [(10.0 * turn, 5_120, [A, B, [*range(200, 210)]][turn % 3]) for turn in range(9)]
    small = [CPU | {"capacity": f"{50 * 256 * TOKEN_BYTES}B"}]
    found = [
        [(each.cached_tokens, each.tier_tokens) for each in run(prompts(rows), small, cache=cache).requests]
        for cache in ({}, {"layerwise": True})
    ]
    assert found[0] == found[1]
    assert sum(loaded or 0 for _, loaded in found[0]) > 10_000


def test_stages_of_a_pipeline_are_refused() -> None:
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": "504Gbps"}}
    with pytest.raises(InputError, match=r"kv_cache\.layerwise: found with pp 2 of pool server, expected pp 1"):
        layerwise(ROWS, topology=topology, pools=[pool("server", "mixed", pp=2)])
