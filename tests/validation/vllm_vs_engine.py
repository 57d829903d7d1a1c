"""The policy ``vllm_v1`` against vLLM's own scheduler, batch by batch, over random request sets.

pip download vllm==0.24.0 --no-deps && unzip vllm-*.whl '*.py' -d DIR
python -m tests.validation.vllm_vs_engine DIR [REQUEST_SETS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.validation.vllm_engine import Engine, Step, accepted_drafts
from tests.validation.vllm_source import Source, load
from tests.vidur_pd.test_async_reference import SteppedRun
from tests.vidur_pd.whole_runs import HASH_BLOCK_TOKENS, Scenario, unchunked
from vidur_pd._core import RunningIteration

Seen = tuple[int | None, int | None, int, int | None]
"""Of a request: instants of its first and last token [ps], preemptions, tokens that it hit at first."""


@dataclass
class Agreement:
    sets: int = 0
    equal_sets: int = 0
    """Batches, and what each request has seen."""
    batches: int = 0
    equal: int = 0
    sets_with_preemptions: int = 0
    preemptions: int = 0
    sets_with_hits: int = 0
    cached_tokens: int = 0

    def add(self, steps: list[Step], seen: list[Seen]) -> None:
        """A set as vLLM serves it."""
        preemptions, cached = sum(len(step.preempted) for step in steps), sum(row[-1] or 0 for row in seen)
        self.sets += 1
        self.preemptions += preemptions
        self.sets_with_preemptions += preemptions > 0
        self.cached_tokens += cached
        self.sets_with_hits += cached > 0


def draw(seed: int) -> Scenario:
    """Requests that share beginnings of their prompts, in a pool that a few of them fill."""
    rng = np.random.default_rng(seed)
    block_tokens = int(rng.choice([1, 2, 4, 16]))
    requests, at_ps = [], 0
    for _ in range(int(rng.integers(5, 60))):
        at_ps += int(rng.choice([0, 0, 0, 1, 700, 1001, 5000, 60_000]))
        prompt, output = int(rng.integers(1, 120)), int(rng.integers(1, 60))
        shared = [int(rng.integers(0, 3))] * int(rng.integers(0, 20))
        ids = (*shared, *rng.integers(0, 4, size=40).tolist())[: -(-prompt // HASH_BLOCK_TOKENS)]
        requests.append((at_ps, prompt, output, tuple(ids) if rng.integers(0, 5) else None))
    largest = max(-(-(prompt + output - 1) // block_tokens) for _, prompt, output, _ in requests)
    return Scenario(
        role="mixed",
        caching=bool(rng.integers(0, 4)),
        block_tokens=block_tokens,
        usable_blocks=largest + int(rng.integers(0, rng.choice([1, 2, 5]) * largest + 1)),
        budget=int(rng.integers(30, rng.choice([60, 600]))),
        max_seqs=int(rng.integers(2, 30)),
        threshold=int(rng.choice([0, 0, 7, 25])),
        stages=1,
        drafts=0,
        requests=tuple(requests),
        watermark_blocks=int(rng.choice([0, 0, 1, 5])),
    )


class DraftedRun(SteppedRun):
    """Accepts the drafts that vLLM's engine does here."""

    def _accept(self, iteration: RunningIteration) -> None:
        assert iteration.batch is not None
        batch = iteration.batch.batches[0]
        assert batch is not None
        rows = zip(batch.requests, batch.drafts.tolist(), batch.samples.tolist(), strict=True)
        accepted = [
            accepted_drafts(request.index, request.prompt_tokens + request.generated_tokens, drafts)
            for request, drafts, samples in rows
            if samples
        ]
        self.loop.set_accepted([accepted], [])


def ours(scenario: Scenario) -> tuple[list[Step], list[Seen]]:
    run = DraftedRun(scenario)
    run.serve()
    assert run.left_undone() == []
    seen = [(r.first_token_ps, r.last_token_ps, r.preemptions, r.cached_tokens) for r in run.requests]
    return [Step(*step) for step in run.steps], seen


