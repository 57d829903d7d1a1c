"""Interpolation estimator (the default): measured kernel times, interpolated where the shape lies between them.

Each class of kernels fits its own times (``Kernel.fit``), when they are first needed. This module combines them and
raises estimates below the roofline of the device to it; measured points are returned as measured. Kernels of one family
are shapes on one surface, which prices many of them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np

import aicb._core as _core
from aicb.estimators.estimator import CostTable
from aicb.estimators.roofline import RooflineEstimator, roofline_us
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate, ManyTimes
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.kernel import CacheKernel, CacheTimes, Kernel, KernelTimes, Shape
from aicb.kernels.prefill_attention import BorrowedTimes, PrefillAttention, PrefillTimes
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes, Timing
from aicb.model.precision import Precision

AnyKernel = TypeVar("AnyKernel", bound=Kernel)


class InterpolationEstimator:
    """Prices kernels from the measurements of one GPU.

    Args:
        gpu: device whose table is used.
        precision: element types of KV cache and recurrent state; bf16 if absent.
        timing: ``engine`` for iterations, ``graph`` or ``cold`` to compare with kernel measurements.

    Raises:
        InputError: no measurements are shipped for this GPU.
    """

    def __init__(self, gpu: Gpu, precision: Precision | None = None, timing: Timing = "engine"):
        precision = precision or Precision()
        self.gpu, self.precision, self.timing = gpu, precision, timing
        table = KernelTable.load(gpu.name) if gpu.table is None else KernelTable.read(gpu.table, gpu.name)
        self._measured = MeasuredTimes.of(table, timing, gpu)
        self._roofline = RooflineEstimator(gpu, precision)
        self._fitted: dict[tuple[type[Kernel], Hashable], KernelTimes[Kernel] | None] = {}

    @property
    def table(self) -> KernelTable:
        """The measurements that it interpolates."""
        return self._measured.table

    def fitted(self, kind: type[AnyKernel], variant: Hashable = None) -> KernelTimes[AnyKernel] | None:
        """Times of a variant of a kernel; ``None`` where the table has too few measurements."""
        key = (kind, variant)
        try:
            return self._fitted[key]
        except KeyError:
            found = self._fitted[key] = cast("KernelTimes[Kernel] | None", kind.fit(variant, self._measured))
            return found

    def times_of(self, kernel: AnyKernel) -> KernelTimes[AnyKernel] | None:
        """Times of the variant that this kernel belongs to; see ``fitted``."""
        return self.fitted(type(kernel), kernel.variant(self.precision))

    def price(self, kernel: Kernel) -> Estimate:
        kernel.check()
        times = self.times_of(kernel)
        if times is None:
            return self._roofline.price(kernel)
        found = times.price(kernel)
        if times.is_bounded or found.source.startswith("measured"):
            return found
        # Activations within L2 and weights replayed in a graph need not cross the memory bus; evicted weights must.
        is_resident = self.timing == "graph" or kernel.stays_in_cache
        bound = roofline_us(kernel.cost(self.precision), self.gpu, is_resident=is_resident)
        if found.time_us >= bound:
            return found
        return replace(found, time_us=bound, source=f"roofline, above {found.source}")

    def times(self, costs: CostTable) -> ManyTimes:
        """See ``Estimator.times``. Kernels without a place on a surface are priced one by one."""
        kinds: defaultdict[tuple[type[Kernel], Hashable], list[int]] = defaultdict(list)
        for number, kernel in enumerate(costs.kernels):
            kinds[type(kernel), kernel.variant(self.precision)].append(number)
        found = ManyTimes(np.zeros(len(costs.kernels)), np.zeros(len(costs.kernels), dtype=np.bool_))
        alone: list[int] = []
        for (kind, variant), numbers in kinds.items():
            times = self.fitted(kind, variant)
            alone += numbers if times is None else self._fill(costs, found, times, numbers)
        for number in alone:
            one = self.price(costs.kernels[number])
            found.time_us[number], found.is_estimate[number] = one.time_us, one.is_estimate
        return found

    def _fill(
        self, costs: CostTable, found: ManyTimes, times: KernelTimes[Kernel], numbers: Sequence[int]
    ) -> list[int]:
        """Writes the times of kernels of one variant; returns the numbers of those to be priced one by one."""
        families: defaultdict[Surface, list[tuple[int, Shape]]] = defaultdict(list)
        alone: list[int] = []
        for number in numbers:
            place = times.place(costs.kernels[number])
            if place is None:
                alone.append(number)
            else:
                families[place[0]].append((number, place[1]))
        for surface, placed in families.items():
            own, shapes = zip(*placed, strict=True)
            far = self._fill_family(costs, found, surface, own, shapes)
            alone += far if times.has_stand_ins else []
        return alone

    def _fill_family(
        self, costs: CostTable, found: ManyTimes, surface: Surface, numbers: Sequence[int], listed: Sequence[Shape]
    ) -> list[int]:
        """Writes the times of one family; returns the numbers of those far from its measurements."""
        places, shapes = np.array(numbers), np.array(listed)
        if not (shapes >= 1.0).all():
            for number in numbers:
                costs.kernels[number].check()
        time_us, is_measured = surface.times_and_hits(shapes)
        own = costs.take(places)
        is_resident = np.full(len(places), self.timing == "graph" or own.kernels[0].stays_in_cache)
        bounded_us = np.maximum(time_us, own.roofline_us(self.gpu, is_resident))
        found.time_us[places] = np.where(is_measured, time_us, bounded_us)
        found.is_estimate[places] = is_far = surface.are_estimates(shapes) & ~is_measured
        far: list[int] = places[is_far].tolist()
        return far

    def decode_times(self, kernel: CacheKernel, batch: int) -> DecodeTimes:
        times = self.times_of(kernel)
        if times is None:
            return self._roofline.decode_times(kernel, batch)
        assert isinstance(times, CacheTimes)
        return times.decode_times(kernel, batch)

    def core_prefill(
        self, kernel: PrefillAttention, transfer: _core.PrefillTransfer | None = None
    ) -> _core.PrefillTimes:
        """Times of prefill attention with the geometry of ``kernel`` in C++, on this GPU or transferred.

        Unmeasured fp8 takes the time of bf16, flagged.
        """
        times = self.times_of(kernel)
        is_own = not isinstance(times, BorrowedTimes)
        measured = times.measured if isinstance(times, BorrowedTimes) else times
        assert isinstance(measured, PrefillTimes)
        bound = _core.PrefillBound(
            peak_flops=self.gpu.peak_flops[kernel.dtype],
            bytes_per_s=self.gpu.hbm_bytes_per_s,
            resident_bytes=self.gpu.l2_bytes if self.timing == "graph" else 0.0,
        )
        return measured.in_core(kernel, bound, is_own=is_own, transfer=transfer)
