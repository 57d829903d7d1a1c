"""Real traffic in simulations: what it takes is measured once, used, and written so that it can be repeated."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from boundary.errors import InputError
from netsim.backends.calibration import SizeRange
from netsim.backends.rdma import MeasuredPairs
from netsim.backends.rdma.message_times import MeasuredAgent, MessageSample, PairMeasurement
from netsim.formats.calibration_file import format_calibration, pairs_from_tree
from tests.forked_commands import run_forked
from tests.netsim.rdma.namespaces import BURSTS, FAST_RATE_BPS, JUMBO_MTU, shaped_hosts
from tests.netsim.rdma.needs import needs_ucx
from vidur_pd.execution.communication.measured_file import format_measured
from vidur_pd.simulation.api import prepare, simulate

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTS = """
transports: tcp
pings: 50
agents: [{nodes: 0, device: lo}, {nodes: 1, device: lo}, {nodes: [2, 3], device: lo}]
"""
"""Two hosts of one GPU, which send to each other, and one of two."""
LINE = SizeRange(1024, 1 << 30, 20_000.0, 0.5, 0.0)
"""20 µs and 16 Gbit/s."""


def tree(network: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Qwen2.5-0.5B, two GPUs per instance: the KV of a token is 12,288 bytes, half of them between each pair."""
    return {
        "model": "qwen2.5-0.5b",
        "hardware": "h200",
        "workload": {"kind": "trace", "path": "trace.csv"},
        "cluster": {
            "topology": {"kind": "single_switch", "nodes": 4},
            "pools": [
                {"name": "prefill", "role": "prefill", "instances": 1, "tp": 2},
                {"name": "decode", "role": "decode", "instances": 1, "tp": 2},
            ],
        },
        "engine": {"max_batched_tokens": 512, "max_seqs": 8},
        "kv_transfer": {"setup_ms": 0},
        "output": {"flows": True},
        "network": dict(network),
        **others,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With hosts and a trace: two requests, the second when the first has long been served."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    (tmp_path / "trace.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,3\n60.0,300,3\n", encoding="utf-8"
    )
    return tmp_path


def measured_pairs(*ends: tuple[int, int]) -> MeasuredPairs:
    """The same line between these agents of `HOSTS`."""
    agents = tuple(MeasuredAgent(nodes, "127.0.0.1", None) for nodes in ((0,), (1,), (2, 3)))
    pair = PairMeasurement((MessageSample(1024, 1.0, 1.0, 1.0),), (LINE,), "rc_verbs/mlx5_0:1", 0)
    return MeasuredPairs("ucx", agents, dict.fromkeys(ends, pair))


def kv_times_s(out: Path) -> list[tuple[int, float]]:
    with (out / "requests.csv").open() as file:
        return [(int(row["pd_p2p_comm_bytes"]), float(row["pd_p2p_comm_time_s"])) for row in csv.DictReader(file)]


