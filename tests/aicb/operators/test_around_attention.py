"""SGLang's kernels before attention and of decodes, in operator lists and by their times."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Batch
from aicb.estimators.selection import select_estimator
from aicb.kernels.decode_attention import DecodeAttention, SglangDecodeAttention
from aicb.kernels.elementwise import SGLANG, Elementwise
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelTable
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import KvDtype, Precision
from aicb.operators.lists import iteration_operators
from aicb.operators.mla import RopeKernel
from aicb.operators.operator import Operator

ONE = Partition()


def listed(model: str, rope: RopeKernel = "sglang", kv: KvDtype = "bf16", tokens: int = 3) -> dict[str, Operator]:
    batch = Batch.decode([1000] * tokens)
    operators = iteration_operators(load_model(model), ONE, Precision(kv=kv), batch, rope_kernel=rope)
    return {operator.name: operator for operator in operators}


def kernel_of(operator: Operator) -> Elementwise:
    assert isinstance(operator.kernel, Elementwise)
    return operator.kernel


def test_models_with_experts_normalise_in_one_kernel_and_write_while_they_rotate() -> None:
    """Qwen3-30B-A3B: 32 and 4 heads of 128 and 3 tokens; what both kernels move is what three or four did."""
    own, apart = listed("qwen3-30b-a3b"), listed("qwen3-30b-a3b", "in_place")
    assert {"q_norm", "k_norm", "rope", "kv_write"} & own.keys() == set()
    norm, write = kernel_of(own["qk_norm"]), kernel_of(own["rope_write"])
    assert (norm.name, norm.rows, norm.cols) == ("qk_norm", 3 * 36, 128)
    assert (write.name, write.rows, write.cols) == ("rope_write", 3, (36 + 8) * 128)
    assert norm.moved_bytes == sum(kernel_of(apart[name]).moved_bytes for name in ("q_norm", "k_norm"))
    assert write.moved_bytes == sum(kernel_of(apart[name]).moved_bytes for name in ("rope", "kv_write"))
    assert own["qk_norm"].weight_elements == 2 * 128
    assert own["qk_norm"].count == own["rope_write"].count == 48


def test_dense_models_write_apart() -> None:
    own = listed("qwen3-8b")
    assert [kernel_of(own[name]).name for name in ("qk_norm", "rope", "kv_write")] == [
        "qk_norm",
        "sglang_rope",
        "sglang_kv_write",
    ]
    plain = listed("llama-3.1-8b")
    assert "qk_norm" not in plain
    assert kernel_of(plain["rope"]).name == "sglang_rope"


@pytest.mark.parametrize(("model", "kv"), [("deepseek-v3", "bf16"), ("qwen3-30b-a3b", "fp8")])
def test_latents_and_a_cache_in_fp8_are_written_as_elsewhere(model: str, kv: KvDtype) -> None:
    own, apart = listed(model, kv=kv), listed(model, "in_place", kv)
    for name in ("rope", "kv_write"):
        assert own[name].kernel == apart[name].kernel


def test_a_list_of_another_engine_stays_as_it_is() -> None:
    assert {"q_norm", "k_norm", "rope", "kv_write"} <= listed("qwen3-30b-a3b", "in_place").keys()


@pytest.mark.parametrize(
    ("model", "kv", "kind"), [("qwen3-8b", "bf16", SglangDecodeAttention), ("qwen3-8b", "fp8", DecodeAttention)]
)
def test_decodes_run_as_sglang_captures_them_over_a_bf16_cache(
    model: str, kv: KvDtype, kind: type[DecodeAttention]
) -> None:
    operators = iteration_operators(
        load_model(model), ONE, Precision(kv=kv), Batch.decode([1000]), gqa_kernel="fa3_sglang"
    )
    (attention,) = (operator.kernel for operator in operators if operator.name == "decode_attention")
    assert type(attention) is kind


@pytest.mark.parametrize("model", ["llama-4-scout", "qwen3-next-80b-a3b"])
def test_spans_and_heads_that_were_not_measured_run_as_when_they_are_called_alone(model: str) -> None:
    """Llama-4's local layers, not its global ones; Qwen3-Next's heads of 256 columns."""
    operators = iteration_operators(
        load_model(model), ONE, Precision(), Batch.decode([10_000]), gqa_kernel="fa3_sglang"
    )
    kinds = {
        operator.name: type(operator.kernel) for operator in operators if operator.name.endswith("decode_attention")
    }
    of_all = SglangDecodeAttention if model == "llama-4-scout" else DecodeAttention
    assert kinds.pop("decode_attention") is of_all
    assert all(kind is DecodeAttention for kind in kinds.values())
    assert len(kinds) == (1 if model == "llama-4-scout" else 0)


def test_small_kernels_were_measured_alone_and_checked() -> None:
    part = next(part for part in KernelTable.load("h200").parts if part.file.stem == "sglang_small")
    assert {row.kernel.partition("/")[0] for name in SGLANG for row in part.rows(name)} == {"sglang"}
    assert all(part.rows(name) for name in SGLANG)
    assert int(str(part.provenance["checked_rows"])) > 100


@pytest.mark.parametrize(
    ("kernel", "rows", "columns", "engine_us"),
    [
        ("qk_norm", 36, 128, 1.41),
        ("rope_write", 1, 5632, 1.63),
        ("sglang_topk", 1, 128, 2.62),
        ("sglang_sum", 8, 2048, 1.25),
        ("qk_norm", 64 * 36, 128, 1.92),
        ("rope_write", 64, 5632, 2.01),
        ("sglang_topk", 64, 128, 2.82),
        ("sglang_sum", 512, 2048, 2.21),
    ],
)
def test_small_kernels_take_as_long_as_in_an_engine(kernel: str, rows: int, columns: int, engine_us: float) -> None:
    """Decodes of one and 64 requests of Qwen3-30B-A3B, of which nothing was taken: within half a microsecond."""
    priced = select_estimator("auto", get_gpu("h200"), Precision()).price(
        Elementwise(kernel, rows, columns, 4 * rows * columns)
    )
    assert not priced.is_estimate
    assert priced.time_us == pytest.approx(engine_us, abs=0.5)


def test_decodes_take_as_long_as_in_an_engine() -> None:
    """64 requests of Qwen3-8B, both kernels of a decode, of which nothing was taken. (One request was 10.0 us there and
    is 12.7 at the clock of light loads: the table of its slots is cold in these measurements, not in an engine.)"""
    found = select_estimator("auto", get_gpu("h200"), Precision()).price(
        SglangDecodeAttention(np.array([540] * 64), 32, 8, 128)
    )
    assert found.time_us == pytest.approx(52.3, rel=0.05)
