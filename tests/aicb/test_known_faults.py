"""Faults that earlier compute models of inference had, numbered; none of them may come back.

Where another test file shows the property already, ``ELSEWHERE`` names the test and nothing is repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aicb import Batch, Operator, Partition, Precision, built_in_models, get_gpu, instance_memory, load_model
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.formats.exports import ExportJob
from aicb.formats.operator_table import RowReader, parse
from aicb.iteration.host import HostModel
from aicb.iteration.model import PHASES, IterationModel, select_estimator
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.operators.memory import resident_weight_bytes
from aicb.operators.operator import Phase
from tests.aicb.operator_rows import FP8 as FP8_WEIGHTS
from tests.aicb.operator_rows import ONE, listed

H200, FP8 = get_gpu("h200"), Precision("fp8")
DEEPSEEK = load_model("deepseek-v3")
HERE = Path(__file__)

ELSEWHERE = {
    2: (
        "estimators/test_estimators::test_mla_prefill_grows_with_the_square_of_the_prompt",
        "operators/test_operators::test_deepseek_decode_is_absorbed_and_prefill_expanded",
    ),
    3: (
        "estimators/test_estimators::test_prefill_costs_far_more_than_one_decode_at_the_same_length",
        "operators/test_attention::test_prefill_attention_has_as_many_query_rows_as_tokens",
    ),
    4: (
        "operators/test_attention::test_gated_delta_prefill_processes_every_token",
        "operators/test_attention::test_gated_delta_decode_moves_one_state_per_sequence_whatever_its_length",
        "operators/test_operators::test_qwen3_next_layers_have_gated_queries_and_linear_attention",
    ),
    5: (
        "model/test_architecture::test_parameters_and_kv_match_the_published_totals",
        "model/test_architecture::test_qwen3_next_attends_fully_in_every_fourth_layer",
    ),
    6: ("operators/test_operators::test_hidden_norms_act_on_hidden_columns_and_head_norms_on_head_dim",),
    12: (
        "experts/test_load::test_iterations_are_priced_at_the_slowest_rank",
        "experts/test_load::test_the_slowest_rank_costs_what_was_published",
    ),
    13: (
        "operators/test_moe::test_one_token_has_a_positive_fraction_of_a_row_on_every_rank",
        "experts/test_load::test_one_token_reaches_at_least_one_row_on_the_slowest_rank",
    ),
    15: ("estimators/test_estimators::test_decode_bytes_are_the_sum_of_lengths_not_batch_times_sum",),
    16: ("iteration/test_iteration::test_a_chunk_costs_more_with_a_longer_past",),
    17: (
        "iteration/test_iteration::test_a_mixed_batch_is_priced_as_mixed",
        "operators/test_attention::test_attention_flops_of_a_batch_are_those_of_its_requests",
    ),
    18: ("iteration/test_iteration::test_a_decode_step_reads_all_weights_and_pays_kernel_floors",),
    19: ("formats/test_operator_table::test_a_missing_measurement_fails_on_request_and_names_the_nearest",),
    21: (
        "estimators/test_estimators::test_a_far_shape_is_flagged_and_names_the_nearest_measured_one",
        "estimators/test_estimators::test_estimates_are_flagged_beyond_the_reach_of_the_table",
    ),
    23: (
        "estimators/test_estimators::test_no_time_is_below_the_roofline",
        "iteration/test_iteration::test_prefill_is_not_below_the_flops_bound",
        "iteration/test_iteration::test_deepseek_v3_takes_tens_of_milliseconds",
    ),
    24: (
        "operators/test_operators::test_tensor_parallelism_adds_two_all_reduces_per_layer",
        "iteration/test_iteration::test_tensor_parallelism_returns_two_all_reduces_per_layer",
    ),
    26: (
        "iteration/test_overlap::test_overlap_is_off_by_default",
        "iteration/test_overlap::test_the_shared_expert_hides_behind_the_routed_experts",
        "iteration/test_layer_schedule::test_halves_take_at_least_the_longer_resource_and_at_most_both",
    ),
    29: ("experts/test_load::test_iteration_times_repeat_with_the_seed",),
}
"""Number of the fault → the tests that show its absence."""


def test_every_fault_has_a_test() -> None:
    """Each of the 30 numbers opens a docstring here or names tests that exist."""
    here = {int(number) for number in re.findall(r'^    """(\d+)\. ', HERE.read_text(), flags=re.MULTILINE)}
    assert here | set(ELSEWHERE) == set(range(1, 31))
    assert here & set(ELSEWHERE) == set()
    for names in ELSEWHERE.values():
        for name in names:
            file, _, function = name.partition("::")
            assert f"def {function}(" in (HERE.parent / f"{file}.py").read_text(), name


