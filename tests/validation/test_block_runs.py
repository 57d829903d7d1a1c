"""KV blocks of a request hardly adjoin in a cache in use, so that a connector's descriptor is a block."""

from __future__ import annotations

import pytest

from tests.validation.block_runs import FreeList, Transfer, blocks_a_run


def test_a_request_gets_the_blocks_of_one_that_ended_backwards() -> None:
    """Without a prefix cache the next one gets them at once, the last one first; with it they wait at the end."""
    free = FreeList(9, has_prefix_cache=False)
    free.give_back(free.take(3))
    assert free.take(4) == [3, 2, 1, 4]
    free = FreeList(9, has_prefix_cache=True)
    free.give_back(free.take(3))
    assert free.take(8) == [3, 4, 5, 6, 7, 8, 2, 1]


def test_runs_adjoin_on_both_sides() -> None:
    assert Transfer(64, 1, source=[4, 5, 6, 7], destination=[1, 2, 3, 4]).runs == 1
    assert Transfer(64, 1, source=[4, 5, 6, 7], destination=[1, 2, 9, 8]).runs == 3
    assert Transfer(64, 1, source=[7, 6, 5, 4], destination=[7, 6, 5, 4]).runs == 4


@pytest.mark.parametrize("requests_per_s", [2.0, 12.0])
def test_blocks_hardly_adjoin_once_a_cache_has_been_used(requests_per_s: float) -> None:
    off = blocks_a_run(20_000, requests_per_s, has_prefix_cache=False, requests=3000)
    on = blocks_a_run(20_000, requests_per_s, has_prefix_cache=True, requests=3000)
    assert max(*off, *on[1:]) < 1.1
    assert on[0] > 1.5
