"""Iterations of whole instances: composition, padding, lockstep, host, and agreement with a serving engine."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.iteration.graph_sizes import capture_sizes
from aicb.iteration.host import HostModel, load_host
from aicb.iteration.model import PHASES, IterationModel
from aicb.kernels.expert_times import ENGINE_KERNEL
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelTable
from aicb.model.architecture import kv_bytes_per_token_per_rank
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.operator import Phase
from boundary.errors import InputError
from tests.validation import iteration_vs_engine as validation

H200 = get_gpu("h200")
STEADY = replace(H200, clock=None)
"""Without clocks that move with the load, equal kernels take equal times in every iteration."""
PS_PER_S = 10**12
FP8 = Precision("fp8")
NO_HOST = HostModel(launch_us=0.0, piece_launch_us=0.0, eager_launch_us=0.0, step_us=0.0, request_us=0.0)

QWEN = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), H200)
NEXT = IterationModel(load_model("qwen3-next-80b-a3b"), Partition(tp=2), FP8, H200)
DEEPSEEK = IterationModel(load_model("deepseek-v3"), Partition(tp=8, ep=8), FP8, H200)
LOCKSTEP = IterationModel(load_model("deepseek-v3"), Partition(dp=4, ep=4), FP8, H200)
MODELS = {"qwen3-8b": QWEN, "qwen3-next": NEXT, "deepseek-v3 tp8": DEEPSEEK}

kv_lists = st.lists(st.integers(2, 20000), min_size=1, max_size=40)


def ms(cost) -> float:
    return cost.compute_ps / 1e9


def test_capture_sizes_are_those_of_vllm():
    """vLLM 0.24 configuration: 1, 2, 4, then 8…248 step 8, then 256…max step 16; max = min(512, 2·max_num_seqs)."""
    assert capture_sizes(256)[:6] == [1, 2, 4, 8, 16, 24]
    assert capture_sizes(256)[-3:] == [480, 496, 512]
    assert capture_sizes(20) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert len(capture_sizes(1024)) == 3 + 31 + 17
    assert capture_sizes(256, max_batched_tokens=100)[-1] == 96
    assert capture_sizes(256, most=1024)[-2:] == [1008, 1024]


def test_capture_sizes_hold_every_batch_of_drafts():
    """Two requests of three tokens: 1, 2, 4 and 8 are rounded up to multiples of 3, up to 2 · 2 · 3."""
    assert capture_sizes(2, queries=3) == [3, 6, 9]
    for drafts in range(17):
        for requests in (1, 2, 7, 32):
            sizes = capture_sizes(requests, queries=drafts + 1)
            assert sizes[-1] >= min(requests * (drafts + 1), 512 - drafts)
            assert all(size % (drafts + 1) == 0 for size in sizes)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=25)
@given(kv=kv_lists, steps=st.integers(1, 70))
def test_decode_steps_equal_one_price_per_step(model, kv, steps):
    lengths = np.array(kv)
    expected = [model.price([Batch.decode(lengths + step)]).compute_ps for step in range(steps)]
    assert model.decode_steps(lengths, steps).tolist() == expected


@settings(max_examples=25)
@given(ranks=st.lists(st.lists(st.integers(2, 20000), max_size=30), min_size=4, max_size=4).filter(any))
def test_decode_steps_of_a_lockstep_group_equal_one_price_per_step(ranks):
    lengths = [np.array(kv, dtype=np.int64) for kv in ranks]
    expected = [LOCKSTEP.price([Batch.decode(kv + step) for kv in lengths]).compute_ps for step in range(9)]
    assert LOCKSTEP.decode_steps(lengths, 9).tolist() == expected


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_decode_steps_equal_price_with_and_without_graphs(cuda_graphs):
    model = IterationModel(load_model("qwen3-8b"), Partition(tp=4), Precision(), H200, cuda_graphs=cuda_graphs)
    kv = np.array([100, 900, 5000])
    assert model.decode_steps(kv, 3).tolist() == [
        model.price([Batch.decode(kv + step)]).compute_ps for step in range(3)
    ]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(max_examples=30)
@given(kv=kv_lists, seed=st.integers(0, 1000))
def test_permuting_requests_changes_nothing(model, kv, seed):
    shuffled = np.random.default_rng(seed).permutation(kv)
    assert model.price([Batch.decode(kv)]).compute_ps == model.price([Batch.decode(shuffled)]).compute_ps
    prompts = [1 + length % 4000 for length in kv]
    mixed = Batch(np.array(prompts), np.array(prompts) + np.array(kv), len(kv))
    order = np.random.default_rng(seed).permutation(len(kv))
    again = Batch(mixed.new_tokens[order], mixed.kv_tokens[order], len(kv))
    assert abs(model.price([mixed]).compute_ps - model.price([again]).compute_ps) <= 1000


def test_parts_add_up_to_the_iteration():
    cost = DEEPSEEK.price([Batch.prefill([2048, 100])])
    assert sum(cost.phase_ps) + cost.host_ps == cost.compute_ps
    assert cost.phase_ps[PHASES.index(Phase.COMMUNICATION)] == 0
    assert all(cost.phase_ps[PHASES.index(phase)] > 0 for phase in Phase if phase is not Phase.COMMUNICATION)
    assert 0 <= cost.estimated_ps < cost.compute_ps
    assert bool(cost.estimated_ps) == bool(cost.estimated_operators)


def test_deepseek_v3_takes_tens_of_milliseconds():
    """A 671 B prefill cannot take microseconds: 2048 tokens on TP8/EP8, and a decode step of EP16 with 32 per rank.

    Eight workers launch it in 128 ms on the default host, which is not counted."""
    wide = IterationModel(load_model("deepseek-v3"), Partition(dp=16, ep=16), FP8, H200)
    assert 20 < ms(DEEPSEEK.price_device([Batch.prefill([2048])])) < 100
    assert 10 < ms(wide.price([Batch.decode([4096] * 32)] * 16)) < 60


@pytest.mark.parametrize(
    ("name", "partition", "precision"),
    [
        ("qwen3-8b", Partition(), Precision()),
        ("llama-3.1-70b", Partition(tp=4), Precision()),
        ("qwen3-32b", Partition(tp=2), FP8),
        ("qwen3-0.6b", Partition(), Precision()),
    ],
)
def test_a_decode_step_reads_all_weights_and_pays_kernel_floors(name, partition, precision):
    """Lower bound: GEMM weights and KV of the rank at 4.8 TB/s; floors make it at least 5 % slower (12.18)."""
    model = load_model(name)
    iteration = IterationModel(model, partition, precision, H200, host=NO_HOST)
    per_weight = 1 if precision.weights == "fp8" else 2
    weights = (model.active_parameters - model.vocab * model.hidden) * per_weight + 2 * model.vocab * model.hidden
    kv_bytes = 4096 * 8 * kv_bytes_per_token_per_rank(model, partition, precision)
    bound_s = (weights / partition.tp + kv_bytes) / H200.hbm_bytes_per_s
    seconds = iteration.price([Batch.decode([4096] * 8)]).compute_ps / PS_PER_S
    assert seconds > 1.05 * bound_s
    assert seconds < 4 * bound_s


def test_prefill_is_not_below_the_flops_bound():
    model = load_model("qwen3-8b")
    seconds = QWEN.price([Batch.prefill([8192])]).compute_ps / PS_PER_S
    assert seconds > 2 * (model.active_parameters - model.vocab * model.hidden) * 8192 / H200.peak_bf16_flops


def test_splitting_a_prompt_of_8k_in_two_changes_the_prefill_time():
    whole, halves = QWEN.price([Batch.prefill([8192])]), QWEN.price([Batch.prefill([4096, 4096])])
    assert 0.85 < halves.compute_ps / whole.compute_ps < 0.97


def test_n_equal_prompts_cost_about_n_times_one():
    one, four = (ms(QWEN.price([Batch.prefill([2000] * n)])) for n in (1, 4))
    assert 3.5 * one < four < 4.5 * one


def test_a_chunk_costs_more_with_a_longer_past():
    times = [ms(QWEN.price([Batch.prefill([2048], [past])])) for past in (0, 2048, 8192, 28000)]
    assert times == sorted(times)
    assert times[-1] > 1.3 * times[0]


def test_a_mixed_batch_is_priced_as_mixed():
    """Phase is per request: decodes keep decode attention, the chunk prefill attention, tokens share the GEMMs."""
    chunk = Batch.prefill([1024])
    decodes = Batch.decode([8000] * 64)
    both = Batch(
        np.concatenate([chunk.new_tokens, decodes.new_tokens]), np.concatenate([chunk.kv_tokens, decodes.kv_tokens]), 65
    )
    alone = [ms(QWEN.price([batch])) for batch in (chunk, decodes)]
    mixed = ms(QWEN.price([both]))
    assert max(alone) < mixed < sum(alone)
    attention = PHASES.index(Phase.ATTENTION)
    at_one_clock = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), STEADY)
    parts = [at_one_clock.price([batch]).phase_ps[attention] for batch in (chunk, decodes, both)]
    assert parts[2] == pytest.approx(parts[0] + parts[1], rel=0.03)


def test_graphs_pad_the_batch_and_eager_iterations_do_not():
    """With graphs 65 decodes run as 72 tokens, so token-wise kernels take as long as for 72; 73 are padded to 80."""
    norm = PHASES.index(Phase.NORM)
    graphs, eager = (
        IterationModel(load_model("qwen3-8b"), Partition(), Precision(), STEADY, cuda_graphs=use)
        for use in (True, False)
    )
    padded = [graphs.price([Batch.decode([64] * n)]).phase_ps[norm] for n in (65, 72, 73, 80)]
    assert padded[0] == padded[1] < padded[2] == padded[3]
    unpadded = [eager.price([Batch.decode([64] * n)]).phase_ps[norm] for n in (65, 72)]
    assert unpadded[0] < unpadded[1] == padded[1]


def test_launching_every_layer_from_the_host_slows_small_decodes_down():
    """Qwen3-0.6B: launching 28 layers from Python, 6.81 launches each, takes longer than their kernels."""
    model, batch = load_model("qwen3-0.6b"), [Batch.decode([100])]
    graphs = IterationModel(model, Partition(), Precision(), H200).price(batch)
    eager = IterationModel(model, Partition(), Precision(), H200, cuda_graphs=False).price(batch)
    assert sum(eager.phase_ps) == sum(graphs.phase_ps)
    host = HostModel()
    launching_ps = round(((10.0 + 28 * 6.81) * host.eager_launch_us + host.sample_us) * 1e6)
    assert launching_ps > sum(graphs.phase_ps)
    assert eager.compute_ps == pytest.approx(launching_ps + (host.prepare_us + host.request_us) * 1e6, abs=2)


def test_the_host_takes_so_long_for_an_iteration():
    """Qwen3-8B, 36 layers: 4 launches each between graphs and 14.5 for the pass, 6.81 and 10 without. Ten decodes
    prepare for 200 + 10 · 2 µs; with prompts, 300 tokens in all, 500 + 300 · 0.1 more. The device has 50 µs, and 0.5
    after each of 432 kernels of graphs.
    """
    host = HostModel(
        launch_us=5.0,
        piece_launch_us=30.0,
        eager_launch_us=40.0,
        prepare_us=200.0,
        prompt_us=500.0,
        prompt_token_us=0.1,
        request_us=2.0,
        sample_us=100.0,
        step_us=50.0,
        gap_us=0.5,
    )
    model = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), STEADY, host=host)
    decodes, captured = Batch.decode([100] * 10), Batch.prefill([30] * 10)
    long = Batch.prefill([60] * 10)
    found = {batch.tokens: model.price_device([batch]) for batch in (decodes, captured, long)}
    assert [cost.prepare_ps for cost in found.values()] == [220_000_000, 750_000_000, 780_000_000]
    assert found[10].launch_ps == 105_000_000
    assert found[300].launch_ps == (5 + 30 * (14.5 + 36 * 4) + 100) * 1_000_000
    assert found[600].launch_ps == pytest.approx((40 * (10 + 36 * 6.81) + 100) * 1_000_000, abs=2)
    assert [cost.host_ps for cost in found.values()] == [266_000_000, 266_000_000, 50_000_000]
    in_sequence = found[10].in_sequence()
    assert in_sequence.compute_ps == max(found[10].compute_ps, 325_000_000)
    assert found[600].in_sequence().compute_ps >= found[600].prepare_ps + found[600].launch_ps


def test_prompts_beyond_the_graphs_take_the_time_of_launching():
    """vLLM 0.24.0, Qwen3-30B-A3B: 640, 768 and 1,024 tokens all took 53 to 55 ms in one session, 512 tokens 25 ms."""
    model = IterationModel(load_model("qwen3-30b-a3b"), Partition(), Precision(), H200)
    captured, *beyond = (model.price([Batch.prefill([tokens])]).compute_ps for tokens in (512, 640, 768, 1024))
    assert max(beyond) == pytest.approx(min(beyond), rel=1e-3)
    assert min(beyond) > 1.4 * captured


def test_tiles_of_the_engine_make_1024_tokens_dearer_than_512():
    """vLLM's file for 128 experts of 768 columns: row tiles of 64 at 512 tokens, of 128 at 1,024, half empty."""
    table = KernelTable.load("h200")
    rows = table.select("grouped_gemm_gathered", "bf16", "multinomial")
    site = {
        row["batch"]: row.cold_us
        for row in rows
        if (row.kernel, row["groups"], row["n"], row["k"]) == (ENGINE_KERNEL, 128, 2048, 768)
    }
    assert site[1024] > 1.1 * site[512]
    experts = InterpolationEstimator(H200, timing="cold")
    found = experts.price(GroupedGemm(8192, 128, 128, 2048, 768, "bf16", "contiguous"))
    assert not found.is_estimate
    assert found.time_us == pytest.approx(site[1024], rel=1e-6)