def engine_us(operators: Sequence[Operator], precision: Precision = FP8) -> float:
    """Time of computing operators, counts included, as inside a model."""
    estimator = select_estimator("auto", H200, precision)
    return sum(op.count * estimator.price(op.kernel).time_us for op in operators if op.phase is not Phase.COMMUNICATION)


def test_the_first_ffn_of_deepseek_is_nine_shared_experts_wide_in_weights_and_time() -> None:
    """1. Intermediate 18432 against 2048: nine times the weights. At 64 tokens the H200 measured 68.4 + 39.6 µs against
    11.6 + 6.6 µs: 5.9 times as long, as launches weigh more on the small kernels."""
    operators = listed("deepseek-v3", ONE, Batch.decode([1000] * 64), FP8_WEIGHTS)
    dense = [replace(operators[name], count=1) for name in ("ffn_gate_up", "ffn_down")]
    shared = [replace(operators[name], count=1) for name in ("shared_gate_up", "shared_down")]
    assert sum(op.weight_elements for op in dense) == 9 * sum(op.weight_elements for op in shared)
    assert engine_us(dense) / engine_us(shared) == pytest.approx(108.0 / 18.2, rel=0.1)


ENDS = "embedding final_norm lm_head sampling input_norm post_attention_norm attention_quant o o_quant kv_write rope"
HEADS = "qkv q_norm k_norm"
DENSE = "ffn_quant ffn_gate_up ffn_silu_mul ffn_down"
EXPERTS = "router topk moe_quant moe_dispatch moe_permute moe_gate_up moe_silu_mul moe_down moe_combine moe_reduce"
SHARED = "shared_quant shared_gate_up shared_silu_mul shared_down shared_add"
LATENT = "qkv_a q_a_norm kv_a_norm q_b_quant q_b"
EXPANDED = (
    "kv_b_quant kv_b kv_b_assemble_k past_latent_gather past_kv_b past_kv_b_quant past_kv_b_assemble_k past_merge"
)
LINEAR = "gdn_qkvz gdn_ba gdn_conv gdn_gates gdn_gated_norm gdn_out_quant gdn_out"


@pytest.mark.parametrize(
    ("name", "always", "in_decode", "in_prefill"),
    [
        ("llama-3.1-8b", f"{ENDS} qkv {DENSE}", "decode_attention", "prefill_attention"),
        ("qwen3-8b", f"{ENDS} {HEADS} {DENSE}", "decode_attention", "prefill_attention"),
        ("qwen3-30b-a3b", f"{ENDS} {HEADS} {EXPERTS}", "decode_attention", "prefill_attention moe_unpermute"),
        (
            "deepseek-v3",
            f"{ENDS} {LATENT} {DENSE} {EXPERTS} {SHARED}",
            "q_absorb mla_decode o_unabsorb",
            f"{EXPANDED} prefill_attention moe_unpermute",
        ),
        (
            "qwen3-next-80b-a3b",
            f"{ENDS} {HEADS} output_gate {LINEAR} {EXPERTS} {SHARED} shared_gate shared_gate_mul",
            "decode_attention gdn_decode",
            "prefill_attention gdn_prefill moe_unpermute",
        ),
    ],
)
def test_the_operators_of_a_model_are_all_listed(name: str, always: str, in_decode: str, in_prefill: str) -> None:
    """7. Norms, RoPE, quantisation, router, top-k, activation, KV write, embedding, head and sampling included: fp8,
    experts over two data-parallel ranks, a chunk of prompt with a past."""
    partition = Partition(dp=2, ep=2) if "router" in always else ONE
    decode = listed(name, partition, Batch.decode([100] * 4), FP8_WEIGHTS)
    prefill = listed(name, partition, Batch.prefill([50], [20]), FP8_WEIGHTS)
    assert set(decode) == set(f"{always} {in_decode}".split())
    assert set(prefill) == set(f"{always} {in_prefill}".split())


def layer_us(operators: dict[str, Operator], without: str = "") -> float:
    """Time of one of the MoE layers."""
    kept = [op for name, op in operators.items() if name.startswith("moe_") and name != without]
    return engine_us([replace(op, count=1) for op in kept])