def theirs(source: Source, scenario: Scenario) -> tuple[list[Step], list[Seen]]:
    engine = Engine(source, scenario)
    engine.serve()
    seen = [
        (ends_ps[0], ends_ps[-1], request.num_preemptions, engine.hit_tokens[index])
        for index, (ends_ps, request) in enumerate(zip(engine.token_ends_ps, engine.requests, strict=True))
    ]
    return engine.steps, seen


def agreement(
    source: Source,
    scenarios: Mapping[int, Scenario],
    *,
    changes: Callable[[Scenario], Scenario] = lambda scenario: scenario,
    verbose: bool = False,
) -> Agreement:
    """`vllm_v1` serves what ``changes`` makes of the scenarios that vLLM serves."""
    found = Agreement()
    for seed, scenario in scenarios.items():
        (expected, expected_seen), (got, seen) = theirs(source, scenario), ours(changes(scenario))
        equal = [a == b for a, b in zip(expected, got, strict=False)]
        length = max(len(expected), len(got))
        is_equal = sum(equal) == length and expected_seen == seen
        found.add(expected, expected_seen)
        found.batches += length
        found.equal += sum(equal)
        found.equal_sets += is_equal
        if verbose and not is_equal:
            print(f"set {seed}: {sum(equal)} of {length} batches equal; {scenario}")
            if False in equal:
                first = equal.index(False)
                print(f"  step {first}: vLLM {expected[first]}\n  vllm_v1 {got[first]}")
    return found


MODES: Final[Mapping[str, Callable[[Scenario, np.random.Generator], Scenario]]] = {
    "first come, first served": lambda scenario, _: scenario,
    "by priority": lambda scenario, rng: replace(
        scenario, priorities=tuple(rng.integers(0, 3, size=len(scenario.requests)).tolist())
    ),
    "without chunked prefill": lambda scenario, _: unchunked(replace(scenario, budget=1)),
}


def sets(count: int, mode: str, plans_ahead: bool) -> dict[int, Scenario]:
    return {
        seed: replace(MODES[mode](draw(seed), np.random.default_rng([seed, 1])), plans_ahead=plans_ahead)
        for seed in range(count)
    }


def pipeline_sets(count: int) -> dict[int, Scenario]:
    """Two to four stages and blocks for all: vLLM preempts requests in flight, which wait there for their results."""
    return {
        seed: replace(draw(seed), stages=2 + seed % 3, pipelines_chunks=True, usable_blocks=100_000)
        for seed in range(count)
    }


DRAFTERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "n-grams": {"lookahead": False},
    "a draft model": {"lookahead": True},
    "a layer": {"lookahead": True, "drops_last_hit": True},
}

AHEAD: Final = ("a draft model", "a layer")
"""Drafters with which vLLM may have two batches in flight."""


def drafted_sets(count: int, drafter: str, plans_ahead: bool = False) -> dict[int, Scenario]:
    """One to four drafts, with room for a request and its look-ahead."""
    made = {}
    for seed in range(count):
        scenario, drafts, rules = draw(seed), 1 + seed % 4, dict(DRAFTERS[drafter])
        lookahead = drafts if rules.pop("lookahead") else 0
        blocks = scenario.usable_blocks + -(-drafts // scenario.block_tokens)
        rules |= {"drafts": drafts, "lookahead": lookahead, "usable_blocks": blocks, "plans_ahead": plans_ahead}
        made[seed] = replace(scenario, **rules)
    return made


def main(folder: Path, count: int) -> None:
    source = load(folder)
    for drafter in DRAFTERS:
        for plans_ahead in (False, True) if drafter in AHEAD else (False,):
            print(f"drafts by {drafter}, {'two batches' if plans_ahead else 'one batch'} in flight:")
            print(agreement(source, drafted_sets(count, drafter, plans_ahead), verbose=True), flush=True)
    print("through a pipeline:")
    print(agreement(source, pipeline_sets(count), verbose=True), flush=True)
    for mode in MODES:
        for plans_ahead in (False, True):
            print(f"{mode}, {'two batches' if plans_ahead else 'one batch'} in flight:")
            print(agreement(source, sets(count, mode, plans_ahead), verbose=True), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 500)
