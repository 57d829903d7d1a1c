"""Rings and pipelines with loops, slices, queues and credits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim.flow import NO_FLOW
from simccl import Algorithm, Collective, Plan, Protocol, plan_collective, verify_plan
from simccl.nccl.work_split import channel_offsets
from simccl.planning.choice import choose
from tests.simccl.communicators import run_on_idle, spread

OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]


@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
@pytest.mark.parametrize("op", OPS)
@given(st.integers(1, 3_000_000), st.integers(1, 5), st.sampled_from([(1, 8), (1, 3), (2, 2), (3, 1)]))
@settings(max_examples=15)
def test_loops_are_right_for_any_size_and_coarseness(
    op: str, protocol: str, size: int, coarsen: int, shape: tuple[int, int]
) -> None:
    plan = plan_collective(op, size, spread(*shape), algorithm="ring", protocol=protocol, coarsen=coarsen)
    verify_plan(plan)


@given(st.integers(1, 1 << 24), st.sampled_from(OPS))
@settings(max_examples=30)
def test_coarsening_keeps_the_bytes_of_every_pair(size: int, op: str) -> None:
    def pairs(plan: Plan) -> np.ndarray:
        totals = np.zeros((8, 8), dtype=np.int64)
        np.add.at(totals, (plan.flows.src, plan.flows.dst), plan.flows.payload_bytes)
        return totals

    fine, coarse, merged = (
        pairs(plan_collective(op, size, spread(1, 8), algorithm="ring", coarsen=c)) for c in (1, 7, None)
    )
    assert fine.sum() == coarse.sum() == merged.sum()
    # Blocks are cut at 16-byte lines per channel (24) and loop, so that ranks' parts may shift by so much.
    assert np.abs(fine - merged).max() <= 2 * (16 * 24 * 8 + size // 1000)


def test_a_simple_all_reduce_is_cut_as_nccl_cuts_it() -> None:
    """2 ranks, 192 MiB over 24 channels: 8 MiB per channel are two loops of two chunks of 2 MiB, two slices of 1 MiB
    each; every slice makes two hops. 24 · 2 · 2 · 2 · 2 flows; four slices are in flight on a connection."""
    plan = plan_collective("all_reduce", 192 << 20, spread(1, 2), algorithm="ring", protocol="simple", coarsen=1)
    flows = plan.flows
    assert plan.channels == 24
    assert len(plan) == 24 * 2 * 2 * 2 * 2
    assert set(flows.payload_bytes.tolist()) == {1 << 20}
    connection = flows.channel * 2 + flows.src
    assert flows.order is not None
    assert flows.credit is not None
    for key in np.unique(connection).tolist():
        mine = np.flatnonzero(connection == key)
        assert (flows.order[mine] != NO_FLOW).sum() == len(mine) - 1
        assert (flows.credit[mine] != NO_FLOW).sum() == len(mine) - 4


def test_low_latency_protocols_have_eight_steps_in_flight() -> None:
    """LL128, 2 ranks: a channel has whole cells of 16 KiB of each block, 576,000 bytes per chunk. 24 channels of 352
    cells are ten chunks and a rest of 7,168 bytes for each rank; the first eight on a connection need no credit."""
    size = 24 * 2 * 352 * 16384
    plan = plan_collective("all_gather", size, spread(1, 2), algorithm="ring", protocol="ll128", coarsen=1)
    assert plan.flows.credit is not None
    assert len(plan) == 24 * 2 * 11
    assert set(plan.flows.payload_bytes.tolist()) == {576_000, 7_168}
    assert (plan.flows.credit == NO_FLOW).sum() == 24 * 2 * 8


def test_a_small_operation_is_cut_into_cells_of_nccls_work_split() -> None:
    """8 ranks, 512 KiB, LL128: 24 channels, but cells of 16 KiB, two for a channel: 16 channels have a part, at the
    pace of all together, so that the time is that of the merged plan but for a last line of 128 bytes in 14 hops."""
    options = {"algorithm": "ring", "protocol": "ll128"}
    fine = plan_collective("all_reduce", 512 << 10, spread(1, 8), coarsen=1, **options)
    merged = plan_collective("all_reduce", 512 << 10, spread(1, 8), **options)
    assert sorted(set(fine.flows.channel.tolist())) == list(range(16))
    lines_ps = 14 * 128 / fine.flows.max_rate_bytes_per_s.min() * 1e12
    assert 0 <= run_on_idle(fine) - run_on_idle(merged) <= lines_ps


def test_credits_are_returned_by_whoever_passes_the_data_on() -> None:
    """Three ranks: a slice may go when the one four back has arrived and its receiver's connection has taken it."""
    plan = plan_collective("all_gather", 600 << 20, spread(1, 3), algorithm="ring", protocol="simple", coarsen=1)
    flows = plan.flows
    assert flows.credit is not None
    assert flows.order is not None
    waiting, awaited = flows.credit_edges()
    one = int(np.flatnonzero((flows.credit != NO_FLOW) & (flows.step == 1))[0])
    slot = int(flows.credit[one])
    expected = {slot}
    data_waiting, data_awaited = flows.data_edges()
    for forwarder in data_waiting[data_awaited == slot].tolist():
        expected |= {int(flows.order[forwarder])} - {NO_FLOW}
    assert set(awaited[waiting == one].tolist()) == expected


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("coarsen", [1, 2, 8])
def test_slices_hide_at_most_the_latency_of_hops(op: str, coarsen: int) -> None:
    """NCCL's model adds up the latency of all hops; with slices later hops overlap with transfers, so that a large
    Simple ring is faster than that by up to its latency. With one slice per chunk (LL, LL128) nothing is hidden. Whole
    cells leave the last channel less than the others, which take as much longer."""
    communicator = spread(1, 8)
    for size in (1 << 16, 1 << 22, 1 << 26):
        fine = run_on_idle(plan_collective(op, size, communicator, algorithm="ring", coarsen=coarsen))
        chosen = choose(Collective(op), size, communicator, algorithm=Algorithm.RING)
        hidden_us = chosen.latency_us if chosen.protocol is Protocol.SIMPLE else 0.0
        parts = np.diff(channel_offsets(Collective(op), size, 8, chosen.protocol, chosen.channels))
        transfer_us = (chosen.time_us - chosen.latency_us) * parts.max() / parts.mean()
        slowest_us = chosen.latency_us + transfer_us
        assert (chosen.time_us - hidden_us) * 0.98e6 <= fine <= slowest_us * 1.01e6, size
