"""Ids of requests come back from the tables as they went in."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from boundary.errors import InputError
from boundary.plain_text import MOST_NAME_CHARACTERS
from netsim import Topology
from netsim.topology import CableTable, NodeKind
from vidur_pd.report import write_report
from vidur_pd.simulation.api import prepare, simulate
from vidur_pd.simulation.output import stream_result, write_result
from vidur_pd.workload import Workload, read_trace
from vidur_pd.workload.writing import write_trace

from .small_runs import config, pool

IDS = ("a,b", '"', '"a"', "'", " a ", "a b", ";", "=1+1", "NA", "nan", "1e5", "007", "null", "#", "\\N", "é", "日本")
IDS += ("😀", "\ufeff", "\u00a0", "e\u0301", "</script>", "x" * MOST_NAME_CHARACTERS, "-", "0")
NONE = np.array([], dtype=np.int64)
NO_CABLES = CableTable(NONE.astype(np.int32), NONE.astype(np.int32), NONE, NONE, NONE.astype(np.int8))


def workload(ids: tuple[str, ...]) -> Workload:
    ones = np.ones(len(ids), dtype=np.int64)
    return Workload(ids, np.arange(len(ids)) * 10**9, 50 * ones, ones)


def test_ids_are_read_back_as_they_were_given(tmp_path: Path) -> None:
    tree = config([pool("m", "mixed")], engine={"estimator": "roofline"})
    write_result(simulate(tree, workload(IDS)), tmp_path)
    path = tmp_path / "requests.csv"
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["request_id"] for row in csv.DictReader(file)] == list(IDS)
    read = pd.read_csv(path, dtype={"request_id": str}, keep_default_na=False)
    assert read["request_id"].tolist() == list(IDS)
    as_text = pyarrow.csv.ConvertOptions(column_types={"request_id": pa.string()})
    assert pyarrow.csv.read_csv(path, convert_options=as_text)["request_id"].to_pylist() == list(IDS)
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(IDS) + 1
    stream_result(prepare(tree, workload(IDS)), tmp_path)
    assert pq.read_table(tmp_path / "requests.parquet")["request_id"].to_pylist() == list(IDS)
    assert write_report(tmp_path).exists()


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_traces_keep_ids(tmp_path: Path, name: str) -> None:
    write_trace(workload(IDS), tmp_path / name)
    assert read_trace(tmp_path / name).workload.request_ids == IDS


def test_an_id_in_a_csv_trace_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'request_id,arrived_at_s,prefill_tokens,decode_tokens\na,0,1,1\n"b\rc",1,1,1\n')
    with pytest.raises(InputError, match=r"t\.csv: line \d: request_id: found the character U\+000D"):
        read_trace(path)


@pytest.mark.parametrize("name", ["a\rb", "\ud800", "x" * 2000])
def test_names_that_no_table_can_hold_are_refused_also_without_a_file(name: str) -> None:
    with pytest.raises(InputError, match="request_id of request 1: found"):
        workload(("a", name))
    with pytest.raises(InputError, match=r"Topology\.node_name of node 1: found"):
        Topology.from_table([NodeKind.GPU] * 2, ["a", name], NO_CABLES, gpus_per_node=1)
