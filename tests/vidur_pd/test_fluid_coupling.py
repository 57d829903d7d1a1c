"""Coupling ``fluid``: instances of hand-made loads and transfers of hand-made flows on the two links of one cable."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from netsim import FlowGraph, LinkKind, LinkLog, NodeKind, Topology
from netsim.backends.fluid import FluidBackend
from netsim.topology import DuplexLink
from vidur_pd._core import Instance, Loop, PriceIteration, Stage
from vidur_pd.execution.iteration.pricer import LinkLoad, StageCommunication, StageCommunications
from vidur_pd.scheduling import RankState, VllmV1
from vidur_pd.scheduling.kv_blocks import CountingBlockPool
from vidur_pd.workload.request import Request

GBPS = 10**9
CAPACITY_BPS = 100 * GBPS
US = 10**6
WINDOW_PS = 5 * US
TOLD_IN_STEPS_OF = 5e-4
"""Of the capacity, in which transfers hear of loads, rounded up (``netsim/core/periodic_traffic.cpp``)."""
CABLE = Topology.from_cables(
    [(NodeKind.GPU, "a"), (NodeKind.GPU, "b")],
    [DuplexLink(0, 1, CAPACITY_BPS, 0, LinkKind.FABRIC)],
    gpus_per_node=1,
)
"""Link 0 leads from the first GPU to the second, link 1 back."""


class Iteration:
    """What every iteration of an instance is: compute and an exchange."""

    def __init__(self, compute_us: int, exchange: StageCommunication) -> None:
        self.compute_ps = compute_us * US
        self.exchange = exchange


def price(
    link: int,
    *,
    compute_us: int,
    communication_us: int,
    drain_us: float,
    flows: float = 1,
    busy_us: float | None = None,
) -> Iteration:
    """An iteration whose bytes need the whole of ``link`` for ``drain_us``; ``busy_us``: how long they are there."""
    load = LinkLoad(
        np.array([link]),
        np.array([drain_us * US * CAPACITY_BPS / 8 / 10**12]),
        np.array([flows], dtype=np.float64),
        np.array([drain_us if busy_us is None else busy_us]) * US,
    )
    return Iteration(compute_us, StageCommunication(communication_us * US, load, ()))


class Rig:
    """A loop of instances that each decode one request, an iteration for every token, in coupling ``fluid``."""

    def __init__(self, *iterations: Iteration, tokens: int = 1000) -> None:
        self.iterations = iterations
        self.network = FluidBackend(CABLE)
        self.log = LinkLog(2, 1 << 16, WINDOW_PS)
        self.loop = Loop(len(iterations), keeps_runs=True, links=self.log)
        self.loop.advance_with(self.network.stepped)
        self.loop.couple(self.network.load_periodically(len(iterations)))
        exchanges = StageCommunications(self.loop)
        self.numbers = [exchanges.remember(iteration.exchange) for iteration in iterations]
        self.instances: list[Instance] = []
        self._ends_ps: list[list[int]] = [[] for _ in iterations]
        for index in range(len(iterations)):
            self._add(index, tokens)

    def _add(self, index: int, tokens: int) -> None:
        pool = CountingBlockPool(1000)
        rank = RankState(pool, max_batched_tokens=64, max_seqs=8, max_model_len=4096)
        alone = {"has_runs": False, "has_drafts": False, "reports_launches": False, "launches_itself": True}
        self.instances.append(Instance(index, [rank], VllmV1(), 1))
        self.loop.add(self.instances[-1], **alone, pricing=[])
        rank.add(Request(index, f"r{index}", 1, tokens, 0))

    def launch(self) -> None:
        for index in range(len(self.iterations)):
            self.instances[index].wake()
        self.advance(0)

    def advance(self, until_ps: int) -> None:
        while (notice := self.loop.run(until_ps + 1)) is not None:
            self._price(notice)
        self.loop.move_to(until_ps)
        self.network.advance(until_ps)

    def ends_ps(self, instance: int = 0) -> list[int]:
        """Ends of the iterations so far."""
        runs = self.loop.iterations.take_runs()
        for index, end_ps in zip(runs["instance"].tolist(), runs["ends_ps"].tolist(), strict=True):
            self._ends_ps[index].append(end_ps)
        return self._ends_ps[instance]

    def use(self, link: int) -> NDArray[np.float64]:
        """[windows] share of the link's capacity that collectives have carried."""
        _, window, links, carried = self.log.rows()
        return np.bincount(window[links == link], carried[links == link]) * 8 * 10**12 / CAPACITY_BPS / WINDOW_PS

    def carry(self, link: int, flows: int, most_bps: int = 0) -> None:
        """A long transfer begins: so many flows that take what they find, or no more than a rate in all."""
        many = FlowGraph.from_lists(
            src=[link] * flows,
            dst=[1 - link] * flows,
            size_bytes=[10**15] * flows,
            flow_label=list(range(flows)),
            max_rate_bps=[most_bps // flows] * flows,
        )
        self.network.submit(many, self.loop.now_ps)
        self.loop.traffic_changes(self.loop.now_ps)

    def taken(self, link: int) -> float:
        """Share of a link that loads take from the transfers on it, which take all the rest."""
        return 1 - float(self.network.link_rates_bps(np.array([link]))[0]) / CAPACITY_BPS

    def _price(self, notice: object) -> None:
        assert isinstance(notice, PriceIteration)
        iteration, number = self.iterations[notice.instance.index], self.numbers[notice.instance.index]
        stage = Stage(iteration.compute_ps, iteration.exchange.communication_ps, load=number)
        notice.iteration.set_stages([stage], np.array([iteration.compute_ps], dtype=np.int64))


def test_an_iteration_alone_takes_its_compute_and_its_communication() -> None:
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.launch()
    rig.advance(300 * US)
    assert rig.ends_ps() == [100 * US, 200 * US, 300 * US]


def test_a_transfer_that_takes_what_it_finds_halves_the_link_of_one_flow() -> None:
    """30 of 40 µs are drain: they take 60 µs beside one other flow, so that the iteration takes 130 µs. On average the
    instance takes 30/130 of the link."""
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.carry(0, flows=1)
    rig.launch()
    rig.advance(130 * US)
    assert rig.ends_ps() == [130 * US]
    assert 30 / 130 <= rig.taken(0) <= 30 / 130 + TOLD_IN_STEPS_OF


def test_a_collective_of_many_flows_keeps_its_fair_share() -> None:
    """Three flows beside one: 3/4 of the link, 30 µs become 40 µs."""
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30, flows=3))
    rig.carry(0, flows=1)
    rig.launch()
    rig.advance(110 * US)
    assert rig.ends_ps() == [110 * US]


