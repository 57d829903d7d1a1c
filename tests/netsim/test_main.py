"""The command line, run as a user runs it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from netsim import read_topology, single_switch, to_simai, to_yaml
from tests.forked_commands import run_forked

HEADER = "flow_id,src,dst,bytes,start_ns,deps"
TWO_INTO_ONE = f"{HEADER}\na,0,2,400000,0,\nb,1,2,400000,0,\nthen,2,0,400000,1,a;b\n"


def netsim(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_forked("netsim", *arguments)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with T.yaml, T.txt (three hosts behind a switch) and F.csv."""
    (tmp_path / "T.yaml").write_text(to_yaml(single_switch(3)))
    (tmp_path / "T.txt").write_text(to_simai(single_switch(3)))
    (tmp_path / "F.csv").write_text(TWO_INTO_ONE)
    return tmp_path


def run(folder: Path, *more: str, topology: str = "T.yaml") -> subprocess.CompletedProcess[str]:
    arguments = ("--topology", folder / topology, "--flows", folder / "F.csv", "-o", folder / "fct.csv", *more)
    return netsim("run", *arguments)


@pytest.mark.parametrize("topology", ["T.yaml", "T.txt"])
def test_run_writes_one_row_per_flow_in_the_order_of_the_input(inputs: Path, topology: str) -> None:
    """400 kB take 8 µs at 400 Gbit/s, 16 µs where two share; a path has 1 µs of latency; `then` waits for both."""
    assert run(inputs, "--backend", "fluid", topology=topology).returncode == 0
    assert (inputs / "fct.csv").read_text() == (
        "flow_id,src,dst,bytes,start_ps,end_ps,fct_ps,status\n"
        "a,0,2,400000,0,17000000,17000000,completed\n"
        "b,1,2,400000,0,17000000,17000000,completed\n"
        "then,2,0,400000,17000000,26000000,9000000,completed\n"
    )


def test_backends_differ_in_contention(inputs: Path) -> None:
    assert run(inputs, "--backend", "analytical").returncode == 0
    with (inputs / "fct.csv").open() as file:
        assert [row["fct_ps"] for row in csv.DictReader(file)] == ["9000000"] * 3


def test_json_gives_the_summary_alone(inputs: Path) -> None:
    summary = json.loads(run(inputs, "--json").stdout)
    assert summary.pop("wall_s") >= 0
    assert summary == {
        "backend": "fluid",
        "flows": 3,
        "completed": 3,
        "bytes": 1_200_000,
        "makespan_ps": 26_000_000,
        "output": str(inputs / "fct.csv"),
    }


def test_a_file_without_flows_gives_a_file_without_results(inputs: Path) -> None:
    (inputs / "F.csv").write_text(f"{HEADER}\n")
    assert run(inputs).returncode == 0
    assert (inputs / "fct.csv").read_text() == "flow_id,src,dst,bytes,start_ps,end_ps,fct_ps,status\n"


