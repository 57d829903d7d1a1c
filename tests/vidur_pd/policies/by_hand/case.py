"""A scenario and the batches that the rules of a policy make of it, worked out on paper.

Rules: the schedulers of Vidur, github.com/microsoft/vidur, ``vidur/scheduler/replica_scheduler/``; of ``vllm_v1`` those
of vLLM 0.24.0, ``vllm/v1/core/sched/scheduler.py``. An iteration takes 1000 ps + 1 ps per token in each stage. A
request of P prompt and D output tokens has KV of P + g tokens after the iteration that follows its g-th token; the last
token of a prompt yields the first token of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One batch: tokens computed by each request, in order, and the requests preempted since the batch before."""

    computes: Mapping[int, int]
    preempts: tuple[int, ...] = ()
    hits: Mapping[int, int] = field(default_factory=dict)
    """Tokens that requests find in the prefix cache as they begin with this batch."""


@dataclass(frozen=True)
class Case:
    """Requests are (arrival [ps], prompt, output), numbered from 0; limits are fields of `whole_runs.Scenario`."""

    name: str
    requests: tuple[tuple[int, int, int], ...]
    steps: tuple[Step, ...]
    limits: Mapping[str, Any] = field(default_factory=dict)
    contents: tuple[tuple[int, ...], ...] | None = None
    """Ids of the prompts, each for `whole_runs.HASH_BLOCK_TOKENS` tokens."""
    refused: tuple[int, ...] = ()
