"""Times on a GPU without measurements, from the utilisation that another GPU was measured at.

    time = launch + (measured time − launch) · roofline on the target / roofline on the measured GPU

which is the target's roofline divided by the measured utilisation of the same shape, launch time apart. Assumes
the same kernels with the same efficiency on both GPUs: number of SMs (waves), L2 size, clocks under load and tile
choices of another architecture are ignored. Every time is flagged as an estimate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aicb.errors import InputError
from aicb.estimators import DecodeTimes, Estimate, InterpolationEstimator, Timing
from aicb.estimators.roofline import demand, roofline_us
from aicb.gpu import Gpu, get_gpu
from aicb.operators import DecodeAttention, Elementwise, MlaDecode, Work
from aicb.precision import Precision
from aicb.table import KernelTable

MEASURED_GPU = "h200"
"""Whose table is transferred."""


class TransferEstimator:
    """Prices work on ``gpu`` by the utilisation of the same shape on ``measured_gpu``.

    Raises:
        InputError: no measurements of ``measured_gpu`` are shipped, or fp8 weights on a GPU without fp8.
    """

    def __init__(
        self,
        gpu: Gpu,
        precision: Precision | None = None,
        timing: Timing = "engine",
        measured_gpu: str = MEASURED_GPU,
    ):
        self.gpu, self.precision = gpu, precision or Precision()
        gpu.check(self.precision)
        self._origin = get_gpu(measured_gpu)
        self._measured = InterpolationEstimator(self._origin, self.precision, timing)
        self._launch_us = KernelTable.load(measured_gpu).launch.graph_node_us

    def price(self, work: Work) -> Estimate:
        dtype = getattr(work, "dtype", "bf16")
        if dtype not in self.gpu.peak_flops:
            raise InputError(f"{type(work).__name__}.dtype: found {dtype}, expected bf16 ({self.gpu.name} has no fp8)")
        found = self._measured.price(work)
        ratio, bound_us = self._ratio(work)
        time_us = max(self._launch_us + (found.time_us - self._launch_us) * ratio, bound_us)
        return Estimate(time_us, True, f"estimate: transferred from {self._origin.name}: {found.source}")

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        """The rooflines of decode attention are proportional to the KV tokens, so one ratio serves all lengths."""
        ratio, bound_us = self._ratio(work)
        per_token_us = bound_us / float(work.kv_tokens.sum())
        measured = self._measured.decode_times(work, batch)
        return TransferredDecode(measured, ratio, self._launch_us, per_token_us, self._origin.name)

    def _ratio(self, work: Work) -> tuple[float, float]:
        """Roofline on the target over that on the measured GPU, and the former [µs].

        Elementwise kernels scale with the bandwidth; their operands may stay in L2, so they have no bound.
        """
        if isinstance(work, Elementwise):
            return self._origin.hbm_bytes_per_s / self.gpu.hbm_bytes_per_s, 0.0
        need = demand(work, self.precision)
        target_us, origin_us = roofline_us(need, self.gpu), roofline_us(need, self._origin)
        return target_us / origin_us, target_us


class TransferredDecode:
    """Decode attention of one geometry and batch size, scaled from the measured GPU."""

    def __init__(self, measured: DecodeTimes, ratio: float, launch_us: float, per_token_us: float, origin: str):
        self._measured, self._ratio, self._launch_us = measured, ratio, launch_us
        self._per_token_us = per_token_us
        self.source = f"estimate: transferred from {origin}: {measured.source}"

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], bool]:
        time_us, _ = self._measured(kv_tokens, steps)
        totals = int(kv_tokens.sum()) + len(kv_tokens) * np.arange(steps, dtype=np.int64)
        scaled = self._launch_us + (time_us - self._launch_us) * self._ratio
        return np.maximum(scaled, totals * self._per_token_us), True
