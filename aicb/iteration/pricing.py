"""Times of operator lists: sums by phase, with what is estimated, what communicates and what follows the SM clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aicb.estimators.estimator import CostTable, Estimator
from aicb.kernels.elementwise import Elementwise
from aicb.measurements.gpu import Gpu
from aicb.model.precision import Precision
from aicb.operators.operator import Communication, Operator, Phase

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
    """All phases, and what the host adds (``host_ps``)."""
    host_ps: int
    """Kernels that prepare inputs, gaps between kernels; in a sequence what the host takes longer than the device."""
    phase_ps: tuple[int, ...]
    """By ``PHASES``, of the slowest rank; communication is 0."""
    communications: tuple[tuple[Communication, int], ...]
    """Collectives and how often each runs, with the sizes of the rank with the most tokens."""
    estimated_ps: int
    """Part of ``compute_ps`` that comes from flagged estimates."""
    estimated_operators: tuple[str, ...]
    """Their names, sorted."""
    prepare_ps: int = 0
    """Of the host, from the result before to the first kernel; hidden where iterations are decided ahead."""
    launch_ps: int = 0
    """Of the host from there on, until its result can be waited for; hidden as far as kernels take longer."""

    hand_over_ps: int = 0
    """Part of ``prepare_ps`` before the iteration reaches workers; they launch the one before it meanwhile."""

    @property
    def host_period_ps(self) -> int:
        """From one iteration to the next where the host takes longer than the device."""
        return self.prepare_ps + self.launch_ps - self.hand_over_ps

    def in_sequence(self) -> IterationCost:
        """The same where such iterations follow each other, decided ahead: the host's time where that is longer."""
        longer_ps = max(self.host_period_ps - self.compute_ps, 0)
        return replace(self, compute_ps=self.compute_ps + longer_ps, host_ps=self.host_ps + longer_ps)


def in_turn(costs: Sequence[IterationCost], host_ps: int) -> IterationCost:
    """Passes one after another that expose ``host_ps`` of host time together; what prepares them is the first's."""
    busy_ps = sum(cost.compute_ps - cost.host_ps for cost in costs)
    return IterationCost(
        compute_ps=busy_ps + host_ps,
        host_ps=host_ps,
        phase_ps=tuple(sum(parts) for parts in zip(*(cost.phase_ps for cost in costs), strict=True)),
        communications=tuple(what for cost in costs for what in cost.communications),
        estimated_ps=sum(cost.estimated_ps for cost in costs),
        estimated_operators=tuple(sorted({name for cost in costs for name in cost.estimated_operators})),
        prepare_ps=costs[0].prepare_ps,
        launch_ps=sum(cost.launch_ps for cost in costs),
        hand_over_ps=costs[0].hand_over_ps,
    )


@dataclass(frozen=True, slots=True)
class PricedOperators:
    """Priced operators that depend on the same integers."""

    phase_ps: tuple[int, ...]
    total_ps: int
    estimated_ps: int
    estimated: frozenset[str]
    communications: tuple[tuple[Communication, int], ...]
    clocked_ps: int
    """Part of ``total_ps`` that follows the SM clock."""
    tensor_ps: int
    """Load on the power budget, as time of dense products at the nominal peak of the tensor cores."""


@dataclass(frozen=True)
class Pricing:
    """An estimator with the GPU and the formats it prices for."""

    estimator: Estimator
    gpu: Gpu
    precision: Precision

    @cached_property
    def launch_floor_us(self) -> float:
        """Time that a fused operator saves: that of a kernel with nothing to do."""
        return self.estimator.price(Elementwise("add", 1, 1, 0)).time_us


def price_operators(operators: Sequence[Operator], pricing: Pricing) -> PricedOperators:
    """Sum over a list; fused operators save a launch each."""
    return price_lists([operators], pricing)[0]


def price_lists(lists: Sequence[Sequence[Operator]], pricing: Pricing) -> list[PricedOperators]:
    """``price_operators`` of each list, all worked out together."""
    computing = [[each for each in listed if not isinstance(each.kernel, Communication)] for listed in lists]
    operators = [operator for listed in computing for operator in listed]
    if not operators:
        return _summed(lists, computing, np.zeros((3, 0), dtype=np.int64), np.zeros(0, dtype=np.bool_))
    kernels = [kernel for operator in operators if not isinstance(kernel := operator.kernel, Communication)]
    costs = CostTable.from_costs(kernels, [operator.cost for operator in operators])
    found = pricing.estimator.times(costs)
    saved_us = np.where(_are_fused(computing), pricing.launch_floor_us, 0.0)
    counts = np.array([operator.count for operator in operators])
    loads_us = costs.loads_us(pricing.gpu, found.time_us - saved_us)
    loads_ps = np.rint(loads_us * counts * PS_PER_US).astype(np.int64)
    return _summed(lists, computing, loads_ps, found.is_estimate)


def _are_fused(lists: Sequence[Sequence[Operator]]) -> list[bool]:
    """[operators of all lists] whether each runs inside the kernel of the one before it."""
    fused: list[bool] = []
    for listed in lists:
        names = [operator.name for operator in listed]
        has_fused_norm = "q_norm" in names
        fused += [has_fused_norm and name in FUSED_OPERATORS for name in names]
    return fused


def _summed(
    lists: Sequence[Sequence[Operator]],
    computing: Sequence[Sequence[Operator]],
    loads_ps: NDArray[np.int64],
    are_estimates: NDArray[np.bool_],
) -> list[PricedOperators]:
    """Each list, of which the ``computing`` ones take ``loads_ps`` [3, computing]: total, clocked and tensor time."""
    time_ps = loads_ps[0]
    phases = np.array([_PLACES[operator.phase] for listed in computing for operator in listed], dtype=np.int64)
    rows = [
        *loads_ps,
        np.where(are_estimates, time_ps, 0),
        *(np.where(phases == of, time_ps, 0) for of in _PLACES.values()),
    ]
    ends = np.cumsum([0, *(len(listed) for listed in computing)])
    before = np.concatenate([np.zeros((len(rows), 1), dtype=np.int64), np.cumsum(rows, axis=1)], axis=1)
    sums = np.diff(before[:, ends], axis=1).T.tolist()
    estimated = _estimated_names(computing, are_estimates, ends)
    return [
        PricedOperators(tuple(phase_ps), total_ps, estimated_ps, names, _communications(listed), clocked_ps, tensor_ps)
        for listed, names, (total_ps, clocked_ps, tensor_ps, estimated_ps, *phase_ps) in zip(
            lists, estimated, sums, strict=True
        )
    ]


_PLACES = {phase: place for place, phase in enumerate(PHASES)}


def _communications(listed: Sequence[Operator]) -> tuple[tuple[Communication, int], ...]:
    return tuple((each.kernel, each.count) for each in listed if isinstance(each.kernel, Communication))


def _estimated_names(
    lists: Sequence[Sequence[Operator]], are_estimates: NDArray[np.bool_], ends: NDArray[np.int64]
) -> list[frozenset[str]]:
    """[lists] names of the estimated operators of each; ``ends``: number of operators before each list."""
    found: list[set[str]] = [set() for _ in lists]
    for operator in np.flatnonzero(are_estimates).tolist():
        place = int(np.searchsorted(ends, operator, side="right")) - 1
        found[place].add(lists[place][operator - int(ends[place])].name)
    return [frozenset(names) for names in found]
