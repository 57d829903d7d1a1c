"""Requests that hold KV on a rank, as policies with whole or chunked prompts look at them."""

from __future__ import annotations

from boundary.errors import InputError
from vidur_pd.scheduling.policy import Decision, RankView, RequestView


def idle(rank: RankView) -> list[RequestView]:
    """Those that hold KV and are in no iteration: running, and those whose KV has come from elsewhere."""
    return [*(request for request in rank.running if not request.is_in_iteration), *rank.arrived]


def by_arrival(requests: list[RequestView]) -> list[RequestView]:
    return sorted(requests, key=lambda request: (request.arrived_ps, request.index))


def micro_batch(rank: RankView) -> int:
    """Most requests of an iteration: the running ones are spread over the pipeline stages."""
    return max(rank.max_seqs // rank.pipeline_stages, 1)


def check_decodes(rank: RankView, policy: str) -> None:
    """Raises: InputError, where the requests of a micro-batch could not all decode at once: no budget holds back any
    in Vidur, as an iteration of 4096 tokens (a chunk of 512) has room for its 128 requests."""
    requests = micro_batch(rank)
    decodes = requests * (1 + rank.drafts_per_step)
    if decodes > rank.max_batched_tokens:
        raise InputError(
            f"engine.max_batched_tokens: found {rank.max_batched_tokens}, expected at least the {decodes} tokens that "
            f"{requests} decodes take (engine.max_seqs per pipeline stage): {policy} leaves out none of them"
        )


def check_one_group(rank: RankView, policy: str, engine: str) -> None:
    """Raises: InputError, for a model of which some layers have KV blocks of their own."""
    if rank.blocks(1) != 1:
        raise InputError(
            f"engine.policy: found {policy}, expected another for this model: {rank.blocks(1)} groups of its layers "
            f"keep tokens, some within a window, and {engine}'s pools for such models are not modelled"
        )


def may_run(rank: RankView, request: RequestView) -> bool:
    """It runs already, or one more may."""
    return request.is_running or rank.running_requests < rank.max_seqs


def decode(rank: RankView, decision: Decision, request: RequestView, others: list[RequestView]) -> bool:
    """Decodes a request in the way of vLLM before V1; False if it had to give up its KV.

    It wants a free block even where its last one has room. Else the last of ``others`` loses its KV, and last the
    request itself.
    """
    tokens = min(rank.most_tokens(request), rank.budget_left)
    while rank.free_blocks < max(rank.lacking_blocks(request, tokens), 1):
        victim = others.pop() if others else request
        decision.preempt(victim)
        if victim is request:
            return False
    decision.run(request, tokens)
    return True


def keep_a_free_block(rank: RankView) -> bool:
    """Running requests could decode until one of them ends, and always leave a block free."""
    steps = min(tokens_to_come(request) for request in rank.running)
    return sum(rank.lacking_blocks(request, steps) for request in rank.running) < rank.free_blocks


def decodes_go_on(rank: RankView, *, is_full: bool) -> bool:
    """Every decision would be to decode all running requests: nobody may join them, and blocks suffice."""
    may_start = rank.waiting and not is_full and fits_above_watermark(rank, rank.waiting[0])
    return not may_start and not rank.arrived and keep_a_free_block(rank)


def tokens_to_come(request: RequestView) -> int:
    """Output tokens that are neither generated nor under way."""
    return request.prompt_tokens + request.output_tokens - request.sequence_tokens


def fits_above_watermark(rank: RankView, request: RequestView) -> bool:
    """Blocks for the whole sequence of a waiting request are free, and some remain."""
    needed = rank.lacking_blocks(request, rank.most_tokens(request))
    return rank.free_blocks - needed >= rank.watermark_blocks


def longest_sequence(rank: RankView, request: RequestView) -> int:
    """The most tokens of KV that a request has on the rank: the last token of an output never gets any."""
    if rank.role == "prefill":
        return request.sequence_tokens
    return request.prompt_tokens + request.output_tokens - 1


def refusal_by_watermark(rank: RankView, request: RequestView) -> str | None:
    """A sequence that is recomputed has to fit above the watermark as well."""
    blocks, most = rank.blocks(longest_sequence(rank, request)), rank.usable_blocks - rank.watermark_blocks
    if blocks <= most:
        return None
    return f"its {blocks} KV blocks exceed the {most} of the pool above the watermark"


def refusal_by_budget(rank: RankView, tokens: int) -> str | None:
    """A prompt that is not split has to fit into one iteration."""
    if tokens <= rank.max_batched_tokens:
        return None
    return f"its {tokens} tokens exceed the {rank.max_batched_tokens} of an iteration, and prompts are not split"
