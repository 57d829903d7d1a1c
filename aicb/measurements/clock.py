"""The SM clock of a power-limited GPU, and what of a kernel's time follows it.

Under load the driver lowers the clock until the board keeps its power limit, by up to a third and most for what keeps
the tensor cores busy. It limits power twice: what the board draws now, within some 65 ms, to 3 to 12 % above the
limit, and from 0.8 s on the mean of about a second, to the limit itself. A `ClockLaw` is one of these clocks as a
function of the tensor cores' share of their nominal peak, a line between a light and a heavy share: of a burst, and
settled (``aicb/data/h200/clocks.csv``, written by ``scripts/measure_clocks.py``). GPUs without such a measurement have
the laws of one that was measured, scaled by published figures (`ClockLaw.on`).

Not all kernels draw the power of dense products at equal shares. What others draw is a `PowerLoad`: the share at which
dense products would run at the clock that was counted under the kernel alone.

An iteration runs at the clock of its mean load, idle times of the device included: one of decodes alone, which others
follow without a pause, at the settled clock, one with prompts at that of a burst. Where prompts leave no pause for a
second either, or ranks communicate for much of the time, it is the other one; they are 10 to 50 MHz apart for heavy and
for light loads and up to 200 between, 1 to 6 % of the time of kernels. Also ignored: a single prompt after a pause runs
its first 65 ms at the clock of the reference and is up to 15 % faster than one of a burst; boards differ by some per
cent, also by temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core

STREAMED_SHARE = 0.83
"""Of the nominal bandwidth that large weights are read at on the H200: 4.0 of 4.8 TB/s."""


@dataclass(frozen=True, slots=True)
class PowerLoad:
    """Load of a kind of kernel on the power budget: the share of dense products that lowers the clock as much.

    ``slope · share + memory · streamed`` of the kernel's own share of the tensor cores' nominal peak, and of the part
    of its time in which large streams would move its bytes. One load holds for both laws. Fitted to clocks that the SMs
    of an H200 counted under the kernel alone, in bursts and settled (``scripts/fit_power_loads.py`` repeats it); root
    mean square errors below are of these.
    """

    slope: float = 1.0
    memory: float = 0.0


DENSE_PRODUCTS = PowerLoad()
"""34 products of bf16 and fp8: 48 and 52 MHz."""
BF16_EXPERTS = PowerLoad(slope=0.90, memory=0.18)
"""Of vLLM's Triton kernel: 28 runs, 42 and 70 MHz; as dense products 106 and 142."""
FP8_EXPERTS = PowerLoad(slope=1.25, memory=0.22)
"""Likewise, which scales partial sums outside the tensor cores: 50 runs, 34 and 65 MHz; as dense products 124
and 183."""
TILED_FP8_EXPERTS = PowerLoad(slope=0.99, memory=0.19)
"""The same runs where tiles are known: 34 and 61 MHz, with ``FILLING``."""
FILLING = 0.27
"""And so much of the share that the tensor cores have with the rows that only fill tiles."""
PROMPT_ATTENTION = PowerLoad(slope=0.70)
"""Of grouped queries over prompts: 8 runs, 25 and 32 MHz; as dense products 124 and 143. Expanded latents draw what
these do (2 runs, 25 and 21 MHz)."""
DECODE_ATTENTION = PowerLoad(memory=0.33)
"""Of grouped queries, by reading the cache, which weights read as fast do not: 10 runs, 74 and 72 MHz; as dense
products 170 and 296."""
WIDE_DECODE_ATTENTION = PowerLoad(memory=0.60)
"""Of heads of 256, which draw the limit: one shape on two boards."""
LATENT_DECODES = PowerLoad(slope=0.24, memory=0.48)
"""By FlashAttention-3: 6 runs, 61 and 50 MHz; as dense products 252 and 298."""


