"""The SM clock of a power-limited GPU, and what of a kernel's time follows it.

Under load the driver lowers the clock until the board keeps its power limit. It does so within some 65 ms and by up to
a third, most for what keeps the tensor cores busy: `ClockLaw` is the clock that remains after a quarter of a second of
one kernel, a function of the tensor cores' share of their nominal peak (``aicb/data/h200/clocks.csv``, written by
``scripts/measure_clocks.py``). Between a light and a heavy share it falls linearly.

An iteration runs at the clock of its mean share, idle times of the device included. Assumes that iterations like it go
before and after: a single prompt after a pause runs its first 65 ms at the clock of the reference and is up to 15 %
faster than a prompt under steady load. Ignores temperature, and boards that differ by some per cent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STREAMED_SHARE = 0.83
"""Of the nominal bandwidth that large weights are read at on the H200: 4.0 of 4.8 TB/s."""


@dataclass(frozen=True, slots=True)
class ClockLaw:
    """Sustained SM clock against the tensor cores' share of their nominal peak."""

    reference_mhz: float
    """Clock that measured times are converted to."""
    light_mhz: float
    """Clock up to ``light_share``."""
    heavy_mhz: float
    """Clock from ``heavy_share`` on."""
    light_share: float
    heavy_share: float

    def mhz(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] clock under a steady load of this share."""
        return np.interp(tensor_share, (self.light_share, self.heavy_share), (self.light_mhz, self.heavy_mhz))

    def stretch(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] by which what follows the clock takes longer than at the reference."""
        return self.reference_mhz / self.mhz(tensor_share)


def steady_us(
    law: ClockLaw, time_us: NDArray[np.float64], clocked_us: NDArray[np.float64], tensor_us: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[kernels] times at the clock that each sustains when it runs back to back, as benchmarks time it.

    Args:
        law: of the device.
        time_us: times at the reference clock.
        clocked_us: the part of them that follows the clock.
        tensor_us: times at the tensor cores' nominal peak.
    """
    return time_us + clocked_us * (law.stretch(tensor_us / time_us) - 1.0)


def clocked_share(time_us: float, moved_bytes: float, hbm_bytes_per_s: float) -> float:
    """Exponent β of ``time ∝ clock^-β``: 1 for a kernel bound by the SMs, 0 for one bound by memory.

    ``β = 1 − min(memory time / time, 1)²`` takes three measurements of 57 GEMMs at clocks between 1310 and 1830 MHz
    from a spread of 1.8 % to 0.4 % (median; 9.2 to 2.2 %, 90th percentile).
    """
    memory_us = moved_bytes / (STREAMED_SHARE * hbm_bytes_per_s) * 1e6
    return float(1.0 - min(memory_us / time_us, 1.0) ** 2) if time_us > 0 else 0.0


def clocked_shares(
    time_us: NDArray[np.float64], moved_bytes: NDArray[np.float64], hbm_bytes_per_s: float
) -> NDArray[np.float64]:
    """[kernels] ``clocked_share`` of each."""
    memory_us = moved_bytes / (STREAMED_SHARE * hbm_bytes_per_s) * 1e6
    by_memory = np.minimum(memory_us / np.where(time_us > 0, time_us, np.inf), 1.0)
    return np.where(time_us > 0, 1.0 - by_memory * by_memory, 0.0)
