"""How agents are started, and how a process that others have started knows its rank."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from boundary.errors import InputError
from netsim.backends.rdma.environment import rank_in_environment
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.hosts import Hosts, read_hosts
from netsim.backends.rdma.launchers import Processes, agent_command, listener_at, listener_in

AGENT = ["-m", "netsim.backends.rdma.agent", "--rank", "1", "--rendezvous", "10.0.0.1", "4242"]
TIMEOUTS = ["--start-timeout", "60", "--silence-timeout", "10"]


def hosts(launcher: str, **place: str) -> Hosts:
    agents = [{"nodes": 0, **place}, {"nodes": 1, "address": "10.0.0.2", **place}]
    return Hosts.model_validate({"launcher": launcher, "agents": agents, "python": "/opt/venv/bin/python"})


def test_a_local_agent_has_the_interpreter_of_its_launcher() -> None:
    assert agent_command(hosts("local"), 1, ("10.0.0.1", 4242)) == [sys.executable, *AGENT, *TIMEOUTS]


def test_an_agent_in_a_namespace_is_started_by_ip() -> None:
    command = agent_command(hosts("netns", namespace="left"), 1, ("10.0.0.1", 4242))
    assert command == ["ip", "netns", "exec", "left", sys.executable, *AGENT, *TIMEOUTS]


def test_an_agent_on_another_host_is_started_by_ssh_without_questions_and_without_the_token() -> None:
    command = agent_command(hosts("ssh", host="user@node1"), 1, ("10.0.0.1", 4242))
    assert command[:2] == ["ssh", "-T"]
    assert "BatchMode=yes" in command
    assert command[-2] == "user@node1"
    assert shlex.split(command[-1]) == ["/opt/venv/bin/python", *AGENT, *TIMEOUTS]


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_each_launcher_tells_the_rank_in_its_own_variables(environment: dict[str, str]) -> None:
    assert rank_in_environment(environment, 2) == 1


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "found none of RANK, OMPI_COMM_WORLD_RANK"),
        ({"RANK": "2"}, "RANK: found '2', expected a rank"),
        ({"RANK": "x"}, "RANK: found 'x'"),
        ({"RANK": "1", "WORLD_SIZE": "3"}, "WORLD_SIZE: found 3 .torchrun., expected 2"),
    ],
)
def test_environments_that_do_not_fit_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rank_in_environment(environment, 2)


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(TransferFailure, match="rank 0: /no/such/program: No such file"):
        Processes().start(0, ["/no/such/program"], b"token")


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(InputError, match=r"rendezvous.address: found 192.0.2.1 port 0"):
        listener_at("192.0.2.1", 0)


def test_an_unknown_namespace_is_named() -> None:
    with pytest.raises(InputError, match="namespace: found no-such-namespace"):
        listener_in("no-such-namespace")


FAULTS = {
    "agents: []": "agents",
    "agents: [{nodes: 0}, {nodes: 0-3}]": "agents.1.nodes: found 0, which agent 0 has already",
    "agents: [{nodes: 3-1}]": "agents.0.nodes",
    "agents: [{nodes: 0, address: 0.0.0.0}]": "expected the address of one interface",
    "agents: [{nodes: 0, address: node1}]": "expected an IPv4 or IPv6 address",
    "agents: [{nodes: 0, namespace: left}]": "agents.0.namespace: found one, expected none with launcher local",
    "launcher: netns\nagents: [{nodes: 0}]": "agents.0.namespace: found none, expected one with launcher netns",
    "launcher: ssh\nagents: [{nodes: 0, host: 'a; rm -rf /'}]": "agents.0.host",
    "launcher: environment\nagents: [{nodes: 0}]": "rendezvous.port: found 0",
    "agents: [{nodes: 0}]\nrendezvous: {address: '::'}": "expected the address of one interface",
    "agents: [{nodes: 0}]\ntokens: 1": "tokens",
    "engine: mpi\nagents: [{nodes: 0}]": "engine",
    "engine: verbs\ntransports: rc\nagents: [{nodes: 0}]": "transports: found one, expected none with engine verbs",
    "engine: verbs\nagents: [{nodes: 0, gpu: 1}]": "agents.0.gpu: found one, expected none with engine verbs",
    "agents: [{nodes: 0, gpu: -1}]": "agents.0.gpu: found -1",
    "engine: verbs\nrndv_threshold: 8k\nagents: [{nodes: 0}]": "rndv_threshold: found one, expected none with",
    "verbs: {queue_pairs: 4}\nagents: [{nodes: 0}]": "verbs: found one, expected none with engine ucx",
    "engine: verbs\nverbs: {queue_pairs: 0}\nagents: [{nodes: 0}]": "verbs.queue_pairs: found 0",
    "engine: verbs\nverbs: {mtu_bytes: 1500}\nagents: [{nodes: 0}]": "verbs.mtu_bytes: found 1500",
    "engine: verbs\nverbs: {gid_index: -1}\nagents: [{nodes: 0}]": "verbs.gid_index: found -1",
    "engine: verbs\nverbs: {traffic_class: 256}\nagents: [{nodes: 0}]": "verbs.traffic_class: found 256",
    "engine: verbs\nverbs: {timeout: 0}\nagents: [{nodes: 0}]": "verbs.timeout: found 0",
    "engine: verbs\nverbs: {retry_count: 8}\nagents: [{nodes: 0}]": "verbs.retry_count: found 8",
    "engine: verbs\nverbs: {queue_pair: 4}\nagents: [{nodes: 0}]": "verbs.queue_pair",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_a_hosts_file_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_hosts(path)
    assert str(path) in str(error.value)
    assert FAULTS[text] in str(error.value)
