"""What holds in every run of any configuration."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.integration.random_configurations import Scenario
from tests.integration.test_accounts import check_parts
from tests.integration.test_fault_invariants import (
    check_every_request_has_an_end,
    check_iterations,
    check_kv_bytes,
    check_nothing_was_given_up_for_want_of_events,
    check_the_order_of_stamps,
)
from tests.integration.test_streaming import as_text
from vidur_pd.config import SimulationConfig
from vidur_pd.metrics import records
from vidur_pd.metrics.links import USE
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.stream import ParquetStream, arrow_table
from vidur_pd.metrics.summary import Effort, Summary
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import SimulationState, assemble
from vidur_pd.workload import Workload

SHARES: Final = {"p50": Decimal("0.5"), "p90": Decimal("0.9"), "p99": Decimal("0.99")}


def assembled(config: SimulationConfig, workload: Workload) -> SimulationState:
    hashes = workload.block_hashes
    return assemble(plan_simulation(config, None if hashes is None else hashes.block_tokens))


def simulate(config: SimulationConfig, workload: Workload, stream: ParquetStream | None = None) -> Result:
    state = assembled(config, workload)
    with closing(state.network):
        return Simulation(state, workload).run(stream=stream)


def check_run(result: Result) -> None:
    """Everything that can be seen in one result."""
    check_every_request_has_an_end(result, len(result.workload))
    check_rows_are_the_workload(result)
    check_the_order_of_stamps(result)
    check_parts(result)
    check_kv_bytes(result)
    check_iterations(result)
    check_nothing_was_given_up_for_want_of_events(result)
    check_summary(result)
    check_link_use(result)
    check_flows(result)


def rows_of(result: Result) -> list[dict[str, str]]:
    """What ``requests.csv`` says."""
    return list(csv.DictReader("".join(requests_csv(result.table)).splitlines()))


def check_rows_are_the_workload(result: Result) -> None:
    """One row for each request of the workload, in its order, with its tokens."""
    rows, workload = rows_of(result), result.workload
    assert [row["request_id"] for row in rows] == list(workload.request_ids)
    assert [int(row["prefill_tokens"]) for row in rows] == workload.prefill_tokens.tolist()
    assert [int(row["decode_tokens"]) for row in rows] == workload.decode_tokens.tolist()
    assert [Decimal(row["arrived_at_s"]) * 10**12 for row in rows] == workload.arrived_ps.tolist()


def check_summary(result: Result) -> None:
    """Counts, means and percentiles are those of the rows, computed in exact decimals."""
    rows, summary = rows_of(result), result.summary
    ends = Counter(row["status"].partition(":")[0] for row in rows)
    assert {name: getattr(summary, name) for name in ("completed", "rejected", "failed")} == {
        name: ends[name] for name in ("completed", "rejected", "failed")
    }
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        values = sorted(Decimal(row[metric]) for row in rows if row[metric])
        for name, found in dataclasses.asdict(getattr(summary, metric)).items():
            if not values:
                assert found is None
                continue
            expected = sum(values) / len(values) if name == "mean" else quantile(values, SHARES[name])
            assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-15), (metric, name)
    assert summary.preemptions == sum(int(row["preemptions"]) for row in rows)


def quantile(ordered: list[Decimal], share: Decimal) -> Decimal:
    """Linear between order statistics."""
    exact = share * (len(ordered) - 1)
    below = int(exact)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (exact - below) * (ordered[above] - ordered[below])


def link_use(result: Result) -> NDArray[np.float64]:
    """[links and windows with traffic that was simulated] bytes of all that shares the link, over what it can carry."""
    table = pd.DataFrame(result.link_columns())
    windows = table[table["measure"] == USE].groupby(["link", "window_start_s"])
    sums = windows.agg({"carried_bytes": "sum", "capacity_bytes": "first"})
    return (sums["carried_bytes"] / sums["capacity_bytes"]).to_numpy()


def check_link_use(result: Result) -> None:
    """No link carries more than it can in any window."""
    assert link_use(result).max(initial=0) <= 1 + 1e-9
    table = pd.DataFrame(result.link_columns())
    is_simulated = (table["measure"] == USE).groupby([table["link"], table["window_start_s"]]).transform("all")
    assert (table.loc[is_simulated, "burst_use"] <= 1 + 1e-9).all()


def check_flows(result: Result) -> None:
    """Where nothing fails, flows carry the bytes that rows state, and no request's KV is there before its last flow, or
    before the end of its prefill where layers travel ahead."""
    if result.config.faults:
        return
    flows = pd.DataFrame(result.flow_columns())
    assert flows["size_bytes"].sum() == sum(int(row["pd_p2p_comm_bytes"] or 0) for row in rows_of(result))
    assert (flows["end_ps"] > flows["start_ps"]).all()
    ends = [
        (each.kv_arrived_ps, each.prefill_completed_ps) for each in result.requests if each.kv_arrived_ps is not None
    ]
    if not ends:
        assert flows.empty
        return
    arrived_ps, prefilled_ps = max(ends)
    assert flows["end_ps"].max() == arrived_ps or flows["end_ps"].max() < arrived_ps == prefilled_ps


def check_stream(result: Result, folder: Path) -> None:
    """Rows, iterations and summary of a streamed run are those of this one."""
    with (
        patch.object(ParquetStream, "requests_at_once", 16),
        patch.object(records, "ITERATIONS_AT_ONCE", 100),
        ParquetStream(folder, with_iterations=result.config.output.iterations) as stream,
    ):
        output = result.config.output.model_copy(update={"flows": False})  # which a stream refuses
        streamed = simulate(result.config.model_copy(update={"output": output}), result.workload, stream)
    assert _summary(streamed) == _summary(result)
    table = pq.read_table(folder / "requests.parquet")
    rows = pd.DataFrame({name: table[name].to_pylist() for name in table.column_names}, dtype=object)
    by_id = {row["request_id"]: row for row in as_text(rows)}
    assert len(by_id) == len(rows)
    assert [by_id[name] for name in result.workload.request_ids] == rows_of(result)
    if result.config.output.iterations:
        assert pq.read_table(folder / "iterations.parquet").equals(arrow_table(result.iterations.columns()))


def _summary(result: Result) -> Summary:
    return dataclasses.replace(result.summary, simulator=Effort())


def run_scenario(scenario: Scenario, folder: Path) -> Result:
    return simulate(*scenario.load(folder))
