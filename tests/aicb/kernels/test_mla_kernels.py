"""Absorbed MLA decode in the kernel that the engine runs."""

from __future__ import annotations

import pytest

from aicb import Batch, IterationModel, Partition, Precision, attention_operators, get_gpu, load_model
from aicb.kernels.mla_decode import Fa3MlaDecode, MlaDecode

MODEL, ONE = load_model("deepseek-v3"), Partition()


@pytest.mark.parametrize(("kv", "expected"), [("bf16", Fa3MlaDecode), ("fp8", MlaDecode)])
def test_flash_attention_decodes_over_bf16_caches_only(kv: str, expected: type[MlaDecode]) -> None:
    """vLLM's FLASH_ATTN_MLA supports no fp8 cache; FlashMLA reads it."""
    precision = Precision("fp8", "fp8" if kv == "fp8" else "bf16")
    listed = attention_operators(MODEL, ONE, precision, Batch.decode([512, 512]), mla_kernel="fa3")
    assert [type(op.kernel) for op in listed if op.name == "mla_decode"] == [expected]
    default = attention_operators(MODEL, ONE, precision, Batch.decode([512, 512]))
    assert [type(op.kernel) for op in default if op.name == "mla_decode"] == [MlaDecode]


def test_an_iteration_is_priced_by_the_kernel_that_is_named() -> None:
    """One request of 4,096 tokens: the H200 took 18.0 µs by FlashAttention-3 and 27 by FlashMLA, in 61 layers."""
    took = {}
    for name, kernel in (("flash_mla", "flash_mla"), ("fa3", "fa3")):
        model = IterationModel(
            MODEL, ONE, Precision("fp8"), get_gpu("h200"), mla_kernel="fa3" if kernel == "fa3" else "flash_mla"
        )
        took[name] = model.price([Batch.decode([4096])]).compute_ps
    saved_us = (took["flash_mla"] - took["fa3"]) / 1e6
    assert 61 * 4 < saved_us < 61 * 12