def test_columns_may_come_in_any_order_and_starts_in_fractions_of_a_nanosecond(inputs: Path) -> None:
    (inputs / "F.csv").write_text('deps,bytes,dst,src,start_ns,flow_id\n,0,1,0,0.125,"x, y"\n"x, y",0,1,0,0,z\n')
    assert run(inputs).returncode == 0
    lines = (inputs / "fct.csv").read_text().splitlines()
    assert lines[1:] == ['"x, y",0,1,0,125,125,0,completed', "z,0,1,0,125,125,0,completed"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,0,2", "line 3: found 3 cells, expected 6"),
        ("c,0,2,1,0.0001,", "line 3 start_ns: found '0.0001', expected nanoseconds, whole in ps"),
        ("a,0,2,1,0,", "line 3 flow_id: found 'a' again, expected a unique one"),
        (",0,2,1,0,", "line 3 flow_id: found '', expected a text without ;"),
        ("c,9,2,1,0,", "line 3 src: found '9', expected a node, 0 to 3"),
        ("c,0,two,1,0,", "line 3 dst: found 'two', expected a node, 0 to 3"),
        ("c,0,2,-1,0,", "line 3 bytes: found '-1', expected whole bytes"),
        ("c,0,2,1.5,0,", "line 3 bytes: found '1.5', expected whole bytes"),
        ("c,0,2,1,soon,", "line 3 start_ns: found 'soon', expected nanoseconds"),
        ("c,0,2,1,-1,", "line 3 start_ns: found '-1', expected nanoseconds"),
        ("c,0,2,1,9223372036854775.807,", "line 3 start_ns: found '9223372036854775.807', expected nanoseconds"),
        ("c,0,2,1,0,d", "line 3 deps: found 'd', expected the flow_id of a row of this file"),
        ("c,0,2,1,0,d\nd,0,2,1,0,c", "F.csv deps: found the cycle"),
        ("c,0,2,1,0,c", "F.csv deps: found the cycle c -> c, expected none"),
    ],
)
def test_a_malformed_row_is_named_by_line_and_field_and_nothing_is_written(
    inputs: Path, row: str, message: str
) -> None:
    (inputs / "F.csv").write_text(f"{HEADER}\na,0,2,1,0,\n{row}\n")
    result = run(inputs)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "F.csv" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in inputs.iterdir()) == ["F.csv", "T.txt", "T.yaml"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "found '' without flow_id"),
        ("flow_id,src,dst,bytes,start_ns", "found 'flow_id,src,dst,bytes,start_ns' without deps"),
        (f"{HEADER},deps", "found 2 columns 'deps', expected one"),
    ],
)
def test_a_wrong_header_is_refused(inputs: Path, header: str, message: str) -> None:
    (inputs / "F.csv").write_text(f"{header}\n")
    result = run(inputs)
    assert result.returncode == 2
    assert f"line 1 header: {message}" in result.stderr


def test_starts_may_be_missing_delays_given_and_further_columns_are_ignored(inputs: Path) -> None:
    """A flow of no bytes starts 1.5 ns after what it waits for, and ends 1 us, the latency of its path, later."""
    (inputs / "F.csv").write_text("flow_id,note,src,dst,bytes,deps,delay_ns\na,x,0,1,0,,0\nb,y,1,2,50000,a,1.5\n")
    assert run(inputs).returncode == 0
    with (inputs / "fct.csv").open() as file:
        a, b = csv.DictReader(file)
    assert int(b["start_ps"]) == int(a["end_ps"]) + 1_500
    assert b["fct_ps"] == "2000000"


def test_a_column_of_caps_slows_flows_down(inputs: Path) -> None:
    """50 kB are 1 µs at 400 Gbit/s, and 4 µs at 100; the path takes 1 µs. An empty or negative cap is refused."""
    (inputs / "F.csv").write_text(
        "flow_id,src,dst,bytes,deps,max_rate_bps\na,0,1,50000,,0\nb,1,0,50000,,100000000000\n"
    )
    assert run(inputs).returncode == 0
    with (inputs / "fct.csv").open() as file:
        assert [int(row["fct_ps"]) for row in csv.DictReader(file)] == [2_000_000, 5_000_000]
    for wrong in ("", "-1"):
        (inputs / "F.csv").write_text(f"flow_id,src,dst,bytes,deps,max_rate_bps\na,0,1,50000,,{wrong}\n")
        result = run(inputs)
        assert result.returncode == 2
        assert f"line 2 max_rate_bps: found '{wrong}', expected whole bit/s" in result.stderr


def test_a_column_of_queues_orders_flows(inputs: Path) -> None:
    """50 kB are 1 µs at 400 Gbit/s: b starts behind a, at 1 µs. An unknown flow in front is refused."""
    (inputs / "F.csv").write_text("flow_id,src,dst,bytes,deps,after\na,0,1,50000,,\nb,0,1,50000,,a\n")
    assert run(inputs).returncode == 0
    with (inputs / "fct.csv").open() as file:
        assert [int(row["start_ps"]) for row in csv.DictReader(file)] == [0, 1_000_000]
    (inputs / "F.csv").write_text("flow_id,src,dst,bytes,deps,after\na,0,1,50000,,x\n")
    assert "line 2 after: found 'x', expected the flow_id of a row" in run(inputs).stderr
    (inputs / "F.csv").write_text("flow_id,src,dst,bytes,deps,after\na,0,1,50000,b,\nb,0,1,50000,,a\n")
    assert "deps: found the cycle" in run(inputs).stderr


