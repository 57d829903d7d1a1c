"""Runs of an engine to be compared with their simulation: prompts alone, steady decodes, Poisson arrivals.

One phase after another on one engine, whose host is measured before and after (`aicb.profiling.engine_host.engine`), so
that its speed in each phase is known. All shapes run once before, which compiles what is compiled at first use; a load
in which something is compiled all the same, as batches meet in it that did not before, is measured again, and said to
have been if it never runs without.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from aicb.profiling.engine_host.client import Answer, Client
from aicb.profiling.engine_host.engine import (
    environment,
    loads,
    rows_of,
    stamps_of_ranks,
    start,
)
from aicb.profiling.engine_host.served import FOLDER_VARIABLE, EngineUnderTest, Recording

Requests = list[tuple[float, int, int]]
"""When each is sent [s], its tokens of prompt and of answer."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What is measured; lengths of a Poisson load are log-normal."""

    prompts: tuple[int, ...] = (128, 512, 1024, 2048, 4096, 8192)
    """Tokens of each, alone, ascending."""
    repetitions: int = 5
    decodes: tuple[tuple[int, int], ...] = (
        *((512, requests) for requests in (1, 8, 32, 64, 128, 256)),
        *((4096, requests) for requests in (1, 8, 32, 64)),
    )
    """Tokens of the prompts, and how many requests decode together."""
    steps: int = 64
    """In which all of them do."""
    rates: tuple[float, ...] = (2.0, 6.0, 12.0)
    """Requests per second of each Poisson load."""
    load_s: float = 20.0
    most_requests: int = 160
    prompt_log: tuple[float, float] = (6.9, 0.9)
    """Mean and deviation of the logarithm of a prompt's tokens."""
    prompt_range: tuple[int, int] = (16, 8000)
    answer_log: tuple[float, float] = (4.9, 0.8)
    answer_range: tuple[int, int] = (4, 800)
    host_repetitions: int = 5

    def load(self, rate: float, draws: random.Random) -> Requests:
        """One Poisson load."""
        at_s, requests = 0.0, []
        for _ in range(min(self.most_requests, max(1, int(rate * self.load_s)))):
            at_s += draws.expovariate(rate)
            prompt = _within(draws.lognormvariate(*self.prompt_log), self.prompt_range)
            requests.append((at_s, prompt, _within(draws.lognormvariate(*self.answer_log), self.answer_range)))
        return requests


COMPILING_S = 0.5
"""A step that keeps a worker so much longer than a batch of its tokens takes compiles a kernel: DeepGEMM's and
FlashInfer's took 2.8 to 10.5 s in engines of DeepSeek-V3, those of gpt-oss's experts 0.7 to 2.7 s for each new number
of tokens (gpt-oss-20b on an H100, gpt-oss-120b on two H200s)."""
LONGEST_BATCHES = 2.0
"""How long a batch may take, in times of a prompt alone of as many tokens: decodes and the KV of earlier chunks are in
it as well."""
ATTEMPTS = 3


def _within(drawn: float, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], int(drawn)))


