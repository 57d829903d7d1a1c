"""MFU and memory bandwidth against FLOPs and bytes worked out from the model."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Batch, Partition, Precision, get_gpu, iteration_operators, load_model
from aicb.model.architecture import GroupedQueryAttention
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.utilisation import Activity, RankWork, _moved_bytes

MODEL = load_model("qwen3-8b")
H200 = get_gpu("h200")
RANK = RankWork(MODEL, Partition(tp=1, ep=1, dp=1, pp=1), Precision("bf16", "bf16"), H200)


def activity(iterations: int, requests: int, new_tokens: int, kv_tokens: int, token_pairs: float) -> Activity:
    """Of equal iterations; all but the first are per iteration."""
    sums = (iterations * amount for amount in (requests, new_tokens, kv_tokens, token_pairs))
    return Activity(iterations, 1.0, *sums, request_s=1.0)  # type: ignore[misc]


def linear_flops(tokens: int, logit_rows: int) -> float:
    """Two per parameter of layers and token, the LM head for rows that give logits: embeddings are looked up."""
    embedding = MODEL.vocab * MODEL.hidden
    return 2.0 * tokens * (MODEL.parameters - 2 * embedding) + 2.0 * logit_rows * embedding


def attention_flops(token_pairs: float) -> float:
    """Products with keys and with values: 4 per pair, head and element of a head."""
    attention = MODEL.layers[0].attention
    assert isinstance(attention, GroupedQueryAttention)
    return 4.0 * token_pairs * attention.heads * attention.head_dim * len(MODEL.layers)


def test_a_prompt_takes_two_flops_per_parameter_and_token_and_its_pairs() -> None:
    tokens = 4096
    pairs = tokens * (tokens + 1) / 2
    work = RANK.of(activity(3, 1, tokens, tokens, pairs))
    expected = 3 * (linear_flops(tokens, 1) + attention_flops(pairs)) / H200.peak_flops["bf16"]
    assert work.compute_s == pytest.approx(expected, rel=0.03)  # norms, RoPE and activations come on top


def test_a_decode_reads_the_weights_and_the_kv_of_its_requests() -> None:
    requests, context = 64, 2048
    work = RANK.of(activity(10, requests, requests, requests * context, requests * context))
    weights = 2.0 * (MODEL.parameters - MODEL.vocab * MODEL.hidden)
    cache = MODEL.kv_bytes_per_token("bf16") * requests * context
    assert work.memory_s == pytest.approx(10 * (weights + cache) / H200.hbm_bytes_per_s, rel=0.05)
    flops = linear_flops(requests, requests) + attention_flops(requests * context)
    assert work.compute_s == pytest.approx(10 * flops / H200.peak_flops["bf16"], rel=0.03)


@pytest.mark.parametrize("model", ["qwen3-8b", "deepseek-v3"])
def test_tokens_that_verify_drafts_read_the_kv_of_their_request_once(model: str) -> None:
    """Weights and KV as one token of each request, projections twice: not the expanded attention of a prompt."""
    requests, context = 16, 4096
    rank = RankWork(load_model(model), Partition(tp=8), Precision("bf16", "bf16"), H200)
    one = rank.of(activity(1, requests, requests, requests * context, requests * context), are_decodes=True)
    pairs = requests * (2 * context - 1)
    two = rank.of(activity(1, requests, 2 * requests, requests * context, pairs), are_decodes=True)
    assert two.compute_s == pytest.approx(2 * one.compute_s, rel=0.01)
    experts = {"qwen3-8b": 1.0, "deepseek-v3": 1.6}[model]  # further tokens choose further experts, up to so many times
    assert one.memory_s < two.memory_s < 1.05 * experts * one.memory_s


def test_decodes_beside_a_prompt_do_not_expand_the_latents_of_their_past() -> None:
    """A prompt of 1,000 tokens with 24 decodes of DeepSeek-V3 at 4,096: the operators of just that batch."""
    model, partition, precision = load_model("deepseek-v3"), Partition(tp=8), Precision("fp8", "bf16")
    new_tokens, kv_tokens = [1000, *[1] * 24], [1000, *[4096] * 24]
    pairs = 1000 * 1001 / 2 + 24 * 4096
    mean = Activity(10, 1.0, 250, 10 * 1024, 10 * sum(kv_tokens), 10 * pairs, 1.0, decodes=240, decode_kv=240 * 4096)
    found = RankWork(model, partition, precision, H200).of(mean)
    batch = Batch(np.array(new_tokens), np.array(kv_tokens), 25)
    listed = iteration_operators(model, partition, precision, batch)
    seconds = sum(each.count * each.flops / H200.peak_flops[each.cost.dtype] for each in listed)
    assert found.compute_s == pytest.approx(10 * seconds, rel=1e-6)
    assert found.moved_bytes == pytest.approx(10 * sum(each.count * _moved_bytes(each) for each in listed), rel=1e-6)


def test_decodes_beside_prompts_are_counted_in_a_run() -> None:
    rows = [(10_000 * number, 500, 200) for number in range(20)]
    result = simulate(config([pool("p", "mixed")], output={"iterations": True}), rows)
    columns = result.iterations.columns()
    with_prompts = columns["prefill_tokens"] > 0
    beside, alone = result.iterations.activity
    assert beside["decodes"].sum() == columns["decode_tokens"][with_prompts].sum() > 0
    assert alone["decodes"].sum() == alone["requests"].sum()
    assert alone["decode_kv"].sum() == alone["kv_tokens"].sum()


def test_equal_work_in_other_batches_is_equal_flops() -> None:
    """A chunk of 1,000 tokens with 24 decodes, and the mean of it: as many tokens and pairs."""
    new_tokens, kv_tokens = np.array([1000, *[1] * 24]), np.array([1000, *[500] * 24])
    pairs = float((new_tokens * kv_tokens - new_tokens * (new_tokens - 1) / 2).sum())
    found = RANK.of(activity(1, 25, int(new_tokens.sum()), int(kv_tokens.sum()), pairs))
    expected = (linear_flops(1024, 25) + attention_flops(pairs)) / H200.peak_flops["bf16"]
    assert found.compute_s == pytest.approx(expected, rel=0.03)


def test_nothing_is_computed_by_a_pool_without_iterations() -> None:
    assert RANK.of(activity(0, 0, 0, 0, 0.0)).compute_s == 0.0


def test_bytes_of_experts_are_those_of_batches_of_every_size() -> None:
    """Single requests, then a hundred at once: the sum over iterations, where the mean one of 5 requests reads half as
    much again, as two batches do not choose the experts of one twice as large."""
    rows = [(2_000_000 * number, 400, 120) for number in range(20)]
    rows += [(40_000_000 + 50_000 * number, 400, 120) for number in range(100)]
    result = simulate(
        config([pool("p", "prefill"), pool("d", "decode")], model="qwen3-30b-a3b", output={"iterations": True}), rows
    )
    columns = result.iterations.columns()
    decodes = columns["prefill_tokens"] == 0
    requests, counts = np.unique(columns["decode_tokens"][decodes], return_counts=True)
    moved_bytes = [decoding_bytes(int(each)) for each in requests]
    busy_s = float((columns["compute_s"] + columns["communication_s"])[decodes].sum())
    moved_s = float(counts @ moved_bytes) / H200.hbm_bytes_per_s
    by_size, summed = result.iterations.activity_by_size[1], result.iterations.activity[1]
    assert len(np.unique(by_size["size"])) > 6
    assert summed["iterations"].tolist() == [0, counts.sum()]
    assert by_size["new_tokens"].sum() == summed["new_tokens"][1] == counts @ requests
    found = result.summary.pools[1].memory_use
    assert found == pytest.approx(moved_s / busy_s, rel=0.06)
    mean_s = decoding_bytes(round(counts @ requests / counts.sum())) * counts.sum() / H200.hbm_bytes_per_s
    assert mean_s / moved_s > 1.4


def decoding_bytes(requests: int) -> float:
    model = load_model("qwen3-30b-a3b")
    listed = iteration_operators(model, Partition(), Precision(), Batch.decode([460] * requests))
    return sum(each.count * _moved_bytes(each) for each in listed)
