"""What a tier may cost at most: requests with it against the same without it, whatever it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.vidur_pd.kv_store.tiered_runs import TOKEN_BYTES, prompts, run
from vidur_pd.metrics.result import Result

CHUNK_BYTES = 256 * TOKEN_BYTES
LINKS_PS = 10 * 10**6
"""More than the latencies of PCIe and rounding."""

PROMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 10), st.integers(1, 10), st.integers(-200, 0)),
    min_size=3,
    max_size=10,
)
"""(family, blocks of 512 tokens that are the family's, blocks in all at least, tokens that the last one lacks)."""


def rows_of(drawn: list[tuple[int, int, int, int]]) -> list[tuple[float, int, list[int]]]:
    """One prompt at a time, and time to write it."""
    rows = []
    for turn, (family, shared, blocks, lacking) in enumerate(drawn):
        own = max(0, blocks - shared)
        ids = [*range(100 * family, 100 * family + shared), *range(1000 * turn + 1000, 1000 * turn + 1000 + own)]
        rows.append((20.0 * turn, 512 * len(ids) + lacking, ids))
    return rows


def took_ps(result: Result) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(time to the first token, to the last one) of each request."""
    assert all(request.status.value == "completed" for request in result.requests)
    return (
        np.array([(request.first_token_ps or 0) - request.arrived_ps for request in result.requests]),
        np.array([(request.completed_ps or 0) - request.arrived_ps for request in result.requests]),
    )


@given(
    drawn=PROMPTS,
    chunks=st.integers(1, 40),
    disk_chunks=st.integers(0, 40),
    rate_gbps=st.sampled_from([1, 5, 20, 60, 150, 500]),
    is_layerwise=st.booleans(),
    estimator=st.sampled_from(["roofline", "interpolation"]),
)
@settings(max_examples=40, deadline=None)
def test_a_request_alone_is_never_later_for_loads_that_are_asked_to_be_faster(
    drawn: list[tuple[int, int, int, int]],
    chunks: int,
    disk_chunks: int,
    rate_gbps: int,
    is_layerwise: bool,
    estimator: str,
) -> None:
    """Small caches over links from too slow to fast: no first and no last token is later than without tiers."""
    tiers: list[dict[str, Any]] = [{"kind": "cpu", "capacity": f"{chunks * CHUNK_BYTES}B"}]
    if disk_chunks:
        disk = {"read": f"{rate_gbps}Gbps", "written": "100Gbps", "latency": "100us"}
        tiers.append({"kind": "nvme", "capacity": f"{disk_chunks * CHUNK_BYTES}B", **disk})
    rows, topology = prompts(rows_of(drawn)), {"kind": "single_switch", "pcie": {"rate": f"{rate_gbps}Gbps"}}
    cache, engine = {"load": "if_faster", "layerwise": is_layerwise}, {"estimator": estimator}
    with_tiers = took_ps(run(rows, tiers, topology=topology, cache=cache, engine=engine))
    without = took_ps(run(rows, (), topology=topology, engine=engine))
    assert (with_tiers[0] <= without[0]).all()
    assert (with_tiers[1] <= without[1]).all()


@pytest.mark.parametrize(
    ("tokens", "between", "rate", "loaded"), [(257, 6_380, "40Gbps", 240), (513, 6_150, "100Gbps", 272)]
)
def test_a_load_that_saves_no_iteration_has_to_be_faster_than_what_it_saves(
    tokens: int, between: int, rate: str, loaded: int
) -> None:
    """A prompt of 257 tokens takes 8.6 ms, one of a single token 4.9 ms; a chunk loads in 7.5 ms at 40 Gbit/s: less
    than it takes to compute, and more than the 3.7 ms that it adds. Of one of 513 the prefix cache has 15 blocks left:
    272 tokens are loaded as two chunks, in 6.0 ms at 100 Gbit/s."""
    rows = prompts(
        [
            (0, tokens, [1, 2][: -(-tokens // 512)]),
            (20, between, [*range(100, 113)]),
            (40, tokens, [1, 2][: -(-tokens // 512)]),
        ]
    )
    tier, topology = [{"kind": "cpu", "capacity": "100GB"}], {"kind": "single_switch", "pcie": {"rate": rate}}
    asked, always, never = (
        run(rows, tiers, topology=topology, **cache)
        for tiers, cache in ((tier, {"cache": {"load": "if_faster"}}), (tier, {}), ((), {}))
    )
    assert [each.tier_tokens for each in (asked.requests[-1], always.requests[-1])] == [0, loaded]
    assert (took_ps(asked)[0] == took_ps(never)[0]).all()
    assert took_ps(always)[0][-1] > 1.2 * took_ps(never)[0][-1]


def test_such_loads_happen_where_links_are_fast_and_not_where_they_are_slow() -> None:
    rows = prompts([(0, 5_120, [*range(10)]), (20, 5_120, [*range(100, 110)]), (40, 5_120, [*range(10)])])
    tier, loads = [{"kind": "cpu", "capacity": "100GB"}], {}
    for rate in ("20Gbps", "500Gbps"):
        topology = {"kind": "single_switch", "pcie": {"rate": rate}}
        result = run(rows, tier, topology=topology, cache={"load": "if_faster"})
        loads[rate] = sum(each.loads for each in result.summary.tiers or ())
    assert loads == {"20Gbps": 0, "500Gbps": 1}


@given(
    drawn=PROMPTS,
    chunks=st.integers(1, 40),
    rate_gbps=st.sampled_from([1, 5, 20, 60, 150, 500]),
    is_layerwise=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_request_alone_is_later_by_its_load_at_most(
    drawn: list[tuple[int, int, int, int]], chunks: int, rate_gbps: int, is_layerwise: bool
) -> None:
    """The stated overhead of ``load: always``: the load of whole chunks, on an idle network."""
    tier = [{"kind": "cpu", "capacity": f"{chunks * CHUNK_BYTES}B"}]
    rows, topology = prompts(rows_of(drawn)), {"kind": "single_switch", "pcie": {"rate": f"{rate_gbps}Gbps"}}
    result = run(rows, tier, topology=topology, cache={"layerwise": is_layerwise})
    loaded = [-(-(request.tier_tokens or 0) // 256) for request in result.requests]
    most = [(each + 1) * CHUNK_BYTES * 8_000 // rate_gbps + LINKS_PS if each else 0 for each in loaded]
    with_tiers, without = took_ps(result), took_ps(run(rows, (), topology=topology))
    assert (with_tiers[0] <= without[0] + most).all()
    assert (with_tiers[1] <= without[1] + most).all()
