"""vLLM V1 continuous batching with chunked prefill and recompute preemption.

Source of the rules: vLLM 0.24.0, ``vllm/v1/core/sched/scheduler.py``, first-come-first-served policy. A step first
continues the running requests in order of admission, then, unless it preempted one, admits waiting requests. There is
no prefill or decode phase: each request is brought up to its sequence (prompt + generated tokens) within the token
budget.

Assumed: output ends by length alone, and P + D fits the context window (``rejection_reason``), so vLLM's clamp to the
window never acts; the admission watermark is its default, 0. With pipeline parallelism a request sits in one
micro-batch at a time and cannot be preempted from it (vLLM itself also pipelines the chunks of one prompt).

With ``Drafts`` each decode computes its drafted tokens as well; what is rejected is computed again. Drafts beyond the
end of a request are not made.

Not modelled: asynchronous scheduling (the next step is planned when the result of the last one is known, as with
``--no-async-scheduling``), priorities, encoder budgets.

Departure: vLLM hangs when requests whose KV has arrived hold all blocks, none can take its next one, and nothing runs.
Here the youngest of them gives up its KV and is recomputed.
"""

from __future__ import annotations

from collections import deque
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from vidur_pd.errors import InputError
from vidur_pd.kv import NO_PREFIX, BlockPool, CachedPrefix
from vidur_pd.request import COMPUTED, TOKENS, Request, RequestStatus
from vidur_pd.scheduling.batch import Outcome, Role, ScheduledBatch
from vidur_pd.scheduling.decode_run import advance_decodes, count_decode_steps
from vidur_pd.scheduling.drafts import Drafts
from vidur_pd.scheduling.remote import RemoteQueue
from vidur_pd.scheduling.running import END, PROMPT, RunningTable