def test_request_latency_is_not_part_of_an_iteration():
    slow_client = IterationModel(
        load_model("qwen3-8b"), Partition(), Precision(), H200, host=replace(HostModel(), request_latency_us=1e6)
    )
    assert slow_client.price([Batch.prefill([100])]) == QWEN.price([Batch.prefill([100])])


def test_lockstep_runs_at_the_pace_of_the_slowest_rank():
    """The time with one heavy rank is the time with heavy attention on all, at equal tokens."""
    heavy, light = Batch.decode([30000] * 8), Batch.decode([100] * 8)
    one_heavy = LOCKSTEP.price([light, heavy, light, light])
    assert one_heavy.compute_ps == LOCKSTEP.price([heavy] * 4).compute_ps
    assert one_heavy.compute_ps > LOCKSTEP.price([light] * 4).compute_ps


def test_an_idle_rank_is_busy_while_a_peer_works():
    busy = LOCKSTEP.price([Batch.decode([4096] * 8)] * 4)
    alone = LOCKSTEP.price([Batch.decode([4096] * 8), Batch.empty(), Batch.empty(), Batch.empty()])
    assert alone.compute_ps == busy.compute_ps
    assert alone.communications == busy.communications


def test_a_prefill_on_one_rank_delays_the_decodes_of_all():
    decodes = [Batch.decode([4096] * 8)] * 3
    assert ms(LOCKSTEP.price([Batch.prefill([4096]), *decodes])) > 3 * ms(
        LOCKSTEP.price([Batch.decode([4096] * 8), *decodes])
    )


