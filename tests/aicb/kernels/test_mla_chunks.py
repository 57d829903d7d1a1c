"""Absorbed attention of short chunks of prompts, against kernels of DeepSeek-V3 inside vLLM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PHASES, price_lists
from aicb.kernels.mla_chunks import MOST_TOKENS, REACH_TOKENS, Fa3MlaChunks
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators
from aicb.operators.mla import MlaKernel
from boundary.errors import InputError
from tests.validation.engine_figures import read_measurement

MODEL = load_model("deepseek-v3")
ABSORBED, JOINED, ASSEMBLED = "FlashAttnFwdSm90", "FlashAttnFwdCombine", "ConcatMLAK"


def durations_us(engine: str, tokens: int, kernel: str) -> list[float]:
    """Of a kernel in a prompt inside vLLM, one for each of three layers."""
    found = read_measurement("vllm-h200-layers")
    rows = found["engines"][engine]["prefill"][str(tokens)]["kernels"]
    return [row[-1] for row in rows if kernel in found["names"][row[0]]]


def model(tp: int, mla_kernel: MlaKernel = "fa3_chunks", gpu: str = "h200", kv: str = "bf16") -> IterationModel:
    """At the clock that its kernels were measured at."""
    precision, at_clock = Precision("fp8", kv), replace(get_gpu(gpu), clock=None)  # type: ignore[arg-type]
    return IterationModel(MODEL, Partition(tp=tp), precision, at_clock, mla_kernel=mla_kernel, experts_kernel="triton")


def names(batch: Batch, mla_kernel: MlaKernel = "fa3_chunks", kv: str = "bf16") -> list[str]:
    precision = Precision("fp8", kv)  # type: ignore[arg-type]
    listed = attention_operators(MODEL, Partition(), precision, batch, mla_kernel=mla_kernel)
    return [operator.name for operator in listed]


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("tokens", [64, 256, 512, 1024])
def test_the_engine_absorbs_prompts_of_up_to_512_tokens(tp: int, tokens: int) -> None:
    """A second kernel joins splits of keys there; longer ones get keys assembled (with TP 8 by a compiled kernel)."""
    is_short = tokens <= MOST_TOKENS
    engine = f"deepseek-v3-tp{tp}"
    assert len(durations_us(engine, tokens, ABSORBED)) == 3
    assert len(durations_us(engine, tokens, JOINED)) == (3 if is_short else 0)
    if tp == 1:
        assert len(durations_us(engine, tokens, ASSEMBLED)) == (0 if is_short else 3)
    assert ("chunk_attention" in names(Batch.prefill([tokens]))) is is_short
    assert ("kv_b" in names(Batch.prefill([tokens]))) is not is_short


@pytest.mark.parametrize(
    ("tp", "tokens", "tolerance"),
    [(1, 64, 0.12), (1, 256, 0.08), (1, 512, 0.04), (8, 64, 0.07), (8, 256, 0.35), (8, 512, 0.09)],
)
def test_both_kernels_take_as_long_as_in_the_engine(tp: int, tokens: int, tolerance: float) -> None:
    """The law is fitted to these six: eleven splits of 256 tokens on 16 heads are joined, which it does not know."""
    measured_us = sum(np.mean(durations_us(f"deepseek-v3-tp{tp}", tokens, kernel)) for kernel in (ABSORBED, JOINED))
    kernel = Fa3MlaChunks(np.array([tokens]), np.array([tokens]), 128 // tp, 576, 512)
    priced = model(tp)._estimator.price(kernel)
    assert priced.time_us == pytest.approx(measured_us, rel=tolerance)
    assert not priced.is_estimate


@pytest.mark.parametrize(("mla_kernel", "kv"), [("flash_mla", "bf16"), ("fa3", "bf16"), ("fa3_chunks", "fp8")])
def test_other_kernels_expand_short_prompts(mla_kernel: MlaKernel, kv: str) -> None:
    assert "chunk_attention" not in names(Batch.prefill([100]), mla_kernel, kv)


BATCHES = {
    "one short": Batch.prefill([300]),
    "short ones with pasts": Batch.prefill([300, 1, 512], [700, 40, 0]),
    "short and long": Batch.prefill([300, 513, 2000], [0, 100, 0]),
    "decodes besides": Batch(np.array([200, 1, 1, 1500]), np.array([900, 500, 3, 1500]), logit_rows=4),
}


@pytest.mark.parametrize("gpu", ["h200", "h100"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_the_event_loop_prices_what_is_listed(batch: Batch, gpu: str) -> None:
    """Attention of an iteration in C++ and the sum over its operators; products are linear between points there."""
    whole = model(8, gpu=gpu)
    listed = attention_operators(MODEL, Partition(tp=8), Precision("fp8"), batch, mla_kernel="fa3_chunks")
    (priced,) = price_lists([listed], whole._pricing)
    place = PHASES.index("attention")
    assert whole.price([batch]).phase_ps[place] == pytest.approx(priced.phase_ps[place], rel=0.02)


def test_a_long_past_is_an_estimate() -> None:
    near = Fa3MlaChunks(np.array([64]), np.array([REACH_TOKENS]), 128, 576, 512)
    far = Fa3MlaChunks(np.array([64]), np.array([REACH_TOKENS + 1]), 128, 576, 512)
    estimator = model(1)._estimator
    assert [estimator.price(kernel).is_estimate for kernel in (near, far)] == [False, True]
    assert "chunk_attention" in model(1).price([Batch.prefill([64], [4000])]).estimated_operators
    assert "chunk_attention" not in model(1).price([Batch.prefill([64])]).estimated_operators


def test_more_new_tokens_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="found fewer than new_tokens"):
        Fa3MlaChunks(np.array([5]), np.array([4]), 16, 576, 512).check()
