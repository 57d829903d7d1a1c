import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from netsim.__main__ import app as netsim_app
from simccl import collective_time, plan_collective
from simccl.__main__ import app, main
from tests.simccl.communicators import run_on_idle, spread

TABLE = "op,bytes,ranks,nodes,gpu\nall_reduce,8192,8,1,h100\n\nall_gather,1048576,16,2,h100\n"


PLANNED = ("verify", "--bytes", "1MiB", "--ranks", "8", "--op")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_time_prints_the_closed_form_as_json() -> None:
    found = json.loads(run("time", "--op", "all_reduce", "--bytes", "1MiB", "--ranks", "8", "--gpu", "h100", "--json"))
    expected = collective_time("all_reduce", 1 << 20, spread(1, 8))
    assert found["time_us"] == pytest.approx(expected.time_ps / 1e6, abs=1e-6)
    assert (found["algorithm"], found["protocol"], found["channels"]) == ("ring", "ll", 24)


def test_time_prices_a_table_and_keeps_other_columns(tmp_path: Path) -> None:
    source, destination = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("name,op,bytes,ranks,nodes,gpu\na,all_reduce,8192,8,1,h20\nb,all_to_all,0,16,2,b200\n")
    run("time", "--table", str(source), "-o", str(destination))
    with destination.open() as file:
        rows = list(csv.DictReader(file))
    added = ["time_us", "algorithm", "protocol", "channels"]
    assert list(rows[0]) == ["name", "op", "bytes", "ranks", "nodes", "gpu", *added]
    assert rows[0]["name"] == "a"
    assert float(rows[0]["time_us"]) == pytest.approx(15.10, abs=0.005)
    assert (rows[1]["time_us"], rows[1]["algorithm"], rows[1]["channels"]) == ("0.000000", "none", "0")
    assert sorted(tmp_path.iterdir()) == [source, destination]


@pytest.mark.parametrize(
    "table",
    [
        "\ufeffop,bytes,ranks,nodes,gpu\nall_reduce,1MiB,8,1,h100\n",
        '\ufeff"op","bytes","ranks","nodes","gpu"\r\n"all_reduce","1048576","8","1"," H100 "\r\n',
        "op, bytes ,ranks,nodes,gpu\nall_reduce, 1 MiB,8,1,h100\n",
    ],
)
def test_tables_may_have_a_byte_order_mark_quotes_and_units(table: str, tmp_path: Path) -> None:
    source, destination = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(table, encoding="utf-8")
    run("time", "--table", str(source), "-o", str(destination))
    with destination.open() as file:
        (row,) = csv.DictReader(file)
    expected = collective_time("all_reduce", 1 << 20, spread(1, 8))
    assert float(row["time_us"]) == pytest.approx(expected.time_ps / 1e6, abs=1e-6)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize(("ranks", "nodes", "gpu"), [(8, 1, "h100"), (16, 2, "b200"), (12, 3, "a100")])
