"""Parts of latency add up to it, to the picosecond, under every mode, policy and coupling, with faults and
preemption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config import NAMED_POLICIES
from vidur_pd.metrics.attribution import PARTS, attribute
from vidur_pd.metrics.request_figures import NEVER
from vidur_pd.metrics.result import Result

NODES = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "50Gbps"}
POOLS: dict[str, list[dict[str, Any]]] = {
    "mixed": [pool("m", "mixed", instances=2)],
    "pipeline": [pool("m", "mixed", pp=2)],
    "divided": [pool("p", "prefill", instances=2), pool("d", "decode")],
    "tensor": [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)],
    "ranks": [pool("p", "prefill"), pool("d", "decode", dp=2)],
}
POLICIES = ["vllm_v1", *sorted(set(NAMED_POLICIES) - {"splitwise", "lightllm"})]
"""Without one that goes with a routing policy of its own, and one that asks for blocks of one token."""
FAULTS: list[dict[str, Any]] = [
    {},
    {
        "faults": [{"kind": "instance", "instance": "d-0", "at_s": 0.2, "for_s": 0.5}],
        "recovery": {"requests": "recompute"},
    },
]


def check(result: Result) -> None:
    """Both cuts add up, no part is negative, and what lies before the first token is part of the whole."""
    table = result.table
    done = table.is_completed
    parts, to_first = attribute(table), attribute(table, until_first_token=True)
    assert parts.sum(axis=1).tolist() == table.e2e_ps[done].tolist()
    assert to_first.sum(axis=1).tolist() == table.ttft_ps[done].tolist()
    assert (parts >= 0).all()
    assert (to_first >= 0).all()
    assert (to_first <= parts).all()
    means = result.summary.attribution_s
    assert sum(means.values()) == pytest.approx(result.summary.e2e_s.mean or 0.0, rel=1e-9)
    assert sum(result.summary.ttft_attribution_s.values()) == pytest.approx(result.summary.ttft_s.mean or 0.0, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 900), st.integers(1, 40)), min_size=1, max_size=12),
    pools=st.sampled_from(sorted(POOLS)),
    policy=st.sampled_from(POLICIES),
    mode=st.sampled_from(["pull", "push", "layerwise"]),
    network=st.sampled_from(
        [{"coupling": "isolated"}, {"coupling": "fluid"}, {"coupling": "exact"}, {"backend": "analytical"}]
    ),
    blocks=st.sampled_from([None, 80]),
    fault=st.sampled_from(FAULTS),
)
def test_parts_add_up_under_every_mode_policy_and_coupling(
    rows: list[tuple[int, int, int]],
    pools: str,
    policy: str,
    mode: str,
    network: dict[str, Any],
    blocks: int | None,
    fault: dict[str, Any],
) -> None:
    engine = {
        "estimator": "roofline",
        "policy": policy,
        "max_batched_tokens": 1024,
        "num_kv_blocks": blocks,
        "max_model_len": 1000,
    }
    if pools not in ("divided", "tensor", "ranks"):
        fault = {}
    if pools == "pipeline":
        network = {"coupling": "fluid"}
    sections = {"engine": engine, "kv_transfer": {"mode": mode}, "network": network, **fault}
    check(simulate(config(POOLS[pools], topology=NODES, **sections), rows))


def test_a_wait_for_kv_room_is_named() -> None:
    """The decode instance has room for one of two contexts: the second waits until the first has ended, after its first
    token, where it would pass as a slow TPOT."""
    engine = {"estimator": "roofline", "num_kv_blocks": 40}
    pools = [pool("p", "prefill", engine={"num_kv_blocks": 200}), pool("d", "decode")]
    result = simulate(
        config(pools, engine=engine, kv_transfer={"first_token": "prefill"}), [(0, 400, 100), (1, 400, 100)]
    )
    parts, first = attribute(result.table), result.table
    waited_ps = int(parts[1, PARTS.index("kv_room")])
    assert waited_ps == first.completed_ps[0] - first.prefill_completed_ps[1]
    assert waited_ps > 0.8 * parts[0, PARTS.index("decode_compute")]
    assert parts[0, PARTS.index("kv_room")] < 10**9  # that of the first is the way to the next decision


def test_preemption_is_named() -> None:
    """Two contexts that grow beyond the blocks that there are: the later request loses its blocks until the other
    ends."""
    engine = {"estimator": "roofline", "num_kv_blocks": 60, "max_batched_tokens": 2048, "max_model_len": 900}
    result = simulate(config([pool("m", "mixed")], engine=engine), [(0, 400, 200), (1, 400, 200)])
    table = result.table
    assert table.preemptions.tolist() == [0, 1]
    preempted_ps = attribute(table)[:, PARTS.index("preempted")]
    assert preempted_ps[0] == 0
    assert preempted_ps[1] > 10**10
    assert preempted_ps[1] == table.decode_preempted_ps[1]
    check(result)


def test_a_place_in_the_batch_is_waited_for_by_name() -> None:
    """One slot: the second request waits from the arrival of its KV to the end of the first."""
    pools = [pool("p", "prefill"), pool("d", "decode", engine={"max_seqs": 1})]
    result = simulate(config(pools, engine={"estimator": "roofline"}), [(0, 200, 50), (1, 200, 50)])
    table, parts = result.table, attribute(result.table)
    start_ps = np.maximum(table.kv_arrived_ps[1], table.prefill_completed_ps[1])
    queued = parts[1, PARTS.index("kv_room")] + parts[1, PARTS.index("decode_queue")]
    assert queued >= table.completed_ps[0] - start_ps
    assert table.joined_ps[1] != NEVER
    check(result)


def test_attempts_that_faults_ended_are_lost_time() -> None:
    rows = [(1000 * place, 300, 300) for place in range(4)]
    sections = {"engine": {"estimator": "roofline"}, **FAULTS[1]}
    pools = [pool("p", "prefill"), pool("d", "decode", instances=2)]
    result = simulate(config(pools, **sections), rows)
    table = result.table
    assert table.restarts.sum() > 0
    lost_ps = attribute(table)[:, PARTS.index("lost")]
    assert (lost_ps > 0).tolist() == (table.restarts > 0).tolist()
    assert (table.arrived_ps + lost_ps == np.where(table.restarts > 0, table.again_ps, table.arrived_ps)).all()
    check(result)
