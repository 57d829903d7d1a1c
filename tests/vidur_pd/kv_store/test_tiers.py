"""Tiers of KV in whole runs: by hand, against an oracle, and what may not change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from boundary.errors import InputError
from netsim import LinkKind
from tests.integration.small_runs import pool
from tests.vidur_pd.kv_store.oracles import ORACLES, BlockPool, is_in
from tests.vidur_pd.kv_store.tiered_runs import CPU, ID_TOKENS, PCIE_BPS, SINGLE, TOKEN_BYTES, prompts, run
from vidur_pd.execution.coupling.plan import KV
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import TierSummary

TRACES = Path(__file__).parents[4] / "shared/data/traces"
A, B = list(range(10)), list(range(100, 110))
"""Two prompts of 5,120 tokens: 320 of the 400 blocks of 16 tokens that the prefix cache has."""


def tier(result: Result, kind: str = "cpu") -> TierSummary:
    (found,) = [each for each in result.summary.tiers or () if each.kind == kind]
    return found


def pcie_bytes(result: Result) -> dict[str, float]:
    """What all links to hosts have carried, by whether it came from one."""
    topology = result.topology
    is_pcie = topology.link_kind == LinkKind.PCIE
    carried = result.links.total_bytes(KV)
    names = np.array(topology.node_name, dtype=object)
    is_from_host = np.array([str(name).startswith("host") for name in names[topology.link_src]])
    is_to_host = np.array([str(name).startswith("host") for name in names[topology.link_dst]])
    return {"loaded": carried[is_pcie & is_from_host].sum(), "stored": carried[is_pcie & is_to_host].sum()}


def test_a_prompt_that_has_left_the_prefix_cache_is_loaded_over_pcie() -> None:
    """By hand. A prompt and its answer hold 321 of 400 blocks, 320 of which stay cached. The second takes the one that
    is blank, the 79 that nobody had, and 241 of the first's, its tail first: 79 blocks are left, 1,264 tokens. The
    third prompt is the first again. Its last token is always computed, so that of the 20 chunks of 256 tokens 19 may be
    hit; the fifth begins at token 1,024, and 15 are loaded.
    """
    result = run(prompts([(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]))
    first, second, third = result.requests
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 0, 4_864)
    assert (first.tier_tokens, third.tier_tokens) == (0, 4_864 - 1_264)
    size_bytes = 15 * 256 * TOKEN_BYTES
    exact_ps = size_bytes * 8 * 10**12 // PCIE_BPS
    assert third.tier_wait_ps is not None
    assert exact_ps <= third.tier_wait_ps <= exact_ps + 5 * 10**6, "and the latency of two links"
    assert third.scheduled_ps == third.arrived_ps + third.tier_wait_ps
    found = tier(result)
    assert (found.loads, found.loaded_tokens, found.loaded_chunks, found.loaded_bytes) == (1, 3_600, 15, size_bytes)
    assert (found.stored_chunks, found.evicted_chunks) == (40, 0)
    assert found.held_bytes == found.stored_bytes == 40 * 256 * TOKEN_BYTES
    assert found.load_s == pytest.approx(third.tier_wait_ps / 1e12)
    carried = pcie_bytes(result)
    assert carried["loaded"] == pytest.approx(size_bytes)
    assert carried["stored"] == pytest.approx(40 * 256 * TOKEN_BYTES)


def test_others_run_while_a_request_waits_for_its_load() -> None:
    """A request that came behind, and is in no tier, is computed during the load; a slow link makes that long."""
    slow: dict[str, Any] = {"topology": {"kind": "single_switch", "pcie": {"rate": "1Gbps"}}}
    rows = [(0.0, 5_120, A), (100.0, 5_120, B), (200.0, 5_120, A), (200.001, 512, [7_777])]
    *_, loading, behind = run(prompts(rows), **slow).requests
    assert loading.tier_tokens
    assert behind.first_token_ps is not None
    assert loading.scheduled_ps is not None
    assert behind.first_token_ps < loading.scheduled_ps


def test_a_load_and_a_write_share_pcie_with_others_in_their_direction_alone() -> None:
    """Two GPUs behind one switch: two loads at a time take twice as long as one."""
    waits = {}
    for gpus_per_switch in (1, 2):
        topology = {
            "kind": "rail_optimized",
            "gpus_per_node": 2,
            "pcie": {"rate": "504Gbps", "gpus_per_switch": gpus_per_switch},
        }
        rows = [(0, 5_120, A), (0, 5_120, B), (10, 5_120, B), (10, 5_120, A), (20, 5_120, A), (20, 5_120, B)]
        result = run(
            prompts(rows),
            pools=[pool("server", "mixed", instances=2)],
            topology=topology,
            routing={"policy": "round_robin"},
        )
        assert [request.tier_tokens for request in result.requests[-2:]] == [3_600, 3_600]
        waits[gpus_per_switch] = [request.tier_wait_ps or 0 for request in result.requests[-2:]]
    assert np.array(waits[2]) == pytest.approx(2 * np.array(waits[1]), rel=1e-3)


def test_a_decode_pool_gets_prompts_whose_beginning_was_loaded() -> None:
    pools = [pool("p", "prefill"), pool("d", "decode")]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": "504Gbps"}}
    result = run(prompts([(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]), pools=pools, topology=topology)
    assert [request.status.value for request in result.requests] == ["completed"] * 3
    third = result.requests[-1]
    assert third.tier_tokens == 3_584, "the prefill instance holds no block for the answer"
    assert tier(result).caches == 1, "decode instances compute no prompts"


@pytest.mark.parametrize(("write", "stored"), [("through", 40), ("selective", 20)])
def test_selective_writes_keep_what_comes_twice(write: str, stored: int) -> None:
    rows = [(0, 5_120, A), (10, 5_120, B), (20, 5_120, A), (30, 5_120, B[:5] + A[5:]), (40, 5_120, A)]
    result = run(prompts(rows[:3]), [CPU | {"write": write}])
    assert tier(result).stored_chunks == stored


def test_chunks_are_written_back_when_they_leave_the_prefix_cache() -> None:
    """By hand, as above: with the second prompt 240 blocks of the first go, in which its last 15 chunks end, and one
    more with its answer. Its batch waits until 15 have been copied. The third prompt finds 15 of them, all but the
    last, and drives the second out."""
    rows = [(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]
    first, second, third = run(prompts(rows), [CPU | {"write": "back"}]).requests
    copy_ps = 15 * 256 * TOKEN_BYTES * 8 * 10**12 // PCIE_BPS
    waited_ps = (second.first_token_ps or 0) - second.arrived_ps - (first.first_token_ps or 0)
    assert copy_ps <= waited_ps <= copy_ps + 5 * 10**6
    assert (third.cached_tokens, third.tier_tokens) == (4_864, 3_600)
    result = run(prompts(rows[:2]), [CPU | {"write": "back"}])
    assert (tier(result).stored_chunks, tier(result).stored_bytes) == (16, 16 * 256 * TOKEN_BYTES)
    assert pcie_bytes(result)["stored"] == pytest.approx(16 * 256 * TOKEN_BYTES)


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
@pytest.mark.parametrize("page", [16, 64])
def test_a_tier_without_limits_has_the_same_whenever_it_is_written(framework: str, page: int) -> None:
    """What a prefix cache of 6,400 tokens has forgotten is in the tier, written at once or when it was forgotten.

    Hits are the longest prefix that any earlier prompt has, here whole chunks, whatever either engine keeps on the GPU.
    """
    generator = np.random.default_rng(7)
    rows, expected, longest = [], list[int](), dict[int, int]()
    for turn in range(25):
        family, shared, own = (int(generator.integers(*bounds)) for bounds in ((0, 3), (0, 10), (1, 3)))
        ids = [*range(100 * family, 100 * family + shared), *range(1000 * turn + 1000, 1000 * turn + 1000 + own)]
        rows.append((20.0 * turn, 512 * len(ids) - int(generator.integers(0, 300)), ids))
        expected.append(512 * min(shared, longest.get(family, 0)))
        longest[family] = max(longest.get(family, 0), shared)
    engine = {
        "framework": framework,
        "policy": {"vllm": "vllm_v1", "sglang": "sglang"}[framework],
        "block_tokens": page,
    }
    found = {}
    for write in ("through", "back"):
        cache = {"layerwise": framework == "sglang", "chunk_tokens": 64}
        tiers = [CPU | {"capacity": "1TB", "write": write}]
        result = run(prompts(rows), tiers, blocks=6_400 // page, cache=cache, engine=engine)
        assert all(request.status.value == "completed" for request in result.requests)
        found[write] = [(request.cached_tokens, request.tier_tokens) for request in result.requests]
    assert found["through"] == found["back"]
    assert [cached for cached, _ in found["back"]] == expected
    assert sum(loaded or 0 for _, loaded in found["back"]) > 10_000


def test_loads_that_are_slower_than_computing_are_left_out_where_that_is_asked_for() -> None:
    """At 1 Gbit/s a token takes 1.2 ms to load; computing one takes some 50 µs. Nobody waits for the tier."""
    rows = [(0, 5_120, A), (100, 5_120, B), (200, 5_120, A)]
    slow: dict[str, Any] = {"topology": {"kind": "single_switch", "pcie": {"rate": "1Gbps"}}}
    asked = run(prompts(rows), cache={"load": "if_faster"}, **slow)
    always, never = run(prompts(rows), **slow), run(prompts(rows), ())
    assert tier(asked).loads == 0
    ends = [[request.completed_ps for request in result.requests] for result in (asked, never)]
    assert ends[0] == ends[1]
    assert (always.requests[-1].tier_wait_ps or 0) > 10 * (never.summary.ttft_s.mean or 0) * 1e12
    fast = run(prompts(rows), cache={"load": "if_faster"})
    assert tier(fast).loads == 1


def test_a_tier_too_small_for_anything_costs_nothing() -> None:
    """A chunk of room: what is kept is the beginning, which the prefix cache has as well, or it is loaded faster than
    it is computed. One prompt at a time: none is later than without the tier."""
    rows = [(10.0 * turn, 5_120, [A, B, [*range(200, 210)]][turn % 3]) for turn in range(9)]
    tiny = [CPU | {"capacity": f"{256 * TOKEN_BYTES}B"}]
    ends = [
        np.array([request.completed_ps for request in result.requests])
        for result in (run(prompts(rows), tiny, cache={"load": "if_faster"}), run(prompts(rows), ()))
    ]
    assert (ends[0] <= ends[1]).all()


@pytest.mark.parametrize("eviction", ORACLES)
@pytest.mark.parametrize("write", ["through", "back"])
def test_hits_on_a_mooncake_trace_are_those_of_an_oracle(eviction: str, write: str) -> None:
    """70 prompts of the synthetic trace (up to 20,000 tokens) one at a time; the prefix cache has 24,576 tokens, the
    tier 400 chunks, which come with prompts, or when the prefix cache evicts their last block."""
    path = TRACES / "mooncake_synthetic_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(200), strict=False)]
    rows = [row for row in rows if 512 < row["input_length"] <= 20_000][:70]
    workload = prompts([(10.0 * turn, row["input_length"], row["hash_ids"]) for turn, row in enumerate(rows)])
    small = [CPU | {"capacity": f"{400 * 256 * TOKEN_BYTES}B", "eviction": eviction, "write": write}]
    result = run(workload, small, blocks=1_536)
    blocks, chunks, held = BlockPool(1_536), ORACLES[eviction](400), set[Any]()
    expected, of_block, stored = [], dict[Any, int](), 0
    for row in rows:
        length, ids = row["input_length"], row["hash_ids"]

        def chain(width: int, length: int = length, ids: list[int] = ids) -> list[Any]:
            return [
                (width, end % ID_TOKENS, *ids[: (end - 1) // ID_TOKENS + 1]) for end in range(width, length + 1, width)
            ]

        prompt, of_prompt = chain(16), chain(256)
        on_gpu = blocks.serve(prompt[: (length - 1) // 16], 0)
        reach = on_gpu * 16 // 256
        while reach < (length - 1) // 256 and hash(of_prompt[reach]) in held:
            reach += 1
        loaded = max(0, reach * 256 - on_gpu * 16)
        expected.append((on_gpu * 16 + loaded, loaded))
        gone = blocks.hold_and_release(prompt, on_gpu, (length + 3 - 1) // 16 + 1)
        back = [of_block[key] for key in gone if key in of_block] if write == "back" else []
        for key in back:
            if not is_in(chunks, key):
                stored += 1
                chunks.access(key)
                held.add(key)
        held = {each for each in held if is_in(chunks, each)}
        for key in map(hash, reversed(of_prompt)):
            if write == "through" or is_in(chunks, key):
                stored += not is_in(chunks, key)
                chunks.access(key)
                held.add(key)
        of_block.update(zip(prompt[15::16], map(hash, of_prompt), strict=False))
        held = {each for each in held if is_in(chunks, each)}
    assert [(request.cached_tokens, request.tier_tokens) for request in result.requests] == expected
    assert sum(loaded for _, loaded in expected) > 5_000
    assert tier(result).stored_chunks == stored


def test_parts_of_tiers_follow_each_other() -> None:
    """CPU memory of 24 chunks keeps the beginning of what came last; the disk has all. The third prompt gets what the
    prefix cache and CPU memory have lost from the disk."""
    tiers = [
        CPU | {"capacity": f"{24 * 256 * TOKEN_BYTES}B"},
        {"kind": "nvme", "capacity": "1TB", "read": "48Gbps", "written": "24Gbps", "latency": "100us"},
    ]
    result = run(prompts([(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]), tiers)
    third = result.requests[-1]
    assert third.cached_tokens == 4_864
    memory, disk = tier(result), tier(result, "nvme")
    assert memory.loaded_tokens + disk.loaded_tokens == third.tier_tokens == 3_600
    assert disk.loaded_chunks == 15
    read_ps = 15 * 256 * TOKEN_BYTES * 8 * 10**12 // 48_000_000_000
    assert (third.tier_wait_ps or 0) >= read_ps + 100 * 10**6
    assert (third.tier_wait_ps or 0) <= read_ps + 15 * 256 * TOKEN_BYTES * 8 * 10**12 // PCIE_BPS + 105 * 10**6


@pytest.mark.parametrize("is_prefetched", [False, True])
def test_chunks_come_to_memory_while_their_request_queues(is_prefetched: bool) -> None:
    """The fifth and sixth prompts have no room beside each other, and are computed for 0.1 s each; the last is that of
    the first again, of which memory (65 chunks) has 5 chunks left and the disk all. At its turn 14 chunks come from the
    disk, in 0.09 s and more, or have come meanwhile, and PCIe is all that is left.
    """
    disk = {"kind": "nvme", "capacity": "1TB", "read": "48Gbps", "written": "48Gbps", "latency": "100us"}
    memory = CPU | {"capacity": f"{65 * 256 * TOKEN_BYTES}B"}
    fresh = [[*range(first, first + 10)] for first in (200, 300, 400, 500)]
    rows = [(0.0, 5_120, A), (10, 5_120, B), (20, 5_120, fresh[0]), (30, 5_120, fresh[1])]
    rows += [(40, 5_120, fresh[2]), (40.001, 5_120, fresh[3]), (40.002, 5_120, A)]
    result = run(prompts(rows), [memory, disk | {"prefetch": is_prefetched}])
    last = result.requests[-1]
    assert last.tier_tokens == 4_864
    assert last.tier_wait_ps is not None
    pcie_ps = 19 * 256 * TOKEN_BYTES * 8 * 10**12 // PCIE_BPS
    read_ps = 14 * 256 * TOKEN_BYTES * 8 * 10**12 // 48_000_000_000
    if is_prefetched:
        assert last.tier_wait_ps == pytest.approx(pcie_ps, rel=1e-2)
        assert tier(result, "nvme").prefetched_chunks == 14
    else:
        assert last.tier_wait_ps > read_ps
    assert tier(result, "nvme").loads == (not is_prefetched)


@pytest.mark.parametrize(
    ("prefetch", "timeout", "chunk_tokens", "fetched_tokens", "held_ms"),
    [
        ("wait_complete", {}, 256, 4_864, None),
        ("timeout", {"base": "1s"}, 256, 4_864, None),
        ("timeout", {"base": "20ms", "per_1024_tokens": "10ms"}, 256, 0, 20 + 47.5),
        ("timeout", {"base": "80ms", "per_1024_tokens": "0s"}, 16, 2_048, 80),
        ("best_effort", {}, 256, 0, 0),
    ],
)
def test_a_request_waits_for_its_prefetch_as_its_policy_says(
    prefetch: str, timeout: dict[str, str], chunk_tokens: int, fetched_tokens: int, held_ms: float | None
) -> None:
    """The fourth prompt is that of the first, of which only the disk has anything left. By hand: 4,864 tokens take
    119.5 ms at 48 Gbit/s, and then 11.4 ms over PCIe. Chunks of 16 tokens come 128 at a time, in 50.3 ms each: one such
    piece in 80 ms. What has not come in time is computed. One that comes behind overtakes it meanwhile."""
    fresh, rate_bps = [*range(200, 210)], 48_000_000_000
    disk = {"kind": "nvme", "capacity": "1TB", "read": f"{rate_bps}bps", "written": "48Gbps", "latency": "100us"}
    memory = CPU | {"capacity": f"{40 * 256 * TOKEN_BYTES}B"}
    rows = [(0.0, 5_120, A), (10, 5_120, B), (20, 5_120, fresh), (30, 5_120, A), (30.001, 512, [7_777])]
    tiers = [memory, disk | {"prefetch": prefetch, "prefetch_timeout": timeout}]
    result = run(prompts(rows), tiers, cache={"chunk_tokens": chunk_tokens})
    *_, fourth, behind = result.requests
    assert fourth.scheduled_ps is not None
    assert behind.scheduled_ps is not None
    assert (fourth.cached_tokens, fourth.tier_tokens) == (fetched_tokens, fetched_tokens)
    assert tier(result, "nvme").prefetched_chunks == (5_119 // chunk_tokens)
    assert tier(result, "nvme").loads == 0, "nothing is loaded from there directly"
    read_ps = fetched_tokens * TOKEN_BYTES * 8 * 10**12 // rate_bps + 100 * 10**6
    held_ps = read_ps if held_ms is None else round(held_ms * 1e9)
    pcie_ps = fetched_tokens * TOKEN_BYTES * 8 * 10**12 // PCIE_BPS
    waited_ps = fourth.scheduled_ps - fourth.arrived_ps
    assert held_ps + pcie_ps <= waited_ps <= held_ps + pcie_ps + 5 * 10**6
    assert (behind.scheduled_ps == behind.arrived_ps) is (prefetch != "best_effort")


def test_little_is_not_prefetched() -> None:
    """HiCache's threshold is 256 tokens, one chunk here, of which the disk has 19."""
    disk = {"kind": "nvme", "capacity": "1TB", "read": "48Gbps", "written": "48Gbps", "latency": "100us"}
    disk |= {"prefetch": "wait_complete", "prefetch_tokens_min": 4_865}
    memory = CPU | {"capacity": f"{40 * 256 * TOKEN_BYTES}B"}
    rows = [(0.0, 5_120, A), (10, 5_120, B), (20, 5_120, [*range(200, 210)]), (30, 5_120, A)]
    last = run(prompts(rows), [memory, disk]).requests[-1]
    assert (last.tier_tokens, last.scheduled_ps) == (0, last.arrived_ps)


