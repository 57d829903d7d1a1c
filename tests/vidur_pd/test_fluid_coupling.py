"""Coupling ``fluid``: instances of hand-made loads and transfers of hand-made flows on the two links of one cable."""

from __future__ import annotations

import pytest

from tests.vidur_pd.fluid_rig import CAPACITY_BPS, US, Rig, price

TOLD_IN_STEPS_OF = 5e-4
"""Of the capacity, in which transfers hear of loads, rounded up (``netsim/core/periodic_traffic.cpp``)."""


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
    assert rig.loop.executed == executed + 2  # the other is the end of `advance`


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
