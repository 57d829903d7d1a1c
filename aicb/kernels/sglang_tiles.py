"""SGLang's kernel of fp8 experts in the tiles that it ships, priced by vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicb.kernels.expert_times import ExpertTimes
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import KernelTimes
from aicb.kernels.tuned_experts import was_seen_in_sglang
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision

if TYPE_CHECKING:
    from aicb.kernels.grouped_gemm import GroupedGemm

COMPUTING, READING = 0.665, 0.80
"""Time of SGLang's kernel in its own tiles over vLLM's where it computes, and share of the memory's bandwidth where it
reads weights.

In engines of SGLang 0.5.17 on an H200 (2026-11-30, ``tests/data/engine/sglang-h200-layers.json.gz``): 1,024 tokens of
Qwen3-30B-A3B in fp8 take 100.8 and 72.6 us, vLLM's 151.7 and 108.7; 1,024 of DeepSeek-V3 read their weights and rows in
1,944 and 1,072 us."""
SGLANG_ERROR = 0.1
"""More relative error (68 %) of SGLang's kernel by vLLM's: of one site with 1, 64 and 1,024 tokens in an engine."""


class SglangTileTimes(KernelTimes["GroupedGemm"]):
    """SGLang's kernel of fp8 experts in blocks, by vLLM's.

    Few rows read weights as vLLM's do. Where rows are computed SGLang was faster in the tiles that it ships for a site,
    which are no wider than a block of weights: their scale is one number, multiplied with the rows' scales before both
    meet the products (``kernels/ops/moe/fused_moe_triton_kernels.py``), where vLLM multiplies one after the other. At
    other sites vLLM's times stand: without tiles of their own both take a rule of thumb, and tiles that SGLang ships
    for more sites were not measured.
    """

    def __init__(self, times: ExpertTimes, gpu: Gpu):
        self._times, self._gpu = times, gpu.name
        self._bytes_per_us = READING * gpu.hbm_bytes_per_s * 1e-6

    def price(self, kernel: GroupedGemm) -> Estimate:
        found = self._times.price(kernel)
        if not was_seen_in_sglang(self._gpu, kernel.groups, kernel.n, kernel.k):
            return found
        reading_us = kernel.cost(Precision("fp8")).moved_bytes / self._bytes_per_us
        time_us = max(COMPUTING * found.time_us, reading_us)
        if time_us >= found.time_us:
            return found
        return Estimate(
            time_us, True, f"estimate: SGLang's kernel by {found.source}", lambda: found.error + SGLANG_ERROR
        )