def test_requests_that_are_held_back_go_on_when_nothing_moves_any_more() -> None:
    """A prefetch over a link that fails on its way: the prompt is computed."""
    topology = {"kind": "rail_optimized", "gpus_per_node": 1, "nodes": 2, "nic": "1Gbps", "pcie": {"rate": "504Gbps"}}
    store = {"kind": "remote", "capacity": "1TB", "server": 1, "prefetch": "wait_complete"}
    memory = CPU | {"capacity": f"{40 * 256 * TOKEN_BYTES}B"}
    rows = [(0.0, 5_120, A), (20, 5_120, B), (40, 5_120, [*range(200, 210)]), (60, 5_120, A)]
    faults = [{"kind": "link", "at_s": 61, "between": ["gpu1", "leaf0.0"]}]
    result = run(
        prompts(rows), [memory, store], topology=topology, faults=faults, pools=[pool("server", "mixed", instances=1)]
    )
    last = result.requests[-1]
    assert (last.status.value, last.tier_tokens) == ("completed", 0)


def test_chunks_come_from_another_server_to_memory_while_their_request_queues() -> None:
    """The same from a store, to an instance that has never seen the prompt."""
    topology = {"kind": "rail_optimized", "gpus_per_node": 1, "nodes": 3, "nic": "100Gbps", "pcie": {"rate": "504Gbps"}}
    store = {"kind": "remote", "capacity": "1TB", "server": 2, "prefetch": True}
    fresh = [[*range(first, first + 10)] for first in (200, 300, 400, 500)]
    rows = [(0.0, 5_120, A), (10, 5_120, B)]
    rows += [(30 + number / 1000, 5_120, ids) for number, ids in enumerate([*fresh, B, A])]
    result = run(
        prompts(rows),
        [CPU, store],
        pools=[pool("server", "mixed", instances=2)],
        topology=topology,
        routing={"policy": "round_robin"},
    )
    waits = [request.tier_wait_ps for request in result.requests[-2:]]
    assert [request.tier_tokens for request in result.requests[-2:]] == [4_864, 4_864]
    assert waits == pytest.approx([4_864 * TOKEN_BYTES * 8 * 10**12 / PCIE_BPS] * 2, rel=1e-2)
    assert tier(result, "remote").prefetched_chunks == 38
    assert tier(result, "remote").loads == 0


