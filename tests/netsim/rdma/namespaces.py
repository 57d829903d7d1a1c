"""Networks of this machine with a known rate: network namespaces, veth and the token bucket filter of Linux.

    python -m tests.netsim.rdma.namespaces COMMAND…

runs a command while the four hosts of ``examples/rdma/namespaces.yaml`` exist, on links of `FAST_RATE_BPS`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

import pytest

from netsim import LinkKind, NodeKind, Topology, WireFormat
from netsim.topology import DuplexLink

RATE_BPS: Final = 100_000_000
BURST_BYTES: Final = 16 * 1024
FAST_RATE_BPS: Final = 1_000_000_000
BURSTS: Final = {RATE_BPS: BURST_BYTES, FAST_RATE_BPS: 4 * BURST_BYTES}
"""Buckets in which a shaper that is woken late loses nothing."""
JUMBO_MTU: Final = 9000
"""As most clusters with RoCE have it: acknowledgements are few, and cost the cores of the test little."""
TCP_BUFFERS: Final = "131072 131072 131072"
"""Least, first and most bytes, equal so that connections share a link evenly. They make queues of 10 ms in a shaper, in
which the acknowledgements of the other direction wait; with Linux's 4 MB these come so late that data are resent."""


def wire_of(mtu_bytes: int) -> WireFormat:
    """TCP with time stamps as packets of `fluid`; the shaper counts the Ethernet header, not the frame check sequence.

    An acknowledgement at least for every second full segment (RFC 5681, section 4.2).
    """
    headers = 14 + 20 + 32
    return WireFormat(mtu_bytes=mtu_bytes - 52, header_bytes=headers, ack_bytes=headers, packets_per_ack=2)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@cache
def why_not() -> str | None:
    """Why this system cannot make shaped namespaces."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    name = f"nsprobe{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        try:
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")
            _run(*inside, "tc", "qdisc", "add", "dev", "va", "root", *_shaper())
            _run(*inside, "ip", "link", "add", "bridge", "type", "bridge")
        finally:
            _run("ip", "netns", "del", name)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode().strip().splitlines()
        return f"{' '.join(error.cmd)}: {reason[-1] if reason else error.returncode}"
    return None


def _shaper(rate_bps: int = RATE_BPS) -> tuple[str, ...]:
    return ("tbf", "rate", f"{rate_bps}bit", "burst", str(BURSTS[rate_bps]), "latency", "4000ms")


@dataclass(frozen=True)
class Namespace:
    """One host behind a switch, both named as for `ip netns`."""

    name: str
    switch: str
    address: str
    device: str
    """Its end of the link."""
    port: str
    """The switch's end of the link."""

    def cut_off(self) -> None:
        """Frames from and to the host are no longer forwarded, while its device stays up and nobody is informed."""
        _run("ip", "-n", self.switch, "link", "set", self.port, "nomaster")

    def take_down(self) -> None:
        """The device of the host goes down, with its addresses and routes."""
        _run("ip", "-n", self.name, "link", "set", self.device, "down")


@contextmanager
def shaped_hosts(
    count: int, mtu_bytes: int = 1500, rate_bps: int = RATE_BPS, prefix: str = f"ns{os.getpid():x}h"
) -> Iterator[list[Namespace]]:
    """Hosts behind one switch, each with this rate in either direction; skips where the system forbids.

    Namespaces are ``prefix`` and a number.
    """
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    switch = f"{prefix}x"
    hosts = [Namespace(f"{prefix}{i}", switch, f"10.77.0.{i + 1}", "eth0", f"port{i}") for i in range(count)]
    made = []
    try:
        for name in (switch, *(host.name for host in hosts)):
            _run("ip", "netns", "add", name)
            made.append(name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for host in hosts:
            ends = ("name", host.port, "netns", switch)
            _run("ip", "-n", host.name, "link", "add", host.device, "type", "veth", "peer", *ends)
            _run("ip", "-n", switch, "link", "set", host.port, "master", "bridge", "up")
            _run("ip", "-n", host.name, "link", "set", host.device, "mtu", str(mtu_bytes))
            _run("ip", "-n", switch, "link", "set", host.port, "mtu", str(mtu_bytes))
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.device)
            _run("ip", "-n", host.name, "link", "set", host.device, "up")
            for way in ("rmem", "wmem"):
                _run("ip", "netns", "exec", host.name, "sysctl", "-qw", f"net.ipv4.tcp_{way}={TCP_BUFFERS}")
            _run("tc", "-n", host.name, "qdisc", "add", "dev", host.device, "root", *_shaper(rate_bps))
            _run("tc", "-n", switch, "qdisc", "add", "dev", host.port, "root", *_shaper(rate_bps))
        yield hosts
    finally:
        for name in made:
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def as_topology(hosts: int, gpus_per_host: int, inside_bps: int = 10**10) -> Topology:
    """The same network, for `wire_of` its frames: GPUs that share the link of their host to the switch.

    Inside a host traffic is loopback's, of which ``inside_bps`` is the order of magnitude on two cores.
    """
    gpus = hosts * gpus_per_host
    nodes = [(NodeKind.GPU, f"gpu{i}") for i in range(gpus)]
    nodes += [(NodeKind.SWITCH, f"host{i}") for i in range(hosts)] + [(NodeKind.SWITCH, "switch")]
    cables = [DuplexLink(gpu, gpus + gpu // gpus_per_host, inside_bps, 10_000_000, LinkKind.NIC) for gpu in range(gpus)]
    cables += [DuplexLink(gpus + i, gpus + hosts, RATE_BPS, 10_000_000, LinkKind.FABRIC) for i in range(hosts)]
    return Topology.from_cables(nodes, cables, gpus_per_node=1)


def main() -> None:
    """Exit code of the command; 1 with a line where this system cannot make the hosts."""
    if (reason := why_not()) is not None:
        sys.exit(f"namespaces: {reason}")
    with shaped_hosts(4, JUMBO_MTU, FAST_RATE_BPS, prefix="netsim"):
        code = subprocess.run(sys.argv[1:], check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
