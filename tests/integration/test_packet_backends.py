"""PD clusters whose KV transfers and collectives are packets."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from boundary.errors import InputError
from netsim.backends.packet import PacketBackend
from netsim.units import PS_PER_MS
from tests.integration.small_runs import config, pool, requests, simulate
from tests.integration.test_command_line import CONFIG, vidur_pd
from vidur_pd.execution.clock import Priority
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import Simulation, api
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload.request import RequestStatus

HOSTS = {"kind": "rail_optimized", "gpus_per_node": 1}
"""One GPU per server, so that everything crosses NICs."""
SINGLE = [pool("p", "prefill"), pool("d", "decode")]
TENSOR = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
ROWS = [(3_000 * index, 500, 8) for index in range(4)]
FAST = {"estimator": "roofline"}
"""Prices kernels without fitting models to measurements, which matter little here."""
IMPATIENT = {"retransmission_timeout": "100us", "max_retries": 1, "reroute_delay": "10us"}
SINGLE = [pool("p", "prefill"), pool("d", "decode")]
TENSOR = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
ROWS = [(3_000 * index, 500, 8) for index in range(4)]
FAST = {"estimator": "roofline"}
"""Prices kernels without fitting models to measurements, which matter little here."""
NO_RECOVERY = {"requests": "fail", "transfer_retries": 0}
HASTY = {"retransmission_timeout": "1us", "max_retries": 0}
"""Gives up before the first acknowledgement can be back."""


def run(pools: list[dict[str, Any]], **network: Any) -> Result:
    sections = {name: network.pop(name) for name in ("kv_transfer",) if name in network}
    engine = FAST | network.pop("engine", {})
    return simulate(config(pools, topology=HOSTS, engine=engine, network=network, **sections), ROWS)


def run_without(gpu: int, pools: list[dict[str, Any]], rows: int = len(ROWS), **sections: Any) -> Result:
    """A run in which a GPU has had no cable from its beginning, which nobody knows."""
    network = {"backend": "packet", "coupling": "exact", "roce": {**IMPATIENT, "reroute_delay": "100s"}}
    tree = config(pools, topology=HOSTS, engine=FAST, network=network, recovery=NO_RECOVERY, **sections)
    state = assemble(plan_simulation(tree))
    assert isinstance(state.network, PacketBackend)
    for link in np.flatnonzero((state.plan.topology.link_src == gpu) | (state.plan.topology.link_dst == gpu)).tolist():
        state.network.set_link_up(link, False)
    return Simulation(state, requests(ROWS[:rows])).run()


def kv_ps(result: Result) -> list[int]:
    done = result.requests
    return [(r.kv_arrived_ps or 0) - (r.kv_sent_ps or 0) for r in done]


@pytest.mark.parametrize("coupling", ["isolated", "exact"])
def test_kv_transfers_as_packets_take_as_long_as_as_fluids_and_their_headers(coupling: str) -> None:
    """Without collectives both couplings are the transfers alone: 52 bytes more per 4096, and an acknowledgement of 60
    bytes that nothing hinders. Start and end of a path add a few microseconds; transfers take milliseconds."""
    packets, fluids = run(SINGLE, backend="packet", coupling=coupling), run(SINGLE, coupling=coupling)
    assert packets.summary.completed == fluids.summary.completed == len(ROWS)
    first = [kv_ps(result)[0] for result in (packets, fluids)]
    assert first[0] / first[1] == pytest.approx(4148 / 4096, rel=2e-3)
    assert packets.summary.network.backend == "packet"
    assert packets.summary.network.coupling == coupling


def test_collectives_as_packets_are_slower_than_as_fluids_by_little_and_both_couplings_agree() -> None:
    """Two ranks on two servers: all-reduces of small batches are latency, which packets add their serialisation to."""
    found = {
        (backend, coupling): run(
            TENSOR, backend=backend, coupling=coupling, engine={"async_scheduling": False}
        ).summary.tpot_s.mean
        for backend in ("fluid", "packet")
        for coupling in ("isolated", "exact")
    }
    assert found["packet", "exact"] == pytest.approx(found["packet", "isolated"], rel=0.02)
    assert 1.0 < found["packet", "exact"] / found["fluid", "exact"] < 1.1


def test_equal_runs_on_packets_give_equal_bytes() -> None:
    first, second = (run(TENSOR, backend="packet", coupling="exact") for _ in range(2))
    assert list(requests_csv(first.table)) == list(requests_csv(second.table))


def test_settings_of_the_roce_model_reach_the_network() -> None:
    """Packets of 1024 bytes have four times the headers of 4096: 5 % instead of 1.3 %."""
    small = run(SINGLE, backend="packet", coupling="exact", roce={"mtu_bytes": 1024})
    large = run(SINGLE, backend="packet", coupling="exact")
    assert kv_ps(small)[0] / kv_ps(large)[0] == pytest.approx((1076 / 1024) / (4148 / 4096), rel=2e-3)


@pytest.mark.parametrize("mode", ["pull", "push", "layerwise"])
def test_requests_whose_kv_the_network_gives_up_fail_and_leave_nothing_behind(mode: str) -> None:
    """The run ends with its checks that no KV block is held and no hand-over is open."""
    result = run_without(1, SINGLE, kv_transfer={"mode": mode})
    ended = result.requests
    assert {request.status for request in ended} == {RequestStatus.FAILED}
    assert result.summary.failed == len(ROWS)
    rows = list(csv.DictReader("".join(requests_csv(result.table)).splitlines()))
    assert {row["status"] for row in rows} == {"failed: the network gave up its KV transfer"}
    assert all(row["prefill_completed_at_s"] and not row["kv_arrived_at_s"] for row in rows)


def test_requests_of_an_iteration_whose_collective_is_given_up_fail() -> None:
    result = run_without(1, TENSOR, rows=1)
    ended = result.requests
    assert {request.status_reason for request in ended} == {"the network gave up a collective of its iteration"}
    assert all(request.scheduled_ps is not None and request.completed_ps is None for request in ended)


def test_when_a_cable_breaks_what_decodes_over_it_fails_and_its_blocks_return() -> None:
    """GPU 0 prefills, GPUs 1 and 2 decode together. A millisecond after the KV has arrived, GPU 2 loses its cable."""
    quick = {"retransmission_timeout": "100us", "max_retries": 1, "reroute_delay": "100s"}
    pools = [pool("p", "prefill"), pool("d", "decode", tp=2)]
    network_config = {"backend": "packet", "coupling": "exact", "roce": quick}
    tree = config(pools, topology=HOSTS, engine=FAST, network=network_config, recovery=NO_RECOVERY)
    arrived_ps = simulate(tree, ROWS[:1]).requests[0].kv_arrived_ps
    assert arrived_ps is not None
    state = assemble(plan_simulation(tree))
    network = state.network
    assert isinstance(network, PacketBackend)
    cable = np.flatnonzero((state.plan.topology.link_src == 2) | (state.plan.topology.link_dst == 2)).tolist()
    simulation = Simulation(state, requests(ROWS[:1]))
    for link in cable:
        simulation._queue.schedule(
            arrived_ps + PS_PER_MS, Priority.ARRIVAL, lambda link=link: network.set_link_up(link, False)
        )
    ended = simulation.run().requests
    assert {request.status for request in ended} == {RequestStatus.FAILED}
    assert ended[0].status_reason == "the network gave up a collective of its iteration"


def test_the_coupling_by_link_loads_needs_a_backend_that_shares_capacity() -> None:
    with pytest.raises(
        InputError, match=r"network.coupling: found 'fluid' with backend 'packet'.*'isolated' or 'exact'"
    ):
        plan_simulation(config(SINGLE, network={"backend": "packet", "coupling": "fluid"}))
    assert config(SINGLE, network={"backend": "packet"}).network.coupling == "isolated"
    assert config(SINGLE).network.coupling == "fluid"


def test_congestion_control_stands_beside_the_backend_and_in_the_settings() -> None:
    for network in ({"congestion_control": "hpcc"}, {"roce": {"congestion_control": "hpcc"}}):
        found = config(SINGLE, network={"backend": "packet", **network}).network
        assert found.congestion_control == found.roce.congestion_control == "hpcc"
    with pytest.raises(ValueError, match=r"roce.congestion_control: found 'hpcc', expected 'none' as one level up"):
        config(SINGLE, network={"congestion_control": "none", "roce": {"congestion_control": "hpcc"}})


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("network.roce.mtu_byte=9000", "network.roce.mtu_byte: unknown field; did you mean 'mtu_bytes'?"),
        ("network.roce.mtu_bytes=1", "network.roce.mtu_bytes: found 1, expected at least 256"),
        ("network.roce.nack_interval=5", "found 5, expected a time with a unit"),
        ("network.roce.congestion.gian=5", "congestion.gian: unknown constant of dcqcn"),
        ("network.roce.switch_buffer_bytes=1000", "switch_buffer_bytes: found 1000, expected at least"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path: Path, setting: str, expected: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "engine": FAST, "network": {"backend": "packet"}}))
    finished = vidur_pd("run", path, "-o", tmp_path / "out", "--set", setting)
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1)
    assert expected in finished.stderr
    assert not (tmp_path / "out").exists()


def test_a_configuration_coupled_by_loads_is_compared_on_packets_with_isolated_collectives(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    small = {**CONFIG["workload"], "requests": 8}
    path.write_text(yaml.safe_dump({**CONFIG, "workload": small, "engine": FAST, "network": {"coupling": "fluid"}}))
    finished = vidur_pd("compare", path, "--backends", "fluid,packet", "-o", tmp_path / "out", "--json")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == "vidur-pd: packet: coupling 'isolated' instead of 'fluid', which needs link loads\n"
    summaries = json.loads(finished.stdout)
    assert {name: summary["network"]["coupling"] for name, summary in summaries.items()} == {
        "fluid": "fluid",
        "packet": "isolated",
    }
    assert [summary["completed"] for summary in summaries.values()] == [8, 8]
    repeated = vidur_pd("run", tmp_path / "out" / "packet" / "config.yaml", "-o", tmp_path / "again", "--quiet")
    assert repeated.returncode == 0, repeated.stderr
    again = (tmp_path / "again" / "requests.csv").read_bytes()
    assert again == (tmp_path / "out" / "packet" / "requests.csv").read_bytes()


@pytest.mark.ns3
@pytest.mark.skipif(importlib.util.find_spec("netsim._ns3") is None, reason="this build has no ns-3")
def test_one_ns3_after_another_is_simulated_in_one_process(tmp_path: Path) -> None:
    """By the library, over two seeds, and in a comparison; a process has one at a time."""
    tree = {**CONFIG, "workload": {**CONFIG["workload"], "requests": 2}, "engine": FAST}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**tree, "network": {"backend": "ns3", "coupling": "isolated"}}))
    first, second = (api.simulate(path) for _ in range(2))
    assert list(requests_csv(first.table)) == list(requests_csv(second.table))
    for words in (["run", path, "--seeds", "2", "--json"], ["compare", path, "--backends", "packet,ns3", "--json"]):
        finished = vidur_pd(*words, "-o", tmp_path / words[0])
        assert finished.returncode == 0, finished.stderr
