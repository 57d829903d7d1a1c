"""``netsim run`` on a packet-level backend: settings, files, failures; HPCC's flow file."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from netsim import InputError, single_switch, to_simai
from netsim.commands.run import UnfinishedFlows, run
from netsim.formats.flow_file import read_flows

HEADER = "flow_id,src,dst,bytes,deps"
INCAST = f"{HEADER}\na,0,3,2000000,\nb,1,3,2000000,\nc,2,3,2000000,\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """T.txt (four hosts behind a switch) and F.csv, an incast of three."""
    (tmp_path / "T.txt").write_text(to_simai(single_switch(4)))
    (tmp_path / "F.csv").write_text(INCAST)
    return tmp_path


def simulate(folder: Path, *, backend: str = "packet", **options: Any) -> list[dict[str, str]]:
    """Rows of the completion times."""
    run(topology=folder / "T.txt", flows=folder / "F.csv", backend=backend, output=folder / "out.csv", **options)
    return rows(folder)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "out.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_command_writes_all_files_and_sums_up_what_happened(folder: Path) -> None:
    """Three times 2 MB into 400 Gbit/s take 120 µs and a little. In a buffer of 1.5 MB less headroom, each of three
    inputs may hold an eighth of what is free: together 3/11 of it, and what is under way when they pause."""
    (folder / "SimAI.conf").write_text("CC_MODE 1\nMON_START 5\n")
    (folder / "roce.yaml").write_text("mtu_bytes: 9000\ncongestion_control: none\ncongestion_preset: null\n")
    names = {"--fct": "fct.txt", "--pfc": "pfc.txt", "--series": "s.parquet", "--bandwidth": "bw.csv", "-o": "out.csv"}
    inputs = {"--topology": "T.txt", "--flows": "F.csv", "--simai-config": "SimAI.conf", "--config": "roce.yaml"}
    places = [str(part) for option, name in (inputs | names).items() for part in (option, folder / name)]
    settings = ["--set", "switch_buffer_bytes=1500000", "--set", "window=unbounded", "--interval", "20us"]
    command = [sys.executable, "-m", "netsim", "run", "--backend", "packet", *places, *settings, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == f"netsim: {folder / 'SimAI.conf'}: without meaning here: MON_START\n"
    summary = json.loads(finished.stdout)
    assert (summary["completed"], summary["drops"]) == (3, 0)
    assert 120_000_000 < summary["makespan_ps"] < 125_000_000
    pauses = (folder / "pfc.txt").read_text().splitlines()
    assert summary["pauses"] == sum(line.endswith(" 1") for line in pauses) > 0
    assert summary["packet_hops"] == 4 * 3 * 223 + len(pauses)  # 223 packets of 9000 bytes and their ACKs, two links
    assert 3 / 11 * 1_200_000 < summary["largest_queue_bytes"] < 3 / 11 * 1_500_000 + 3 * 75_000
    assert summary["wall_s"] >= 0
    fct = [line.split() for line in (folder / "fct.txt").read_text().splitlines()]
    assert sorted(line[0] for line in fct) == ["0b000001", "0b000101", "0b000201"]
    assert max(int(line[6]) for line in fct) > summary["makespan_ps"] // 1000
    series = pd.read_parquet(folder / "s.parquet")
    assert series["pauses"].sum() == summary["pauses"]
    assert (folder / "bw.csv").read_text().startswith("time, node_id, port_id, bandwidth\n")


@pytest.mark.parametrize("setting", ["skip_tolerance=0.01", "memoise=true"])
def test_runs_that_save_work_come_to_an_end_and_write_their_files(folder: Path, setting: str) -> None:
    """Nothing looks for steady states, and nothing is sampled, after the last acknowledgement."""
    exact = [int(row["end_ps"]) for row in simulate(folder, settings=["congestion_control=none"])]
    found = simulate(folder, settings=["congestion_control=none", setting], series=folder / "s.csv")
    assert [int(row["end_ps"]) for row in found] == pytest.approx(exact, rel=0.02)
    assert len(pd.read_csv(folder / "s.csv")) == 13 * 8  # intervals of 10 µs in 123 µs, links


def test_a_traffic_class_of_its_own_is_not_held_up_by_another(folder: Path) -> None:
    """Round robin between classes: a small flow of class 4 shares the last link with one queue, not with its length."""
    ends = {}
    for priority in ("", "4"):
        (folder / "F.csv").write_text(
            f"{HEADER},start_ns,priority\na,0,3,4000000,,0,\nb,1,3,4000000,,0,3\nlate,2,3,4096,,40000,{priority}\n"
        )
        found = simulate(folder, settings=["congestion_control=none", "window=unbounded"])
        ends[priority] = int(found[2]["fct_ps"])
    assert ends["4"] < 2_000_000
    assert ends[""] > 20 * ends["4"]


def test_credits_come_a_latency_after_the_arrival_that_frees_the_buffer(folder: Path) -> None:
    """The fluid network: 50 kB are 1 µs and 1 µs of path; b waits for a's end and 1 µs more."""
    (folder / "F.csv").write_text("flow_id,src,dst,bytes,deps,credits\na,0,1,50000,,\nb,0,1,50000,,a\n")
    assert [int(row["start_ps"]) for row in simulate(folder, backend="fluid")] == [0, 3_000_000]


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ("priority", "0", "line 2 priority: found '0', expected a class, 1 to 7"),
        ("priority", "8", "line 2 priority: found '8', expected a class, 1 to 7"),
        ("credits", "x", "line 2 credits: found 'x', expected the flow_id of a row of this file"),
        ("credits", "a", "deps: found the cycle a -> a, expected none"),
    ],
)
def test_wrong_classes_and_credits_are_named(folder: Path, columns: str, values: str, message: str) -> None:
    (folder / "F.csv").write_text(f"{HEADER},{columns}\na,0,3,1,,{values}\n")
    with pytest.raises(InputError) as caught:
        simulate(folder)
    assert message in str(caught.value)
    assert not (folder / "out.csv").exists()


