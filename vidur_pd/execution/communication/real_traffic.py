"""Real traffic: what collectives and messages take between hosts, measured when a run first asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from boundary.errors import InputError
from netsim import FlowGraph
from netsim.backends.calibration import Calibration, SizeRange
from netsim.backends.rdma import Hosts, MeasuredPairs, Measurement, Session, TransferFailure, measure_pair, read_hosts
from netsim.backends.rdma.extension import load_engine
from netsim.backends.rdma.message_times import REPEATS, SMALLEST_BYTES, octaves
from netsim.backends.rdma.share import graph_digest
from vidur_pd.config.schema import NetworkConfig
from vidur_pd.execution.communication.measured_file import MeasuredGraph, format_measured, read_measured

LEAST_LARGEST_BYTES: Final = 1 << 20
"""Messages up to this size are measured at first, and larger ones when they occur; our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficTotals:
    """Totals of what a run has measured or read; `vidur_pd.metrics.summary.MeasurementSummary` says what each is."""

    engine: str
    lanes: tuple[str, ...]
    graphs: int
    graphs_read: int
    message_fits: int
    retransmits: int
    clock_error_s: float
    wall_s: float


class RealTraffic:
    """Real traffic of one run: every distinct graph is executed when it is first met, all in one session.

    The agents start with the first graph that is not known yet, so that a run whose graphs are all known needs neither
    hosts nor an engine.

    Args:
        hosts: where to measure; ``None``: only what is known.
        graphs: known ones by digest.
        pairs: known times of messages.
        source: of what is known, for messages.
        repeats: executions of each graph, whose median counts, after one that meets cold connections.
    """

    def __init__(
        self,
        hosts: Hosts | None,
        graphs: dict[str, MeasuredGraph],
        pairs: MeasuredPairs,
        *,
        source: str,
        repeats: int,
    ) -> None:
        self._hosts, self._source, self._repeats = hosts, source, repeats
        self._graphs, self._pairs = graphs, pairs
        self._calibration: Calibration = pairs.calibration()
        self._used: dict[str, MeasuredGraph] = {}
        self._session: Session | None = None
        self._measured_graphs = self._measured_pairs = 0
        self._wall_s = 0.0

    def duration_ps(self, graph: FlowGraph, operation: str, size_bytes: int, gpus: tuple[int, ...]) -> int:
        """What a collective takes alone on the hosts.

        Raises:
            InputError: it is not known, and there are no hosts.
            TransferFailure: not all its flows arrived.
        """
        ends = np.concatenate((graph.src, graph.dst)).tolist()
        digest = graph_digest(graph, np.array([self._calibration.rank_of(node) for node in ends], dtype=np.int64))
        if digest not in self._graphs:
            session = self._open(f"{operation} of {size_bytes} bytes among GPUs {gpus[0]} to {gpus[-1]}")
            started_s = time.perf_counter()
            runs = [_executed(session, graph) for _ in range(1 + self._repeats)]
            self._graphs[digest] = _summed_up(runs[1:], digest, operation, size_bytes, gpus)
            self._wall_s += time.perf_counter() - started_s
            self._measured_graphs += 1
        self._used[digest] = self._graphs[digest]
        return self._used[digest].duration_ps

    def range_of(self, src: int, dst: int, size_bytes: int) -> SizeRange | None:
        """See `netsim.backends.calibration.MessageTimes.range_of`; pairs and sizes that are not known are measured."""
        ranks = (self._calibration.rank_of(src), self._calibration.rank_of(dst))
        known = self._calibration.pairs.get(ranks, ())
        if ranks[0] != ranks[1] and (not known or size_bytes > known[-1].last_bytes):
            self._measure(ranks, size_bytes)
        return self._calibration.range_of(src, dst, size_bytes)

    def check_gpus(self, gpus: Iterable[int]) -> None:
        """Every GPU has an agent. Raises: InputError."""
        known = {node for agent in self._pairs.agents for node in agent.nodes}
        missing = sorted(set(gpus) - known)
        if missing:
            raise InputError(
                f"network.hosts: found no agent for GPU {missing[0]}, expected one for every GPU of the instances"
            )

    def file_text(self) -> str:
        """Content of ``measured.json``: the graphs that this run has used, and all messages."""
        return format_measured(self._used.values(), self._pairs)

    def totals(self) -> TrafficTotals:
        """How much was measured, and how well."""
        used, pairs = self._used.values(), self._pairs.pairs.values()
        return TrafficTotals(
            engine=self._pairs.engine,
            lanes=tuple(sorted({lane for graph in used for lane in graph.lanes} | {pair.lane for pair in pairs})),
            graphs=self._measured_graphs,
            graphs_read=len(self._used) - self._measured_graphs,
            message_fits=self._measured_pairs,
            retransmits=sum(graph.retransmits for graph in used) + sum(pair.retransmits for pair in pairs),
            clock_error_s=max((graph.clock_error_ps for graph in used), default=0) * 1e-12,
            wall_s=self._wall_s,
        )

    def close(self) -> None:
        """Ends the agents; may be called again."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _measure(self, ranks: tuple[int, int], size_bytes: int) -> None:
        """Messages between two agents, from those that are known on."""
        agents, known = self._pairs.agents, self._pairs.pairs.get(ranks)
        session = self._open(f"messages of {size_bytes} bytes from agent {ranks[0]} to agent {ranks[1]}")
        started_s = time.perf_counter()
        smallest_bytes = 2 * known.ranges[-1].last_bytes if known else SMALLEST_BYTES
        sizes_bytes = octaves(max(size_bytes, LEAST_LARGEST_BYTES), smallest_bytes)
        nodes = (agents[ranks[0]].nodes[0], agents[ranks[1]].nodes[0])
        found = measure_pair(session, nodes, sizes_bytes, REPEATS)
        self._pairs.pairs[ranks] = known.extended(found) if known else found
        self._calibration.pairs[ranks] = self._pairs.pairs[ranks].ranges
        self._measured_pairs += 1
        self._wall_s += time.perf_counter() - started_s

    def _open(self, wanted: str) -> Session:
        """The session. Raises: InputError, where there are no hosts; BackendUnavailable, without their engine."""
        if self._hosts is None:
            raise InputError(
                f"network.measured: found no {wanted} in {self._source}, expected it there, or network.hosts, between "
                "which it can be measured"
            )
        if self._session is None:
            load_engine(self._hosts.engine)
            started_s = time.perf_counter()
            self._session = Session(self._hosts)
            self._wall_s += time.perf_counter() - started_s
        return self._session


def _executed(session: Session, graph: FlowGraph) -> Measurement:
    measured = session.execute(graph)
    if measured.failure is not None:
        raise TransferFailure(measured.failure)
    return measured


def _summed_up(
    runs: list[Measurement], digest: str, operation: str, size_bytes: int, gpus: tuple[int, ...]
) -> MeasuredGraph:
    durations_ps = sorted(int(each.end_ps.max(initial=0)) for each in runs)
    return MeasuredGraph(
        digest=digest,
        operation=operation,
        size_bytes=size_bytes,
        gpus=gpus,
        flows=len(runs[0].end_ps),
        duration_ps=durations_ps[len(runs) // 2],
        shortest_ps=durations_ps[0],
        longest_ps=durations_ps[-1],
        clock_error_ps=max(int(each.clock_error_ps.max(initial=0)) for each in runs),
        retransmits=sum(int(each.retransmits.max(initial=0)) for each in runs),
        lanes=tuple(sorted({lane for each in runs for lane in each.lane} - {""})),
    )


def real_traffic(network: NetworkConfig, gpus: Iterable[int]) -> RealTraffic:
    """Real traffic as configured, for the GPUs of all instances.

    Raises:
        InputError: the files, hosts that others start, or a GPU without an agent.
    """
    hosts = None if network.hosts is None else read_hosts(network.hosts)
    if hosts is not None and hosts.launcher == "environment":
        raise InputError(
            f"{network.hosts} launcher: found environment, expected local, netns or ssh, by which a simulation starts "
            "its agents"
        )
    if network.measured is not None:
        graphs, pairs = read_measured(network.measured)
        _check_same_agents(hosts, pairs, network.measured)
    else:
        assert hosts is not None, "the plan of the coupling has hosts or measurements"
        graphs, pairs = {}, MeasuredPairs.none_of(hosts)
        load_engine(hosts.engine)
    traffic = RealTraffic(hosts, graphs, pairs, source=str(network.measured), repeats=network.repeats)
    traffic.check_gpus(gpus)
    return traffic


def _check_same_agents(hosts: Hosts | None, pairs: MeasuredPairs, path: Path) -> None:
    if hosts is None:
        return
    expected = MeasuredPairs.none_of(hosts)
    if (expected.engine, expected.agents) != (pairs.engine, pairs.agents):
        raise InputError(
            f"network.measured: found other agents in {path} than in the hosts file, expected the same engine, and the "
            "same nodes, address and device of each"
        )
