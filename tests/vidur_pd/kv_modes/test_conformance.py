"""What holds of every mode of KV transfers, whatever the coupling and the first-token rule.

KV arrives once and in full, and none of it leaves before it is computed; bytes are those of the model; blocks return,
and faults leave nothing behind.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from aicb import load_model
from tests.integration.small_runs import pool, requests
from tests.integration.test_fault_invariants import (
    check_every_request_has_an_end,
    check_kv_bytes,
    check_the_order_of_stamps,
)
from tests.vidur_pd.kv_modes.watched import COUPLINGS, FIRST_TOKENS, MODES, TWO_AND_TWO, Watched, watch
from vidur_pd.metrics.requests import RequestRecord
from vidur_pd.metrics.result import Result
from vidur_pd.workload import BlockHashes
from vidur_pd.workload.request import RequestStatus

ROWS = [(4_000 * index, 180 + 317 * (index % 5), 2 + index % 4) for index in range(10)]
"""Prompts of 180 to 1,448 tokens, in chunks of at most 512."""
TOKEN_BYTES = load_model("qwen3-8b").kv_bytes_per_token("bf16")
HYBRID = load_model("qwen3-next-80b-a3b")

every_mode = pytest.mark.parametrize("mode", MODES)
every_rule = pytest.mark.parametrize("first_token", FIRST_TOKENS)


def travelled(result: Result) -> list[RequestRecord]:
    return [record for record in result.requests if record.kv_bytes is not None]


def check_all_kv_was_sent_once(watched: Watched) -> None:
    """Orders of a request follow one another from what the decode rank has to the end of the context."""
    for record in travelled(watched.result):
        orders = watched.orders[record.index]
        assert orders[0].after_tokens == record.resident_tokens
        assert orders[-1].until_tokens == record.context_tokens
        assert all(one.until_tokens == other.after_tokens for one, other in pairwise(orders))
        assert all(order.had_room for order in orders)


@pytest.mark.parametrize("coupling", COUPLINGS)
@every_rule
@every_mode
def test_all_kv_arrives_once_and_in_full(mode: str, first_token: str, coupling: str) -> None:
    """A decode rank of one GPU needs one copy of 147,456 bytes per token; the first token comes when the rule says."""
    transfer = {"mode": mode, "first_token": first_token}
    watched = watch(TWO_AND_TWO, ROWS, kv_transfer=transfer, network={"coupling": coupling})
    result = watched.result
    assert [record.status for record in result.requests] == [RequestStatus.COMPLETED] * len(ROWS)
    check_all_kv_was_sent_once(watched)
    check_the_order_of_stamps(result)
    assert [record.kv_bytes for record in result.requests] == [prompt * TOKEN_BYTES for _, prompt, _ in ROWS]
    assert sum(flow.size_bytes for flow in result.flows) == sum(prompt for _, prompt, _ in ROWS) * TOKEN_BYTES
    assert watched.is_network_empty
    for record in result.requests:
        assert record.kv_arrived_ps is not None
        assert record.first_token_ps is not None
        assert record.prefill_completed_ps is not None
        match first_token:
            case "prefill":
                assert record.first_token_ps == record.prefill_completed_ps
            case "decode_after_transfer":
                assert record.first_token_ps == record.kv_arrived_ps
            case "decode_recompute":
                assert record.first_token_ps > record.kv_arrived_ps


@every_mode
def test_no_kv_leaves_before_it_is_computed(mode: str) -> None:
    """A prompt of 2,000 tokens in four chunks: what has left by the start of any flow is at most what iterations have
    computed by then, layer by layer."""
    result = watch([pool("p", "prefill"), pool("d", "decode")], [(0, 2_000, 3)], kv_transfer={"mode": mode}).result
    layers = len(load_model("qwen3-8b").pattern)
    prefills = [run for run in result.iterations.runs if run.instance == 0]
    chunks = [(run.start_ps, int(run.ends_ps[-1]), run.prefill_tokens) for run in prefills]
    assert sum(tokens for *_, tokens in chunks) == 2_000
    assert len(chunks) == 4

    def computed_bytes(at_ps: int) -> int:
        """Instants are whole picoseconds, rounded down."""
        layers_done = [
            min(max((at_ps + 1 - start_ps) * layers // (end_ps - start_ps), 0), layers)
            for start_ps, end_ps, _ in chunks
        ]
        shares = zip(layers_done, chunks, strict=True)
        return sum(done * tokens * TOKEN_BYTES // layers for done, (_, _, tokens) in shares)

    flows = sorted(result.flows, key=lambda flow: flow.start_ps)
    begun = np.cumsum([flow.size_bytes for flow in flows])
    assert begun[-1] == 2_000 * TOKEN_BYTES
    for flow, begun_bytes in zip(flows, begun.tolist(), strict=True):
        assert begun_bytes <= computed_bytes(flow.start_ps)


@every_rule
@every_mode
def test_one_missing_token_travels_only_where_the_decode_side_computes_it(mode: str, first_token: str) -> None:
    watched = watch(TWO_AND_TWO, [(0, 300, 1)], kv_transfer={"mode": mode, "first_token": first_token})
    (record,) = watched.result.requests
    assert record.status is RequestStatus.COMPLETED
    assert record.kv_bytes == (300 * TOKEN_BYTES if first_token == "decode_recompute" else None)


@every_mode
def test_a_recurrent_state_travels_once_with_the_last_token(mode: str) -> None:
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    watched = watch(pools, [(0, 1_200, 3)], model="qwen3-next-80b-a3b", kv_transfer={"mode": mode})
    check_all_kv_was_sent_once(watched)
    (record,) = watched.result.requests
    assert record.kv_bytes == 1_200 * HYBRID.kv_bytes_per_token("bf16") + HYBRID.state_bytes("bf16")


@every_mode
def test_what_the_prefix_cache_of_the_decode_rank_has_stays_behind(mode: str) -> None:
    """Two prompts of the same 1,024 tokens; of the second the last block, which is never hit, travels."""
    shared = BlockHashes(np.array([0, 2, 4]), np.array([7, 8, 7, 8]), 512)
    rows = replace(requests([(0, 1_024, 3), (500_000, 1_024, 3)]), block_hashes=shared)
    pools = [pool("p", "prefill"), pool("d", "decode")]
    watched = watch(pools, rows, engine={"prefix_caching": True}, kv_transfer={"mode": mode})
    check_all_kv_was_sent_once(watched)
    first, second = watched.result.requests
    assert (first.kv_bytes, second.kv_bytes) == (1_024 * TOKEN_BYTES, 16 * TOKEN_BYTES)


@pytest.mark.parametrize(("stages", "nic"), [(1, "400Gbps"), (2, "400Gbps"), (2, "5Gbps")])
@every_rule
@every_mode
def test_scarce_rooms_are_freed_and_everything_drains(mode: str, first_token: str, stages: int, nic: str) -> None:
    """199 blocks for prompts of up to 2,818 tokens; requests overtake each other, and some lose their room, with slow
    NICs only once the KV of others has arrived."""
    pools = [pool("p", "prefill", pp=stages), pool("d", "decode", pp=stages)]
    engine = {"num_kv_blocks": 200, "max_batched_tokens": 256, "max_seqs": 2}
    rows = [(0, 2_818, 23), (760, 1_451, 9), (1_579, 400, 2), (2_000, 2_200, 30), (2_500, 700, 4)]
    transfer = {"mode": mode, "first_token": first_token}
    topology = {"kind": "rail_optimized", "gpus_per_node": stages, "nic": nic}
    watched = watch(pools, rows, engine=engine, kv_transfer=transfer, topology=topology)
    assert watched.result.summary.completed == len(rows)
    for record in watched.result.requests:
        orders = watched.orders[record.index]
        assert orders[-1].until_tokens == record.context_tokens
        assert sum(order.until_tokens - order.after_tokens for order in orders) * TOKEN_BYTES == record.kv_bytes
    assert watched.is_network_empty


CUT = {"kind": "link", "between": ["gpu0", "leaf0.0"], "at_s": 0.01, "for_s": 0.03}
FAULTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "sent again after cuts": (
        [
            {
                "kind": "link_flap",
                "between": ["gpu0", "leaf0.0"],
                "at_s": 0.005,
                "count": 12,
                "down_s": 2e-3,
                "up_s": 3e-3,
            }
        ],
        {"transfer_retries": 10},
    ),
    "given up after a cut": ([CUT], {"transfer_retries": 0}),
    "given up for good": ([CUT], {"transfer_retries": 0, "requests": "fail"}),
    "cut for ever": ([CUT | {"for_s": None}], {"transfer_retries": 1, "max_attempts": 1}),
    "decode instance lost": ([{"kind": "instance", "instance": "d-0", "at_s": 0.02, "for_s": 0.02}], {}),
    "decode instances lost": (
        [{"kind": "instance", "instance": name, "at_s": 0.02, "for_s": 0.03} for name in ("d-0", "d-1")],
        {},
    ),
    "no decode instance, no waiting": (
        [{"kind": "instance", "instance": name, "at_s": 0.02, "for_s": 0.03} for name in ("d-0", "d-1")],
        {"without_instance": "fail"},
    ),
    "decode instances lost while KV waits to be sent again": (
        [
            CUT,
            {"kind": "instance", "instance": "d-0", "at_s": 0.015, "for_s": 0.02},
            {"kind": "instance", "instance": "d-1", "at_s": 0.016, "for_s": 0.02},
        ],
        {"transfer_backoff_s": 0.02, "transfer_retries": 5},
    ),
    "prefill instance lost": ([{"kind": "instance", "instance": "p-0", "at_s": 0.02, "for_s": 0.02}], {}),
}


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("case", FAULTS)
@every_mode
def test_faults_leave_nothing_behind(mode: str, case: str, coupling: str) -> None:
    """Slow NICs, so that faults hit KV under way. Every request ends; bytes that count are those on links."""
    faults, recovery = FAULTS[case]
    watched = watch(
        [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)],
        ROWS,
        topology={"kind": "rail_optimized", "gpus_per_node": 1, "nic": "50Gbps"},
        faults=faults,
        recovery=recovery,
        kv_transfer={"mode": mode},
        network={"coupling": coupling},
    )
    result = watched.result
    check_every_request_has_an_end(result, len(ROWS))
    check_the_order_of_stamps(result)
    check_kv_bytes(result)
    assert watched.is_network_empty
    acted = result.summary.faults
    if case == "sent again after cuts":
        assert acted.transfers_retried > 0
        assert result.summary.completed == len(ROWS)
    elif case.startswith("given up"):
        assert sum(asdict(acted.requests).values()) > 0
