"""Conversations: prompts that contain earlier turns and begin with shared system prompts.

Model. The arrival process says when requests arrive; conversations say what they contain. After each turn a
conversation goes on with probability 1 − 1/turns and is then ready for its next turn after a think time. An
arriving request is the next turn of the conversation that has been ready longest or, if none is, the first turn of
a new one. So the arrival process stays exactly as asked for, and conversations have ``turns`` turns on average.

The text of a conversation is: system prompt, first user text, first answer, second user text, … The prompt of a
turn is everything up to and including its user text; ``lengths`` draws user texts (prefill) and answers (decode).
Block ids name text together with all text before it: whole blocks are shared by all later turns, blocks inside the
system prompt by all conversations that use it, and a partial last block by nobody.

Ignored: the answer's duration (as in any open-loop replay, a turn may arrive before a slow system has answered the
one before; think times must cover it), branching and retried conversations, blocks produced by decoding (ids cover
prompts, as in the Mooncake traces), and shared documents other than system prompts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.config.sessions import SharedPrefixes, SystemPrompts
from vidur_pd.workload.arrivals import to_ps
from vidur_pd.workload.lengths import sample_lognormal, zipf_ranks
from vidur_pd.workload.workload import MAX_TOKENS, BlockHashes, Workload

Tokens = NDArray[np.int64]
MOST_BLOCKS = 2**25
"""Ids of the prompts of a workload: Mooncake's largest trace has 3 million; these take a gigabyte."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The prompts of a workload with conversations."""

    tokens: Tokens
    """[requests] whole prompts: system prompt, history and the new text."""
    block_hashes: BlockHashes
    trimmed: int
    """Requests whose text alone was longer than the limit."""


@dataclass(slots=True)
class Conversation:
    text_tokens: int
    """Everything said so far, the last answer included."""
    blocks: list[int]
    """Ids of the whole blocks that prompts have covered so far."""
    has_history: bool = False
    """Whether a turn has been asked."""


def sample_conversations(
    prefixes: SharedPrefixes,
    arrived_ps: NDArray[np.int64],
    user_tokens: Tokens,
    answer_tokens: Tokens,
    rng: Callable[[str], np.random.Generator],
) -> Prompts:
    """Prompts of requests that arrive at ``arrived_ps`` and add ``user_tokens`` to a conversation each.

    Ids are numbered in order of first appearance. All four arrays are [requests].
    """
    requests = len(arrived_ps)
    goes_on = rng("conversation_turns").random(requests) < 1 - 1 / prefixes.turns
    ready_ps = arrived_ps + _think_times_ps(prefixes, requests, rng("think_times"))
    openings = Openings(prefixes, prefixes.hash_block_tokens, requests, rng)
    fresh = openings.fresh
    limit = prefixes.max_prompt_tokens or MAX_TOKENS
    waiting: list[tuple[int, int, Conversation]] = []
    prompt_tokens = np.zeros(requests, dtype=np.int64)
    ids: list[list[int]] = []
    trimmed = blocks = 0
    for i, now in enumerate(arrived_ps.tolist()):
        user = int(user_tokens[i])
        talk = heapq.heappop(waiting)[2] if waiting and waiting[0][0] <= now else openings.next()
        if talk.text_tokens + user > limit and talk.has_history:
            talk = openings.next()
        if talk.text_tokens + user > limit:
            user = limit - talk.text_tokens
            trimmed += 1
        prompt = talk.text_tokens + user
        whole, partial = divmod(prompt, prefixes.hash_block_tokens)
        blocks += whole + 1
        check_blocks(blocks, prefixes.hash_block_tokens)
        talk.blocks.extend(next(fresh) for _ in range(whole - len(talk.blocks)))
        ids.append([*talk.blocks, next(fresh)] if partial else list(talk.blocks))
        prompt_tokens[i] = prompt
        talk.text_tokens = prompt + int(answer_tokens[i])
        talk.has_history = True
        if goes_on[i] and talk.text_tokens < limit:
            heapq.heappush(waiting, (int(ready_ps[i]), i, talk))
    return Prompts(prompt_tokens, BlockHashes(*csr(ids), prefixes.hash_block_tokens), trimmed)


