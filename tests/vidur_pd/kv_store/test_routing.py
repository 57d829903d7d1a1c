"""Routing that sees tiers: where a request goes, by what is left of it there, and how late that is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.small_runs import pool
from tests.vidur_pd.kv_store.test_tier import tier_of
from tests.vidur_pd.kv_store.tiered_runs import CPU, TOKEN_BYTES, prompts, run
from vidur_pd._core import ChunkKeys
from vidur_pd.kv.store.views import LateIndex
from vidur_pd.metrics.result import Result

PROMPTS = 12
ORDER = [7, 2, 11, 0, 5, 9, 1, 10, 3, 8, 4, 6]
FIRST_AGAIN_S = 120.0
"""Arrival of the first prompt that comes again."""


def again(options: dict[str, float], tier: dict[str, Any] = CPU, gap_s: float = 10.0, **routing: Any) -> Result:
    """Twelve prompts that fill a prefix cache each, then the same once more in another order, on four instances."""
    ids = [[*range(100 * prompt, 100 * prompt + 11)] for prompt in range(PROMPTS)]
    rows = [(gap_s * prompt, 5_270, ids[prompt]) for prompt in range(PROMPTS)]
    rows += [(FIRST_AGAIN_S + 10.0 * turn, 5_270, ids[prompt]) for turn, prompt in enumerate(ORDER)]
    topology = {"kind": "rail_optimized", "gpus_per_node": 4, "pcie": {"rate": "504Gbps"}}
    return run(
        prompts(rows),
        [tier],
        blocks=330,
        pools=[pool("server", "mixed", instances=4)],
        topology=topology,
        routing={"policy": "kv_aware", "policy_options": options, **routing},
    )


def returned(result: Result) -> list[bool]:
    """Whether each prompt has gone to where it was before."""
    first, second = result.requests[:PROMPTS], result.requests[PROMPTS:]
    return [second[turn].prefill_instance == first[prompt].prefill_instance for turn, prompt in enumerate(ORDER)]


def test_prompts_go_where_a_tier_has_them() -> None:
    """Prefix caches have forgotten them, and without a weight ties are drawn: of twelve, a few return by chance."""
    seen, blind = again({"host_weight": 0.75}), again({})
    assert all(returned(seen))
    assert sum(returned(blind)) < PROMPTS
    assert all(request.cached_tokens >= 5_120 for request in seen.requests[PROMPTS:])
    loaded = [sum(request.tier_tokens or 0 for request in result.requests) for result in (seen, blind)]
    assert loaded[0] > loaded[1]


def test_what_all_have_draws_nobody() -> None:
    """Of a tier that all instances share, each has the same."""
    shared = CPU | {"scope": "server"}
    assert sum(returned(again({"host_weight": 0.75}, shared))) < PROMPTS


@pytest.mark.parametrize(("delay_s", "is_known"), [(1.0, True), (60.0, True), (300.0, False)])
def test_routers_that_hear_late_know_tiers_late(delay_s: float, is_known: bool) -> None:
    """All prompts come within 24 s, and again from second 120 on; what a router has sent where it believes to be in the
    prefix cache until the next is sent there."""
    result = again({"host_weight": 0.75}, gap_s=2.0, index_delay_s=delay_s)
    assert all(returned(result)) is is_known


def test_a_tier_that_has_forgotten_draws_nobody() -> None:
    """Room for one prompt and a bit, of the three that each instance has on average."""
    small = CPU | {"capacity": f"{25 * 256 * TOKEN_BYTES}B"}
    assert sum(returned(again({"host_weight": 0.75}, small))) < PROMPTS


def test_an_index_that_hears_late_follows_its_tier() -> None:
    """By hand: room for two chunks; a delay of 10 ps."""
    now_ps = 0
    tier = tier_of("lru", 2)
    late = LateIndex(ChunkKeys(256, 512), 10, lambda: now_ps)
    tier.listen(late.tell)
    tier.written(tier.access([1, 2]))
    now_ps = 5
    tier.written(tier.access([3]))
    assert (1 in tier.index, 2 in tier.index, 3 in tier.index) == (True, False, True)
    found = []
    for at_ps in (9, 10, 14, 15):
        now_ps = at_ps
        found.append([chunk in late.now() for chunk in (1, 2, 3)])
    assert found == [[False] * 3, [True, True, False], [True, True, False], [True, False, True]]