@pytest.mark.parametrize("left_out", ["moe_quant", "moe_permute", "moe_silu_mul", "moe_unpermute", "moe_reduce"])
def test_every_small_kernel_between_grouped_products_takes_time(left_out: str) -> None:
    """8. A layer without its permutation, activation, quantisation or sum is faster."""
    operators = listed("deepseek-v3", Partition(dp=8, ep=8), Batch.prefill([1000]), FP8_WEIGHTS)
    assert layer_us(operators, without=left_out) < layer_us(operators) - 1.0


@pytest.mark.parametrize("layout", ["masked", "contiguous"])
def test_a_thousand_rows_on_one_expert_are_priced(layout: str) -> None:
    """9. The capacity of an expert is no constant: 1000 rows on 1 of 8 experts have a price, above that of 100."""
    estimator = select_estimator("auto", H200, FP8)
    one = GroupedGemm(1000, 8, 1, 4096, 7168, "fp8", "masked" if layout == "masked" else "contiguous", 1000)
    fewer = replace(one, rows=100, largest_group_rows=100)
    assert estimator.price(one).time_us > estimator.price(fewer).time_us > 0


def test_physical_slots_are_stored_and_logical_experts_routed() -> None:
    """11. 288 slots for 256 experts on 32 ranks: 9 instead of 8 experts per rank and layer, 58·44,040,192 elements more
    with 4 bytes of scale per 128x128 block; routing stays over 256."""
    plain, copies = (Partition(dp=32, ep=32, redundant_experts=more) for more in (0, 32))
    expert = 44_040_192 + 4 * 44_040_192 // 128**2
    more = resident_weight_bytes(DEEPSEEK, copies, FP8) - resident_weight_bytes(DEEPSEEK, plain, FP8)
    assert more == 58 * expert
    memory = [instance_memory(DEEPSEEK, partition, FP8, H200) for partition in (plain, copies)]
    assert memory[1].weights_bytes - memory[0].weights_bytes == 58 * expert
    assert memory[1].num_kv_blocks < memory[0].num_kv_blocks


def test_splitting_a_prompt_changes_its_attention_but_not_its_projections() -> None:
    """14. 8192 tokens at once have 33.6 M pairs, two prompts of 4096 half as many."""
    model = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), replace(H200, clock=None))
    one, two = (model.price([Batch.prefill(prompts)]) for prompts in ([8192], [4096, 4096]))
    dense, attention = PHASES.index(Phase.DENSE), PHASES.index(Phase.ATTENTION)
    assert one.phase_ps[dense] == two.phase_ps[dense]
    assert 1.6 < one.phase_ps[attention] / two.phase_ps[attention] < 2.2


