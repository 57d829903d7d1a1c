"""Client of an engine, in the process that started it: requests of random tokens, and when their tokens came."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from aicb.profiling.engine_host.served import ServedEngine

LOWEST_TOKEN, HIGHEST_TOKEN = 1000, 30000
"""Of random prompts; within the vocabulary of every model that engines serve."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request and its outputs, as the client saw them [s]."""

    prompt_tokens: int
    sent_s: float
    outputs: tuple[tuple[float, int], ...]
    """When each came, and its tokens: one, with drafts up to all of a step."""

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.outputs)

    @property
    def ttft_s(self) -> float:
        return self.outputs[0][0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.outputs[-1][0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Zero for one token."""
        return (self.e2e_s - self.ttft_s) / max(1, self.tokens - 1)


class Client:
    """Sends requests to an engine and keeps what came of them."""

    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.answers: list[Answer] = []
        """In the order in which they were complete."""
        self._random = random.Random(0)
        self._number = 0

    async def ask(self, tokens: int, outputs: int) -> Answer:
        """A request of its own prompt, and so many tokens of answer."""
        self._number += 1
        prompt = [self._random.randrange(LOWEST_TOKEN, HIGHEST_TOKEN) for _ in range(tokens)]
        sent_s, received = perf_counter(), []
        async for count in self.engine.outputs(prompt, outputs, f"r{self._number}"):
            received.append((perf_counter(), count))
        answer = Answer(tokens, sent_s, tuple(received))
        self.answers.append(answer)
        return answer

    async def ask_at(self, requests: Sequence[tuple[float, int, int]]) -> list[Answer]:
        """Requests at instants from now on [s], each with tokens of prompt and of answer; in their order."""
        begin_s, under_way = perf_counter(), []
        for at_s, tokens, outputs in requests:
            await asyncio.sleep(max(0.0, begin_s + at_s - perf_counter()))
            under_way.append(asyncio.create_task(self.ask(tokens, outputs)))
        return list(await asyncio.gather(*under_way))