def test_a_store_in_the_network_serves_what_another_instance_has_computed() -> None:
    """Instances on two servers, the store on a third: it is reached over the NICs, which are slower than PCIe."""
    topology = {"kind": "rail_optimized", "gpus_per_node": 1, "nodes": 3, "nic": "100Gbps", "pcie": {"rate": "504Gbps"}}
    store = {"kind": "remote", "capacity": "1TB", "server": 2}
    result = run(
        prompts([(0, 5_120, A), (10, 5_120, A)]),
        [store],
        pools=[pool("server", "mixed", instances=2)],
        topology=topology,
        routing={"policy": "round_robin"},
    )
    first, second = result.requests
    assert first.prefill_instance != second.prefill_instance
    assert second.tier_tokens == 4_864
    exact_ps = 4_864 * TOKEN_BYTES * 8 * 10
    assert second.tier_wait_ps == pytest.approx(exact_ps, rel=1e-2)
    assert tier(result, "remote").caches == 1


def test_instances_of_a_server_share_its_memory_where_that_is_said() -> None:
    """The second instance has never seen the prompt."""
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "pcie": {"rate": "504Gbps"}}
    loaded = {}
    for scope in ("rank", "server"):
        result = run(
            prompts([(0, 5_120, A), (10, 5_120, A)]),
            [CPU | {"scope": scope}],
            pools=[pool("server", "mixed", instances=2)],
            topology=topology,
            routing={"policy": "round_robin"},
        )
        loaded[scope] = result.requests[-1].tier_tokens, tier(result).caches
    assert loaded == {"rank": (0, 2), "server": (4_864, 1)}


