"""Coupling ``fluid``: instances of hand-made loads on two links, a network whose link rates the test sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aicb import IterationCost
from vidur_pd.events import EventQueue
from vidur_pd.execution.executor import LinkLoad, StagePrice
from vidur_pd.execution.flight import Flight
from vidur_pd.execution.fluid import FluidLauncher

GBPS = 10**9
CAPACITY_BPS = 100 * GBPS
US = 10**6


class Links:
    """Stands for the network and its transfers: rates and flows are what the test says, background what it is told."""

    def __init__(self, links: int = 2) -> None:
        self.rates_bps = np.zeros(links)
        self.background_bps = np.zeros(links)
        self.flows_on_links = np.zeros(links)
        self.active = 0
        self.asked: list[int] = []

    def carry(self, link: int, rate_bps: float, flows: int) -> None:
        self.rates_bps[link], self.flows_on_links[link] = rate_bps, flows
        self.active = int(self.flows_on_links.any())

    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None:
        self.background_bps[links] = rates_bps

    def link_rates_bps(self, links: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        assert links is not None, "rates of all links were asked for"
        self.asked += links.tolist()
        return self.rates_bps[links]


class Repeating:
    """An instance that launches the same iteration again and again until it is told to rest."""

    def __init__(self, index: int, launcher: FluidLauncher, queue: EventQueue, price: StagePrice) -> None:
        self.index, self.launcher, self.queue, self.price = index, launcher, queue, price
        self.stage_free_ps = [0]
        self.flights: list[Flight] = []
        self.ends_ps: list[int] = []
        self.rests = False

    def launch(self) -> None:
        this: Any = self
        flight = Flight(this, [], (self.price,), np.array([self.price.cost.compute_ps], dtype=np.int64))
        flight.start_ps = self.queue.now_ps
        self.flights.append(flight)
        self.launcher.launch(flight)

    def land(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self.ends_ps.append(self.queue.now_ps)
        if not self.rests:
            self.launch()


def price(
    link: int,
    *,
    compute_us: int,
    communication_us: int,
    drain_us: float,
    flows: float = 1,
    busy_us: float | None = None,
) -> StagePrice:
    """An iteration whose bytes need the whole of ``link`` for ``drain_us``; ``busy_us``: how long they are there."""
    load = LinkLoad(
        np.array([link]),
        np.array([drain_us * US * CAPACITY_BPS / 8 / 10**12]),
        np.array([flows], dtype=np.float64),
        np.array([drain_us if busy_us is None else busy_us]) * US,
    )
    return StagePrice(IterationCost(compute_us * US, 0, (), (), 0, ()), communication_us * US, load, ())


def rig() -> tuple[EventQueue, Links, FluidLauncher]:
    queue, links = EventQueue(), Links()
    return queue, links, FluidLauncher(queue, links, np.full(2, float(CAPACITY_BPS)), links)


def advance(queue: EventQueue, until_ps: int) -> None:
    while (at_ps := queue.next_event_ps()) is not None and at_ps <= until_ps:
        queue.run_next()
    queue.move_to(until_ps)


def test_an_iteration_alone_takes_its_compute_and_its_communication() -> None:
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    instance.launch()
    advance(queue, 300 * US)
    assert instance.ends_ps == [100 * US, 200 * US, 300 * US]
    assert not links.background_bps.any()


def test_a_transfer_that_takes_what_it_finds_halves_the_link_of_one_flow() -> None:
    """30 of 40 µs are drain: they take 60 µs beside one other flow, so that the iteration takes 130 µs. On average the
    instance takes 30/130 of the link."""
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    links.carry(0, CAPACITY_BPS, flows=1)
    instance.launch()
    advance(queue, 130 * US)
    assert instance.ends_ps == [130 * US]
    assert links.background_bps[0] == pytest.approx(CAPACITY_BPS * 30 / 130)


def test_a_collective_of_many_flows_keeps_its_fair_share() -> None:
    """Three flows beside one: 3/4 of the link, 30 µs become 40 µs."""
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30, flows=3))
    links.carry(0, CAPACITY_BPS, flows=1)
    instance.launch()
    advance(queue, 110 * US)
    assert instance.ends_ps == [110 * US]


def test_a_transfer_that_is_slow_for_other_reasons_leaves_the_rest_of_the_link() -> None:
    """A transfer at a fifth of the link, held up elsewhere: 30 µs become 37.5 µs, not 60."""
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    links.carry(0, CAPACITY_BPS / 5, flows=1)
    instance.launch()
    advance(queue, 108 * US)
    assert instance.ends_ps == [107_500_000]


def test_a_collective_that_cannot_fill_the_link_loses_nothing_to_a_transfer_that_fits_beside_it() -> None:
    """Two flows at a third of the link each: 30 µs of bytes take 45 µs on an idle link as well. One other flow leaves
    them the two thirds that they can use."""
    queue, links, launcher = rig()
    slow = price(0, compute_us=40, communication_us=60, drain_us=30, busy_us=45, flows=2)
    instance = Repeating(0, launcher, queue, slow)
    links.carry(0, CAPACITY_BPS, flows=1)
    instance.launch()
    advance(queue, 100 * US)
    assert instance.ends_ps == [100 * US]


def test_a_collective_that_cannot_fill_the_link_loses_what_it_could_use() -> None:
    """The same beside two other flows: half of the link instead of two thirds, so that 45 µs become 60 µs."""
    queue, links, launcher = rig()
    slow = price(0, compute_us=40, communication_us=60, drain_us=30, busy_us=45, flows=2)
    instance = Repeating(0, launcher, queue, slow)
    links.carry(0, CAPACITY_BPS, flows=2)
    instance.launch()
    advance(queue, 115 * US)
    assert instance.ends_ps == [115 * US]


def test_a_transfer_on_another_link_costs_nothing() -> None:
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    links.carry(1, CAPACITY_BPS, flows=4)
    instance.launch()
    advance(queue, 100 * US)
    assert instance.ends_ps == [100 * US]


def test_what_is_done_when_a_transfer_comes_is_kept() -> None:
    """At 50 of 100 µs the iteration gets to take 130 µs: 65 µs are left."""
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    instance.launch()
    advance(queue, 50 * US)
    links.carry(0, CAPACITY_BPS, flows=1)
    launcher.traffic_changes(50 * US)
    advance(queue, 115 * US)
    assert instance.ends_ps == [115 * US]


def test_an_update_looks_at_instances_on_links_with_transfers_alone() -> None:
    """Two instances in progress, a transfer comes to the link of the second: the first one's link is not asked for."""
    queue, links, launcher = rig()
    far, near = (
        Repeating(link, launcher, queue, price(link, compute_us=60, communication_us=40, drain_us=30))
        for link in range(2)
    )
    far.launch()
    near.launch()
    launcher.traffic_changes(0)
    advance(queue, 50 * US)
    links.carry(1, CAPACITY_BPS, flows=1)
    launcher.traffic_changes(50 * US)
    advance(queue, 50 * US)
    assert set(links.asked) == {1}
    links.carry(1, 0.0, flows=0)
    launcher.traffic_changes(80 * US)
    advance(queue, 120 * US)
    assert far.ends_ps == [100 * US]
    # 50 µs at full speed, 30 µs of which 30/130 of the 130 µs are done, the rest at full speed again.
    assert near.ends_ps == pytest.approx([round((80 + (65 - 30) * 100 / 130) * US)], abs=1)


