"""Exchange between attention workers and FFN workers that are other GPUs (M2N), and back (N2M).

Every attention worker sends the rows of its tokens straight to the FFN workers, one message per pair of workers with
all rows for that worker, and gets results back the same way; attention workers send nothing to each other. How many
copies of a row go to each FFN worker is the caller's: one per chosen expert, as DeepEP's low-latency kernels send, or
one per worker that has any. Or one copy of a row goes to each other node that has an expert for it, where NVLink takes
it to the workers that have some, and results are added up on the way back, as DeepEP's normal kernels do.

No measurements of such exchanges are public in a form that could be priced from (MegaScale-Infer, arXiv 2504.02263,
section 5, and Step-3, arXiv 2507.19427, show medians of libraries of their own), so launches and port rates are those
of DeepEP's kernels of either mode on as many nodes, which do the same work per message; ports share their rate in
proportion to bytes, and a call takes at least as long as its busiest port, be it a sender's or a receiver's. Ignored:
counts that are exchanged first, queue and buffer limits, SMs that are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from boundary.errors import InputError
from simccl.algorithms.flow_rates import PS_PER_US
from simccl.collective import Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.engines.deepep import is_measured, launch_us, limited_port_rates
from simccl.engines.expected_routing import Reached, parts_wanted
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_mode import SCALE_BLOCK, ExpertMode, Phase
from simccl.engines.expert_plan import propagation_ps
from simccl.engines.expert_routing import SlotPostcondition, Slots, TokenPostcondition, Wanted
from simccl.engines.hierarchical import Hierarchical, hierarchical_flows
from simccl.engines.low_latency import LowLatency, low_latency_flows
from simccl.nccl.point_to_point import message_port_rates
from simccl.plan.flows import PlannedFlows
from simccl.plan.lowering import PortRates
from simccl.plan.plan import Plan, empty_plan
from simccl.plan.postcondition import Postcondition


@dataclass(frozen=True, slots=True)
class WorkerExchange:
    """Rows between the first ranks of a communicator, the attention workers, and the others, the FFN workers.

    Raises:
        InputError: no attention worker, or negative or no copies.
    """

    attention_workers: int
    hidden: int
    fp8: bool
    """Rows travel quantised to FFN workers; results are always BF16."""
    copies: tuple[float, ...]
    """[FFN workers] copies of one row that each gets, or sends back, on average."""
    by_node: ExpertChoice | None = None
    """How tokens choose among the experts of the FFN workers, where one copy goes to each node; ``copies`` do not
    count then."""

    def __post_init__(self) -> None:
        if self.attention_workers < 1:
            raise InputError(f"attention_workers: found {self.attention_workers}, expected at least 1")
        if self.hidden < 1 or (self.fp8 and self.hidden % SCALE_BLOCK):
            raise InputError(f"hidden: found {self.hidden}, expected a multiple of {SCALE_BLOCK if self.fp8 else 1}")
        if not self.copies or min(self.copies) < 0.0 or not sum(self.copies):
            raise InputError("copies: found none or negative ones, expected some for the FFN workers")

    @property
    def workers(self) -> int:
        """Of both kinds."""
        return self.attention_workers + len(self.copies)

    def row_bytes(self, *, is_return: bool) -> int:
        """As in messages of DeepEP's low-latency kernels."""
        kernels = LowLatency()
        if is_return:
            return kernels.combine_bytes(self.hidden, 1)
        return kernels.dispatch_bytes(self.hidden, 1, fp8=self.fp8)

    def slots(self, tokens: float, *, is_return: bool) -> Slots:
        """Messages of attention workers that have so many tokens each; a place per FFN worker."""
        row_bytes = self.row_bytes(is_return=is_return)
        sizes = np.rint(tokens * row_bytes * np.array(self.copies)).astype(np.int64)
        bounds = np.zeros((self.workers, len(sizes) + 1), dtype=np.int64)
        bounds[: self.attention_workers, 1:] = np.cumsum(sizes)
        return Slots(bounds, np.arange(self.attention_workers, self.workers, dtype=np.int64))

    def wanted(
        self, tokens: float, communicator: Communicator, *, is_return: bool
    ) -> tuple[tuple[Wanted, ...], list[list[int]]]:
        """[workers] parts of the tokens of each, of which FFN workers have none; [nodes] FFN workers there."""
        assert self.by_node is not None, "rows go straight to FFN workers"
        kernels, choice = Hierarchical(), self.by_node
        row_bytes = kernels.dispatch_bytes(self.hidden, choice.top_k, fp8=self.fp8)
        if is_return:
            row_bytes = kernels.combine_bytes(self.hidden, choice.top_k)
        first, count = self.attention_workers, len(self.copies)
        entries = [[rank for rank in ranks if rank >= first] for ranks in communicator.ranks_of_node]
        on_node = np.array([[first + worker in ranks for worker in range(count)] for ranks in entries if ranks])
        of_workers = choice.reached(np.eye(count, dtype=np.bool_))
        reached: list[Reached] = [
            (tuple(ranks), float(share), of_workers[np.array(ranks) - first])
            for ranks, share in zip([ranks for ranks in entries if ranks], choice.reached(on_node), strict=True)
        ]
        of_attention = parts_wanted(round(tokens * row_bytes), reached, self.workers)
        nothing = Wanted(np.zeros((0, self.workers), dtype=np.bool_), np.zeros(1, dtype=np.int64))
        return (of_attention,) * first + (nothing,) * count, entries


