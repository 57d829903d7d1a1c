"""``vidur-pd run --stream``: rows go to files while the simulation runs, and nothing else changes."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boundary.errors import InputError
from boundary.result_record import RECORD_FILE
from tests.integration.test_command_line import read_rows, vidur_pd, write_config
from vidur_pd.metrics import records
from vidur_pd.metrics.quantities import exact_sum
from vidur_pd.metrics.request_figures import OPTIONAL_COLUMNS, REQUEST_COLUMNS
from vidur_pd.metrics.stream import ParquetStream
from vidur_pd.report import comparison_table, load, write_comparison, write_report
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.api import prepare
from vidur_pd.simulation.output import stream_result, write_result
from vidur_pd.workload import Workload

from .small_runs import NO_HOST, config, pool

POOLS = {
    "mixed": [pool("m", "mixed", instances=2)],
    "disaggregated": [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)],
}


def workload(requests: int) -> Workload:
    """Prompts and outputs of many lengths, all within seconds; one request in 20 is too long for Qwen3-8B."""
    number = np.arange(requests)
    return Workload(
        request_ids=tuple(f"r{index}" for index in range(requests)),
        arrived_ps=number * 20 * 10**9,
        prefill_tokens=np.where(number % 20 == 7, 50_000, 50 + 997 * number % 2000),
        decode_tokens=1 + 31 * number % 60,
    )


def simulation(pools: str, requests: int = 120, **output: Any) -> Simulation:
    """Without the host, which hands a last token out once it has launched the next iteration."""
    tree = config(POOLS[pools], output={"iterations": True, **output}, engine=NO_HOST)
    return prepare(tree, workload(requests))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetStream, "requests_at_once", 16)
    monkeypatch.setattr(records, "ITERATIONS_AT_ONCE", 100)


def summary_of(folder: Path) -> dict[str, Any]:
    """Without what simulating took."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    del summary["simulator"]
    return summary


def seconds_text(duration_ps: int | None) -> str:
    """Exact decimal seconds."""
    return "" if duration_ps is None else format(Decimal(duration_ps).scaleb(-12).normalize(), "f")


