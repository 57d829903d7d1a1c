"""Runs with a planner: what is held when, what starting takes, and that no request is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from netsim.units import PS_PER_S
from tests.integration import small_runs
from tests.vidur_pd.kv_store.tiered_runs import prompts
from tests.vidur_pd.kv_store.tiered_runs import run as tiered_run
from tests.vidur_pd.planner.planned_runs import WEIGHTS_BYTES, Scripted, configuration, scripted
from tests.vidur_pd.report.report_page import parse_page
from vidur_pd import simulate, write_result
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import FleetCount, PlannerSummary
from vidur_pd.metrics.summary_file import read_summary
from vidur_pd.report.differences import compare_summaries

ONE_OF_EACH = {"prefill": {"initial": 1}, "decode": {"initial": 1}}


def planned(result: Result) -> PlannerSummary:
    assert result.summary.planner is not None
    return result.summary.planner


def counts(result: Result, pool: str) -> list[tuple[float, int, int, int]]:
    """(when, serving, starting, draining)"""
    own = [each for each in planned(result).counts if each.pool == pool]
    return [(each.at_s, each.serving, each.starting, each.draining) for each in own]


def test_a_started_instance_serves_after_its_start_up_and_its_gpus_are_held_from_the_decision_on() -> None:
    """Planned from 3 s on, serving at 5 s; held from 3 s to the end: in all end + (end − 3) seconds of one GPU."""
    result = simulate(configuration(scripted((3.0, {"decode": 2}), pools=ONE_OF_EACH)))
    assert counts(result, "decode") == [(0.0, 1, 0, 0), (3.0, 1, 1, 0), (5.0, 2, 0, 0)]
    assert counts(result, "prefill") == [(0.0, 1, 0, 0)]
    end_s = result.end_ps / PS_PER_S
    prefill, decode = planned(result).pools
    assert decode.gpu_hours * 3600 == pytest.approx(end_s + end_s - 3.0)
    assert prefill.gpu_hours * 3600 == pytest.approx(end_s)
    assert planned(result).all_gpu_hours * 3600 == pytest.approx(4 * end_s)
    assert decode.serving_mean == pytest.approx((end_s + end_s - 5.0) / end_s)


def test_pools_are_busy_under_load_for_a_share_of_what_was_held_while_requests_arrived() -> None:
    """One decode instance until 6 s, two from then on; of those after the last arrival nothing counts."""
    result = simulate(configuration(scripted((6.0, {"decode": 2}), pools=ONE_OF_EACH)))
    first_s, last_s = (float(end(result.table.arrived_ps)) / PS_PER_S for end in (np.min, np.max))
    busy_s = result.iterations.busy_at_arrival_ps[2:].sum() / PS_PER_S
    found = result.summary.pools[1].busy_under_load
    assert found == pytest.approx(busy_s / (last_s - first_s + last_s - 6.0), rel=1e-9)


def test_an_instance_that_drains_ends_what_it_has_and_costs_nothing_from_then_on() -> None:
    result = simulate(configuration(scripted((4.0, {"decode": 1}))))
    (_, full, *_), (_, left, _, draining), (off_s, *rest) = counts(result, "decode")
    assert (full, left, draining, rest) == (2, 1, 1, [1, 0, 0])
    of_each = [result.table.completed_ps[result.table.decode_instance == index] / PS_PER_S for index in (2, 3)]
    ends_s = min(of_each, key=np.max)  # of the one that drained: the other served until the end
    assert ends_s.max() <= off_s <= ends_s.max() + 0.05 + 1e-9  # looked at every 50 ms
    assert planned(result).pools[1].gpu_hours * 3600 == pytest.approx(result.end_ps / PS_PER_S + off_s)


def test_instances_that_drain_stay_until_the_kv_of_their_requests_has_come_over() -> None:
    """Two prompts of 8,000 tokens at once, one on each instance; their KV takes 9 s at 1 Gbps, and 2 s are over."""
    tree = configuration(scripted((2.0, {"prefill": 1, "decode": 1})), routing={"policy": "round_robin"})
    lengths = {"kind": "fixed", "prefill": 8000, "decode": 50}
    tree["workload"] |= {"requests": 2, "arrivals": {"kind": "static"}, "lengths": lengths}
    tree["cluster"]["topology"]["nic"] = "1Gbps"
    result = simulate(tree)
    table = result.table
    assert sorted(table.prefill_instance.tolist()) == [0, 1]
    assert sorted(table.decode_instance.tolist()) == [2, 3]
    assert not table.restarts.any()
    came_s = table.kv_arrived_ps.min() / PS_PER_S
    assert came_s > 9.0
    for pool in ("prefill", "decode"):
        _, drains, *later = counts(result, pool)
        assert drains == (2.0, 1, 0, 1)
        assert [at_s for at_s, *_ in later if at_s < came_s] == []


def test_a_planner_that_changes_nothing_changes_no_request() -> None:
    plain, watched = (simulate(configuration(planner)).table for planner in (None, scripted()))
    for name in ("scheduled_ps", "prefill_completed_ps", "kv_arrived_ps", "completed_ps", "decode_instance"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(watched, name))


def test_cost_and_idle_power_are_those_of_the_gpus_that_are_held() -> None:
    """One of two GPUs of each pool all the time: half of the price, and less energy by two GPUs that are ready."""
    prices = {"prices": {"gpu_hour": {"h200": 3.5}}}
    all_on = simulate(configuration(None, **prices)).summary
    half = simulate(configuration(scripted(pools=ONE_OF_EACH), **prices)).summary
    assert all_on.cost is not None
    assert half.cost is not None
    assert half.cost.gpus_per_hour == pytest.approx(2 * 3.5)
    assert all_on.cost.gpus_per_hour == pytest.approx(4 * 3.5)


@pytest.mark.parametrize(("weights", "per_s"), [("disk", 4e9), ("peers", 50e9)])
def test_weights_come_at_the_rate_of_the_disk_or_of_the_network(weights: str, per_s: float) -> None:
    """An idle network of 400 Gbps brings them at 50 GB/s but for microseconds; requests come later."""
    startup = {"engine_s": 1.0, "weights": weights, "disk_gbytes_per_s": 4.0}
    planner = scripted((1.0, {"prefill": 2}), pools=ONE_OF_EACH, startup=startup)
    late = {"kind": "varying", "rate": {"kind": "steps", "steps": [[8.0, 0.0], [10.0, 10.0]], "repeats": True}}
    tree = configuration(planner)
    tree["workload"]["arrivals"] = late
    result = simulate(tree)
    (started_s,) = [at_s for at_s, serving, *_ in counts(result, "prefill") if serving == 2][:1]
    assert started_s == pytest.approx(1.0 + WEIGHTS_BYTES / per_s + 1.0, rel=1e-4)
    found = planned(result)
    assert (found.weights_network_bytes, found.weights_disk_bytes) == (
        (WEIGHTS_BYTES, 0) if weights == "peers" else (0, WEIGHTS_BYTES)
    )


def test_a_role_switch_waits_until_the_instance_is_empty_and_loads_no_weights() -> None:
    """Two GPUs with one role each become two for decoding once the other has drained."""
    startup = {"engine_s": 60.0, "weights": "disk", "disk_gbytes_per_s": 1.0}
    pools = {"prefill": {"initial": 2}, "decode": {"initial": 1}}
    tree = configuration(scripted((2.0, {"prefill": 1, "decode": 2}), pools=pools, startup=startup, role_switch_s=0.5))
    for pool in tree["cluster"]["pools"]:
        pool["instances"] = 3
    result = simulate(tree)
    assert result.topology.gpus == 3
    (_, *before), (drained_s, *draining), (empty_s, *after) = counts(result, "prefill")
    assert (before, draining, after, drained_s) == ([2, 0, 0], [1, 0, 1], [1, 0, 0], 2.0)
    assert counts(result, "decode") == [(0.0, 1, 0, 0), (empty_s, 1, 1, 0), (pytest.approx(empty_s + 0.5), 2, 0, 0)]
    found = planned(result)
    assert [pool.switches for pool in found.pools] == [0, 1]
    assert (found.weights_disk_bytes, found.gpus, result.summary.gpus) == (0, 3, 3)
    assert found.gpu_hours == pytest.approx(found.all_gpu_hours)  # no GPU was off


instants = st.integers(1, 12).map(float)
plans = st.lists(
    st.tuples(instants, st.fixed_dictionaries({"prefill": st.integers(1, 2), "decode": st.integers(1, 2)})), max_size=6
).map(lambda found: sorted(found, key=lambda plan: plan[0]))
faults = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(("instance", "drain")),
            "instance": st.sampled_from(("prefill-0", "prefill-1", "prefill-2", "decode-0", "decode-1", "decode-2")),
            "at_s": st.floats(0.1, 12.0),
            "for_s": st.floats(0.1, 4.0),
        }
    ),
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(plans, faults, st.booleans(), st.sampled_from((None, 0.3)))
def test_scaling_and_switching_roles_lose_no_request_whatever_fails(
    plan: list[tuple[float, dict[str, int]]], failing: list[dict[str, Any]], from_peers: bool, switch_s: float | None
) -> None:
    """All requests complete, and nothing runs on an instance that is off or starting."""
    startup: dict[str, Any] = {"engine_s": 0.7}
    if from_peers:
        startup |= {"weights": "peers", "disk_gbytes_per_s": 20.0}
    pools = {"prefill": {"initial": 2}, "decode": {"initial": 1}}
    planner = scripted(*plan, startup=startup, role_switch_s=switch_s, pools=pools)
    recovery = {"requests": "recompute", "max_attempts": 100, "without_instance": "wait"}
    tree = configuration(planner, faults=failing, recovery=recovery)
    for pool in tree["cluster"]["pools"]:
        pool["instances"] = 3
    result = simulate(tree)
    assert result.summary.completed == result.summary.requests == 120
    assert planned(result).gpu_hours <= planned(result).all_gpu_hours * (1 + 1e-9)
    columns = result.iterations.columns()
    for each in result.summary.pools:
        assert 0.0 <= (each.busy_under_load or 0.0) <= 1.0 + 1e-9
    for pool in ("prefill", "decode"):
        _check_no_more_work_than_instances(result, pool, columns)


def _check_no_more_work_than_instances(result: Result, pool: str, columns: dict[str, Any]) -> None:
    """At any instant no more instances of a pool compute than serve or drain."""
    own = np.array([name.startswith(pool) for name in columns["instance"]])
    begins, ends = np.asarray(columns["start_s"])[own], np.asarray(columns["end_s"])[own]
    changes = [each for each in planned(result).counts if each.pool == pool]
    for begin_s in begins.tolist():
        busy = int(np.count_nonzero((begins <= begin_s) & (ends > begin_s)))
        assert busy <= _there(changes, begin_s)


def _there(changes: list[FleetCount], at_s: float) -> int:
    """Instances that serve or drain; before a change or after it, at its instant."""
    before = [each for each in changes if each.at_s <= at_s + 1e-9]
    at = [each.serving + each.draining for each in before if each.at_s >= at_s - 1e-9]
    return max([before[-1].serving + before[-1].draining, *at])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pools": {"other": {}}}, "planner.pools: found 'other', expected prefill or decode"),
        ({"pools": {"decode": {"min": 3}}}, "planner.pools.decode.min: found 3, expected at most the 2 instances"),
        ({"pools": {"decode": {"min": 2, "initial": 1}}}, "planner.pools.decode.initial: found 1, expected 2 to 2"),
        ({"role_switch_s": 1.0, "pools": {"decode": {}}}, r"expected a prefill and a decode pool with role_switch_s"),
        (
            {"role_switch_s": 1.0, "pools": {"prefill": {"min": 2}, "decode": {}}},
            "found min 3 in all",
        ),
        ({"startup": {"engine_s": 1, "weights": "disk"}}, "disk_gbytes_per_s: found weights disk, expected one"),
        ({"options": {"plans": [], "more": 1}}, "planner.options.more: unknown field"),
        ({"policy": "fast"}, "planner.policy: found 'fast', expected one of throughput, load"),
        ({"policy": "load", "options": {"up": 1}}, "planner.options.up: unknown field"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_field_and_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(configuration(scripted(**fields)))


def test_a_planner_of_ones_own_that_plans_for_no_pool_ends_in_one_line() -> None:
    with pytest.raises(InputError, match="Scripted: found pool 'decodes', expected prefill or decode"):
        simulate(configuration(scripted((0.0, {"decodes": 1}))))


def test_a_planner_of_ones_own_that_returns_no_plan_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "plan", lambda self, seen: None)
    with pytest.raises(InputError, match=r"Scripted: plan returned None, expected \{name of a pool: instances\}"):
        simulate(configuration(scripted((0.0, {"decode": 1}))))


def test_the_page_and_a_comparison_show_what_was_held(tmp_path: Path) -> None:
    """Against a fixed deployment of the same GPUs; a comparison of fixed ones has no such row."""
    results = {
        "fixed": simulate(configuration(None)),
        "planned": simulate(configuration(scripted((3.0, {"decode": 2}), pools=ONE_OF_EACH))),
    }
    for name, result in results.items():
        write_result(result, tmp_path / name)
    page = parse_page(tmp_path / "planned" / "report.html")
    assert "Instances over the load" in page.text
    assert "Instances over the load" not in (tmp_path / "fixed" / "report.html").read_text(encoding="utf-8")
    summaries = {name: read_summary(tmp_path / name / "summary.json") for name in results}
    assert summaries["planned"].planner == results["planned"].summary.planner
    (row,) = [row for row in compare_summaries(summaries) if row["metric"] == "GPU hours held"]
    assert row["values"]["fixed"] == pytest.approx(4 * results["fixed"].summary.makespan_s / 3600)
    assert row["values"]["planned"] == pytest.approx(planned(results["planned"]).gpu_hours)
    alone = compare_summaries({"fixed": summaries["fixed"]})
    assert "GPU hours held" not in [row["metric"] for row in alone]


@pytest.mark.parametrize(("scope", "restored"), [("rank", 0), ("server", 4096)])
def test_tiers_of_a_rank_go_with_its_instance_and_those_of_a_server_stay(scope: str, restored: int) -> None:
    """A prompt of 4,100 tokens on both instances, before one is switched off and after it has started again."""
    planner = scripted((3.0, {"server": 1}), (5.0, {"server": 2}), pools={"server": {}})
    pools = [small_runs.pool("server", "mixed", instances=2)]
    tiers = [{"kind": "cpu", "capacity": "100GB", "scope": scope}]
    workload = prompts([(at_s, 4100, range(9)) for at_s in (0.0, 0.0, 10.0, 10.0)])
    result = tiered_run(workload, tiers, pools=pools, planner=planner, routing={"policy": "round_robin"})
    assert [serving for _, serving, *_ in counts(result, "server")][-1] == 2
    table = result.table
    assert set(table.decode_instance[2:].tolist()) == {0, 1}
    assert table.cached_tokens[:2].tolist() == [0, 0]
    assert sorted(table.cached_tokens[2:].tolist()) == sorted([restored, 4096])
    assert sorted(table.tier_tokens[2:].tolist()) == sorted([restored, 0])
