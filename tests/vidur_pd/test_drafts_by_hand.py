"""Batches of vLLM V1 with drafts, worked out by hand.

Blocks of 4 tokens, a budget of 100 and room for all unless said otherwise. A decode computes its newest token and its
drafts; of k drafts at most as many are verified as leave a token to come. Rules: vLLM 0.24.0,
vllm/v1/core/sched/scheduler.py; but drafts end with a request's output here, which vLLM trims afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.vidur_pd.policies.by_hand.case import Step
from tests.vidur_pd.whole_runs import WholeRun, scenario_of
from vidur_pd.scheduling import Drafts
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python


@dataclass(frozen=True)
class Case:
    """Requests are (arrival [ps], prompt, output); an acceptance of 1 or 0 leaves nothing to chance."""

    name: str
    requests: tuple[tuple[int, int, int], ...]
    acceptances: tuple[float, ...]
    steps: tuple[Step, ...]
    limits: dict[str, Any] = field(default_factory=dict)
    made: tuple[tuple[int, ...], ...] = ()
    """[steps][requests that sample] drafts found for the next step; empty: always all."""


class Found(Drafts):
    """Drafts that n-grams find as it is written down."""

    def __init__(self, acceptances: Sequence[float], made: Sequence[Sequence[int]]) -> None:
        super().__init__(acceptances, np.random.default_rng(0))
        self._left = list(made)

    def made(self, requests: int) -> NDArray[np.int64] | None:
        return np.array(self._left.pop(0)[:requests], dtype=np.int64) if self._left else None


ONE_GIVES_WAY = (Step({0: 8, 1: 8}), Step({0: 2}, preempts=(1,)), *(Step({0: 2}),) * 5, Step({0: 1}))
"""Of two requests of 8 + 8 tokens, whose drafts are never accepted, in 5 blocks."""
ITS_DECODES = (*(Step({1: 2}),) * 5, Step({1: 1}))
"""Of the other one, once it has been recomputed."""

CASES = (
    Case(
        "the first of two drafts is accepted, the second is not",
        # every step yields 2 of 3 tokens; the last has room for one draft: 1 + 2 + 2 + 2 = 7
        requests=((0, 5, 7),),
        acceptances=(1.0, 0.0),
        steps=(Step({0: 5}), Step({0: 3}), Step({0: 3}), Step({0: 2})),
    ),
    Case(
        "ten requests share a budget of 20",
        # 5 prompts fill it; their decodes with 2 drafts (of 3: 4 outputs) take 15, the rest goes to prompts
        requests=((0, 4, 4),) * 10,
        acceptances=(1.0, 1.0, 1.0),
        limits={"budget": 20, "max_seqs": 10},
        steps=(
            Step(dict.fromkeys(range(5), 4)),
            Step(dict.fromkeys(range(5), 3) | {5: 4, 6: 1}),
            Step({5: 3, 6: 3, 7: 4, 8: 4, 9: 4}),  # the first five are done; 2 tokens of the budget are left
            Step(dict.fromkeys(range(6, 10), 3)),
        ),
    ),
    Case(
        "slots for drafts to come keep the next request out",
        # 7 + 2 tokens are 3 blocks of 4, and the next asks for 4 + 2, 2 blocks. Without look-ahead both run at once.
        requests=((0, 7, 2), (0, 4, 1)),
        acceptances=(1.0, 1.0),
        limits={"lookahead": 2, "usable_blocks": 4},
        steps=(Step({0: 7}), Step({0: 1}), Step({1: 4})),
    ),
    Case(
        "without look-ahead both fit",
        requests=((0, 7, 2), (0, 4, 1)),
        acceptances=(1.0, 1.0),
        limits={"usable_blocks": 4},
        steps=(Step({0: 7, 1: 4}), Step({0: 1})),
    ),
    Case(
        "slots for drafts to come end at the longest sequence",
        # 7 tokens and two to come would be 3 blocks; at most 8 can be: 2 blocks, and the next fits beside them
        requests=((0, 6, 2), (0, 4, 1)),
        acceptances=(1.0, 1.0),
        limits={"lookahead": 2, "usable_blocks": 4, "max_model_len": 8},
        steps=(Step({0: 6, 1: 4}), Step({0: 1})),
    ),
    Case(
        "a draft takes the last block, and its neighbour gives way",
        # 2 + 2 of 5 blocks. Request 0 needs tokens 9 and 10; request 1 finds none and is preempted. No draft is
        # accepted: a token per step, two until the last. 9 tokens of request 1 need 3 blocks, and 2 are free, until
        # request 0 is done.
        requests=((0, 8, 8), (0, 8, 8)),
        acceptances=(0.0,),
        limits={"usable_blocks": 5},
        steps=(*ONE_GIVES_WAY, Step({1: 9}), *ITS_DECODES),
    ),
    Case(
        "the last chunk of an answer that is recomputed has no drafts",
        # as before, but the 9 tokens of request 1 come in chunks of 8 and 1: drafts follow a step with a new token
        requests=((0, 8, 8), (0, 8, 8)),
        acceptances=(0.0,),
        limits={"usable_blocks": 5, "threshold": 8},
        steps=(*ONE_GIVES_WAY, Step({1: 8}), Step({1: 1}), *ITS_DECODES),
    ),
    Case(
        "nor has it where chunks follow each other through a pipeline",
        # its second chunk begins while the first is in the second stage, and the token before its recomputation is past
        requests=((0, 8, 8), (0, 8, 8)),
        acceptances=(0.0,),
        limits={"usable_blocks": 5, "threshold": 8, "stages": 2, "pipelines_chunks": True},
        steps=(*ONE_GIVES_WAY, Step({1: 8}), Step({1: 1}), *ITS_DECODES),
    ),
    Case(
        "a request begins if its sequence fits, and its first tokens with slots for drafts to come",
        # 4 + 2 tokens of request 0 are 2 of 4 blocks; the 8 tokens of request 1 are 2, as are its first 4 + 2. When it
        # computes the others, with 2 to come 3 blocks, request 0 is done.
        requests=((0, 4, 1), (0, 8, 1)),
        acceptances=(1.0, 1.0),
        limits={"lookahead": 2, "usable_blocks": 4, "budget": 8},
        steps=(Step({0: 4, 1: 4}), Step({1: 4})),
    ),
    Case(
        "an accepted draft is cached with the step after",
        # After two steps both have 11 tokens, KV of 10, and keys of the 9 that the second step knew. Request 0 takes
        # the last two blocks of one token, request 1 gives way, hits 9 tokens when request 0 is done, and computes 2.
        requests=((0, 8, 5), (0, 8, 8)),
        acceptances=(1.0,),
        limits={"caching": True, "block_tokens": 1, "usable_blocks": 22},
        steps=(
            Step({0: 8, 1: 8}),
            Step({0: 2, 1: 2}),
            Step({0: 2}, preempts=(1,)),
            *(Step({1: 2}),) * 3,
        ),
    ),
    Case(
        "n-grams are found for one request, then for the other",
        # 1 + 3 + 1 and 1 + 1 + 3 tokens
        requests=((0, 4, 5), (0, 4, 5)),
        acceptances=(1.0, 1.0),
        made=((2, 0), (0, 2)),
        steps=(Step({0: 4, 1: 4}), Step({0: 3, 1: 1}), Step({0: 1, 1: 3})),
    ),
)


@pytest.mark.parametrize("policy", [None, VllmV1Python], ids=["core", "python"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batches_are_those_worked_out_by_hand(case: Case, policy: type[VllmV1Python] | None) -> None:
    scenario = scenario_of(*case.requests, **{"max_seqs": 8, **case.limits, "drafts": len(case.acceptances)})
    run = WholeRun(scenario, policy, drafts=Found(case.acceptances, case.made)).serve()
    assert run.left_undone() == []
    batches = [({row[0]: row[1] for row in rows}, tuple(preempted)) for rows, _, preempted in run.batches]
    assert [(list(computes.items()), preempted) for computes, preempted in batches] == [
        (list(step.computes.items()), step.preempts) for step in case.steps
    ]


@pytest.mark.parametrize(("drops_last_hit", "computed"), [(False, 2), (True, 6)])
def test_the_last_block_of_a_hit_is_computed_again_for_a_drafting_layer(drops_last_hit: bool, computed: int) -> None:
    """18 tokens of a prompt that was there before: 4 blocks of 4 are cached short of the last token; a layer has no
    hidden states of what is not computed, and vLLM drops one."""
    prompt, ids = 18, (0, 0, 0)
    scenario = scenario_of(caching=True, drops_last_hit=drops_last_hit, drafts=1)
    scenario = replace(scenario, requests=((0, prompt, 1, ids), (500, prompt, 1, ids)))
    run = WholeRun(scenario).serve()
    assert [rows for rows, *_ in run.batches] == [[(0, 18, 18, 0)], [(1, computed, 18, 0)]]
    assert [request.cached_tokens for request in run.requests] == [0, 18 - computed]


def test_a_request_whose_last_step_has_no_room_for_drafts_to_come_is_refused() -> None:
    """12 tokens are 3 blocks; with two slots behind them 4 of the 3 there are."""
    scenario = scenario_of((0, 12, 1), usable_blocks=3, drafts=2)
    assert WholeRun(scenario).refusal(WholeRun(scenario).requests[0]) is None
    run = WholeRun(replace(scenario, lookahead=2))
    assert run.refusal(run.requests[0]) == "its 4 KV blocks exceed the 3 of the pool"
