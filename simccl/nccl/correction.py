"""Corrections of NCCL's cost model: a form with a few parameters, fitted to measured times.

NCCL's constants choose algorithm and protocol; they are the same for GPUs of one generation and miss measured times by
a quarter. A correction replaces the sum of latency L and transfer time X of one algorithm and protocol by

    time = ((a · L · (1 + g · w))^p + (b · X)^p)^(1/p)

with factors a and b, growth g of the latency from the fewest threads per channel (w = 0) to 512 (w = 1, see
`thread_share`), and an exponent p: 1 is NCCL's sum, above 1 latency and transfer overlap. For point-to-point messages

    X = max(port time, part / r) + min(part, step) / r

where a part is what one channel carries of a message, r the rate of a channel, and the last term the time in which the
first step of a part is copied before anything arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

_FEWEST_THREADS, _MANY_THREADS = 96, 512


@dataclass(frozen=True, slots=True)
class Correction:
    """Correction of NCCL's constants by measurements; the default leaves them as they are."""

    latency_factor: float = 1.0
    latency_growth: float = 0.0
    transfer_factor: float = 1.0
    exponent: float = 1.0
    channel_gbytes_per_s: float = float("inf")
    """Of point-to-point messages, 10⁹ B/s."""

    def time_us(
        self, latency_us: NDArray[np.float64], transfer_us: NDArray[np.float64], thread_share: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """[sizes] corrected time of collectives."""
        latency = self.latency_factor * latency_us * (1 + self.latency_growth * thread_share)
        return self._joined(latency, self.transfer_factor * transfer_us)

    def message_time_us(
        self,
        latency_us: NDArray[np.float64],
        port_us: NDArray[np.float64],
        part_bytes: NDArray[np.int64],
        step_bytes: int,
    ) -> NDArray[np.float64]:
        """[sizes] corrected time of point-to-point operations."""
        bytes_per_us = 1e3 * self.channel_gbytes_per_s
        stream = np.maximum(self.transfer_factor * port_us, part_bytes / bytes_per_us)
        return self._joined(
            self.latency_factor * latency_us, stream + np.minimum(part_bytes, step_bytes) / bytes_per_us
        )

    def _joined(self, latency: NDArray[np.float64], transfer: NDArray[np.float64]) -> NDArray[np.float64]:
        p = self.exponent
        joined: NDArray[np.float64] = (latency**p + transfer**p) ** (1 / p)
        return joined


LIMITS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "latency_factor": (1e-6, 1e6),
        "latency_growth": (-0.99, 1e3),
        "transfer_factor": (1e-6, 1e6),
        "exponent": (0.1, 10.0),
        "channel_gbytes_per_s": (1e-3, float("inf")),
    }
)
"""Of the fields of a correction: a hundred times what fits to measurements give, and times stay finite."""


def check_correction(correction: Correction, where: str) -> None:
    """Raises:
    InputError: naming ``where``, and a field outside its `LIMITS`.
    """
    for name, (least, most) in LIMITS.items():
        if not least <= (found := getattr(correction, name)) <= most:
            raise InputError(f"{where} {name}: found {found:g}, expected {least:g} to {most:g}")


def thread_share(threads: NDArray[np.int64]) -> NDArray[np.float64]:
    """[sizes] 0 for the fewest threads per channel that NCCL uses (96), 1 from 512, by octaves between."""
    threads = np.clip(threads, _FEWEST_THREADS, _MANY_THREADS)
    share: NDArray[np.float64] = np.log2(threads / _FEWEST_THREADS) / np.log2(_MANY_THREADS / _FEWEST_THREADS)
    return share
