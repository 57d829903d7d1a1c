"""Iterations on attention workers and FFN workers: nothing of a model is lost or counted twice by the division."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import (
    Batch,
    InputError,
    IterationModel,
    Operator,
    Partition,
    PartitionError,
    Precision,
    attention_operators,
    get_gpu,
    head_operators,
    iteration_operators,
    load_model,
)
from aicb.estimators.selection import select_estimator
from aicb.experts.load import UniformLoad
from aicb.iteration.host import GraphMode, HostModel
from aicb.iteration.overlap import cut_batch
from aicb.iteration.workers import AttentionWorkerModel, WorkersModel
from aicb.model.worker_split import WorkerSplit
from aicb.operators.lists import ffn_counts
from aicb.operators.memory import MemoryLimits, resident_weight_bytes, weights_read_by
from aicb.operators.operator import Communication, WorkerExchange
from aicb.operators.worker_memory import attention_worker_memory, ffn_worker_memory
from aicb.operators.workers import attention_token_operators, exchange_operators, ffn_operators

H200, FP8 = get_gpu("h200"), Precision(weights="fp8")
V3 = load_model("deepseek-v3")
EVEN = WorkerSplit(Partition(dp=8), Partition(dp=8, ep=8), 1)
LIMITS = MemoryLimits(
    gpu_memory_utilization=0.9, max_batched_tokens=512, max_seqs=256, block_tokens=64, cuda_graphs=True
)


def workers_model(split: WorkerSplit, name: str = "deepseek-v3", precision: Precision = FP8) -> WorkersModel:
    model = load_model(name)
    attention = AttentionWorkerModel(split, model, precision, H200)
    return WorkersModel(split, attention, H200, select_estimator("auto", H200, precision), UniformLoad())


def operators_of(split: WorkerSplit, name: str, batch: Batch, precision: Precision) -> tuple[list[Operator], ...]:
    """Of an attention worker, and of an FFN worker, in an iteration in which every rank has the batch."""
    model, parallel = load_model(name), split.attention
    attention = [
        *attention_token_operators(model, split, precision, tokens=batch.tokens),
        *attention_operators(model, parallel, precision, batch),
        *head_operators(model, parallel, precision, rows=batch.logit_rows),
    ]
    group = batch.tokens * parallel.dp
    ffn = [
        each
        for network, count in ffn_counts(model, parallel)
        for each in ffn_operators(network, model, split, precision, group_tokens=group, is_decode=True, count=count)
    ]
    return attention, ffn


@pytest.mark.parametrize("shared_expert", ["attention", "ffn"])
def test_both_kinds_together_compute_what_one_rank_of_experts_and_attention_does(shared_expert: str) -> None:
    """DeepSeek-V3, 8 attention workers and as many FFN workers against 8 ranks that do both: the same operators in as
    many layers. Dense layers are computed for the same number of tokens, as there are as many workers."""
    split = WorkerSplit(Partition(dp=8), Partition(dp=8, ep=8), 1, "per_expert", shared_expert)  # type: ignore[arg-type]
    batch = Batch.decode([4000] * 64)
    whole = iteration_operators(V3, Partition(dp=8, ep=8), FP8, batch, group_tokens=512)
    apart = [each for part in operators_of(split, "deepseek-v3", batch, FP8) for each in part]

    def counted(listed: list[Operator]) -> Counter[tuple[str, float, float]]:
        found: Counter[tuple[str, float, float]] = Counter()
        for each in listed:
            if not isinstance(each.kernel, Communication) and each.name != "moe_reduce":
                found[each.name, each.flops, each.moved_bytes] += each.count
        return found

    assert counted(apart) == counted(whole)
    reduced = [each for each in apart if each.name == "moe_reduce"]
    assert [each.count for each in reduced] == [58]
    back = 8 + (shared_expert == "ffn")  # one row more comes back where the shared expert is there as well
    assert reduced[0].moved_bytes == 64 * 7168 * 2 * (back + 1)


def test_one_micro_batch_takes_as_long_as_ranks_that_do_both_but_for_clock_and_layers() -> None:
    """At the reference clock there is no difference; together they draw more, and run slower, than each apart."""
    batches = [Batch.decode([4000] * 64) for _ in range(8)]
    cost = workers_model(EVEN).price(batches)
    whole = IterationModel(V3, Partition(dp=8, ep=8), FP8, H200).price_device(batches)
    (only,) = cost.micro_batches
    ffn_ps = 3 * only.layers[0].compute_ps + 58 * only.layers[1].compute_ps
    apart_ps = only.attention_ps + only.embedding_ps + ffn_ps + cost.head_ps + cost.host_ps
    assert apart_ps == pytest.approx(whole.compute_ps, rel=0.03)


@pytest.mark.parametrize("batch", [Batch.decode([4000] * 64), Batch.prefill([4000])])
def test_the_host_is_that_of_all_attention_workers_which_wait_for_one_another(batch: Batch) -> None:
    """Four of them, TP 2 and DP 2. Two micro-batches are launched one after the other, and sampled once."""
    split = WorkerSplit(Partition(tp=2, dp=2), Partition(dp=4, ep=4), 2)
    model, host = workers_model(split, "qwen3-30b-a3b", Precision()), HostModel().of_workers(tp=2, dp=2)
    cost, is_decode = model.price([batch, batch]), len(batch.new_tokens) == 64
    mode = GraphMode.FULL if is_decode else GraphMode.EAGER
    prompt_us = 0.0 if is_decode else host.prompt_us + 4000 * host.prompt_token_us
    prepare_us = host.prepare_us + len(batch.new_tokens) * host.request_us + prompt_us
    launch_us = 2 * host.launching_us(mode, model.attention.launches(0)) - host.sample_us
    assert cost.prepare_ps * 1e-6 == pytest.approx(prepare_us)
    assert cost.launch_ps * 1e-6 == pytest.approx(launch_us)
    assert host.hand_over_us is not None
    assert cost.hand_over_ps * 1e-6 == pytest.approx(host.hand_over_us)


def test_all_weights_are_on_either_kind_of_worker() -> None:
    """DeepSeek-V3's weights on a rank of EP8 are those of an attention worker and of an FFN worker."""
    whole = resident_weight_bytes(V3, Partition(dp=8, ep=8), FP8)
    attention = attention_worker_memory(V3, EVEN, FP8, H200, LIMITS)
    ffn = ffn_worker_memory(V3, EVEN, FP8, H200, LIMITS)
    assert attention.weights_bytes + ffn.weights == whole
    assert ffn.weights > 4 * attention.weights_bytes


