"""Attention operators: functions of the (q, S) vector, priced per request by its phase."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import (
    Batch,
    Operator,
    Partition,
    Precision,
    attention_operators,
    load_model,
)
from tests.aicb.operator_rows import BF16, ONE, elementwise, gemm_shape


def compute(operators: list[Operator]) -> list[tuple[str, float, float]]:
    return [(op.name, op.count * op.flops, op.count * op.moved_bytes) for op in operators]


REQUESTS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9000)), min_size=1, max_size=6)
ATTENTION_MODELS = st.sampled_from(["qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b"])


def batch_of(requests: list[tuple[int, int]]) -> Batch:
    new = np.array([q for q, _ in requests], dtype=np.int64)
    return Batch(new, new + np.array([past for _, past in requests], dtype=np.int64), len(requests))


@given(name=ATTENTION_MODELS, requests=REQUESTS)
def test_attention_does_not_depend_on_the_order_of_requests(name: str, requests: list[tuple[int, int]]) -> None:
    model = load_model(name)
    there = attention_operators(model, ONE, BF16, batch_of(requests))
    back = attention_operators(model, ONE, BF16, batch_of(requests[::-1]))
    assert compute(there) == compute(back)


@given(name=ATTENTION_MODELS, requests=REQUESTS)
def test_attention_flops_of_a_batch_are_those_of_its_requests(name: str, requests: list[tuple[int, int]]) -> None:
    """Mixed batches too: prefills and decodes are priced each by their phase."""
    model = load_model(name)
    together = attention_operators(model, ONE, BF16, batch_of(requests))
    apart = [op for request in requests for op in attention_operators(model, ONE, BF16, batch_of([request]))]
    assert sum(op.count * op.flops for op in together) == pytest.approx(sum(op.count * op.flops for op in apart))


def test_a_mixed_batch_lists_both_phases() -> None:
    mixed = batch_of([(100, 50), (1, 700), (1, 800)])
    names = {op.name for op in attention_operators(load_model("qwen3-8b"), ONE, BF16, mixed)}
    assert names == {"prefill_attention", "decode_attention"}
    names = {op.name for op in attention_operators(load_model("deepseek-v3"), ONE, BF16, mixed)}
    assert {"mla_decode", "prefill_attention", "kv_b", "past_kv_b", "past_merge"} < names
    names = {op.name for op in attention_operators(load_model("qwen3-next-80b-a3b"), ONE, BF16, mixed)}
    assert {"gdn_prefill", "gdn_decode", "prefill_attention", "decode_attention"} < names


def test_causal_prefill_counts_each_unmasked_pair_once() -> None:
    """q = 3 after 2 past tokens sees 3 + 4 + 5 = 12 keys: 12 · 2 products · 2 FLOP · 32 heads · 128."""
    prefill = attention_operators(load_model("qwen3-8b"), ONE, BF16, Batch.prefill([3], [2]))[0]
    assert prefill.flops == 12 * 2 * 2 * 32 * 128


def test_prefill_attention_has_as_many_query_rows_as_tokens() -> None:
    """4096 causal query rows see on average half of the keys that one decoded token sees: 2048.5 times its FLOPs."""
    model = load_model("qwen3-235b-a22b")
    prefill = attention_operators(model, ONE, BF16, Batch.prefill([4096]))[0]
    decode = attention_operators(model, ONE, BF16, Batch.decode([4096]))[0]
    assert prefill.flops == decode.flops * 2048.5


def test_mla_prefill_flops_grow_with_the_square_of_the_prompt() -> None:
    """Four times the tokens, sixteen times the pairs; heads are 192 wide for keys and 128 for values."""
    model = load_model("deepseek-v3")
    by_length = {
        length: {op.name: op for op in attention_operators(model, ONE, BF16, Batch.prefill([length]))}
        for length in (4096, 16384)
    }
    short, long = by_length[4096]["prefill_attention"], by_length[16384]["prefill_attention"]
    assert short.flops == 2 * 128 * (192 + 128) * 4096 * 4097 / 2
    assert 15.9 < long.flops / short.flops < 16


def test_splitting_a_prompt_in_two_requests_changes_prefill_attention() -> None:
    model = load_model("qwen3-8b")
    whole = attention_operators(model, ONE, BF16, Batch.prefill([8192]))[0]
    halves = attention_operators(model, ONE, BF16, Batch.prefill([4096, 4096]))[0]
    assert 1.99 < whole.flops / halves.flops < 2.0


@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v3"])
def test_a_chunk_costs_more_the_longer_its_past(name: str) -> None:
    model = load_model(name)
    costs = []
    for past in (0, 1000, 8000):
        operators = attention_operators(model, ONE, BF16, Batch.prefill([512], [past]))
        costs.append((sum(op.flops for op in operators), sum(op.moved_bytes for op in operators)))
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


def test_latents_of_past_tokens_are_expanded_again() -> None:
    operators = {
        op.name: op
        for op in attention_operators(load_model("deepseek-v3"), ONE, BF16, Batch.prefill([100, 50], [1000, 0]))
    }
    assert gemm_shape(operators["kv_b"]) == (150, 32768, 512)
    assert gemm_shape(operators["past_kv_b"]) == (1000, 32768, 512)
    assert elementwise(operators["past_merge"]).rows == 100


@pytest.mark.parametrize(("name", "query_elements"), [("qwen3-30b-a3b", 32 * 128), ("deepseek-v3", 128 * 576)])
def test_decode_reads_the_sum_of_kv_lengths_in_its_format(name: str, query_elements: int) -> None:
    """KV bytes follow Σ S_i: doubling the batch doubles them; fp8 halves them and those of both queries."""
    model = load_model(name)
    kv_per_layer = model.kv_bytes_per_token() / len(model.layers)

    def moved(batch: Batch, precision: Precision) -> float:
        operators = attention_operators(model, ONE, precision, batch)
        return next(op for op in operators if op.name in ("mla_decode", "decode_attention")).moved_bytes

    one, two = Batch.decode([3000, 5000]), Batch.decode([3000, 5000] * 2)
    assert moved(two, BF16) == 2 * moved(one, BF16)
    assert moved(Batch.decode([4000, 5000]), BF16) - moved(one, BF16) == 1000 * kv_per_layer
    assert moved(one, BF16) - moved(one, Precision(kv="fp8")) == 8000 * kv_per_layer / 2 + 2 * query_elements


def test_gated_delta_decode_moves_one_state_per_sequence_whatever_its_length() -> None:
    """State read and written: 2 · 32 · 128 · 128 · 4 B in fp32, besides the token's own vectors."""
    model, precision = load_model("qwen3-next-80b-a3b"), Precision(state="fp32")

    def decode(lengths: list[int]) -> Operator:
        operators = attention_operators(model, ONE, precision, Batch.decode(lengths))
        return next(op for op in operators if op.name == "gdn_decode")

    assert decode([100] * 8).moved_bytes == 8 * decode([5000]).moved_bytes
    states = 2 * 32 * 128 * 128 * 4
    assert states < decode([100]).moved_bytes < 1.01 * states


