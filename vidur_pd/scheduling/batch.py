"""What a scheduler decides for one iteration, and what that iteration yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidur_pd.request import Request

Role = Literal["mixed", "prefill", "decode"]
"""Part of a request's life that an instance serves: all of it, up to the first token, or after a KV transfer."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledBatch:
    """One rank's share of one iteration (of one micro-batch with pipeline parallelism), running requests first."""

    requests: list[Request]
    new_tokens: NDArray[np.int64]
    """[requests] tokens computed now, at least 1, drafts included."""
    kv_tokens: NDArray[np.int64]
    """[requests] KV length that attention sees: past + new."""
    drafts: NDArray[np.int64]
    """[requests] drafted tokens that this step verifies."""
    samples: NDArray[np.bool_]
    """[requests] whether the tokens reach the end of the sequence, so that the request gets a token."""
    slots: NDArray[np.intp]
    """[requests] places in the scheduler's table."""
    admitted: list[Request]
    """Requests that began, or began again, to run with this batch."""
    preempted: list[Request]
    """Requests that lost their KV since the batch before."""
    logit_rows: int
    """Requests that get a token."""
    prefill_tokens: int
    decode_tokens: int
    """Tokens, drafts apart, of requests that compute one token after a non-empty past; all others are prefill."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What the requests of a batch have gained; lists are in batch order and shared, so read them only."""

    produced: list[Request]
    """Requests that got a token."""
    prefill_done: list[Request]
    """Those for which it is the first one."""
    finished: list[Request]
    """Those for which it is the last one here: the first token for the role ``prefill``."""
    accepted_drafts: int = 0
    """Tokens that the requests of ``produced`` got beyond one each."""
