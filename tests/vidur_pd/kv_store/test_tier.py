"""A tier by itself: what it says is there, whatever is evicted while it is written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vidur_pd._core import ChunkKeys
from vidur_pd.kv.store.eviction.registry import eviction_class
from vidur_pd.kv.store.tier import Tier


def tier_of(name: str, capacity: int, writes_at: int = 1) -> Tier:
    eviction = eviction_class("eviction", name)()
    eviction.capacity = capacity
    return Tier(ChunkKeys(256, 512), lambda: eviction, writes_at=writes_at)


ACCESSES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from(["at once", "late", "never"])))


@given(name=st.sampled_from(["lru", "lfu", "s3_fifo", "arc"]), capacity=st.integers(1, 5), accesses=ACCESSES)
@settings(max_examples=150, deadline=None)
def test_there_is_what_was_written_and_not_evicted_since(
    name: str, capacity: int, accesses: list[tuple[int, int, str]]
) -> None:
    """Prompts of four families, with more chunks than the tier has room for; writes that come later, or fail."""
    tier = tier_of(name, capacity)
    late: list[list[int]] = []
    for family, chunks, when in accesses:
        new = tier.access([10 * family + chunk for chunk in range(chunks)])
        assert len(set(new)) == len(new) <= capacity
        assert not any(key in tier.index for key in new), "what is there is not written again"
        match when:
            case "at once":
                tier.written(new)
                assert all(key in tier.index for key in new)
            case "late":
                late.append(new)
            case _:
                tier.not_written(new)
        assert len(tier.index) <= capacity
        if len(late) > 2:
            tier.written(late.pop(0))
    assert tier.counts.stored_chunks - tier.counts.evicted_chunks == len(tier.index)


def test_a_chunk_may_come_and_go_twice_with_one_prompt() -> None:
    """Room for two, by hand: of six chunks 0 and 1 stay. The same prompt again evicts both before it comes to them."""
    tier = tier_of("lru", 2)
    tier.written(tier.access(range(6)))
    assert [key for key in range(6) if key in tier.index] == [0, 1]
    tier.written(tier.access(range(6)))
    assert [key for key in range(6) if key in tier.index] == [0, 1]


def test_a_write_that_has_failed_is_tried_again() -> None:
    tier = tier_of("lru", 4)
    tier.not_written(tier.access([1, 2]))
    assert tier.access([1, 2]) == [2, 1]


def test_selective_writes_are_those_of_the_second_access() -> None:
    tier = tier_of("lru", 4, writes_at=2)
    assert [tier.access([7]), tier.access([7, 8]), tier.access([8])] == [[], [7], [8]]
