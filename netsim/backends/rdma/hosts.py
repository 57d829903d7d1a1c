"""Hosts file: which agent sends for which nodes of the topology, over which address, and how agents are started."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from boundary.errors import InputError
from boundary.fields import Count, PositiveSeconds, Section
from boundary.quoting import quoted
from boundary.yaml_text import read_yaml_mapping
from netsim.flow import FlowGraph

_RANGE: Final = re.compile(r"(\d{1,9})-(\d{1,9})")
_MOST_NODES: Final = 1_000_000
NO_RANK: Final = -1
HOST_MEMORY: Final = -1
"""In place of the number of a GPU."""


def _expanded(value: object) -> object:
    """``"0-3"`` is four nodes, and a number one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        first, last = map(int, found.groups())
        if 0 <= last - first < _MOST_NODES:
            return list(range(first, last + 1))
    return value


def _explicit(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"found {address!r}, expected an IPv4 or IPv6 address") from None
    if found.is_unspecified:
        raise ValueError(f"found {address!r}, expected the address of one interface, as agents listen on it")
    return address


Address = Annotated[str, AfterValidator(_explicit)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.@:%,/-]+$")]
"""Of a namespace, a host, a device, transports: nothing that a shell would take for more than a word."""


class AgentPlace(Section):
    """An agent: one process, for the nodes behind one NIC of one host."""

    nodes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_expanded), Field(min_length=1)]
    """Nodes of the topology: a number, a list, or a range such as ``0-7``."""
    address: Address = "127.0.0.1"
    """Of its NIC: it listens there and sends from there."""
    device: Name | None = None
    """``mlx5_0:1`` or, with engine `ucx` (``UCX_NET_DEVICES``), also ``eth0``. Left out: any; with engine `verbs`, that
    which has the address."""
    gpu: Annotated[int, Field(ge=0, le=255)] | None = None
    """With engine `ucx`, whose UCX has to know CUDA: device, as CUDA counts, from whose memory payloads leave and in
    which they arrive. Left out: memory of the host."""
    namespace: Name | None = None
    """Network namespace, with launcher ``netns``."""
    host: Name | None = None
    """What ``ssh`` connects to, with launcher ``ssh``."""


class VerbsSettings(Section):
    """Settings of engine `verbs`. Defaults are those of NCCL 2.28 (``src/transport/net_ib.cc``, ``NCCL_IB_…``)."""

    queue_pairs: Annotated[int, Field(ge=1, le=128)] = 1
    """Of each connection (``QPS_PER_CONNECTION``)."""
    split: bool = False
    """A flow goes over all queue pairs of its connection in equal parts; without it, flows take turns
    (``SPLIT_DATA_ON_QPS``)."""
    mtu_bytes: Literal[256, 512, 1024, 2048, 4096] | None = None
    """Payload of a packet. Left out: the smaller of both ports' active ones."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """At all agents (``GID_INDEX``). Left out: the index of the RoCE v2 GID that is the agent's address."""
    traffic_class: Annotated[int, Field(ge=0, le=255)] = 0
    """DSCP in its upper six bits (``TC``)."""
    service_level: Annotated[int, Field(ge=0, le=15)] = 0
    """(``SL``)"""
    timeout: Annotated[int, Field(ge=1, le=31)] = 20
    """An acknowledgement is waited for 4.096 µs · 2^timeout, 4.3 s by default, before data are resent (``TIMEOUT``).
    It has to exceed the time in queues."""
    retry_count: Annotated[int, Field(ge=0, le=7)] = 7
    """How often data are resent before the connection fails (``RETRY_CNT``)."""
    rnr_retry: Annotated[int, Field(ge=0, le=7)] = 7
    """The same where the receiver is not ready; 7: without end."""