class Openings:
    """Starts conversations, each from one of the system prompts."""

    def __init__(
        self,
        system: SystemPrompts,
        hash_block_tokens: int,
        conversations: int,
        rng: Callable[[str], np.random.Generator],
    ) -> None:
        """For at most so many ``conversations``."""
        prompts, given = system.system_prompts, system.system_tokens
        self._block_tokens = hash_block_tokens
        self.fresh = count()
        """Block ids that nobody has yet."""
        self._tokens: list[int] = (
            [given] * prompts
            if isinstance(given, int)
            else sample_lognormal(given, prompts, rng("system_prompt_lengths")).tolist()
        )
        choices = zipf_ranks(prompts, system.popularity_theta, conversations, rng("system_prompt_choice"))
        self._choices = iter(choices.tolist())
        self._blocks: dict[int, list[int]] = {}

    def next(self) -> Conversation:
        """The start of a conversation; its system prompt's blocks get their ids when first used."""
        system = next(self._choices)
        tokens = self._tokens[system]
        if system not in self._blocks:
            check_blocks(tokens // self._block_tokens, self._block_tokens)
            self._blocks[system] = [next(self.fresh) for _ in range(tokens // self._block_tokens)]
        return Conversation(tokens, list(self._blocks[system]))


def check_blocks(blocks: int, block_tokens: int) -> None:
    """Raises: InputError, where prompts have more blocks than a simulation should hold."""
    if blocks > MOST_BLOCKS:
        raise InputError(
            f"workload: hash_block_tokens: found {block_tokens}, by which prompts have more than {MOST_BLOCKS} blocks "
            "in all; expected larger blocks or fewer tokens"
        )


def _think_times_ps(prefixes: SharedPrefixes, requests: int, random: np.random.Generator) -> NDArray[np.int64]:
    """[requests] shifted exponential times from a turn's arrival until the next turn may arrive."""
    shortest_s = prefixes.min_think_time_s
    beyond_s = random.standard_exponential(requests) * (prefixes.think_time_s - shortest_s)
    return to_ps(shortest_s + beyond_s)


def csr(ids: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and ids of all rows."""
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in ids]))).astype(np.int64)
    flat = np.fromiter((block for row in ids for block in row), dtype=np.int64, count=int(offsets[-1]))
    return offsets, flat


PREFIX_BLOCK_TOKENS = 16
"""Of the ids of a prefix that all prompts share: vLLM's blocks."""


def with_shared_prefix(workload: Workload, tokens: int) -> Workload:
    """The workload with so many tokens before every prompt, the same for all; what follows is nobody else's.

    Raises: InputError where the prompts name prefixes of their own, or become too long.
    """
    if workload.block_hashes is not None:
        raise InputError(
            f"{workload.name}: shared_prefix_tokens: found {tokens} with prompts that name prefixes, expected 0"
        )
    prompts = workload.prefill_tokens + tokens
    if prompts.max() > MAX_TOKENS:
        raise InputError(f"{workload.name}: shared_prefix_tokens: found {tokens}, expected prompts up to {MAX_TOKENS}")
    blocks = -(-prompts // PREFIX_BLOCK_TOKENS)
    shared = tokens // PREFIX_BLOCK_TOKENS
    offsets = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    ids = np.where(place < shared, place, shared + np.arange(offsets[-1]))
    hashes = BlockHashes(offsets, ids, PREFIX_BLOCK_TOKENS)
    source = f"{workload.source}, {tokens} tokens before every prompt"
    return replace(workload, prefill_tokens=prompts, block_hashes=hashes, source=source)
