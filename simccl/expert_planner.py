"""Plans the dispatch of tokens to experts and the combination of what they return, in DeepEP's two modes."""

from __future__ import annotations

import numpy as np

from simccl.algorithms.expert_parallel import hierarchical_flows, low_latency_flows
from simccl.algorithms.pace import PS_PER_US
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.contents import Contents
from simccl.errors import InputError
from simccl.experts import ExpertRouting, SlotContents, TokenContents
from simccl.plan import Plan, PlannedFlows
from simccl.point_to_point import message_port_rates

_SCALE_BLOCK = 128
_MODES = (Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY)

# Dispatch and combine of one token per rank on eight H100s, hidden 7168, 8 of 256 experts, DeepEP V1 with 24 SMs
# (aiconfigurator tables): nearly all of it is launch, counting and synchronisation.
_BASE_US = {Algorithm.LOW_LATENCY: (13.2, 14.4), Algorithm.HIERARCHICAL: (26.2, 48.2)}


def expert_dispatch(
    routing: ExpertRouting,
    communicator: Communicator,
    *,
    hidden: int,
    mode: Algorithm = Algorithm.HIERARCHICAL,
    fp8: bool = True,
) -> Plan:
    """Tokens to their experts: FP8 with one scale per 128 values, or BF16.

    ``size_bytes`` of the plan is the most that one rank's tokens amount to on the way.

    Raises:
        InputError: another mode, or a routing for other ranks.
    """
    _check(routing, communicator, hidden, mode)
    return _plan(routing, communicator, mode, dispatch_bytes(hidden, routing.top_k, mode, fp8=fp8), is_combine=False)


def expert_combine(
    routing: ExpertRouting, communicator: Communicator, *, hidden: int, mode: Algorithm = Algorithm.HIERARCHICAL
) -> Plan:
    """Results of experts back to the tokens' ranks in BF16: added up on the way (hierarchical) or at the end.

    Raises:
        InputError: as `expert_dispatch`.
    """
    _check(routing, communicator, hidden, mode)
    return _plan(routing, communicator, mode, 2 * hidden, is_combine=True)


def dispatch_bytes(hidden: int, top_k: int, mode: Algorithm, *, fp8: bool) -> int:
    """Bytes of one token in a dispatch, with scales and what says where it belongs (DeepEP V1).

    Low-latency: 16 bytes of header, values, scales. Hierarchical: values, scales, 8 bytes of source, expert ids and
    weights, up to whole 16 bytes.
    """
    values = hidden + 4 * (hidden // _SCALE_BLOCK) if fp8 else 2 * hidden
    if mode is Algorithm.LOW_LATENCY:
        return 16 + values
    return -(-(values + 8 + 4 * top_k + 4 * top_k) // 16) * 16


def _check(routing: ExpertRouting, communicator: Communicator, hidden: int, mode: Algorithm) -> None:
    if mode not in _MODES:
        raise InputError(f"mode: found {mode}, expected {' or '.join(_MODES)}")
    if routing.ranks != communicator.size:
        raise InputError(f"routing: found {routing.ranks} ranks, expected {communicator.size} as in the communicator")
    if hidden < 1 or hidden % _SCALE_BLOCK:
        raise InputError(f"hidden: found {hidden}, expected a multiple of {_SCALE_BLOCK} (values per scale)")


def _plan(
    routing: ExpertRouting, communicator: Communicator, mode: Algorithm, token_bytes: int, *, is_combine: bool
) -> Plan:
    rates = message_port_rates(communicator.arrangement())
    contents: Contents
    flows: PlannedFlows
    if mode is Algorithm.LOW_LATENCY:
        slots = _slots(routing, token_bytes, is_combine=is_combine)
        contents, flows = slots, low_latency_flows(slots, communicator, rates, token_bytes)
    else:
        needs = tuple(routing.needs(rank) for rank in range(routing.ranks))
        contents = TokenContents(needs, token_bytes, is_combine)
        flows = hierarchical_flows(routing, communicator, rates, token_bytes, is_combine=is_combine)
    return Plan(
        op=Collective.ALL_TO_ALL,
        size_bytes=max(contents.moved_bytes(rank) for rank in range(routing.ranks)),
        communicator=communicator,
        algorithm=mode if len(flows) else Algorithm.NONE,
        protocol=Protocol.SIMPLE,
        channels=1 if len(flows) else 0,
        base_latency_ps=round(_BASE_US[mode][is_combine] * PS_PER_US) if len(flows) else 0,
        flows=flows,
        contents=contents,
    )


def _slots(routing: ExpertRouting, message_bytes: int, *, is_combine: bool) -> SlotContents:
    counts = np.array([routing.messages(rank) for rank in range(routing.ranks)])
    bounds = np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0))) * message_bytes
    return SlotContents(bounds, routing.rank_of_expert(np.arange(routing.experts)), is_combine)