def test_flows_that_the_network_gives_up_are_failed_with_a_reason_and_the_others_complete(folder: Path) -> None:
    """Three packets at once for a switch without PFC that can send one and keep one: the third is dropped, and being
    the last of its flow is missed by nobody. A flow to the own node needs no switch."""
    (folder / "F.csv").write_text(
        f"{HEADER}\nfirst,0,3,4096,\nnext,1,3,4096,\nlost,2,3,4096,\nthen,3,1,5000,lost\nown,2,2,5000,\n"
    )
    settings = ["pfc=false", "max_retries=0", "switch_buffer_bytes=4200", "reserve_bytes=0", "headroom_bytes=0"]
    with pytest.raises(UnfinishedFlows, match=r"flow lost: found that the network gave it up.*2 of 5 flows"):
        simulate(folder, settings=[*settings, "threshold_shift=0"], fct=folder / "fct.txt")
    found = {row["flow_id"]: row for row in rows(folder)}
    assert found["lost"]["status"] == "failed: given up by the network"
    assert found["lost"]["start_ps"] == "0"
    assert found["then"]["status"] == "failed: waits for a failed flow"
    assert found["then"]["start_ps"] == found["then"]["end_ps"] == ""
    assert found["own"]["status"] == "completed"
    assert found["first"]["status"] == "completed"
    assert len((folder / "fct.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": ["mtu=9000"]}, "--set mtu: unknown field, .*nearest: mtu_bytes"),
        ({"settings": ["congestion.gian=1"]}, "congestion.gian: unknown constant of dcqcn"),
        ({"settings": ["switch_buffer_bytes=1000"]}, "switch_buffer_bytes: found 1000, expected at least"),
        ({"config": Path("nowhere.yaml")}, "nowhere.yaml: found no such file"),
        ({"simai_config": Path("nowhere.conf")}, "nowhere.conf: found no such file"),
        ({"interval": "10"}, "--interval: found '10', expected a time with a unit"),
        ({"interval": "0us"}, "--interval: found '0us', expected a time above 0"),
        ({"series": Path("s.txt")}, "--series: found s.txt, expected a name that ends in .csv or .parquet"),
        ({"pfc": Path("/nowhere/pfc.txt")}, "found no folder /nowhere"),
        ({"backend": "fluid", "settings": ["mtu_bytes=9000"]}, "--set: found backend fluid, expected packet or ns3"),
        ({"backend": "fluid", "fct": Path("fct.txt")}, "--fct: found backend fluid, expected packet or ns3"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=message):
        simulate(folder, **options)
    assert sorted(path.name for path in folder.iterdir()) == ["F.csv", "T.txt"]


def test_two_outputs_in_one_place_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"--pfc: found .*out.csv, which --output writes too"):
        simulate(folder, pfc=folder / "out.csv")


def test_hpccs_flow_file_gives_the_labels_whose_ports_it_names(folder: Path) -> None:
    """Times in seconds, classes, and ports: the second flow of a pair has source port 10,001; port 101 is one up."""
    (folder / "F.csv").write_text("3\n0 3 3 100 1000 2.000000001\n\n0 3 4 101 2000 0\n1 3 3 100 3000 1e-6\n")
    named = read_flows(folder / "F.csv", 5)
    assert named.flow_ids == ("0", "1", "2")
    graph = named.graph
    assert graph.flow_label.tolist() == [0, 2**16 + 1, 0]
    assert graph.ready_ps.tolist() == [2_000_000_001_000, 0, 1_000_000]
    assert (graph.priority.tolist(), graph.size_bytes.tolist()) == ([3, 4, 3], [1000, 2000, 3000])
    assert [row["status"] for row in simulate(folder)] == ["completed"] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\n0 1 3 100 5 0\n", "found 1 flows, expected 2 .line 1"),
        ("1\n0 1 3 100 5 0\n0 1 3 100 5 0\n", "found 2 flows, expected 1 .line 1"),
        ("1\n0 1 3 100 5\n", "line 2: found 5 fields, expected `src dst priority dport bytes start_seconds`"),
        ("1\n0 9 3 100 5 0\n", "line 2 dst: found '9', expected a node, 0 to 4"),
        ("1\n0 1 0 100 5 0\n", "line 2 priority: found '0', expected a class, 1 to 7"),
        ("1\n0 1 3 70000 5 0\n", "line 2 dport: found '70000', expected a port, 0 to 65535"),
        ("1\n0 1 3 100 -5 0\n", "line 2 bytes: found '-5', expected whole bytes"),
        ("1\n0 1 3 100 5 soon\n", "line 2 start_seconds: found 'soon', expected seconds"),
        (
            "1\n0 1 3 100 5 9223372.036854775807\n",
            "line 2 start_seconds: found '9223372.036854775807', expected seconds",
        ),
        ("1\n0 1 3 100 5 1e8\n", "line 2 start_seconds: found '1e8', expected seconds"),
    ],
)
def test_a_malformed_flow_file_of_hpcc_is_named_by_line_and_field(folder: Path, text: str, message: str) -> None:
    (folder / "F.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_flows(folder / "F.csv", 5)


def test_an_empty_flow_file_of_hpcc_has_no_flows(folder: Path) -> None:
    (folder / "F.csv").write_text("0\n")
    assert simulate(folder) == []
