"""Agents inside of a guest: ``python -m tests.netsim.rdma.guest.agents FILE``.

The file lists sessions (`SessionOfAgents`); agents of one after the other are forked from an interpreter that has
imported what they need, which takes seconds under emulation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph
from netsim.backends.rdma import execution
from netsim.backends.rdma.agent import run_agent
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.share import Share, share_of

TOKEN: Final = bytes(range(32))
START_S: Final = 200.0
"""Until the guest has booted and its agents are connected, on a machine that does much else."""
SILENCE_S: Final = 30.0
HOST: Final = "10.0.2.2"
"""Loopback of the host, as QEMU's user network shows it to the guest."""


@dataclass(frozen=True, slots=True)
class SessionOfAgents:
    """A session that listens at a port of the host, the ranks of a guest in it, and a command of the shell before."""

    port: int
    ranks: tuple[int, ...]
    command: str = "true"
    is_misplaced: bool = False
    """Senders write 64 bytes behind the place of a flow."""


def write_sessions(file: Path, sessions: Sequence[SessionOfAgents]) -> None:
    """Inverse of what `main` reads."""
    file.write_text(json.dumps([asdict(session) for session in sessions]))


def main() -> None:
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        session = SessionOfAgents(**fields)
        subprocess.run(session.command, shell=True, check=True)
        agents = [_fork_agent(session, rank) for rank in session.ranks]
        for agent in agents:
            os.waitpid(agent, 0)  # how it ends is for the session to tell


def _fork_agent(session: SessionOfAgents, rank: int) -> int:
    process = os.fork()
    if process != 0:
        return process
    if session.is_misplaced:
        execution.share_of = _misplaced_share
    try:
        run_agent((HOST, session.port), TOKEN, rank, None, (START_S, SILENCE_S))
    except TransferFailure as failure:
        print(f"rank {rank}: {failure}", flush=True)
    os._exit(0)


def _misplaced_share(graph: FlowGraph, rank_of_node: NDArray[np.int64], rank: int) -> Share:
    share = share_of(graph, rank_of_node, rank)
    share.columns["send_place"] = np.array(share.columns["send_place"]) + 64
    return share


if __name__ == "__main__":
    main()