def record_runs(under_test: EngineUnderTest, runs: Runs, keep: Callable[[Recording], None]) -> Recording:
    """All that was seen of the runs: answers by phase, and stamps. ``keep`` gets what there is after each phase."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        return asyncio.run(_Recorder(under_test, runs, Path(folder), keep).record())


class _Recorder:
    def __init__(
        self, under_test: EngineUnderTest, runs: Runs, folder: Path, keep: Callable[[Recording], None]
    ) -> None:
        self.under_test, self.runs, self.folder, self.keep = under_test, runs, folder, keep
        self.found: Recording = {"phases": {}}

    async def record(self) -> Recording:
        engine = start(self.under_test)
        try:
            self.client = Client(engine)
            self.found |= engine.read_back() | {"environment": environment(engine.packages), "tp": self.under_test.tp}
            await self._compile()
            await engine.call("start_stamps")
            await self._phase("loads_before", self._loads)
            await self._phase("prefill", self._prompts)
            await self._phase("decode", self._decodes)
            draws = random.Random(42)
            for rate in self.runs.rates:
                await self._load(f"serve_{rate}", self.runs.load(rate, draws))
            await self._phase("loads_after", self._loads)
        finally:
            engine.shutdown()
        return self.found

    async def _load(self, name: str, requests: Requests) -> None:
        for _ in range(ATTEMPTS):
            await self._phase(name, partial(self._serve, requests))
            compiling_s = self._compiling_steps_s(name)
            if not compiling_s:
                return
        self.found.setdefault("compiling_s", {})[name] = max(compiling_s)

    def _compiling_steps_s(self, name: str) -> list[float]:
        """Times of the steps of a load that were too long for their tokens."""
        ranks = self.found["phases"][name]["ranks"]
        steps = [
            (step[0], max(step[4], step[6]) - step[2])
            for rank in ranks
            for worker in rank["workers"]
            for step in worker
        ]
        return [time_s for tokens, time_s in steps if time_s > COMPILING_S + LONGEST_BATCHES * self._batch_s(tokens)]

    def _batch_s(self, tokens: int) -> float:
        """By the prompts alone that were one batch: the next longer one, or in proportion of the longest."""
        most: int = self.found["args"]["max_num_batched_tokens"]
        alone = [
            (length, median(times_s)) for length, times_s in self.found["phases"]["prefill"]["found"] if length <= most
        ]
        longer = [time_s for length, time_s in alone if length >= tokens]
        if longer:
            return float(longer[0])
        length, time_s = alone[-1] if alone else (1, 0.0)
        return float(time_s * tokens / length)

    async def _phase(self, name: str, run: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.client.answers.clear()
        began = perf_counter()
        result = await run()
        ended = perf_counter()
        await self.client.engine.call("leave_stamps")
        ranks = stamps_of_ranks(self.folder, self.under_test.dp)
        phase = {"began": began, "ended": ended, "requests": rows_of(self.client.answers), "found": result}
        stamps = [
            {
                "scheduler": [row for row in rank["scheduler"] if began <= row[1] <= ended],
                "workers": [[row for row in worker if began <= row[2] <= ended] for worker in rank["workers"]],
            }
            for rank in ranks
        ]
        self.found["phases"][name] = {**phase, "ranks": stamps}
        self.keep(self.found)

    async def _compile(self) -> None:
        for tokens in self.runs.prompts:
            await self.client.ask(tokens, 4)
        for tokens, requests in self.runs.decodes:
            await self.client.ask_at([(0.0, tokens, 12)] * requests)
        await self.client.ask_at(self.runs.load(max(self.runs.rates, default=1.0), random.Random(7)))

    async def _loads(self) -> None:
        await loads(self.client, self.runs.host_repetitions)

    async def _prompts(self) -> list[tuple[int, list[float]]]:
        """TTFT of each, by length [s]."""
        return [
            (tokens, sorted([(await self.client.ask(tokens, 2)).ttft_s for _ in range(self.runs.repetitions)]))
            for tokens in self.runs.prompts
        ]

    async def _serve(self, requests: Requests) -> list[dict[str, float]]:
        answers = await self.client.ask_at(requests)
        first_s = min(answer.sent_s - at_s for answer, (at_s, _, _) in zip(answers, requests, strict=True))
        return [
            {
                "arrival": answer.sent_s - first_s,
                "n_in": answer.prompt_tokens,
                "n_out": answer.tokens,
                "ttft": answer.ttft_s,
                "e2e": answer.e2e_s,
                "tpot": answer.tpot_s,
            }
            for answer in answers
        ]

    async def _decodes(self) -> list[dict[str, float]]:
        rows = []
        most_tokens = self.under_test.drafts.tokens_per_step if self.under_test.drafts else 1.0
        for tokens, requests in self.runs.decodes:
            prompt_steps = -(-tokens * requests // (self.found["args"]["max_num_batched_tokens"] * self.under_test.dp))
            outputs = int((1.2 * prompt_steps + self.runs.steps + 24) * most_tokens)
            blocks, block_tokens = self.found["kv_blocks"]
            if (tokens + outputs) * requests > 0.97 * blocks * block_tokens * self.under_test.dp:
                continue
            answers = await self.client.ask_at([(0.0, tokens, outputs)] * requests)
            row = steady_row(answers)
            if row:
                rows.append({"L": tokens, "B": requests, "n_out": outputs, **row})
        return rows


def steady_row(answers: Sequence[Answer]) -> dict[str, float]:
    """Gaps between outputs while all requests decode [s]; none where they never do all together."""
    begin_s = max(answer.outputs[0][0] for answer in answers)
    end_s = min(answer.outputs[-1][0] for answer in answers)
    gaps, tokens = [], 0
    for answer in answers:
        within = [output for output in answer.outputs if begin_s <= output[0] <= end_s]
        gaps += [later[0] - earlier[0] for earlier, later in pairwise(within)]
        tokens += sum(count for _, count in within[1:])
    if not gaps:
        return {}
    gaps.sort()
    return {
        "itl_p50": gaps[len(gaps) // 2],
        "itl_p10": gaps[len(gaps) // 10],
        "itl_p90": gaps[len(gaps) * 9 // 10],
        "itl_mean": sum(gaps) / len(gaps),
        "steps": len(gaps) / len(answers),
        "tokens_per_step": tokens / len(gaps),
    }