def worker_exchange_plan(
    exchange: WorkerExchange, tokens: float, communicator: Communicator, *, is_return: bool
) -> Plan:
    """Rows of as many tokens of every attention worker to the FFN workers, or results back.

    ``size_bytes`` of the plan is what one attention worker sends, or gets.

    Raises:
        InputError: an exchange of another number of workers.
    """
    if exchange.workers != communicator.size:
        raise InputError(
            f"exchange: found {exchange.workers} workers, expected {communicator.size} as in the communicator"
        )
    at, phase = communicator.shape(), Phase.COMBINE if is_return else Phase.DISPATCH
    rates = message_port_rates(at)
    mode, postcondition, flows_at = _exchanged(exchange, tokens, communicator, is_return=is_return)
    flows = flows_at(rates)
    if not len(flows):
        return empty_plan(Collective.ALL_TO_ALL, 0, communicator)
    if is_measured(at):
        unlimited = flows
        rates = limited_port_rates(mode, phase, at, lambda limits: _busiest_s(unlimited, communicator, limits))
        flows = flows_at(rates)
    launch_ps = round(launch_us(mode, phase, at) * PS_PER_US)
    return Plan(
        op=Collective.ALL_TO_ALL,
        size_bytes=postcondition.moved_bytes(0),
        communicator=communicator,
        algorithm=mode.name,
        protocol=Protocol.SIMPLE,
        channels=1,
        base_latency_ps=max(launch_ps - propagation_ps(flows, communicator), 0),
        flows=flows,
        postcondition=postcondition,
    )


def _exchanged(
    exchange: WorkerExchange, tokens: float, communicator: Communicator, *, is_return: bool
) -> tuple[ExpertMode, Postcondition, Callable[[PortRates], PlannedFlows]]:
    """The mode whose kernels carry rows, what has to arrive, and the flows at rates of ports."""
    if exchange.by_node is None:
        slots = exchange.slots(tokens, is_return=is_return)

        def straight(rates: PortRates) -> PlannedFlows:
            return low_latency_flows(slots, communicator, rates, is_combine=is_return)

        return LowLatency(), SlotPostcondition(slots, is_return), straight
    wanted, entries = exchange.wanted(tokens, communicator, is_return=is_return)

    def in_two_steps(rates: PortRates) -> PlannedFlows:
        return hierarchical_flows(wanted, communicator, rates, is_combine=is_return, entries=entries)

    return Hierarchical(), TokenPostcondition(wanted, is_return), in_two_steps


def _busiest_s(flows: PlannedFlows, communicator: Communicator, rates: PortRates) -> float:
    """Time of the busiest port, sender's or receiver's, at these rates."""
    node = communicator.node_of_rank()
    crosses = node[flows.src] != node[flows.dst]
    most = [
        np.bincount(ends[kind], weights=flows.payload_bytes[kind], minlength=communicator.size).max() / rate
        for kind, rate in ((crosses, rates.network_bytes_per_s), (~crosses, rates.nvlink_bytes_per_s))
        for ends in (flows.src, flows.dst)
    ]
    return float(max(most))
