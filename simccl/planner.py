"""Plans a collective: chooses as NCCL does, lays the algorithm over the communicator, returns the flows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.chunks import Chunks
from simccl.algorithms.direct import one_shot_flows, two_shot_flows
from simccl.algorithms.nvls import has_equal_nvlink_nodes, nvls_flows
from simccl.algorithms.pace import PS_PER_US, Pace
from simccl.algorithms.pairwise import pairwise_flows
from simccl.algorithms.pat import blocks_per_message, pat_flows
from simccl.algorithms.pipelined_ring import pipelined_ring_flows
from simccl.algorithms.ring import RingHops, ring_flows
from simccl.algorithms.ring_loops import Loops, ring_loop_flows
from simccl.algorithms.send_recv import neighbour_matrix
from simccl.algorithms.tree import tree_flows
from simccl.choice import Choice, choose
from simccl.collective import (
    MAX_NVLINK_RANKS,
    MAX_PLAN_BYTES,
    Algorithm,
    Collective,
    Protocol,
    check_flows,
    check_plan_ranks,
    check_size,
    shares,
)
from simccl.communicator import Communicator
from simccl.contents import Contents, MessageContents, collective_contents
from simccl.custom_allreduce import Stack, engine_kernel, kernel_costs, moved_bytes
from simccl.plan import Plan, PlannedFlows, no_flows
from simccl.point_to_point import latencies_us, message_channels, message_port_rates
from simccl.search import Pattern
from simccl.timing import message_slowdown

_MOST_LOOPS_MERGED = 2**20
"""More than any plan has."""
_ON_SWITCHES = (Algorithm.NVLS, Algorithm.NVLS_TREE)
_OF_ENGINES = (Algorithm.ONE_SHOT, Algorithm.TWO_SHOT, Algorithm.MULTIMEM)


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked for, checked."""

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
    stack: Stack = Stack.NCCL,
) -> Plan:
    """The plan of one collective; sizes as in nccl-tests, see `Collective`.

    ``algorithm`` and ``protocol`` override the choice of NCCL, or of the inference engine that ``stack`` names, whose
    own all_reduce kernels run where it would use them; one_shot, two_shot and multimem are such kernels, vLLM's unless
    ``stack`` says otherwise, on the GPUs where they were measured. ``root`` is the rank of a broadcast or reduce. With
    ``coarsen`` the plan shows NCCL's loops, chunks, slices and FIFO credits, so many loops merged into one; without it
    all loops are merged, which takes about the same time with far fewer flows. One rank, or zero bytes, gives a plan
    without flows.

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
        return _nothing(request.op, size_bytes, communicator)
    kernel = _engine_kernel(request, stack)
    if kernel is not Algorithm.NONE:
        return _plan_engine_kernel(request, kernel, Stack.VLLM if stack is Stack.NCCL else stack)
    if request.op.has_ring:
        return _plan_chosen(request)
    if request.algorithm not in (None, Algorithm.PAIRWISE):
        raise InputError(f"algorithm: found {request.algorithm}, expected pairwise ({op} is point-to-point)")
    check_flows(communicator.size**2, f"{op} of {communicator.size} ranks")
    if request.op is Collective.SEND_RECV:
        matrix = neighbour_matrix(size_bytes, communicator.size)
    else:
        matrix = np.tile(np.diff(shares(size_bytes, communicator.size)), (communicator.size, 1))
    return _plan_messages(request.op, matrix, communicator, request.protocol)


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
    return _plan_messages(Collective.ALL_TO_ALL, matrix.astype(np.int64), communicator, None)


def _algorithm(name: str) -> Algorithm:
    known = [a for a in Algorithm if a not in (Algorithm.NONE, Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY)]
    if name not in known:
        raise InputError(f"algorithm: found {name!r}, expected one of {', '.join(known)}")
    return Algorithm(name)


def _plan_chosen(request: _Request) -> Plan:
    """By NCCL's choice among its algorithms, or the wanted one."""
    choice = _choice(request)
    pace = Pace.of(choice, request.size_bytes)
    in_switch_us = pace.nvlink_hop_us if choice.algorithm in _ON_SWITCHES else 0.0
    return Plan(
        op=request.op,
        size_bytes=request.size_bytes,
        communicator=request.communicator,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
        channels=choice.channels,
        base_latency_ps=round((pace.base_latency_us + in_switch_us) * PS_PER_US),
        flows=_flows(request, choice, pace),
        contents=_contents(request, choice.algorithm),
    )


