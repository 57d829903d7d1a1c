"""Times of operator lists: sums by phase, with what is estimated, what communicates and what follows the SM clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add

from aicb.clock import clocked_share
from aicb.estimators import Estimator
from aicb.estimators.roofline import Demand, demand
from aicb.gpu import Gpu
from aicb.operators import Communication, Elementwise, Operator, Phase
from aicb.precision import Precision

PHASES = tuple(Phase)
"""Order of ``IterationCost.phase_ps``."""

PS_PER_US = 1_000_000

FUSED_OPERATORS = frozenset({"k_norm", "rope"})
"""Run inside the kernel of the operator before them (q_norm): vLLM compiles head norms and RoPE into one kernel, so
they add their bytes but no launch."""


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Time of one iteration without its communication."""

    compute_ps: int
    """All phases and the exposed host time."""
    host_ps: int
    phase_ps: tuple[int, ...]
    """By ``PHASES``, of the slowest rank; communication is 0."""
    communications: tuple[tuple[Communication, int], ...]
    """Collectives and how often each runs, with the sizes of the rank with the most tokens."""
    estimated_ps: int
    """Part of ``compute_ps`` that rests on flagged estimates."""
    estimated_operators: tuple[str, ...]
    """Their names, sorted."""


@dataclass(frozen=True, slots=True)
class Part:
    """Priced operators that depend on the same integers."""

    phase_ps: tuple[int, ...]
    total_ps: int
    estimated_ps: int
    estimated: frozenset[str]
    communications: tuple[tuple[Communication, int], ...]
    clocked_ps: int
    """Part of ``total_ps`` that follows the SM clock."""
    tensor_ps: int
    """What the matrix products would take at the nominal peak of the tensor cores."""

    def __add__(self, other: Part) -> Part:
        return Part(
            tuple(map(add, self.phase_ps, other.phase_ps)),
            self.total_ps + other.total_ps,
            self.estimated_ps + other.estimated_ps,
            self.estimated | other.estimated,
            self.communications + other.communications,
            self.clocked_ps + other.clocked_ps,
            self.tensor_ps + other.tensor_ps,
        )

    def scaled_to(self, total_ps: int) -> Part:
        """The same kernels with ``total_ps`` of exposed time, all phases in proportion."""
        if self.total_ps == 0:
            return self
        phases = [time_ps * total_ps // self.total_ps for time_ps in self.phase_ps]
        phases[phases.index(max(phases))] += total_ps - sum(phases)
        return Part(
            tuple(phases),
            total_ps,
            self.estimated_ps * total_ps // self.total_ps,
            self.estimated,
            self.communications,
            self.clocked_ps * total_ps // self.total_ps,
            self.tensor_ps,
        )


NOTHING = Part((0,) * len(PHASES), 0, 0, frozenset(), (), 0, 0)


@dataclass(frozen=True)
class Pricing:
    """How operators are priced."""

    estimator: Estimator
    gpu: Gpu
    precision: Precision

    @cached_property
    def launch_floor_us(self) -> float:
        """What a fused operator saves: the time of a kernel with nothing to do."""
        return self.estimator.price(Elementwise("add", 1, 1, 0)).time_us

    def load(self, need: Demand, time_us: float) -> tuple[float, float]:
        """(part of the time that follows the clock, time at the tensor cores' nominal peak) [µs]."""
        share = clocked_share(time_us, need.moved_bytes, self.gpu.hbm_bytes_per_s)
        return share * time_us, need.flops / self.gpu.peak_flops[need.dtype] * 1e6


def price_operators(operators: Sequence[Operator], pricing: Pricing) -> Part:
    """Sum over a list; fused operators save a launch each."""
    phase_ps = dict.fromkeys(PHASES, 0)
    estimated_ps = clocked_ps = tensor_ps = 0
    estimated, communications = set(), []
    has_fused_norm = any(operator.name == "q_norm" for operator in operators)
    for operator in operators:
        if isinstance(operator.work, Communication):
            communications.append((operator.work, operator.count))
            continue
        found = pricing.estimator.price(operator.work)
        time_us, is_estimate = found.time_us, found.is_estimate
        if has_fused_norm and operator.name in FUSED_OPERATORS:
            time_us -= pricing.launch_floor_us
        clocked_us, tensor_us = pricing.load(demand(operator.work, pricing.precision), time_us)
        clocked_ps += round(clocked_us * operator.count * PS_PER_US)
        tensor_ps += round(tensor_us * operator.count * PS_PER_US)
        time_ps = round(time_us * operator.count * PS_PER_US)
        phase_ps[operator.phase] += time_ps
        if is_estimate:
            estimated_ps += time_ps
            estimated.add(operator.name)
    total_ps = sum(phase_ps.values())
    phases = tuple(phase_ps[phase] for phase in PHASES)
    return Part(phases, total_ps, estimated_ps, frozenset(estimated), tuple(communications), clocked_ps, tensor_ps)