def test_attention_workers_have_more_room_for_kv_than_ranks_with_experts_and_ffn_workers_none() -> None:
    """16 GPUs: 9 GB of experts on each rank, or a fifth of the weights and no experts on 8 attention workers."""
    from aicb.operators.memory import planned_memory

    attention = attention_worker_memory(V3, EVEN, FP8, H200, LIMITS)
    both = planned_memory(V3, Partition(dp=8, ep=8), FP8, H200, LIMITS)
    expected = both.available_kv_bytes + both.weights_bytes - attention.weights_bytes
    assert attention.available_kv_bytes == pytest.approx(expected, rel=0.03)  # but for buffers
    assert attention.kv_bytes_per_token_per_rank == both.kv_bytes_per_token_per_rank


@pytest.mark.parametrize(
    ("name", "precision", "split"),
    [
        ("qwen3-32b", Precision(), WorkerSplit(Partition(dp=4), Partition(tp=4), 1)),
        ("qwen3-32b", Precision(), WorkerSplit(Partition(tp=2, dp=2), Partition(tp=2, dp=2), 1)),
        ("qwen3-30b-a3b", Precision(), WorkerSplit(Partition(dp=4), Partition(tp=4), 1)),
        ("qwen3-30b-a3b", Precision(), WorkerSplit(Partition(tp=2, dp=2), Partition(dp=4, ep=4), 1)),
    ],
)
def test_all_flops_of_a_step_are_done_once(name: str, precision: Precision, split: WorkerSplit) -> None:
    """All workers together compute what one GPU with the whole model would, dense and with experts, over whatever they
    are divided."""
    batch = Batch.decode([1000] * 32)
    attention, ffn = operators_of(split, name, batch, precision)
    whole = iteration_operators(
        load_model(name), Partition(), precision, Batch.decode([1000] * 32 * split.attention.dp)
    )

    def flops(listed: list[Operator]) -> float:
        return sum(each.count * each.flops for each in listed if not isinstance(each.kernel, Communication))

    together = split.attention.gpus * flops(attention) + split.ffn.gpus * flops(ffn)
    assert together == pytest.approx(flops(whole), rel=0.01)


