"""The mean SM clock over some time of device work, from the device's own counters.

A kernel of one block per SM reads the cycle counter of its SM and the global nanosecond timer; two such readings around
the work give cycles over time. The clock that NVML reports is a momentary value, up to tens of milliseconds old.
"""

from __future__ import annotations

from statistics import median

import torch

_WORDS = 3
"""SM, cycles, nanoseconds."""


class SmClock:
    """Reads the clock of the current device. Without Triton there is no reading."""

    def __init__(self) -> None:
        try:
            from aicb.profiling.kernels.counters import read_counters
        except ImportError:
            self._read = None
            return
        self._read = read_counters
        self._blocks = 2 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._readings = torch.zeros(2, self._blocks, _WORDS, dtype=torch.int64, device="cuda")
        for reading in self._readings:
            read_counters(reading)
        torch.cuda.synchronize()

    def start(self) -> None:
        """Enqueues the first reading."""
        self._enqueue(0)

    def stop(self) -> None:
        """Enqueues the second reading."""
        self._enqueue(1)

    def mean_mhz(self) -> float | None:
        """Median over the SMs, once both readings are done; ``None`` where no SM was seen by both."""
        if self._read is None:
            return None
        first, second = ({int(row[0]): row for row in reading} for reading in self._readings.cpu().numpy())
        pairs = [(first[sm], second[sm]) for sm in first.keys() & second.keys()]
        rates = [(b[1] - a[1]) / (b[2] - a[2]) * 1e3 for a, b in pairs if b[2] > a[2]]
        return float(median(rates)) if rates else None

    def _enqueue(self, which: int) -> None:
        if self._read is not None:
            self._read(self._readings[which])
