"""SGLang's kernel of experts, measured alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from aicb.data import FOLDER
from aicb.estimators.selection import select_estimator
from aicb.kernels.engine_tiles import SGLANG, EngineTiles
from aicb.kernels.expert_points import ALSO, SGLANG_OPERATION, SHARED, UNIFORM
from aicb.kernels.expert_times import SHARED_EXPERTS
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.tuned_experts import has_sglang_tiles
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.partition import Partition
from aicb.model.precision import GemmDtype, Precision
from aicb.operators.experts_kernel import check_experts_kernel
from boundary.errors import InputError

FP8 = Precision("fp8")
H200 = KernelTable.load("h200")
WHOLE = (UNIFORM, f"{UNIFORM}{ALSO}")
OF_SEVERAL_RANKS = tuple(f"{UNIFORM}{SHARED}{experts}" for experts in SHARED_EXPERTS)


UNLIKE = {(16, 2048, 768)}
"""Half of the hidden size of Qwen3-30B-A3B is a listed width of sixteen experts."""


def price(kernel: GroupedGemm, gpu: str = "h200") -> Estimate:
    return select_estimator("auto", get_gpu(gpu), FP8).price(kernel)


def measured_rows(dtype: GemmDtype, kinds: tuple[str, ...]) -> list[KernelRow]:
    return [row for kind in kinds for row in H200.select(SGLANG_OPERATION, dtype, kind)]


def test_the_shipped_rows_are_of_this_kernel_and_were_checked() -> None:
    part = next(part for part in H200.parts if part.file.stem == "sglang_experts")
    assert {row.kernel for row in part.rows(SGLANG_OPERATION)} == {"sglang/fused_moe"}
    assert int(str(part.provenance["checked_rows"])) > 400
    assert part.file.is_relative_to(FOLDER)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("kinds", [WHOLE, OF_SEVERAL_RANKS])
def test_tiles_of_a_site_are_those_that_were_launched(dtype: GemmDtype, kinds: tuple[str, ...]) -> None:
    """The nearest entry of a file, or the rule of thumb, of each measured batch; the lists say where files are."""
    rows = measured_rows(dtype, kinds)
    tiles = EngineTiles("h200", dtype, rows, SGLANG)
    sites = [(row["groups"], row["n"], row["k"]) for row in rows]
    shapes = [
        (*site[:1], row["active_groups"], *site[1:], row["batch"], 1.0) for site, row in zip(sites, rows, strict=True)
    ]
    found = tiles.of(np.array(shapes, dtype=np.float64)).tolist()
    for row, site, (height, width, tuned) in zip(rows, sites, found, strict=True):
        launched = json.loads(row.settings)
        assert (height, width, tuned) == (launched["block_size_m"], launched["block_size_n"], launched["is_tuned"])
        assert has_sglang_tiles("h200", dtype, *site) == tuned or site in UNLIKE


def test_of_a_measured_batch_it_has_the_measured_time() -> None:
    """4,096 tokens on DeepSeek's whole experts, the shared one among them, took 3,576 us in an engine."""
    whole = GroupedGemm(36864.0, 257, 257.0, 4096, 7168, "fp8", "gathered", tokens=4096.0, gathering="sglang")
    found = price(whole)
    assert not found.is_estimate
    assert found.time_us == pytest.approx(3576, rel=0.01)


def test_its_rule_of_thumb_of_bf16_is_slow_for_more_tokens_than_experts() -> None:
    """One of two ranks that share Qwen3-30B-A3B's experts: tiles of 16 x 32 for up to 64 tokens, then of 64 x 64."""

    def ratio(tokens: float) -> float:
        rows, active = 4.0 * tokens, 64 * (1.0 - (1.0 - 8 / 128) ** tokens)
        own = GroupedGemm(
            rows, 64, active, 1536, 2048, "bf16", "masked", tokens=tokens, is_shared=True, gathering="sglang"
        )
        return price(own).time_us / price(replace(own, gathering="vllm")).time_us

    assert ratio(64.0) < 1.1 < 1.3 < ratio(128.0) < ratio(8192.0) < 2.0


def test_in_tiles_of_its_own_it_computes_bf16_about_as_vllms_does() -> None:
    own = GroupedGemm(8192.0, 128, 128.0, 1536, 2048, "bf16", "masked", tokens=1024.0, gathering="sglang")
    assert price(own).time_us == pytest.approx(price(replace(own, gathering="vllm")).time_us, rel=0.05)


def test_narrow_fp8_tiles_compute_faster_than_vllms() -> None:
    """DeepSeek-V3 with TP 8, whose down projection reads its rows by TMA: 20 and 40 % less for 4,096 tokens."""
    up = GroupedGemm(36864.0, 257, 257.0, 512, 7168, "fp8", "gathered", tokens=4096.0, gathering="sglang")
    for product, least, most in ((up, 0.75, 0.85), (replace(up, n=7168, k=256), 0.55, 0.65)):
        theirs = price(replace(product, gathering="vllm"))
        assert least < price(product).time_us / theirs.time_us < most


def test_on_another_gpu_it_is_transferred() -> None:
    """An H100 has measurements of vLLM's kernel alone."""
    found = price(
        GroupedGemm(8192.0, 128, 128.0, 1536, 2048, "fp8", "gathered", tokens=1024.0, gathering="sglang"), "h100"
    )
    assert found.is_estimate
    assert "transferred from h200" in found.source


@pytest.mark.parametrize(
    ("variant", "most"),
    [
        (("gathered", "fp8", "SGLang"), 0.04),
        (("masked", "bf16", "SGLang"), 0.05),
        (("gathered", "fp8", "SGLang", "shared"), 0.04),
        (("masked", "bf16", "SGLang", "shared"), 0.06),
    ],
)
def test_batches_between_measured_ones(variant: tuple[str, ...], most: float) -> None:
    """A quarter octave of rows left out at a time: 3.8, 4.6, 3.7 and 5.6 % off in the mean."""
    times = GroupedGemm.fit(variant, MeasuredTimes.of(H200, "engine", get_gpu("h200")))
    assert times is not None
    place = times.place(GroupedGemm(512.0, 128, 120.0, 1536, 2048, "bf16", "masked"))
    assert place is not None
    errors = place[0].hold_out([round(4 * np.log2(rows)) for rows in place[0].shapes[:, -1]]).relative
    assert np.abs(errors).mean() < most


def test_it_runs_where_ranks_share_fp8_experts_and_vllms_does_not() -> None:
    check_experts_kernel("triton_sglang", Partition(tp=8, ep=8), FP8)
    with pytest.raises(
        InputError, match="found triton with ep 8, expected deep_gemm or flashinfer, in SGLang triton_sglang"
    ):
        check_experts_kernel("triton", Partition(tp=8, ep=8), FP8)