class VllmV1Scheduler:
    """Scheduler of one data-parallel rank; owns its requests from ``add`` or ``add_remote`` to their end here.

    Role ``prefill``: a request ends with its first token and keeps its KV until ``release``. Role ``decode``: requests
    come by ``add_remote``, get blocks from ``admit_remote`` and run after ``remote_arrived``; one that is preempted
    recomputes its prompt and generated tokens here.

    ``long_prefill_token_threshold`` caps the chunk of each prompt; 0 is off. Raises ``InputError`` for a limit below 1.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        role: Role = "mixed",
        drafts: Drafts | None = None,
    ) -> None:
        for name, found, least in (
            ("max_batched_tokens", max_batched_tokens, 1),
            ("max_seqs", max_seqs, 1),
            ("max_model_len", max_model_len, 1),
            ("long_prefill_token_threshold", long_prefill_token_threshold, 0),
        ):
            if found < least:
                raise InputError(f"engine.{name}: found {found}, expected at least {least}")
        self._pool = pool
        self._block_tokens = pool.block_tokens
        self._max_batched_tokens = max_batched_tokens
        self._max_seqs = max_seqs
        self._max_model_len = max_model_len
        self._chunk_limit = long_prefill_token_threshold or max_batched_tokens
        self._role = role
        self._drafts = drafts
        self._running = RunningTable(max_seqs, pool.block_tokens)
        self._waiting: deque[Request] = deque()
        self._remote = RemoteQueue(pool)
        self._in_flight: list[ScheduledBatch] = []
        self._preempted: list[Request] = []  # since the last batch

    # Load, as routing and the event loop see it.

    @property
    def waiting_requests(self) -> int:
        """Requests that do not run yet, those in or before a KV transfer to this rank included."""
        return len(self._waiting) + len(self._remote)

    @property
    def running_requests(self) -> int:
        """Admitted requests, in flight or not."""
        return len(self._running)

    @property
    def pending_prefill_tokens(self) -> int:
        """Tokens to compute before every local request is a plain decode: waiting sequences and unfinished chunks."""
        counters = self._running.counters[:, self._running.order]
        left = counters[TOKENS] - counters[COMPUTED]
        prefilling = counters[COMPUTED] < counters[PROMPT]
        return int(left[prefilling].sum()) + sum(request.sequence_tokens for request in self._waiting)

    @property
    def used_blocks(self) -> int:
        """KV blocks held by requests, those held for a transfer included."""
        return self._pool.usable_blocks - self._pool.free_blocks

    @property
    def usable_blocks(self) -> int:
        """KV blocks in all."""
        return self._pool.usable_blocks

    @property
    def has_work(self) -> bool:
        """Something runs or could run without a further KV transfer."""
        return bool(self._running.requests or self._waiting or self._remote.arrived)

    def rejection_reason(self, request: Request) -> str | None:
        """Why this rank could never complete the request, or ``None``."""
        outputs = 1 if self._role == "prefill" else request.output_tokens
        total = request.prompt_tokens + outputs
        if total > self._max_model_len:
            return f"{total} prompt and output tokens exceed the context window of {self._max_model_len}"
        blocks = self._blocks(total - 1)
        if blocks > self._pool.usable_blocks:
            return f"its {blocks} KV blocks exceed the {self._pool.usable_blocks} of the pool"
        return None

    # Requests in and out.

    def add(self, request: Request) -> None:
        """Queue a request whose prompt is computed here."""
        assert self.rejection_reason(request) is None, self.rejection_reason(request)
        request.status = RequestStatus.WAITING
        self._waiting.append(request)

    def add_remote(self, request: Request) -> None:
        """Queue a request whose prompt is computed elsewhere."""
        assert self._role == "decode", "only a decode rank takes KV from elsewhere"
        assert self.rejection_reason(request) is None, self.rejection_reason(request)
        self._remote.add(request)

    def admit_remote(self) -> list[Request]:
        """Reserve blocks for whole prompts, first come first served; returns the requests whose transfer may start.

        Stops at the first prompt that does not fit beside what running prefills still need, while a local request
        waits, and while the running list is full. Prompt tokens found in the prefix cache are ``resident_tokens``.
        """
        if self._waiting or len(self._running) >= self._max_seqs:
            return []
        return self._remote.reserve(self._promised_blocks())

    def make_room_for_remote(self, request: Request, reserved: list[Request]) -> list[Request]:
        """Let a remote request without blocks be next, at the cost of ``reserved`` ones whose KV is not on its way.

        They lose their blocks, the last first, until the request fits, and queue again; returns those that did. Without
        this, requests that hold KV elsewhere until they get blocks here, and others that hold blocks here until they
        can compute there, could wait for each other.
        """
        self._remote.prefer(request)
        retracted: list[Request] = []
        for other in reversed(reserved):
            if self._remote.fits(request, self._promised_blocks()) and not self._waiting:
                break
            self._remote.retract(other)
            retracted.append(other)
        return retracted

    def remote_arrived(self, request: Request, computed_tokens: int) -> None:
        """The KV of a remote request is complete: it runs from the next step on, before other waiting requests.

        ``computed_tokens`` is P when prefill's first token is kept, P − 1 when this rank recomputes the last prompt
        token and samples the first token itself.
        """
        self._remote.complete(request, computed_tokens)

    def release(self, request: Request) -> None:
        """Free the KV that a prefill rank has held for a transfer."""
        assert self._role == "prefill", "other ranks release KV themselves"
        self._pool.release(request)

    # One iteration.

    def schedule(self) -> ScheduledBatch | None:
        """The next batch, or ``None`` if nothing can run.

        A step that only preempts takes no time, so the one after it is decided at once.
        """
        batch = self._step()
        if batch is None and self._preempted:
            batch = self._step()
        return batch

    def finish(self, batch: ScheduledBatch) -> Outcome:
        """Credit the tokens that ``batch`` has sampled; requests that end here leave, and their blocks return."""
        self._in_flight.remove(batch)
        counters = self._running.counters
        if batch.logit_rows == len(batch.requests):
            produced, slots = batch.requests, batch.slots
        else:
            produced, slots = list(compress(batch.requests, batch.samples.tolist())), batch.slots[batch.samples]
        before = counters[TOKENS, slots]
        tokens, accepted_drafts = before + 1, 0
        if self._drafts is not None:
            accepted = self._drafts.accepted(batch.drafts[batch.samples])
            tokens, accepted_drafts = tokens + accepted, int(accepted.sum())
            counters[COMPUTED, slots] = tokens - 1
        counters[TOKENS, slots] = tokens
        first = before == counters[PROMPT, slots]
        last = tokens == counters[END, slots]
        prefill_done = list(compress(produced, first.tolist())) if first.any() else []
        finished: list[Request] = []
        if last.any():
            finished = list(compress(produced, last.tolist()))
            self._retire(finished)
        return Outcome(produced, prefill_done, finished, accepted_drafts)

    def abandon(self, batch: ScheduledBatch) -> list[Request]:
        """The batch has come to nothing: its requests leave without their tokens, and their blocks return.

        What a prefix cache holds of them is taken as valid all the same.
        """
        self._in_flight.remove(batch)
        for request in batch.requests:
            self._pool.release(request)
        self._running.remove(np.isin(self._running.order, batch.slots))
        return batch.requests

    def abandon_remote(self, request: Request) -> None:
        """Give up on a request whose KV has not all arrived; its blocks, if it has some, return."""
        self._remote.abandon(request)

    def _retire(self, finished: list[Request]) -> None:
        running = self._running
        for request in finished:
            self._pool.register(request, request.computed_tokens)
            if self._role != "prefill":
                self._pool.release(request)
            request.status = RequestStatus.COMPLETED if request.is_finished else RequestStatus.PREFILLED
        running.remove(running.counters[TOKENS, running.order] == running.counters[END, running.order])

    # Runs of decode iterations.

    def steady_decode_steps(self) -> int:
        """Iterations in a row that only decode all running requests: none ends, is preempted or is admitted.

        Holds until a request is added, arrives or is released. 0 while a batch is in flight, and with drafts.
        """
        count = len(self._running)
        if not count or self._in_flight or self._drafts is not None or count > self._max_batched_tokens:
            return 0
        steps = count_decode_steps(self._running, self._pool)
        has_room = count < min(self._max_seqs, self._max_batched_tokens)
        return 0 if steps and has_room and self._find_admissible_prefix() is not None else steps

    def decode_kv_tokens(self) -> NDArray[np.int64]:
        """[running requests] KV length that the next decode iteration sees, its own token included."""
        kv_tokens: NDArray[np.int64] = self._running.counters[COMPUTED, self._running.order] + 1
        return kv_tokens

    def advance_decode(self, steps: int) -> Outcome:
        """The same as ``steps`` pairs of ``schedule`` and ``finish``, for at most ``steady_decode_steps`` steps.

        The outcome is that of each step. Requests added since do not count: they join the step after.
        """
        advance_decodes(self._running, self._pool, steps)
        return Outcome(produced=self._running.requests, prefill_done=[], finished=[])

    # The two phases of a step.

    def _step(self) -> ScheduledBatch | None:
        preempted_before = len(self._preempted)
        requests, slots, new_tokens = self._continue_running()
        admitted: list[Request] = []
        if len(self._preempted) == preempted_before and (self._waiting or self._remote.arrived):
            admitted, chunks = self._admit(self._max_batched_tokens - int(new_tokens.sum()))
            if admitted:
                ends = [self._end_tokens(request) for request in admitted]
                slots = np.concatenate((slots, self._running.append(admitted, chunks, ends)))
                new_tokens = np.concatenate((new_tokens, np.array(chunks, dtype=np.int64)))
                requests = requests + admitted
        if not requests:
            return None
        return self._launch(requests, slots, new_tokens, admitted)

    def _continue_running(self) -> tuple[list[Request], NDArray[np.intp], NDArray[np.int64]]:
        """Phase A: (requests, slots, new tokens) of the running requests that take part in this step."""
        running = self._running
        requests, order = running.requests, running.order
        counters = running.counters[:, order]
        computed = counters[COMPUTED]
        is_idle = self._find_idle()
        new_tokens = np.minimum(counters[TOKENS] - computed, self._chunk_limit) * is_idle
        if self._drafts is not None:
            new_tokens += self._drafts.ready(counters) * is_idle
        if new_tokens.sum() > self._max_batched_tokens:
            taken_before = np.cumsum(new_tokens) - new_tokens
            new_tokens = np.clip(self._max_batched_tokens - taken_before, 0, new_tokens)
        kv_tokens = computed + new_tokens
        missing = running.missing_blocks(kv_tokens)
        victims: list[int] = []
        for position in np.flatnonzero(missing + (computed < counters[PROMPT])).tolist():
            if missing[position] > self._pool.free_blocks:
                self._evict_tail(int(missing[position]), position, is_idle, victims)
            if victims and victims[-1] <= position:
                break
            self._pool.allocate(requests[position], int(kv_tokens[position]))
            self._pool.register(requests[position], min(int(kv_tokens[position]), requests[position].prompt_tokens))
        running.add_blocks(missing)
        takes_part = new_tokens > 0
        if victims:
            takes_part[victims] = False
            self._preempt(victims)
        if not takes_part.all():
            requests = list(compress(requests, takes_part.tolist()))
            order, new_tokens = order[takes_part], new_tokens[takes_part]
        return requests, order, new_tokens

    def _find_idle(self) -> NDArray[np.bool_]:
        """[running requests] whether the request is in no micro-batch under way."""
        idle = np.ones(self._max_seqs, dtype=np.bool_)
        for batch in self._in_flight:
            idle[batch.slots] = False
        return idle[self._running.order]

    def _evict_tail(self, missing: int, position: int, is_idle: NDArray[np.bool_], victims: list[int]) -> None:
        """Release the KV of running requests, tail first, ``position`` at worst, until ``missing`` blocks are free."""
        candidates = np.flatnonzero(is_idle[: victims[-1] if victims else None]).tolist()
        while missing > self._pool.free_blocks and candidates and candidates[-1] >= position:
            victims.append(candidates.pop())
            victim = self._running.requests[victims[-1]]
            self._pool.register(victim, victim.computed_tokens)
            self._pool.release(victim)

    def _preempt(self, positions: list[int]) -> None:
        """Send running requests, given tail first, back to the head of the queue with the tokens generated so far."""
        victims = [self._running.requests[position] for position in positions]
        leaving = np.zeros(len(self._running), dtype=np.bool_)
        leaving[positions] = True
        self._running.remove(leaving)
        for victim in victims:
            self._requeue(victim)

    def _requeue(self, victim: Request) -> None:
        """Put a request that has lost its KV at the head of the queue."""
        victim.set_progress(0, victim.generated_tokens)
        victim.preemptions += 1
        victim.status = RequestStatus.WAITING
        self._waiting.appendleft(victim)
        self._preempted.append(victim)

    def _admit(self, budget: int) -> tuple[list[Request], list[int]]:
        """Phase B: (requests, new tokens) of those that start to run with this step; they hold blocks for them."""
        admitted: list[Request] = []
        chunks: list[int] = []
        while budget > 0 and len(self._running) + len(admitted) < self._max_seqs:
            prefix = self._find_admissible_prefix()
            if prefix is None:
                if self._running.requests or admitted or self._remote.is_transferring or not self._remote.arrived:
                    break
                self._requeue(self._remote.drop_last_arrived())
                continue
            if self._remote.arrived:
                request = self._remote.arrived.popleft()
                past = request.computed_tokens
            else:
                request, past = self._waiting.popleft(), prefix.tokens
                if request.preemptions == 0:
                    request.cached_tokens = past
            chunk = min(request.sequence_tokens - past, self._chunk_limit, budget)
            request.set_progress(past, request.generated_tokens)
            request.status = RequestStatus.RUNNING
            self._pool.allocate(request, past + chunk, prefix)
            self._pool.register(request, min(past + chunk, request.prompt_tokens))
            admitted.append(request)
            chunks.append(chunk)
            budget -= chunk
        return admitted, chunks

    def _find_admissible_prefix(self) -> CachedPrefix | None:
        """Cached prefix of the next request in line if blocks for its whole sequence are free now, else ``None``."""
        if self._remote.arrived:
            request, prefix = self._remote.arrived[0], NO_PREFIX
            needed = self._blocks(request.sequence_tokens) - self._blocks(request.prompt_tokens)
        elif self._waiting:
            request = self._waiting[0]
            prefix = self._pool.cached_prefix(request)
            needed = self._blocks(request.sequence_tokens) - prefix.shared_blocks
        else:
            return None
        return prefix if needed <= self._pool.free_blocks else None

    def _launch(
        self, requests: list[Request], slots: NDArray[np.intp], new_tokens: NDArray[np.int64], admitted: list[Request]
    ) -> ScheduledBatch:
        """Credit the tokens as computed, as vLLM does when it schedules them."""
        counters = self._running.counters
        kv_tokens = counters[COMPUTED, slots] + new_tokens
        counters[COMPUTED, slots] = kv_tokens
        drafts = np.maximum(kv_tokens - counters[TOKENS, slots], 0)
        samples = kv_tokens >= counters[TOKENS, slots]
        decode_tokens = int(np.count_nonzero((new_tokens - drafts == 1) & (kv_tokens > 1)))
        batch = ScheduledBatch(
            requests=requests,
            new_tokens=new_tokens,
            kv_tokens=kv_tokens,
            drafts=drafts,
            samples=samples,
            slots=slots,
            admitted=admitted,
            preempted=self._preempted,
            logit_rows=int(np.count_nonzero(samples)),
            prefill_tokens=int((new_tokens - drafts).sum()) - decode_tokens,
            decode_tokens=decode_tokens,
        )
        self._preempted = []
        self._in_flight.append(batch)
        return batch

    # Arithmetic.

    def _end_tokens(self, request: Request) -> int:
        """Prompt + output tokens with which the request ends here."""
        return request.prompt_tokens + (1 if self._role == "prefill" else request.output_tokens)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _promised_blocks(self) -> int:
        """Blocks that running requests still need for their sequences."""
        return int(self._running.missing_blocks(self._running.counters[TOKENS, self._running.order]).sum())
