"""Channels, threads and chunks as NCCL 2.30.7 splits one collective."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simccl import Algorithm, Collective, Protocol
from simccl.algorithms.nvls import nvls_channels
from simccl.algorithms.registry import algorithm_of
from simccl.nccl.work_split import channel_offsets
from simccl.planning.cost_model import algorithm_costs
from tests.simccl.arrangements import arranged

AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("size", "channels", "threads"),
    [
        (1 * KIB, 1, 96),
        (4 * KIB, 1, 96),
        (8 * KIB, 1, 128),
        (16 * KIB, 1, 256),
        (32 * KIB, 1, 512),
        (64 * KIB, 2, 512),
        (128 * KIB, 4, 512),
        (256 * KIB, 8, 512),
        (512 * KIB, 16, 512),
        (1 * MIB, 24, 512),
        (1 << 30, 24, 512),
    ],
)
def test_small_rings_get_fewer_channels_and_threads(size: int, channels: int, threads: int) -> None:
    """NCCL's own code, 8 H100, all_reduce, ring LL."""
    at = arranged("h100", 1, 8)
    ring = algorithm_costs(AR, at, Algorithm.RING)
    assert ring is not None
    found = algorithm_of(ring).channels_and_threads(np.array([size]), ring, Protocol.LL, at)
    assert [column.tolist() for column in found] == [[channels], [threads]]


@pytest.mark.parametrize(
    ("gpu", "nodes", "per_node", "options", "channels"),
    [
        ("h100", 1, 8, {}, 16),
        ("h100", 4, 8, {}, 16),
        ("b200", 1, 8, {}, 24),
        ("b200", 2, 8, {}, 32),
        ("b200", 4, 8, {}, 24),
        ("b200 gen6", 4, 8, {"nic_gbytes_per_s": 100}, 24),
        ("b200", 4, 8, {"nic_gbytes_per_s": 25}, 32),
    ],
)
def test_nvls_has_a_channel_count_of_its_own(
    gpu: str, nodes: int, per_node: int, options: dict[str, object], channels: int
) -> None:
    assert nvls_channels(arranged(gpu, nodes, per_node, **options)) == channels


@pytest.mark.parametrize(
    ("algorithm", "protocol", "channel_bytes", "expected"),
    [
        (Algorithm.RING, Protocol.SIMPLE, 64 * MIB, 2 * MIB),
        (Algorithm.RING, Protocol.LL128, 64 * MIB, 576_000),
        (Algorithm.TREE, Protocol.LL, 64 * MIB, 32_768),
        (Algorithm.TREE, Protocol.SIMPLE, 64 * MIB, 512 * KIB),
        (Algorithm.NVLS, Protocol.SIMPLE, 64 * MIB, 128 * KIB),  # 64 · 8 · 128 KiB = 64 MiB, not below
        (Algorithm.NVLS, Protocol.SIMPLE, 16 * MIB, 64 * KIB),
        (Algorithm.NVLS, Protocol.SIMPLE, 2 * MIB, 32 * KIB),  # below 8 · 8 · 64 KiB = 4 MiB
        (Algorithm.NVLS, Protocol.SIMPLE, 256 * KIB, 16 * KIB),  # below 2 · 8 · 32 KiB = 512 KiB
    ],
)
def test_chunks_shrink_with_the_bytes_of_a_channel(
    algorithm: Algorithm, protocol: Protocol, channel_bytes: int, expected: int
) -> None:
    at = arranged("h100", 1, 8)
    costs = algorithm_costs(AR, at, algorithm)
    assert costs is not None
    assert algorithm_of(costs).chunk_bytes(AR, channel_bytes, costs, protocol, at) == expected


def test_pat_chunks_shrink_to_64_kib() -> None:
    """all_gather: half as long as 32 chunks exceed the channel's bytes."""
    at = arranged("h100", 16, 1)
    costs = algorithm_costs(AG, at, Algorithm.PAT)
    assert costs is not None
    sizes = (1, 4 * MIB, 8 * MIB, 16 * MIB)
    assert [algorithm_of(costs).chunk_bytes(AG, b, costs, Protocol.SIMPLE, at) // KIB for b in sizes] == [
        64,
        128,
        256,
        512,
    ]


def test_64_kib_of_ring_ll_go_to_two_channels_in_cells_of_4_kib() -> None:
    """Traffic 2 · 4 per byte: a cell of 32 KiB of traffic is 4 KiB; 16 cells on 2 channels."""
    assert channel_offsets(AR, 64 * KIB, 8, Protocol.LL, 2).tolist() == [0, 32 * KIB, 64 * KIB]


def test_one_cell_goes_to_one_channel_however_many_there_are() -> None:
    assert channel_offsets(AR, 4 * KIB, 8, Protocol.LL, 24).tolist() == [0, 4 * KIB]


@given(
    op=st.sampled_from([AR, AG, Collective.BROADCAST]),
    size=st.integers(1, 1 << 32),
    ranks=st.integers(2, 1024),
    protocol=st.sampled_from(list(Protocol)),
    channels=st.integers(1, 64),
)
def test_channels_share_all_bytes_equal_to_a_cell(
    op: Collective, size: int, ranks: int, protocol: Protocol, channels: int
) -> None:
    offsets = channel_offsets(op, size, ranks, protocol, channels)
    parts = np.diff(offsets)
    buffer = -(-size // ranks) if op is AG else size
    assert offsets[0] == 0
    assert offsets[-1] == buffer
    assert len(parts) <= channels
    assert (parts > 0).all()
    assert len(set(parts[:-1].tolist())) <= 1
    assert parts[-1] <= parts[0]
