"""Cost of a run and of its tokens, by a price list.

Input tokens bear the pools that serve prompts, output tokens those that decode. A pool that does both is divided as
its busy time is: iterations with prompts, and those of decodes alone; a decode that shares an iteration with a prompt
counts with the prompt. Electricity is divided as the energy of the pools' GPUs is, and what is around them with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidur_pd.config import PricesConfig
from vidur_pd.metrics.summary import CostSummary, EnergySummary

S_PER_HOUR = 3600
J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class PoolPrice:
    """A pool, for its price."""

    name: str
    per_hour: float
    """Of its GPUs."""
    prompts_share: float
    """What of it serves prompts."""


def prompts_share(role: str, of_busy_time: float | None) -> float:
    """What of a pool serves prompts: all, nothing, or the share of its busy time with prompts."""
    return {"prefill": 1.0, "decode": 0.0}.get(role, of_busy_time or 0.0)


def cost_summary(
    prices: PricesConfig,
    pools: Sequence[PoolPrice],
    energy: EnergySummary | None,
    makespan_s: float,
    input_tokens: int,
    output_tokens: int,
) -> CostSummary:
    """Costs of a run of ``makespan_s`` with so many tokens of completed requests."""
    hours = makespan_s / S_PER_HOUR
    gpus_per_hour = sum(pool.per_hour for pool in pools)
    electricity = _electricity(prices, energy)
    if electricity is None or not hours:
        return CostSummary(currency=prices.currency, as_of=prices.as_of, gpus_per_hour=gpus_per_hour)
    each = {pool.name: pool.per_hour * hours + electricity * _energy_share(pool.name, energy) for pool in pools}
    on_input = sum(each[pool.name] * pool.prompts_share for pool in pools)
    total = sum(each.values())
    return CostSummary(
        currency=prices.currency,
        as_of=prices.as_of,
        gpus_per_hour=gpus_per_hour,
        electricity_per_hour=electricity / hours,
        per_hour=total / hours,
        total=total,
        per_million_input_tokens=_per_million(on_input, input_tokens),
        per_million_output_tokens=_per_million(total - on_input, output_tokens),
        all_per_million_output_tokens=_per_million(total, output_tokens),
    )


def _electricity(prices: PricesConfig, energy: EnergySummary | None) -> float | None:
    """Of the whole run; ``None`` where it has a price and nobody knows how much it is."""
    if not prices.electricity_kwh:
        return 0.0
    return None if energy is None or energy.total_j is None else energy.total_j / J_PER_KWH * prices.electricity_kwh


def _energy_share(pool: str, energy: EnergySummary | None) -> float:
    return energy.pools_j[pool] / energy.gpu_j if energy is not None and energy.gpu_j else 0.0


def _per_million(cost: float, tokens: int) -> float | None:
    return cost / tokens * 1e6 if tokens else None
