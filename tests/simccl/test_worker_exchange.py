"""Exchange between attention workers and FFN workers: what arrives, what crosses links, what the busiest port takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsim import create_backend
from netsim.topology import LinkKind
from simccl import Communicator, ExpertChoice, InputError, WorkerExchange, verify_plan, worker_exchange_plan
from simccl.engines.deepep import launch_us
from simccl.engines.expert_mode import Phase
from simccl.engines.low_latency import LowLatency
from tests.simccl.communicators import A_WEEK_PS, communicators, run_on_idle, spread

HIDDEN = 7168
ROW_BYTES = {False: 16 + HIDDEN + 4 * (HIDDEN // 128), True: 2 * HIDDEN}
"""A header, fp8 values and a scale for each 128 of them; results in bf16."""


def between_nodes(attention: int, ffn: int, gpu: str = "h200") -> Communicator:
    """Attention workers on the first node, FFN workers on the second."""
    whole = spread(2, 8, gpu)
    return Communicator((*range(attention), *range(8, 8 + ffn)), whole.topology, gpu)


def even(attention: int, ffn: int, copies: float) -> WorkerExchange:
    return WorkerExchange(attention, HIDDEN, True, (copies / ffn,) * ffn)


@settings(max_examples=60)
@given(communicators(24), st.floats(0.1, 300), st.booleans(), st.data())
def test_every_row_reaches_its_workers_and_comes_back(
    communicator: Communicator, tokens: float, fp8: bool, data: st.DataObject
) -> None:
    attention = data.draw(st.integers(1, communicator.size - 1))
    count = communicator.size - attention
    copies = data.draw(st.lists(st.floats(0, 9), min_size=count, max_size=count).filter(lambda each: max(each) > 0.5))
    exchange = WorkerExchange(attention, 256, fp8, tuple(copies))
    for is_return in (False, True):
        plan = worker_exchange_plan(exchange, tokens, communicator, is_return=is_return)
        verify_plan(plan)
        row_bytes = exchange.row_bytes(is_return=is_return)
        expected = [round(tokens * row_bytes * each) for each in copies]
        at_ffn, at_attention = plan.received_bytes(), plan.sent_bytes()
        if is_return:
            at_ffn, at_attention = at_attention, at_ffn
        assert at_ffn[attention:] == pytest.approx(np.array(expected) * attention, abs=attention * count)
        assert at_attention[:attention] == pytest.approx(sum(expected), abs=count)
        assert not at_ffn[:attention].any()
        assert not at_attention[attention:].any()


@settings(max_examples=60)
@given(communicators(24), st.floats(0.1, 300), st.data())
def test_a_copy_per_node_reaches_all_workers_that_want_it_and_sums_come_back(
    communicator: Communicator, tokens: float, data: st.DataObject
) -> None:
    attention = data.draw(st.integers(1, communicator.size - 1))
    count = communicator.size - attention
    choice = ExpertChoice(8 * count, data.draw(st.integers(1, 8)))
    exchange = WorkerExchange(attention, 256, True, (1.0,) * count, choice)
    for is_return in (False, True):
        verify_plan(worker_exchange_plan(exchange, tokens, communicator, is_return=is_return))


@pytest.mark.parametrize("is_return", [False, True])
def test_a_copy_per_node_crosses_the_network_once(is_return: bool) -> None:
    """Eight attention workers on one node, eight FFN workers on another: 64 rows of each cross once, whatever their
    experts, in the form of DeepEP's normal kernels: with 8 bytes of source, 8 experts and weights, up to whole 16
    bytes; results in bf16."""
    communicator = between_nodes(8, 8)
    exchange = WorkerExchange(8, HIDDEN, True, (1.0,) * 8, ExpertChoice(256, 8, 8, 4))
    plan = worker_exchange_plan(exchange, 64, communicator, is_return=is_return)
    row_bytes = 2 * HIDDEN + 80 if is_return else HIDDEN + 4 * (HIDDEN // 128) + 80
    node = communicator.node_of_rank()
    crosses = node[plan.flows.src] != node[plan.flows.dst]
    assert plan.flows.payload_bytes[crosses].tolist() == [64 * row_bytes] * 8
    inside = plan.flows.payload_bytes[~crosses].sum()
    assert (
        3 * 8 * 64 * row_bytes * 0.9 < inside < 4 * 8 * 64 * row_bytes
    )  # four groups, of which one is at the entry often


@pytest.mark.parametrize("is_return", [False, True])
@pytest.mark.parametrize(("attention", "ffn"), [(8, 8), (8, 4), (2, 8)])
def test_links_carry_rows_times_copies_times_their_size(attention: int, ffn: int, is_return: bool) -> None:
    """Each attention worker's NIC carries 64 tokens · 8 copies, each FFN worker's what that comes to."""
    communicator = between_nodes(attention, ffn)
    plan = worker_exchange_plan(even(attention, ffn, 8), 64, communicator, is_return=is_return)
    network = create_backend("fluid", communicator.topology)
    network.submit(plan.graph(), 0)
    network.advance(A_WEEK_PS)
    topology = communicator.topology
    links = np.flatnonzero(topology.link_kind == LinkKind.NIC)
    carried = network.link_stats(links).carried_bytes
    out = {int(topology.link_src[link]): size for link, size in zip(links, carried, strict=True) if size}
    whole = 64 * 8 * ROW_BYTES[is_return]
    senders, per_sender = (range(8, 8 + ffn), whole * attention / ffn) if is_return else (range(attention), whole)
    for gpu in senders:
        assert out[gpu] == pytest.approx(per_sender, rel=0.01)  # rounded by pair, and framed
    assert not [gpu for gpu in out if gpu < 16 and gpu not in senders]


@pytest.mark.parametrize(("attention", "ffn", "busiest"), [(8, 8, 1.0), (8, 4, 2.0), (2, 8, 1.0)])
def test_a_call_takes_its_launch_and_its_busiest_port(attention: int, ffn: int, busiest: float) -> None:
    """DeepEP's low-latency dispatch on two nodes: 16.84 + 3.85 µs, then 48 GB/s at the sender's or receiver's port."""
    tokens = 128
    found = run_on_idle(
        worker_exchange_plan(even(attention, ffn, 8), tokens, between_nodes(attention, ffn), is_return=False)
    )
    transfer_us = busiest * tokens * 8 * ROW_BYTES[False] / 48e3
    communicator = between_nodes(attention, ffn)
    launch = launch_us(LowLatency(), Phase.DISPATCH, communicator.shape())
    assert launch == pytest.approx(16.84 + 3.85)
    assert found / 1e6 == pytest.approx(launch + transfer_us, rel=0.01)


def test_nothing_takes_no_time() -> None:
    plan = worker_exchange_plan(even(2, 2, 1), 0.0, between_nodes(2, 2), is_return=False)
    assert len(plan) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: WorkerExchange(0, 128, True, (1.0,)), "attention_workers: found 0"),
        (lambda: WorkerExchange(1, 100, True, (1.0,)), "hidden: found 100, expected a multiple of 128"),
        (lambda: WorkerExchange(1, 128, True, ()), "copies"),
        (lambda: WorkerExchange(1, 128, True, (0.0, 0.0)), "copies"),
        (lambda: WorkerExchange(1, 128, True, (-1.0, 2.0)), "copies"),
        (lambda: worker_exchange_plan(even(2, 3, 1), 1, between_nodes(2, 2), is_return=False), "found 5 workers"),
    ],
)
def test_what_cannot_be_is_refused(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(InputError, match=message):
        change()
