"""Properties that earlier compute models of inference did not have and that no other file here asserts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb import Batch, Partition, Precision, get_gpu, instance_memory, load_model
from aicb.iteration import PHASES, IterationModel, select_estimator
from aicb.memory import resident_weight_bytes
from aicb.operators import GroupedGemm, Phase

H200, FP8 = get_gpu("h200"), Precision("fp8")
DEEPSEEK = load_model("deepseek-v3")


@pytest.mark.parametrize("layout", ["masked", "contiguous"])
def test_a_thousand_rows_on_one_expert_are_priced(layout: str) -> None:
    """The capacity of an expert is no constant: 1000 rows on 1 of 8 experts have a price, above that of 100."""
    estimator = select_estimator("auto", H200, FP8)
    one = GroupedGemm(1000, 8, 1, 4096, 7168, "fp8", "masked" if layout == "masked" else "contiguous", 1000)
    fewer = replace(one, rows=100, largest_group_rows=100)
    assert estimator.price(one).time_us > estimator.price(fewer).time_us > 0


def test_physical_slots_are_stored_and_logical_experts_routed() -> None:
    """288 slots for 256 experts on 32 ranks: 9 instead of 8 experts per rank and layer, 58·44,040,192 elements more
    with 4 bytes of scale per 128x128 block; routing stays over 256."""
    plain, copies = (Partition(dp=32, ep=32, redundant_experts=more) for more in (0, 32))
    expert = 44_040_192 + 4 * 44_040_192 // 128**2
    more = resident_weight_bytes(DEEPSEEK, copies, FP8) - resident_weight_bytes(DEEPSEEK, plain, FP8)
    assert more == 58 * expert
    memory = [instance_memory(DEEPSEEK, partition, FP8, H200) for partition in (plain, copies)]
    assert memory[1].weights_bytes - memory[0].weights_bytes == 58 * expert
    assert memory[1].num_kv_blocks < memory[0].num_kv_blocks


def test_splitting_a_prompt_changes_its_attention_but_not_its_projections() -> None:
    """8192 tokens at once have 33.6 M pairs, two prompts of 4096 half as many."""
    model = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), H200)
    one, two = (model.price([Batch.prefill(prompts)]) for prompts in ([8192], [4096, 4096]))
    dense, attention = PHASES.index(Phase.DENSE), PHASES.index(Phase.ATTENTION)
    assert one.phase_ps[dense] == two.phase_ps[dense]
    assert 1.6 < one.phase_ps[attention] / two.phase_ps[attention] < 2.2


def test_expert_rows_do_not_depend_on_how_attention_is_divided() -> None:
    """512 distinct tokens on 16 ranks: 16 groups of 1, 4 of 4 and 1 of 16 GPUs price the same grouped GEMMs."""
    model_of = {
        (tp, dp): IterationModel(DEEPSEEK, Partition(tp=tp, dp=dp, ep=16), FP8, H200, cuda_graphs=False)
        for tp, dp in ((1, 16), (4, 4))
    }
    experts = PHASES.index(Phase.EXPERTS)
    times = [
        model.price([Batch.decode([2000] * (512 // dp))] * dp).phase_ps[experts] for (_, dp), model in model_of.items()
    ]
    assert times[0] == pytest.approx(times[1], rel=0.01)  # router, quantisation and sums run over own tokens


def test_no_rank_runs_ahead_of_the_slowest() -> None:
    """Four ranks with unlike batches last at least as long as any of them with its own batch on all ranks."""
    model = IterationModel(DEEPSEEK, Partition(dp=4, ep=4), FP8, H200)
    batches = [Batch.decode(np.full(size, length)) for size, length in ((8, 900), (8, 9000), (4, 100), (1, 30_000))]
    together = model.price(batches).compute_ps
    padded = [model.price([batch] * 4).compute_ps for batch in batches[:2]]
    assert together >= max(padded) - 1


def test_the_wire_is_no_part_of_memory() -> None:
    """Memory follows the formats of weights and KV alone: halving the KV format halves its bytes, weights stay."""
    qwen = load_model("qwen3-8b")
    full, half = (instance_memory(qwen, Partition(), Precision(kv=kv), H200) for kv in ("bf16", "fp8"))
    assert full.weights_bytes == half.weights_bytes
    assert full.kv_bytes_per_token_per_rank == 2 * half.kv_bytes_per_token_per_rank
