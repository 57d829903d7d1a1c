"""vLLM's fused MoE kernel as a library of the profiler: which points it takes, and the configuration it asks for."""

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from aicb.kernels.point import Point, point
from aicb.measurements.table import KernelTable
from aicb.profiling.kernel_library import relative_error
from aicb.profiling.libraries.gathered_experts import expert_operands
from aicb.profiling.libraries.vllm_fused_moe import VllmFusedMoe


def gathered(
    tokens: int, k: int, groups: int, *, per_row: int, n: int, inner: int, rows: int | None = None, dtype: str = "bf16"
) -> Point:
    shape = {"n": n, "k": inner, "groups": groups, "rows": rows or tokens * k, "batch": tokens}
    return point("grouped_gemm_gathered", dtype, shape | {"active_groups": groups, "experts_per_token": per_row})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[VllmFusedMoe, list[object]]:
    """The library on a host without vLLM, and what it asked vLLM's table for."""
    library, calls = VllmFusedMoe(), []

    def optimal(*arguments: object, block_shape: list[int] | None) -> dict[str, int]:
        calls.append((*arguments, block_shape))
        return {"BLOCK_SIZE_M": 64}

    kernels = SimpleNamespace(try_get_optimal_moe_config=optimal, get_moe_configs=lambda *_: None)
    monkeypatch.setattr(library, "_kernels", kernels, raising=False)
    return library, calls


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_library_says_so():
    assert VllmFusedMoe().missing() == "vllm: not installed"


def test_only_bf16_experts_whose_tokens_are_known_are_taken():
    """9 rows of 4 tokens are those of one rank of several: vLLM chooses by all tokens, which the point lacks."""
    library = VllmFusedMoe()
    assert library.refusal(gathered(4, 8, 128, per_row=8, n=1536, inner=2048)) is None
    assert "several ranks" in str(library.refusal(gathered(4, 8, 16, per_row=8, n=1536, inner=2048, rows=9)))
    assert library.refusal(point("grouped_gemm_masked", "bf16", {"n": 8, "k": 8, "groups": 2, "rows": 4})) is not None


def test_both_projections_of_a_layer_ask_for_one_configuration(asked):
    """Weights [128, 1536, 2048] and [128, 2048, 768], top-8, 64 tokens, whichever projection is measured."""
    library, calls = asked
    up = gathered(64, 8, 128, per_row=8, n=1536, inner=2048)
    down = gathered(64, 8, 128, per_row=1, n=2048, inner=768)
    assert library.configuration(up) == library.configuration(down) == ({"BLOCK_SIZE_M": 64}, False)
    assert calls == [((128, 1536, 2048), (128, 2048, 768), 8, None, 64, None)] * 2


def test_block_scaled_experts_ask_for_configurations_of_their_format(asked):
    library, calls = asked
    library.configuration(gathered(64, 8, 128, per_row=8, n=1536, inner=2048, dtype="fp8"))
    assert calls == [((128, 1536, 2048), (128, 2048, 768), 8, "fp8_w8a8", 64, [128, 128])]


def test_widths_that_break_a_scale_block_are_refused_as_vllm_does():
    """Qwen3-30B-A3B on four ranks has 768 / 4 = 192 columns, one block and a half."""
    library = VllmFusedMoe()
    assert library.refusal(gathered(4, 8, 128, per_row=1, n=2048, inner=384, dtype="fp8")) is None
    assert "scale block" in str(library.refusal(gathered(4, 8, 128, per_row=1, n=2048, inner=192, dtype="fp8")))


def test_operands_of_fp8_keep_what_was_drawn_to_the_rounding_of_the_format():
    """e4m3 has three bits of mantissa: in norm, normal values are rounded by some 2.6 %; scales fill its range."""
    torch.manual_seed(0)
    drawn = gathered(4, 2, 3, per_row=2, n=256, inner=384, dtype="fp8")
    x, w = expert_operands(drawn, 4, "cpu")
    torch.manual_seed(0)
    wide, _ = expert_operands(gathered(4, 2, 3, per_row=2, n=256, inner=384), 4, "cpu")
    assert x.scales is not None
    assert w.scales is not None
    assert (x.scales.shape, w.scales.shape) == ((4, 3), (3, 2, 3))
    assert 0.01 < relative_error(x.rows(torch.arange(4)), wide.values.float()) < 0.04
    assert float(w.values.float().abs().amax()) == 448
    assert float(w.expert(2).std()) == pytest.approx(1.0, rel=0.02)


def test_the_shipped_rows_are_of_this_kernel_and_were_checked():
    part = next(part for part in KernelTable.load("h200").parts if part.file.stem == "vllm_experts")
    rows = part.rows("grouped_gemm_gathered")
    assert {row.kernel for row in rows} == {"vllm/fused_moe"}
    counts = {(row["groups"], row["n"], row["k"]): set[int]() for row in rows}
    for row in rows:
        counts[row["groups"], row["n"], row["k"]].add(row["batch"])
    assert all(known >= {1, 64, 1024, 8192} for known in counts.values())
    assert int(str(part.provenance["checked_rows"])) > 100


def test_the_shipped_fp8_rows_cover_deepseek_at_every_partition():
    part = next(part for part in KernelTable.load("h200").parts if part.file.stem == "vllm_experts_fp8")
    rows = [row for row in part.rows("grouped_gemm_gathered") if row.distribution == "multinomial"]
    assert {(row.kernel, row.dtype) for row in rows} == {("vllm/fused_moe", "fp8")}
    assert {row["k"] for row in rows if row["groups"] == 256 and row["n"] == 7168} == {2048, 1024, 512, 256}
    assert {row["batch"] for row in rows} >= {1, 64, 96, 1024, 16384}
    assert int(str(part.provenance["checked_rows"])) > 200
