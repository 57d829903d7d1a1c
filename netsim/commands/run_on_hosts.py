"""``netsim run --backend rdma``: flows as real traffic between the agents of a hosts file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boundary.command_line import print_summary

if TYPE_CHECKING:
    from netsim.backends.rdma.hosts import Hosts
    from netsim.backends.rdma.measurement import Measurement
    from netsim.formats.flow_file import NamedFlows


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run on the hosts of a file. With launcher ``environment`` every rank has one, and rank 0 writes the result."""

    hosts_file: Path
    must_verify: bool

    def run(self, named: NamedFlows, output: Path, as_json: bool) -> None:
        """Executes the flows and writes their rows, also where only part of them arrived.

        Raises:
            InputError: the hosts file, or a flow without an agent.
            BackendUnavailable: this build has no engine.
            TransferFailure: not all flows arrived.
        """
        from boundary.output_files import write_atomically
        from netsim.backends.rdma.errors import TransferFailure
        from netsim.backends.rdma.executable import check_executable
        from netsim.backends.rdma.extension import load_engine
        from netsim.backends.rdma.hosts import ranks_of_nodes, read_hosts
        from netsim.formats.measured_flows import format_measurement

        hosts = read_hosts(self.hosts_file)
        ranks_of_nodes(hosts, named.graph, str(self.hosts_file))
        check_executable(named.graph)
        load_engine(hosts.engine)
        started_s = time.perf_counter()
        measurement = self._measurement(hosts, named)
        if measurement is None:
            return
        write_atomically(output, format_measurement(named, measurement))
        completed = int((measurement.end_ps >= 0).sum())
        summary = {
            "backend": "rdma",
            "engine": measurement.engine,
            "lanes": "; ".join(sorted(set(measurement.lane) - {""})),
            "agents": len(hosts.agents),
            "flows": len(named.flow_ids),
            "completed": completed,
            "bytes": int(named.graph.size_bytes.sum()),
            "verified": self.must_verify,
            "makespan_ps": int(measurement.end_ps.max(initial=0)),
            "clock_error_ps": int(measurement.clock_error_ps.max(initial=0)),
            "output": str(output),
            "wall_s": round(time.perf_counter() - started_s, 6),
        }
        print_summary(summary, as_json)
        if measurement.failure is not None:
            missing = len(named.flow_ids) - completed
            raise TransferFailure(
                f"{measurement.failure} ({missing} of {len(named.flow_ids)} flows are marked failed in {output})"
            )

    def _measurement(self, hosts: Hosts, named: NamedFlows) -> Measurement | None:
        """``None`` on a rank whose flows another one reports."""
        from netsim.backends.rdma.hosts import ranks_of_nodes
        from netsim.backends.rdma.share import graph_digest
        from netsim.commands.agents import session_of

        digest = graph_digest(named.graph, ranks_of_nodes(hosts, named.graph, str(self.hosts_file)))
        session = session_of(hosts, must_verify=self.must_verify, digest=digest)
        if session is None:
            return None
        with session:
            return session.execute(named.graph)
