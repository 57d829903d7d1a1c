"""Types of the C++ core (vidur_pd/core/bindings.cpp)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vidur_pd.request import RequestStatus

class Request:
    """One request; mutable, with one owner at a time: the queue, the scheduler or the transfer that has it.

    ``prompt_tokens`` (P) and ``output_tokens`` (D) are the original ones for ever; preemption changes only the
    progress. Raises ``InputError`` for a prompt or an output of less than one token.
    """

    scheduled_ps: int | None
    prefill_completed_ps: int | None
    kv_sent_ps: int | None
    kv_arrived_ps: int | None
    first_token_ps: int | None
    last_token_ps: int | None
    completed_ps: int | None
    status: RequestStatus
    status_reason: str | None
    """Why it was rejected or failed."""

    def __init__(
        self,
        index: int,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        arrived_ps: int,
        block_hashes: Sequence[int] | None = None,
    ) -> None: ...
    @property
    def index(self) -> int:
        """Row in the workload; unique."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def arrived_ps(self) -> int: ...
    @property
    def block_hashes(self) -> list[int] | None:
        """Content ids of the prompt's consecutive blocks (Mooncake: 512 tokens each), the last maybe partial."""

    @property
    def context_tokens(self) -> int:
        """What prefill computes: the prompt, and what had been generated before the last restart."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache at the first admission."""

    @property
    def resident_tokens(self) -> int:
        """Tokens of the context that the decode instance had when it reserved blocks; the others are transferred."""

    @property
    def preemptions(self) -> int: ...
    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV the present instance has, or is computing in the iteration under way."""

    @property
    def generated_tokens(self) -> int:
        """Output tokens sampled so far; never falls, except when decode repeats the first token of prefill."""

    @property
    def sequence_tokens(self) -> int:
        """Prompt + generated tokens: what has to be computed before the next token can be sampled."""

    def set_progress(self, computed_tokens: int, generated_tokens: int) -> None:
        """Place a request that no scheduler runs: 0 computed tokens after a preemption, P after a KV transfer."""

    def restart(self, kept: int) -> None:
        """Begin again without KV, with the first ``kept`` generated tokens; stamps of stages are forgotten."""

class CachedPrefix:
    """The longest cached prefix of a request at one instant; valid until the pool changes."""

    @property
    def tokens(self) -> int: ...
    @property
    def shared_blocks(self) -> int:
        """Blocks that another request holds: reusing them takes nothing from the free queue."""

class BlockPool:
    @property
    def block_tokens(self) -> int: ...
    @property
    def usable_blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def used_blocks(self) -> int: ...
    def held_blocks(self, request: Request) -> int: ...
    def cached_prefix(self, request: Request) -> CachedPrefix: ...
    def allocate(self, request: Request, tokens: int, prefix: CachedPrefix = ...) -> None: ...
    def register(self, request: Request, computed_tokens: int) -> None: ...
    def release(self, request: Request) -> None: ...
    def clear(self) -> None: ...

class CountingBlockPool(BlockPool):
    def __init__(self, num_blocks: int, block_tokens: int = 16) -> None: ...

class PrefixCachingBlockPool(BlockPool):
    def __init__(self, num_blocks: int, block_tokens: int = 16, hash_block_tokens: int = 512) -> None: ...
    @property
    def cached_free_blocks(self) -> int: ...

class ScheduledBatch:
    @property
    def requests(self) -> list[Request]: ...
    @property
    def new_tokens(self) -> NDArray[np.int64]: ...
    @property
    def kv_tokens(self) -> NDArray[np.int64]: ...
    @property
    def drafts(self) -> NDArray[np.int64]: ...
    @property
    def samples(self) -> NDArray[np.bool_]: ...
    @property
    def admitted(self) -> list[Request]: ...
    @property
    def preempted(self) -> list[Request]: ...
    @property
    def logit_rows(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...

class Outcome:
    @property
    def produced(self) -> list[Request]: ...
    @property
    def prefill_done(self) -> list[Request]: ...
    @property
    def finished(self) -> list[Request]: ...
    @property
    def accepted_drafts(self) -> int: ...

class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        role: str,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int,
        drafts_per_step: int,
    ) -> None: ...
    @property
    def waiting_requests(self) -> int: ...
    @property
    def running_requests(self) -> int: ...
    @property
    def pending_prefill_tokens(self) -> int: ...
    @property
    def used_blocks(self) -> int: ...
    @property
    def usable_blocks(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    def rejection_reason(self, request: Request) -> str | None: ...
    def add(self, request: Request) -> None: ...
    def add_remote(self, request: Request) -> None: ...
    def admit_remote(self) -> list[Request]: ...
    def make_room_for_remote(self, request: Request, reserved: list[Request]) -> list[Request]: ...
    def remote_arrived(self, request: Request, computed_tokens: int) -> None: ...
    def release(self, request: Request) -> None: ...
    def clear(self) -> list[Request]: ...
    def schedule(self) -> ScheduledBatch | None: ...
    def credit(self, batch: ScheduledBatch, accepted: list[int]) -> Outcome: ...
    def abandon(self, batch: ScheduledBatch) -> list[Request]: ...
    def abandon_remote(self, request: Request) -> None: ...
    def steady_decode_steps(self) -> int: ...
    def decode_kv_tokens(self) -> NDArray[np.int64]: ...
    def advance_decode(self, steps: int) -> Outcome: ...

class GapCounts:
    """How many requests saw each gap between two of their tokens."""

    def add(self, gap_ps: int, requests: int) -> None: ...
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(gaps [ps], requests), in the order in which the gaps first occurred."""

class GroupBatch:
    """What the ranks of an instance compute in one iteration."""

    @property
    def batches(self) -> list[ScheduledBatch | None]:
        """[ranks]"""

    @property
    def requests(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def most_drafts(self) -> int:
        """That one decode verifies."""

    def new_tokens(self) -> NDArray[np.int64]:
        """[requests of all ranks, one rank after another]"""

    def kv_tokens(self) -> NDArray[np.int64]: ...
    def drafts(self) -> NDArray[np.int64]: ...
    def rank_requests(self) -> list[int]:
        """[ranks]"""

    def rank_logit_rows(self) -> list[int]:
        """[ranks]"""

class GroupOutcome:
    """What an iteration, or a run of them, has done to requests."""

    @property
    def prefilled(self) -> list[tuple[int, Request]]:
        """(rank, request) whose prompt is done, on ranks that only prefill."""

    @property
    def completed(self) -> list[Request]: ...
    @property
    def produced(self) -> int:
        """Requests that got tokens, on ranks that deliver them."""

class RankGroup:
    """The data-parallel ranks of one instance, in lockstep."""

    def __init__(self, ranks: Sequence[Scheduler], gaps: GapCounts) -> None: ...
    @property
    def waiting_requests(self) -> int: ...
    @property
    def running_requests(self) -> int: ...
    @property
    def used_blocks(self) -> int: ...
    def steady_decode_steps(self, longest: int) -> int:
        """Iterations, at most ``longest``, in which no rank's batch changes; 0 if there are fewer than two."""

    def decode_kv_tokens(self) -> tuple[NDArray[np.int64], list[int]]:
        """KV length that each running request's next decode sees, rank after rank, and the requests of each rank."""

    def schedule(self, now_ps: int) -> GroupBatch | None: ...
    def finish(
        self, batch: GroupBatch, accepted: list[list[int]], first_end_ps: int, last_end_ps: int
    ) -> GroupOutcome: ...
    def advance_decode(self, steps: int, first_end_ps: int, last_end_ps: int) -> GroupOutcome: ...
