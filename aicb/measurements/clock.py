"""The SM clock of a power-limited GPU, and what of a kernel's time follows it.

Under load the driver lowers the clock until the board keeps its power limit. It does so within some 65 ms and by up to
a third, most for what keeps the tensor cores busy: `ClockLaw` is the clock that remains after a quarter of a second of
one kernel, a function of the tensor cores' share of their nominal peak (``aicb/data/h200/clocks.csv``, written by
``scripts/measure_clocks.py``). Between a light and a heavy share it falls linearly. GPUs without such a measurement
have the law of one that was measured, scaled by published figures (`ClockLaw.on`).

Not all kernels draw the power of dense products at equal shares. What others add is a `PowerLoad`: the share at which
dense products would run at the clock that was counted while the kernel was measured. vLLM's Triton kernel of fp8
experts, which scales partial sums outside the tensor cores, lowers the clock at any share. Attention was measured once
its clock had settled (``aicb/data/h200/attention_clocks.csv``): over prompts it draws less than dense products, and
decodes, whose tiles have 64 rows however few queries share them, lower the clock by reading the cache at full
bandwidth, which weights do not. Others count as dense products, also bf16 experts, though vLLM's kernel of these was
since measured at lower clocks (docs/accuracy/kernels.md, "Clocks").

An iteration runs at the clock of its mean load, idle times of the device included. Assumes that iterations like it go
before and after: a single prompt after a pause runs its first 65 ms at the clock of the reference and is up to 15 %
faster than a prompt under steady load. Ignores temperature, and boards that differ by some per cent.
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

    ``base + slope · share + memory · streamed`` of the kernel's own share of the tensor cores' nominal peak, and of the
    part of its time in which large streams would move its bytes. Fitted to clocks that the SMs counted on the H200
    (``scripts/fit_power_loads.py`` repeats it): of attention once they had settled; of fp8 experts while kernels of 1.5
    ms and more were measured, whose clock may have been on its way down, so that the load is at least this.
    """

    base: float = 0.0
    slope: float = 1.0
    memory: float = 0.0


DENSE_PRODUCTS = PowerLoad()
FP8_EXPERTS = PowerLoad(base=0.32, slope=0.43)
"""Of vLLM's fused kernel: 63 rows, 121 MHz root mean square; as dense products 223."""
PROMPT_ATTENTION = PowerLoad(slope=0.84)
"""Of grouped queries over prompts: 20 runs, 37 MHz root mean square; as dense products 89. Expanded latents draw no
less than these (6 runs, 65 MHz)."""
DECODE_ATTENTION = PowerLoad(memory=0.45)
"""Of grouped queries: 20 runs, 101 MHz root mean square; as dense products 331."""
LATENT_DECODES = PowerLoad(slope=0.33, memory=0.55)
"""By FlashAttention-3: 6 runs, 42 MHz root mean square; as dense products 304."""


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


def streaming_us(moved_bytes: NDArray[np.float64], hbm_bytes_per_s: float) -> NDArray[np.float64]:
    """[kernels] time of moving so many bytes as large streams move."""
    return np.asarray(moved_bytes / (STREAMED_SHARE * hbm_bytes_per_s) * 1e6)
