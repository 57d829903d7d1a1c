"""Plans the dispatch of tokens to experts and the combination of what they return, in DeepEP's two modes.

On Hopper the rates of ports are those of DeepEP's kernels in closed form (`simccl.deepep`) for as many tokens as the
rank with the most has; elsewhere those of large all-to-alls. Skewed routing then takes longer by its busiest port.
"""

from __future__ import annotations

import numpy as np

from boundary.errors import InputError
from simccl.algorithms.expert_parallel import hierarchical_flows, low_latency_flows
from simccl.algorithms.pace import PS_PER_US
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.contents import Contents
from simccl.deepep import SCALE_BLOCK, Phase, dispatch_bytes, is_measured, launch_us, port_rates
from simccl.experts import ExpertRouting, SlotContents, TokenContents
from simccl.plan import Plan, PlannedFlows
from simccl.point_to_point import message_port_rates

_MODES = (Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY)


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


def _check(routing: ExpertRouting, communicator: Communicator, hidden: int, mode: Algorithm) -> None:
    if mode not in _MODES:
        raise InputError(f"mode: found {mode}, expected {' or '.join(_MODES)}")
    if routing.ranks != communicator.size:
        raise InputError(f"routing: found {routing.ranks} ranks, expected {communicator.size} as in the communicator")
    if hidden < 1 or hidden % SCALE_BLOCK:
        raise InputError(f"hidden: found {hidden}, expected a multiple of {SCALE_BLOCK} (values per scale)")


def _plan(
    routing: ExpertRouting, communicator: Communicator, mode: Algorithm, token_bytes: int, *, is_combine: bool
) -> Plan:
    at, phase = communicator.arrangement(), Phase.COMBINE if is_combine else Phase.DISPATCH
    most_tokens = max(len(ids) for ids in routing.chosen)
    rates = message_port_rates(at)
    if is_measured(at) and most_tokens and at.ranks > 1:
        rates = port_rates(mode, phase, most_tokens, token_bytes, top_k=routing.top_k, at=at)
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
        base_latency_ps=round(launch_us(mode, phase, at) * PS_PER_US) if len(flows) else 0,
        flows=flows,
        contents=contents,
    )


def _slots(routing: ExpertRouting, message_bytes: int, *, is_combine: bool) -> SlotContents:
    counts = np.array([routing.messages(rank) for rank in range(routing.ranks)])
    bounds = np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0))) * message_bytes
    return SlotContents(bounds, routing.rank_of_expert(np.arange(routing.experts)), is_combine)
