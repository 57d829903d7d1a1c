"""Faults of earlier simulators, each as a test of a whole run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aicb import load_model
from tests.integration.small_runs import NO_HOST, config, pool, simulate
from vidur_pd.metrics.result import Result

PAIR = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
BURST = [(10_000 * i, 2_000, 20) for i in range(12)]


AT_PREFILL = {"first_token": "prefill"}
"""The user gets the first token from the prefill side, before KV travels."""


def stamps(result: Result, name: str) -> list[int]:
    return [getattr(record, name) for record in result.requests]


def test_decode_never_starts_before_its_kv_and_a_slower_network_delays_it() -> None:
    """200 requests of an earlier simulator decoded before their KV had arrived, and 10 Gbit/s cost nothing."""
    early, fast, slow = (
        simulate(
            config(PAIR, topology={"kind": "rail_optimized", "gpus_per_node": 2, "nic": nic}, kv_transfer=first), BURST
        )
        for nic, first in (("800Gbps", AT_PREFILL), ("800Gbps", {}), ("10Gbps", {}))
    )
    for request in early.requests:
        assert request.first_token_ps <= request.kv_arrived_ps < request.completed_ps
    for run in (fast, slow):
        for request in run.requests:
            assert request.kv_arrived_ps < request.first_token_ps < request.completed_ps
    assert all(s > f for s, f in zip(stamps(slow, "kv_arrived_ps"), stamps(fast, "kv_arrived_ps"), strict=True))
    assert slow.summary.e2e_s.mean > fast.summary.e2e_s.mean


def test_halving_the_nic_rate_never_makes_kv_arrive_earlier() -> None:
    arrivals = []
    for gbps in (400, 200, 100, 50):
        topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": f"{gbps}Gbps"}
        run = simulate(config(PAIR, topology=topology, network={"coupling": "isolated"}), BURST)
        arrivals.append(stamps(run, "kv_arrived_ps"))
    for faster, slower in pairwise(arrivals):
        assert all(s >= f for s, f in zip(slower, faster, strict=True))


def test_a_transfer_alone_takes_its_bytes_over_the_rate_of_its_links() -> None:
    """2,000 tokens × 147,456 B over two 400 Gbit/s NICs (4 KV heads each): 2.9491 ms, and 1 µs of links."""
    result = simulate(config(PAIR), [(0, 2_000, 2)])
    request = result.requests[0]
    expected_ps = 2_000 * 147_456 * 8 * 10**12 // (2 * 400 * 10**9)
    assert request.kv_arrived_ps - request.kv_sent_ps == pytest.approx(expected_ps + 10**6, abs=10)


def test_an_mla_latent_travels_to_every_rank_and_from_the_rail_of_its_destination() -> None:
    """DeepSeek-V3 keeps 70,272 B per token, whole on each of the two decode ranks of a request."""
    pools = [pool("p", "prefill", tp=8, ep=8), pool("d", "decode", tp=8, ep=8)]
    engine = {"weights": "fp8", "max_batched_tokens": 2_048}
    topology = {"kind": "rail_optimized"}
    result = simulate(config(pools, model="deepseek-v3", engine=engine, topology=topology), [(0, 1_000, 2)])
    assert result.requests[0].kv_bytes == 8 * 1_000 * 70_272
    assert load_model("deepseek-v3").kv_bytes_per_token("bf16") == 70_272


def test_a_hybrid_model_hands_its_state_over_even_after_a_prompt_of_one_token() -> None:
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    result = simulate(config(pools, model="qwen3-next-80b-a3b"), [(0, 1, 2)])
    assert result.requests[0].kv_bytes == 24_576 + 39_518_208


def test_prompts_longer_than_the_token_budget_are_chunked_and_not_stuck() -> None:
    result = simulate(config([pool("m", "mixed")], engine={"max_batched_tokens": 512}), [(0, 5_000, 3)])
    assert result.summary.completed == 1
    prefills = [run for run in result.iterations.runs if run.prefill_tokens]
    assert [run.prefill_tokens for run in prefills] == [512] * 9 + [392]


def test_one_token_outputs_end_with_the_prefill() -> None:
    result = simulate(config(PAIR, kv_transfer=AT_PREFILL), [(0, 100, 1)])
    request = result.requests[0]
    assert request.completed_ps == request.first_token_ps == request.prefill_completed_ps
    assert request.kv_arrived_ps is None
    assert result.requests[0].kv_bytes is None


def test_the_three_first_tokens_differ_by_what_a_user_waits_for() -> None:
    """Sampled at prefill; the same token after its KV; a token recomputed in one more decode step."""
    first = {}
    for source in ("prefill", "decode_after_transfer", "decode_recompute"):
        result = simulate(config(PAIR, kv_transfer={"first_token": source}), [(0, 2_000, 10)])
        request = result.requests[0]
        first[source] = request.first_token_ps
        if source == "prefill":
            assert request.first_token_ps == request.prefill_completed_ps
        elif source == "decode_after_transfer":
            assert request.first_token_ps == request.kv_arrived_ps
    assert first["prefill"] < first["decode_after_transfer"] < first["decode_recompute"]


def test_layerwise_transfer_hides_most_of_the_time_that_pull_exposes() -> None:
    exposed = {}
    for mode in ("pull", "push", "layerwise"):
        request = simulate(config(PAIR, kv_transfer={"mode": mode}), [(0, 8_000, 5)]).requests[0]
        exposed[mode] = request.kv_arrived_ps - request.prefill_completed_ps
    assert exposed["layerwise"] < exposed["push"] / 5
    assert exposed["push"] <= exposed["pull"]


def test_kv_transfers_into_one_nic_share_it() -> None:
    """Four prefill GPUs on nodes of their own send to one decode GPU at the same time: four times the time."""
    pools = [pool("p", "prefill", instances=4), pool("d", "decode")]
    topology = {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "100Gbps"}
    options = {"topology": topology, "kv_transfer": {"setup_ms": 0.0}}
    alone = simulate(config(pools, **options), [(0, 4_000, 2)]).requests[0]
    together = simulate(config(pools, **options), [(0, 4_000, 2)] * 4)
    not_overlapped_ps = alone.kv_arrived_ps - alone.kv_sent_ps
    longest_ps = max(j.kv_arrived_ps - j.kv_sent_ps for j in together.requests)
    assert longest_ps == pytest.approx(4 * not_overlapped_ps, rel=1e-3)


def test_an_idle_rank_of_a_lockstep_group_waits_while_a_peer_works() -> None:
    """With experts shared by two data-parallel ranks, a decode beside a long prefill of the peer is held up by it."""
    pools = [pool("m", "mixed", dp=2, ep=2)]
    options = {"model": "qwen3-30b-a3b", "engine": {"max_batched_tokens": 8_192}}
    alone = simulate(config(pools, **options), [(0, 100, 30)])
    beside = simulate(config(pools, **options), [(0, 100, 30), (60_000, 8_000, 2)])
    lone, held = alone.requests[0], beside.requests[0]
    prefill = beside.requests[1]
    assert held.completed_ps - lone.completed_ps > 0.5 * (prefill.prefill_completed_ps - prefill.scheduled_ps)


def test_preempted_requests_keep_their_lengths_and_their_first_token() -> None:
    """Sixteen requests of 300 tokens in 120 blocks of 16 (1,904 tokens): decodes outgrow the pool."""
    rows = [(0, 100, 200)] * 16
    result = simulate(config([pool("m", "mixed")], engine={"num_kv_blocks": 120}), rows)
    preempted = [record for record in result.requests if record.preemptions]
    assert preempted
    for request in preempted:
        assert (request.prompt_tokens, request.output_tokens) == (100, 200)
        assert request.first_token_ps < request.last_token_ps
    assert result.summary.completed == 16


@pytest.mark.parametrize("field", ["tp", "dp"])
def test_changing_the_partition_changes_the_time(field: str) -> None:
    one = simulate(config([pool("m", "mixed")]), [(0, 1_000, 10)] * 4)
    two = simulate(config([pool("m", "mixed", **{field: 2})]), [(0, 1_000, 10)] * 4)
    assert two.summary.e2e_s.mean < one.summary.e2e_s.mean


def test_an_infinitely_fast_network_leaves_the_compute_timeline() -> None:
    """With NVLink and NICs at 10^15 bit/s and no set-up, the decode steps of PD equal those of a co-located run.
    Without the host, of which an idle decode instance shows more than one that has prepared during its prefill."""
    fast = {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "1000000Gbps", "nvlink": "1000000Gbps"}
    fast["link_latency"] = "0ns"
    pd = simulate(
        config(
            [pool("p", "prefill"), pool("d", "decode")],
            topology=fast,
            kv_transfer=AT_PREFILL | {"setup_ms": 0.0},
            engine=NO_HOST,
        ),
        [(0, 1_000, 50)],
    ).requests[0]
    mixed = simulate(config([pool("m", "mixed")], engine=NO_HOST), [(0, 1_000, 50)]).requests[0]
    assert pd.first_token_ps == mixed.first_token_ps
    assert pd.completed_ps - mixed.completed_ps == pd.kv_arrived_ps - pd.kv_sent_ps
    assert pd.kv_arrived_ps - pd.kv_sent_ps < 2 * 10**6


def test_results_do_not_depend_on_an_earlier_run_in_the_process() -> None:
    first = simulate(config(PAIR), BURST)
    simulate(config([pool("m", "mixed")]), BURST)
    again = simulate(config(PAIR), BURST)
    assert stamps(first, "completed_ps") == stamps(again, "completed_ps")
    assert first.requests == again.requests


def test_layers_leave_as_they_are_computed_even_if_decode_reserves_late() -> None:
    """A busy decode instance reserves at its next step, when the prefill has begun: what is computed then leaves."""
    rows = [(250_000 * i, 1_500, 150) for i in range(8)]
    pools = [pool("p", "prefill"), pool("d", "decode")]
    topology = {"kind": "rail_optimized", "gpus_per_node": 1}
    for request in simulate(config(pools, kv_transfer={"mode": "layerwise"}, topology=topology), rows).requests:
        assert request.kv_sent_ps < request.prefill_completed_ps
        assert request.kv_arrived_ps - request.prefill_completed_ps < 5 * 10**8
