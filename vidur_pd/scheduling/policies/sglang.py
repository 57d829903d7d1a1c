"""SGLang: batches extend or decode, extends first, and a radix tree caches prefixes.

Source: SGLang 0.5.23 (the wheel), python/sglang/srt/managers: scheduler.py (``get_next_batch_to_run``,
``update_running_batch``), schedule_batch.py (``retract_decode``), scheduler_components/new_token_ratio_tracker.py;
`sglang_admission` and `sglang_queue` name theirs.

Pages are blocks (``engine.block_tokens``; SGLang's own usual size is 1), ``chunked_prefill_size`` is
``engine.max_batched_tokens``, and ``max_running_requests`` is ``engine.max_seqs``.

Overlap scheduling (``event_loop_overlap``) is ``engine.async_scheduling``: what iterations before the one under way
have given is known. Requests whose last token is under way count until a decode leaves them out; where that lacks their
KV, nothing runs until it is free.

Departures. With overlap SGLang throws away the token under way of a request that is retracted, and lets a request that
ends early run once more; here the one keeps it and the other does not, as the ranks do for all policies. SGLang aborts
the last decoding request where not even that one has room; here it queues again. It plans the chunks of a prompt into
several pipeline stages at a time; here a request is in one. A decode instance keeps the KV of retracted requests on the
host; here it is computed again. Chunked prefill cannot be switched off.

Not modelled: ``ignore_eos``, for which SGLang reserves whole outputs; priorities; the other orders and evictions; with
EAGLE, the tree of pairs of tokens, in which hits are a token shorter, and the KV reserved for drafts to come.
"""

from __future__ import annotations

from typing import Final, Literal

from boundary.errors import InputError
from boundary.fields import Count, Ratio
from vidur_pd.scheduling.kv_blocks import BlockPool, PrefixCacheSizes, RadixBlockPool
from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policies.sglang_admission import Admission, Verdict, most_new_tokens
from vidur_pd.scheduling.policies.sglang_queue import WaitingQueue
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView, Section

RETRACT_DECODE_STEPS: Final = 20
"""Tokens that each request is taken to generate still, after a retraction."""
INIT_NEW_TOKEN_RATIO: Final = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR: Final = 0.14
NEW_TOKEN_RATIO_DECAY_STEPS: Final = 600
"""Decodes; this and the two above are ``SGLANG_…`` of these names in python/sglang/srt/environ.py."""


class NewTokenRatio:
    """The share of their remaining output that running requests are expected to generate.

    It falls by equal steps from its first value to the least one.
    """

    def __init__(self, conservativeness: float) -> None:
        self._first = min(INIT_NEW_TOKEN_RATIO * conservativeness, 1.0)
        self._least = self._first * MIN_NEW_TOKEN_RATIO_FACTOR
        self.reset()

    @property
    def now(self) -> float:
        fall = self._decodes * (self._first - self._least) / NEW_TOKEN_RATIO_DECAY_STEPS
        return max(self._base - fall, self._least)

    def reset(self) -> None:
        self._base, self._decodes = self._first, 0

    def decay(self, decodes: int = 1) -> None:
        self._decodes += decodes

    def estimate(self, kept: list[RequestView]) -> None:
        """After a retraction, from the requests that go on."""
        generated = sum(request.generated_tokens for request in kept)
        in_all = sum(request.max_output_tokens for request in kept)
        self._base = min((generated + RETRACT_DECODE_STEPS * len(kept)) / (in_all + 1), 1.0)
        self._decodes = 0


