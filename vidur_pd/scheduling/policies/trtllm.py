"""TensorRT-LLM: requests are admitted when their KV is sure to be there, then the iteration is filled.

Source: TensorRT-LLM 1.2.1, PyTorch backend: tensorrt_llm/_torch/pyexecutor (py_executor.py, scheduler.py,
resource_manager.py) and what it binds of cpp/tensorrt_llm/batch_manager; `trtllm_capacity` and `trtllm_batch` name
theirs. Read in versions shortly before and after 1.2, and in parts of the release (``config/data/engines``).

``max_num_tokens`` is ``engine.max_batched_tokens``, ``enable_chunked_prefill`` is ``engine.chunked_prefill``,
``tokens_per_block`` is ``engine.block_tokens``, ``enable_block_reuse`` is ``engine.prefix_caching``, and
``max_batch_size`` is what a pipeline stage has of ``engine.max_seqs``: so many requests are active, and those behind
wait unseen.

The overlap scheduler is ``engine.async_scheduling``. What the iteration under way computes is not in the cache yet when
the next one is decided. Requests whose last token is under way take no part, and count until it has come.

Budgets know nothing of cached prefixes (1.3 takes them into account): a prompt counts whole, and what is found in the
cache when it gets its blocks moves its chunk on, down to the end of a block. It gets all blocks of its prompt at once.

Departures. TensorRT-LLM puts all whole blocks of a prompt into its tree with the first chunk, computed or not; here
those of each chunk. A request that waits and does not fit holds back prompts behind it that were cut, which can stand
still for ever; here these go on. Without chunks it fails when a request that was paused has become longer than an
iteration; here that is cut. One that is paused with its last token under way ends. Blocks without content for others
are taken first, not in order of their last use. On decode instances the rank reserves blocks for prompts, not for
whole requests: where one lacks KV to go on, requests are paused as under ``max_utilization``, and those whose KV has
come are admitted when the rest of theirs is sure.

Not modelled: hits of parts of a block (``enable_partial_reuse``: up to 31 tokens more), offloading to the host,
retention priorities, beams, LoRA, windows of attention with pools of their own; waiting for larger batches
(``batch_wait_…``) and for other ranks (``attention_dp_config``), both off by default; slots for drafts to come.
"""

from __future__ import annotations

from typing import Literal

from boundary.errors import InputError
from vidur_pd.scheduling.kv_blocks import BlockPool, PrefixCacheSizes
from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policies.trtllm_batch import fill_batch
from vidur_pd.scheduling.policies.trtllm_capacity import Capacity, is_decode, most_tokens_in_all
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView, Section


