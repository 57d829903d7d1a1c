"""Named planners on observations made by hand, and predictors of series whose next value is known."""

from __future__ import annotations

from typing import Any

import pytest

from vidur_pd.cluster.planner.planner import Observation, PoolView
from vidur_pd.cluster.planner.policies.load import Load
from vidur_pd.cluster.planner.policies.throughput import Throughput
from vidur_pd.cluster.planner.prediction import predictor_named
from vidur_pd.config import Role


class Rates:
    """An instance prefills 4 requests per second, or decodes 10."""

    def prefill_per_s(self, pool: str, prompt_tokens: float, cached_tokens: float, ttft_s: float) -> float:
        return 4.0

    def decode_per_s(self, pool: str, prompt_tokens: float, output_tokens: float, tpot_s: float) -> float:
        return 10.0


def view(role: Role, serving: int, starting: int = 0, **loads: Any) -> PoolView:
    return PoolView(
        name=role,
        role=role,
        serving=serving,
        starting=starting,
        draining=0,
        least=1,
        most=32,
        context_tokens=10_000,
        queued_tokens=loads.get("queued_tokens", (0,) * serving),
        kv_use=loads.get("kv_use", (0.0,) * serving),
    )


def seen(arrivals: int, *pools: PoolView, output_tokens: float = 200.0) -> Observation:
    return Observation(
        now_s=10.0,
        interval_s=10.0,
        arrivals=arrivals,
        prompt_tokens=1000.0,
        cached_tokens=0.0,
        output_tokens=output_tokens,
        pools=pools,
        rates=Rates(),
    )


def throughput(**options: Any) -> Throughput:
    planner = Throughput()
    planner.options = Throughput.Options(**options)
    return planner


def test_each_pool_gets_the_load_over_the_rate_of_an_instance_rounded_up() -> None:
    """25 requests/s: 25 / 4 and 25 / 10; a mixed instance takes 1 / (1/4 + 1/10) = 2.86 of them, 25 / 2.86 = 8.75."""
    planned = throughput().plan(seen(250, view("prefill", 4), view("decode", 4), view("mixed", 4)))
    assert planned == {"prefill": 7, "decode": 3, "mixed": 9}


def test_less_of_an_instance_is_planned_with_where_that_is_asked_for() -> None:
    """25 / (4 · 0.5) and 25 / (10 · 0.5)."""
    assert throughput(utilization=0.5, most_step=20).plan(seen(250, view("prefill", 4), view("decode", 4))) == {
        "prefill": 13,
        "decode": 5,
    }


@pytest.mark.parametrize(("arrivals", "serving", "starting", "expected"), [(1000, 2, 3, 13), (10, 20, 0, 12)])
def test_a_pool_changes_by_eight_instances_at_most(arrivals: int, serving: int, starting: int, expected: int) -> None:
    """Instances that start count as there. Source: Dynamo 1.x, throughput-based scaling."""
    assert throughput().plan(seen(arrivals, view("prefill", serving, starting))) == {"prefill": expected}


def test_a_decode_pool_stays_while_no_output_is_known() -> None:
    assert throughput().plan(seen(250, view("prefill", 2), view("decode", 2), output_tokens=0.0)) == {
        "prefill": 7,
        "decode": 2,
    }


@pytest.mark.parametrize(
    ("queued_tokens", "expected"),
    [((10_000, 0), 3), ((9_999, 900), 2), ((9_999, 9_999), 2), ((999, 999), 1), ((1_000, 0), 2)],
)
def test_prefill_grows_with_a_queue_of_a_context_and_shrinks_below_a_tenth(
    queued_tokens: tuple[int, int], expected: int
) -> None:
    """Source: Dynamo 1.x, load-based scaling: any queue ≥ 1.0 context, all queues < 0.1."""
    planner = Load()
    planner.options = Load.Options()
    assert planner.plan(seen(10, view("prefill", 2, queued_tokens=queued_tokens))) == {"prefill": expected}


@pytest.mark.parametrize(
    ("kv_use", "expected"), [((1.01, 0.1), 3), ((1.0, 0.1), 2), ((0.59, 0.59), 1), ((0.6, 0.0), 2)]
)
def test_decode_grows_where_kv_is_short_and_shrinks_below_60_percent(
    kv_use: tuple[float, float], expected: int
) -> None:
    planner = Load()
    planner.options = Load.Options()
    assert planner.plan(seen(10, view("decode", 2, kv_use=kv_use))) == {"decode": expected}


def test_load_scaling_waits_for_an_instance_that_starts() -> None:
    planner = Load()
    planner.options = Load.Options()
    assert planner.plan(seen(10, view("prefill", 2, starting=1, queued_tokens=(50_000, 50_000)))) == {}


def test_predictors_keep_the_last_the_mean_and_the_trend_of_a_series() -> None:
    """Of 1, 3, 5, …, 39 the last is 39, the mean of three 37, and a line goes on with 41."""
    found = {}
    for name in ("constant", "moving_average", "trend"):
        predictor = predictor_named(name, window=3)
        for value in range(1, 40, 2):
            predictor.add(float(value))
        found[name] = predictor.next()
    assert found == {"constant": 39.0, "moving_average": 37.0, "trend": pytest.approx(41.0, abs=0.05)}


def test_a_trend_downwards_ends_at_zero() -> None:
    predictor = predictor_named("trend", window=1)
    for value in (30.0, 20.0, 10.0, 0.0, 0.0):
        predictor.add(value)
    assert predictor.next() == 0.0
