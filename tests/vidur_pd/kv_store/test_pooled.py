"""A tier in the memories of several servers: what crosses which links, and what is there, by an oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netsim import LinkKind
from tests.integration.small_runs import pool
from tests.vidur_pd.kv_store.oracles import BlockPool, LruOracle
from tests.vidur_pd.kv_store.tiered_runs import ID_TOKENS, PCIE_BPS, TOKEN_BYTES, prompts, run
from vidur_pd.execution.coupling.plan import KV
from vidur_pd.metrics.result import Result

A, B = list(range(10)), list(range(100, 110))
"""Two prompts of 5,120 tokens: 320 of the 400 blocks of 16 tokens that the prefix cache has, and 20 chunks."""
CHUNK_BYTES = 256 * TOKEN_BYTES
NIC_BPS = 100_000_000_000
POOLED = {"kind": "pooled", "capacity": "100GB"}


def on_servers(
    rows: list[tuple[float, int, list[int]]],
    tier: dict[str, Any],
    *,
    servers: int = 3,
    instances: int = 2,
    **changes: Any,
) -> Result:
    """Instances of one GPU on the first servers, each in its turn."""
    nic = {"nic": f"{NIC_BPS}bps", "pcie": {"rate": f"{PCIE_BPS}bps"}}
    return run(
        prompts(rows),
        [tier],
        pools=[pool("server", "mixed", instances=instances)],
        topology={"kind": "rail_optimized", "gpus_per_node": 1, "nodes": servers, **nic},
        routing={"policy": "round_robin"},
        **changes,
    )


def nic_bytes(result: Result) -> float:
    """What GPUs have sent to leaf switches."""
    topology = result.topology
    names = np.array(topology.node_name, dtype=object)
    is_up = np.array([str(name).startswith("gpu") for name in names[topology.link_src]])
    is_up &= np.array([str(name).startswith("leaf") for name in names[topology.link_dst]])
    assert (topology.link_kind[is_up] != LinkKind.PCIE).all()
    return float(result.links.total_bytes(KV)[is_up].sum())


@pytest.mark.parametrize("is_layerwise", [False, True])
def test_chunks_are_read_from_the_servers_that_have_them(is_layerwise: bool) -> None:
    """By hand: the 20 chunks lie on three servers in turn. The first instance writes 13 of them to others, the second
    loads 19: 6 from its own server, and 7 and 6 over its NIC."""
    result = on_servers([(0, 5_120, A), (10, 5_120, A)], POOLED, cache={"layerwise": is_layerwise})
    second = result.requests[-1]
    assert (second.prefill_instance, second.tier_tokens) == ("server-1", 4_864)
    load_ps = 13 * CHUNK_BYTES * 8 * 10**12 // NIC_BPS
    assert second.tier_wait_ps is not None
    if not is_layerwise:
        assert load_ps <= second.tier_wait_ps <= load_ps + 20 * 10**6
    else:
        assert load_ps * 0.7 <= second.tier_wait_ps < load_ps
    (found,) = result.summary.tiers or ()
    assert (found.kind, found.caches, found.loads, found.loaded_chunks, found.stored_chunks) == ("pooled", 3, 1, 19, 20)
    assert found.held_bytes == found.stored_bytes == 20 * CHUNK_BYTES
    assert nic_bytes(result) == pytest.approx((13 + 13) * CHUNK_BYTES)


def test_peers_read_from_the_server_that_has_computed() -> None:
    """The writer's own server takes all 20 chunks, over PCIe alone; the second instance loads 19 over its NIC. What the
    first has forgotten comes over PCIe again."""
    tier = POOLED | {"place": "writer"}
    result = on_servers([(0, 5_120, A), (10, 5_120, A), (20, 5_120, B), (30, 5_120, B), (40, 5_120, A)], tier)
    first, second, _, other, last = result.requests
    assert first.prefill_instance == last.prefill_instance == "server-0"
    waits_ps = [4_864 * TOKEN_BYTES * 8 * 10**12 / NIC_BPS] * 2 + [15 * CHUNK_BYTES * 8 * 10**12 / PCIE_BPS]
    assert [second.tier_wait_ps, other.tier_wait_ps, last.tier_wait_ps] == pytest.approx(waits_ps, rel=1e-3)
    assert nic_bytes(result) == pytest.approx((19 + 19) * CHUNK_BYTES)


@pytest.mark.parametrize("place", ["spread", "writer"])
def test_hits_are_those_of_one_cache_for_each_server(place: str) -> None:
    """60 prompts of three families one at a time, on two instances in turn; 12 chunks of room on each of two servers.

    The oracle: LRU on each server, by the numbers in which blocks of 512 tokens (two chunks) are first computed, or by
    who computes them.
    """
    generator, rows = np.random.default_rng(3), []
    for turn in range(60):
        family, shared, own = generator.integers(0, 3), generator.integers(2, 6), generator.integers(1, 3)
        ids = [*range(100 * family, 100 * family + shared), *range(1000 * turn + 1000, 1000 * turn + 1000 + own)]
        rows.append((20.0 * turn, 512 * len(ids) - int(generator.integers(0, 300)), ids))
    tier = POOLED | {"capacity": f"{12 * CHUNK_BYTES}B", "place": place}
    result = on_servers(rows, tier, servers=2, blocks=250)
    pools, shares = [BlockPool(250), BlockPool(250)], [LruOracle(12), LruOracle(12)]
    numbers, blocks = dict[Any, int](), dict[Any, int]()
    expected, stored, loaded_chunks = [], 0, 0
    for turn, (_, length, ids) in enumerate(rows):

        def chain(width: int, length: int = length, ids: list[int] = ids) -> list[Any]:
            ends = range(width, length + 1, width)
            return [(width, end % ID_TOKENS, *ids[: (end - 1) // ID_TOKENS + 1]) for end in ends]

        writer, prompt, of_prompt = turn % 2, chain(16), chain(256)
        on_gpu = pools[writer].serve(prompt[: (length - 1) // 16], 0)
        first = reach = on_gpu * 16 // 256
        held = {key for share in shares for key in share.stack}
        while reach < (length - 1) // 256 and numbers.get(of_prompt[reach]) in held:
            reach += 1
        loaded = max(0, reach * 256 - on_gpu * 16)
        loaded_chunks += reach - first if loaded else 0
        expected.append((on_gpu * 16 + loaded, loaded))
        pools[writer].hold_and_release(prompt, on_gpu, (length + 3 - 1) // 16 + 1)
        keys = [2 * blocks.setdefault(each[2:], len(blocks)) + (each[1] == 0) for each in of_prompt]
        numbers.update(zip(of_prompt, keys, strict=True))
        at = [
            next((n for n in (0, 1) if key in shares[n].stack), key % 2 if place == "spread" else writer)
            for key in keys
        ]
        missed = {key for key, server in zip(keys[::-1], at[::-1], strict=True) if not shares[server].access(key)}
        stored += len(missed & {key for share in shares for key in share.stack})
    assert [(request.cached_tokens, request.tier_tokens) for request in result.requests] == expected
    (found,) = result.summary.tiers or ()
    assert found.loaded_chunks == loaded_chunks > 20
    assert found.stored_chunks == stored
    assert found.loaded_bytes == loaded_chunks * CHUNK_BYTES
    assert found.stored_chunks - found.evicted_chunks == found.held_bytes // CHUNK_BYTES <= 24


def test_what_an_instance_has_computed_outlives_it() -> None:
    faults = [{"kind": "instance", "at_s": 5, "for_s": 2, "instance": "server-0"}]
    last = on_servers([(0, 5_120, A), (60, 5_120, A)], POOLED, instances=1, faults=faults).requests[-1]
    assert last.tier_tokens == 4_864