class Sglang(Policy):
    """Waiting prompts are admitted as long as the KV that they and the running requests may come to is free; only where
    none can be, all running requests decode. Prompts are cut to the chunk, one at a time."""

    class Options(Section):
        schedule_policy: Literal["fcfs", "lpm", "dfs-weight", "lof"] = "fcfs"
        """Order of the waiting requests: as they came; longest cached prefix first; along the tree, subtrees with many
        requests first; longest output first."""
        schedule_conservativeness: Ratio = 1.0
        """Above 1 fewer requests are admitted, and fewer retracted."""
        mixed_chunk: bool = False
        """Running requests decode next to an extend."""
        max_prefill_tokens: Count = 16384
        """Most prompt tokens of an extend, besides the chunk."""
        eviction_policy: Literal["lru", "lfu"] = "lru"

    options: Options

    def __init__(self) -> None:
        self._chunked: RequestView | None = None
        """The one prompt that has been cut and is not done."""
        self._is_full = False
        """Admission has failed for lack of KV or seats; it is tried again when a request leaves."""
        self._batch: list[RequestView] = []
        """Requests that ran after the last decision, but for the chunked one, in the order in which they joined: next
        to an extend, behind those of the extend."""
        self._leaving: list[RequestView] = []
        """Requests that a decode has left out, as their last token is under way."""
        self._unasked = 0

    @classmethod
    def prefix_cache(cls, options: Section, sizes: PrefixCacheSizes) -> BlockPool:
        """``sizes.drops_last_hit`` is not modelled, see above."""
        assert isinstance(options, cls.Options)
        return RadixBlockPool(
            sizes.num_blocks, sizes.block_tokens, sizes.hash_block_tokens, options.eviction_policy, sizes.groups
        )

    def begin(self, rank: RankView) -> None:
        residents.check_one_group(rank, "sglang", "SGLang")
        decodes = residents.micro_batch(rank) * (1 + rank.drafts_per_step)
        needed = max(decodes, rank.block_tokens)
        if needed > rank.max_batched_tokens:
            of_what = f"{residents.micro_batch(rank)} decodes take" if needed == decodes else "a page has"
            raise InputError(
                f"engine.max_batched_tokens: found {rank.max_batched_tokens}, expected at least the {needed} tokens "
                f"that {of_what}"
            )
        self._ratio = NewTokenRatio(self.options.schedule_conservativeness)
        self._queue = WaitingQueue(self.options.schedule_policy, self.options.eviction_policy)

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        """SGLang cuts the output of such a request short."""
        page, room = rank.block_tokens, rank.usable_blocks * rank.block_tokens
        output = 1 if rank.role == "prefill" else request.max_output_tokens
        needed = rank.blocks(request.prompt_tokens) * page + output + page
        if needed < room:
            return None
        return f"the {needed} tokens of KV that its admission asks for are not below the {room} of the pool"

    def decide(self, rank: RankView, decision: Decision) -> None:
        self._look_back(rank)
        running = [each for each in self._batch if each.is_ending or not each.is_in_iteration]
        if not self._extend(rank, decision, running):
            self._decode(rank, decision, running)
        self._follow(rank)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody waits, or could be admitted before a request has left; one that was cut has an extend batch to come,
        be it of a single token."""
        if rank.arrived or self._chunked is not None:
            return False
        has_left = rank.running_requests < len(self._batch)
        return not rank.waiting or rank.running_requests >= rank.max_seqs or (self._is_full and not has_left)

    def _look_back(self, rank: RankView) -> None:
        """What has happened since the last decision."""
        ended_ps = max((each.last_token_ps or 0 for each in self._batch + self._leaving), default=0)
        before = len(self._batch)
        if self._chunked is not None:
            self._is_full = False
        self._follow(rank)
        if len(self._batch) < before:
            self._is_full = False
        self._ratio.decay(rank.unasked_iterations - self._unasked)
        self._unasked = rank.unasked_iterations
        if not rank.running_requests and rank.now_ps > ended_ps:
            self._ratio.reset()

    def _follow(self, rank: RankView) -> None:
        """Drops those that run no more, and appends those that have begun."""
        running = {request.index: request for request in rank.running}
        if self._chunked is not None and running.pop(self._chunked.index, None) is None:
            self._chunked = None
        self._leaving = [each for each in self._leaving if running.pop(each.index, None) is not None]
        self._batch = [each for each in self._batch if running.pop(each.index, None) is not None]
        self._batch += running.values()

    def _extend(self, rank: RankView, decision: Decision, running: list[RequestView]) -> bool:
        """Whether prompts run in this iteration."""
        if self._chunked is not None and self._chunked.is_in_iteration:
            return False
        if not running:
            self._is_full = False
        if self._chunked is None:
            if self._is_full or not rank.waiting:
                return False
            if _seats(rank, running, 0) <= 0:
                self._is_full = True
                return False
        line = self._queue.in_order(rank, decision)
        mixed = len(running) if self.options.mixed_chunk else 0
        offset = sum(most_new_tokens(rank, each) for each in running) * self._ratio.now
        admission = Admission(rank, decision, offset, mixed, self.options.max_prefill_tokens)
        self._continue_chunk(admission)
        self._admit(rank, admission, running, line)
        if admission.admitted and mixed:
            going_on = self._leave_out_ending(running)
            if _mix(rank, decision, going_on):
                extended = [each for each in admission.admitted if each is not self._chunked]
                self._batch = [each for each in self._batch if each.is_in_iteration] + extended + going_on
        return len(admission.admitted) > 0

    def _continue_chunk(self, admission: Admission) -> None:
        if self._chunked is not None and admission.go_on(self._chunked):
            self._chunked = None

    def _admit(self, rank: RankView, admission: Admission, running: list[RequestView], line: list[RequestView]) -> None:
        for request in line:
            if admission.verdict is Verdict.OTHER:
                break
            if _seats(rank, running, len(admission.admitted)) <= 0:
                self._is_full = True
            if self._is_full:
                break
            verdict = admission.admit(request)
            if admission.cut is request:
                self._chunked = request
            if verdict is Verdict.NO_TOKEN:
                self._is_full = bool(admission.admitted or running)
            if verdict is not Verdict.CONTINUE:
                break

    def _decode(self, rank: RankView, decision: Decision, running: list[RequestView]) -> None:
        """All running requests, and those whose KV has come, as far as there are seats."""
        going_on = self._leave_out_ending(running)
        has_ending, running = len(going_on) < len(running), going_on
        line = running + rank.arrived[: max(_seats(rank, running, 0), 0)]
        if not line:
            has_work = any(request.is_in_iteration for request in rank.running)
            if rank.arrived and not has_work and not rank.is_transferring:
                decision.preempt(rank.arrived[-1])  # all KV is held by those that cannot go on
            return
        lacking = _lacking(rank, line)
        decision.evict(lacking)
        if lacking > rank.free_blocks:
            if has_ending:
                return
            line = self._retract(rank, decision, line)
        else:
            self._ratio.decay()
        for request in line:
            decision.run(request, rank.most_tokens(request))

    def _leave_out_ending(self, running: list[RequestView]) -> list[RequestView]:
        """Those whose last token is not under way; the others take no part any more."""
        ending = [each for each in running if each.is_ending]
        if not ending:
            return running
        self._leaving += ending
        self._batch = [each for each in self._batch if not each.is_ending]
        self._is_full = False
        return [each for each in running if not each.is_ending]

    def _retract(self, rank: RankView, decision: Decision, line: list[RequestView]) -> list[RequestView]:
        """Those that go on, when requests with the fewest generated tokens, then the longest prompts, have lost their
        KV; these are last in the queue."""
        kept = sorted(line, key=lambda each: (each.generated_tokens, -each.prompt_tokens), reverse=True)
        while len(kept) > 1:
            self._give_up(rank, decision, kept.pop())
            decision.evict(-(-RETRACT_DECODE_STEPS * len(kept) // rank.block_tokens))
            decision.evict(_lacking(rank, kept))
            if _lacking(rank, kept) <= rank.free_blocks:
                break
        else:
            if _lacking(rank, kept) > rank.free_blocks:
                self._give_up(rank, decision, kept.pop())
        self._ratio.estimate(kept)
        self._is_full = False
        going_on = {request.index for request in kept}
        return [request for request in line if request.index in going_on]

    def _give_up(self, rank: RankView, decision: Decision, request: RequestView) -> None:
        self._queue.append(rank, request)
        decision.preempt(request)


def _seats(rank: RankView, running: list[RequestView], admitted: int) -> int:
    """Requests that may still begin to run."""
    return min(residents.micro_batch(rank) - len(running) - admitted, rank.max_seqs - rank.running_requests)


def _mix(rank: RankView, decision: Decision, running: list[RequestView]) -> bool:
    """Running requests decode next to the extend, if all can."""
    lacking = sum(rank.lacking_blocks(request, 1) for request in running)
    decision.evict(lacking)
    if lacking > rank.free_blocks:
        return False
    for request in running:
        decision.run(request, 1)
    return True


def _lacking(rank: RankView, line: list[RequestView]) -> int:
    return sum(rank.lacking_blocks(request, rank.most_tokens(request)) for request in line)
