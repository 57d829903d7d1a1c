"""Any tiers under any load: everything ends, bytes on links are those of chunks, and nothing depends on chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.small_runs import pool
from tests.integration.test_attribution import check as check_attribution
from tests.vidur_pd.kv_store.test_tiers import pcie_bytes
from tests.vidur_pd.kv_store.tiered_runs import TOKEN_BYTES, prompts, run
from vidur_pd.metrics.result import Result

CHUNK_BYTES = 256 * TOKEN_BYTES
KINDS = [
    ["cpu", "nvme", "remote"],
    ["cpu", "nvme"],
    ["cpu", "remote"],
    ["cpu", "pooled"],
    ["pooled"],
    ["nvme"],
    ["remote"],
]
OUTPUT_TOKENS = 40
"""With the room that there is, some are preempted."""


@st.composite
def tiers_of(draw: st.DrawFn) -> list[dict[str, Any]]:
    """One to three, memory first."""
    drawn = draw(st.sampled_from(KINDS))
    tiers = []
    for kind in drawn:
        tier: dict[str, Any] = {
            "kind": kind,
            "capacity": f"{draw(st.sampled_from([1, 7, 40] if kind == 'cpu' else [20, 400])) * CHUNK_BYTES}B",
            "eviction": draw(st.sampled_from(["lru", "s3_fifo"])),
            "write": draw(st.sampled_from(["through", "through", "selective", "back"])),
        }
        if kind in ("cpu", "nvme"):
            tier["scope"] = draw(st.sampled_from(["rank", "server"]))
        if kind in ("nvme", "remote") and "cpu" in drawn:
            tier["prefetch"] = draw(st.sampled_from([True, "best_effort", "timeout", "wait_complete"]))
            tier["prefetch_timeout"] = {"base": "5ms", "per_1024_tokens": "5ms"}
        if kind == "nvme":
            tier |= {"read": "80Gbps", "written": "40Gbps", "latency": "100us"}
        if kind == "pooled":
            tier["place"] = draw(st.sampled_from(["spread", "writer"]))
        if kind == "remote":
            tier["server"] = draw(st.integers(0, 1))
        tiers.append(tier)
    return tiers


@st.composite
def loads_of(draw: st.DrawFn) -> list[tuple[float, int, list[int]]]:
    """Bursts of prompts of three families, up to 4,096 tokens."""
    rows, at_s = [], 0.0
    for turn in range(draw(st.integers(6, 20))):
        at_s += draw(st.sampled_from([0.0, 0.001, 0.05, 0.3]))
        family, shared, own = draw(st.integers(0, 2)), draw(st.sampled_from([0, 3, 6])), draw(st.integers(1, 2))
        ids = [*range(100 * family, 100 * family + shared), *range(1000 * turn + 1000, 1000 * turn + 1000 + own)]
        rows.append((at_s, 512 * len(ids) - draw(st.integers(0, 300)), ids))
    return rows


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    tp, is_sglang = draw(st.sampled_from([1, 2])), draw(st.booleans())
    pools = draw(
        st.sampled_from(
            [
                [pool("server", "mixed", instances=2, tp=tp)],
                [pool("p", "prefill", instances=1, tp=tp), pool("d", "decode", instances=1, tp=tp)],
                [pool("server", "mixed", instances=1, dp=2, tp=tp)],
            ]
        )
    )
    engine: dict[str, Any] = {"async_scheduling": draw(st.booleans()), "max_batched_tokens": 1024}
    if is_sglang:
        engine |= {"framework": "sglang", "policy": "sglang", "block_tokens": 16}
    return {
        "pools": pools,
        "engine": engine,
        "topology": {
            "kind": "rail_optimized",
            "gpus_per_node": 2,
            "nodes": 2,
            "nic": "100Gbps",
            "pcie": {"rate": draw(st.sampled_from(["20Gbps", "500Gbps"])), "gpus_per_switch": 2},
        },
        "network": {"coupling": draw(st.sampled_from(["isolated", "fluid", "exact"]))},
        "kv_transfer": {"mode": draw(st.sampled_from(["pull", "push", "layerwise"]))},
        "routing": {"policy": "kv_aware", "policy_options": {"host_weight": 0.75, "shared_weight": 0.5}},
        "cache": {
            "layerwise": is_sglang or draw(st.booleans()),
            "load": draw(st.sampled_from(["always", "if_faster"])),
            "load_tokens_min": draw(st.sampled_from([1, 300])),
        },
        "blocks": draw(st.sampled_from([270, 300, 700])),
    }


def rows_of(result: Result) -> list[tuple[Any, ...]]:
    return [
        (each.status.value, each.first_token_ps, each.completed_ps, each.cached_tokens, each.tier_tokens)
        for each in result.requests
    ]


def check(result: Result) -> None:
    for request in result.requests:
        assert request.status.value == "completed"
        assert 0 <= (request.tier_tokens or 0) <= request.cached_tokens < request.prompt_tokens
    check_attribution(result)
    for tier in result.summary.tiers or ():
        assert tier.stored_chunks - tier.evicted_chunks == tier.held_bytes // CHUNK_BYTES >= 0
        assert tier.loaded_tokens <= 256 * tier.loaded_chunks
        assert tier.failed_loads == 0


@given(rows=loads_of(), tiers=tiers_of(), cluster=clusters())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_everything_ends_and_the_same_run_is_the_same(
    rows: list[tuple[float, int, list[int]]], tiers: list[dict[str, Any]], cluster: dict[str, Any]
) -> None:
    """KV blocks return to zero, as every run checks at its end."""
    found = [run(prompts(rows, OUTPUT_TOKENS), tiers, **{**cluster, "cache": dict(cluster["cache"])}) for _ in range(2)]
    check(found[0])
    assert rows_of(found[0]) == rows_of(found[1])


@given(
    rows=loads_of(),
    capacity=st.sampled_from([3, 20, 400]),
    write=st.sampled_from(["through", "selective", "back"]),
    cluster=clusters(),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_on_pcie_are_those_of_chunks(
    rows: list[tuple[float, int, list[int]]], capacity: int, write: str, cluster: dict[str, Any]
) -> None:
    """Of one tier of memory, in both directions; what has been asked for arrives."""
    memory = {"kind": "cpu", "capacity": f"{capacity * CHUNK_BYTES}B", "write": write}
    result = run(prompts(rows, OUTPUT_TOKENS), [memory], **cluster)
    check(result)
    (tier,) = result.summary.tiers or ()
    carried = pcie_bytes(result)
    assert tier.loaded_bytes == tier.loaded_chunks * CHUNK_BYTES
    assert carried["loaded"] == pytest.approx(tier.loaded_bytes)
    assert carried["stored"] == pytest.approx(tier.stored_bytes)
    assert tier.loaded_tokens == sum(request.tier_tokens or 0 for request in result.requests)


@given(rows=loads_of(), tiers=tiers_of(), cluster=clusters(), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_everything_ends_whatever_fails(
    rows: list[tuple[float, int, list[int]]], tiers: list[dict[str, Any]], cluster: dict[str, Any], seed: int
) -> None:
    """An instance, and a link between a host and its GPUs, for a while or for ever."""
    random = np.random.default_rng(seed)
    first = cluster["pools"][0]["name"]
    last_s = rows[-1][0] + 0.5
    faults = [
        {"kind": "instance", "at_s": float(random.uniform(0.01, last_s)), "for_s": 0.3, "instance": f"{first}-0"},
        {"kind": "link", "at_s": float(random.uniform(0.01, last_s)), "between": ["pcie0", "host0"]},
    ]
    if random.integers(0, 2):
        faults[1]["for_s"] = 0.2
    result = run(prompts(rows, OUTPUT_TOKENS), tiers, faults=faults, **cluster)
    assert all(request.status.value == "completed" for request in result.requests)
