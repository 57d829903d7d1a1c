"""A scenario and the batches that the rules of a policy make of it, worked out on paper.

Rules: the schedulers of Vidur, github.com/microsoft/vidur, ``vidur/scheduler/replica_scheduler/``. An iteration takes
1000 ps + 1 ps per token in each stage. A request of P prompt and D output tokens has KV of P + g tokens after the
iteration that follows its g-th token; the last token of a prompt yields the first token of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One batch: tokens computed by each request, in order, and the requests preempted since the batch before."""

    computes: Mapping[int, int]
    preempts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """Requests are (arrival [ps], prompt, output), numbered from 0; limits are fields of `whole_runs.Scenario`."""

    name: str
    requests: tuple[tuple[int, int, int], ...]
    steps: tuple[Step, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[int, ...] = ()
