"""Shares of ranks: together they are the whole graph, and every wait has exactly one that ends it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netsim import FlowGraph
from netsim.backends.rdma.share import graph_bytes, graph_digest, graph_from_bytes, share_of


@st.composite
def graphs(draw: st.DrawFn) -> tuple[FlowGraph, np.ndarray, int]:
    """Graphs whose flows wait for earlier ones only, the rank of each of six nodes, and the number of ranks."""
    flows, ranks = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    ends = st.lists(st.integers(0, 5), min_size=flows, max_size=flows)
    earlier = [st.lists(st.integers(0, i - 1), max_size=4) if i else st.just([]) for i in range(flows)]
    graph = FlowGraph.from_lists(
        draw(ends),
        draw(ends),
        [8] * flows,
        deps=[draw(each) for each in earlier],
        credits=[draw(each) for each in earlier],
        after=[draw(st.integers(-1, i - 1)) for i in range(flows)],
    )
    return graph, np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=6, max_size=6))), ranks


@given(graphs())
def test_shares_executed_together_finish_every_flow(case: tuple[FlowGraph, np.ndarray, int]) -> None:
    """A reference execution of the columns as the core reads them: arrivals and departures are instant, messages are
    counted. Every flow happens once, after all that it waits for, and each rank gets the messages that it expects."""
    graph, rank_of_node, ranks = case
    shares = [share_of(graph, rank_of_node, rank) for rank in range(ranks)]
    waits = [np.array(share.columns["send_waits"]) for share in shares]
    messages = [0] * ranks
    done: list[int] = []
    ready = [(rank, send) for rank in range(ranks) for send in np.flatnonzero(waits[rank] == 0).tolist()]

    def entries(rank: int, table: str, offsets: str, event: int) -> list[int]:
        at = np.array(shares[rank].columns[offsets])
        return np.array(shares[rank].columns[table])[at[event] : at[event + 1]].tolist()

    def hear(rank: int, event: int) -> None:
        for send in entries(rank, "dependents", "dependent_offsets", event):
            waits[rank][send] -= 1
            if waits[rank][send] == 0:
                ready.append((rank, send))

    while ready:
        rank, send = ready.pop()
        flow = int(shares[rank].sends[send])
        done.append(flow)
        for where, event in ((int(rank_of_node[graph.dst[flow]]), 2 * flow), (rank, 2 * flow + 1)):
            hear(where, event)
            for other in entries(where, "informed", "informed_offsets", event):
                assert other != where
                messages[other] += 1
                hear(other, event)
    assert sorted(done) == list(range(len(graph)))
    position = {flow: at for at, flow in enumerate(done)}
    for flow in range(len(graph)):
        before = [
            *graph.deps[graph.dep_offsets[flow] : graph.dep_offsets[flow + 1]].tolist(),
            *graph.credits[graph.credit_offsets[flow] : graph.credit_offsets[flow + 1]].tolist(),
            *([int(graph.after[flow])] if graph.after[flow] >= 0 else []),
        ]
        assert all(position[each] < position[flow] for each in before)
    assert messages == [share.columns["expected_messages"] for share in shares]


@given(graphs(), st.data())
def test_flows_have_places_of_their_own_at_their_receivers_and_senders_know_them(
    case: tuple[FlowGraph, np.ndarray, int], data: st.DataObject
) -> None:
    """Sizes of up to three lines of a cache; an empty flow takes no room."""
    graph, rank_of_node, ranks = case
    sizes = data.draw(st.lists(st.integers(0, 192), min_size=len(graph), max_size=len(graph)))
    graph = graph.with_flows(size_bytes=np.array(sizes, dtype=np.int64))
    shares = [share_of(graph, rank_of_node, rank) for rank in range(ranks)]
    for share in shares:
        places = np.array(share.columns["receive_place"])
        assert (places % 64 == 0).all()
        end = 0
        for place, size in sorted(zip(places.tolist(), graph.size_bytes[share.receives].tolist(), strict=True)):
            assert end <= place < end + 64
            end = place + size
        at = dict(zip(share.receives.tolist(), places.tolist(), strict=True))
        for other in shares:
            for flow, place in zip(other.sends.tolist(), np.array(other.columns["send_place"]).tolist(), strict=True):
                assert flow not in at or at[flow] == place


@given(graphs())
def test_a_graph_survives_its_way_over_the_network(case: tuple[FlowGraph, np.ndarray, int]) -> None:
    graph, rank_of_node, _ = case
    copy = graph_from_bytes(graph_bytes(graph))
    assert graph_digest(copy, rank_of_node) == graph_digest(graph, rank_of_node)
    assert graph_digest(graph.with_flows(size_bytes=graph.size_bytes + 1), rank_of_node) != graph_digest(
        graph, rank_of_node
    )
