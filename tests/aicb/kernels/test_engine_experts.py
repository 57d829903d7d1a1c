"""Times of vLLM's fused MoE kernel of fp8 experts, against the running engine, and where it cannot be asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb.data import FOLDER
from aicb.estimators.selection import select_estimator
from aicb.kernels.expert_points import UNIFORM
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel
from aicb.measurements.table import KernelRow, KernelTable
from aicb.measurements.timing import MeasuredTimes, gemm_weight_bytes
from boundary.errors import InputError

FP8 = Precision("fp8")
H200 = get_gpu("h200")


def products(tokens: int, active: float) -> list[Kernel]:
    rows = tokens * 8
    return [
        GroupedGemm(rows, 256, active, 4096, 7168, "fp8", "gathered"),
        GroupedGemm(rows, 256, active, 7168, 2048, "fp8", "gathered"),
    ]


@pytest.mark.parametrize(("tokens", "active", "engine_us"), [(1024, 256.0, (1978.3, 1073.2)), (1, 8.0, (64.0, 33.1))])
def test_experts_of_deepseek_take_what_they_take_in_the_engine(
    tokens: int, active: float, engine_us: tuple[float, float]
) -> None:
    """``fused_moe_kernel`` in vLLM 0.24.0's own trace of layer 3 (H200, eager); not a row of the table."""
    estimator = select_estimator("auto", H200, FP8)
    for kernel, measured_us in zip(products(tokens, active), engine_us, strict=True):
        found = estimator.price(kernel)
        assert not found.is_estimate
        assert found.time_us == pytest.approx(measured_us, rel=0.06)


def test_the_kernel_is_not_taken_for_deep_gemms() -> None:
    """At 4,096 tokens it takes 1.6 times as long as the contiguous layout."""
    estimator = select_estimator("auto", H200, FP8)
    gathered = estimator.price(products(4096, 256.0)[0]).time_us
    contiguous = estimator.price(GroupedGemm(4096 * 8, 256, 256.0, 4096, 7168, "fp8", "contiguous")).time_us
    assert gathered > 1.3 * contiguous


def test_experts_that_ranks_share_have_no_times_of_this_kernel() -> None:
    model = load_model("deepseek-v3")
    with pytest.raises(InputError, match="experts_kernel: found triton with ep 8, expected deep_gemm or flash"):
        IterationModel(model, Partition(tp=8, ep=8), FP8, H200, experts_kernel="triton")
    with pytest.raises(
        InputError, match="experts_kernel: found 'cutlass', expected one of deep_gemm, flashinfer, triton"
    ):
        IterationModel(model, Partition(), FP8, H200, experts_kernel="cutlass")  # type: ignore[arg-type]
    IterationModel(load_model("qwen3-30b-a3b"), Partition(tp=2, ep=2), Precision(), H200, experts_kernel="triton")


@pytest.mark.parametrize(("n", "k"), [(4096, 7168), (7168, 2048)])
def test_wide_tiles_begin_with_the_first_token_after_64(n: int, k: int) -> None:
    """Experts are read at the rate of 96 tokens from 65 on, at that of 64 up to there: DeepSeek-V3's 6 and 10 % slower.
    Tuned tiles (TP 8) do not change there."""
    estimator = select_estimator("auto", H200, FP8)

    def rate(tokens: int, width: int = n) -> float:
        active = 256 * (1.0 - (1.0 - 8 / 256) ** tokens)
        kernel = GroupedGemm(float(tokens * 8), 256, active, width, k, "fp8", "gathered")
        return active / estimator.price(kernel).time_us

    assert rate(65) == pytest.approx(rate(96), rel=0.015)
    assert rate(65) / rate(64) < 0.97
    assert rate(60) == pytest.approx(rate(64), rel=0.015)
    if k == 7168:
        assert rate(65, 512) == pytest.approx(rate(64, 512), rel=0.01)


EXPERTS_OF_H100 = KernelTable.read(FOLDER / "h100" / "experts", "h100")


def engines_sites(table: KernelTable) -> dict[tuple[int, int, int], list[KernelRow]]:
    """Rows of the engine's fp8 experts by experts, columns and inner size."""
    sites: dict[tuple[int, int, int], list[KernelRow]] = {}
    for row in table.select("grouped_gemm_gathered", "fp8", UNIFORM):
        sites.setdefault((row["groups"], row["n"], row["k"]), []).append(row)
    return sites


def test_no_fp8_site_of_an_h100_has_tuned_tiles_and_half_of_an_h200s_have() -> None:
    """As its kernel was launched: tiles of 64 rows from 65 tokens on, of 16 before, where none are tuned."""
    for table, sites, untuned in ((EXPERTS_OF_H100, 18, 18), (KernelTable.load("h200"), 22, 10)):
        rows = engines_sites(table)
        settings = {site: [json.loads(row.settings) for row in found] for site, found in rows.items()}
        assert len(settings) == sites
        assert sum(not any(each["is_tuned"] for each in found) for found in settings.values()) == untuned
        for site, found in settings.items():
            for row, chosen in zip(rows[site], found, strict=True):
                assert chosen["is_tuned"] or chosen["block_size_m"] == (64 if row["batch"] > 64 else 16)


@pytest.mark.parametrize("left_out", [64, 96])
def test_tiles_that_change_after_64_tokens_are_told_apart_on_an_h100(left_out: int) -> None:
    """Each site's row of so many tokens from its others: at worst 4.0 % off; 17 and 15 on one surface of both tiles."""
    errors = []
    for rows in engines_sites(EXPERTS_OF_H100).values():
        (row,) = (row for row in rows if row["batch"] == left_out)
        others = tuple(other for other in rows if other is not row)
        measured = MeasuredTimes(replace(EXPERTS_OF_H100, rows=others, parts=()), "engine", get_gpu("h100"), 0.0, {})
        fitted = GroupedGemm.fit(("gathered", "fp8"), measured)
        assert fitted is not None
        kernel = GroupedGemm(
            float(row["rows"]), row["groups"], float(row["active_groups"]), row["n"], row["k"], "fp8", "gathered"
        )
        errors.append(fitted.price(kernel).time_us / measured.time_us(row, gemm_weight_bytes(row)) - 1.0)
    assert len(errors) == 18
    assert max(abs(error) for error in errors) < 0.045
