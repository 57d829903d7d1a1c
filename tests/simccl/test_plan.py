import dataclasses
import itertools
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from netsim import rail_optimized
from simccl import (
    Algorithm,
    Collective,
    Communicator,
    InputError,
    Operation,
    Plan,
    PlanError,
    Protocol,
    all_to_all_v,
    plan_collective,
    verify_plan,
)
from simccl.algorithms.pairwise import rounds_of
from simccl.nccl.point_to_point import message_channels
from tests.simccl.communicators import communicators, sizes, spread

ALGORITHMS = {
    Collective.ALL_REDUCE: ["ring", "tree", "nvls", "nvls_tree", "one_shot", "two_shot"],
    Collective.ALL_GATHER: ["ring", "nvls", "pat"],
    Collective.REDUCE_SCATTER: ["ring", "nvls", "pat"],
    Collective.BROADCAST: ["ring"],
    Collective.REDUCE: ["ring"],
}


@settings(max_examples=80)
@given(communicators(), st.sampled_from(list(Collective)), sizes)
def test_every_plan_leaves_the_right_data_on_every_rank(communicator: Communicator, op: Collective, size: int) -> None:
    plan = plan_collective(op, size, communicator)
    proof = verify_plan(plan)
    assert proof.flows == len(plan)


@pytest.mark.parametrize("op", list(Collective))
@pytest.mark.parametrize("size", [1, 135, 137, 100_003])
def test_plans_of_136_ranks_are_right(op: Collective, size: int) -> None:
    """A byte less and a byte more than ranks; more ranks than the 128 rounds of an all-to-all that go at once."""
    verify_plan(plan_collective(op, size, spread(17, 8)))


@settings(max_examples=150)
@given(st.data())
def test_every_algorithm_leaves_the_right_data_wherever_nccl_allows_it(data: st.DataObject) -> None:
    """Any GPUs in any order, any protocol, root and coarseness, one byte to 1 GiB."""
    communicator = data.draw(communicators(most_ranks=32))
    op = data.draw(st.sampled_from(list(ALGORITHMS)))
    algorithm = data.draw(st.sampled_from(ALGORITHMS[op]))
    protocol = data.draw(st.sampled_from([None, *Protocol]))
    coarsen = data.draw(st.sampled_from([None, 1, 3, 64]))
    size = data.draw(sizes if coarsen is None else st.integers(1, 1 << 22))
    root = data.draw(st.integers(0, communicator.size - 1))
    try:
        plan = plan_collective(
            op, size, communicator, algorithm=algorithm, protocol=protocol, root=root, coarsen=coarsen
        )
    except InputError as refusal:
        assert any(why in str(refusal) for why in ("expected", "NCCL disables", "were measured on"))  # noqa: PT017
        return
    assert plan.algorithm == algorithm
    verify_plan(plan)


HAVE_1024 = {(Collective.ALL_REDUCE, "tree"), (Collective.ALL_GATHER, "pat"), (Collective.REDUCE, "ring")}
"""What is tried with so many ranks too, one of each shape; a ring of all-reduce has a test of its own below."""