def test_a_written_plan_takes_its_own_time_in_netsim_run(
    op: str, ranks: int, nodes: int, gpu: str, tmp_path: Path
) -> None:
    """Same flows, labels, starts and delays, so not 1 % but 1 ps: `netsim run` ends when the plan's graph does."""
    plan_file, topology, results = tmp_path / "p.csv", tmp_path / "T.yaml", tmp_path / "fct.csv"
    arguments = ("--op", op, "--bytes", "1000003", "--ranks", str(ranks), "--nodes", str(nodes), "--gpu", gpu)
    built = json.loads(run("plan", *arguments, "-o", str(plan_file), "--json"))["topology"].split()
    assert built[0] == "netsim"
    network = CliRunner()
    assert network.invoke(netsim_app, [*built[1:], "-o", str(topology)]).exit_code == 0
    files = ["--topology", str(topology), "--flows", str(plan_file), "-o", str(results)]
    ran = network.invoke(netsim_app, ["run", *files, "--json"])
    plan = plan_collective(op, 1_000_003, spread(nodes, ranks // nodes, gpu, ranks // nodes))
    assert json.loads(ran.output)["makespan_ps"] == run_on_idle(plan)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_plan_writes_one_row_per_flow(tmp_path: Path, suffix: str) -> None:
    destination = tmp_path / f"plan{suffix}"
    arguments = ["--op", "all_to_all", "--bytes", "1000003", "--ranks", "16", "--nodes", "2"]
    summary = json.loads(run("plan", *arguments, "-o", str(destination), "--json"))
    plan = plan_collective("all_to_all", 1_000_003, spread(2, 8))
    if suffix == ".parquet":
        rows = pyarrow.parquet.read_table(destination).to_pylist()
        deps = [row["deps"] for row in rows]
    else:
        with destination.open() as file:
            rows = list(csv.DictReader(file))
        deps = [[int(d) for d in row["deps"].split(";") if d] for row in rows]
    assert len(rows) == summary["flows"] == len(plan)
    assert [int(row["payload_bytes"]) for row in rows] == plan.flows.payload_bytes.tolist()
    assert [d for part in deps for d in part] == plan.graph().deps.tolist()
    assert {row["operation"] for row in rows} == {"copy"}


def test_verify_reports_the_proof() -> None:
    found = json.loads(run("verify", "--op", "all_reduce", "--bytes", "100", "--ranks", "4", "--json"))
    assert found == {"op": "all_reduce", "correct": True, "flows": 24, "ranges": 4, "depth": 6, "payload_bytes": 600}


def test_plans_and_proofs_take_a_root_an_algorithm_and_a_coarseness(tmp_path: Path) -> None:
    """Broadcast of 8 MiB from rank 3 of 4, Simple: rank 3 sends all of it once and receives nothing."""
    options = ("--op", "broadcast", "--bytes", "8MiB", "--ranks", "4", "--algorithm", "ring", "--protocol", "simple")
    path = tmp_path / "p.csv"
    merged = json.loads(run("plan", *options, "--root", "3", "-o", str(path), "--json"))
    fine = json.loads(run("plan", *options, "--root", "3", "--coarsen", "1", "-o", str(path), "--json"))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert fine["flows"] > merged["flows"]
    assert sum(int(row["bytes"]) for row in rows if row["src_rank"] == "3") == 8 << 20
    assert all(row["dst_rank"] != "3" for row in rows)
    proof = json.loads(run("verify", *options, "--root", "3", "--coarsen", "1", "--json"))
    assert (proof["correct"], proof["flows"], proof["payload_bytes"]) == (True, fine["flows"], 3 * (8 << 20))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLANNED, "all_reduce", "--algorithm", "rings"], "algorithm: found 'rings', expected one of"),
        ([*PLANNED, "all_to_all", "--algorithm", "tree"], "algorithm: found tree, expected pairwise"),
        ([*PLANNED, "broadcast", "--algorithm", "tree"], "found tree, expected one that carries out broadcast: ring"),
        ([*PLANNED, "all_gather", "--algorithm", "one_shot"], "algorithm: found one_shot for all_gather over 1 node,"),
        ([*PLANNED, "broadcast", "--root", "8"], "root: found 8, expected 0…7"),
        ([*PLANNED, "all_reduce", "--coarsen", "0"], "coarsen: found 0, expected 1 to"),
        (["time", "--op", "allreduce", "--bytes", "1", "--ranks", "2"], "op: found 'allreduce'"),
        (["time", "--op", "all_reduce", "--bytes", "x", "--ranks", "2"], "bytes: found 'x'"),
        (["time", "--op", "all_reduce", "--bytes", "1"], "expected --op, --bytes and --ranks, or --table"),
        (["time", "--op", "all_reduce", "--bytes", "1", "--ranks", "3", "--nodes", "2"], "divisor of the 3 ranks"),
        (["time", "--op", "all_reduce", "--bytes", "1", "--ranks", "2", "--gpu", "tpu"], "gpu: found 'tpu'"),
        (["time", "--table", "missing.csv", "-o", "out.csv"], "missing.csv: found no such file"),
        (["time", "--table", "missing.csv"], "-o: found nothing"),
        (["plan", "--op", "all_reduce", "--bytes", "1", "--ranks", "2", "-o", "plan.txt"], "found suffix '.txt'"),
        (["verify", "--op", "all_reduce", "--bytes", "1", "--ranks", "0"], "ranks: found 0"),
        (
            ["time", "--op", "all_reduce", "--bytes", "9" * 23, "--ranks", "8"],
            f"bytes: found {'9' * 23}, expected 0 to",
        ),
        (["time", "--op", "all_reduce", "--bytes", "9" * 5000, "--ranks", "8"], "bytes: found '999"),
        (["time", "--op", "all_reduce", "--bytes", "8", "--ranks", "9" * 23], "expected 1 to 1000000"),
        (["verify", "--op", "all_reduce", "--bytes", "2000TiB", "--ranks", "8"], "expected 0 to 1125899906842624"),
        (["plan", "--op", "all_reduce", "--bytes", "1", "--ranks", "2", "-o", "."], "found suffix ''"),
        (["verify", "--op", "all_reduce", "--bytes", "1", "--ranks", "1000000"], "found 1000000, expected 1 to 8192"),
        (["verify", "--op", "all_to_all", "--bytes", "1", "--ranks", "8192", "--nodes", "1024"], "67108864 flows"),
        (
            ["verify", "--op", "all_reduce", "--bytes", "1PB", "--ranks", "8", "--coarsen", "1"],
            "flows, expected at most",
        ),
        (
            ["verify", "--op", "broadcast", "--bytes", "1PB", "--ranks", "8", "--coarsen", "1"],
            "flows, expected at most",
        ),
        (["verify", "--op", "all_gather", "--bytes", "8GB", "--ranks", "4096", "--nodes", "512"], "flows, expected at"),
        (["plan", "--op", "all_reduce", "--bytes", "1", "--ranks", "2", "-o", "no/p.csv"], "found no folder no"),
        (["time", "--table", "in.csv", "-o", "."], ".: found a folder, expected the name of a file"),
        (["time", "--ranks", "two"], "Invalid value for '--ranks'"),
        (["plan", "--op", "all_reduce"], "Missing option '--bytes'"),
        (["measure"], "No such command 'measure'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["simccl", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("simccl: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no line"),
        (
            "op,bytes,ranks,nodes\n",
            "line 1: found 'op,bytes,ranks,nodes' without gpu, expected op,bytes,ranks,nodes,gpu",
        ),
        (TABLE + "all_reduce,8,8,1\n", "line 5: found 4 cells, expected 5"),
        (TABLE + "all_reduce,-8,8,1,h100\n", "line 5: bytes: found '-8'"),
        (TABLE + "all_reduce,8.5,8,1,h100\n", "line 5: bytes: found '8.5'"),
        (TABLE + "all_reduce,8,9,2,h100\n", "line 5: nodes: found 2, expected a divisor of the 9 ranks"),
        (TABLE + "reduced,8,8,1,h100\n", "line 5: op: found 'reduced'"),
        (TABLE + "all_reduce,8,8,1,h9000\n", "line 5: gpu: found 'h9000'"),
    ],
)
def test_bad_tables_are_refused_by_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_text(text)
    monkeypatch.setattr(sys, "argv", ["simccl", "time", "--table", str(source), "-o", str(tmp_path / "out.csv")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_sizes_up_to_the_limit_have_a_time() -> None:
    arguments = ("--op", "all_reduce", "--bytes", str(2**62 - 1), "--ranks", "8")
    assert json.loads(run("time", *arguments, "--json"))["time_us"] > 1e10


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert run("--version") == f"simccl {project['version']}\n"


def test_the_module_runs_and_helps() -> None:
    found = subprocess.run([sys.executable, "-m", "simccl", "--help"], capture_output=True, text=True, check=True)
    for command in ("time", "plan", "verify"):
        assert command in found.stdout


def test_time_takes_engines_kernels_bus_bandwidths_and_no_corrections(tmp_path: Path) -> None:
    """64 KiB on 8 H100: NCCL's own constants 15.81 µs; vLLM's one-shot; 300 GB/s of bus bandwidth 0.38 µs."""
    file = tmp_path / "busbw.yaml"
    file.write_text("test\nTP:\n  allreduce,: 300\n")
    asked = ("time", "--op", "all_reduce", "--bytes", "64KiB", "--ranks", "8", "--json")
    times = []
    for options in (("--uncalibrated",), ("--stack", "vllm"), ("--busbw", str(file)), ()):
        times.append(json.loads(run(*asked, *options)))
    assert [t["algorithm"] for t in times] == ["ring", "one_shot", "busbw", "ring"]
    assert times[0]["time_us"] == pytest.approx(15.81, abs=0.01)
    assert times[2]["time_us"] == pytest.approx(2 * 7 / 8 * 65536 / 300e3)
    assert times[1]["time_us"] < times[0]["time_us"] < times[3]["time_us"]


def test_a_calibration_is_fitted_and_used(tmp_path: Path) -> None:
    """Two sizes that take 40 and 41 µs between 8 H800: the fitted model says so, the package's does not."""
    table, fitted = tmp_path / "t.csv", tmp_path / "c.json"
    table.write_text("ranks,op,bytes,time_us\n8,all_reduce,1024,40\n8,all_reduce,65536,41\n")
    result = json.loads(run("calibrate", str(table), "--gpu", "h800", "-o", str(fitted), "--json"))
    assert (result["measurements"], result["cases"]) == (2, 1)
    for options, expected in ((("--calibration", str(fitted)), 40.0), ((), 15.0)):
        asked = ("time", "--op", "all_reduce", "--bytes", "1024", "--ranks", "8", "--gpu", "h800", "--json")
        assert json.loads(run(*asked, *options))["time_us"] == pytest.approx(expected, rel=0.05)


def test_time_prices_the_collectives_of_a_workload(tmp_path: Path) -> None:
    source, destination = tmp_path / "w.txt", tmp_path / "out.csv"
    source.write_text(
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 16\n"
        "1\nmlp -1 1000 ALLREDUCE 1048576 2000 NONE 0 10 ALLREDUCE 4096 100\n"
    )
    run("time", "--workload", str(source), "--gpu", "h100", "-o", str(destination))
    with destination.open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["layer"], r["pass"], r["group"], r["ranks"], r["nodes"]) for r in rows] == [
        ("mlp", "forward", "tp", "8", "1"),
        ("mlp", "weight_gradient", "dp", "2", "2"),
    ]
    assert float(rows[0]["time_us"]) == pytest.approx(
        collective_time("all_reduce", 1 << 20, spread(1, 8)).time_ps / 1e6
    )


def test_a_plan_in_simccls_columns_has_its_header(tmp_path: Path) -> None:
    from simccl.formats.flow_model_csv import HEADER

    file = tmp_path / "f.csv"
    run("plan", "--op", "all_reduce", "--bytes", "1MiB", "--ranks", "4", "--format", "simccl", "-o", str(file))
    assert file.read_text().splitlines()[0] == HEADER


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stack", "tgi"), "stack: found 'tgi'"),
        (("--group", "xp"), "group: found 'xp'"),
        (("--uncalibrated", "--calibration", "c.json"), "calibration: found with --uncalibrated"),
        (("--calibration", "no-such.json"), "no-such.json: found no such file"),
        (("--busbw", "no-such.yaml"), "no-such.yaml: found no such file"),
        (("--workload", "no-such.txt", "-o", "out.csv"), "no-such.txt: found no such file"),
    ],
)
def test_bad_sources_of_times_are_refused(
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["simccl", "time", "--op", "all_reduce", "--bytes", "1", "--ranks", "2", *options]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
