"""SGLang's Triton kernel of experts, priced by vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aicb.kernels.expert_times import GatheredTimes
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import KernelTimes
from aicb.kernels.reference.gathered_times import in_tiles_us, tensor_share
from aicb.kernels.tuned_experts import has_sglang_tiles, was_seen_in_sglang
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision

if TYPE_CHECKING:
    from aicb.kernels.grouped_gemm import GroupedGemm

TUNED_FP8, UNTUNED_FP8, READING = 0.665, 0.83, 0.80
"""Time of SGLang's kernel of fp8 experts over vLLM's where it computes, in tiles of its own and in those of its rule of
thumb, and share of the memory's bandwidth where it reads weights.

In engines of SGLang 0.5.17 on an H200 (2026-11-30, ``tests/data/engine/sglang-h200-layers.json.gz``): 1,024 tokens of
Qwen3-30B-A3B in fp8 take 100.8 and 72.6 us, vLLM's 151.7 and 108.7; 4,096 of DeepSeek-V3 3,576 and 2,068, vLLM's 4,317
and 2,500; 1,024 of DeepSeek-V3 read their weights and rows in 1,944 and 1,072 us."""
UNTUNED_TILE = 64.0, 64.0
"""Rows and columns of its rule of thumb for bf16 experts, in steps of 32, where a batch has more tokens than there are
experts (``moe_runner/triton_utils/fused_moe_triton_config.py``, ``get_default_config``)."""
UNTUNED_SHARE = 0.2
"""Of the tensor cores' peak that such tiles reach. In an engine of two ranks with half of Qwen3-30B-A3B's experts each
(2026-12-01, ``tests/data/engine/sglang-h200-dp2-ep2-qwen3-30b-a3b.json.gz``): with vLLM's tiles prompts of 2,048 to
8,192 tokens would be 29 to 36 % faster than they are, and decodes of 128 and 256 requests 20 %."""
SGLANG_ERROR = 0.1
"""More relative error (68 %) of SGLang's kernel by vLLM's: of few sites, in engines."""


class SglangTileTimes(KernelTimes["GroupedGemm"]):
    """SGLang's kernel of gathered experts, by vLLM's.

    fp8 in blocks: what reads many weights takes as long as vLLM's. Else SGLang is faster, as its tiles are no wider
    than a block of weights: their scale is one number, multiplied with the rows' scales before both meet the products
    (``kernels/ops/moe/fused_moe_triton_kernels.py``), where vLLM multiplies one after the other. That holds for the one
    wave of a single token, too: decodes of one request were 12 % slow without it, 3 with it. Of the sites that have
    tiles of their own, those that were not seen have vLLM's times; of narrow ones without tiles nothing was seen.

    bf16: with tiles of its own as vLLM's. Its rule of thumb is another than vLLM's, and slow.
    """

    def __init__(self, times: GatheredTimes, gpu: Gpu):
        self._times, self._gpu = times, gpu
        self._bytes_per_us = READING * gpu.hbm_bytes_per_s * 1e-6

    def price(self, kernel: GroupedGemm) -> Estimate:
        found, site = self._times.price(kernel), (kernel.groups, kernel.n, kernel.k)
        is_tuned = has_sglang_tiles(self._gpu.name, kernel.compute_dtype, *site)
        if kernel.compute_dtype == "bf16":
            *_, tokens, _ = self._times.shape_of(kernel)
            if is_tuned or tokens <= kernel.groups:
                return found
            return self._estimate(found, self._slowness(kernel) * found.time_us)
        if is_tuned and not was_seen_in_sglang(self._gpu.name, *site):
            return found
        reading_us = kernel.cost(Precision("fp8")).moved_bytes / self._bytes_per_us
        time_us = max((TUNED_FP8 if is_tuned else UNTUNED_FP8) * found.time_us, reading_us)
        return found if time_us >= found.time_us else self._estimate(found, time_us)

    def _slowness(self, kernel: GroupedGemm) -> float:
        """Time in the tiles of SGLang's rule of thumb over that in vLLM's, by the reference of both."""
        shapes, theirs = np.array([self._times.shape_of(kernel)]), self._times.tile_of(kernel)
        height, width = UNTUNED_TILE
        own = np.array([height]), np.array([width])
        own_us, their_us = (
            in_tiles_us(self._gpu, "bf16", shapes, tile, share, is_resident=False)
            for tile, share in ((own, np.array([UNTUNED_SHARE])), (theirs, tensor_share(theirs[0])))
        )
        return float(own_us[0] / their_us[0])

    @staticmethod
    def _estimate(found: Estimate, time_us: float) -> Estimate:
        return Estimate(
            time_us, True, f"estimate: SGLang's kernel by {found.source}", lambda: found.error + SGLANG_ERROR
        )
