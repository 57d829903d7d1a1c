import pytest

from simccl import Algorithm, Collective, InputError, Protocol
from simccl.choice import choose
from tests.simccl.communicators import spread

AR = Collective.ALL_REDUCE


def test_large_all_reduces_on_an_nvswitch_are_reduced_in_it() -> None:
    """8 H100, 2 MiB: NVLS on 16 channels of 640 threads, 32.71 µs of which 25 are latency."""
    found = choose(AR, 2 << 20, spread(1, 8), calibration="none")
    assert (found.algorithm, found.protocol, found.channels, found.threads) == ("nvls", "simple", 16, 640)
    assert (found.latency_us, found.gbytes_per_s) == pytest.approx((25.0, 272.0))
    assert found.chunk_bytes == 16 << 10


def test_a_wanted_algorithm_or_protocol_limits_the_choice() -> None:
    at = spread(1, 8)
    assert choose(AR, 2 << 20, at, algorithm=Algorithm.TREE).algorithm is Algorithm.TREE
    assert choose(AR, 1 << 10, at, protocol=Protocol.LL128).protocol is Protocol.LL128
    both = choose(AR, 1 << 30, at, algorithm=Algorithm.RING, protocol=Protocol.LL)
    assert (both.algorithm, both.protocol) == ("ring", "ll")


@pytest.mark.parametrize(
    ("op", "nodes", "algorithm", "protocol", "message"),
    [
        (AR, 2, Algorithm.NVLS, None, "found nvls, which NCCL disables for all_reduce on 2 nodes of 8 h100"),
        (AR, 1, Algorithm.NVLS_TREE, None, "found nvls_tree"),
        (AR, 1, Algorithm.NVLS, Protocol.LL, "found nvls ll"),
        (Collective.ALL_GATHER, 1, Algorithm.TREE, None, "found tree"),
        (Collective.ALL_TO_ALL, 1, None, None, "op: found all_to_all"),
    ],
)
def test_what_nccl_disables_is_refused(
    op: Collective, nodes: int, algorithm: Algorithm | None, protocol: Protocol | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        choose(op, 1 << 20, spread(nodes, 8), algorithm=algorithm, protocol=protocol)
