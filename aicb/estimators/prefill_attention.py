"""Times of prefill attention: FA3 with causal mask over past and new keys, and the chunked gated delta rule.

FA3 of one request takes ``floor + FLOPs / (utilisation(q, S) · peak)``. Utilisation is measured along q without past
and, at one q, along S/q; the second scales the first, and the result is capped at the best value measured. Requests
of one batch run in one kernel: their FLOP times add, the floor is paid once. So n equal requests cost at most n times
one, and a prompt split in two costs less than whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.curves import AXIS_REACH, SITE_REACH_OCTAVES
from aicb.estimators.estimate import Estimate
from aicb.estimators.measured import MeasuredTimes
from aicb.estimators.roofline import attention_pairs
from aicb.gpu import Gpu
from aicb.operators import GatedDeltaPrefill, PrefillAttention
from aicb.table import KernelRow

Geometry = tuple[int, int, int, int]
"""(heads, kv_heads, d_qk, d_v)"""


FLOOR_US = 10.0
"""Time of the kernel apart from its FLOPs, least leave-one-out error of 0, 5, 10, 15 µs on the H200 table; FA3 decode
leaves 12.4 µs at zero bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class GeometryFit:
    """Utilisation of FA3 at one geometry, the floor taken off."""

    log_q: NDArray[np.float64]
    utilisation: NDArray[np.float64]
    """[q] of prompts without past."""
    log_ratio: NDArray[np.float64]
    gain: NDArray[np.float64]
    """[ratio] utilisation at S/q over that at S = q."""
    best: float
    """Highest utilisation measured."""

    def at(self, new: NDArray[np.float64], kv: NDArray[np.float64]) -> NDArray[np.float64]:
        """[requests] share of the peak; linear in log q and log S/q, held beyond."""
        base = np.interp(np.log2(new), self.log_q, self.utilisation)
        return np.asarray(np.minimum(base * np.interp(np.log2(kv / new), self.log_ratio, self.gain), self.best))


