"""Planner of the dispatch of tokens to experts and the combination of what they return, in DeepEP's two modes.

On Hopper the rates of ports are those of DeepEP's kernels in closed form (`simccl.engines.deepep`) for as many tokens
as the rank with the most has; elsewhere those of large all-to-alls. Skewed routing then takes longer by its busiest
port. Tokens are given one by one (`ExpertRouting`), or on average (`ExpectedRouting`), which even choice makes take the
closed form's time exactly.
"""

from __future__ import annotations

from boundary.errors import InputError
from simccl.algorithms.flow_rates import PS_PER_US
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.engines.deepep import expert_mode, is_measured, launch_us, port_rates
from simccl.engines.expert_mode import SCALE_BLOCK, ExpertMode, Phase
from simccl.engines.expert_routing import TokenRouting
from simccl.nccl.point_to_point import message_port_rates
from simccl.plan.flows import PlannedFlows
from simccl.plan.lowering import path_latencies_ps
from simccl.plan.plan import Plan


def expert_dispatch(
    routing: TokenRouting,
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
    chosen = _checked(routing, communicator, hidden, mode)
    if fp8 and hidden % SCALE_BLOCK:
        raise InputError(f"hidden: found {hidden}, expected a multiple of {SCALE_BLOCK} (values per scale)")
    token_bytes = chosen.dispatch_bytes(hidden, routing.choice.top_k, fp8=fp8)
    return _plan(routing, communicator, chosen, token_bytes, is_combine=False)


def expert_combine(
    routing: TokenRouting, communicator: Communicator, *, hidden: int, mode: Algorithm = Algorithm.HIERARCHICAL
) -> Plan:
    """Results of experts back to the tokens' ranks in BF16: added up on the way (hierarchical) or at the end.

    Raises:
        InputError: as `expert_dispatch`.
    """
    chosen = _checked(routing, communicator, hidden, mode)
    token_bytes = chosen.combine_bytes(hidden, routing.choice.top_k)
    return _plan(routing, communicator, chosen, token_bytes, is_combine=True)


def _checked(routing: TokenRouting, communicator: Communicator, hidden: int, mode: Algorithm) -> ExpertMode:
    chosen = expert_mode(mode)
    if routing.ranks != communicator.size:
        raise InputError(f"routing: found {routing.ranks} ranks, expected {communicator.size} as in the communicator")
    if hidden < 1:
        raise InputError(f"hidden: found {hidden}, expected at least 1")
    return chosen


def _plan(
    routing: TokenRouting, communicator: Communicator, mode: ExpertMode, token_bytes: int, *, is_combine: bool
) -> Plan:
    at, phase = communicator.shape(), Phase.COMBINE if is_combine else Phase.DISPATCH
    rates = message_port_rates(at)
    if is_measured(at) and routing.most_tokens and at.ranks > 1:
        rates = port_rates(mode, phase, routing.most_tokens, token_bytes, choice=routing.choice, at=at)
    postcondition, flows = mode.planned(routing, communicator, rates, token_bytes, is_combine=is_combine)
    launch_ps = round(launch_us(mode, phase, at) * PS_PER_US)
    return Plan(
        op=Collective.ALL_TO_ALL,
        size_bytes=max(postcondition.moved_bytes(rank) for rank in range(routing.ranks)),
        communicator=communicator,
        algorithm=mode.name if len(flows) else Algorithm.NONE,
        protocol=Protocol.SIMPLE,
        channels=1 if len(flows) else 0,
        base_latency_ps=max(launch_ps - propagation_ps(flows, communicator), 0) if len(flows) else 0,
        flows=flows,
        postcondition=postcondition,
    )


def propagation_ps(flows: PlannedFlows, communicator: Communicator) -> int:
    """Of the longest path: measured launches have it in them, and the network adds it."""
    gpus = communicator.gpu_ids()
    return int(path_latencies_ps(communicator.topology, gpus[flows.src], gpus[flows.dst]).max())