def test_a_transfer_that_is_slow_for_other_reasons_leaves_the_rest_of_the_link() -> None:
    """A transfer at a fifth of the link, held up elsewhere: 30 µs become 37.5 µs, not 60."""
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.carry(0, flows=1, most_bps=CAPACITY_BPS // 5)
    rig.launch()
    rig.advance(108 * US)
    assert rig.ends_ps() == [107_500_000]


def test_a_collective_that_cannot_fill_the_link_loses_nothing_to_a_transfer_that_fits_beside_it() -> None:
    """Two flows at a third of the link each: 30 µs of bytes take 45 µs on an idle link as well. One other flow leaves
    them the two thirds that they can use."""
    slow = price(0, compute_us=40, communication_us=60, drain_us=30, busy_us=45, flows=2)
    rig = Rig(slow)
    rig.carry(0, flows=1)
    rig.launch()
    rig.advance(100 * US)
    assert rig.ends_ps() == [100 * US]


def test_a_collective_that_cannot_fill_the_link_loses_what_it_could_use() -> None:
    """The same beside two other flows: half of the link instead of two thirds, so that 45 µs become 60 µs."""
    slow = price(0, compute_us=40, communication_us=60, drain_us=30, busy_us=45, flows=2)
    rig = Rig(slow)
    rig.carry(0, flows=2)
    rig.launch()
    rig.advance(115 * US)
    assert rig.ends_ps() == [115 * US]


def test_a_transfer_on_another_link_costs_nothing() -> None:
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.carry(1, flows=4)
    rig.launch()
    rig.advance(100 * US)
    assert rig.ends_ps() == [100 * US]


def test_what_is_done_when_a_transfer_comes_is_kept() -> None:
    """At 50 of 100 µs the iteration gets to take 130 µs: 65 µs are left."""
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.launch()
    rig.advance(50 * US)
    rig.carry(0, flows=1)
    rig.advance(115 * US)
    assert rig.ends_ps() == [115 * US]


def test_two_updates_at_one_instant_are_one() -> None:
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30))
    rig.launch()
    rig.carry(0, flows=1)
    rig.advance(0)
    executed = rig.loop.executed
    rig.loop.traffic_changes(10 * US)
    rig.loop.traffic_changes(10 * US)
    rig.advance(10 * US)
    assert rig.loop.executed == executed + 1