def test_gated_delta_prefill_processes_every_token() -> None:
    model = load_model("qwen3-next-80b-a3b")
    flops = [
        next(op for op in attention_operators(model, ONE, BF16, Batch.prefill([n])) if op.name == "gdn_prefill").flops
        for n in (1000, 4000)
    ]
    assert flops[1] == 4 * flops[0]


MEASURED = Path(__file__).resolve().parents[4] / "shared" / "data" / "measured" / "h200_kernels.csv"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """H200 measurements of kernels with the FLOPs and bytes their benchmark counted."""
    if not MEASURED.exists():
        pytest.skip("the raw measurements are not beside this checkout")
    return pd.read_csv(MEASURED)


def test_mla_decode_counts_what_the_measurements_recorded(rows: pd.DataFrame) -> None:
    """FLOPs and bytes stored beside each FlashMLA measurement of equal lengths; heads stand for tp = 128 / heads."""
    decodes = rows[(rows.op == "dense_decode_fwd") & (rows.q_len == 1) & (rows.dist == "equal")]
    model = load_model("deepseek-v3")
    for row in decodes.itertuples():
        batch = Batch.decode([int(row.kv_len)] * int(row.batch))
        operators = attention_operators(model, Partition(tp=128 // int(row.heads)), BF16, batch)
        decode = next(op for op in operators if op.name == "mla_decode")
        assert (decode.flops, decode.moved_bytes) == (pytest.approx(row.flops), pytest.approx(row.bytes))
    assert len(decodes) > 20


def test_gqa_attention_counts_what_the_measurements_recorded(rows: pd.DataFrame) -> None:
    """FLOPs stored beside each FA3 measurement of Qwen3-235B (64 query heads, 4 KV heads)."""
    of_model = rows[(rows.heads == 64) & (rows.kv_heads == 4)]
    model = load_model("qwen3-235b-a22b")
    prefills, decodes = of_model[of_model.op == "varlen_prefill"], of_model[of_model.op == "paged_decode"]
    for row in prefills.itertuples():
        new, past = int(row.q_len), int(row.kv_len - row.q_len)
        batch = Batch.prefill([new] * int(row.batch), [past] * int(row.batch))
        assert attention_operators(model, ONE, BF16, batch)[0].flops == pytest.approx(row.flops)
    for row in decodes.itertuples():
        batch = Batch.decode([int(row.kv_len)] * int(row.batch))
        assert attention_operators(model, ONE, BF16, batch)[0].flops == pytest.approx(row.flops)
    assert min(len(prefills), len(decodes)) > 5
