"""DeepGEMM: block-scaled fp8 GEMM, dense and grouped (contiguous and masked), and its bf16 grouped forms.

Kernels are compiled at first use of each (type, n, k, experts, tile), seconds each; warm up before timing
(``runner.compile_ahead``). Activation scales are passed MN-major and TMA-aligned, as the kernel wants them, so that no
transpose runs inside the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, FP8_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference

Scaled = tuple[torch.Tensor, torch.Tensor]

CONTIGUOUS_ALIGNMENT = 128
"""Rows of one expert start at multiples of this (``get_mk_alignment_for_contiguous_layout`` on SM90)."""

_NAMES = {
    ("gemm", "fp8"): ("fp8_gemm_nt",),
    ("grouped_gemm_contiguous", "fp8"): ("m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_fp4_gemm_nt_contiguous"),
    ("grouped_gemm_masked", "fp8"): (
        "m_grouped_fp8_gemm_nt_masked",
        "fp8_m_grouped_gemm_nt_masked",
        "m_grouped_fp8_fp4_gemm_nt_masked",
    ),
    ("grouped_gemm_contiguous", "bf16"): ("m_grouped_bf16_gemm_nt_contiguous",),
    ("grouped_gemm_masked", "bf16"): ("m_grouped_bf16_gemm_nt_masked",),
}
"""Functions of one purpose under the names of different versions; the first is what rows are labelled with."""


class DeepGemm:
    """The ``deep_gemm`` package, upstream or SGLang's build of it."""

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._missing: str | None = None
        try:
            self._module = importlib.import_module("deep_gemm")
        except (ImportError, OSError, RuntimeError, AssertionError) as error:
            self._missing = f"deep_gemm: {type(error).__name__}: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return f"deep_gemm {getattr(self._module, '__version__', 'unknown')}"

    def refusal(self, point: Point) -> str | None:
        if (point.op, point.dtype) not in _NAMES:
            return "not an operation of DeepGEMM"
        if self._function(point) is None:
            return f"this build has none of {', '.join(_NAMES[point.op, point.dtype])}"
        if point.dtype == "fp8" and point["n"] % 64:
            return "n is not a multiple of 64"
        if point.dtype == "bf16" and point["k"] % 64:
            return "k is not a multiple of 64"
        return None

    def kernel(self, point: Point) -> Kernel:
        function = self._function(point)
        assert function is not None
        label = f"deep_gemm/{_NAMES[point.op, point.dtype][0]}"
        if point.op == "gemm":
            return _dense(point, label, function)
        if point.op == "grouped_gemm_masked":
            return _masked(point, label, function)
        return _contiguous(point, label, function)

    def _function(self, point: Point) -> Callable[..., object] | None:
        names = _NAMES[point.op, point.dtype]
        return next((getattr(self._module, name) for name in names if hasattr(self._module, name)), None)


def aligned_scales(scales: torch.Tensor) -> torch.Tensor:
    """[..., m, k/128] fp32 scales with stride 1 along m and columns padded to 4 rows (16 bytes, for TMA)."""
    *groups, m, columns = scales.shape
    padded = torch.empty(*groups, columns, -(-m // 4) * 4, dtype=torch.float32, device=scales.device)
    view = padded.transpose(-1, -2)[..., :m, :]
    return view.copy_(scales)


def _activations(
    *shape: int, dtype: str
) -> tuple[torch.Tensor | Scaled, Callable[[int | None, list[int]], torch.Tensor]]:
    """Operand, and a function giving rows of it (of one group) in float32."""
    if dtype == "bf16":
        x = normal(*shape, device="cuda")
        return x, lambda group, rows: (x if group is None else x[group])[rows].float()
    wide = normal(*shape, device="cuda")
    values, scales = reference.quantise_rows(wide.view(-1, shape[-1]))
    values, scales = values.view(*shape), aligned_scales(scales.view(*shape[:-1], -1))

    def some(group: int | None, rows: list[int]) -> torch.Tensor:
        v, s = (values, scales) if group is None else (values[group], scales[group])
        return reference.dequantise_rows(v[rows], s[rows])

    return (values, scales), some


def _weights(*shape: int, dtype: str) -> tuple[torch.Tensor | Scaled, Callable[[int | None], torch.Tensor]]:
    """Operand, and a function giving it (one group of it) in float32. Block scales are random, 2^-5 to 1."""
    if dtype == "bf16":
        w = normal(*shape, device="cuda")
        return w, lambda group: (w if group is None else w[group]).float()
    *groups, n, k = shape
    values = torch.empty(shape, device="cuda", dtype=torch.float8_e4m3fn)
    for part in values.view(-1, n, k):
        part.copy_(normal(n, k, device="cuda"))
    scales = torch.rand(*groups, -(-n // 128), -(-k // 128), device="cuda") * (1 - 2.0**-5) + 2.0**-5

    def whole(group: int | None) -> torch.Tensor:
        v, s = (values, scales) if group is None else (values[group], scales[group])
        return reference.dequantise_blocks(v, s)

    return (values, scales), whole


def _dense(point: Point, label: str, function: Callable[..., object]) -> Kernel:
    m, n, k = point["m"], point["n"], point["k"]
    a, some = _activations(m, k, dtype=point.dtype)
    b, whole = _weights(n, k, dtype=point.dtype)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    rows = some_rows(m)
    return Kernel(
        label,
        lambda: function(a, b, out, compiled_dims="nk"),
        [out],
        lambda: relative_error(out[rows], some(None, rows) @ whole(None).T),
        FP8_TOLERANCE,
    )


def _contiguous(point: Point, label: str, function: Callable[..., object]) -> Kernel:
    """Rows of each expert padded to the alignment; padding rows carry expert −1."""
    counts = torch.tensor(point.lengths)
    padded = (counts + CONTIGUOUS_ALIGNMENT - 1) // CONTIGUOUS_ALIGNMENT * CONTIGUOUS_ALIGNMENT
    total, ends = int(padded.sum()), padded.cumsum(0)
    layout = torch.full((total,), -1, dtype=torch.int32)
    for group, (end, size, count) in enumerate(zip(ends.tolist(), padded.tolist(), counts.tolist(), strict=True)):
        layout[end - size : end - size + count] = group
    layout = layout.cuda()
    a, some = _activations(total, point["k"], dtype=point.dtype)
    b, whole = _weights(point["groups"], point["n"], point["k"], dtype=point.dtype)
    out = torch.empty(total, point["n"], device="cuda", dtype=torch.bfloat16)

    def error() -> float:
        group = int(counts.argmax())
        start = int(ends[group] - padded[group])
        rows = [start + row for row in some_rows(int(counts[group]))]
        return relative_error(out[rows], some(None, rows) @ whole(group).T)

    return Kernel(label, lambda: function(a, b, out, layout), [out], error, BF16_TOLERANCE)


def _masked(point: Point, label: str, function: Callable[..., object]) -> Kernel:
    groups, max_m, n, k = point["groups"], point["max_m"], point["n"], point["k"]
    a, some = _activations(groups, max_m, k, dtype=point.dtype)
    b, whole = _weights(groups, n, k, dtype=point.dtype)
    out = torch.empty(groups, max_m, n, device="cuda", dtype=torch.bfloat16)
    masked = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
    expected = point["expected_m"]

    def error() -> float:
        group = max(range(groups), key=lambda g: point.lengths[g])
        rows = some_rows(point.lengths[group])
        return relative_error(out[group][rows], some(group, rows) @ whole(group).T)

    return Kernel(label, lambda: function(a, b, out, masked, expected), [out], error, BF16_TOLERANCE)
