"""Registry of algorithms, in the order in which NCCL compares its own: among equal times the first wins.

An algorithm that comes with the package is one module and its line here. Any other is registered at run time:
``with registered(Mine()):`` around what uses it, or `register` for the rest of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simccl.algorithms.algorithm import CollectiveAlgorithm, EngineKernel, NcclAlgorithm
from simccl.algorithms.collnet import CollnetChain, CollnetDirect
from simccl.algorithms.multimem import Multimem
from simccl.algorithms.nvls import Nvls, NvlsTree
from simccl.algorithms.one_shot import OneShot
from simccl.algorithms.pairwise import Pairwise
from simccl.algorithms.pat import Pat
from simccl.algorithms.ring import Ring
from simccl.algorithms.tree import Tree
from simccl.algorithms.two_shot import TwoShot
from simccl.collective import Algorithm
from simccl.nccl.costs import AlgorithmCosts

_SHIPPED: tuple[CollectiveAlgorithm, ...] = (
    Tree(),
    Ring(),
    CollnetDirect(),
    CollnetChain(),
    Nvls(),
    NvlsTree(),
    Pat(),
    Pairwise(),
    OneShot(),
    TwoShot(),
    Multimem(),
)
_REGISTERED: dict[str, CollectiveAlgorithm] = {str(algorithm.name): algorithm for algorithm in _SHIPPED}


def register(algorithm: CollectiveAlgorithm) -> None:
    """Adds an algorithm, which is then chosen, planned and proved like those of the package.

    Raises:
        ValueError: a name that is taken.
    """
    if algorithm.name in _REGISTERED or algorithm.name == Algorithm.NONE:
        raise ValueError(f"algorithm: found the name {str(algorithm.name)!r}, which another one has")
    _REGISTERED[str(algorithm.name)] = algorithm


@contextmanager
def registered(algorithm: CollectiveAlgorithm) -> Iterator[None]:
    """An algorithm registered for as long as the context lasts."""
    register(algorithm)
    try:
        yield
    finally:
        del _REGISTERED[str(algorithm.name)]


def nccl_algorithms() -> tuple[NcclAlgorithm, ...]:
    """Algorithms among which the cost model chooses."""
    return tuple(found for found in _REGISTERED.values() if isinstance(found, NcclAlgorithm))


def engine_kernels() -> tuple[EngineKernel, ...]:
    """All-reduce kernels of inference engines."""
    return tuple(found for found in _REGISTERED.values() if isinstance(found, EngineKernel))


def find(name: str) -> CollectiveAlgorithm | None:
    """The algorithm of that name; None where none has it."""
    return _REGISTERED.get(str(name))


def algorithm_of(costs: AlgorithmCosts) -> NcclAlgorithm:
    """The algorithm whose costs these are."""
    found = _REGISTERED[str(costs.algorithm)]
    assert isinstance(found, NcclAlgorithm)
    return found


def names() -> tuple[Algorithm, ...]:
    """Names of all algorithms."""
    return tuple(algorithm.name for algorithm in _REGISTERED.values())


def name_of(text: str) -> Algorithm:
    """The name of an algorithm, from text.

    Raises:
        ValueError: where no algorithm has it.
    """
    found = find(text)
    if found is None:
        raise ValueError(f"{text!r} is not a valid Algorithm")
    return found.name
