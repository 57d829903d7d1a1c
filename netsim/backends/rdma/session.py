"""Session: agents that have been started and connected, and execute one graph after the other."""

from __future__ import annotations

import io
import secrets
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.executable import check_executable
from netsim.backends.rdma.frames import Frame
from netsim.backends.rdma.hosts import HOST_MEMORY, Hosts, VerbsSettings, ranks_of_nodes
from netsim.backends.rdma.launchers import Processes, agent_command, listeners_for
from netsim.backends.rdma.measurement import Measurement, RankReport, merged, report_from
from netsim.backends.rdma.meeting import Meeting
from netsim.backends.rdma.share import graph_bytes
from netsim.flow import FlowGraph

TOKEN_BYTES: Final = 32
_NS_PER_S: Final = 1_000_000_000
_MARGIN_S: Final = 0.05
"""Between the decision to start and the start, for the message to reach all; our choice."""
_REPORT_S: Final = 10.0
_SPARE_S: Final = 60.0
_SERIAL_FACTOR: Final = 20.0
_SLOWEST_BPS: Final = 1e8
"""A link that is slower needs a `run_timeout_s` in the hosts file for graphs of more than a gigabyte."""


class Session:
    """Session of the agents of a hosts file. After a failure it executes nothing more.

    Args:
        hosts: the hosts file.
        token: the secret of the ranks where they know one already (launcher ``environment``).
        digest: of the graph, for ranks that have read it themselves.
        must_verify: payloads are compared with what was sent.
        launched: ranks to start; all where left out.

    Raises:
        InputError: the rendezvous cannot listen where it should.
        TransferFailure: not all agents came; those that did have heard why.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        must_verify: bool = False,
        token: bytes | None = None,
        digest: str = "",
        launched: tuple[int, ...] | None = None,
    ) -> None:
        self._hosts = hosts
        self._failure: str | None = None
        self._is_closed = False
        token = token or secrets.token_bytes(TOKEN_BYTES)
        listeners = listeners_for(hosts)
        self._processes = Processes()
        self._meeting = Meeting(
            list(listeners.values()),
            token,
            len(hosts.agents),
            digest=digest,
            silence_s=hosts.link_timeout_s,
            find_dead=self._processes.find_dead,
        )
        try:
            for rank in range(len(hosts.agents)) if launched is None else launched:
                bound = listeners[hosts.agents[rank].namespace].getsockname()
                self._processes.start(rank, agent_command(hosts, rank, (bound[0], bound[1])), token)
            self._ping_ports = self._set_up(must_verify)
        except TransferFailure as failure:
            self._failure = str(failure)
            self._meeting.abort(self._failure, 0.0)
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> dict[int, int]:
        """Of the agents that were started here, by rank."""
        return self._processes.ids()

    def execute(self, graph: FlowGraph) -> Measurement:
        """Sends the flows of a graph and measures them; what failed is in the measurement.

        Raises:
            InputError: a flow of the graph has an end without an agent, or the graph is not executable.
            TransferFailure: an earlier graph has failed.
        """
        if self._failure is not None:
            raise TransferFailure(self._failure)
        check_executable(graph)
        rank_of_node = ranks_of_nodes(self._hosts, graph, "hosts")
        t0_ns = 0
        try:
            self._meeting.broadcast("job", {"ping_ports": self._ping_ports}, _job(graph, rank_of_node))
            self._exchange_contacts()
            ready = self._meeting.collect("ready", self._hosts.start_timeout_s)
            t0_ns = self._start(ready)
            self._meeting.collect("done", self._run_timeout_s(graph))
            self._meeting.broadcast("drain")
            rows = self._meeting.collect("rows", self._hosts.start_timeout_s)
        except TransferFailure as failure:
            self._failure = str(failure)
            rows = self._meeting.abort(self._failure, _REPORT_S)
        return self._merged(graph, rank_of_node, rows, t0_ns)

    def close(self) -> None:
        """Ends the agents; may be called again."""
        try:
            if self._failure is None and not self._is_closed:
                self._meeting.broadcast("bye")
        except TransferFailure:
            pass  # they end with their connections
        finally:
            self._is_closed = True
            self._meeting.close()
            self._processes.end()

    def _set_up(self, must_verify: bool) -> list[int]:
        """Ports of pings, by rank."""
        hosts = self._hosts
        self._meeting.collect("hello", hosts.start_timeout_s)
        settings: dict[str, Any] = {
            "places": [
                {
                    "address": place.address,
                    "device": place.device or "",
                    "gpu": HOST_MEMORY if place.gpu is None else place.gpu,
                }
                for place in hosts.agents
            ],
            "engine": hosts.engine,
            "ucx": {"transports": hosts.transports or "", "rndv_threshold": hosts.rndv_threshold or ""},
            "verbs": (hosts.verbs or VerbsSettings()).model_dump(),
            "key": secrets.randbits(64),
            "channels": hosts.channels,
            "spin": hosts.progress == "spin",
            "must_verify": must_verify,
            "silence_s": hosts.link_timeout_s,
            "connect_s": hosts.start_timeout_s,
            "pings": hosts.pings,
        }
        self._meeting.broadcast("setup", settings)
        addresses = self._meeting.collect("address", hosts.start_timeout_s)
        return [addresses[rank].fields["ping_port"] for rank in range(len(hosts.agents))]

    def _exchange_contacts(self) -> None:
        """Tells every rank what the others want it to know before it connects to them."""
        offered = self._meeting.collect("offer", self._hosts.start_timeout_s)
        for rank in range(len(self._hosts.agents)):
            to_rank = {str(peer): frame.fields["contacts"].get(str(rank)) for peer, frame in offered.items()}
            contacts = {peer: contact for peer, contact in to_rank.items() if contact is not None}
            self._meeting.send(rank, "contacts", {"contacts": contacts})

    def _start(self, ready: dict[int, Frame]) -> int:
        """Tells all when to start, on the clock of rank 0: its last reading, and more than has passed since."""
        waited_s = time.monotonic() - ready[0].received_s
        t0_ns = int(ready[0].fields["clock_ns"]) + round((waited_s + _MARGIN_S) * _NS_PER_S)
        self._meeting.broadcast("start", {"t0_ns": t0_ns})
        return t0_ns

    def _run_timeout_s(self, graph: FlowGraph) -> float:
        if self._hosts.run_timeout_s is not None:
            return self._hosts.run_timeout_s
        carried_s = float(graph.size_bytes.sum()) * 8 / _SLOWEST_BPS
        waited_s = float(graph.delay_ps.sum() + graph.ready_ps.max(initial=0)) * 1e-12
        return _SPARE_S + _SERIAL_FACTOR * carried_s + waited_s

    def _merged(
        self, graph: FlowGraph, rank_of_node: NDArray[np.int64], rows: dict[int, Frame], t0_ns: int
    ) -> Measurement:
        reports: dict[int, RankReport] = {rank: report_from(frame.fields, frame.blob) for rank, frame in rows.items()}
        devices = {rank: place.device or "" for rank, place in enumerate(self._hosts.agents)}
        sender, receiver = rank_of_node[graph.src], rank_of_node[graph.dst]
        return merged(reports, sender, receiver, devices, self._hosts.engine, t0_ns, self._failure)


def _job(graph: FlowGraph, rank_of_node: NDArray[np.int64]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, rank_of_node=rank_of_node, graph=np.frombuffer(graph_bytes(graph), dtype=np.uint8))
    return buffer.getvalue()