def test_an_idle_instance_leaves_its_links_to_the_transfers() -> None:
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30), tokens=1)
    rig.carry(0, flows=1)
    rig.launch()
    assert rig.taken(0) > 0
    rig.advance(200 * US)
    assert rig.instances[0].running_iterations == []
    assert rig.taken(0) == 0


def test_two_instances_on_one_link_slow_each_other_down_without_any_transfer() -> None:
    """Each is there as long as its bytes need beside the other: x = 30 (1 + x) / (100 + 30 x), that is 0.37 flows on
    average, so that 30 µs become 41 µs."""
    rig = Rig(*(price(0, compute_us=60, communication_us=40, drain_us=30) for _ in range(2)))
    rig.launch()
    rig.advance(2000 * US)
    for instance in range(2):
        ends_ps = rig.ends_ps(instance)
        period_us = (ends_ps[-1] - ends_ps[-2]) / US
        assert 100 + 30 * 0.36 < period_us < 100 + 30 * 0.375


def test_two_instances_on_links_of_their_own_do_not() -> None:
    rig = Rig(*(price(link, compute_us=60, communication_us=40, drain_us=30) for link in range(2)))
    rig.launch()
    rig.advance(1000 * US)
    assert rig.ends_ps(0) == rig.ends_ps(1) == [100 * US * turn for turn in range(1, 11)]


def test_instances_that_would_each_fill_a_link_share_it() -> None:
    """Three that communicate nine tenths of their time, of which the second and the third come while others are at it:
    in no window does the link carry more than it can, and with all three there it is nearly full."""
    rig = Rig(*(price(0, compute_us=10, communication_us=90, drain_us=90) for _ in range(3)), tokens=40)
    for instance in range(3):
        rig.instances[instance].wake()
        rig.advance((1 + instance) * 137 * US)
    rig.advance(5_000 * US)
    use = rig.use(0)
    assert use.max() <= 1 + 1e-9
    assert use[110:900].min() > 0.95


def test_an_instance_slows_down_as_soon_as_another_comes_and_not_with_its_next_iteration() -> None:
    """One of 100 µs, of which 90 on the link, is alone for 50 µs; then it gets about half of the link."""
    rig = Rig(*(price(0, compute_us=10, communication_us=90, drain_us=90) for _ in range(2)))
    rig.instances[0].wake()
    rig.advance(50 * US)
    rig.instances[1].wake()
    rig.advance(200 * US)
    assert 135 * US < rig.ends_ps(0)[0] < 145 * US


def test_collectives_of_many_flows_leave_a_tenth_to_transfers_and_slow_down_for_it() -> None:
    """A hundred flows beside one would get 99 % of the link; a transfer that finds nothing would never count."""
    rig = Rig(price(0, compute_us=1, communication_us=99, drain_us=99, flows=100), tokens=20)
    rig.carry(0, flows=1, most_bps=CAPACITY_BPS // 10)
    rig.launch()
    rig.advance(1_000 * US)
    assert rig.taken(0) == pytest.approx(0.9)
    assert rig.use(0)[:-1] == pytest.approx(0.9, rel=1e-3)
    assert rig.use(0).max() <= 0.9 * (1 + 1e-9)


def test_bytes_are_booked_at_the_speed_that_the_iteration_had() -> None:
    """At 50 of 100 µs a transfer makes the rest of the iteration take 65 µs: 30 µs of drain are half booked before."""
    rig = Rig(price(0, compute_us=60, communication_us=40, drain_us=30), tokens=2)
    rig.launch()
    rig.advance(50 * US)
    rig.carry(0, flows=1)
    rig.advance(115 * US)
    use = rig.use(0)
    assert use[:10] == pytest.approx(0.3)
    assert use[10:23] == pytest.approx(15 / 65)
    assert use.sum() * 5 == pytest.approx(30)
