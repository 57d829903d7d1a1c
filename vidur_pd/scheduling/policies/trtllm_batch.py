"""TensorRT-LLM's micro-batch scheduler: how the tokens of an iteration are shared out.

Source: TensorRT-LLM 1.2.1, cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policies.trtllm_capacity import is_decode
from vidur_pd.scheduling.policy import RankView, RequestView


@dataclass(slots=True)
class MicroBatch:
    """Who takes part; of prompts, how many tokens count."""

    contexts: list[tuple[RequestView, int]] = field(default_factory=list)
    decodes: list[RequestView] = field(default_factory=list)


def fill_batch(rank: RankView, fitting: list[RequestView], chunking: str) -> MicroBatch:
    """Requests in order, up to the first that has no room; prompts that may be cut share what the decodes leave."""
    batch, tokens = MicroBatch(), 0
    for request in fitting:
        if request.is_in_iteration:
            continue
        if len(batch.contexts) + len(batch.decodes) == residents.micro_batch(rank):
            break
        if _is_prompt(rank, request):
            left = request.sequence_tokens - (request.computed_tokens if request.is_running else 0)
            if not rank.chunks_prompts:
                left = min(left, rank.max_batched_tokens)
                if tokens + left > rank.max_batched_tokens:
                    break
                tokens += left
            batch.contexts.append((request, left))
            continue
        if tokens + rank.most_tokens(request) > rank.max_batched_tokens:
            break
        tokens += rank.most_tokens(request)
        batch.decodes.append(request)
    room = rank.max_batched_tokens - tokens
    if rank.chunks_prompts and sum(left for _, left in batch.contexts) > room:
        lengths = [left for _, left in batch.contexts]
        shares = (_equal_shares if chunking == "equal_progress" else _first_served)(lengths, room, rank.block_tokens)
        batch.contexts = [(request, share) for (request, _), share in zip(batch.contexts, shares, strict=True) if share]
    return batch


def _is_prompt(rank: RankView, request: RequestView) -> bool:
    return not is_decode(request) and all(request.index != arrived.index for arrived in rank.arrived)


def _first_served(lengths: list[int], room: int, unit: int) -> list[int]:
    """As many tokens as are left; whole units of a prompt that is cut."""
    shares = []
    for length in lengths:
        share = length if length <= room else room // unit * unit
        shares.append(share)
        room -= share
    return shares


def _equal_shares(lengths: list[int], room: int, unit: int) -> list[int]:
    """A unit each in turn, as long as one has room."""
    shares = [0] * len(lengths)
    has_grown = True
    while room > 0 and has_grown:
        has_grown = False
        for place, length in enumerate(lengths):
            more = min(unit, length - shares[place])
            if 0 < more <= room:
                shares[place] += more
                room -= more
                has_grown = True
    return shares
