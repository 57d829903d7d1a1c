"""Execution of graphs by one rank, in a thread of its own: engine, clock, and the report of what was measured."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from netsim.backends.rdma.clock import ClockLine, ClockOffset, PingResponder, exchange_pings, now_ns
from netsim.backends.rdma.counters import read_counters, retransmits
from netsim.backends.rdma.engines import Engine, create_engine
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.frames import Frame
from netsim.backends.rdma.link_watch import LinkWatch
from netsim.backends.rdma.measurement import RankReport
from netsim.backends.rdma.share import Share, graph_from_bytes, share_of

_NS_PER_S: Final = 1_000_000_000


class Aborted(Exception):
    """The rendezvous has ended the run."""


class Control(Protocol):
    """What an execution needs of the agent around it (`netsim.backends.rdma.agent.Agent`)."""

    def next_command(self) -> Frame: ...
    def await_abort(self) -> None: ...
    def send(self, kind: str, fields: dict[str, Any] | None = None, blob: bytes = b"") -> None: ...
    def use_engine(self, stop: Callable[[], None], done_descriptor: int) -> None: ...
    def watch_links(self, watch: LinkWatch | None) -> None: ...


class Execution:
    """Execution by ``rank``: one engine, and one graph after the other."""

    def __init__(self, control: Control, rank: int) -> None:
        self._control, self._rank = control, rank
        self._engine: Engine | None = None
        self._responder: PingResponder | None = None

    def serve(self) -> None:
        """Takes ``setup`` and then one ``job`` after the other. Raises: Aborted, Failure."""
        settings = self._control.next_command().fields
        self._engine = engine = create_engine(settings, self._rank)
        self._responder = PingResponder(settings["places"][self._rank]["address"], settings["key"])
        self._control.use_engine(engine.stop, engine.done_descriptor)
        self._control.send("address", {"ping_port": self._responder.port})
        while True:
            job = self._control.next_command()
            _Job(self._control, self._rank, engine, settings, job).run()

    def close(self) -> None:
        """Closes the connections."""
        self._engine = None
        if self._responder is not None:
            self._responder.close()


class _Job:
    """One graph."""

    def __init__(self, control: Control, rank: int, engine: Engine, settings: dict[str, Any], job: Frame) -> None:
        self._control, self._rank, self._engine, self._settings = control, rank, engine, settings
        self._address: str = settings["places"][rank]["address"]
        self._ping_ports: list[int] = job.fields["ping_ports"]
        with np.load(io.BytesIO(job.blob), allow_pickle=False) as columns:
            rank_of_node = columns["rank_of_node"]
            graph = graph_from_bytes(columns["graph"].tobytes())
        self._share: Share = share_of(graph, rank_of_node, rank)
        self._is_loaded = False
        self._counters: dict[str, int] = {}
        own = now_ns()
        self._before = ClockOffset(own, 0.0, 0.0)

    def run(self) -> None:
        """Raises: Aborted, after the report of what there is."""
        try:
            self._prepare()
            t0_ns = self._control.next_command().fields["t0_ns"]
            self._engine.run(ClockLine(self._before, self._before).of_rank_0(t0_ns))
            self._control.next_command()  # drain
        except Aborted:
            self._report(self._before)
            raise
        except TransferFailure as failure:
            self._control.send("failed", {"reason": str(failure)})
            self._control.await_abort()
            self._report(self._before)
            raise Aborted from None
        finally:
            self._control.watch_links(None)
        self._report(self._offset())

    def _prepare(self) -> None:
        places, share, settings = self._settings["places"], self._share, self._settings
        self._engine.load(share.columns)
        self._is_loaded = True
        offered = self._engine.offer(share.out_ranks, share.in_ranks)
        self._control.send("offer", {"contacts": {str(rank): contact for rank, contact in offered.items()}})
        contacts = self._control.next_command().fields["contacts"]
        connect_ns = round(settings["connect_s"] * _NS_PER_S)
        self._engine.connect({int(rank): contact for rank, contact in contacts.items()}, connect_ns)
        self._before = self._offset()
        self._counters = read_counters(self._engine.device)
        neighbours = {
            (places[rank]["address"], self._ping_ports[rank]): rank
            for rank in {*share.out_ranks, *share.in_ranks} - {self._rank}
        }
        self._control.watch_links(LinkWatch(self._address, settings["key"], settings["silence_s"], neighbours))
        self._control.send("ready", {"clock_ns": now_ns()})

    def _offset(self) -> ClockOffset:
        if self._rank == 0:
            return ClockOffset(now_ns(), 0.0, 0.0)
        to = (self._settings["places"][0]["address"], self._ping_ports[0])
        return exchange_pings(self._address, to, self._settings["key"], self._settings["pings"])

    def _report(self, after: ClockOffset) -> None:
        share, nothing = self._share, np.full(0, -1, dtype=np.int64)
        if self._is_loaded:
            ready, posted, left, arrived = self._engine.times()
            sends, receives = share.sends, share.receives
        else:
            ready = posted = left = arrived = sends = receives = nothing
        report = RankReport(
            sends=sends,
            ready=ready,
            posted=posted,
            left=left,
            receives=receives,
            arrived=arrived,
            clock=ClockLine(self._before, after),
            lanes={rank: self._engine.lanes(rank) for rank in share.out_ranks} if self._is_loaded else {},
            retransmits=retransmits(self._counters, read_counters(self._engine.device)) if self._counters else 0,
        )
        self._control.send("rows", report.fields(), report.as_bytes())
