import csv
from pathlib import Path

import pytest

from simccl import plan_collective
from simccl.formats.flow_model_csv import HEADER, write_flow_model_csv
from tests.simccl.communicators import spread


@pytest.mark.parametrize(
    ("op", "nodes", "algorithm", "number", "connection"),
    [
        ("all_reduce", 1, "ring", "1", "RING"),
        ("all_reduce", 1, "tree", "0", "TREE_INIT"),
        ("all_reduce", 1, "nvls", "4", "NVLS"),
        ("all_reduce", 2, "nvls_tree", "5", "NVLS_TREE"),
        ("all_to_all", 2, None, "-1", "PTP"),
    ],
)
def test_flows_are_written_in_simccls_columns(
    op: str, nodes: int, algorithm: str | None, number: str, connection: str, tmp_path: Path
) -> None:
    """Every flow once, bytes in all, parents that exist, and as ``prev_flow_ids`` the ranks that the parents left."""
    plan = plan_collective(op, 1_000_003, spread(nodes, 4), algorithm=algorithm)
    file = tmp_path / "f.csv"
    write_flow_model_csv(plan, file)
    assert file.read_text().splitlines()[0] == HEADER
    with file.open() as text:
        rows = list(csv.DictReader(text))
    assert [int(row["flow_id"]) for row in rows] == list(range(len(plan)))
    assert sum(int(row["flow_size"]) for row in rows) == plan.flows.payload_bytes.sum()
    assert {row["algorithm"] for row in rows} == {number}
    assert {row["conn_type"] for row in rows} == {connection}
    assert all(int(row["chunk_id"]) < int(row["chunk_count"]) for row in rows)
    for row in rows:
        parents = [rows[int(flow)] for flow in row["parent_flow_ids"].split(";") if flow]
        assert not connection.startswith(("RING", "TREE")) or {parent["dest"] for parent in parents} <= {row["src"]}
        assert sorted({int(p["src"]) for p in parents}) == [int(r) for r in row["prev_flow_ids"].split(";") if r]


def test_a_plan_without_flows_is_a_header(tmp_path: Path) -> None:
    write_flow_model_csv(plan_collective("all_reduce", 0, spread(1, 4)), tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_text() == HEADER + "\n"
