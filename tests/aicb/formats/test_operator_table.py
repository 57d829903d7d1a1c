"""``aicb predict``: tables in, tables out."""

import csv
import io
import json
import subprocess

import pytest
from typer.testing import CliRunner

from aicb.__main__ import app
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.formats.operator_table import RowReader, parse, predict
from aicb.kernels.elementwise import KERNELS, Elementwise
from aicb.kernels.fitting.estimate import UnmeasuredShape
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.mla_decode import MlaDecode
from aicb.measurements.gpu import get_gpu
from aicb.measurements.table import KernelTable
from aicb.model.precision import Precision
from boundary.errors import InputError
from tests.forked_commands import run_forked

GRAPH = InterpolationEstimator(get_gpu("h200"), Precision(state="fp32"), "graph")


def work(**cells: str):
    return parse(RowReader(cells, "in.csv:2"))


def run(*arguments: str) -> subprocess.CompletedProcess:
    return run_forked("aicb", "predict", *arguments)


def predict_file(tmp_path, text: str, *options: str) -> list[dict[str, str]]:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(text)
    arguments = ["predict", "--gpu", "h200", "--table", str(source), "-o", str(target), *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(target.read_text())))


def test_the_measured_table_predicts_itself(tmp_path):
    """Every thirtieth row of equal lengths or experts comes back as its graph time, or its cold time if it has none.

    Elementwise kernels, of which the table holds several implementations, and query tokens that share KV tiles, which
    count as heads, do not.
    """
    ops = ("gemm", "bmm", "grouped_gemm_masked", "grouped_gemm_contiguous", "prefill_attention", "decode_attention")
    measured = [row for op in ops for row in KernelTable.load("h200").select(op, distribution="even")[::30]]
    measured = [row for row in measured if not (row.op.startswith("grouped") and row.dtype == "bf16")]
    columns = sorted({name for row in measured for name in row.shape})
    lines = [",".join((row.op, row.dtype, *(str(row.shape.get(name, "")) for name in columns))) for row in measured]
    rows = predict_file(tmp_path, "\n".join((f"op,dtype,{','.join(columns)}", *lines)) + "\n")
    assert len(rows) > 150
    for row, source in zip(rows, measured, strict=True):
        assert float(row["time_us"]) == pytest.approx(source.graph_us or source.cold_us, rel=1e-9), row
        assert row["is_estimate"] == "false"


def test_input_columns_are_carried_through_and_four_are_added(tmp_path):
    rows = predict_file(tmp_path, "id,op,m,n,k,dtype\nx,gemm,64,4096,7168,fp8\ny,gemm,1e2,4096,7168.0,fp8\n")
    assert list(rows[0]) == ["id", "op", "m", "n", "k", "dtype", "time_us", "is_estimate", "source", "relative_error"]
    assert [row["id"] for row in rows] == ["x", "y"]
    assert rows[0]["source"].startswith("measured")
    assert rows[1]["source"].startswith("interpolated")


def test_cold_graph_and_engine_times_are_told_apart(tmp_path):
    text = "op,m,n,k,dtype\ngemm,64,24576,1536,fp8\n"
    graph, engine, cold = (
        float(predict_file(tmp_path, text, "--timing", timing)[0]["time_us"]) for timing in ("graph", "engine", "cold")
    )
    assert (graph, cold) == pytest.approx((10.1, 18.9), abs=0.1)
    assert graph < engine < cold


def test_names_of_the_probe_are_understood():
    assert work(op="fp8_gemm_nt", dtype="fp8_1x128_128x128", m="8", n="128", k="256") == work(
        op="gemm", dtype="fp8", m="8.0", n="128", k="256"
    )


def test_grouped_rows_follow_from_the_mean_per_expert():
    """Mean 0.25 rows on 256 experts are 64 rows, which keep at most 64 experts busy."""
    found = work(op="grouped_gemm_masked", dtype="fp8", m="0.25", groups="256", n="4096", k="7168")
    assert found == GroupedGemm(64.0, 256, 64.0, 4096, 7168, "fp8", "masked")


def test_lengths_may_differ_within_a_batch():
    found = work(op="mla_decode", kv_len="100;2000;30", heads="16")
    assert isinstance(found, MlaDecode)
    assert found.kv_tokens.tolist() == [100, 2000, 30]
    assert work(op="mla_decode", kv_len="7", heads="16", batch="3", q_len="2").heads == 32


SHORTEST = pytest.param(
    "delta_clear", marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason="0.99 us: it only writes")
)


@pytest.mark.parametrize("kernel", [*(name for name in KERNELS if name != "delta_clear"), SHORTEST])
def test_every_elementwise_kernel_has_a_price(kernel):
    found = work(op=kernel, m="16", n="4096", bytes="1e5")
    assert isinstance(found, Elementwise)
    assert GRAPH.price(found).time_us > 1


def test_equal_rows_are_priced_once():
    class Counting:
        calls = 0

        def price(self, work):
            self.calls += 1
            return GRAPH.price(work)

    counting = Counting()
    predict(["op,m,n,k,dtype", *["gemm,64,4096,7168,fp8"] * 5], counting, "in.csv")
    assert counting.calls == 1