@pytest.mark.parametrize(("scope", "tier_tokens"), [("rank", 0), ("server", 4_864)])
def test_an_instance_that_fails_takes_its_own_tier_with_it(scope: str, tier_tokens: int) -> None:
    faults = [{"kind": "instance", "at_s": 5, "for_s": 2, "instance": "server-0"}]
    result = run(prompts([(0, 5_120, A), (60, 5_120, A)]), [CPU | {"scope": scope}], faults=faults)
    assert result.requests[-1].tier_tokens == tier_tokens


def test_a_request_whose_instance_fails_during_its_load_begins_again() -> None:
    """The load takes 0.45 s from second 20 on; what comes back has nothing, and computes the prompt."""
    faults = [{"kind": "instance", "at_s": 20.1, "for_s": 1, "instance": "server-0"}]
    rows = [(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]
    result = run(prompts(rows), faults=faults, topology={"kind": "single_switch", "pcie": {"rate": "10Gbps"}})
    third = result.requests[-1]
    assert (third.status.value, third.restarts, third.tier_tokens) == ("completed", 1, 0)
    assert tier(result).loads == 0


@pytest.mark.parametrize("at_s", [15.0, 20.1])
def test_a_link_that_is_down_makes_prompts_be_computed(at_s: float) -> None:
    """Before the load, or in the middle of its 0.45 s."""
    rows = [(0, 5_120, A), (10, 5_120, B), (20, 5_120, A)]
    faults = [{"kind": "link", "at_s": at_s, "between": ["pcie0", "host0"]}]
    result = run(prompts(rows), faults=faults, topology={"kind": "single_switch", "pcie": {"rate": "10Gbps"}})
    assert all(request.status.value == "completed" for request in result.requests)
    assert (tier(result).loads, tier(result).failed_loads) == (0, 1)
    assert result.requests[-1].cached_tokens == 1_264


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": {"kind": "single_switch"}}, "expected cluster.topology.pcie"),
        ({"engine": {"prefix_caching": False}}, "without prefix caching"),
        ({"engine": {"block_tokens": 96}}, "kv_cache.chunk_tokens: found 256, expected a multiple of the 96"),
        ({"tiers": [CPU | {"capacity": "1MB"}]}, "expected at least the 37748736 of a chunk"),
        ({"engine": {"policy": "sglang", "framework": "sglang"}}, "found with policy sglang"),
        ({"tiers": [{"kind": "remote", "capacity": "1GB", "server": 9}]}, "expected one of the 1 servers"),
        (
            {"tiers": [{"kind": "remote", "capacity": "1GB", "server": 0, "prefetch": True}]},
            "found remote with prefetch, expected one of kind cpu as the first",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    tiers = changes.pop("tiers", [CPU])
    with pytest.raises((InputError, ValidationError), match=message.replace(".", r"\.")):
        run(prompts([(0, 512, [1])]), tiers, **{"topology": SINGLE, **changes})


def test_a_run_ends_in_one_line_where_an_eviction_policy_of_ones_own_breaks_a_rule(tmp_path: Path) -> None:
    """A prompt of 1,024 tokens is four chunks of 256, of which the tier has room for two."""
    (tmp_path / "mine.py").write_text(
        "from vidur_pd.kv.store import Eviction\nclass KeepsAll(Eviction):\n    def hit(self, key): ...\n"
        "    def add(self, key): return []\n"
    )
    tier = CPU | {"capacity": f"{2 * 256 * TOKEN_BYTES}B", "eviction": f"{tmp_path / 'mine.py'}:KeepsAll"}
    with pytest.raises(InputError, match=r"eviction policy mine\.py:KeepsAll: found 3 chunks that stay, .* 2$"):
        run(prompts([(0.0, 1024, (1, 2))]), [tier])