def test_dense_workers_hold_the_networks_divided_and_attention_workers_the_rest() -> None:
    split = WorkerSplit(Partition(dp=4), Partition(tp=4), 1)
    model, whole = load_model("qwen3-32b"), resident_weight_bytes(load_model("qwen3-32b"), Partition(), Precision())
    attention = attention_worker_memory(model, split, Precision(), H200, LIMITS)
    ffn = ffn_worker_memory(model, split, Precision(), H200, LIMITS)
    assert attention.weights_bytes + 4 * ffn.weights == whole


def test_rows_that_travel_by_hand() -> None:
    """64 tokens of each rank of two GPUs, of which each sends half. By experts 8 copies over 8 workers; with the shared
    expert there, one more; with prompts one copy per worker that has any of 8 experts of 256, of 4 groups of 8:
    8 · (1 − Σ P(j) …) = 4 of the 8 are in reach, and each has some of them almost always."""
    split = WorkerSplit(Partition(tp=2, dp=4), Partition(dp=8, ep=8), 1)
    _, network = (kind.ffn for kind in V3.kinds)
    there, back = exchange_operators(network, V3, split, FP8, tokens=64, is_decode=True)
    assert (there.size_bytes, back.size_bytes) == (32 * 7168 * 2,) * 2
    assert isinstance(there.exchange, WorkerExchange)
    assert there.exchange.copies == (1.0,) * 8
    assert (there.exchange.attention_workers, there.exchange.is_fp8) == (8, True)
    with_shared = WorkerSplit(split.attention, split.ffn, 1, "per_expert", "ffn")
    there, _ = exchange_operators(network, V3, with_shared, FP8, tokens=64, is_decode=True)
    assert isinstance(there.exchange, WorkerExchange)
    assert there.exchange.copies == (9 / 8,) * 8
    there, _ = exchange_operators(network, V3, split, FP8, tokens=64, is_decode=False)
    assert isinstance(there.exchange, WorkerExchange)
    assert 3.6 / 8 < there.exchange.copies[0] < 0.5
    dense, _ = (kind.ffn for kind in V3.kinds)
    there, back = exchange_operators(dense, V3, split, FP8, tokens=64, is_decode=True)
    assert isinstance(there.exchange, WorkerExchange)
    assert isinstance(back.exchange, WorkerExchange)
    assert (there.exchange.copies, there.exchange.is_fp8) == ((1 / 8,) * 8, False)
    assert back.exchange.copies == (1 / 8,) * 8


def test_workers_that_divide_a_network_each_get_the_rows_and_return_their_sum_once() -> None:
    """Two groups of four: a row goes to the four of one group, and comes back in four parts."""
    split = WorkerSplit(Partition(dp=4), Partition(tp=4, dp=2), 1)
    model = load_model("qwen3-32b")
    there, back = exchange_operators(model.kinds[0].ffn, model, split, Precision(), tokens=16, is_decode=True)
    assert isinstance(there.exchange, WorkerExchange)
    assert isinstance(back.exchange, WorkerExchange)
    assert sum(there.exchange.copies) == 4.0
    assert sum(back.exchange.copies) == 1.0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 99)), min_size=1, max_size=9), st.integers(1, 5))
