"""Agents of a hosts file for a command: those that it starts, or with launcher ``environment`` one on every rank."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from boundary.errors import InputError
from boundary.quoting import quoted

if TYPE_CHECKING:
    from netsim.backends.rdma.hosts import Hosts
    from netsim.backends.rdma.session import Session

TOKEN_VARIABLE: Final = "NETSIM_RDMA_TOKEN"
_TOKEN: Final = re.compile(r"[0-9a-fA-F]{64,128}")


def session_of(hosts: Hosts, *, must_verify: bool = False, digest: str = "") -> Session | None:
    """A session of all agents; ``None`` on a rank whose flows another one reports, once it has served to the end.

    Args:
        hosts: the hosts file.
        must_verify: payloads are compared with what was sent.
        digest: of the graph, where all ranks have read it themselves.

    Raises:
        InputError: no launcher has given this process a rank, or there is no token.
        TransferFailure: the agents could not meet, or the run has failed.
    """
    from netsim.backends.rdma.agent import run_agent
    from netsim.backends.rdma.environment import rank_in_environment
    from netsim.backends.rdma.session import Session

    if hosts.launcher != "environment":
        return Session(hosts, must_verify=must_verify)
    token = _token(hosts)
    rank = rank_in_environment(os.environ, len(hosts.agents))
    if rank == 0:
        return Session(hosts, must_verify=must_verify, token=token, digest=digest, launched=(0,))
    timeouts_s = (hosts.start_timeout_s, hosts.link_timeout_s)
    run_agent((hosts.rendezvous.address, hosts.rendezvous.port), token, rank, digest or None, timeouts_s)
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