class RendezvousPlace(Section):
    """Where agents meet before and after the flows: an address of the process that starts them."""

    address: Address = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: any that is free; not with launcher ``environment``."""


class Hosts(Section):
    """Hosts file."""

    engine: Literal["ucx", "verbs"] = "ucx"
    """`ucx` runs over RDMA and TCP, `verbs` over RDMA only, just as ``verbs`` says."""
    launcher: Literal["local", "netns", "ssh", "environment"] = "local"
    """``environment``: torchrun, MPI, Slurm or Kubernetes has started the same command on every rank."""
    agents: Annotated[tuple[AgentPlace, ...], Field(min_length=1, max_length=65536)]
    """Rank 0, rank 1, …"""
    rendezvous: RendezvousPlace = RendezvousPlace()
    token_file: Path | None = None
    """Holds the secret that ranks share, with launcher ``environment``. Left out: variable NETSIM_RDMA_TOKEN."""
    python: Name = "python3"
    """Interpreter on the hosts of launcher ``ssh``, in which netsim is installed."""
    transports: Name | None = None
    """What UCX may use (``UCX_TLS``), such as ``tcp``, or ``rc`` for RDMA only. Left out: what UCX prefers."""
    rndv_threshold: Annotated[str, Field(pattern=r"^(\d{1,12}[kKmMgG]?|inf|auto)$")] | None = None
    """Size from which UCX asks the receiver for a buffer first (``UCX_RNDV_THRESH``), such as ``64k`` or ``inf``; over
    TCP the answer waits behind the data of the other direction. Left out: what UCX prefers."""
    verbs: VerbsSettings | None = None
    """With engine `verbs`."""
    channels: Annotated[int, Field(ge=1, le=64)] = 1
    """Connections per ordered pair of agents; flow labels choose among them."""
    progress: Literal["sleep", "spin"] = "sleep"
    """``spin`` takes a core per agent all the time, and answers a few µs earlier."""
    start_timeout_s: PositiveSeconds = 60.0
    """Until all agents have come and are connected."""
    link_timeout_s: PositiveSeconds = 10.0
    """A peer, a link or an agent that is silent for so long has failed."""
    run_timeout_s: PositiveSeconds | None = None
    """For the flows of a graph. Left out: 60 s and 20 times what its bytes take one after the other."""
    pings: Count = 1000
    """Exchanges of time stamps with rank 0, before and after the flows."""


_PARSER: Final = TypeAdapter(Hosts)


def read_hosts(path: Path) -> Hosts:
    """Reads a hosts file. Raises: InputError, naming file, field, what was found and what was expected."""
    tree = read_yaml_mapping(path, "hosts")
    try:
        hosts = _PARSER.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "hosts"
        reason = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path} {field}: found {quoted(first['input'])}: {reason}") from None
    _check(hosts, path)
    return hosts


def ranks_of_nodes(hosts: Hosts, graph: FlowGraph, where: str) -> NDArray[np.int64]:
    """[nodes] rank of each node that flows know, `NO_RANK` for one without an agent.

    Raises:
        InputError: a flow of the graph has an end without an agent.
    """
    named = max(max(place.nodes) for place in hosts.agents)
    used = int(max(graph.src.max(initial=-1), graph.dst.max(initial=-1)))
    ranks = np.full(max(named, used) + 1, NO_RANK, dtype=np.int64)
    for rank, place in enumerate(hosts.agents):
        ranks[list(place.nodes)] = rank
    ends = np.unique(np.concatenate((graph.src, graph.dst)))
    missing = ends[ranks[ends] == NO_RANK]
    if len(missing):
        raise InputError(f"{where}: found node {missing[0]} at the end of a flow, expected an agent for it")
    return ranks


def _check(hosts: Hosts, path: Path) -> None:
    owner: dict[int, int] = {}
    for rank, place in enumerate(hosts.agents):
        for node in place.nodes:
            if node in owner:
                raise InputError(f"{path} agents.{rank}.nodes: found {node}, which agent {owner[node]} has already")
            owner[node] = rank
        for launcher, field in (("netns", "namespace"), ("ssh", "host")):
            is_given = getattr(place, field) is not None
            if is_given != (hosts.launcher == launcher):
                found, expected = ("one", "none") if is_given else ("none", "one")
                raise InputError(
                    f"{path} agents.{rank}.{field}: found {found}, expected {expected} with launcher {hosts.launcher}"
                )
        if place.gpu is not None and hosts.engine != "ucx":
            raise InputError(f"{path} agents.{rank}.gpu: found one, expected none with engine {hosts.engine}")
    for field, engine in (("transports", "ucx"), ("rndv_threshold", "ucx"), ("verbs", "verbs")):
        if getattr(hosts, field) is not None and hosts.engine != engine:
            raise InputError(f"{path} {field}: found one, expected none with engine {hosts.engine}")
    if hosts.launcher == "environment" and hosts.rendezvous.port == 0:
        raise InputError(f"{path} rendezvous.port: found 0, expected a port that all ranks know")