def test_two_updates_at_one_instant_are_one() -> None:
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    instance.launch()
    links.carry(0, CAPACITY_BPS, flows=1)
    executed = queue.executed
    launcher.traffic_changes(10 * US)
    launcher.traffic_changes(10 * US)
    advance(queue, 10 * US)
    assert queue.executed == executed + 1


def test_an_instance_that_rests_leaves_its_links_to_the_transfers() -> None:
    queue, links, launcher = rig()
    instance = Repeating(0, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30))
    links.carry(0, CAPACITY_BPS, flows=1)
    instance.launch()
    instance.rests = True
    assert links.background_bps[0] > 0
    advance(queue, 200 * US)
    assert instance.flights == []
    assert links.background_bps[0] == 0


def test_two_instances_on_one_link_slow_each_other_down_without_any_transfer() -> None:
    """Each is there 30 of 100 µs: a bit less than 0.3 flows on average, 30 µs become less than 39 µs."""
    queue, _, launcher = rig()
    both = [Repeating(i, launcher, queue, price(0, compute_us=60, communication_us=40, drain_us=30)) for i in (0, 1)]
    for instance in both:
        instance.launch()
    advance(queue, 2000 * US)
    for instance in both:
        period_us = (instance.ends_ps[-1] - instance.ends_ps[-2]) / US
        assert 100 + 30 * 0.25 < period_us < 100 + 30 * 0.3


def test_two_instances_on_links_of_their_own_do_not() -> None:
    queue, _, launcher = rig()
    both = [Repeating(i, launcher, queue, price(i, compute_us=60, communication_us=40, drain_us=30)) for i in (0, 1)]
    for instance in both:
        instance.launch()
    advance(queue, 1000 * US)
    assert both[0].ends_ps == both[1].ends_ps == [100 * US * turn for turn in range(1, 11)]
