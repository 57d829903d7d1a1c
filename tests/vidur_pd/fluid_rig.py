"""A loop of instances with hand-made iterations, and transfers of hand-made flows, on the two links of one cable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, GraphHandle, LinkKind, LinkLog, NodeKind, Topology
from netsim.backends.fluid import FluidBackend
from netsim.topology import DuplexLink
from vidur_pd._core import CallDue, Instance, Loop, PriceIteration, RunningIteration, Stage
from vidur_pd.execution.clock import Priority
from vidur_pd.execution.iteration.pricer import LinkLoad, StageCommunication, StageCommunications
from vidur_pd.scheduling import RankState, VllmV1
from vidur_pd.scheduling.kv_blocks import CountingBlockPool
from vidur_pd.workload.request import Request

CAPACITY_BPS = 100 * 10**9
US = 10**6
WINDOW_PS = 5 * US
CABLE = Topology.from_cables(
    [(NodeKind.GPU, "a"), (NodeKind.GPU, "b")],
    [DuplexLink(0, 1, CAPACITY_BPS, 0, LinkKind.FABRIC)],
    gpus_per_node=1,
)
"""Link 0 leads from the first GPU to the second, link 1 back."""


@dataclass(frozen=True)
class StagePrice:
    """What a stage of every iteration of an instance is: compute and an exchange, of which compute may hide a part."""

    compute_ps: int
    exchange: StageCommunication
    not_overlapped_us: float = 0.0
    overlapped_us: Sequence[tuple[float, float, float]] = ()
    """See `vidur_pd._core.Stage`, which has them in picoseconds."""

    def stage(self, load: int) -> Stage:
        segments = [(compute * US, exchange * US, share) for compute, exchange, share in self.overlapped_us]
        return Stage(
            self.compute_ps,
            self.exchange.communication_ps,
            load=load,
            not_overlapped_ps=self.not_overlapped_us * US,
            overlapped=segments,
        )


def price(
    link: int,
    *,
    compute_us: int,
    communication_us: int,
    drain_us: float,
    flows: float = 1,
    busy_us: float | None = None,
) -> StagePrice:
    """A stage whose bytes need the whole of ``link`` for ``drain_us``; ``busy_us``: how long they are there."""
    load = LinkLoad(
        np.array([link]),
        np.array([drain_us * US * CAPACITY_BPS / 8 / 10**12]),
        np.array([flows], dtype=np.float64),
        np.array([drain_us if busy_us is None else busy_us]) * US,
    )
    return StagePrice(compute_us * US, StageCommunication(communication_us * US, load, ()))


class Rig:
    """Instances that each serve ``requests`` of one prompt token in coupling ``fluid``.

    ``prices`` are those of the stages of each instance. An instance with one stage decodes all its requests in an
    iteration; one with several takes them one by one.
    """

    def __init__(
        self, *prices: StagePrice | Sequence[StagePrice], tokens: int = 1000, requests: int = 1, has_runs: bool = False
    ) -> None:
        self._prices = [(found,) if isinstance(found, StagePrice) else tuple(found) for found in prices]
        self.network = FluidBackend(CABLE)
        self.log = LinkLog(2, 1 << 16, WINDOW_PS)
        self.loop = Loop(len(prices), keeps_runs=True, links=self.log)
        self.loop.advance_with(self.network.stepped)
        self.loop.couple(self.network.load_periodically(len(prices)))
        exchanges = StageCommunications(self.loop)
        self._loads = [[exchanges.remember(stage.exchange) for stage in stages] for stages in self._prices]
        self.instances: list[Instance] = []
        self._ends_ps: list[list[int]] = [[] for _ in prices]
        for index in range(len(prices)):
            rank = self._add(index, has_runs)
            for number in range(index * requests, (index + 1) * requests):
                rank.add(Request(number, f"r{number}", 1, tokens, 0))

    def _add(self, index: int, has_runs: bool) -> RankState:
        stages = len(self._prices[index])
        pool = CountingBlockPool(1000)
        rank = RankState(pool, max_batched_tokens=64 if stages == 1 else 1, max_seqs=8, max_model_len=4096)
        self.instances.append(Instance(index, [rank], VllmV1(), stages))
        traits = {"has_drafts": False, "reports_launches": False, "launches_itself": True}
        self.loop.add(self.instances[-1], has_runs=has_runs, **traits, pricing=[])
        return rank

    def launch(self) -> None:
        for instance in self.instances:
            instance.wake()
        self.advance(0)

    def advance(self, until_ps: int) -> None:
        """To the end of an instant."""
        call = self.loop.schedule_call(until_ps, Priority.DISPATCH)
        is_there = False
        while (notice := self.loop.run(until_ps + 1)) is not None:
            if isinstance(notice, CallDue):
                is_there |= notice.number == call
            else:
                self._price(notice)
        assert is_there
        self.network.advance(until_ps)

    def running(self, instance: int = 0) -> RunningIteration:
        """The iteration under way."""
        (found,) = self.instances[instance].running_iterations
        return found

    def ends_ps(self, instance: int = 0) -> list[int]:
        """Ends of the iterations so far, those of a run one by one when it has ended."""
        runs = self.loop.iterations.take_runs()
        owners = np.repeat(runs["instance"], runs["steps"])
        for index, end_ps in zip(owners.tolist(), runs["ends_ps"].tolist(), strict=True):
            self._ends_ps[index].append(end_ps)
        return self._ends_ps[instance]

    def use(self, link: int) -> NDArray[np.float64]:
        """[windows] share of the link's capacity that collectives have carried."""
        _, window, links, carried, _ = self.log.rows()
        return np.bincount(window[links == link], carried[links == link]) * 8 * 10**12 / CAPACITY_BPS / WINDOW_PS

    def carry(self, link: int, flows: int, most_bps: int = 0) -> GraphHandle:
        """A long transfer begins: so many flows that take what they find, or no more than a rate in all."""
        many = FlowGraph.from_lists(
            src=[link] * flows,
            dst=[1 - link] * flows,
            size_bytes=[10**15] * flows,
            flow_label=list(range(flows)),
            max_rate_bps=[most_bps // flows] * flows,
        )
        handle = self.network.submit(many, self.loop.now_ps)
        self.loop.traffic_changes(self.loop.now_ps)
        return handle

    def drop(self, handle: GraphHandle) -> None:
        """A transfer is broken off."""
        self.network.cancel(handle)
        self.loop.traffic_changes(self.loop.now_ps)

    def taken(self, link: int) -> float:
        """Share of a link that loads take from the transfers on it, which take all the rest."""
        return 1 - float(self.network.link_rates_bps(np.array([link]))[0]) / CAPACITY_BPS

    def _price(self, notice: object) -> None:
        assert isinstance(notice, PriceIteration)
        index = notice.instance.index
        pairs = zip(self._prices[index], self._loads[index], strict=True)
        stages = [stage_price.stage(load) for stage_price, load in pairs]
        compute_ps = sum(stage.compute_ps for stage in stages)
        notice.iteration.set_stages(stages, np.full(notice.iteration.steps, compute_ps, dtype=np.int64))
