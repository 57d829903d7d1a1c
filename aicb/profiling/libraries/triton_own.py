"""Our own Triton kernels (``aicb/profiling/kernels``), labelled ``triton_own/…``.

They stand for what an engine's compiler generates (vLLM's default fuses norms and activations with Inductor) and for
the gathered grouped GEMM of bf16 experts.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.vllm_ops import silu_mul

_NORM_TOLERANCE = 2 * BF16_TOLERANCE
_QUANT_TOLERANCE = 2.0**-4
_POSITIONS = 32768
_TUNING_RUNS = 5
_CONV_WIDTH = 4


class TritonOwn:
    """Kernels compiled at first use."""

    def __init__(self) -> None:
        self._small: ModuleType | None = None
        self._missing: str | None = None
        if importlib.util.find_spec("triton") is None:
            self._missing = "triton: not installed"
        else:
            self._small = importlib.import_module("aicb.profiling.kernels.small")
            self._experts = importlib.import_module("aicb.profiling.kernels.experts")
        self._builders: dict[str, Callable[[Point], Kernel]] = {
            "rms_norm": self._norm,
            "add_rms_norm": self._norm,
            "head_norm": self._head_norm,
            "silu_mul": self._silu_mul,
            "silu_mul_quant": self._quant,
            "quant": self._quant,
            "rope": self._rope,
            "conv": self._conv,
            "grouped_gemm_gathered": self._grouped,
        }

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        import triton

        return f"kernels of aicb.profiling on triton {triton.__version__}"

    def refusal(self, point: Point) -> str | None:
        if point.op not in self._builders:
            return "no Triton kernel of ours"
        if point.op == "head_norm" and point["n"] & (point["n"] - 1):
            return "head width is not a power of two"
        if point.op == "grouped_gemm_gathered" and point.dtype != "bf16":
            return "bf16 only"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._builders[point.op](point)

    def _norm(self, p: Point) -> Kernel:
        assert self._small is not None
        function = self._small.rms_norm
        x, w = normal(p["m"], p["n"], device="cuda"), torch.ones(p["n"], device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(x)
        if p.op == "rms_norm":
            return Kernel(
                "triton_own/rms_norm",
                lambda: function(x, w, out),
                [out],
                lambda: relative_error(out, reference.rms_norm(x, w)),
                _NORM_TOLERANCE,
            )
        residual = normal(p["m"], p["n"], device="cuda")

        def fresh_error() -> float:
            fresh = normal(p["m"], p["n"], device="cuda")
            expected = reference.rms_norm(x.float() + fresh.float(), w)
            function(x, w, out, fresh)
            return relative_error(out, expected)

        return Kernel(
            "triton_own/add_rms_norm", lambda: function(x, w, out, residual), [out], fresh_error, _NORM_TOLERANCE
        )

    def _head_norm(self, p: Point) -> Kernel:
        assert self._small is not None
        function = self._small.head_norm
        x, w = normal(p["m"], p["n"], device="cuda"), normal(p["n"], device="cuda")
        out = torch.empty_like(x)
        return Kernel(
            "triton_own/head_norm",
            lambda: function(x, w, out),
            [out],
            lambda: relative_error(out, reference.rms_norm(x, w)),
            _NORM_TOLERANCE,
        )

    def _silu_mul(self, p: Point) -> Kernel:
        assert self._small is not None
        function = self._small.silu_mul
        x = normal(p["m"], 2 * p["n"], device="cuda")
        out = torch.empty(p["m"], p["n"], device="cuda", dtype=torch.bfloat16)
        return Kernel(
            "triton_own/silu_mul",
            lambda: function(x, out),
            [out],
            lambda: relative_error(out, silu_mul(x)),
            _NORM_TOLERANCE,
        )

    def _quant(self, p: Point) -> Kernel:
        assert self._small is not None
        function, is_gated = self._small.quant, p.op == "silu_mul_quant"
        x = normal(p["m"], p["n"] * (2 if is_gated else 1), device="cuda")
        out = torch.empty(p["m"], p["n"], device="cuda", dtype=torch.float8_e4m3fn)
        scales = torch.empty(-(-p["n"] // 128), p["m"], device="cuda")

        def error() -> float:
            expected = silu_mul(x) if is_gated else x.float()
            return relative_error(reference.dequantise_rows(out, scales.T), expected)

        return Kernel(
            f"triton_own/{p.op}",
            lambda: function(x, out, scales, is_gated=is_gated),
            [out, scales],
            error,
            _QUANT_TOLERANCE,
        )

    def _rope(self, p: Point) -> Kernel:
        assert self._small is not None
        function, d = self._small.rope, p["d_qk"]
        x = normal(p["m"], p["n"], device="cuda")
        positions = torch.randint(0, _POSITIONS, (p["m"],), device="cuda")
        angles = torch.rand(_POSITIONS, d // 2, device="cuda") * 6.28
        table = torch.cat([angles.cos(), angles.sin()], dim=1).to(torch.bfloat16)

        def error() -> float:
            fresh = normal(p["m"], p["n"], device="cuda")
            cos, sin = table[positions].chunk(2, dim=1)
            expected = reference.rotate(fresh.view(p["m"], -1, d), cos, sin).flatten(1)
            function(fresh, table, positions, d)
            return relative_error(fresh, expected)

        return Kernel("triton_own/rope", lambda: function(x, table, positions, d), [], error, 2 * BF16_TOLERANCE)

    def _conv(self, p: Point) -> Kernel:
        """Packed sequences of equal length, ``batch`` of them."""
        assert self._small is not None
        function, batch = self._small.causal_conv, p.get("batch", 1)
        x, w = normal(p["m"], p["n"], device="cuda"), normal(p["n"], _CONV_WIDTH, device="cuda")
        out, length = torch.empty_like(x), p["m"] // batch
        starts = (torch.arange(batch + 1, device="cuda") * length).to(torch.int32)

        def error() -> float:
            columns = x.float().view(batch, length, p["n"]).transpose(1, 2)
            padded = torch.nn.functional.pad(columns, (_CONV_WIDTH - 1, 0))
            mixed = torch.nn.functional.conv1d(padded, w.float()[:, None], groups=p["n"])
            return relative_error(out, torch.nn.functional.silu(mixed).transpose(1, 2).flatten(0, 1))

        return Kernel(
            "triton_own/causal_conv", lambda: function(x, w, out, starts, length), [out], error, _NORM_TOLERANCE
        )

    def _grouped(self, p: Point) -> Kernel:
        """Up projections gather ``experts_per_token`` pairs per token row, down projections one."""
        module = self._experts
        pairs, per_row = p["rows"], p["experts_per_token"]
        x = normal(-(-pairs // per_row), p["k"], device="cuda")
        w = normal(p["groups"], p["n"], p["k"], device="cuda")
        out = torch.empty(pairs, p["n"], device="cuda", dtype=torch.bfloat16)
        mean = pairs / p["active_groups"]
        tiles = [tile for tile in module.CANDIDATES if tile.m <= 16 or tile.m / 4 <= mean <= 16 * tile.m]
        tile = min(tiles, key=lambda tile: _time(module, x, w, out, p.lengths, tile, per_row))
        plan = module.schedule(p.lengths, tile.m, "cuda")

        def error() -> float:
            expert = max(range(p["groups"]), key=lambda e: p.lengths[e])
            at = int((plan.owners == expert).nonzero()[0]) * tile.m
            chosen = plan.order[at : at + p.lengths[expert]].long()[some_rows(p.lengths[expert])]
            return relative_error(out[chosen], x[chosen // per_row].float() @ w[expert].float().T)

        return Kernel(
            "triton_own/grouped_gemm_gathered",
            lambda: module.launch(x, w, out, plan, tile, per_row),
            [out],
            error,
            BF16_TOLERANCE,
            {"tile_m": tile.m, "tile_n": tile.n, "tile_k": tile.k, "warps": tile.warps, "stages": tile.stages},
        )


def _time(
    module: ModuleType,
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    lengths: tuple[int, ...],
    tile: object,
    pairs_per_row: int,
) -> float:
    """Mean time [ms] of a few calls after one that compiles."""
    plan = module.schedule(lengths, tile.m, "cuda")  # type: ignore[attr-defined]
    module.launch(x, w, out, plan, tile, pairs_per_row)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_TUNING_RUNS):
        module.launch(x, w, out, plan, tile, pairs_per_row)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
