"""``netsim run --backend rdma``: flows as real traffic between the agents of a hosts file."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from boundary.command_line import print_summary
from boundary.errors import InputError
from boundary.quoting import quoted

if TYPE_CHECKING:
    from netsim.formats.flow_file import NamedFlows
    from netsim.rdma.hosts import Hosts
    from netsim.rdma.measurement import Measurement

TOKEN_VARIABLE: Final = "NETSIM_RDMA_TOKEN"
_TOKEN: Final = re.compile(r"[0-9a-fA-F]{64,128}")


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
        from netsim.formats.measured_flows import format_measurement
        from netsim.rdma.errors import TransferFailure
        from netsim.rdma.executable import check_executable
        from netsim.rdma.extension import load_engine
        from netsim.rdma.hosts import ranks_of_nodes, read_hosts

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
        from netsim.rdma.agent import run_agent
        from netsim.rdma.environment import rank_in_environment
        from netsim.rdma.hosts import ranks_of_nodes
        from netsim.rdma.session import Session
        from netsim.rdma.share import graph_digest

        if hosts.launcher != "environment":
            with Session(hosts, must_verify=self.must_verify) as session:
                return session.execute(named.graph)
        token = _token(hosts)
        rank = rank_in_environment(os.environ, len(hosts.agents))
        digest = graph_digest(named.graph, ranks_of_nodes(hosts, named.graph, str(self.hosts_file)))
        if rank == 0:
            with Session(hosts, must_verify=self.must_verify, token=token, digest=digest, launched=(0,)) as session:
                return session.execute(named.graph)
        timeouts_s = (hosts.start_timeout_s, hosts.link_timeout_s)
        run_agent((hosts.rendezvous.address, hosts.rendezvous.port), token, rank, digest, timeouts_s)
        return None


def _token(hosts: Hosts) -> bytes:
    from boundary.text_files import read_text

    if hosts.token_file is not None:
        source, text = str(hosts.token_file), read_text(hosts.token_file, "a token").strip()
    else:
        source, text = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "")
    if not _TOKEN.fullmatch(text) or len(text) % 2:
        raise InputError(
            f"{source}: found {len(text)} characters, expected 64 to 128 hexadecimal digits, the same on all ranks"
            if text
            else f"{source}: found {quoted(text)}, expected a token of 64 to 128 hexadecimal digits"
        )
    return bytes.fromhex(text)
