"""Schedulers of vLLM V1 by hand: small pools, requests a, b, c, …, and steps one by one."""

from __future__ import annotations

from tests.vidur_pd.one_rank import OneRank
from vidur_pd.scheduling import Role, ScheduledBatch
from vidur_pd.scheduling.kv_blocks import CountingBlockPool
from vidur_pd.workload.request import Request


def scheduler_of(
    usable_blocks: int = 1000, *, budget: int = 100, seqs: int = 8, threshold: int = 0, role: Role = "mixed"
) -> OneRank:
    return OneRank(
        CountingBlockPool(usable_blocks + 1, 4),
        max_batched_tokens=budget,
        max_seqs=seqs,
        max_model_len=500,
        long_prefill_token_threshold=threshold,
        role=role,
    )


def requests_of(*lengths: tuple[int, int]) -> list[Request]:
    return [Request(i, "abcdefgh"[i], prompt, output, 0) for i, (prompt, output) in enumerate(lengths)]


def add(scheduler: OneRank, *lengths: tuple[int, int]) -> list[Request]:
    requests = requests_of(*lengths)
    for request in requests:
        scheduler.add(request)
    return requests


def new_tokens(batch: ScheduledBatch | None) -> dict[str, int]:
    assert batch is not None
    return {request.request_id: new for request, new in zip(batch.requests, batch.new_tokens.tolist(), strict=True)}


def step(scheduler: OneRank) -> dict[str, int]:
    """Schedule and finish one iteration; returns the new tokens of each request."""
    batch = scheduler.schedule()
    shown = new_tokens(batch)
    assert batch is not None
    scheduler.finish(batch)
    return shown