@dataclass(frozen=True, slots=True)
class ClockLaw:
    """SM clock against the tensor cores' share of their nominal peak."""

    reference_mhz: float
    """Clock that measured times are converted to."""
    light_mhz: float
    """Clock up to ``light_share``."""
    heavy_mhz: float
    """Clock from ``heavy_share`` on."""
    light_share: float
    heavy_share: float
    settled: ClockLaw | None = None
    """The law after seconds without a pause, at the same reference; this one if absent."""

    def of(self, *, is_decode: bool) -> ClockLaw:
        """The law of iterations of decodes alone, or of others."""
        return self.settled if is_decode and self.settled is not None else self

    def on(self, *, clocks: float, watts: float) -> ClockLaw:
        """The law of another GPU, from published figures.

        All clocks scale with the clock at which the peaks are stated, so that at the reference clock both reach the
        same share of them. The shares at which the clock falls scale with the power that is left per FLOP/s: energy per
        FLOP is taken to be equal at equal clocks, and to grow with the voltage squared, voltage with the clock, where
        the clock is higher. A lower clock is not credited: then another, older process counts as well.

        Args:
            clocks: boost clock of the other GPU over that of this one.
            watts: power limit per nominal FLOP/s, likewise.
        """
        headroom = watts / max(clocks, 1.0) ** 2
        return ClockLaw(
            reference_mhz=self.reference_mhz * clocks,
            light_mhz=self.light_mhz * clocks,
            heavy_mhz=self.heavy_mhz * clocks,
            light_share=self.light_share * headroom,
            heavy_share=self.heavy_share * headroom,
            settled=None if self.settled is None else self.settled.on(clocks=clocks, watts=watts),
        )

    @property
    def core(self) -> _core.ClockLaw:
        """The law in C++, which iterations and the methods below ask."""
        return _core.ClockLaw(
            reference_mhz=self.reference_mhz,
            light_mhz=self.light_mhz,
            heavy_mhz=self.heavy_mhz,
            light_share=self.light_share,
            heavy_share=self.heavy_share,
        )

    def mhz(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] clock under a steady load of this share."""
        return self.core.mhz(tensor_share)

    def slowdown(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] by which what follows the clock takes longer than at the reference."""
        return self.core.slowdown(tensor_share)


def steady_us(
    law: ClockLaw, time_us: NDArray[np.float64], clocked_us: NDArray[np.float64], tensor_us: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[kernels] times at the clock that each sustains when it runs back to back, as benchmarks time it.

    Args:
        law: of the device.
        time_us: times at the reference clock.
        clocked_us: the part of them that follows the clock.
        tensor_us: times at the tensor cores' nominal peak, as `PowerLoad.time_us` has them.
    """
    return time_us + clocked_us * (law.slowdown(tensor_us / time_us) - 1.0)


def clocked_share(time_us: float, moved_bytes: float, hbm_bytes_per_s: float) -> float:
    """Exponent β of ``time ∝ clock^-β``: 1 for a kernel bound by the SMs, 0 for one bound by memory.

    ``β = 1 − min(memory time / time, 1)²`` takes three measurements of 57 GEMMs at clocks between 1310 and 1830 MHz
    from a spread of 1.8 % to 0.4 % (median; 9.2 to 2.2 %, 90th percentile).
    """
    return _core.clocked_share(time_us, moved_bytes / (STREAMED_SHARE * hbm_bytes_per_s) * 1e6)


def clocked_shares(
    time_us: NDArray[np.float64], moved_bytes: NDArray[np.float64], hbm_bytes_per_s: float
) -> NDArray[np.float64]:
    """[kernels] ``clocked_share`` of each."""
    return _core.clocked_share(time_us, streaming_us(moved_bytes, hbm_bytes_per_s))


def at_reference_us(
    law: ClockLaw,
    time_us: NDArray[np.float64],
    mhz: NDArray[np.float64],
    moved_bytes: NDArray[np.float64],
    hbm_bytes_per_s: float,
) -> NDArray[np.float64]:
    """[kernels] times at the reference clock of the law, of kernels that took ``time_us`` at ``mhz``."""
    shares = clocked_shares(time_us, moved_bytes, hbm_bytes_per_s)
    return np.asarray(time_us * (mhz / law.reference_mhz) ** shares)


def streaming_us(moved_bytes: NDArray[np.float64], hbm_bytes_per_s: float) -> NDArray[np.float64]:
    """[kernels] time of moving so many bytes as large streams move."""
    return np.asarray(moved_bytes / (STREAMED_SHARE * hbm_bytes_per_s) * 1e6)
