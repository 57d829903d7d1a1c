"""Planner of collectives: makes NCCL's choice, lays the algorithm over the communicator, and returns the flows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.algorithm import EngineKernel, FlowRequest
from simccl.algorithms.flow_rates import PS_PER_US, FlowRates
from simccl.algorithms.pairwise import message_matrix
from simccl.algorithms.registry import algorithm_of, find, names
from simccl.collective import (
    MAX_NVLINK_RANKS,
    MAX_PLAN_BYTES,
    Algorithm,
    Collective,
    Protocol,
    check_flows,
    check_plan_ranks,
    check_size,
)
from simccl.communicator.communicator import Communicator
from simccl.engines.all_reduce import AllReduceKernels, engine_kernel, kernel_costs, moved_bytes
from simccl.nccl.costs import Choice
from simccl.plan.plan import Plan, empty_plan
from simccl.planning.choice import choose
from simccl.planning.messages import plan_messages

_MOST_LOOPS_MERGED = 2**20
"""More than any plan has."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Arguments of `plan_collective`, parsed and checked."""

    op: Collective
    size_bytes: int
    communicator: Communicator
    algorithm: Algorithm | None
    protocol: Protocol | None
    root: int
    coarsen: int | None


def plan_collective(
    op: str,
    size_bytes: int,
    communicator: Communicator,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    root: int = 0,
    coarsen: int | None = None,
    stack: AllReduceKernels = AllReduceKernels.NCCL,
) -> Plan:
    """The plan of one collective; sizes as in nccl-tests, see `Collective`.

    ``algorithm`` and ``protocol`` override the choice of NCCL, or of the inference engine that ``stack`` names. Such an
    engine runs all_reduce kernels of its own where it would use them: one_shot, two_shot and multimem, on the GPUs on
    which they were measured; without ``stack`` these names mean vLLM's kernels. ``root`` is the rank of a broadcast or
    reduce. With ``coarsen`` the plan shows NCCL's loops, chunks, slices and FIFO credits, ``coarsen`` loops merged into
    one. Without it all loops are merged, which takes about the same time with far fewer flows. One rank, or zero bytes,
    gives a plan without flows.

    Raises:
        InputError: an unknown op, algorithm or protocol, a size below 0 or above 1 PiB, a rank that does not exist, an
            algorithm or protocol that NCCL cannot use here, or too many ranks or flows.
    """
    request = _Request(
        Collective.parse(op),
        size_bytes,
        communicator,
        None if algorithm is None else _algorithm(algorithm),
        None if protocol is None else Protocol.parse(protocol),
        root,
        coarsen,
    )
    check_size(size_bytes, MAX_PLAN_BYTES)
    check_plan_ranks(communicator.size)
    if not 0 <= root < communicator.size:
        raise InputError(f"root: found {root}, expected 0…{communicator.size - 1}")
    if coarsen is not None and not 1 <= coarsen <= _MOST_LOOPS_MERGED:
        raise InputError(f"coarsen: found {coarsen}, expected 1 to {_MOST_LOOPS_MERGED}")
    if size_bytes == 0 or communicator.size == 1:
        return empty_plan(request.op, size_bytes, communicator)
    kernel = _engine_kernel(request, stack)
    if kernel is not None:
        vllms = AllReduceKernels.VLLM if stack is AllReduceKernels.NCCL else stack
        return _plan_engine_kernel(request, kernel, vllms)
    if request.op.has_ring:
        return _plan_chosen(request)
    if request.algorithm not in (None, Algorithm.PAIRWISE):
        raise InputError(f"algorithm: found {request.algorithm}, expected pairwise ({op} is point-to-point)")
    check_flows(communicator.size**2, f"{op} of {communicator.size} ranks")
    matrix = message_matrix(request.op, size_bytes, communicator.size)
    return plan_messages(request.op, matrix, communicator, request.protocol)