def test_tensor_parallelism_returns_two_all_reduces_per_layer():
    """t = 2 adds 2 payloads of T·h·2 B per layer; 2048 tokens are above the captured sizes."""
    model = load_model("qwen3-8b")
    cost = IterationModel(model, Partition(tp=2), Precision(), H200).price([Batch.prefill([2048])])
    reduces = [(c, n) for c, n in cost.communications if c.op == "all_reduce" and c.size_bytes == 2048 * 4096 * 2]
    assert sum(n for _, n in reduces) == 2 * 36 + 1  # and one after the embedding
    assert not IterationModel(model, Partition(), Precision(), H200).price([Batch.prefill([64])]).communications


def test_expert_parallelism_returns_dispatch_and_combine_of_every_moe_layer():
    cost = LOCKSTEP.price([Batch.decode([100] * 8)] * 4)
    assert [(c.op, c.group, n) for c, n in cost.communications] == [("dispatch", "ep", 58), ("combine", "ep", 58)]


def test_stages_of_a_pipeline_share_the_layers():
    """61 layers on 4 stages are 15, 15, 16, 15; the head is on the last only."""
    model = IterationModel(load_model("deepseek-v3"), Partition(tp=8, ep=8, pp=4), FP8, H200, host=NO_HOST)
    costs = [model.price([Batch.decode([1000] * 16)], stage=stage) for stage in range(4)]
    head = PHASES.index(Phase.HEAD)
    assert [cost.phase_ps[head] > costs[1].phase_ps[head] for cost in costs] == [True, False, False, True]
    whole = IterationModel(load_model("deepseek-v3"), Partition(tp=8, ep=8), FP8, H200, host=NO_HOST)
    total = sum(cost.compute_ps for cost in costs)
    assert total == pytest.approx(whole.price([Batch.decode([1000] * 16)]).compute_ps, rel=1e-3)
    assert all(any(c.op == "send_recv" for c, _ in cost.communications) for cost in costs[:3])


