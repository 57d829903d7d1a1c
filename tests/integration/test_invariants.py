"""What holds in every run: nothing lost, nothing early, bytes and blocks conserved, clocks monotone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aicb import load_model
from netsim.topology import LinkKind
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.execution.coupling.plan import COLLECTIVE, KV
from vidur_pd.metrics.result import Result
from vidur_pd.workload.request import RequestStatus

ROWS = st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 3_000), st.integers(1, 40)), min_size=1, max_size=25)
"""(arrival in µs, prompt tokens, output tokens)"""

DISAGGREGATED = st.fixed_dictionaries(
    {
        "pools": st.sampled_from(
            [
                [pool("p", "prefill"), pool("d", "decode")],
                [pool("p", "prefill", instances=2), pool("d", "decode", tp=2)],
                [pool("p", "prefill", tp=2), pool("d", "decode", instances=2), pool("m", "mixed")],
                [pool("p", "prefill", pp=2), pool("d", "decode", pp=2)],
            ]
        ),
        "engine": st.fixed_dictionaries(
            {
                "num_kv_blocks": st.sampled_from([200, 260, 2_000]),
                "max_batched_tokens": st.sampled_from([256, 2_048]),
                "max_seqs": st.sampled_from([2, 16]),
                "long_prefill_token_threshold": st.sampled_from([0, 100]),
            }
        ),
        "kv_transfer": st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["pull", "push", "layerwise"]),
                "first_token": st.sampled_from(["prefill", "decode_after_transfer", "decode_recompute"]),
            }
        ),
        "network": st.fixed_dictionaries(
            {"backend": st.sampled_from(["fluid", "analytical"]), "coupling": st.sampled_from(["isolated", "fluid"])}
        ),
        "routing": st.fixed_dictionaries(
            {"policy": st.sampled_from(["round_robin", "random", "least_requests", "least_tokens"])}
        ),
    }
)

SLOW = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
"""Shrinking takes minutes when each example is a simulation."""


@SLOW
@given(DISAGGREGATED, ROWS)
def test_a_disaggregated_run_loses_nothing_and_nothing_comes_early(
    sections: dict[str, Any], rows: list[tuple[int, int, int]]
) -> None:
    result = simulate(config(**sections), rows)
    check_every_request_has_an_end(result, rows)
    check_the_order_of_stamps(result)
    check_kv_bytes(result)
    check_iterations(result)


@SLOW
@given(
    st.sampled_from([{}, {"tp": 2}, {"dp": 2}, {"pp": 2}, {"instances": 2}]),
    st.sampled_from([200, 2_000]),
    st.booleans(),
    ROWS,
)
def test_a_mixed_run_loses_nothing_and_nothing_comes_early(
    partition: dict[str, int], blocks: int, cuda_graphs: bool, rows: list[tuple[int, int, int]]
) -> None:
    engine = {"num_kv_blocks": blocks, "max_batched_tokens": 512, "max_seqs": 8, "cuda_graphs": cuda_graphs}
    result = simulate(config([pool("m", "mixed", **partition)], engine=engine), rows)
    check_every_request_has_an_end(result, rows)
    check_the_order_of_stamps(result)
    check_iterations(result)
    assert all(record.kv_bytes is None for record in result.requests)


@pytest.mark.parametrize("first_token", ["prefill", "decode_recompute"])
def test_exact_coupling_keeps_the_invariants_of_an_expert_parallel_run(first_token: str) -> None:
    pools = [pool("p", "prefill", tp=2, ep=2), pool("d", "decode", dp=4, ep=4)]
    rows = [(20_000 * i, 200 + 37 * i, 3 + i % 5) for i in range(10)]
    result = simulate(
        config(
            pools,
            model="qwen3-30b-a3b",
            network={"coupling": "exact"},
            kv_transfer={"first_token": first_token},
        ),
        rows,
    )
    check_every_request_has_an_end(result, rows)
    check_the_order_of_stamps(result)
    check_kv_bytes(result)


def check_every_request_has_an_end(result: Result, rows: list[tuple[int, int, int]]) -> None:
    """Completed, or rejected with a reason; KV blocks of every rank were checked by the run itself."""
    assert len(result.requests) == len(rows)
    ends = [record.status for record in result.requests]
    assert set(ends) <= {RequestStatus.COMPLETED, RequestStatus.REJECTED}
    for request in result.requests:
        if request.status is RequestStatus.REJECTED:
            assert request.status_reason
            assert request.first_token_ps is None
        else:
            assert request.generated_tokens == request.output_tokens
    summary = result.summary
    assert summary.completed + summary.rejected == summary.requests == len(rows)


def check_the_order_of_stamps(result: Result) -> None:
    """arrival ≤ scheduled ≤ prefill done ≤ KV there ≤ last token = completion; the first token is never after it."""
    for request in result.requests:
        if request.status is not RequestStatus.COMPLETED:
            continue
        stamps = [request.arrived_ps, request.scheduled_ps, request.prefill_completed_ps]
        if request.kv_arrived_ps is not None:
            assert request.kv_sent_ps <= request.kv_arrived_ps
            stamps.append(request.kv_arrived_ps)
        stamps += [request.last_token_ps, request.completed_ps]
        assert None not in stamps
        assert stamps == sorted(stamps)
        assert request.prefill_completed_ps <= request.first_token_ps <= request.last_token_ps
        if request.kv_arrived_ps is not None and request.output_tokens > 1:
            assert request.last_token_ps > request.kv_arrived_ps, "the second token needs the KV"


def check_kv_bytes(result: Result) -> None:
    """Bytes of each request are those of its prompt; what the rows say is what the links into GPUs carried."""
    model = load_model(result.config.model)
    pools = {parts.name: parts for parts in result.config.cluster.pools}
    expected_on_links = 0
    for record in result.requests:
        if record.kv_bytes is None:
            continue
        copies = max(1, pools[record.decode_instance.rsplit("-", 1)[0]].tp // 8)  # 8 and 4 KV heads divide by tp
        prompt = record.prompt_tokens - record.resident_tokens
        whole = copies * prompt * model.kv_bytes_per_token("bf16")
        if result.config.kv_transfer.mode == "layerwise":  # a reservation may be lost, and layers sent again
            assert record.kv_bytes >= whole
        else:
            assert record.kv_bytes == whole
        expected_on_links += record.kv_bytes
    into_gpus = result.topology.link_dst < result.topology.gpus
    carried = result.links.total_bytes(KV)[into_gpus].sum()
    assert carried == pytest.approx(expected_on_links, rel=1e-9)


def check_iterations(result: Result) -> None:
    """Iterations of one stage never overlap, take time, and compute every token; without preemption, each output token
    but the first is a decode, and nothing else is."""
    stages = {placement.name: placement.pp for placement in result.config.cluster.pools}
    last_end: dict[int, int] = {}
    computed = decoded = 0
    for run in result.iterations.runs:
        assert np.all(np.diff(run.ends_ps, prepend=run.start_ps) > 0)
        if stages[result.iterations.instances[run.instance][1]] == 1:
            assert run.start_ps >= last_end.get(run.instance, 0)
        last_end[run.instance] = int(run.ends_ps[-1])
        computed += len(run.ends_ps) * (run.prefill_tokens + run.decode_tokens)
        decoded += len(run.ends_ps) * run.decode_tokens
    completed = [record for record in result.requests if record.status is RequestStatus.COMPLETED]
    assert computed >= sum(request.prompt_tokens + request.output_tokens - 1 for request in completed)
    if not result.summary.preemptions:
        assert decoded == sum(request.output_tokens - 1 for request in completed)


def test_no_collective_uses_links_of_other_instances() -> None:
    """Two tensor-parallel instances on nodes of their own: collectives stay on NVLink."""
    result = simulate(config([pool("m", "mixed", tp=2, instances=2)]), [(0, 100, 5), (0, 100, 5)])
    carried = result.links.total_bytes(COLLECTIVE)
    assert carried[result.topology.link_kind == LinkKind.NVLINK].sum() > 0
    assert carried[result.topology.link_kind != LinkKind.NVLINK].sum() == 0
