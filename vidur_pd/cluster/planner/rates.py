"""Rates of one instance for a planner, from the prices that the run itself uses (`vidur_pd.execution.promise`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from vidur_pd.execution.promise.demand import Demand
from vidur_pd.execution.promise.promise import InstancePromise, instance_promise

if TYPE_CHECKING:
    from vidur_pd.simulation.plan import SimulationPlan

LEAST_LOAD: Final = 0.5
"""An instance is planned to be busy for half of the time at least: with more of them, prompts would wait for less than
half a prefill (M/D/1). Our choice."""

PROMPTS: Final = 48
"""Equal prompts that fill batches."""


class PricedRates:
    """`EngineRates` of a plan."""

    def __init__(self, plan: SimulationPlan) -> None:
        self._plan = plan
        self._places = {place.pool: place for place in reversed(plan.placements)}
        self._known: dict[tuple[str, int, int, int], InstancePromise] = {}

    def prefill_per_s(self, pool: str, prompt_tokens: float, cached_tokens: float, ttft_s: float) -> float:
        """Requests per second at which the mean wait of an M/D/1 queue, load · service / 2(1 − load), and a prompt
        alone take the TTFT: Pollaczek and Khinchine."""
        found = self._of(pool, prompt_tokens, cached_tokens, 2.0)
        waits_s = max(ttft_s - found.alone_s, 0.0)
        load = 2.0 * waits_s / (found.prefill_s + 2.0 * waits_s)
        return max(load, LEAST_LOAD) / found.prefill_s

    def decode_per_s(self, pool: str, prompt_tokens: float, output_tokens: float, tpot_s: float) -> float:
        """Requests per second in the largest batch whose step takes the TPOT at most; in the largest of all where none
        does."""
        found = self._of(pool, prompt_tokens, 0.0, output_tokens)
        steps = max(output_tokens - 1.0, 1.0)  # the first token comes with the prompt
        rate = found.decode_rate(steps, tpot_s)
        return rate or float(found.batch[-1] / (found.step_s[-1] * steps))

    def _of(self, pool: str, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> InstancePromise:
        prompt, output = max(round(prompt_tokens), 1), max(round(output_tokens), 1)
        cached = min(round(cached_tokens), prompt - 1)
        key = (pool, prompt, cached, output)
        if key not in self._known:
            demand = Demand(
                rate_per_s=None,
                prompts=np.full(PROMPTS, prompt, dtype=np.int64),
                cached=np.full(PROMPTS, cached, dtype=np.int64),
                output_tokens=float(output),
                context_tokens=prompt + output / 2.0,
            )
            self._known[key] = instance_promise(self._plan, self._plan.pools[pool], self._places[pool], demand)
        return self._known[key]
