import numpy as np
import pytest

from simccl import InputError, UnsupportedTopology, collective_time, time_table
from tests.simccl.communicators import spread


def test_a_table_gives_what_single_calls_give() -> None:
    """Row by row, for every op on one and two nodes and sizes from nothing to a gigabyte, in mixed order."""
    rows = [
        (op, size, ranks, nodes)
        for size in (0, 1, 1 << 16, 12_345_678, 1 << 30)
        for op in ("all_to_all", "all_reduce", "send_recv", "all_gather", "reduce_scatter")
        for ranks, nodes in ((1, 1), (8, 1), (16, 2))
    ]
    table = time_table(*(list(column) for column in zip(*rows, strict=True)), "h100")
    for i, (op, size, ranks, nodes) in enumerate(rows):
        single = collective_time(op, size, spread(nodes, ranks // nodes))
        found = (table.time_us[i], table.algorithm[i], table.protocol[i], table.channels[i], table.latency_us[i])
        expected = (single.time_ps / 1e6, single.algorithm, single.protocol, single.channels, single.latency_ps / 1e6)
        assert found == pytest.approx(expected, abs=1e-6)


def test_algorithm_bandwidth_is_size_over_time() -> None:
    """NCCL's table: 1 GiB all_gather on 8 H100 in 2641.99 µs is 406.4 GB/s."""
    time = collective_time("all_gather", 1 << 30, spread(1, 8), calibration="none")
    assert time.algbw_bytes_per_s / 1e9 == pytest.approx(406.4, abs=0.05)
    assert (time.protocol, time.channels) == ("simple", 24)


def test_nothing_takes_no_time() -> None:
    for ranks, size in ((1, 1 << 20), (8, 0)):
        time = collective_time("all_reduce", size, spread(1, ranks))
        assert (time.time_ps, time.latency_ps, time.algbw_bytes_per_s, time.algorithm) == (0, 0, 0.0, "none")


def test_small_all_to_alls_take_a_base_and_one_hop() -> None:
    """One node, LL: 6.6 + 0.6 µs and 7/8 KiB over NVLink. Two nodes, Simple: 8.4 + 14 µs."""
    for nodes, expected_ps in ((1, 7.2e6), (2, 22.4e6)):
        found = collective_time("all_to_all", 1024, spread(nodes, 8), calibration="none")
        assert found.time_ps == pytest.approx(expected_ps, rel=0.001)


def test_large_all_to_alls_between_nodes_are_bound_by_the_nic() -> None:
    """2 × 8 H100, 1 GiB: half of it leaves over 48 GB/s: 11184.8 µs, and 22.4 µs of latency."""
    time = collective_time("all_to_all", 1 << 30, spread(2, 8))
    assert time.time_ps / 1e6 == pytest.approx((1 << 29) / 48e3 + 22.4, rel=1e-6)


def test_unequal_nodes_have_a_time() -> None:
    communicator = spread(2, 8)
    uneven = type(communicator)(tuple(range(11)), communicator.topology, "h100")
    assert collective_time("all_reduce", 1 << 20, uneven).time_ps > 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((["all_reduce"], [-1], [8], [1], "h100"), "row 0: bytes: found -1"),
        ((["all_reduce"] * 2, [1, 1], [8, 8], [1, 3], "h100"), "row 1: nodes: found 3, expected a positive divisor"),
        ((["all_reduce"], [1], [0], [1], "h100"), "row 0: ranks: found 0"),
        ((["allreduce"], [1], [2], [1], "h100"), "row 0: op: found 'allreduce'"),
        ((["all_reduce"], [1, 2], [2, 2], [1, 1], "h100"), "op: found 1 entries, expected 2"),
    ],
)
def test_bad_rows_are_named(columns: tuple[list[str], list[int], list[int], list[int], str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        time_table(*columns)


def test_unknown_gpus_raise_unsupported_topology() -> None:
    with pytest.raises(UnsupportedTopology, match="row 0: gpu: found 'mi300'"):
        time_table(["all_reduce"], [1], [2], [1], ["mi300"])


def test_a_table_of_no_rows_is_empty() -> None:
    assert len(time_table([], [], [], [], "h100").time_us) == 0


def test_large_tables_are_fast_enough_to_fill_in_one_call() -> None:
    rows = 100_000
    sizes = np.arange(rows) * 1000
    table = time_table(np.full(rows, "all_reduce"), sizes, np.full(rows, 8), np.full(rows, 1), "h100")
    assert (np.diff(table.time_us) >= 0).all()
