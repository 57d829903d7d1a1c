"""The shipped kernel table: schema, provenance, and what happens without one."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from aicb.measurements.table import COLUMNS, SCHEMA_VERSION, KernelTable, measured_gpus, read_rows
from boundary.errors import InputError

HEADER = ",".join(COLUMNS)
RAW = Path(__file__).resolve().parents[4] / "shared" / "data" / "measured"


def row(**cells: str) -> str:
    return ",".join(cells.get(column, "") for column in COLUMNS)


def test_the_shipped_table_carries_its_provenance():
    table = KernelTable.load("h200")
    environment = table.provenance["environment"]
    assert table.provenance["schema_version"] == SCHEMA_VERSION
    assert len(table.rows) == table.provenance["rows"]
    assert environment["gpu"] == "NVIDIA H200"
    assert environment["driver"]
    assert set(table.provenance["timing"]) >= {"cold_us", "graph_us"}
    assert table.provenance["cautions"]


def test_every_column_of_the_header_is_documented_and_in_order():
    text = (files("aicb") / "data" / "h200" / "kernels.csv").read_text(encoding="utf-8")
    assert text.splitlines()[0] == HEADER


def test_a_gpu_without_measurements_is_refused_and_the_known_ones_named():
    with pytest.raises(InputError, match=r"gpu: found 'h100', expected one with measurements: h200"):
        KernelTable.load("h100")
    with pytest.raises(InputError, match=r"gpu: found '\.\./h200'"):
        KernelTable.load("../h200")
    assert "h200" in measured_gpus()


def test_launch_costs_are_those_of_the_probe():
    """As measured: null kernel 4.72 and 3.68 µs, graph node 0.904 and 0.855, eager launch 7.45 and 5.09."""
    launch = KernelTable("h200", KernelTable.load("h200").rows, {}).launch
    assert launch.event_floor_us == pytest.approx({"A": 4.72, "B": 3.68})
    assert launch.graph_node_us == pytest.approx((0.904 + 0.855) / 2, abs=1e-3)
    assert launch.eager_launch_us == pytest.approx((7.451 + 5.087) / 2, abs=2e-2)


def test_repeated_measurements_of_a_shape_merge_into_their_mean():
    lines = [
        HEADER,
        row(op="rms_norm", dtype="bf16", m="1", n="512", cold_us="5", graph_us="2", run="A"),
        row(op="rms_norm", dtype="bf16", m="1", n="512", cold_us="7", graph_us="3", run="B"),
        row(op="rms_norm", dtype="bf16", m="2", n="512", cold_us="9", run="B"),
    ]
    table = KernelTable("test", tuple(read_rows(lines, "t.csv")), {})
    merged, single = table.select("rms_norm", "bf16")
    assert (merged.cold_us, merged.graph_us) == (6.0, 2.5)
    assert (single.cold_us, single.graph_us) == (9.0, None)


def test_an_empty_cell_is_absent_and_not_zero():
    (only,) = read_rows([HEADER, row(op="gemm", dtype="fp8", m="1", n="128", k="128", cold_us="1e1")], "t.csv")
    assert only.cold_us == 10.0
    assert only.graph_us is None
    assert "heads" not in only.shape


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["op,m"], r"t.csv: header: found 'op,m', expected"),
        ([HEADER, row(op="gemm", m="many", cold_us="1")], r"t.csv:2: m: found 'many', expected a size"),
        ([HEADER, row(op="gemm", m="1")], r"t.csv:2: cold_us: found '', expected a time in us"),
        ([HEADER, row(op="gemm", m="1", cold_us="-3")], r"t.csv:2: cold_us: found '-3'"),
    ],
)
def test_a_malformed_table_is_named_by_file_line_and_field(lines, message):
    with pytest.raises(InputError, match=message):
        read_rows(lines, "t.csv")


def test_no_cold_time_is_below_the_graph_time_by_more_than_the_power_limit_explains():
    """Cold times contain the event floor; only sustained large kernels run slower in a graph (up to 1.15 x)."""
    for measured in KernelTable.load("h200").rows:
        if measured.graph_us is not None:
            assert measured.graph_us < 1.16 * measured.cold_us


def test_the_build_script_reproduces_the_shipped_table(tmp_path):
    if not RAW.is_dir():
        pytest.skip("the raw probe data are not beside the repository")
    root = Path(__file__).resolve().parents[3]
    script = root / "scripts" / "build_h200_table.py"
    subprocess.run([sys.executable, script, RAW, tmp_path], check=True, cwd=root, env={"PYTHONPATH": str(root)})
    shipped = files("aicb") / "data" / "h200"
    assert (tmp_path / "kernels.csv").read_bytes() == (shipped / "kernels.csv").read_bytes()
    assert json.loads((tmp_path / "provenance.json").read_text()) == json.loads(
        (shipped / "provenance.json").read_text(encoding="utf-8")
    )


def parquet_table(tmp_path, rows, **facts):
    """A copy of the shipped table with a second part."""
    shipped = files("aicb") / "data" / "h200"
    for name in ("kernels.csv", "provenance.json"):
        (tmp_path / name).write_bytes((shipped / name).read_bytes())
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), tmp_path / "more.parquet")
    facts = {"schema_version": SCHEMA_VERSION, **facts}
    (tmp_path / "more.provenance.json").write_text(json.dumps(facts), encoding="utf-8")
    return KernelTable.read(tmp_path, "h200")


MORE = {"op": "gemm", "kernel": "k", "dtype": "fp8", "run": "A", "graph_us": None, "note": "ignored"}


def test_a_later_part_replaces_shapes_and_adds_new_ones(tmp_path):
    """(4096, 7168) at m = 64 is in kernels.csv; the part measured it twice (11 and 13 µs), and m = 65 once."""
    shape = {"n": 4096, "k": 7168}
    rows = [{**MORE, **shape, "m": m, "cold_us": cold} for m, cold in ((64, 11.0), (64, 13.0), (65, 14.0))]
    table = parquet_table(tmp_path, rows, gpu="h200")
    only = KernelTable("h200", table.rows, {})
    before = {tuple(row.shape.items()) for row in only.select("gemm", "fp8")}
    after = {(row["m"], row["n"], row["k"]): row for row in table.select("gemm", "fp8")}
    assert len(after) == len(before) + 1
    assert after[64, 4096, 7168].cold_us == 12.0
    assert after[65, 4096, 7168].cold_us == 14.0
    assert after[65, 4096, 7168].run == "more/A"
    assert table.parts[0].provenance["gpu"] == "h200"


def test_a_part_of_another_schema_or_without_provenance_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"more\.provenance\.json: schema_version: found 9, expected one of"):
        parquet_table(tmp_path, [{**MORE, "cold_us": 1.0}], schema_version=9)
    (tmp_path / "more.provenance.json").unlink()
    with pytest.raises(InputError, match=r"more\.provenance\.json: file: found none"):
        KernelTable.read(tmp_path, "h200")


def test_a_part_without_a_needed_column_is_refused(tmp_path):
    table = parquet_table(tmp_path, [{"op": "gemm", "kernel": "k", "dtype": "fp8", "run": "A", "cold_us": 1.0}])
    with pytest.raises(InputError, match=r"more\.parquet: columns: found none named graph_us"):
        table.select("gemm")


def test_pyarrow_is_not_imported_for_tables_without_parquet_parts():
    code = "import sys; from aicb.measurements.table import KernelTable; t = KernelTable.load('h200')\n"
    code += "assert t.parts or (t.select('gemm') and 'pyarrow' not in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
