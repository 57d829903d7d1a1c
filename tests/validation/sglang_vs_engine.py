"""The policy ``sglang`` against SGLang's own scheduling classes, batch by batch, over random request sets.

pip download sglang==0.5.23 --no-deps && unzip sglang-*.whl -d DIR
python -m tests.validation.sglang_vs_engine DIR [REQUEST_SETS]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.validation.sglang_engine import Engine, Req, Sizes
from tests.validation.sglang_source import Settings, Source, load
from tests.vidur_pd.one_rank import OneRank
from vidur_pd.scheduling.kv_blocks import RadixBlockPool
from vidur_pd.scheduling.policies.sglang import Sglang
from vidur_pd.workload.request import Request

ID_TOKENS = 4
MOST_STEPS = 20_000


@dataclass(frozen=True)
class RequestSet:
    """Requests are (step at which they are there, prompt, output, ids of the prompt)."""

    sizes: Sizes
    setting: Settings
    requests: tuple[tuple[int, int, int, tuple[int, ...]], ...]


@dataclass
class Agreement:
    steps: int = 0
    equal: int = 0
    sets: int = 0
    equal_sets: int = 0
    retractions: int = 0
    cached_tokens: int = 0
    equal_trees: int = 0
    """At the end: nodes and their hits."""


def draw(seed: int) -> RequestSet:
    rng = np.random.default_rng(seed)
    page = int(rng.choice([1, 1, 4, 16]))
    requests, step = [], 0
    for _ in range(int(rng.integers(5, 60))):
        step += int(rng.choice([0, 0, 0, 1, 3, 10, 60]))
        prompt, output = int(rng.integers(1, 120)), int(rng.integers(1, 60))
        shared = [int(rng.integers(0, 3))] * int(rng.integers(0, 20))
        ids = (*shared, *rng.integers(0, 4, size=40).tolist())[: -(-prompt // ID_TOKENS)]
        requests.append((step, prompt, output, tuple(ids)))
    largest = max(-(-prompt // page) * page + output + page for _, prompt, output, _ in requests)
    sizes = Sizes(
        pages=-(-largest // page) + 1 + int(rng.integers(0, rng.choice([60, 600]))) // page,
        page=page,
        chunk=int(rng.integers(40, 200)),
        max_seqs=int(rng.integers(2, 30)),
        max_prefill_tokens=int(rng.choice([64, 16384])),
        mixed_chunk=bool(rng.integers(0, 2)),
    )
    setting = Settings(
        float(rng.choice([0.05, 0.3, 1.0])),
        str(rng.choice(["fcfs", "lpm", "dfs-weight", "lof"])),
        str(rng.choice(["lru", "lfu"])),
    )
    return RequestSet(sizes, setting, tuple(requests))


def tokens_of(prompt: int, ids: tuple[int, ...]) -> list[int]:
    """Equal where ids are, and only there; a token says its id and its place in the block."""
    return [1000 * ids[place // ID_TOKENS] + place % ID_TOKENS for place in range(prompt)]


def theirs(source: Source, chosen: RequestSet) -> tuple[list[dict[int, int]], Engine]:
    engine, batches = Engine(source, chosen.sizes, chosen.setting), []
    line = [(step, Req(i, tokens_of(p, ids), d)) for i, (step, p, d, ids) in enumerate(chosen.requests)]
    for step in range(MOST_STEPS):
        while line and line[0][0] <= step:
            engine.add(line.pop(0)[1])
        batches.append(engine.step())
        if not batches[-1] and not line:
            return batches, engine
    raise AssertionError("SGLang does not come to an end")


def ours(chosen: RequestSet, steps: int) -> tuple[list[dict[int, int]], RadixBlockPool, list[Request]]:
    sizes, setting = chosen.sizes, chosen.setting
    policy = Sglang()
    policy.options = Sglang.Options(
        schedule_policy=setting.schedule_policy,
        schedule_conservativeness=setting.conservativeness,
        mixed_chunk=sizes.mixed_chunk,
        max_prefill_tokens=sizes.max_prefill_tokens,
        eviction_policy=setting.eviction_policy,
    )
    pool = RadixBlockPool(sizes.pages + 1, sizes.page, ID_TOKENS, setting.eviction_policy)
    rank = OneRank(pool, max_batched_tokens=sizes.chunk, max_seqs=sizes.max_seqs, max_model_len=10**6, policy=policy)
    policy.begin(rank.view)
    requests = [Request(i, str(i), p, d, 0, ids) for i, (_, p, d, ids) in enumerate(chosen.requests)]
    batches, began = [], 0
    for step in range(steps):
        while began < len(requests) and chosen.requests[began][0] <= step:
            rank.add(requests[began])
            began += 1
        batch = rank.schedule()
        batches.append(
            {}
            if batch is None
            else dict(zip([r.index for r in batch.requests], batch.new_tokens.tolist(), strict=True))
        )
        if batch is None:
            rank.pass_time()
        else:
            rank.finish(batch)
    return batches, pool, requests


def compare(source: Source, seeds: range, verbose: bool = False) -> Agreement:
    found = Agreement()
    for seed in seeds:
        chosen = draw(seed)
        expected, engine = theirs(source, chosen)
        got, pool, requests = ours(chosen, len(expected))
        equal = sum(a == b for a, b in zip(expected, got, strict=True))
        found.steps += len(expected)
        found.equal += equal
        found.sets += 1
        found.equal_sets += equal == len(expected)
        found.equal_trees += sorted(pool.nodes) == engine.nodes()
        found.retractions += len(engine.retracted)
        found.cached_tokens += sum(request.cached_tokens or 0 for request in requests)
        if verbose and equal < len(expected):
            first = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
            print(f"set {seed} {chosen.sizes} {chosen.setting}: step {first}: {expected[first]} but {got[first]}")
    return found


if __name__ == "__main__":
    print(compare(load(Path(sys.argv[1])), range(int(sys.argv[2]) if len(sys.argv) > 2 else 500), verbose=True))