def test_experts_outside_the_table_are_flagged():
    """Mixtral's experts were measured with all eight on one rank; one of Maverick's alone is octaves away from any."""
    partition, batch = Partition(tp=8, dp=16, ep=128), [Batch.decode([500] * 8)]
    spread = IterationModel(load_model("llama-4-maverick"), partition, Precision(), H200).price(batch * 16)
    whole = IterationModel(load_model("mixtral-8x7b"), Partition(), Precision(), H200).price(batch)
    assert {"moe_gate_up", "moe_down"} <= set(spread.estimated_operators)
    assert {"moe_gate_up", "moe_down"}.isdisjoint(whole.estimated_operators)
    assert 0.2 < spread.estimated_ps / spread.compute_ps < 0.95


def test_the_roofline_estimator_needs_no_measurements():
    model = IterationModel(load_model("llama-3.1-8b"), Partition(), FP8, get_gpu("b200"), estimator="roofline")
    cost = model.price([Batch.decode([1000] * 4)])
    assert cost.estimated_ps == sum(cost.phase_ps)
    assert model.decode_steps(np.array([1000] * 4), 2)[0] == cost.compute_ps


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([Batch.decode([10])], r"batches: found 1, expected one per data-parallel rank \(dp 4\)"),
        ([Batch.empty()] * 4, "batches: all are empty"),
    ],
)
def test_wrong_batches_are_refused(batches, message):
    with pytest.raises(InputError, match=message):
        LOCKSTEP.price(batches)
    with pytest.raises(InputError, match=message):
        LOCKSTEP.decode_steps([batch.kv_tokens for batch in batches], 2)