@pytest.mark.parametrize("ranks", [2, 3, 17, 100, 256, 1024])
@pytest.mark.parametrize(
    ("op", "algorithm"), [(op, algorithm) for op, names in ALGORITHMS.items() for algorithm in names]
)
def test_large_communicators_are_right_for_few_and_ragged_bytes(ranks: int, op: Collective, algorithm: str) -> None:
    """Eight ranks per node, two where eight do not divide them, one for PAT and odd counts, all on one node for NVLS
    and direct reads. Few bytes keep the number of ranges small."""
    per_node = 1 if algorithm == "pat" or ranks % 2 else 8 if ranks % 8 == 0 else 2
    if algorithm in ("nvls", "one_shot", "two_shot"):
        per_node = ranks
    if algorithm == "nvls_tree" and (per_node == 1 or ranks == per_node):
        pytest.skip("NVLSTree needs several nodes with at least two ranks each")
    if algorithm in ("one_shot", "two_shot") and ranks > 100:
        pytest.skip("engines read directly among up to 8 ranks; the proof follows n² flows per byte")
    if algorithm == "nvls" and ranks > 100:
        pytest.skip("NCCL's search finds no NVLS channels for so many heads")
    if ranks == 1024 and (op, algorithm) not in HAVE_1024:
        pytest.skip("nothing new happens above 256 ranks; the proof takes seconds")
    communicator = spread(ranks // per_node, per_node, gpus_per_node=max(8, per_node))
    for size in (1, 5, min(ranks, 300) // 3 + 1):
        verify_plan(plan_collective(op, size, communicator, algorithm=algorithm, root=ranks - 1))


@settings(max_examples=40)
@given(st.sampled_from(list(ALGORITHMS)), st.data(), st.permutations(range(16)), st.integers(1, 1 << 24))
def test_relabelling_ranks_changes_names_only(op: Collective, data: st.DataObject, gpus: list[int], size: int) -> None:
    """Rank r on GPU gpus[r] instead of r, from a GPU of the first node on: the bytes between all pairs of GPUs stay, as
    rings, trees and heads follow GPUs and not ranks. Sizes divide, so that it does not matter whose block is larger."""
    assume(gpus[0] < 8)
    names = [name for name in ALGORITHMS[op] if name in ("ring", "tree", "nvls_tree")]
    algorithm = data.draw(st.sampled_from(names))
    topology, found = rail_optimized(2, 8), []
    for placed in (list(range(16)), gpus):
        communicator = Communicator(tuple(placed), topology, "h100")
        root = placed.index(3)
        graph = plan_collective(op, 256 * size, communicator, algorithm=algorithm, root=root).graph()
        pairs = np.zeros((topology.nodes, topology.nodes), dtype=np.int64)
        np.add.at(pairs, (graph.src, graph.dst), graph.size_bytes)
        found.append(pairs)
    assert np.array_equal(*found)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_every_protocol_moves_the_same_data(protocol: Protocol) -> None:
    plan = plan_collective("all_reduce", 100_001, spread(2, 8), protocol=protocol)
    assert plan.protocol is protocol
    verify_plan(plan)


@settings(max_examples=40)
@given(st.data())
def test_variable_all_to_alls_deliver_every_message(data: st.DataObject) -> None:
    communicator = data.draw(communicators(most_ranks=24))
    ranks = communicator.size
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    matrix = rng.integers(0, 1 << data.draw(st.integers(1, 24)), (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.6)
    plan = all_to_all_v(matrix, communicator)
    verify_plan(plan, matrix)
    own = plan.flows.origin == plan.flows.src
    assert plan.flows.payload_bytes[own].sum() == matrix.sum() - np.trace(matrix)


@given(st.integers(2, 64), st.integers(1, 1 << 30))
def test_ring_all_reduce_sends_2_times_n_minus_1_over_n_of_the_bytes_per_rank(ranks: int, size: int) -> None:
    communicator = Communicator(tuple(range(ranks)), rail_optimized(1, ranks), "h100")
    sent = plan_collective("all_reduce", size, communicator, algorithm="ring").sent_bytes()
    assert sent.sum() == 2 * (ranks - 1) * size
    assert np.abs(sent - 2 * (ranks - 1) * size / ranks).max() <= 2


def test_an_all_reduce_of_two_ranks_by_hand() -> None:
    """3 bytes are blocks of 2 (rank 0) and 1. Each leaves the other rank, is reduced at its owner, and goes back."""
    flows = plan_collective("all_reduce", 3, spread(1, 2), algorithm="ring").flows
    assert flows.src.tolist() == [1, 0, 0, 1]
    assert flows.dst.tolist() == [0, 1, 1, 0]
    assert flows.payload_bytes.tolist() == [2, 2, 1, 1]
    assert flows.offset.tolist() == [0, 0, 2, 2]
    assert flows.operation.tolist() == [Operation.REDUCE, Operation.COPY] * 2
    assert flows.deps.tolist() == [0, 2]
    assert flows.dep_offsets.tolist() == [0, 0, 1, 1, 2]
    assert flows.wire_bytes.tolist() == [16] * 4


def test_one_byte_over_1024_ranks_is_a_chain_through_all_of_them() -> None:
    plan = plan_collective("all_reduce", 1, spread(128, 8), algorithm="ring")
    assert len(plan) == 2 * 1023
    assert plan.flows.payload_bytes.sum() == 2 * 1023
    assert verify_plan(plan).depth == 2 * 1023


@pytest.mark.parametrize("op", list(Collective))
def test_nothing_moves_for_one_rank_or_no_bytes(op: Collective) -> None:
    for communicator, size in ((spread(1, 1), 1000), (spread(1, 8), 0)):
        plan = plan_collective(op, size, communicator)
        assert len(plan) == len(plan.graph()) == 0
        assert plan.algorithm is Algorithm.NONE
        assert plan.base_latency_ps == 0
        verify_plan(plan)


@given(communicators(), st.sampled_from(list(Collective)), sizes)
def test_two_ranks_and_a_byte_always_give_flows_of_at_least_a_byte(
    communicator: Communicator, op: Collective, size: int
) -> None:
    flows = plan_collective(op, size, communicator).flows
    # An all-to-all of fewer bytes than ranks sends them to the first ranks, of which rank 0 may be the own part.
    if not (op is Collective.ALL_TO_ALL and size < communicator.size):
        assert len(flows) > 0
    assert (flows.payload_bytes >= 1).all()
    assert (flows.wire_bytes >= flows.payload_bytes).all()
    assert (flows.src != flows.dst).all()


def test_all_to_all_messages_between_nodes_stay_on_a_rail() -> None:
    communicator = spread(4, 8)
    flows = plan_collective("all_to_all", 1 << 20, communicator).flows
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    crosses = node[flows.src] != node[flows.dst]
    assert crosses.any()
    assert (rail[flows.src] == rail[flows.dst])[crosses].all()


def test_messages_without_a_proxy_on_the_receivers_rail_go_directly() -> None:
    """GPU 0 of one node and GPU 9 of the other: nobody on the first node has rail 1."""
    communicator = Communicator((0, 9), rail_optimized(2, 8), "h100")
    flows = plan_collective("all_to_all", 1000, communicator).flows
    assert sorted(zip(flows.src.tolist(), flows.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]


def test_a_proxy_passes_a_message_on_while_it_arrives() -> None:
    """One 1 MiB message from GPU 0 to GPU 9 with GPU 1 as proxy: on NVLink, and at the same time on the network."""
    communicator = Communicator((0, 1, 9), rail_optimized(2, 8), "h100")
    matrix = np.zeros((3, 3), dtype=np.int64)
    matrix[0, 2] = 1 << 20
    plan = all_to_all_v(matrix, communicator)
    assert plan.flows.src.tolist() == [0, 1]
    assert plan.flows.dst.tolist() == [1, 2]
    assert plan.flows.payload_bytes.tolist() == [1 << 20] * 2
    deps = [plan.flows.deps[a:b].tolist() for a, b in itertools.pairwise(plan.flows.dep_offsets)]
    assert deps == [[], [0]]
    assert plan.flows.streams.tolist() == [False, True]
    assert len(plan.graph().deps) == 0


def test_batches_of_rounds_follow_each_other_beyond_128_ranks() -> None:
    """256 ranks on 16 channels: a message of round 128 waits for the largest that its sender sends and receives in
    rounds 0 to 7, here those of round 5."""
    matrix = np.full((256, 256), 100)
    schedule = rounds_of(spread(32, 8), message_channels(spread(32, 8).shape())).send_to
    matrix[np.arange(256), schedule[5]] = 101
    plan = all_to_all_v(matrix, spread(32, 8))
    flows = plan.flows
    late = int(np.flatnonzero((flows.step == 128) & (flows.src == 0) & (flows.origin == 0))[0])
    awaited = flows.deps[flows.dep_offsets[late] : flows.dep_offsets[late + 1]]
    assert flows.step[awaited].tolist() == [5, 5]
    assert flows.origin[awaited].tolist() == [0, int(np.flatnonzero(schedule[5] == 0)[0])]


def test_ranks_mean_positions_in_the_communicator() -> None:
    """The same collective on other GPUs, and on ranks in another order, is the same graph on other GPUs."""
    topology = rail_optimized(2, 8)
    low, high = (Communicator(tuple(range(a, a + 4)), topology, "h100") for a in (0, 12))
    for op in Collective:
        first, second = (plan_collective(op, 99_999, c) for c in (low, high))
        assert (first.flows.src == second.flows.src).all()
        assert (first.graph().src + 12 == second.graph().src).all()
        assert (first.graph().size_bytes == second.graph().size_bytes).all()


def test_plans_of_the_same_input_are_identical() -> None:
    a, b = (plan_collective("all_to_all", 12_345_678, spread(4, 8)).flows for _ in range(2))
    for field in dataclasses.fields(a):
        assert np.array_equal(getattr(a, field.name), getattr(b, field.name))


def test_an_all_to_all_of_64_ranks_is_planned_in_milliseconds() -> None:
    communicator = spread(8, 8)
    plan_collective("all_to_all", 1 << 20, communicator)
    begin = time.process_time()
    for _ in range(5):
        plan_collective("all_to_all", 1 << 20, communicator)
    assert (time.process_time() - begin) / 5 < 0.05


@pytest.mark.parametrize(
    ("op", "size", "protocol", "message"),
    [
        ("all_reduce", -1, None, "bytes: found -1"),
        ("gather", 1, None, "op: found 'gather'"),
        ("all_reduce", 1, "ll64", "protocol: found 'll64'"),
        ("all_to_all", 1000, "ll128", "protocol: found ll128"),
    ],
)
def test_bad_requests_are_refused(op: str, size: int, protocol: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_collective(op, size, spread(1, 2), protocol=protocol)


def test_a_protocol_that_nccl_disables_is_refused() -> None:
    with pytest.raises(InputError, match="NCCL disables for all_reduce on 2 nodes of 8 a100"):
        plan_collective("all_reduce", 1000, spread(2, 8, "a100"), algorithm="ring", protocol="ll128")
    with pytest.raises(InputError, match="ll on one node"):
        plan_collective("all_to_all", 1000, spread(2, 8), protocol="ll")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"found shape \(2, 3\), expected \(2, 2\)"),
        (np.zeros((2, 2)), "found float64, expected integers"),
        (np.array([[0, -1], [0, 0]]), "found -1"),
    ],
)
def test_bad_matrices_are_refused(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        all_to_all_v(matrix, spread(1, 2))


def _changed(plan: Plan, **columns: np.ndarray) -> Plan:
    return dataclasses.replace(plan, flows=dataclasses.replace(plan.flows, **columns))


def _with(values: np.ndarray, at: int, value: int) -> np.ndarray:
    changed = values.copy()
    changed[at] = value
    return changed


def test_the_proof_finds_what_is_wrong_with_a_broken_all_reduce() -> None:
    """Each change alone breaks a plan of 4 ranks and 4 bytes: chains of 6 flows, three reduce and three copy."""
    plan = plan_collective("all_reduce", 4, spread(1, 4), algorithm="ring")
    flows = plan.flows
    copied = np.where(np.arange(len(flows)) == 1, Operation.COPY, flows.operation).astype(np.uint8)
    with pytest.raises(PlanError, match="ends with contributions"):
        verify_plan(_changed(plan, operation=copied))
    with pytest.raises(PlanError, match="count a contribution twice"):
        verify_plan(_changed(plan, operation=np.zeros_like(flows.operation) + np.uint8(Operation.REDUCE)))
    with pytest.raises(PlanError, match="meet at rank"):
        verify_plan(_changed(plan, deps=_with(flows.deps, 0, 6)))
    with pytest.raises(PlanError, match="cycle"):
        verify_plan(_changed(plan, deps=_with(flows.deps, 0, 1)))
    with pytest.raises(PlanError, match="bytes sent"):
        verify_plan(_changed(plan, payload_bytes=_with(flows.payload_bytes, 0, 2)))
    with pytest.raises(PlanError, match="payload_bytes: flow 5 carries 0 bytes, expected 1 or more"):
        verify_plan(_changed(plan, payload_bytes=_with(flows.payload_bytes, 5, 0)))


def test_the_proof_finds_messages_that_go_astray() -> None:
    plan = plan_collective("all_to_all", 16, spread(1, 4))
    flows = plan.flows
    with pytest.raises(PlanError, match="ends with contributions"):
        verify_plan(_changed(plan, dst=_with(flows.dst, 0, (int(flows.dst[0]) + 1) % 4)))
    own_part = _with(flows.offset, 0, 4 * int(flows.src[0]))
    with pytest.raises(PlanError, match="own part being sent"):
        verify_plan(_changed(plan, offset=own_part))
    with pytest.raises(PlanError, match="carry 10 different bytes of rank 0, expected 12"):
        verify_plan(_changed(plan, offset=_with(flows.offset, 0, int(flows.offset[0]) + 2)))


def test_the_proof_finds_a_proxy_that_does_not_have_the_message() -> None:
    """GPU 0 sends to GPU 9 over GPU 1; if GPU 2 sent the second leg, it would have nothing to send."""
    communicator = Communicator((0, 1, 2, 9), rail_optimized(2, 8), "h100")
    matrix = np.zeros((4, 4), dtype=np.int64)
    matrix[0, 3] = 1000
    plan = all_to_all_v(matrix, communicator)
    assert plan.flows.src.tolist() == [0, 1]
    with pytest.raises(PlanError, match="sends from rank 2, which does not hold them"):
        verify_plan(_changed(plan, src=_with(plan.flows.src, 1, 2)), matrix)


def test_the_proof_finds_bytes_that_nobody_carries() -> None:
    """Of four bytes from rank 0 to rank 1 the first two are sent twice, one after the other."""
    matrix = np.array([[0, 4], [0, 0]])
    plan = all_to_all_v(matrix, spread(1, 2))
    twice = dataclasses.replace(
        plan.flows,
        **{
            field.name: np.repeat(getattr(plan.flows, field.name), 2)
            for field in dataclasses.fields(plan.flows)
            if getattr(plan.flows, field.name) is not None
        },
    )
    halves = dataclasses.replace(
        twice, payload_bytes=np.array([2, 2]), dep_offsets=np.array([0, 0, 1]), deps=np.array([0])
    )
    with pytest.raises(PlanError, match="carry 2 different bytes of rank 0, expected 4"):
        verify_plan(dataclasses.replace(plan, flows=halves), matrix)
    whole = dataclasses.replace(halves, offset=np.array([0, 2]))
    verify_plan(dataclasses.replace(plan, flows=whole), matrix)
