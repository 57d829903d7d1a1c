"""Options of policies: fields of the policy's own class, refused in one line where they are not."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from boundary.errors import InputError
from boundary.fields import Count
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.scheduling import Decision, Policy, RankView, Section
from vidur_pd.simulation.plan import plan_simulation

PLACE = __name__


class InTwos(Policy):
    """A few requests at a time, as many as its option says."""

    class Options(Section):
        most: Count = 1

    options: Options
    seen: ClassVar[list[int]] = []

    def begin(self, rank: RankView) -> None:
        self.seen.append(self.options.most)

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in rank.running:
            decision.run(request, rank.most_tokens(request))
        for request in rank.waiting[: max(self.options.most - rank.running_requests, 0)]:
            decision.run(request, rank.most_tokens(request))


def engine(**fields: Any) -> dict[str, Any]:
    return {"engine": {"policy": f"{PLACE}:InTwos", **fields}}


def test_a_policy_of_ones_own_has_its_options_from_begin_on() -> None:
    rows = [(0, 40, 30)] * 4
    InTwos.seen.clear()
    ends = []
    for options in ({}, {"most": 4}):
        result = simulate(config([pool("a", "mixed")], **engine(policy_options=options)), rows)
        ends.append(max(request.completed_ps or 0 for request in result.requests))
    assert InTwos.seen == [1, 4]
    assert ends[0] > 2 * ends[1]


def test_the_resolved_configuration_names_every_option() -> None:
    tree = engine(policy="sglang", policy_options={"mixed_chunk": True})
    plan = plan_simulation(config([pool("a", "mixed"), pool("b", "mixed", engine={"policy": "vllm_v1"})], **tree))
    assert plan.config.engine.policy_options == {
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "mixed_chunk": True,
        "max_prefill_tokens": 16384,
        "eviction_policy": "lru",
    }
    assert plan.config.cluster.pools[1].engine.policy_options == {}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"policy_options": {"mots": 2}}, "engine.policy_options.mots: unknown field; did you mean 'most'?"),
        ({"policy_options": {"most": "two"}}, "engine.policy_options.most: found 'two', expected a whole number"),
        (
            {"policy": "sglang", "policy_options": {"schedule_policy": "random"}},
            "engine.policy_options.schedule_policy: found 'random', expected one of fcfs, lpm, dfs-weight, lof",
        ),
        (
            {"policy": "vllm_v1", "policy_options": {"mixed_chunk": True}},
            "engine.policy_options.mixed_chunk: unknown field; expected no options with vllm_v1",
        ),
        (
            {"policy": "orca", "policy_options": {"mixed_chunk": True}},
            "engine.policy_options.mixed_chunk: unknown field; expected no options with orca",
        ),
    ],
)
def test_wrong_options_are_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        plan_simulation(config([pool("a", "mixed")], **engine(**fields)))
    assert str(error.value) == line


def test_a_pool_names_its_own_options() -> None:
    own = {"policy": "sglang", "policy_options": {"eviction_policy": "mru"}}
    with pytest.raises(InputError, match=r"cluster\.pools\.b\.engine\.policy_options\.eviction_policy: found 'mru'"):
        plan_simulation(config([pool("a", "mixed"), pool("b", "mixed", engine=own)]))


def test_options_are_a_section() -> None:
    with pytest.raises(TypeError, match="expected a subclass of Section"):

        class Wrong(Policy):
            Options = dict  # type: ignore[assignment]

            def decide(self, rank: RankView, decision: Decision) -> None: ...


def test_sglang_caches_prefixes_in_a_radix_tree_of_the_whole_simulation() -> None:
    """A run from the configuration on, with prefix caching and pages of a token."""
    sections = engine(policy="sglang", prefix_caching=True, block_tokens=1, policy_options={"schedule_policy": "lpm"})
    result = simulate(config([pool("a", "mixed")], **sections), [(1000 * i, 100 + 10 * i, 20) for i in range(10)])
    assert result.summary.completed == 10
