"""The policy ``sglang`` with asynchronous scheduling against SGLang's own classes in its overlap loop.

python -m tests.validation.sglang_overlap DIR [REQUEST_SETS]     (DIR: an unpacked wheel, see `sglang_vs_engine`)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.validation.sglang_engine import Engine, Req
from tests.validation.sglang_source import Source, load
from tests.validation.sglang_vs_engine import RequestSet, draw
from tests.vidur_pd.whole_runs import HASH_BLOCK_TOKENS, Scenario, WholeRun
from vidur_pd._core import DecideIteration
from vidur_pd.scheduling.policies.sglang import Sglang
from vidur_pd.workload.request import Request

STEP_PS = 1100
Batch = dict[int, int]


class OverlappedEngine(Engine):
    """``Scheduler.event_loop_overlap``: a batch is launched before the results of the one before are processed."""

    keeps_tokens = False
    """Of requests that are retracted, the token under way: not so in SGLang."""
    _queued: tuple[tuple[Req, str], ...] = ()
    """Requests of the batch whose results are to come: chunk, extend or decode."""

    def step(self) -> Batch:
        if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix_len:
            self._source.checkpoint_kv_cache(self.chunked, self.tree)
        self._merge()
        launched: list[tuple[Req, str]] = []
        if batch := self._prefill():
            for request, is_decode in batch:
                launched.append((request, "decode" if is_decode else "chunk" if request is self.chunked else "extend"))
            self._fresh = [request for request, _ in batch if request is not self.chunked]
            self._last_chunked = self.chunked
        elif self.running.reqs:
            launched = [(request, "decode") for request in self._decode()]
        elif not (self._queued or self.waiting or self.chunked):
            self.ratio.reset()
        computed = {request.rid: 1 if kind == "decode" else request.extend_len for request, kind in launched}
        queued, self._queued = self._queued, tuple(launched)
        for request, kind in queued:
            self._process(request, kind)
        return computed

    def _process(self, request: Req, kind: str) -> None:
        is_retracted = request.kv.req_pool_idx is None
        if kind == "chunk" or (is_retracted and not self.keeps_tokens):
            return
        self._sample(request)
        if is_retracted:
            return
        if request.finished():
            self._release(request, True)
        elif kind == "extend":
            self._source.checkpoint_kv_cache(request, self.tree)

    def _leave_out_finishing(self) -> bool:
        """``_reqs_finishing_inflight``"""
        sampling = {request.rid for request, kind in self._queued if kind != "chunk"}
        staying = [
            request
            for request in self.running.reqs
            if request.rid not in sampling or len(request.output_ids) + 1 < request.sampling_params.max_new_tokens
        ]
        found = len(staying) < len(self.running.reqs)
        self.running.reqs = staying
        self.running.batch_is_full &= not found
        return found

    def _mix(self) -> list[tuple[Req, bool]]:
        if self._sizes.mixed_chunk:
            self._leave_out_finishing()
        return super()._mix()

    def _decode(self) -> list[Req]:
        is_finishing = self._leave_out_finishing()
        if not self.running.reqs:
            self.running.batch_is_full = False
            return []
        if is_finishing and not self._fits(self.running.reqs):
            return []
        return super()._decode()


class Recorded(WholeRun):
    """Notes what happens: ``None`` is a decision, a number the request that came."""

    def __init__(self, scenario: Scenario, **options: Any) -> None:
        self.events: list[int | None] = []
        super().__init__(scenario, Sglang, **options)

    def _enter(self, request: Request) -> None:
        ended_ps = max((each.last_token_ps or 0 for each in self.requests), default=0)
        if not self.state.has_work and self.loop.now_ps > ended_ps:
            self.events += [None, None]  # SGLang takes the last results, and then idles; nobody asks ours
        self.events.append(request.index)
        super()._enter(request)

    def _decide(self, notice: DecideIteration) -> None:
        self.events.append(None)
        super()._decide(notice)


def ours(chosen: RequestSet) -> Recorded:
    sizes, setting = chosen.sizes, chosen.setting
    requests = tuple(
        (step * STEP_PS, prompt, output, ids[: -(-prompt // HASH_BLOCK_TOKENS)])
        for step, prompt, output, ids in chosen.requests
    )
    scenario = Scenario(
        role="mixed",
        caching=True,
        block_tokens=sizes.page,
        usable_blocks=sizes.pages,
        budget=sizes.chunk,
        max_seqs=sizes.max_seqs,
        threshold=0,
        stages=1,
        drafts=0,
        requests=requests,
        max_model_len=10**6,
        plans_ahead=True,
    )
    return Recorded(
        scenario,
        schedule_policy=setting.schedule_policy,
        schedule_conservativeness=setting.conservativeness,
        mixed_chunk=sizes.mixed_chunk,
        max_prefill_tokens=sizes.max_prefill_tokens,
        eviction_policy=setting.eviction_policy,
    )


def theirs(
    source: Source, chosen: RequestSet, events: list[int | None], *, keeps_tokens: bool
) -> tuple[list[Batch], OverlappedEngine]:
    """Batches of SGLang, which decides when ours did."""
    engine, batches = OverlappedEngine(source, chosen.sizes, chosen.setting), []
    engine.keeps_tokens = keeps_tokens
    for event in events:
        if event is None:
            batches.append(engine.step())
            continue
        _, prompt, output, ids = chosen.requests[event]
        places = range(prompt)
        tokens = [1000 * ids[place // HASH_BLOCK_TOKENS] + place % HASH_BLOCK_TOKENS for place in places]
        engine.add(Req(event, tokens, output))
    engine.step()  # the last results
    return [batch for batch in batches if batch], engine


@dataclass
class Agreement:
    steps: int = 0
    equal: int = 0
    unequal: list[int] = field(default_factory=list)
    """Seeds of sets of which a batch, or the tree at the end, is not equal."""
    sets: int = 0
    retracting: int = 0
    """Sets with a retraction: there SGLang loses a token, on purpose not so here, and the engine is let keep it."""


def compare(source: Source, seeds: range, verbose: bool = False) -> Agreement:
    """Batches and trees."""
    found = Agreement()
    for seed in seeds:
        chosen = draw(seed)
        run = ours(chosen)
        run.serve()
        got = [{index: new for index, new, *_ in entries} for entries, *_ in run.batches]
        expected, engine = theirs(source, chosen, run.events, keeps_tokens=False)
        if engine.retracted:
            found.retracting += 1
            expected, engine = theirs(source, chosen, run.events, keeps_tokens=True)
        is_equal = got == expected and sorted(getattr(run.pool, "nodes", [])) == engine.nodes()
        found.sets += 1
        found.steps += len(expected)
        found.equal += sum(a == b for a, b in zip(expected, got, strict=False))
        if is_equal:
            continue
        found.unequal.append(seed)
        if verbose:
            first = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), -1)
            place = f"step {first}: {expected[first]} but {got[first]}" if first >= 0 else "lengths or trees"
            print(f"set {seed} {chosen.sizes} {chosen.setting}: {place}")
    return found


if __name__ == "__main__":
    print(compare(load(Path(sys.argv[1])), range(int(sys.argv[2]) if len(sys.argv) > 2 else 500), verbose=True))
