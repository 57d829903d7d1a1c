"""Hand-offs that went wrong: waits in a circle, state sent twice, chunks of exact iterations, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.result import Result
from vidur_pd.workload.request import RequestStatus

PAIR = [pool("p", "prefill"), pool("d", "decode")]


def kv_bytes(result: Result) -> list[int | None]:
    return [record.kv_bytes for record in result.requests]


@pytest.mark.parametrize("mode", ["push", "layerwise"])
def test_a_request_that_overtakes_another_in_the_prefill_does_not_wait_for_it_in_a_circle(mode: str) -> None:
    """2,818 + 1,451 tokens do not fit into 199 blocks of 16. The first has reserved decode blocks, the second finishes
    its prefill first, as both compute equal chunks, and keeps blocks that the first needs to go on."""
    pools = [pool("p", "prefill", pp=2), pool("d", "decode", pp=2)]
    engine = {
        "num_kv_blocks": 200,
        "max_batched_tokens": 256,
        "max_seqs": 2,
        "long_prefill_token_threshold": 128,
    }
    rows = [(0, 2_818, 23), (760, 1_451, 9), (1_579, 1, 1)]
    result = simulate(config(pools, engine=engine, kv_transfer={"mode": mode}), rows)
    first, second = result.requests[:2]
    assert second.prefill_completed_ps < first.prefill_completed_ps
    assert result.summary.completed == 3


@pytest.mark.parametrize("mode", ["pull", "push", "layerwise"])
def test_the_state_of_a_hybrid_model_is_sent_once(mode: str) -> None:
    """2,000 tokens in chunks of 512: 24,576 B of KV per token, and one state of 39,518,208 B."""
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    engine = {"max_batched_tokens": 512}
    result = simulate(
        config(pools, model="qwen3-next-80b-a3b", engine=engine, kv_transfer={"mode": mode}), [(0, 2_000, 3)]
    )
    assert kv_bytes(result) == [2_000 * 24_576 + 39_518_208]


@pytest.mark.parametrize(("prompt", "kept"), [(100, 100), (2_000, 128)])
def test_layers_with_a_window_send_what_it_still_shows(prompt: int, kept: int) -> None:
    """gpt-oss-20b: 12 layers keep all tokens and 12 the last 128, of 2,048 B each; decode needs them and no more."""
    pools = [pool("p", "prefill"), pool("d", "decode")]
    result = simulate(config(pools, model="gpt-oss-20b", engine={"weights": "mxfp4"}), [(0, prompt, 3)])
    assert kv_bytes(result) == [12 * 2_048 * (prompt + kept)]


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(("blocks", "together"), [(140, 1), (150, 2)])
def test_a_model_with_windows_is_served_within_its_blocks(blocks: int, together: int, prefix_caching: bool) -> None:
    """Prompts of 1,000 and 40 outputs take 65 blocks for the full layers and 9 for those with a window: 148 for two.
    Without windows they would be 260, and 130 if those took nothing."""
    engine = {"weights": "mxfp4", "num_kv_blocks": blocks, "prefix_caching": prefix_caching}
    result = simulate(config([pool("m", "mixed")], model="gpt-oss-20b", engine=engine), [(0, 1_000, 40)] * 4)
    assert result.summary.completed == 4
    assert result.summary.preemptions == 0
    first_end = min(record.completed_ps for record in result.requests)
    assert sum(record.scheduled_ps < first_end for record in result.requests) == together


def test_mxfp4_is_refused_for_a_model_without_it() -> None:
    with pytest.raises(InputError, match=r"engine\.weights: found mxfp4, expected bf16 or fp8 \(qwen3-8b"):
        simulate(config([pool("m", "mixed")], engine={"weights": "mxfp4"}), [(0, 10, 2)])


@pytest.mark.parametrize("mode", ["pull", "push", "layerwise"])
def test_every_mode_works_when_iterations_are_flows(mode: str) -> None:
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    rows = [(10_000 * i, 500, 5) for i in range(6)]
    result = simulate(config(pools, network={"coupling": "exact"}, kv_transfer={"mode": mode}), rows)
    assert result.summary.completed == 6
    assert kv_bytes(result) == [500 * 147_456] * 6


def test_a_request_of_one_token_need_not_fit_into_the_decode_pool() -> None:
    """It ends with its prefill. One of two tokens has to travel, and is refused with a reason."""
    pools = [pool("p", "prefill"), pool("d", "decode", engine={"num_kv_blocks": 20})]
    result = simulate(config(pools, kv_transfer={"first_token": "prefill"}), [(0, 1_000, 1), (10, 1_000, 2)])
    alone, refused = result.requests
    assert alone.status is RequestStatus.COMPLETED
    assert refused.status is RequestStatus.REJECTED
    assert "KV blocks exceed" in str(refused.status_reason)


def test_a_request_too_long_for_disaggregation_goes_to_a_mixed_instance() -> None:
    pools = [pool("p", "prefill"), pool("d", "decode", engine={"num_kv_blocks": 20}), pool("m", "mixed")]
    result = simulate(config(pools), [(0, 1_000, 5), (0, 100, 5), (0, 1_000, 5)])
    assert result.summary.completed == 3
    assert [record.prefill_instance for record in result.requests] == ["m-0", "p-0", "m-0"]


def test_least_tokens_spreads_requests_over_decode_instances() -> None:
    """No decode instance has prompt tokens to compute: ties go to the one with the fewest requests."""
    pools = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]
    result = simulate(config(pools, routing={"policy": "least_tokens"}), [(1_000 * i, 200, 200) for i in range(8)])
    used = {record.decode_instance for record in result.requests}
    assert used == {"d-0", "d-1"}


def test_a_run_in_which_every_request_is_refused_has_a_summary_without_latencies() -> None:
    result = simulate(config(PAIR, engine={"num_kv_blocks": 4}), [(0, 1_000, 5), (100, 2_000, 5)])
    assert result.summary.rejected == 2
    assert result.summary.ttft_s.mean is None
    assert result.summary.throughput.requests_per_s is None
    assert result.iterations.columns()["end_s"].shape == (0,)


def test_kv_blocks_count_while_they_are_held_and_while_they_wait_for_their_transfer() -> None:
    """One prompt of 1,600 tokens holds 100 of 199 blocks at prefill until its KV has arrived, also between iterations.

    At decode they are held from the reservation at the end of the prefill to the end; 1,600 + 1 tokens with KV take
    one block more.
    """
    result = simulate(config(PAIR, engine={"num_kv_blocks": 200}), [(0, 1_600, 2)])
    request = result.requests[0]
    prefill, decode = result.summary.pools
    makespan_ps = request.completed_ps - request.arrived_ps
    held_ps = request.kv_arrived_ps - request.scheduled_ps
    assert prefill.kv_use_max == pytest.approx(100 / 199)
    assert prefill.kv_use_mean == pytest.approx(100 / 199 * held_ps / makespan_ps)
    assert decode.kv_use_max == pytest.approx(101 / 199)


def test_every_gap_between_tokens_is_counted_once() -> None:
    """Also those of preempted requests (16 × 300 tokens in 120 blocks) and those of the transfer."""
    for pools in ([pool("m", "mixed", dp=2)], [pool("p", "prefill"), pool("d", "decode")]):
        rows = [(3_000 * (i // 4), 100, 150 + i) for i in range(16)]
        result = simulate(config(pools, engine={"num_kv_blocks": 120}), rows)
        gap_s, counts = result.iterations.gaps()
        spans_ps = [j.last_token_ps - j.first_token_ps for j in result.requests]
        assert counts.sum() == sum(output - 1 for _, _, output in rows)
        assert float(np.dot(gap_s, counts)) == pytest.approx(sum(spans_ps) / 1e12)


def test_iteration_rows_add_up() -> None:
    """Phases and host make up the compute time; compute and communication the iteration; they never exceed the span."""
    rows = [(20_000 * i, 700, 60) for i in range(8)]
    result = simulate(config([pool("p", "prefill", tp=2), pool("d", "decode", dp=2)]), rows)
    columns = result.iterations.columns()
    parts = sum(np.asarray(columns[name]) for name in columns if name in PHASE_COLUMNS)
    compute_s = np.asarray(columns["compute_s"])
    assert parts == pytest.approx(compute_s, abs=1e-12)
    duration_s = np.asarray(columns["end_s"]) - np.asarray(columns["start_s"])
    assert compute_s + np.asarray(columns["communication_s"]) == pytest.approx(duration_s, abs=1e-9)
    decoded = np.asarray(columns["decode_tokens"]).sum()
    assert decoded == 8 * 59


PHASE_COLUMNS = ("attention_s", "dense_s", "experts_s", "head_s", "norm_and_small_s", "host_s")
