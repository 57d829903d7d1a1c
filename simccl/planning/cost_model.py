"""NCCL's cost model: costs of the algorithms that it could use for a collective on a communicator.

Constants and rules are those of NCCL 2.30.7 (src/graph/tuning.cc, src/enqueue.cc), kept by each algorithm. Tested
against values computed by NCCL's own code, except for CollNet.

Assumed: the channels of `simccl.nccl.search`; no tuner plug-in; no user limits; data types other than fp8; one
collective at a time. Not modelled: symmetric-memory kernels on registered windows and copy-engine collectives.
"""

from __future__ import annotations

from functools import lru_cache

from simccl.algorithms.algorithm import NcclAlgorithm
from simccl.algorithms.registry import nccl_algorithms
from simccl.collective import Algorithm, Collective
from simccl.communicator.shape import CommunicatorShape
from simccl.nccl.costs import AlgorithmCosts


def cost_model(op: Collective, at: CommunicatorShape) -> tuple[AlgorithmCosts, ...]:
    """Costs of the algorithms for a collective with a ring over two or more ranks, in the order of comparison.

    Raises:
        UnsupportedTopology: where no search result exists.
    """
    return _costs(op, at, nccl_algorithms())


def algorithm_costs(op: Collective, at: CommunicatorShape, algorithm: Algorithm) -> AlgorithmCosts | None:
    """Costs of one algorithm, None where NCCL has no channels for it or does not use it for the collective."""
    return next((costs for costs in cost_model(op, at) if costs.algorithm == algorithm), None)


@lru_cache(maxsize=1024)
def _costs(op: Collective, at: CommunicatorShape, algorithms: tuple[NcclAlgorithm, ...]) -> tuple[AlgorithmCosts, ...]:
    found = (algorithm.costs(op, at) for algorithm in algorithms if op in algorithm.ops)
    return tuple(costs for costs in found if costs is not None)
