"""Reference of a transfer: what a kernel takes of a GPU by published figures alone, and how far transfers err.

A time has a part that memory explains, which follows the bandwidth; latency and arithmetic, which take κ times as long
as the reference says, follow the SMs:

    time = κ · latency + √(κ² · (compute² + cache²) + memory²)
    memory = bytes / 0.80 bandwidth     compute = FLOPs / 0.75 peak     cache = bytes that may stay in L2 / its rate

So a kernel far below its roofline does not slow down with a bandwidth that does not bind it: scaled as a whole,
attention of an H100 that reads at a fraction of the bandwidth came out 20 % slow, and fp8 GEMMs 10 % (published tables
of both, aiconfigurator 095f58a). Latency adds to reading, as it does on the H200, where paged decodes take 12.4 µs and
their bytes at 4.4 TB/s. The largest part names the class of a kernel: bound by bandwidth, by tensor throughput, or by
the clock (latency, L2).

Compute follows the peak, which is stated at the boost clock. Latency grows with a lower clock and does not shrink with
a higher one, since launches and memory take part in it: decodes of an A100 (1410 MHz) that are bound by it are met 13 %
fast instead of 32 %, while those of an L40S (2490 MHz) would come out 39 % fast instead of 19 % (the same tables).

Ignores the number of SMs (waves of tiles), the kernels of another architecture and their libraries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aicb.kernels.kernel import KernelCost
from aicb.measurements.gpu import Gpu

Floats = NDArray[np.float64]

LATENCY_US = 4.0
"""Part of a kernel that neither peak nor bandwidth shortens: launch, ramp, tail. Without it small GEMMs (weights in L2)
came out a third too slow on the H100 (published tables of both, aiconfigurator 095f58a); flat between 4 and 8 µs."""
PEAK_SHARE, BANDWIDTH_SHARE = 0.75, 0.80
"""Shares of nominal peaks that large kernels reach (H200: 0.70–0.80 and 0.72–0.91); they set where the corner lies."""
BEST_MATMUL_SHARE = 0.803
"""Share of the nominal peak that the best bf16 product reaches on an H200 (mamf-finder, ml-engineering 744d01e), to
which `Gpu.matmul_share` of another GPU compares."""
L2_BYTES_PER_S = 6.9e12
"""Rate of L2 on the H200: its `add` of 25 MB takes 3.6 µs (aicb/data/h200). Others by SMs and clock."""


class Parts(NamedTuple):
    """Parts of kernels [kernels] on one GPU, in µs."""

    latency_us: Floats
    compute_us: Floats
    memory_us: Floats
    cache_us: Floats

    @property
    def arithmetic_us(self) -> Floats:
        """What the SMs take beyond latency."""
        return np.hypot(self.compute_us, self.cache_us)

    @property
    def total_us(self) -> Floats:
        """The reference itself, κ = 1."""
        return np.asarray(self.latency_us + np.hypot(self.arithmetic_us, self.memory_us))


class Shares(NamedTuple):
    """Shares of one transferred time by what binds it; they add up to 1."""

    bandwidth: float
    tensor_throughput: float
    clock: float

    @property
    def largest(self) -> str:
        """The class of the kernel."""
        name, _ = max(self._asdict().items(), key=lambda item: item[1])
        return name.replace("_", " ")


def parts(
    flops: ArrayLike, moved_bytes: ArrayLike, peak_flops: ArrayLike, is_resident: ArrayLike, gpu: Gpu, origin: Gpu
) -> Parts:
    """Parts of kernels on ``gpu``.

    Args:
        flops: [kernels]
        moved_bytes: [kernels]
        peak_flops: [kernels] nominal, in the format of each.
        is_resident: [kernels] whether operands that fit L2 are read from there. From half its size on they do so in
            part, beyond its size not at all: the shipped elementwise rows slow down between 38 and 57 MB of 63. All
            of them cross L2.
        gpu: on which they run.
        origin: GPU that was measured.
    """
    moved = np.asarray(moved_bytes, dtype=np.float64)
    half = gpu.l2_bytes / 2
    cached = np.where(is_resident, 1.0 - np.clip((moved - half) / half, 0.0, 1.0), 0.0)
    return Parts(
        latency_us=np.full(moved.shape, latency_us(gpu, origin)),
        compute_us=np.asarray(flops) / (reached_share(gpu) * np.asarray(peak_flops)) * 1e6,
        memory_us=(1.0 - cached) * moved / (BANDWIDTH_SHARE * gpu.hbm_bytes_per_s) * 1e6,
        cache_us=np.where(is_resident, moved, 0.0) / (L2_BYTES_PER_S * _sm_rate(gpu, origin)) * 1e6,
    )


def parts_of(cost: KernelCost, is_resident: bool, gpu: Gpu, origin: Gpu) -> Parts:
    """Parts of one kernel."""
    return parts(cost.flops, cost.moved_bytes, gpu.peak_flops[cost.dtype], is_resident, gpu, origin)


def latency_us(gpu: Gpu, origin: Gpu) -> float:
    """Latency on ``gpu``; that of ``origin`` where a clock is not stated."""
    if gpu.boost_mhz is None or origin.boost_mhz is None:
        return LATENCY_US
    return LATENCY_US * max(origin.boost_mhz / gpu.boost_mhz, 1.0)


def reached_share(gpu: Gpu) -> float:
    """Share of the nominal peak that large products reach, less where the best published product falls short."""
    if gpu.matmul_share is None:
        return PEAK_SHARE
    return PEAK_SHARE * min(gpu.matmul_share / BEST_MATMUL_SHARE, 1.0)


def _sm_rate(gpu: Gpu, origin: Gpu) -> float:
    """SMs times clock, relative to ``origin``."""
    clocks = 1.0 if gpu.boost_mhz is None or origin.boost_mhz is None else gpu.boost_mhz / origin.boost_mhz
    return clocks * gpu.sms / origin.sms


def transferred_us(found_us: ArrayLike, here: Parts, there: Parts) -> Floats:
    """[kernels] times where the parts are ``there`` of kernels measured to take ``found_us`` where they are ``here``.

    Faster than its memory part, a kernel is scaled with that. None takes longer than at the utilisation of the whole:
    near the corner κ says little, and where a target computes at a fraction of the rate it would be multiplied by much.
    Attention has the same in C++ (``core/transfer.hpp``).
    """
    found = np.asarray(found_us, dtype=np.float64)
    explained = np.maximum(found, here.memory_us)
    kappa = _kappa(explained, here)
    busy = np.hypot(kappa * there.arithmetic_us, there.memory_us)
    by_parts = found / explained * (kappa * there.latency_us + busy)
    return np.minimum(by_parts, found * (there.total_us / here.total_us))


def _kappa(time_us: Floats, here: Parts) -> Floats:
    """The positive root of the time's equation; ``time_us`` is at least the memory part."""
    rest = (time_us - here.memory_us) * (time_us + here.memory_us)
    root = np.hypot(here.arithmetic_us * np.sqrt(rest), here.latency_us * here.memory_us)
    return np.asarray(rest / (here.latency_us * time_us + root))


