"""Routing policies of one's own: they see the request, what candidates have cached, and their loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool, requests, simulate
from vidur_pd.cluster.routing import Candidate, Routing
from vidur_pd.metrics.result import Result
from vidur_pd.scheduling import RequestView
from vidur_pd.simulation import api
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.workload.workload import BlockHashes


class CacheAware(Routing):
    """Where the fewest tokens are to be computed: those of the request that are not cached, and what is there."""

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        def to_compute(candidate: Candidate) -> int:
            return request.prompt_tokens - candidate.cached_tokens(request) + candidate.load_tokens

        return min(candidates, key=to_compute)


class AlwaysTheFirst(Routing):
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]


class Remembers(Routing):
    """Goes back to the candidate of its first request, which may be closed."""

    def __init__(self) -> None:
        self.first: Candidate | None = None

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        self.first = self.first or candidates[0]
        return self.first


class ChoosesAName(Routing):
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0].name  # type: ignore[return-value]


class Divides(Routing):
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[request.prompt_tokens // 0]


class Exits(Routing):
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        raise SystemExit(0)


class MostFree(Routing):
    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        return max(candidates, key=lambda each: each.free_blocks)


def conversations(routing: dict[str, str]) -> Result:
    """Four prompts of 2,048 tokens by turns, three times each, on two instances with prefix caches."""
    rows = [(400_000 * i, 2048, 2) for i in range(12)]
    contents = [[100 * (i % 4) + block for block in range(4)] for i in range(12)]
    workload = replace(requests(rows), block_hashes=BlockHashes(np.arange(13) * 4, np.array(contents).ravel(), 512))
    tree = config([pool("m", "mixed", instances=2)], engine={"prefix_caching": True}, routing=routing)
    return api.simulate(tree, workload)


def own(policy: type[Routing]) -> str:
    return f"{__name__}:{policy.__name__}"


def test_a_cache_aware_router_sends_a_prompt_where_it_has_been() -> None:
    """Round robin hits too here, as 4 prompts on 2 instances come back to theirs; random does not always."""
    aware, drawn = conversations({"policy": own(CacheAware)}), conversations({"policy": "random"})
    assert [each.cached_tokens for each in aware.requests] == [0] * 4 + [2032] * 8
    assert sum(each.cached_tokens for each in drawn.requests) < 8 * 2032


def test_it_may_choose_decode_instances_and_ranks() -> None:
    pools = [pool("p", "prefill"), pool("d", "decode", instances=3)]
    rows = [(10_000 * i, 100, 4) for i in range(6)]
    result = simulate(config(pools, routing={"decode_policy": own(AlwaysTheFirst)}), rows)
    assert {each.decode_instance for each in result.requests} == {"d-0"}
    sections: dict[str, Any] = {"model": "qwen3-30b-a3b", "routing": {"rank_policy": own(AlwaysTheFirst)}}
    pools = [pool("m", "mixed", dp=2, ep=2)]
    together = simulate(config(pools, **sections), [(0, 100, 4)] * 4)
    apart = simulate(config(pools, model="qwen3-30b-a3b"), [(0, 100, 4)] * 4)
    assert together.requests[3].completed_ps > apart.requests[3].completed_ps


def test_candidates_show_the_blocks_that_nobody_holds() -> None:
    """The second request finds the blocks of the first taken on m-0, the third fewer on m-0 than on m-1."""
    tree = config([pool("m", "mixed", instances=2)], routing={"policy": own(MostFree)})
    result = simulate(tree, [(0, 4000, 400), (200_000, 400, 400), (400_000, 400, 400)])
    assert [each.prefill_instance for each in result.requests] == ["m-0", "m-1", "m-1"]


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("chose", "Mine: found method chose, which nothing calls; expected choose, or _chose"),
        ("choose", "Mine: found choose(self), expected choose(self, request, candidates)"),
    ],
)
def test_methods_that_no_router_calls_are_refused_with_the_class(method: str, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        type("Mine", (Routing,), {method: lambda self: None})


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (ChoosesAName, "chose 'm-0', expected one of the candidates it was given"),
        (Divides, "raises: ZeroDivisionError: integer division or modulo by zero (test_own_routing.py:"),
        (Exits, "raises: SystemExit: 0 (test_own_routing.py:"),
        (Remembers, "chose m-0, expected one of the candidates it was given"),
    ],
)
def test_a_wrong_one_is_named_in_one_line(policy: type[Routing], text: str) -> None:
    """The first instance fails after the first request."""
    faults = [{"kind": "instance", "instance": "m-0", "at_s": 0.2, "for_s": 10}]
    tree = config([pool("m", "mixed", instances=2)], routing={"policy": own(policy)}, faults=faults)
    with pytest.raises(InputError) as found:
        simulate(tree, [(0, 10, 2), (1_000_000, 10, 2)])
    assert str(found.value).startswith(f"routing policy {own(policy)}: {text}")


@pytest.mark.parametrize(
    ("field", "policy", "text"),
    [
        ("policy", "fastest", "found 'fastest', expected one of least_tokens, least_requests, round_robin, random"),
        ("rank_policy", "random", "found 'random', expected one of least_tokens, least_requests, round_robin, module"),
        ("decode_policy", "nowhere:Mine", "routing.decode_policy: nowhere: found no such module"),
        ("rank_policy", f"{__name__}:RequestView", "expected a subclass of Routing"),
    ],
)
def test_unknown_ones_are_refused_before_simulated_time_starts(field: str, policy: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        plan_simulation(config([pool("m", "mixed")], routing={field: policy}))
