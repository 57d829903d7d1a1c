"""FlashInfer: block-scaled fp8 GEMM of few rows with its operands swapped, which quantises its activations itself.

The kernels are those of TensorRT-LLM's DeepGEMM (``fp8_gemm_kernel_swapAB``, ``scale_1x128_kernel`` before it); each
(n, k, tile) is compiled at first use. Signatures of FlashInfer 0.6 are used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch

from aicb.kernels.gemm import SWAPPED_BELOW_ROWS
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import Kernel, normal, relative_error
from aicb.profiling.libraries import reference

TOLERANCE = 2.0**-6
"""Scales are rounded otherwise than in the reference, so that some activations round to the next fp8 value."""
KEEPS_COMPILED = {"TRTLLM_DG_JIT_DUMP_CUBIN": "1"}
"""Compiled kernels are kept on disk, where other processes find them."""


class FlashInferGemm:
    """``fp8_blockscale_gemm_sm90`` of an installed FlashInfer, below the rows from which it does not swap."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._missing: str | None = None
        if importlib.util.find_spec("flashinfer") is None:
            self._missing = "flashinfer: not installed"

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"flashinfer {version('flashinfer-python')}"

    def refusal(self, point: Point) -> str | None:
        if point.op != "gemm_swapped":
            return "swapped GEMM only"
        if point["m"] >= SWAPPED_BELOW_ROWS:
            return f"not swapped from {SWAPPED_BELOW_ROWS} rows on"
        if point["n"] % 64 or point["k"] % 128:
            return "n is not a multiple of 64, or k of 128"
        return None

    def kernel(self, point: Point) -> Kernel:
        if self._runner is None:
            os.environ.update(KEEPS_COMPILED)
            self._runner = importlib.import_module("flashinfer.gemm.gemm_base").get_fp8_blockscale_gemm_runner_sm90()
        runner, (m, n, k) = self._runner, (point["m"], point["n"], point["k"])
        x = normal(m, k, device="cuda")
        w = normal(n, k, device="cuda").to(torch.float8_e4m3fn)
        scales = torch.rand(-(-n // 128), k // 128, device="cuda") * (1 - 2.0**-5) + 2.0**-5
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        workspace = torch.empty(max(runner.get_workspace_size(m, n, k), 1), dtype=torch.uint8, device="cuda")

        def run() -> None:
            runner.configure_workspace(workspace)
            runner.run_gemm(x, w, out, None, scales)

        def error() -> float:
            rounded = reference.dequantise_rows(*reference.quantise_rows(x))
            return relative_error(out, rounded @ reference.dequantise_blocks(w, scales).T)

        return Kernel("flashinfer/fp8_blockscale_gemm_sm90", run, [out], error, TOLERANCE)
