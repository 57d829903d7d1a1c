"""vLLM's engine core around its own scheduler: the loop, requests, and a model that takes 1000 ps + 1 ps per token.

Drafters propose up to the last token of a request, beyond it with two batches in flight, and `accepted_drafts` of them
are accepted.

What stands here is the loop of ``vllm/v1/engine/core.py`` (``step``, ``step_with_batch_queue``); who runs, who is
preempted and which blocks are whose is decided by vLLM's classes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.validation.vllm_source import Source
from tests.vidur_pd.whole_runs import HASH_BLOCK_TOKENS, Scenario

FIRST_OUTPUT_TOKEN = 10**9
MOST_STEPS = 50_000


@dataclass(frozen=True)
class Step:
    """A batch that the model runs."""

    begins_ps: int
    rows: list[tuple[int, int, int]]
    """(request, new tokens, KV tokens)"""
    preempted: list[int]
    """Since the step before."""
    used_blocks: int


@dataclass(frozen=True)
class Batch:
    output: Any
    """vLLM's ``SchedulerOutput``."""
    rows: list[tuple[int, int, int]]
    samples: list[int]
    preempted: list[int]

    @property
    def cost_ps(self) -> int:
        return 1000 + sum(new for _, new, _ in self.rows)


@dataclass
class Engine:
    """Serves the requests of a scenario."""

    source: Source
    scenario: Scenario
    steps: list[Step] = field(default_factory=list)
    token_ends_ps: list[list[int]] = field(default_factory=list)
    now_ps: int = 0

    def __post_init__(self) -> None:
        kind = self.source.asynchronous.AsyncScheduler if self.scenario.plans_ahead else self.source.scheduler.Scheduler
        spec = self.source.interface.FullAttentionSpec(
            block_size=self.scenario.block_tokens, num_kv_heads=1, head_size=1, dtype=None
        )
        kv = self.source.interface.KVCacheConfig(
            num_blocks=self.scenario.usable_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[self.source.interface.KVCacheGroupSpec(["layer"], spec)],
        )
        structure = SimpleNamespace(should_advance=lambda _: False)
        self.scheduler: Any = kind(_config(self.scenario), kv, structure, block_size=self.scenario.block_tokens)
        self.requests: list[Any] = []
        """vLLM's, those that have ended too."""
        self.hit_tokens: dict[int, int] = {}
        """Of each request when it was first admitted."""
        self._preempted: list[int] = []
        self._watch_preemptions()
        self._coming = deque(enumerate(self.scenario.requests))
        self._tokens: dict[object, int] = {}
        self._outputs = FIRST_OUTPUT_TOKEN

    def _watch_preemptions(self) -> None:
        """Notes their order, of which vLLM tells the model nothing."""
        preempt = self.scheduler._preempt_request

        def noting(request: Any, timestamp: float) -> None:
            self._preempted.append(int(request.request_id))
            preempt(request, timestamp)

        self.scheduler._preempt_request = noting

    def serve(self) -> None:
        """Raises: AssertionError, where vLLM would wait for ever."""
        if self.scenario.plans_ahead:
            self._serve_two_in_flight()
        elif self.scenario.stages > 1:
            self._serve_through_pipeline()
        else:
            self._serve_one_by_one()

    def _serve_one_by_one(self) -> None:
        while self._take_arrivals():
            batch = self._schedule()
            if batch.rows:
                self._begin(batch)
                self.now_ps += batch.cost_ps
            elif not self._preempted and self.scheduler.has_unfinished_requests():
                self._wait()
            self._update(batch)

    def _serve_two_in_flight(self) -> None:
        line: deque[Batch] = deque()
        ends_ps = 0
        while self._take_arrivals(is_busy=bool(line)):
            if self.scheduler.has_requests():
                line.append(self._schedule())
                if len(line) == 1:
                    ends_ps = self._begin(line[0])
                    continue
            batch = line.popleft()
            if batch.rows:
                self.now_ps = ends_ps
            elif not (self._preempted or any(other.rows for other in line)) and self.scheduler.running == []:
                self._wait()
            self._update(batch)
            if line:
                ends_ps = self._begin(line[0])

    def _serve_through_pipeline(self) -> None:
        """Stages of equal times: a batch is decided when the first is free and not each has one, and its tokens are
        there when it leaves the last."""
        line: deque[tuple[int, Batch]] = deque()
        free_ps = [0] * self.scenario.stages
        while self._take_arrivals(is_busy=bool(line)):
            may_begin = len(line) < self.scenario.stages and free_ps[0] <= self.now_ps
            if may_begin and self.scheduler.has_requests():
                preempted = len(self._preempted)
                batch = self._schedule()
                if not batch.rows and len(self._preempted) > preempted:
                    self._update(batch)
                    batch = self._schedule()
                if batch.rows:
                    self._begin(batch)
                    line.append((_through(free_ps, self.now_ps, batch.cost_ps), batch))
                    continue
                self._update(batch)
            instants = [ends_ps for ends_ps, _ in line] + [at_ps for _, (at_ps, *_) in self._coming]
            if not may_begin and len(line) < self.scenario.stages:
                instants.append(free_ps[0])
            assert instants or not self.scheduler.has_unfinished_requests(), "vLLM waits for ever"
            self.now_ps = max(self.now_ps, min(instants, default=self.now_ps))
            while line and line[0][0] <= self.now_ps:
                self._update(line.popleft()[1])

    def _take_arrivals(self, is_busy: bool = False) -> bool:
        """Adds what has come; false where all is done."""
        assert len(self.steps) < MOST_STEPS, "vLLM does not come to an end"
        if not (is_busy or self.scheduler.has_requests()):
            if not self._coming:
                return False
            self.now_ps = max(self.now_ps, self._coming[0][1][0])
        while self._coming and self._coming[0][1][0] <= self.now_ps:
            self._add(*self._coming.popleft())
        return True

    def _wait(self) -> None:
        """Until the next request: nothing can be computed."""
        assert self._coming or not self.scheduler.has_unfinished_requests(), "vLLM waits for ever"
        if self._coming:
            self.now_ps = max(self.now_ps, self._coming[0][1][0])

    def _add(self, index: int, asked: tuple[int, int, int, tuple[int, ...] | None]) -> None:
        at_ps, prompt, output, ids = asked
        chains = [ids[: place // HASH_BLOCK_TOKENS + 1] if ids else index for place in range(prompt)]
        tokens = [self._tokens.setdefault(token, len(self._tokens)) for token in enumerate(chains)]
        sampling = SimpleNamespace(
            max_tokens=output,
            min_tokens=0,
            eos_token_id=None,
            stop_token_ids=None,
            repetition_detection=None,
            num_logprobs=None,
            skip_reading_prefix_cache=None,
            extra_args=None,
        )
        priorities = self.scenario.priorities
        hasher = self.source.hasher(self.scenario.block_tokens) if self.scenario.caching else None
        request = self.source.request.Request(
            f"{index:06d}",
            tokens,
            sampling,
            None,
            arrival_time=at_ps,
            priority=0 if priorities is None else priorities[index],
            block_hasher=hasher,
        )
        self.requests.append(request)
        self.token_ends_ps.append([])
        self.scheduler.add_request(request)

    def _schedule(self) -> Batch:
        output = self.scheduler.schedule()
        requests = [self.scheduler.requests[name] for name in output.num_scheduled_tokens]
        rows = [
            (int(request.request_id), output.num_scheduled_tokens[request.request_id], request.num_computed_tokens)
            for request in requests
        ]
        for request in requests:
            if request.prefill_stats is not None:
                self.hit_tokens.setdefault(int(request.request_id), request.prefill_stats.hit_tokens)
        samples = [int(request.request_id) for request in requests if not request.is_prefill_chunk]
        preempted, self._preempted = (self._preempted, []) if rows else ([], self._preempted)
        return Batch(output, rows, samples, preempted)

    def _begin(self, batch: Batch) -> int:
        """When the batch ends."""
        if batch.rows:
            pool = self.scheduler.kv_cache_manager.block_pool
            used = self.scenario.usable_blocks - pool.get_num_free_blocks()
            rows = [(index, new, self._length(index, kv_tokens)) for index, new, kv_tokens in batch.rows]
            self.steps.append(Step(self.now_ps, rows, batch.preempted, used))
        return self.now_ps + batch.cost_ps

    def _length(self, index: int, kv_tokens: int) -> int:
        """Tokens that a request of a batch has when that begins: drafts have been rejected since it was decided."""
        request = self.requests[index]
        return kv_tokens if request.is_finished() else int(request.num_computed_tokens)

    def _update(self, batch: Batch) -> None:
        names = list(batch.output.num_scheduled_tokens)
        sampled = [self._sampled(name, batch.output) if int(name) in batch.samples else [] for name in names]
        for name, tokens in zip(names, sampled, strict=True):
            ends_ps, most = self.token_ends_ps[int(name)], self.requests[int(name)].max_tokens
            ends_ps += [self.now_ps] * min(len(tokens), most - len(ends_ps))
        self.scheduler.update_from_output(batch.output, _model_output(names, sampled))
        if self.scenario.drafts and names and not self.scenario.plans_ahead:
            proposed = [self._drafted(self.requests[int(name)]) for name in names]
            self.scheduler.update_draft_token_ids(SimpleNamespace(req_ids=names, draft_token_ids=proposed))

    def _sampled(self, name: str, output: Any) -> list[int]:
        """One token, and drafts that are accepted."""
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        tokens = 1 + accepted_drafts(int(name), self.requests[int(name)].num_tokens, drafts)
        return [self._new_token() for _ in range(tokens)]

    def _drafted(self, request: Any) -> list[int]:
        left = request.max_tokens - request.num_output_tokens - 1
        return [self._new_token() for _ in range(min(self.scenario.drafts, left))]

    def _new_token(self) -> int:
        self._outputs += 1
        return self._outputs


def accepted_drafts(index: int, tokens: int, drafts: int) -> int:
    """Of so many drafts of a request that has so many tokens: 0 to all of them."""
    return (31 * index + 17 * tokens) % (drafts + 1)


def _through(free_ps: list[int], at_ps: int, cost_ps: int) -> int:
    """When a batch leaves the last stage; ``free_ps`` [stages]: when each has done what it has."""
    for stage, free in enumerate(free_ps):
        at_ps = free_ps[stage] = max(at_ps, free) + cost_ps
    return at_ps


def _model_output(names: list[str], sampled: list[list[int]]) -> SimpleNamespace:
    return SimpleNamespace(
        sampled_token_ids=sampled,
        req_id_to_index={name: place for place, name in enumerate(names)},
        prompt_logprobs_dict={},
        **dict.fromkeys(
            (
                "logprobs",
                "pooler_output",
                "num_nans_in_logits",
                "kv_connector_output",
                "cudagraph_stats",
                "routed_experts",
            )
        ),
    )


def _config(scenario: Scenario) -> SimpleNamespace:
    blocks = scenario.usable_blocks + 1
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=scenario.max_seqs,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=scenario.budget,
            long_prefill_token_threshold=scenario.threshold,
            async_scheduling=scenario.plans_ahead,
            policy="fcfs" if scenario.priorities is None else "priority",
            scheduler_reserve_full_isl=True,
            enable_chunked_prefill=scenario.chunks_prompts,
            watermark=(scenario.watermark_blocks + 0.5) / blocks,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=blocks, enable_prefix_caching=scenario.caching, block_size=scenario.block_tokens
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=scenario.stages,
            data_parallel_index=0,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            max_model_len=scenario.max_model_len,
            is_diffusion=False,
            enable_return_routed_experts=False,
        ),
        observability_config=SimpleNamespace(kv_cache_metrics=False),
        use_v2_model_runner=False,
        num_speculative_tokens=scenario.drafts,
        speculative_config=_speculative_config(scenario) if scenario.drafts else None,
        **dict.fromkeys(("lora_config", "kv_events_config", "kv_transfer_config", "ec_transfer_config")),
    )


def _speculative_config(scenario: Scenario) -> SimpleNamespace:
    """A drafter with a layer that reads hidden states (EAGLE, MTP), with a KV cache of its own, or with neither."""
    is_layer = scenario.drops_last_hit
    return SimpleNamespace(
        num_speculative_tokens_per_batch_size=None,
        use_eagle=lambda: is_layer,
        uses_draft_model=lambda: scenario.lookahead > 0 and not is_layer,
        use_dflash=lambda: False,
    )