def as_text(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Rows of ``requests.parquet`` as ``requests.csv`` has them: exact seconds, from the integer columns."""
    columns = [column for column in (*REQUEST_COLUMNS, *OPTIONAL_COLUMNS) if column.name in rows]
    found, exact = [], [column.name for column in columns if column.is_exact]
    for row in rows.to_dict("records"):
        exact_ps = {name: row[name.removesuffix("_s") + "_ps"] for name in exact}
        first_ps, arrived_ps = exact_ps["first_token_at_s"], exact_ps["arrived_at_s"]
        is_completed = row["status"] == "completed"
        exact_ps["ttft_s"] = first_ps - arrived_ps if is_completed else None
        exact_ps["e2e_s"] = exact_ps["completed_at_s"] - arrived_ps if is_completed else None
        received_ps = exact_ps["kv_arrived_at_s"]
        is_sent = received_ps is not None
        exact_ps["pd_p2p_comm_time_s"] = received_ps - exact_ps["kv_sent_at_s"] if is_sent else None
        exact_ps["kv_exposed_s"] = max(0, received_ps - exact_ps["prefill_completed_at_s"]) if is_sent else None
        for name, value_ps in exact_ps.items():
            expected = None if value_ps is None else value_ps / 10**12
            assert row[name] == expected, (name, row[name], expected)
        texts = {name: "" if value is None else str(value) for name, value in row.items() if not name.endswith("_ps")}
        found.append(texts | {name: seconds_text(value_ps) for name, value_ps in exact_ps.items()})
    return found


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("pools", POOLS)
def test_a_streamed_run_has_the_rows_and_figures_of_one_that_is_written_at_the_end(tmp_path: Path, pools: str) -> None:
    stream_result(simulation(pools), tmp_path / "streamed")
    write_result(simulation(pools).run(), tmp_path / "whole")
    assert summary_of(tmp_path / "streamed") == summary_of(tmp_path / "whole")

    file = pq.ParquetFile(tmp_path / "streamed" / "requests.parquet")
    assert file.num_row_groups > 3
    table = file.read()
    rows = pd.DataFrame({name: table[name].to_pylist() for name in table.column_names}, dtype=object)
    whole = read_rows(tmp_path / "whole")
    assert [name for name in table.column_names if not name.endswith("_ps")] == list(whole[0])
    assert Counter(row["status"].split(":")[0] for row in whole) == {"completed": 114, "rejected": 6}
    by_id = {row["request_id"]: row for row in as_text(rows)}
    assert [by_id[row["request_id"]] for row in whole] == whole
    assert len(rows) == len(whole)
    ends = [value for value in rows["completed_at_ps"] if value is not None]
    assert ends == sorted(ends)

    iterations = [pd.read_parquet(tmp_path / name / "iterations.parquet") for name in ("streamed", "whole")]
    assert pq.ParquetFile(tmp_path / "streamed" / "iterations.parquet").num_row_groups > 1
    pd.testing.assert_frame_equal(*iterations)


@pytest.mark.usefixtures("small_groups")
def test_rows_are_on_disk_long_before_the_end_also_where_nothing_interrupts_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests arrive at once at instances without a network: after that the loop could run to the end."""
    monkeypatch.setattr(records, "LOOK_EVERY_PS", 10**11)
    at_once = Workload(
        request_ids=tuple(map(str, range(100))),
        arrived_ps=np.zeros(100, dtype=np.int64),
        prefill_tokens=np.full(100, 3000),
        decode_tokens=np.arange(1, 101),
    )
    tree = config([pool("m", "mixed")], output={"iterations": False}, engine={"max_seqs": 8})
    stream_result(prepare(tree, at_once), tmp_path / "out")
    assert pq.ParquetFile(tmp_path / "out" / "requests.parquet").num_row_groups >= 5
    assert not (tmp_path / "out" / "iterations.parquet").exists()


def test_the_report_reads_streamed_requests(tmp_path: Path) -> None:
    stream_result(simulation("disaggregated"), tmp_path / "streamed")
    write_result(simulation("disaggregated").run(), tmp_path / "whole")
    assert not (tmp_path / "streamed" / "requests.csv").exists()
    pages = [
        write_report(tmp_path / name, title="run", path=tmp_path / f"{name}.html") for name in ("streamed", "whole")
    ]
    texts = [page.read_text() for page in pages]
    for name, section in (("streamed", texts[0]), ("whole", texts[1])):
        assert "TTFT over the run" in section, name
        assert "rejected" in section, name
    folders = [tmp_path / "streamed", tmp_path / "whole"]
    assert "<html" in write_comparison(folders, tmp_path / "both.html").read_text()[:2000]
    latencies = [row for row in comparison_table(folders) if row["metric"].startswith(("TTFT", "TPOT", "E2E"))]
    assert len(latencies) > 3
    assert {change for row in latencies for change in row["changes_percent"].values()} == {0.0}


def test_the_command_line_streams_and_replaces_an_earlier_result_as_a_whole(tmp_path: Path) -> None:
    path = write_config(tmp_path, output={})
    assert vidur_pd("run", path, "-o", tmp_path / "out", "--quiet").returncode == 0
    rows = read_rows(tmp_path / "out")
    finished = vidur_pd("run", path, "-o", tmp_path / "out", "--stream", "--json")
    assert finished.returncode == 0, finished.stderr
    tables = {"requests.parquet", "attribution.parquet", "iterations.parquet", "links.parquet"}
    written = {*tables, "summary.json", "config.yaml", "report.html"}
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {*written, RECORD_FILE}
    assert json.loads(finished.stdout) == json.loads((tmp_path / "out" / "summary.json").read_text())
    streamed = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert sorted(streamed["request_id"]) == sorted(row["request_id"] for row in rows)


@pytest.mark.parametrize("field", ["trace", "flows"])
def test_a_file_that_needs_everything_at_once_is_refused_with_stream(tmp_path: Path, field: str) -> None:
    with pytest.raises(InputError, match=f"output.{field}: found true with --stream, expected false"):
        stream_result(simulation("mixed", **{field: True}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_groups")
def test_a_run_that_fails_leaves_the_earlier_result_and_nothing_else(tmp_path: Path) -> None:
    write_result(simulation("mixed", requests=3).run(), tmp_path / "out")
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}

    def interrupt(done: int, total: int, simulated_s: float) -> None:
        if done > 50:
            assert list((tmp_path / "out").glob(".vidur-pd-*/requests.parquet"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream_result(simulation("disaggregated"), tmp_path / "out", interrupt)
    assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_sums_of_a_million_times_are_exact() -> None:
    """10^6 · 2^62 needs 82 bits."""
    values = np.full(10**6, 2**62 - 1, dtype=np.int64)
    assert exact_sum(values) == 10**6 * (2**62 - 1)
    assert exact_sum(np.array([-3, 1], dtype=np.int64)) == -2


def test_streamed_requests_that_cannot_be_read_are_named_in_one_line(tmp_path: Path) -> None:
    stream_result(simulation("mixed", requests=3), tmp_path / "out")
    path = tmp_path / "out" / "requests.parquet"
    table = pq.read_table(path)
    words = pa.array(["soon", "later", "never"])
    for damaged, names in (
        (table.drop_columns(["ttft_s"]), ("column ttft_s", "missing")),
        (table.set_column(1, "arrived_at_s", words), ("requests.parquet", "cannot be read")),
    ):
        pq.write_table(damaged, path)
        with pytest.raises(InputError) as raised:
            write_report(tmp_path / "out")
        assert all(name in str(raised.value) for name in names), str(raised.value)
        assert "\n" not in str(raised.value)


def test_charts_of_too_many_iterations_are_left_out_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_result(simulation("mixed", requests=20), tmp_path / "out")
    assert "left out: of" not in (tmp_path / "out" / "report.html").read_text()
    monkeypatch.setattr(load, "MOST_ITERATIONS", 10)
    page = write_report(tmp_path / "out").read_text()
    rows = pq.ParquetFile(tmp_path / "out" / "iterations.parquet").metadata.num_rows
    assert f"The breakdown of iterations left out: of {rows:,} iterations" in page