def _contents(request: _Request, algorithm: Algorithm) -> Contents:
    ranks = request.communicator.size
    return collective_contents(request.op, request.size_bytes, ranks, algorithm, request.root)


def _choice(request: _Request) -> Choice:
    """What NCCL chooses; without an NVSwitch for every node, or with unequal nodes, what it chooses among rings."""
    asked = (request.op, request.size_bytes, request.communicator)
    choice = choose(*asked, algorithm=request.algorithm, protocol=request.protocol)
    if (
        request.algorithm is None
        and choice.algorithm in _ON_SWITCHES
        and not has_equal_nvlink_nodes(request.communicator)
    ):
        return choose(*asked, algorithm=Algorithm.RING, protocol=request.protocol)
    return choice


def _flows(request: _Request, choice: Choice, pace: Pace) -> PlannedFlows:
    op, size_bytes, communicator = request.op, request.size_bytes, request.communicator
    chunks = None
    if request.coarsen is not None:
        passes_on_parts = choice.protocol is not Protocol.SIMPLE or choice.algorithm in _ON_SWITCHES
        chunks = Chunks(choice.chunk_bytes * request.coarsen, choice.channels, passes_on_parts)
    match choice.algorithm:
        case Algorithm.RING if op in (Collective.BROADCAST, Collective.REDUCE):
            return pipelined_ring_flows(
                op, size_bytes, RingHops.over(communicator, choice.channels).orders, pace,
                root=request.root, hops_us=choice.latency_us - pace.base_latency_us, chunks=chunks,
            )  # fmt: skip
        case Algorithm.RING if request.coarsen is None:
            hops = RingHops.over(communicator, choice.channels)
            return ring_flows(op, size_bytes, hops, pace, choice.costs.network_steps)
        case Algorithm.RING:
            hops = RingHops.every(communicator, choice.channels)
            loops = Loops.of(choice.protocol, choice.chunk_bytes, request.coarsen or 1)
            return ring_loop_flows(op, size_bytes, hops, pace, loops, network_steps=choice.costs.network_steps)
        case Algorithm.TREE:
            is_balanced = choice.costs.graph.pattern is Pattern.BALANCED_TREE
            return tree_flows(
                size_bytes, communicator, pace,
                lanes=choice.costs.graph.channels, is_balanced=is_balanced, chunks=chunks,
            )  # fmt: skip
        case Algorithm.NVLS | Algorithm.NVLS_TREE:
            return nvls_flows(op, size_bytes, communicator, pace, chunks=chunks)
        case Algorithm.PAT:
            block_bytes = -(-size_bytes // communicator.size // choice.channels)
            aggregation = blocks_per_message(block_bytes, choice.chunk_bytes, communicator.size)
            return pat_flows(op, size_bytes, communicator.size, pace, aggregation=aggregation)
        case _:
            raise InputError(f"algorithm: found {choice.algorithm}, for which there are times but no flows")


def _engine_kernel(request: _Request, stack: Stack) -> Algorithm:
    """The engine's own kernel that is asked for, or that the engine would use; `Algorithm.NONE`: NCCL's turn."""
    if request.algorithm in _OF_ENGINES:
        return request.algorithm
    if request.algorithm or request.protocol or request.op is not Collective.ALL_REDUCE:
        return Algorithm.NONE
    return engine_kernel(stack, request.size_bytes, request.communicator.arrangement())


def _plan_engine_kernel(request: _Request, algorithm: Algorithm, stack: Stack) -> Plan:
    communicator = request.communicator
    if request.op is not Collective.ALL_REDUCE or communicator.nodes > 1:
        where = f"{communicator.nodes} node{'s' if communicator.nodes > 1 else ''}"
        raise InputError(f"algorithm: found {algorithm} for {request.op} over {where}, expected all_reduce on one node")
    if communicator.size > MAX_NVLINK_RANKS:
        raise InputError(f"ranks: found {communicator.size}, expected at most {MAX_NVLINK_RANKS} for {algorithm}")
    costs = kernel_costs(communicator.gpu, stack, algorithm)
    base_us = costs.synchronisation_us + (communicator.size - 2) * costs.peer_us
    return Plan(
        op=request.op,
        size_bytes=request.size_bytes,
        communicator=communicator,
        algorithm=algorithm,
        protocol=Protocol.SIMPLE,
        channels=1,
        base_latency_ps=round(base_us * PS_PER_US),
        flows=_engine_flows(request, algorithm, costs.gbytes_per_s * 1e9),
        contents=_contents(request, algorithm),
    )


def _engine_flows(request: _Request, algorithm: Algorithm, bytes_per_s: float) -> PlannedFlows:
    """``bytes_per_s`` go into, and out of, one GPU."""
    size_bytes, communicator = request.size_bytes, request.communicator
    if algorithm is Algorithm.ONE_SHOT:
        return one_shot_flows(size_bytes, communicator.size, bytes_per_s)
    if algorithm is Algorithm.TWO_SHOT:
        return two_shot_flows(size_bytes, communicator.size, bytes_per_s)
    moved = float(moved_bytes(algorithm, np.array([size_bytes]), communicator.size)[0])
    pace = Pace(
        protocol=Protocol.SIMPLE,
        base_latency_us=0.0,
        nvlink_hop_us=0.0,
        network_hop_us=0.0,
        bytes_per_s=bytes_per_s * size_bytes / moved,
    )
    return nvls_flows(request.op, size_bytes, communicator, pace, chunks=None)


def _plan_messages(
    op: Collective, matrix: NDArray[np.int64], communicator: Communicator, wanted: Protocol | None
) -> Plan:
    off_diagonal = int(matrix.sum() - np.trace(matrix))
    size_bytes = int(matrix.sum(axis=1).max()) if op is Collective.ALL_TO_ALL else int(matrix.max())
    if not off_diagonal:
        return _nothing(op, size_bytes, communicator)
    at = communicator.arrangement()
    channels = message_channels(at)
    is_ll = channels.uses_ll(matrix)
    if wanted is not None:
        if wanted is Protocol.LL128 or (wanted is Protocol.LL and at.nodes > 1):
            raise InputError(f"protocol: found {wanted}, expected simple, or ll on one node ({op} is point-to-point)")
        is_ll = np.full_like(is_ll, wanted is Protocol.LL)
    sent = matrix * ~np.eye(communicator.size, dtype=np.bool_)
    all_ll = bool(is_ll[sent > 0].all())
    busiest = max(size_bytes, int(matrix.sum(axis=0).max())) if op is Collective.ALL_TO_ALL else size_bytes
    slowdown = message_slowdown(op, busiest, at)
    flows = _slowed(pairwise_flows(matrix, communicator, channels, message_port_rates(at), is_ll), slowdown)
    base_us, _ = latencies_us(at, np.array([all_ll]))
    parts = int(channels.parts(np.array([sent.max()]))[0])
    used = np.unique((np.unique(flows.channel)[:, None] + np.arange(parts)) % channels.channels)
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.PAIRWISE,
        protocol=Protocol.LL if all_ll else Protocol.SIMPLE,
        channels=parts if op is Collective.SEND_RECV else len(used),
        base_latency_ps=round(float(base_us[0]) * slowdown * PS_PER_US),
        flows=flows,
        contents=MessageContents(matrix),
    )


def _slowed(flows: PlannedFlows, factor: float) -> PlannedFlows:
    """Latencies longer and rates smaller by a factor, so that the plan takes the time that measurements say."""
    return replace(
        flows,
        latency_ps=np.rint(flows.latency_ps * factor).astype(np.int64),
        max_rate_bytes_per_s=flows.max_rate_bytes_per_s / factor,
    )


def _nothing(op: Collective, size_bytes: int, communicator: Communicator) -> Plan:
    return Plan(
        op=op,
        size_bytes=size_bytes,
        communicator=communicator,
        algorithm=Algorithm.NONE,
        protocol=Protocol.SIMPLE,
        channels=0,
        base_latency_ps=0,
        flows=no_flows(),
        contents=MessageContents(np.broadcast_to(np.int64(0), (communicator.size, communicator.size))),
    )
