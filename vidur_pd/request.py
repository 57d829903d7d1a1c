"""A request on its way through the cluster: what was asked, how far it is, when each stage happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from vidur_pd.errors import InputError

COMPUTED = 0
"""Position, in a row of counters, of the tokens whose KV is (about to be) there."""
TOKENS = 1
"""Position, in a row of counters, of prompt + generated tokens."""


class RequestStatus(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREFILLED = "prefilled"
    """Its prefill instance has finished with it and holds its KV for the transfer."""
    TRANSFERRING = "transferring"
    """Its decode instance has reserved KV blocks; the KV is not all there yet."""
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Request:
    """One request; mutable, with one owner at a time: the queue, the scheduler or the transfer that has it.

    ``prompt_tokens`` (P) and ``output_tokens`` (D) are the original ones for ever; preemption changes only the
    progress. While a scheduler runs the request, its progress lives in that scheduler's table (``bind``), so that one
    vector operation moves all requests of a step; reading it here is always up to date.

    Raises ``InputError`` for a prompt or an output of less than one token.
    """

    index: int
    """Row in the workload; unique."""
    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrived_ps: int
    block_hashes: tuple[int, ...] | None = None
    """Content ids of the prompt's consecutive blocks (512 tokens each in Mooncake traces), the last maybe partial."""

    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    resident_tokens: int = 0
    """Prompt tokens the decode instance already had when it reserved blocks; the KV transfer moves the others."""
    preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    status_reason: str | None = None
    """Why it was rejected or failed."""

    scheduled_ps: int | None = None
    prefill_completed_ps: int | None = None
    kv_sent_ps: int | None = None
    kv_arrived_ps: int | None = None
    first_token_ps: int | None = None
    last_token_ps: int | None = None
    completed_ps: int | None = None

    _computed: int = field(default=0, init=False, repr=False)
    _generated: int = field(default=0, init=False, repr=False)
    _counters: NDArray[np.int64] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, tokens in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            if tokens < 1:
                raise InputError(f"request {self.request_id}: {name}: found {tokens}, expected at least 1")

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV the present instance has, or is computing in the iteration under way."""
        return self._computed if self._counters is None else int(self._counters[COMPUTED])

    @property
    def generated_tokens(self) -> int:
        """Output tokens sampled so far; never falls, except when decode repeats the first token of prefill."""
        return self._generated if self._counters is None else int(self._counters[TOKENS]) - self.prompt_tokens

    @property
    def sequence_tokens(self) -> int:
        """Prompt + generated tokens: what has to be computed before the next token can be sampled."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def final_kv_tokens(self) -> int:
        """KV written when the request ends, P + D − 1: the last sampled token never gets KV."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def is_prefilled(self) -> bool:
        """The first output token has been sampled."""
        return self.generated_tokens > 0

    @property
    def is_finished(self) -> bool:
        """All output tokens have been sampled."""
        return self.generated_tokens >= self.output_tokens

    def set_progress(self, computed_tokens: int, generated_tokens: int) -> None:
        """Place a request that no scheduler runs: 0 computed tokens after a preemption, P after a KV transfer."""
        assert self._counters is None, f"request {self.request_id} is running; its scheduler owns its progress"
        self._computed = computed_tokens
        self._generated = generated_tokens

    def bind(self, counters: NDArray[np.int64]) -> None:
        """Keep the progress in ``counters`` (a view of the scheduler's table) from now on."""
        assert self._counters is None, f"request {self.request_id} runs already"
        counters[COMPUTED] = self._computed
        counters[TOKENS] = self.prompt_tokens + self._generated
        self._counters = counters

    def unbind(self) -> None:
        """Take the progress back from the scheduler's table."""
        computed, generated = self.computed_tokens, self.generated_tokens
        self._counters = None
        self.set_progress(computed, generated)