def test_expert_rows_do_not_depend_on_how_attention_is_divided() -> None:
    """10. 512 distinct tokens on 16 ranks: 16 groups of 1 and 4 of 4 GPUs price the same kernels of experts. At a fixed
    clock: attention, divided otherwise, loads it differently."""
    model_of = {
        (tp, dp): IterationModel(
            DEEPSEEK, Partition(tp=tp, dp=dp, ep=16), FP8, replace(H200, clock=None), cuda_graphs=False
        )
        for tp, dp in ((1, 16), (4, 4))
    }
    experts = PHASES.index(Phase.EXPERTS)
    times = [
        model.price([Batch.decode([2000] * (512 // dp))] * dp).phase_ps[experts] for (_, dp), model in model_of.items()
    ]
    assert times[0] == times[1]


def test_no_rank_runs_ahead_of_the_slowest() -> None:
    """25. Four ranks with unlike batches last at least as long as any of them with its own batch on all ranks."""
    model = IterationModel(DEEPSEEK, Partition(dp=4, ep=4), FP8, H200)
    batches = [Batch.decode(np.full(size, length)) for size, length in ((8, 900), (8, 9000), (4, 100), (1, 30_000))]
    together = model.price(batches).compute_ps
    padded = [model.price([batch] * 4).compute_ps for batch in batches[:2]]
    assert together >= max(padded) - 1


def test_the_wire_is_no_part_of_memory() -> None:
    """27. Memory follows the formats of weights and KV alone: halving the KV format halves its bytes, weights stay."""
    qwen = load_model("qwen3-8b")
    full, half = (instance_memory(qwen, Partition(), Precision(kv=kv), H200) for kv in ("bf16", "fp8"))
    assert full.weights_bytes == half.weights_bytes
    assert full.kv_bytes_per_token_per_rank == 2 * half.kv_bytes_per_token_per_rank


def test_decode_attention_is_interpolated_in_batch_and_in_length() -> None:
    """20. Between measured batches and lengths the time rises along both axes, and stays between its neighbours."""
    estimator = InterpolationEstimator(H200, timing="graph")

    def time_us(batch: int, kv: int) -> float:
        return estimator.price(DecodeAttention(np.full(batch, kv), 32, 8, 128)).time_us

    lengths = [time_us(16, kv) for kv in (4096, 5000, 6000, 7000, 8192)]
    batches = [time_us(batch, 8192) for batch in (16, 20, 24, 28, 32)]
    for times in (lengths, batches):
        assert times == sorted(times)
        assert len(set(times)) == len(times)


BASE = {"name": "qwen3-30b-a3b", "tp": 1, "ep": 8, "dp": 8, "pp": 1, "batch": 16, "kv": 2000, "is_decode": True}


NO_LAUNCHING = HostModel(eager_launch_us=0.0)
"""Launching layer by layer takes longer than small batches and would hide what they cost."""


def iteration_ps(
    name: str, batch: int, kv: int, is_decode: bool, weights: str = "bf16", gpu: str = "h200", **sizes: int
) -> int:
    """A decode of ``batch`` requests, or prefills of ``kv`` tokens each, on every rank."""
    partition, precision = Partition(**sizes), Precision("fp8" if weights == "fp8" else "bf16")
    model = IterationModel(load_model(name), partition, precision, get_gpu(gpu), cuda_graphs=False, host=NO_LAUNCHING)
    one = Batch.decode([kv] * batch) if is_decode else Batch.prefill([kv] * batch)
    return model.price([one] * partition.dp).compute_ps


@pytest.fixture(scope="module")
def base_ps() -> int:
    return iteration_ps(**BASE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "qwen3-coder-480b-a35b"},
        {"tp": 2, "dp": 4},
        {"dp": 4, "ep": 4},
        {"ep": 1},
        {"pp": 2},
        {"batch": 17},
        {"kv": 2500},
        {"is_decode": False},
        {"weights": "fp8"},
        {"gpu": "h100"},
    ],
    ids=str,
)
def test_no_price_is_served_to_another_question(change: dict[str, object], base_ps: int) -> None:
    """22. Model, t, p, e, d, batch, length, phase, format and device each change the time, before and after another
    was asked for: caches tell them apart."""
    assert iteration_ps(**{**BASE, **change}) != base_ps  # type: ignore[arg-type]
    assert iteration_ps(**BASE) == base_ps  # type: ignore[arg-type]


def test_names_of_exported_files_carry_every_size() -> None:
    """22. Also the real number of pipeline stages, which AICB's writer leaves at 1."""
    job = ExportJob(DEEPSEEK, Partition(tp=2, ep=8, dp=4, pp=3), FP8, "decode", 5, 700)
    assert job.stem("bs") == "DeepSeek-671B-world_size24-tp2-pp3-ep8-bs5-seq700-decode"


@pytest.mark.parametrize("name", built_in_models())
def test_memory_counts_the_kv_of_the_model(name: str) -> None:
    """28. What one GPU plans per token is the model's own size: one function serves memory, scheduler and transfers."""
    model, roomy = load_model(name), replace(H200, hbm_bytes=10**13)
    for precision in (Precision(kv="bf16"), Precision(kv="fp8")):
        plan = instance_memory(model, ONE, precision, roomy)
        assert plan.kv_bytes_per_token_per_rank == model.kv_bytes_per_token(precision.kv)


@pytest.mark.parametrize(("text", "value"), [("64", 64), ("6.4e1", 64), ("64e+00", 64), ("6400e-2", 64)])
def test_numbers_parse_with_and_without_exponents(text: str, value: int) -> None:
    """30. Tables of other programs write 1e-05 as well as 0.00001."""
    row = {"op": "gemm", "m": text, "n": "4096", "k": "1024", "dtype": "bf16"}
    work = parse(RowReader(row, "t.csv:2"))
    assert work == parse(RowReader({**row, "m": str(value)}, "t.csv:2"))
    assert RowReader({"bytes": "1e-05"}, "t.csv:2").number("bytes") == 0.00001
