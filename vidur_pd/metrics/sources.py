"""What simulated times rest on: measurements, what was carried over from them, formulas, or the simulated network.

| source | of compute | of communication | error (68 %) |
|---|---|---|---|
| measured here | kernels in the GPU's own table | collectives in a node of H200s; real traffic (`rdma`) | 9 % |
| measured elsewhere | – | collectives in a node of other GPUs (nccl-tests); DeepEP's kernels | 8 % |
| transferred | kernels in another GPU's table | – | 11 %, to another architecture 27 %, another vendor 51 % |
| formula | rooflines, without a measurement near enough | collectives between nodes (NCCL's model); contention | 40 % |
| simulated | – | KV transfers; collectives with coupling `exact` | 2 % |

All-reduces with norms in FlashInfer's kernel among eight ranks are formula, too: it was measured among two and four.
SGLang's kernel of fp8 experts, by vLLM's on the same GPU, is transferred, as from a GPU of one architecture.

Errors are those of docs/accuracy.md, relative and as large as they were against what was not fitted: of whole
iterations of engines, 8.8 and 6.7 % (DeepSeek-V3 on vLLM; kernels alone 2 to 4 %); nccl-tests, 7.7 % at p90;
transfers between GPUs of one architecture 6 %, to another 25 %, to another vendor's twice that (a guess), on top of
that of the measured ones; rooflines, `aicb.estimators.roofline`; couplings, 2 %. Where GPUs wait for their host, the
error is the host's: launches of 17 recordings lie within 21 % (68 %) of their median, and within 78 % of the default
host, which is the fastest of them (``tests/validation/test_models.py``). What engines do besides iterations is in
none of them, nor is the error of links that are not as configured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from aicb.estimators.roofline import ROOFLINE_ERROR
from aicb.estimators.transfer_reference import VENDOR_FACTOR, Distance


class Source(StrEnum):
    """What a time rests on."""

    MEASURED_HERE = "measured_here"
    MEASURED_ELSEWHERE = "measured_elsewhere"
    TRANSFERRED = "transferred"
    FORMULA = "formula"
    SIMULATED = "simulated"


MEASURED_ERROR: Final = 0.09
TRANSFER_ERRORS: Final[Mapping[Distance, float]] = {
    Distance.SAME_ARCHITECTURE: math.hypot(MEASURED_ERROR, 0.06),
    Distance.OTHER_ARCHITECTURE: math.hypot(MEASURED_ERROR, 0.25),
    Distance.OTHER_VENDOR: math.hypot(MEASURED_ERROR, VENDOR_FACTOR * 0.25),
}
OWN_HOST_ERROR: Final = 0.21
"""Of a host from a file, as ``aicb profile host`` writes it: the same machine differs from minute to minute. And of the
median of recordings, ``virtual-machine``, as these differ from it."""
OTHER_HOST_ERROR: Final = 0.78
"""Of a recorded host that comes with `aicb`, another machine than the user's, as the default is off, the fastest of
them."""
ERRORS: Final[Mapping[Source, float]] = {
    Source.MEASURED_HERE: MEASURED_ERROR,
    Source.MEASURED_ELSEWHERE: 0.08,
    Source.TRANSFERRED: TRANSFER_ERRORS[Distance.OTHER_ARCHITECTURE],
    Source.FORMULA: ROOFLINE_ERROR,
    Source.SIMULATED: 0.02,
}
"""Relative, 68 %; of transfers that between architectures (`TRANSFER_ERRORS` has all)."""
ESTIMATES: Final = (Source.TRANSFERRED, Source.FORMULA)
"""Those that are flagged."""
PREFILL, DECODE = "prefill_compute", "decode_compute"
OF_COMPUTE: Final = (PREFILL, DECODE)
OF_COMMUNICATION: Final = ("prefill_communication", "decode_communication")
OF_KV: Final = ("kv_setup", "kv_transfer")


@dataclass(frozen=True, slots=True)
class PoolTime:
    """Time of the iterations of a pool, summed over its instances and pipeline stages."""

    compute_s: float
    communication_s: float
    carried: Distance | None
    """How far kernel times, or of experts those that are flagged, were carried from another GPU or kernel."""
    collectives: Source
    """Where most of its collectives come from."""


@dataclass(frozen=True, slots=True)
class TimeSources:
    """Seconds of compute, and of collectives, by what they rest on."""

    compute_s: Mapping[Source, float]
    collectives_s: Mapping[Source, float]
    transferred_error: float
    host_shares: Mapping[str, float] = field(default_factory=dict)
    """Of the time of prompts (`PREFILL`) and of decodes (`DECODE`), that in which GPUs wait for their host."""
    host_error: float = OTHER_HOST_ERROR

    @property
    def estimates(self) -> float:
        """Share of the time of iterations that rests on flagged estimates."""
        flagged = sum(of.get(source, 0.0) for of in (self.compute_s, self.collectives_s) for source in ESTIMATES)
        total = sum(self.compute_s.values()) + sum(self.collectives_s.values())
        return flagged / total if total else 0.0

    def shares(self, transfers_s: float, transfers: Source) -> dict[str, float]:
        """Of all seconds of iterations and KV transfers, by source."""
        seconds = dict.fromkeys(Source, 0.0)
        for of in (self.compute_s, self.collectives_s, {transfers: transfers_s}):
            for source, amount in of.items():
                seconds[source] += amount
        total = sum(seconds.values())
        return {source.value: amount / total for source, amount in seconds.items()} if total else {}

    def error_of(self, parts_s: Mapping[str, float]) -> float | None:
        """Relative error (68 %) of a latency with such parts, all errors in one direction; ``None`` for no latency.

        Waits count as what they wait for, in the proportion of the other parts: near saturation they change by more.
        """
        known = {
            **{part: self._of_compute(part) for part in OF_COMPUTE},
            **dict.fromkeys(OF_COMMUNICATION, self._mean(self.collectives_s)),
            **dict.fromkeys(OF_KV, ERRORS[Source.SIMULATED]),
        }
        served_s = sum(parts_s.get(part, 0.0) for part in known)
        if served_s <= 0:
            return None
        return sum(error * parts_s.get(part, 0.0) for part, error in known.items()) / served_s

    def _of_compute(self, part: str) -> float:
        share = self.host_shares.get(part, 0.0)
        return (1.0 - share) * self._mean(self.compute_s) + share * self.host_error

    def _mean(self, seconds: Mapping[Source, float]) -> float:
        total = sum(seconds.values())
        errors = {**ERRORS, Source.TRANSFERRED: self.transferred_error}
        return sum(errors[source] * amount for source, amount in seconds.items()) / total if total else 0.0


def time_sources(pools: Iterable[PoolTime], estimated_s: float, simulated: bool, contention_s: float) -> TimeSources:
    """Sources of all iterations of a run.

    Args:
        estimated_s: compute time that estimators have flagged.
        simulated: collectives are flows on the network (coupling ``exact``).
        contention_s: time of collectives beyond that on an idle fabric, by the rule of coupling ``fluid``.
    """
    listed = list(pools)
    compute_s = sum(pool.compute_s for pool in listed)
    transferred_s = min(sum(pool.compute_s for pool in listed if pool.carried is not None), estimated_s)
    of_compute = {
        Source.MEASURED_HERE: compute_s - estimated_s,
        Source.TRANSFERRED: transferred_s,
        Source.FORMULA: estimated_s - transferred_s,
    }
    of_collectives = dict.fromkeys(Source, 0.0)
    for pool in listed:
        of_collectives[Source.SIMULATED if simulated else pool.collectives] += pool.communication_s
    if not simulated and contention_s > 0:
        total_s = sum(of_collectives.values())
        idle = max(total_s - contention_s, 0.0) / total_s if total_s else 0.0
        of_collectives = {source: amount * idle for source, amount in of_collectives.items()}
        of_collectives[Source.FORMULA] += min(contention_s, total_s)
    errors = [TRANSFER_ERRORS[pool.carried] for pool in listed if pool.carried is not None]
    return TimeSources(of_compute, of_collectives, max(errors, default=0.0))