def shares(found_us: float, here: Parts, there: Parts) -> Shares:
    """Shares of one transferred time, see ``transferred_us``."""
    kappa = float(_kappa(np.maximum(found_us, here.memory_us), here))
    latency = kappa * float(there.latency_us)
    squares = [(kappa * float(part)) ** 2 for part in (there.compute_us, there.cache_us)] + [
        float(there.memory_us) ** 2
    ]
    busy = sum(squares) ** 0.5
    compute, _, memory = (busy * square / max(sum(squares), 1e-30) for square in squares)
    return Shares(memory / (latency + busy), compute / (latency + busy), 1.0 - (memory + compute) / (latency + busy))


PRODUCT_ERRORS = Shares(bandwidth=0.065, tensor_throughput=0.06, clock=0.07)
"""Of dense products between GPUs of one architecture, whose libraries choose other tiles on each."""
KERNEL_ERRORS = Shares(bandwidth=0.06, tensor_throughput=0.05, clock=0.055)
"""Of other kernels between GPUs of one architecture. Both are means of the 68 % quantiles by class in SGLang 0.5.10's
tables of GEMM and attention (aiconfigurator 095f58a) and in one half of our H100 rows (`aicb.estimators.accuracy`):
there the published products scatter more, and our other kernels, which ran on another machine."""
ARCHITECTURE_ERRORS = Shares(bandwidth=0.24, tensor_throughput=0.20, clock=0.33)
"""To another architecture, with its own kernels: means of such quantiles over GEMM and attention of A100, L40S, B200
and GB200, without prefills of the B200, which ran in a Triton kernel there."""
VENDOR_FACTOR = 2.0
"""On `ARCHITECTURE_ERRORS` for GPUs of another vendor, for which no table was seen: a guess."""


class Distance(StrEnum):
    """How far times are carried from the GPU on which they were measured."""

    SAME_ARCHITECTURE = "same_architecture"
    OTHER_ARCHITECTURE = "other_architecture"
    OTHER_VENDOR = "other_vendor"

    @classmethod
    def between(cls, gpu: Gpu, origin: Gpu) -> Distance:
        """That of a GPU; one whose architecture is not stated may be any."""
        if gpu.architecture is None:
            return cls.OTHER_VENDOR
        if gpu.architecture == origin.architecture:
            return cls.SAME_ARCHITECTURE
        return cls.OTHER_ARCHITECTURE if gpu.architecture.startswith("sm") else cls.OTHER_VENDOR


def transfer_error(bound_by: Shares, gpu: Gpu, origin: Gpu, *, is_product: bool) -> float:
    """Relative error (68 %) that a transfer adds to a kernel with these shares."""
    match Distance.between(gpu, origin):
        case Distance.SAME_ARCHITECTURE:
            errors, factor = PRODUCT_ERRORS if is_product else KERNEL_ERRORS, 1.0
        case Distance.OTHER_ARCHITECTURE:
            errors, factor = ARCHITECTURE_ERRORS, 1.0
        case Distance.OTHER_VENDOR:
            errors, factor = ARCHITECTURE_ERRORS, VENDOR_FACTOR
    return factor * sum(share * error for share, error in zip(bound_by, errors, strict=True))