def test_equal_flow_labels_share_a_path_and_others_may_not(tmp_path: Path) -> None:
    """Two 50 MB flows of one pair over two spines with links of 200 Gbit/s: 4 ms on one path, 2 ms on one each.

    Every path has 2 µs of latency.
    """
    topology = ("--nodes=2", "--gpus-per-node=1", "--nodes-per-segment=1", "--spines=2")
    assert netsim("topology", "rail_optimized", *topology, "-o", tmp_path / "T.yaml").returncode == 0
    ends = []
    for label in range(4):
        rows = f"a,0,1,50000000,,0\nb,0,1,50000000,,{label}\n"
        (tmp_path / "F.csv").write_text(f"flow_id,src,dst,bytes,deps,flow_label\n{rows}")
        ends.append(json.loads(run(tmp_path, "--json").stdout)["makespan_ps"])
    assert ends[0] == 4_002_000_000
    assert set(ends) == {4_002_000_000, 2_002_000_000}


def test_flows_beyond_the_end_of_the_clock_are_a_failure_that_keeps_the_other_results(inputs: Path) -> None:
    """9·10¹⁸ bytes at 400 Gbit/s take 5.7 years; the clock ends after 106 days."""
    (inputs / "F.csv").write_text(f"{HEADER}\nafter,1,0,1,0,long\nlong,0,2,9000000000000000000,0,\nshort,1,0,5,0,\n")
    result = run(inputs, "--json")
    assert result.returncode == 1
    assert result.stderr.startswith(f"netsim: {inputs / 'F.csv'} flow long: found no end before 2^63 ps")
    assert "2 of 3 flows" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    with (inputs / "fct.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["unfinished", "unfinished", "completed"]


def test_missing_files_and_unwritable_places_are_bad_input(inputs: Path) -> None:
    assert run(inputs, topology="nowhere.yaml").returncode == 2
    (inputs / "F.csv").unlink()
    assert "F.csv: found no such file, expected flows" in run(inputs).stderr
    (inputs / "F.csv").write_text(TWO_INTO_ONE)
    result = run(inputs, "-o", str(inputs / "nowhere" / "fct.csv"))
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


def test_hosts_without_a_path_are_bad_input(inputs: Path) -> None:
    (inputs / "T.yaml").write_text("gpus_per_node: 1\nnodes: [[gpu, a], [gpu, b], [gpu, c]]\nlinks: []\n")
    result = run(inputs)
    assert result.returncode == 2
    assert "F.csv: no path: found none from node 0 to node 2" in result.stderr


def test_an_existing_result_survives_a_failure(inputs: Path) -> None:
    (inputs / "fct.csv").write_text("old")
    assert run(inputs, "--backend", "rdma").returncode == 2
    assert run(inputs, "--backend", "fluyd").returncode == 2
    assert (inputs / "fct.csv").read_text() == "old"


def test_topology_writes_yaml_and_simai_text_and_converts_between_them(tmp_path: Path) -> None:
    made = netsim("topology", "rail_optimized", "--nodes", "2", "--nic=200Gbps", "-o", tmp_path / "T.yaml", "--json")
    assert json.loads(made.stdout) == {
        "gpus": 16,
        "gpus_per_node": 8,
        "nodes": 28,
        "links": 96,
        "output": str(tmp_path / "T.yaml"),
    }
    assert netsim("topology", tmp_path / "T.yaml", "-o", tmp_path / "T.txt", "--gpu-type", "H800").returncode == 0
    assert (tmp_path / "T.txt").read_text().startswith("28 8 2 10 48 H800\n")
    assert (
        read_topology(tmp_path / "T.txt").capacity_bps.tolist()
        == read_topology(tmp_path / "T.yaml").capacity_bps.tolist()
    )
    assert netsim("topology", tmp_path / "T.txt").stdout.startswith("gpus_per_node: 8\n")


def test_topology_builds_every_kind_from_fields_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "T.svg"
    made = netsim("topology", "fat-tree", "--k", "4", "--plot", picture, "-o", tmp_path / "T.yaml", "--json")
    assert json.loads(made.stdout) == {
        "gpus": 16,
        "gpus_per_node": 1,
        "nodes": 36,
        "links": 96,
        "output": str(tmp_path / "T.yaml"),
        "plot": str(picture),
    }
    drawn = picture.read_text()
    assert "16 GPUs · 8 leaves · 8 spines · 4 cores" in drawn
    again = netsim("topology", tmp_path / "T.yaml", "--plot", tmp_path / "T.html")
    assert (again.returncode, again.stdout.split()[:2]) == (0, ["gpus", "16"])
    assert drawn in (tmp_path / "T.html").read_text()


def test_a_picture_without_a_place_or_a_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for plot in (tmp_path / "nowhere" / "T.svg", tmp_path / "T.png"):
        made = netsim("topology", "nvl72", "--plot", plot, "-o", tmp_path / "T.yaml")
        assert (made.returncode, made.stdout, len(made.stderr.splitlines())) == (2, "", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nvl72", "--nodes", "2"), "topology nodes: unknown field"),
        (("fat_tree", "--k", "4", "--nodes", "17"), "fat_tree nodes: found 17, expected 1 to 16"),
        (("dcn_plus", "--nodes", "65"), "dcn_plus nodes: found 65, with 9 leaves on a spine, expected at most 8"),
        (("rail_optimized", "--nodes", "1000000000"), "topology nodes: found"),
        (("rail_optimized", "--nods", "2"), "topology nods: unknown field"),
        (("rail_optimized", "--nodes", "two"), "topology nodes: found 'two', expected"),
        (("rail_optimized", "--nodes", "2", "--nic", "fast"), "topology nic: found 'fast', expected a positive rate"),
        (("rail_optimized", "extra"), "topology: found 'extra', expected --field value"),
        (("torus",), "topology: found 'torus', expected a file that is there, or one of nvswitch"),
        (("torus", "--nodes", "2"), "topology torus: found --nodes"),
    ],
)
def test_wrong_topology_arguments_are_named(arguments: tuple[str, ...], message: str) -> None:
    result = netsim("topology", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "Missing option '--topology'"),
        (("runn",), "No such command 'runn'"),
        (("run", "--fast"), "No such option: --fast"),
        (("topology",), "Missing argument 'KIND'"),
        (("topology", "single_switch", "--nodes", "2", "--format", "xml"), "Invalid value for '--format'"),
        (
            ("topology", "single_switch", "--nodes", "2", "--nic", "400"),
            "topology nic: found '400', expected a rate with",
        ),
        (("topology", "single_switch", "--nodes", "2", "-o", "."), ".: found a folder, expected the name of a file"),
    ],
)
def test_wrong_use_is_one_line_with_the_name_of_the_program(arguments: tuple[str, ...], message: str) -> None:
    result = netsim(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"netsim: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_as_output_of_a_run_is_refused_and_kept(inputs: Path) -> None:
    (inputs / "folder").mkdir()
    (inputs / "folder" / "kept").write_text("kept")
    result = run(inputs, "-o", str(inputs / "folder"))
    assert result.returncode == 2
    assert result.stderr == f"netsim: {inputs / 'folder'}: found a folder, expected the name of a file to write\n"
    assert (inputs / "folder" / "kept").read_text() == "kept"


def test_an_output_that_is_a_link_or_a_device_stays_one(inputs: Path) -> None:
    (inputs / "link.csv").symlink_to(inputs / "target.csv")
    assert run(inputs, "-o", str(inputs / "link.csv")).returncode == 0
    assert (inputs / "link.csv").is_symlink()
    assert (inputs / "target.csv").read_text().startswith("flow_id,")
    command = [sys.executable, "-m", "netsim", "topology", "single_switch", "--nodes", "2", "-o", "/dev/stdout"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)  # through a pipe
    assert "3 1 0 1 2 H100\n" in made.stdout
    assert Path("/dev/stdout").is_symlink()


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert netsim("--version").stdout == f"netsim {project['version']}\n"


def test_without_arguments_the_help_is_printed() -> None:
    result = netsim()
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage" in result.stdout


def test_help_is_available_everywhere() -> None:
    for arguments in (("--help",), ("run", "--help"), ("topology", "--help")):
        result = netsim(*arguments)
        assert result.returncode == 0
        assert "Usage" in result.stdout