def test_micro_batches_are_the_batch(requests: list[tuple[int, int]], parts: int) -> None:
    """All tokens once, each with the KV before it; as equal as can be."""
    new, past = np.array(requests).T
    batch = Batch(new, new + past, len(new))
    cut = cut_batch(batch, parts)
    pairs = [(q, s) for part in cut for q, s in zip(part.new_tokens.tolist(), part.kv_tokens.tolist(), strict=True)]
    assert sum(q for q, _ in pairs) == batch.tokens
    attended = sum(q * s - q * (q - 1) // 2 for q, s in pairs)
    assert attended == sum(int(q * s - q * (q - 1) // 2) for q, s in zip(new, new + past, strict=True))
    sizes = [part.tokens for part in cut]
    if batch.is_decode.all():
        sizes = [len(part.new_tokens) for part in cut]
    assert max(sizes) - min(sizes) <= 1


def test_small_batches_have_as_many_micro_batches_as_requests() -> None:
    split = WorkerSplit(Partition(dp=8), Partition(dp=8, ep=8), 3)
    idle = [Batch.empty()] * 7
    assert len(workers_model(split).price([Batch.decode([100] * 2), *idle]).micro_batches) == 2
    assert len(workers_model(split).price([Batch.decode([100] * 9), *idle]).micro_batches) == 3


@pytest.mark.parametrize(
    ("attention", "ffn", "micro_batches", "message"),
    [
        (Partition(pp=2), Partition(), 2, "pp: found 2"),
        (Partition(dp=2, ep=2), Partition(), 2, "ep: found 2, expected 1, as experts are on FFN workers"),
        (Partition(), Partition(tp=4, ep=4), 2, "ffn.ep: found 4 with tp 4, dp 1"),
        (Partition(), Partition(), 0, "ffn.micro_batches: found 0"),
    ],
)
def test_divisions_that_cannot_be_are_refused(
    attention: Partition, ffn: Partition, micro_batches: int, message: str
) -> None:
    with pytest.raises(PartitionError, match=message):
        WorkerSplit(attention, ffn, micro_batches)


def test_models_that_cannot_be_divided_so_are_refused() -> None:
    with pytest.raises(InputError, match=r"ffn\.ep: found 2, expected 1, as qwen3-32b has no routed experts"):
        WorkerSplit(Partition(), Partition(dp=2, ep=2)).check(load_model("qwen3-32b"))
    with pytest.raises(InputError, match="expected a divisor of the 256 expert slots"):
        WorkerSplit(Partition(), Partition(dp=7, ep=7)).check(V3)
    with pytest.raises(InputError, match="shared_expert: found ffn"):
        WorkerSplit(Partition(), Partition(), 1, "per_expert", "ffn").check(load_model("qwen3-30b-a3b"))


def test_a_kernel_of_whole_experts_is_refused_where_each_worker_has_some() -> None:
    attention = AttentionWorkerModel(EVEN, V3, FP8, H200, experts_kernel="triton")
    with pytest.raises(InputError, match="experts_kernel: found triton with ep 8"):
        WorkersModel(EVEN, attention, H200, select_estimator("auto", H200, FP8), UniformLoad())


def test_experts_that_do_not_fit_are_refused() -> None:
    split = WorkerSplit(Partition(dp=8), Partition(dp=4, ep=4), 1)
    with pytest.raises(InputError, match=r"164\.\d GB\) per GPU \(attention workers tp 1, dp 8; FFN workers"):
        ffn_worker_memory(V3, split, FP8, H200, LIMITS)


def test_weights_are_counted_once_per_name() -> None:
    listed = operators_of(EVEN, "deepseek-v3", Batch.decode([10] * 4), FP8)[1]
    assert weights_read_by([*listed, *listed]) == weights_read_by(listed)