class PrefillCurves:
    """FA3 varlen prefill of all measured geometries; others borrow in log2 of heads and head dimensions."""

    def __init__(self, measured: MeasuredTimes, gpu: Gpu):
        self._peak = gpu.peak_flops["bf16"]
        floors = measured.table.launch.event_floor_us
        # No graph times were measured here: both other timings contain the event floor.
        self.floor_us = FLOOR_US + (0.0 if measured.timing == "engine" else max(floors.values()))
        rows = measured.table.select("prefill_attention", "bf16")
        grouped: dict[Geometry, dict[tuple[int, int], float]] = {}
        for row in rows:
            geometry = (row["heads"], row["kv_heads"], row["d_qk"], row["d_v"])
            grouped.setdefault(geometry, {})[row["q_len"], row["kv_len"]] = measured.time_us(row, _kv_bytes(row))
        self.exact = grouped
        self.q_range = _range([q for times in grouped.values() for q, _ in times])
        self.kv_range = _range([kv for times in grouped.values() for _, kv in times])
        self.fits = {geometry: self.fit(geometry, times) for geometry, times in grouped.items()}

    def fit(self, geometry: Geometry, times: dict[tuple[int, int], float]) -> GeometryFit:
        """Utilisations of one geometry from its points (q, S) → µs."""
        plain = sorted(q for q, kv in times if q == kv)
        shares = {
            (q, kv): float(self._flop_us(geometry, np.array([q]), np.array([kv]))[0]) / (time - self.floor_us)
            for (q, kv), time in times.items()
        }
        past = sorted((kv, q) for q, kv in times if kv > q)
        ratios = [(1.0, 1.0)] + [(kv / q, shares[q, kv] / shares[q, q]) for kv, q in past if (q, q) in shares]
        ratio, gain = (np.array(column) for column in zip(*ratios, strict=True))
        utilisation = np.array([shares[q, q] for q in plain])
        return GeometryFit(np.log2(plain), utilisation, np.log2(ratio), gain, max(shares.values()))

    def price(self, work: PrefillAttention) -> Estimate:
        geometry = (work.heads, work.kv_heads, work.d_qk, work.d_v)
        new, kv = work.new_tokens.astype(np.float64), work.kv_tokens.astype(np.float64)
        if geometry in self.exact and len(new) == 1:
            exact = self.exact[geometry].get((int(new[0]), int(kv[0])))
            if exact is not None:
                return Estimate(exact, False, "measured FA3 prefill")
        chosen, is_near = self._sources(geometry)
        at_peak_us = self._flop_us(geometry, work.new_tokens, work.kv_tokens)
        time_us = self.floor_us + sum(weight * math.fsum(at_peak_us / fit.at(new, kv)) for weight, fit in chosen)
        is_inside = self._inside(new, kv)
        kind = "interpolated" if geometry in self.fits else f"borrowed (utilisation of {len(chosen)} geometries)"
        is_estimate = not (is_near and is_inside)
        return Estimate(time_us, is_estimate, f"{'estimate:' if is_estimate else kind} FA3 prefill")

    def _sources(self, geometry: Geometry) -> tuple[list[tuple[float, GeometryFit]], bool]:
        if geometry in self.fits:
            return [(1.0, self.fits[geometry])], True
        distances = {other: _distance(geometry, other) for other in self.fits}
        near = {other: value for other, value in distances.items() if value <= SITE_REACH_OCTAVES}
        chosen = near or dict([min(distances.items(), key=lambda item: item[1])])
        weights = {other: 1.0 / max(value, 0.25) ** 2 for other, value in chosen.items()}
        total = sum(weights.values())
        return [(weight / total, self.fits[other]) for other, weight in weights.items()], bool(near)

    def _inside(self, new: NDArray[np.float64], kv: NDArray[np.float64]) -> bool:
        """Whether at least half of the FLOPs lie within reach of the measured lengths."""
        low, high = self.q_range
        inside = (new >= low) & (new <= high) & (kv <= self.kv_range[1])
        pairs = attention_pairs(new, kv)
        return bool(pairs[inside].sum() >= 0.5 * pairs.sum())

    def _flop_us(self, geometry: Geometry, new: NDArray[np.int64], kv: NDArray[np.int64]) -> NDArray[np.float64]:
        """[requests] time of the FLOPs at the device's peak."""
        heads, _, d_qk, d_v = geometry
        return np.asarray(2.0 * heads * (d_qk + d_v) * attention_pairs(new, kv) / self._peak * 1e6)

    def leave_one_out(self) -> list[float]:
        """Relative errors of interior prompt lengths without past, each predicted without its own point."""
        errors = []
        for geometry, times in self.exact.items():
            plain = {point: time for point, time in times.items() if point[0] == point[1]}
            for q in sorted(q for q, _ in plain)[1:-1]:
                fit = self.fit(geometry, {point: time for point, time in plain.items() if point[0] != q})
                length = np.array([q])
                at_peak_us = self._flop_us(geometry, length, length)
                predicted = self.floor_us + float((at_peak_us / fit.at(length, length))[0])
                errors.append(abs(predicted / plain[q, q] - 1.0))
        return errors


class GatedDeltaChunks:
    """Chunked gated delta rule, linear in tokens and value heads.

    Only the longest measured prompt is kernel time; shorter ones were bound by the host of the probe. Below a
    quarter of it, or at other head counts beyond reach, the time is an estimate.
    """

    def __init__(self, measured: MeasuredTimes):
        row = max(measured.table.select("gdn_prefill"), key=lambda other: other["q_len"])
        self._tokens, self._heads = row["q_len"], row["heads"]
        self._exact = measured.time_us(row, 0.0)
        self._node_us = measured.table.launch.graph_node_us

    def price(self, work: GatedDeltaPrefill) -> Estimate:
        tokens = int(work.new_tokens.sum())
        scale = tokens * work.value_heads / (self._tokens * self._heads)
        floor_us = CHUNK_KERNELS * 2 * self._node_us
        time_us = max(floor_us, self._exact * scale)
        is_estimate = not 1.0 / AXIS_REACH <= scale <= AXIS_REACH
        kind = "measured" if scale == 1.0 else "estimate:" if is_estimate else "interpolated"
        return Estimate(time_us, is_estimate, f"{kind} chunked gated delta rule")


CHUNK_KERNELS = 6
"""Kernels of one chunked call: cumulative sum, k·kᵀ, triangular inverse, w and u, state pass, output (fla-core)."""


def _kv_bytes(row: KernelRow) -> float:
    return float(row["kv_len"] * row["kv_heads"] * (row["d_qk"] + row["d_v"]) * 2)


def _range(values: list[int]) -> tuple[float, float]:
    return min(values) / AXIS_REACH, max(values) * AXIS_REACH


def _distance(a: Geometry, b: Geometry) -> float:
    """Octaves in query heads and in d_qk + d_v; KV heads hardly matter to a compute-bound kernel."""
    return math.hypot(math.log2(a[0] / b[0]), math.log2((a[2] + a[3]) / (b[2] + b[3])))
