"""Fits the corrections of `simccl.planning.calibration` to measured times.

Least squares of log(model / measured), one fit per case, with every parameter drawn towards NCCL's constants: a
deviation of one prior width costs as much as one point that is off by the noise of a measurement. A case with one or
two points therefore moves little beyond what they say of latency or bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.registry import algorithm_of
from simccl.calibrate.nccl_tests import Measurement
from simccl.collective import PROTOCOLS, Algorithm, Protocol
from simccl.communicator.gpus import Gpu
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.correction import Correction, check_correction, thread_share
from simccl.nccl.point_to_point import MessageCosts, message_costs
from simccl.planning.calibration import Calibration, Case, Fit, shipped_calibration
from simccl.planning.choice import choose_at
from simccl.planning.cost_model import algorithm_costs

# Widths of the priors, natural logarithms except for the growth: factors of latency and transfer within 1.6 and 1.35,
# growth of the latency by 0.3, overlap exponent and channel rate within 1.6 and 2 of their starting values.
_LATENCY_WIDTH, _GROWTH_WIDTH, _TRANSFER_WIDTH, _EXPONENT_WIDTH, _CHANNEL_WIDTH = 0.5, 0.3, 0.3, 0.5, 0.7
_NOISE = 0.03
"""Repeatability of one point: passes of nccl-tests on H100 and B200 differ by 0.6 to 2 % at the median."""
_FAR = 1e9
"""Residual where a step of the search overflows, so that it turns back."""
_CHANNEL_GBYTES_PER_S = {Protocol.LL: 10.0, Protocol.LL128: 18.75, Protocol.SIMPLE: 20.0}
"""Start of the fit: 161 GB/s over 8 channels, send_recv of 128 MiB between four H200s (data/h200/nccl.csv)."""


class _Point(NamedTuple):
    size_bytes: int
    time_us: float


def fit_calibration(measurements: Iterable[Measurement], gpu: Gpu, source: str) -> Calibration:
    """Corrections for every case that was measured, the median of repeated points; between nodes by the same algorithms
    as the shipped calibration's.

    Raises:
        InputError: ranks that do not divide evenly over nodes, or no measurement of two or more ranks.
    """
    cases: dict[Case, list[_Point]] = {}
    for measured in measurements:
        if measured.ranks > 1:
            at = _arranged(measured, gpu)
            cases.setdefault(_case(measured, at), []).append(_Point(measured.size_bytes, measured.time_us))
    if not cases:
        raise InputError("measurements: found none of two or more ranks")
    fits = {case: _fit(case, _medians(points), gpu) for case, points in cases.items()}
    shipped = shipped_calibration(gpu.name)
    between_nodes = frozenset[Algorithm]() if shipped is None else shipped.between_nodes
    return Calibration(gpu.name, source, fits, between_nodes=between_nodes)


def _arranged(measured: Measurement | Case, gpu: Gpu) -> CommunicatorShape:
    if measured.ranks % measured.nodes:
        raise InputError(f"nodes: found {measured.nodes}, expected a divisor of the {measured.ranks} ranks")
    return CommunicatorShape(
        gpu, measured.ranks, measured.nodes, measured.ranks // measured.nodes, gpu.nic_gbytes_per_s
    )


def _case(measured: Measurement, at: CommunicatorShape) -> Case:
    if measured.op.has_ring:
        choice = choose_at(
            measured.op,
            measured.size_bytes,
            at,
            algorithm=measured.algorithm,
            protocol=measured.protocol,
            calibration="none",
        )
        algorithm, protocol = choice.algorithm, choice.protocol
    else:
        is_ll = message_costs(measured.op, np.array([measured.size_bytes]), at).is_ll[0]
        algorithm, protocol = Algorithm.PAIRWISE, Protocol.LL if is_ll else Protocol.SIMPLE
    return Case(measured.op, measured.ranks, measured.nodes, algorithm, protocol)


def _medians(points: Sequence[_Point]) -> list[_Point]:
    by_size: dict[int, list[float]] = {}
    for size, time_us in points:
        by_size.setdefault(size, []).append(time_us)
    return [_Point(size, float(np.median(times))) for size, times in sorted(by_size.items())]


def _fit(case: Case, points: Sequence[_Point], gpu: Gpu) -> Fit:
    sizes = np.array([point.size_bytes for point in points], dtype=np.int64)
    measured = np.array([point.time_us for point in points])
    at = _arranged(case, gpu)
    if not case.op.has_ring:
        correction = _fit_messages(message_costs(case.op, sizes, at), measured, case.protocol)
        modelled = message_costs(case.op, sizes, at).corrected_us(correction)
    else:
        latency, transfer, share = _features(case, sizes, at)
        correction = _fit_collective(latency, transfer, share, measured)
        modelled = correction.time_us(latency, transfer, share)
    check_correction(correction, f"measurements of {' '.join(case.label())}: correction")
    return Fit(correction, len(points), float(np.median(np.abs(modelled / measured - 1))))


def _features(
    case: Case, sizes: NDArray[np.int64], at: CommunicatorShape
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """[sizes] latency and transfer time of NCCL's model in µs, and the share of threads."""
    costs = algorithm_costs(case.op, at, case.algorithm)
    if costs is None:
        raise InputError(f"algorithm: found {case.algorithm}, which NCCL does not use for {case.op} here")
    p = PROTOCOLS.index(case.protocol)
    latency = costs.latencies_us(sizes)[p]
    _, threads = algorithm_of(costs).channels_and_threads(sizes, costs, case.protocol, at)
    return latency, costs.times_us(sizes)[p] - latency, thread_share(threads)


def _fit_collective(
    latency: NDArray[np.float64],
    transfer: NDArray[np.float64],
    share: NDArray[np.float64],
    measured: NDArray[np.float64],
) -> Correction:
    def correction(v: NDArray[np.float64]) -> Correction:
        a, growth, b, p = v.tolist()
        return Correction(np.exp(a), growth, np.exp(b), np.exp(p))

    widths = np.array([_LATENCY_WIDTH, _GROWTH_WIDTH, _TRANSFER_WIDTH, _EXPONENT_WIDTH])
    return correction(_solved(lambda v: correction(v).time_us(latency, transfer, share), measured, widths))


def _fit_messages(costs: MessageCosts, measured: NDArray[np.float64], protocol: Protocol) -> Correction:
    def correction(v: NDArray[np.float64]) -> Correction:
        a, b, p, rate = v.tolist()
        return Correction(np.exp(a), 0.0, np.exp(b), np.exp(p), _CHANNEL_GBYTES_PER_S[protocol] * np.exp(rate))

    widths = np.array([_LATENCY_WIDTH, _TRANSFER_WIDTH, _EXPONENT_WIDTH, _CHANNEL_WIDTH])
    return correction(_solved(lambda v: costs.corrected_us(correction(v)), measured, widths))


def _solved(
    model: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    measured: NDArray[np.float64],
    widths: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The parameters with least squared residuals, in their own units."""
    from scipy.optimize import least_squares

    def residuals(v: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            misses = np.nan_to_num(np.concatenate([np.log(model(v) / measured) / _NOISE, v / widths]), nan=_FAR)
        clipped: NDArray[np.float64] = np.clip(misses, -_FAR, _FAR)
        return clipped

    found: NDArray[np.float64] = least_squares(residuals, np.zeros(len(widths))).x
    return found