def all_to_all_v(matrix_bytes: NDArray[np.integer], communicator: Communicator) -> Plan:
    """The plan of an all-to-all in which rank s sends ``matrix_bytes[s, d]`` bytes to rank d; the diagonal is local.

    Raises:
        InputError: if the matrix is not [ranks, ranks] of integers that are not negative.
    """
    matrix = np.asarray(matrix_bytes)
    expected = (communicator.size, communicator.size)
    if matrix.shape != expected:
        raise InputError(f"matrix_bytes: found shape {matrix.shape}, expected {expected}, one row per sending rank")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise InputError(f"matrix_bytes: found {matrix.dtype}, expected integers")
    if matrix.min() < 0:
        raise InputError(f"matrix_bytes: found {matrix.min()}, expected no negative value")
    return plan_messages(Collective.ALL_TO_ALL, matrix.astype(np.int64), communicator, None)


def _algorithm(name: str) -> Algorithm:
    found = find(name)
    if found is None:
        raise InputError(f"algorithm: found {str(name)!r}, expected one of {', '.join(names())}")
    return found.name


def _plan_chosen(request: _Request) -> Plan:
    """By NCCL's choice among its algorithms, or the wanted one."""
    choice = _choice(request)
    op, size_bytes, communicator = request.op, request.size_bytes, request.communicator
    algorithm, rates = algorithm_of(choice.costs), FlowRates.of(choice, size_bytes)
    wanted = FlowRequest(op, size_bytes, communicator, choice, rates, request.root, request.coarsen)
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
        channels=choice.channels,
        base_latency_ps=round((rates.base_latency_us + algorithm.unplanned_us(rates)) * PS_PER_US),
        flows=algorithm.flows(wanted),
        postcondition=algorithm.postcondition(op, size_bytes, communicator.size, request.root),
    )


def _choice(request: _Request) -> Choice:
    """The choice of NCCL; where that cannot be laid over the ranks, its choice among rings."""
    asked = (request.op, request.size_bytes, request.communicator)
    choice = choose(*asked, algorithm=request.algorithm, protocol=request.protocol)
    if request.algorithm is None and not algorithm_of(choice.costs).can_be_laid_over(request.communicator):
        return choose(*asked, algorithm=Algorithm.RING, protocol=request.protocol)
    return choice


def _engine_kernel(request: _Request, stack: AllReduceKernels) -> EngineKernel | None:
    """The engine's own kernel that is asked for, or that the engine would use; None: NCCL's turn."""
    name = request.algorithm
    if name is None and request.protocol is None and request.op is Collective.ALL_REDUCE:
        name = engine_kernel(stack, request.size_bytes, request.communicator.shape())
    kernel = None if name is None else find(name)
    return kernel if isinstance(kernel, EngineKernel) else None


def _plan_engine_kernel(request: _Request, kernel: EngineKernel, stack: AllReduceKernels) -> Plan:
    communicator, size_bytes = request.communicator, request.size_bytes
    if request.op is not Collective.ALL_REDUCE or communicator.nodes > 1:
        where = f"{communicator.nodes} node{'s' if communicator.nodes > 1 else ''}"
        raise InputError(
            f"algorithm: found {kernel.name} for {request.op} over {where}, expected all_reduce on one node"
        )
    if communicator.size > MAX_NVLINK_RANKS:
        raise InputError(f"ranks: found {communicator.size}, expected at most {MAX_NVLINK_RANKS} for {kernel.name}")
    costs = kernel_costs(communicator.gpu, stack, kernel.name, communicator.size)
    moved = moved_bytes(kernel, np.array([size_bytes], dtype=np.int64), communicator.size)
    base_us = costs.synchronisation_us + (communicator.size - 2) * costs.peer_us
    return Plan(
        op=request.op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=kernel.name,
        protocol=Protocol.SIMPLE,
        channels=1,
        base_latency_ps=round(base_us * PS_PER_US),
        flows=kernel.flows(size_bytes, communicator, float(moved[0] / costs.transfer_us(moved)[0]) * 1e6),
        postcondition=kernel.postcondition(request.op, size_bytes, communicator.size, request.root),
    )
