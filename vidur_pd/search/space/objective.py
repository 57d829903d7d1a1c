"""What a search looks for, and how points compare: whether the SLO is met comes before everything else."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vidur_pd.search.evaluation.outcome import Outcome

MISSED: Final = 1e9
"""Score of a point that just misses its SLO: beyond every score of one that meets it."""


class Objective(StrEnum):
    """What is least, or most, among the points that meet the SLO."""

    MIN_GPUS = "min_gpus"
    """GPUs; among equal ones the largest margin."""
    MIN_COST = "min_cost"
    """Price per hour by ``prices``; then as above."""
    MIN_COST_PER_TOKEN = "min_cost_per_token"
    """Price of a million output tokens, at the highest rate within the SLO: each point is brought to its capacity."""
    MAX_THROUGHPUT_PER_GPU = "max_throughput_per_gpu"
    """Highest rate within the SLO over GPUs: each point is brought to its capacity."""
    MIN_LATENCY = "min_latency"
    """Mean end-to-end latency."""

    @property
    def finds_capacity(self) -> bool:
        """Whether a point is run at several rates."""
        return self in (Objective.MAX_THROUGHPUT_PER_GPU, Objective.MIN_COST_PER_TOKEN)

    @property
    def needs_prices(self) -> bool:
        return self in (Objective.MIN_COST, Objective.MIN_COST_PER_TOKEN)

    @property
    def unit(self) -> str:
        return {
            Objective.MIN_GPUS: "GPUs",
            Objective.MIN_COST: "per hour",
            Objective.MIN_COST_PER_TOKEN: "per million output tokens",
            Objective.MAX_THROUGHPUT_PER_GPU: "requests/s per GPU",
            Objective.MIN_LATENCY: "s",
        }[self]

    def value_of(self, outcome: Outcome) -> float | None:
        """What the objective is about, in its unit; ``None`` where the SLO is missed."""
        if not outcome.is_met:
            return None
        match self:
            case Objective.MIN_GPUS:
                return float(outcome.gpus)
            case Objective.MIN_COST:
                return outcome.cost_per_hour
            case Objective.MIN_COST_PER_TOKEN:
                return cost_per_million(outcome.cost_per_hour, outcome.rate_per_s * outcome.output_tokens_mean)
            case Objective.MAX_THROUGHPUT_PER_GPU:
                return outcome.rate_per_s / outcome.gpus
            case Objective.MIN_LATENCY:
                return outcome.e2e_mean_s

    def score(self, outcome: Outcome) -> float:
        """The smaller, the better: of two points that miss the SLO the one that misses it by less.

        Where values are equal for many points, up to a thousandth of a unit goes by the margin.
        """
        value = self.value_of(outcome)
        if value is None:
            return MISSED * (1 + min(10.0, max(0.0, -outcome.margin)))
        if self is Objective.MAX_THROUGHPUT_PER_GPU:
            return -value
        exact = (Objective.MIN_LATENCY, Objective.MIN_COST_PER_TOKEN)
        return value if self in exact else value - 1e-3 * outcome.margin


def cost_per_million(cost_per_hour: float | None, tokens_per_s: float) -> float | None:
    """Of a million tokens at a steady rate of them; ``None`` without a price or a token."""
    return cost_per_hour / (tokens_per_s * 3600) * 1e6 if cost_per_hour is not None and tokens_per_s > 0 else None