def test_unknown_hardware_formats_and_stages_are_refused():
    with pytest.raises(InputError, match="no fp8"):
        IterationModel(load_model("qwen3-8b"), Partition(), FP8, get_gpu("a100"), estimator="roofline")
    with pytest.raises(InputError, match="stage: found 1"):
        QWEN.price([Batch.decode([10])], stage=1)


def test_pricing_a_decode_batch_takes_microseconds():
    """Target: 60 µs for 128 requests after warm-up; ten times that passes on a busy machine."""
    batch = [Batch.decode(np.arange(128) * 37 + 500)]
    QWEN.price(batch)
    started = time.process_time()
    for _ in range(50):
        QWEN.price(batch)
    assert (time.process_time() - started) / 50 < 600e-6


needs_engine = pytest.mark.skipif(
    not validation.MEASUREMENTS.is_dir(), reason="engine measurements are not beside the repository"
)


@needs_engine
@pytest.mark.parametrize("table", ["prefill", "decode"])
def test_iterations_agree_with_vllm_on_qwen3_8b(table):
    """Reached: prefill mean 2.8 %, worst 5.5 %; decode mean 2.9 %, worst 2.7 % but for 256 requests, 17 % slow, which
    another engine took 10 % longer for (host calibrated on these tables)."""
    points = [point for point in validation.compare("qwen3-8b") if point.table == table]
    assert len(points) == {"prefill": 7, "decode": 11}[table]
    assert np.mean([abs(point.error) for point in points]) <= 0.06
    for point in points:
        is_miss = (table, point.context, point.requests) == ("decode", 512, 256)
        assert (abs(point.error) <= 0.10) != is_miss


def test_the_replayed_experiment_admits_8192_tokens_per_step():
    """One request decodes, one has its 40 tokens, one gets its whole prompt, one the rest: 8192 - 1 - 4096 = 4095."""
    computed = np.array([4096, 4096, 0, 0])
    produced = np.array([1, 40, 0, 0])
    assert validation.schedule(computed, produced, 4096).tolist() == [1, 0, 4096, 4095]


def test_the_default_host_is_the_one_with_32_cores():
    assert load_host("xeon-vm-32") == HostModel()


@needs_engine
def test_iterations_with_experts_agree_with_vllm():
    """Qwen3-30B-A3B: mean 6 % and worst 15 % in each table, over all points and over those held out of the fit."""
    points = validation.compare("qwen3-30b-a3b")
    for table in ("prefill", "decode"):
        for chosen in (
            [p for p in points if p.table == table],
            [p for p in points if p.table == table and not p.is_calibration],
        ):
            errors = [abs(point.error) for point in chosen]
            assert max(errors) <= 0.15
            assert np.mean(errors) <= 0.06


@needs_engine
def test_fewer_than_half_of_the_points_calibrate_the_host():
    points = validation.compare("qwen3-8b")
    for table in ("prefill", "decode"):
        fitted = [point.is_calibration for point in points if point.table == table]
        assert 0 < sum(fitted) < len(fitted) / 2
