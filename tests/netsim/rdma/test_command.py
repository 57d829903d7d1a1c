"""``netsim run --backend rdma`` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netsim import single_switch, to_yaml
from netsim.backends.calibration import TOLERANCE
from netsim.formats.calibration_file import read_calibration
from tests.forked_commands import run_forked
from tests.netsim.rdma.needs import needs_ucx

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "rdma"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a topology of eight hosts."""
    (tmp_path / "T.yaml").write_text(to_yaml(single_switch(8)))
    return tmp_path


def arguments(folder: Path, hosts: Path, flows: Path = EXAMPLES / "flows.csv") -> list[str]:
    named = {"--topology": folder / "T.yaml", "--flows": flows, "--hosts": hosts, "-o": folder / "fct.csv"}
    return ["run", "--backend", "rdma", *(str(word) for pair in named.items() for word in pair)]


@needs_ucx
def test_the_example_runs_with_verified_payloads_and_rows_of_every_backend(folder: Path) -> None:
    finished = run_forked("netsim", *arguments(folder, EXAMPLES / "loopback.yaml"), "--verify")
    assert (finished.returncode, finished.stderr) == (0, "")
    with (folder / "fct.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["flow_id"] for row in rows] == ["a", "b", "back", "all"]
    assert {row["status"] for row in rows} == {"completed"}
    assert {(row["engine"], row["lane"], row["device"]) for row in rows} == {("ucx", "tcp/lo", "lo")}
    assert all(int(row["fct_ps"]) == int(row["end_ps"]) - int(row["start_ps"]) for row in rows)


@needs_ucx
def test_a_calibration_over_tcp_has_to_be_accepted_and_is_what_fluid_then_takes(folder: Path) -> None:
    """Two pairs of agents, octaves from 1 KiB to 64 KiB; a flow of 4 KiB takes what the line of its range says."""
    measured = folder / "C.json"
    calibrate = ("calibrate-rdma", "--hosts", EXAMPLES / "loopback.yaml", "-o", measured, "--largest", "64KiB")
    refused = run_forked("netsim", *calibrate)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "found TCP between them (tcp/lo), expected RDMA" in refused.stderr
    assert not measured.exists()
    finished = run_forked("netsim", *calibrate, "--accept-tcp", "--json")
    assert (finished.returncode, finished.stderr) == (0, "")
    summary = json.loads(finished.stdout)
    assert (summary["pairs"], summary["sizes"], summary["lanes"]) == (2, 7, "tcp/lo")
    assert 0 <= summary["largest_residual"] <= TOLERANCE
    flows = folder / "F.csv"
    flows.write_text("flow_id,src,dst,bytes,deps\na,0,4,4096,\n")
    simulated = arguments(folder, EXAMPLES / "loopback.yaml", flows)
    simulated = [word for word in simulated if word not in ("--hosts", str(EXAMPLES / "loopback.yaml"))]
    simulated[simulated.index("rdma")] = "fluid"
    assert run_forked("netsim", *simulated, "--calibration", measured).returncode == 0
    with (folder / "fct.csv").open() as file:
        took_ps = int(next(csv.DictReader(file))["fct_ps"])
    expected = read_calibration(measured).range_of(0, 4, 4096)
    assert expected is not None
    assert took_ps == pytest.approx(expected.time_ps(4096), abs=2)


@needs_ucx
def test_ranks_that_others_start_run_the_same_command_and_one_of_them_writes(folder: Path) -> None:
    """As torchrun and Slurm do; the port is free as far as one can know."""
    from netsim.backends.rdma.launchers import listener_at

    probe = listener_at("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    hosts = folder / "hosts.yaml"
    hosts.write_text(
        f"launcher: environment\ntransports: tcp\nrendezvous: {{port: {port}}}\n"
        "agents: [{nodes: 0-3, device: lo}, {nodes: 4-7, device: lo}]\n"
    )
    started = []
    for rank in range(2):
        output = folder / f"{rank}.csv"
        command = [sys.executable, "-m", "netsim", *arguments(folder, hosts)[:-1], str(output)]
        environment = {**os.environ, "NETSIM_RDMA_TOKEN": "ab" * 32, "RANK": str(rank), "WORLD_SIZE": "2"}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE))
    results = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], results
    assert (folder / "0.csv").read_text().count("completed") == 4
    assert not (folder / "1.csv").exists()


@needs_ucx
def test_a_rank_with_other_flows_ends_the_run_on_all(folder: Path) -> None:
    from netsim.backends.rdma.launchers import listener_at

    probe = listener_at("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    hosts, other = folder / "hosts.yaml", folder / "other.csv"
    hosts.write_text(
        f"launcher: environment\ntransports: tcp\nrendezvous: {{port: {port}}}\n"
        "agents: [{nodes: 0-3}, {nodes: 4-7}]\n"
    )
    other.write_text("flow_id,src,dst,bytes,deps\na,0,4,1,\n")
    started = []
    for rank, flows in enumerate((EXAMPLES / "flows.csv", other)):
        command = [sys.executable, "-m", "netsim", *arguments(folder, hosts, flows)]
        environment = {**os.environ, "NETSIM_RDMA_TOKEN": "ab" * 32, "SLURM_PROCID": str(rank)}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [1, 1]
    assert all("rank 1: found a graph with SHA-256" in error for error in errors), errors


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backend", "rdma"], "--hosts: found none"),
        (["--backend", "fluid", "--hosts", "H.yaml"], "--hosts: found backend fluid"),
        (["--backend", "fluid", "--verify"], "--verify: found backend fluid"),
        (["--backend", "rdma", "--hosts", "H.yaml"], "node 4 at the end of a flow, expected an agent"),
        (["--backend", "rdma", "--hosts", "E.yaml"], "NETSIM_RDMA_TOKEN: found ''"),
    ],
)
def test_wrong_uses_end_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    if "NETSIM" in message:
        pytest.importorskip("netsim._ucx", reason="built without UCX (libucx-dev was not there)")
    (folder / "H.yaml").write_text("agents: [{nodes: 0-3}]")
    (folder / "E.yaml").write_text("{launcher: environment, rendezvous: {port: 1}, agents: [{nodes: 0-7}]}")
    finished = run_forked(
        "netsim", "run", "--topology", "T.yaml", "--flows", EXAMPLES / "flows.csv", "-o", "fct.csv", *more
    )
    assert finished.returncode == 2
    assert message in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