HEADER = "op,m,n,k,dtype,batch,q_len,kv_len,heads,kv_heads,d_qk,d_v,groups,active_groups"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n\n1,2\n", r"in\.csv:1: header: found 'm,n' without op"),
        ("", r"in\.csv:1: header: found '' without op"),
        ("op,time_us\ngemm,3\n", r"in\.csv:1: header: found time_us, expected no column that prediction adds"),
        ("op,m\nconvolution,3\n", r"in\.csv:2: op: found 'convolution', expected one of bmm"),
        ("op,m,n,k,dtype\ngemm,,4096,7168,fp8\n", r"in\.csv:2: m: found '', expected a positive integer"),
        ("op,m,n,k,dtype\ngemm,1.5,4096,7168,fp8\n", r"in\.csv:2: m: found '1\.5', expected a positive integer"),
        ("op,m,n,k,dtype\ngemm,nan,4096,7168,fp8\n", r"in\.csv:2: m: found 'nan', expected a positive integer"),
        ("op,m,n,k,dtype\ngemm,inf,4096,7168,fp8\n", r"in\.csv:2: m: found 'inf', expected a positive integer"),
        ("op,m,n,k,dtype\ngemm,1,1,1,bf16\ngemm,1,1,1,int4\n", r"in\.csv:3: dtype: found 'int4', expected bf16 or fp8"),
        ("op,m,n,k,dtype\ngemm,1,1,1\n", r"in\.csv:2: found 4 cells, expected 5"),
        ("op,m,n,k,dtype\ngemm,1,1,1,fp8,9\n", r"in\.csv:2: found 6 cells, expected 5"),
        (
            f"{HEADER}\nprefill_attention,,,,,1,64,32,8,8,128,128,,\n",
            r"in\.csv:2: kv_len: found '32', expected as many",
        ),
        (f"{HEADER}\ndecode_attention,,,,,3,,5;6,8,8,128,,,\n", r"in\.csv:2: kv_len: found '5;6', expected 3 lengths"),
        (f"{HEADER}\ngrouped_gemm_masked,4,128,128,fp8,,,,,,,,8,9\n", r"in\.csv:2: active_groups: found '9'"),
        ("op,bytes\nadd,\n", r"in\.csv:2: bytes: found '', expected a positive number"),
    ],
)
def test_a_bad_row_is_named_by_line_field_found_and_expected(text, message):
    with pytest.raises(InputError, match=message) as caught:
        predict(text.splitlines(), GRAPH, "in.csv")
    assert "\n" not in str(caught.value)


def test_bad_input_ends_with_one_line_and_code_2_and_leaves_the_output_alone(tmp_path):
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("op,m\ngemm,x\n")
    target.write_text("kept")
    result = run("--gpu", "h200", "--table", str(source), "-o", str(target))
    assert result.returncode == 2
    assert result.stderr == f"aicb: {source}:2: m: found 'x', expected a positive integer, 1 to 2147483647\n"
    assert target.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h300", "--table", "t.csv", "-o", "o.csv"], "gpu: found 'h300', expected one of"),
        (
            ["--gpu", "h100", "--table", "t.csv", "-o", "o.csv", "--estimator", "interpolation"],
            "gpu: found 'h100', expected one with measurements",
        ),
        (["--gpu", "h200", "--table", "missing.csv", "-o", "o.csv"], "missing.csv: found no such file"),
        (["--gpu", "h200", "--table", "t.csv", "-o", "no/such/o.csv"], "o.csv: found no folder"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("op,m,n\nrms_norm,1,512\n")
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, ["predict", *arguments], catch_exceptions=False)


def test_a_missing_measurement_fails_on_request_and_names_the_nearest(tmp_path):
    text = "op,m,n,k,dtype\ngemm,64,4096,7168,fp8\ngemm,64,32,32,fp8\n"
    assert [row["is_estimate"] for row in predict_file(tmp_path, text)] == ["false", "true"]
    with pytest.raises(UnmeasuredShape, match=r"row 2: estimate: .*nearest measured"):
        predict_file(tmp_path, text, "--measured-only")


def test_the_summary_is_available_as_json(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("op,m,n,k,dtype\ngemm,64,32,32,fp8\n")
    arguments = ["predict", "--gpu", "h200", "--table", str(source), "-o", str(tmp_path / "o.csv"), "--json"]
    summary = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert summary == {"rows": 1, "estimates": 1, "output": str(tmp_path / "o.csv")}


def test_the_bare_roofline_prices_gpus_without_measurements(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("op,m,n,k,dtype\ngemm,8192,8192,8192,bf16\n")
    arguments = ["predict", "--gpu", "b200", "--table", str(source), "-o", str(tmp_path / "o.csv")]
    CliRunner().invoke(app, [*arguments, "--estimator", "roofline"], catch_exceptions=False)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "o.csv").read_text()))
    assert row["is_estimate"] == "true"
    assert float(row["time_us"]) == pytest.approx(2 * 8192**3 / (0.7 * 2250e12) * 1e6 + 2, rel=1e-6)


def test_a_folder_is_no_output(tmp_path):
    (tmp_path / "t.csv").write_text("op,m,n\nrms_norm,1,512\n")
    finished = run("--gpu", "h200", "--table", str(tmp_path / "t.csv"), "-o", str(tmp_path))
    assert finished.returncode == 2
    assert finished.stderr == f"aicb: {tmp_path}: found a folder, expected the name of a file to write\n"


def test_gpus_without_a_table_are_transferred_and_flagged(tmp_path):
    (tmp_path / "t.csv").write_text("op,m,n,k,dtype\ngemm,64,4096,4096,bf16\n")
    finished = run("--gpu", "h100", "--table", str(tmp_path / "t.csv"), "-o", str(tmp_path / "o.csv"))
    assert finished.returncode == 0, finished.stderr
    (row,) = csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    assert row["is_estimate"] == "true"
    assert row["source"].startswith("estimate: transferred from h200")
