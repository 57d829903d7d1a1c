import numpy as np
import pytest
from hypothesis import given

from netsim import rail_optimized
from simccl import Communicator, InputError, UnsupportedTopology
from tests.simccl.communicators import communicators, spread


def test_every_channel_of_one_node_runs_through_the_gpus_in_order() -> None:
    assert (spread(1, 8).ring_orders(24) == np.arange(8)).all()


def test_rings_of_two_nodes_are_those_of_nccl_and_odd_nodes_swap_channel_pairs() -> None:
    """NCCL 2.30.7 on two H100 nodes, one NIC per GPU, crossNic 2: local orders of channels 0 to 3 on node 0."""
    orders = spread(2, 8).ring_orders(16)
    node0 = [[0, 7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 7, 0], [2, 1, 0, 7, 6, 5, 4, 3], [3, 4, 5, 6, 7, 0, 1, 2]]
    assert orders[:4, :8].tolist() == node0
    assert (orders[:4, 8:] - 8).tolist() == [node0[1], node0[0], node0[3], node0[2]]
    assert (orders[8:] == orders[:8]).all()


@pytest.mark.parametrize("nodes", [2, 4, 6])
@pytest.mark.parametrize("per_node", [1, 2, 3, 4, 5, 7, 8])
def test_hops_between_nodes_stay_on_their_rail_and_use_every_nic_alike(nodes: int, per_node: int) -> None:
    communicator = spread(nodes, per_node)
    orders = communicator.ring_orders(per_node)
    following = np.roll(orders, -1, axis=1)
    node, rail = communicator.node_of_rank(), communicator.rail_of_rank()
    crosses = node[orders] != node[following]
    assert (rail[orders] == rail[following])[crosses].all()
    assert (np.bincount(orders[crosses], minlength=communicator.size) == 1).all()
    assert (np.bincount(following[crosses], minlength=communicator.size) == 1).all()


def test_only_the_closing_hop_of_three_nodes_changes_rails() -> None:
    communicator = spread(3, 8)
    orders = communicator.ring_orders(8)
    rail = communicator.rail_of_rank()
    changes = rail[orders[:, [7, 15, 23]]] != rail[orders[:, [8, 16, 0]]]
    assert changes.tolist() == [[False, False, True]] * 8


@given(communicators())
def test_rings_visit_every_rank_once_and_every_node_in_one_go(communicator: Communicator) -> None:
    for order in communicator.ring_orders(5):
        assert sorted(order.tolist()) == list(range(communicator.size))
        nodes = communicator.node_of_rank()[order]
        assert np.count_nonzero(np.diff(nodes)) == communicator.nodes - 1


@pytest.mark.parametrize(
    ("gpus", "message"),
    [((), "found none"), ((0, 0), "each GPU once"), ((0, 16), "found 16, expected 0…15"), ((-1,), "found -1")],
)
def test_bad_gpus_are_refused(gpus: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Communicator(gpus, rail_optimized(2, 8), "h100")


def test_unknown_gpu_types_are_refused() -> None:
    with pytest.raises(UnsupportedTopology, match="found 'v100'"):
        Communicator((0, 1), rail_optimized(1, 8), "v100")


def test_the_nic_rate_comes_from_the_topology() -> None:
    assert spread(2, 8, "a100").shape().nic_gbytes_per_s == 25.0


def test_equal_communicators_are_one_key() -> None:
    topology = rail_optimized(1, 8)
    assert {Communicator((0, 1), topology, "h100"): 1}[Communicator((0, 1), topology, "h100")] == 1