class ActiveRequests:
    """Requests in the order in which the rank got them: one that is paused keeps its place."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._paused: set[int] = set()
        """Those that may be out of sight until the iteration under way has ended."""
        self._next = 0

    def pause(self, request: RequestView) -> None:
        if not request.is_ending:
            self._paused.add(request.index)

    def in_order(self, rank: RankView) -> list[RequestView]:
        """The running ones, and of the others the first for whom there is a seat."""
        seen = [*rank.running, *rank.arrived, *rank.waiting]
        places = {index: self._places[index] for index in self._paused}
        for request in seen:
            place = self._places.get(request.index)
            if place is None:
                place, self._next = self._next, self._next + 1
            places[request.index] = place
        self._places = places
        self._paused.difference_update(request.index for request in seen)
        seen.sort(key=lambda request: places[request.index])
        seats = rank.max_seqs - rank.running_requests
        active = []
        for request in seen:
            if not request.is_running:
                if seats <= 0:
                    continue
                seats -= 1
            active.append(request)
        return active


class Trtllm(Policy):
    """Capacity scheduler, then micro-batch scheduler."""

    refuses_long_prompts = True

    class Options(Section):
        capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization", "static_batch"] = (
            "guaranteed_no_evict"
        )
        """A request is admitted when the KV of its longest output is sure to be there; or when that of its prompt is,
        and the last ones are paused when it runs short; or when the requests before it have all ended."""
        context_chunking_policy: Literal["first_come_first_served", "equal_progress"] = "first_come_first_served"
        """With chunked prefill: who gets the tokens that are left of an iteration; a block each in turn, or as many as
        it can use."""

    options: Options

    def __init__(self) -> None:
        self._active = ActiveRequests()

    @classmethod
    def prefix_cache(cls, options: Section, sizes: PrefixCacheSizes) -> BlockPool:
        del options
        return sizes.hash_chains(when_computed=True)

    def begin(self, rank: RankView) -> None:
        residents.check_one_group(rank, "trtllm", "TensorRT-LLM")
        needed, of_what = 1 + rank.drafts_per_step, "a decode takes"
        if rank.chunks_prompts and rank.block_tokens > needed:
            needed, of_what = rank.block_tokens, "a block has"
        if needed > rank.max_batched_tokens:
            raise InputError(
                f"engine.max_batched_tokens: found {rank.max_batched_tokens}, expected at least the {needed} tokens "
                f"that {of_what}"
            )

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        """TensorRT-LLM refuses such a prompt; a request whose KV is never sure it keeps waiting."""
        if not rank.chunks_prompts and rank.role != "decode":
            reason = residents.refusal_by_budget(rank, request.prompt_tokens)
            if reason is not None:
                return reason
        blocks = rank.blocks(most_tokens_in_all(rank, request))
        if self.options.capacity_scheduler_policy == "max_utilization" or blocks <= rank.usable_blocks:
            return None
        return f"the {blocks} KV blocks that its longest output would take exceed the {rank.usable_blocks} of the pool"

    def decide(self, rank: RankView, decision: Decision) -> None:
        active = self._active.in_order(rank)
        capacity = Capacity(rank, decision, self._pause)
        fitting = capacity.fitting(active, self.options.capacity_scheduler_policy)
        batch = fill_batch(rank, fitting, self.options.context_chunking_policy)
        for request, tokens in batch.contexts:
            _compute_prompt(rank, decision, request, tokens)
        for request in batch.decodes:
            decision.run(request, rank.most_tokens(request))
        if not (batch.contexts or batch.decodes or capacity.has_paused):
            self._break_circle(rank, decision, active)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody waits, or could be admitted before a request has left."""
        running = rank.running_requests
        if rank.arrived or rank.pipeline_stages > 1:
            return False
        if not rank.waiting or running >= rank.max_seqs:
            return True
        active = self._active.in_order(rank)
        if active[running].is_running or not all(is_decode(request) for request in active[:running]):
            return False  # the one that waits came before one that runs
        if not rank.chunks_prompts and running + active[running].sequence_tokens > rank.max_batched_tokens:
            return True
        return not Capacity(rank).could_admit(active, self.options.capacity_scheduler_policy)

    def _pause(self, decision: Decision, request: RequestView) -> None:
        self._active.pause(request)
        decision.preempt(request)

    def _break_circle(self, rank: RankView, decision: Decision, active: list[RequestView]) -> None:
        """All KV is held by requests that cannot go on, and nothing under way will return any: the last ones are paused
        until the first can."""
        if rank.is_transferring or any(request.is_in_iteration for request in rank.running):
            return
        holding = [request for request in active if request.is_running] or list(rank.arrived)
        capacity, policy = Capacity(rank), self.options.capacity_scheduler_policy
        while holding:
            self._pause(decision, holding.pop())
            if capacity.has_room(active[0], policy):
                break


def _compute_prompt(rank: RankView, decision: Decision, request: RequestView, tokens: int) -> None:
    """``tokens``: those that count; with a cached prefix they begin behind it and end with a block, or the prompt."""
    whole, page = request.sequence_tokens, rank.block_tokens
    if request.is_running:
        decision.run(request, tokens)
        return
    cached = rank.cached_tokens(request)
    end = cached + tokens
    if end >= whole:
        end = whole
    elif cached and rank.chunks_prompts:
        end = end // page * page
    decision.run(request, end - cached, held_tokens=whole)