@needs_ucx
def test_a_run_measures_and_another_repeats_it_without_hosts_to_the_byte(folder: Path) -> None:
    """Messages of two pairs of agents are measured up to 1 MiB for the first request, and to 2 MiB for the second."""
    (folder / "c.yaml").write_text(json.dumps(tree({"backend": "rdma", "hosts": "hosts.yaml", "repeats": 2})))
    first = run_forked("vidur_pd", "run", "c.yaml", "-o", "first", "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert (summary["network"]["backend"], summary["network"]["coupling"]) == ("rdma", "isolated")
    measured = summary["network"]["measured"]
    assert measured["graphs"] > 0
    assert (measured["graphs_read"], measured["message_fits"], measured["lanes"][0]) == (0, 4, "tcp/lo")
    assert 0 < measured["wall_s"] <= summary["simulator"]["wall_s"]
    written = json.loads((folder / "first" / "measured.json").read_text())
    assert len(written["graphs"]) == measured["graphs"]
    assert all(each["duration_ps"] > 0 for each in written["graphs"])
    known = pairs_from_tree(written["calibration"], "measured.json").calibration()
    for size_bytes, took_s in kv_times_s(folder / "first"):
        lines = [known.range_of(src, dst, size_bytes // 2) for src, dst in ((0, 2), (1, 3))]
        slower_ps = max(line.time_ps(size_bytes // 2) for line in lines if line is not None)
        assert took_s == pytest.approx(slower_ps * 1e-12, rel=1e-6)

    settings = ("--set", "network.hosts=null", "--set", "network.measured=first/measured.json")
    second = run_forked("vidur_pd", "run", "c.yaml", "-o", "second", "--json", *settings)
    assert second.returncode == 0, second.stderr
    again = json.loads(second.stdout)["network"]["measured"]
    assert (again["graphs"], again["graphs_read"], again["message_fits"]) == (0, measured["graphs"], 0)
    for name in ("requests.csv", "measured.json", "iterations.parquet", "flows.parquet"):
        assert (folder / "second" / name).read_bytes() == (folder / "first" / name).read_bytes(), name

    written["graphs"].pop()
    (folder / "less.json").write_text(json.dumps(written))
    third = run_forked("vidur_pd", "run", "c.yaml", "-o", "third", "--json", "--set", "network.measured=less.json")
    assert third.returncode == 0, third.stderr
    more = json.loads(third.stdout)["network"]["measured"]
    assert (more["graphs"], more["graphs_read"]) == (1, measured["graphs"] - 1)


@needs_ucx
def test_collectives_take_what_was_measured(folder: Path) -> None:
    """The second prompt has 300 tokens of 1792 bytes, between grid points of 512 and 576 KiB; what it communicates
    lies between what it would with all its all-reduces at one end or at the other."""
    result = simulate(tree({"backend": "rdma", "hosts": "hosts.yaml", "repeats": 1}))
    assert result.measured is not None
    took_s = {
        (each["operation"], each["size_bytes"]): each["duration_ps"] * 1e-12
        for each in json.loads(result.measured)["graphs"]
        if each["gpus"] == [0, 1]
    }
    reduces = [took_s["all_reduce", size] for size in (512 << 10, 576 << 10)]
    gathers = [time for (operation, _), time in took_s.items() if operation == "all_gather"]
    columns = result.iterations.columns()
    (found_s,) = columns["communication_s"][columns["prefill_tokens"] == 300]
    assert 48 * min(reduces) + min(gathers) <= found_s <= 49 * max(reduces) + max(gathers)


@needs_ucx
def test_a_failure_of_the_hosts_ends_the_run_in_one_line(folder: Path) -> None:
    (folder / "hosts.yaml").write_text(HOSTS.replace("nodes: 1, device: lo", "nodes: 1, device: nosuch0"))
    (folder / "c.yaml").write_text(json.dumps(tree({"backend": "rdma", "hosts": "hosts.yaml"})))
    finished = run_forked("vidur_pd", "run", "c.yaml", "-o", "out", "--quiet")
    assert (finished.returncode, finished.stderr.count("\n")) == (1, 1)
    assert "nosuch0" in finished.stderr
    assert not (folder / "out").exists()


@needs_ucx
def test_an_agent_that_is_killed_ends_the_run_in_one_line_and_leaves_nothing(folder: Path) -> None:
    """The agent of rank 1, once it executes graphs; a hundred executions of each would take minutes."""
    (folder / "c.yaml").write_text(json.dumps(tree({"backend": "rdma", "hosts": "hosts.yaml", "repeats": 100})))
    command = [sys.executable, "-m", "vidur_pd", "run", "c.yaml", "-o", "out", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        deadline_s = time.monotonic() + 60.0
        while len(agents := agents_of(run.pid)) < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        time.sleep(3.0)
        os.kill(agents[1], signal.SIGKILL)
        _, errors = run.communicate(timeout=30.0)
    assert (run.returncode, errors.count("\n")) == (1, 1)
    assert "rank 1: " in errors  # its own end, or what another rank says of it
    assert not (folder / "out").exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in agents.values())


def agents_of(pid: int) -> dict[int, int]:
    """Processes of agents that a process has started, by rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if "netsim.backends.rdma.agent" in words:
            found[int(words[words.index("--rank") + 1])] = int(child)
    return found


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
def test_kv_transfers_take_what_a_calibration_says(folder: Path, backend: str) -> None:
    """100 and 300 tokens: 614,400 and 1,843,200 bytes between each pair of GPUs, 327.2 and 941.6 µs."""
    (folder / "c.json").write_text(format_calibration(measured_pairs((0, 1), (1, 0), (0, 2), (1, 2))))
    result = simulate(tree({"backend": backend, "coupling": "isolated", "calibration": "c.json"}))
    assert [flow.size_bytes for flow in result.flows] == [614_400] * 2 + [1_843_200] * 2
    took_ps = [flow.end_ps - flow.start_ps for flow in result.flows]
    assert took_ps == pytest.approx([327.2e6] * 2 + [941.6e6] * 2, rel=1e-6)


@pytest.mark.parametrize(
    ("network", "others", "message"),
    [
        ({"hosts": "hosts.yaml", "coupling": "exact"}, {}, "network.coupling: found 'exact' with backend 'rdma'"),
        ({"hosts": "hosts.yaml", "coupling": "fluid"}, {}, "network.coupling: found 'fluid' with backend 'rdma'"),
        ({}, {}, "network.hosts: found none with backend 'rdma'"),
        ({"hosts": "missing.yaml"}, {}, "missing.yaml"),
        ({"hosts": "environment.yaml"}, {}, "launcher: found environment, expected local, netns or ssh"),
        ({"hosts": "few.yaml"}, {}, "network.hosts: found no agent for GPU 3"),
        ({"hosts": "few.yaml", "measured": "known.json"}, {}, "network.measured: found other agents in"),
        ({"hosts": "hosts.yaml", "calibration": "c.json"}, {}, "network.calibration: found one with backend 'rdma'"),
        ({"hosts": "hosts.yaml", "repeats": 0}, {}, "network.repeats: found 0"),
        (
            {"hosts": "hosts.yaml"},
            {"faults": [{"kind": "nic", "gpu": 0, "at_s": 1.0}]},
            "faults.0.kind: found 'nic' with backend 'rdma'",
        ),
    ],
)
def test_what_real_traffic_cannot_be_is_refused(
    folder: Path, network: dict[str, Any], others: dict[str, Any], message: str
) -> None:
    if "few" in str(network) and "measured" not in network:
        pytest.importorskip("netsim._ucx", reason="built without UCX (libucx-dev was not there)")
    (folder / "few.yaml").write_text("agents: [{nodes: 0-2}]")
    (folder / "environment.yaml").write_text("{launcher: environment, rendezvous: {port: 1}, agents: [{nodes: 0-3}]}")
    (folder / "known.json").write_text(format_measured([], measured_pairs()))
    with pytest.raises(InputError) as error:
        prepare(tree({"backend": "rdma", **network}, **others))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_graph_that_an_earlier_run_has_not_measured_needs_hosts(folder: Path) -> None:
    (folder / "known.json").write_text(format_measured([], measured_pairs()))
    (folder / "c.yaml").write_text(json.dumps(tree({"backend": "rdma", "measured": "known.json"})))
    finished = run_forked("vidur_pd", "run", "c.yaml", "-o", "out", "--quiet")
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1)
    assert "network.measured: found no all_reduce of " in finished.stderr
    assert "expected it there, or network.hosts" in finished.stderr


def compared_over_shaped_links(folder: Path) -> dict[str, Any]:
    """Summaries of the example by backend, with results in ``out``."""
    with shaped_hosts(4, JUMBO_MTU, FAST_RATE_BPS) as namespaces:
        agents = [
            {"nodes": node, "namespace": host.name, "address": host.address, "device": host.device}
            for node, host in enumerate(namespaces)
        ]
        hosts = {"launcher": "netns", "transports": "tcp", "rndv_threshold": "inf", "pings": 100, "agents": agents}
        (folder / "shaped.yaml").write_text(json.dumps(hosts))
        settings = ("--set", f"network.hosts={folder / 'shaped.yaml'}", "--set", "workload.requests=2")
        example = EXAMPLES / "rdma" / "compare.yaml"
        backends = "analytical,fluid,packet,rdma"
        finished = run_forked("vidur_pd", "compare", example, "--backends", backends, "-o", "out", "--json", *settings)
    assert (finished.returncode, finished.stderr) == (0, "")
    summaries: dict[str, Any] = json.loads(finished.stdout)
    assert list(summaries) == backends.split(",")
    return summaries


def frames_of_large(measured: Path) -> tuple[list[float], list[float]]:
    """Shortest times of collectives and of messages from 1 MiB on, over what their frames take."""
    written = json.loads(measured.read_text())
    frames_ps = 8e12 / FAST_RATE_BPS * 9014 / 8948
    reduces = [each for each in written["graphs"] if each["size_bytes"] >= 1 << 20]
    assert {each["operation"] for each in reduces} == {"all_reduce"}
    messages = [
        each for pair in written["calibration"]["pairs"] for each in pair["samples"] if each["size_bytes"] >= 1 << 20
    ]
    burst_ps = BURSTS[FAST_RATE_BPS] * 8e12 / FAST_RATE_BPS
    for each in messages:
        assert each["shortest_ns"] * 1e3 >= 0.98 * (each["size_bytes"] * frames_ps - burst_ps), each
    return (
        [each["shortest_ps"] / (each["size_bytes"] * frames_ps) for each in reduces],
        [each["shortest_ns"] * 1e3 / (each["size_bytes"] * frames_ps) for each in messages],
    )


COMPARISONS = 4
"""Most of them, as long as all are late: other processes on these cores can only delay what is sent."""


@needs_ucx
def test_the_example_over_shaped_links_is_compared_with_what_is_simulated(folder: Path) -> None:
    """Prompts of 2,000 to 4,000 tokens: all-reduces of 3 to 7 MiB and KV of 12 to 24 MB per pair, so that the rate of
    the links decides: the shortest of each are within 10 % of what frames take (8,948 bytes of payload in 9,014). A
    full bucket spares a message its burst, 6 % of 1 MiB. An all-reduce of two sends each byte once, half at a time."""
    for _ in range(COMPARISONS):
        summaries = compared_over_shaped_links(folder)
        reduces, large = frames_of_large(folder / "out" / "rdma" / "measured.json")
        if min(reduces) < 1.1 and min(large) < 1.1:
            break
    assert all(summary["completed"] == 2 for summary in summaries.values())
    assert summaries["rdma"]["network"]["measured"]["lanes"] == ["tcp/eth0"]
    assert (folder / "out" / "comparison.html").is_file()
    assert 0.95 < min(reduces) < 1.1
    assert min(large) < 1.1
    took = {backend: dict(kv_times_s(folder / "out" / backend)) for backend in summaries}
    assert all(took_s > 0.95 * took["fluid"][size_bytes] for size_bytes, took_s in took["rdma"].items())
    assert summaries["rdma"]["ttft_s"]["mean"] > 0.95 * summaries["fluid"]["ttft_s"]["mean"]
