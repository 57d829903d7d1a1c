"""Throughput planner: as many instances as the predicted load takes within the objectives, as Dynamo's planner.

Source: Dynamo 1.x, planner, throughput-based scaling: the request rate, prompt and output lengths of the next interval
are predicted from those that were seen; each pool gets the load over the rate at which one instance keeps its latency
(TTFT 500 ms for prompts, 50 ms between tokens), rounded up. There the rates are interpolated in measurements of the
engine; here they are what the run's own prices come to (`vidur_pd.cluster.planner.rates`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from boundary.fields import Count, NotBool, PositiveSeconds, Section
from vidur_pd.cluster.planner.planner import Observation, Planner, PoolView
from vidur_pd.cluster.planner.prediction import Predictor, predictor_named


class Throughput(Planner):
    """See the module."""

    class Options(Section):
        """``planner.options``."""

        ttft_s: PositiveSeconds = 0.5
        tpot_s: PositiveSeconds = 0.05
        """Means that a plan keeps; by default as with Dynamo."""
        predictor: Literal["constant", "moving_average", "trend"] = "constant"
        """Of the rate of the next interval: the last one's, the mean of some, or the last one's and its trend."""
        window: Count = 5
        """Intervals of a moving average."""
        utilization: Annotated[float, NotBool, Field(gt=0, le=1)] = 1.0
        """Share of an instance's rate that is planned with; Dynamo plans with all of it."""
        most_step: Count = 8
        """Instances that a pool grows or shrinks by at a time, at most; as with Dynamo."""

    options: Options

    def __init__(self) -> None:
        self._rate: Predictor | None = None

    def plan(self, seen: Observation) -> Mapping[str, int]:
        if self._rate is None:
            self._rate = predictor_named(self.options.predictor, self.options.window)
        self._rate.add(seen.arrivals_per_s)
        rate = self._rate.next()
        return {pool.name: self._instances(pool, rate, seen) for pool in seen.pools}

    def _instances(self, pool: PoolView, rate: float, seen: Observation) -> int:
        """Of a pool, at a rate of requests."""
        now, each = pool.serving + pool.starting, self._rate_of_one(pool, seen)
        if each is None:
            return now
        wanted = math.ceil(rate / (each * self.options.utilization))
        return min(max(wanted, now - self.options.most_step), now + self.options.most_step)

    def _rate_of_one(self, pool: PoolView, seen: Observation) -> float | None:
        """Requests per second of an instance; ``None``: not known yet."""
        options, rates = self.options, seen.rates
        if not seen.prompt_tokens or (pool.role != "prefill" and not seen.output_tokens):
            return None
        busy = 0.0
        if pool.role != "decode":
            busy += 1.0 / rates.prefill_per_s(pool.name, seen.prompt_tokens, seen.cached_tokens, options.ttft_s)
        if pool.role != "prefill":
            busy += 1.0 / rates.decode_per_s(pool.name, seen.prompt_tokens, seen.output_tokens, options.tpot_s)
        return 1.0 / busy
