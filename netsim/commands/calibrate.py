"""``netsim calibrate-rdma``: what messages take between the agents of a hosts file."""

from __future__ import annotations

import time
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.command_line import print_summary
from boundary.errors import InputError

if TYPE_CHECKING:
    from netsim.backends.rdma.hosts import Hosts
    from netsim.backends.rdma.message_times import MeasuredPairs
    from netsim.backends.rdma.session import Session


def calibrate_rdma(
    *,
    hosts: Annotated[Path, typer.Option(help="YAML: which agents send for which nodes.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON, for `netsim run --calibration`.")],
    largest: Annotated[str, typer.Option(help="Largest message; sizes are octaves from 1 KiB on.")] = "64MiB",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Messages of each size; their median counts.")] = 5,
    accept_tcp: Annotated[bool, typer.Option("--accept-tcp", help="Measure TCP too, which is no RDMA.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Measure what messages take between every two agents, and write it as α and β by range of sizes."""
    from boundary.output_files import check_output, write_atomically
    from netsim.backends.rdma.extension import load_engine
    from netsim.backends.rdma.hosts import read_hosts
    from netsim.backends.rdma.message_times import octaves
    from netsim.commands.agents import session_of
    from netsim.formats.calibration_file import format_calibration

    check_output(output, [hosts])
    found = read_hosts(hosts)
    if len(found.agents) < 2:
        raise InputError(f"{hosts} agents: found one, expected two or more, between which messages are sent")
    sizes = octaves(_largest_bytes(largest))
    load_engine(found.engine)
    started_s = time.perf_counter()
    session = session_of(found)
    if session is None:
        return
    with session:
        measured = _measured_pairs(session, found, sizes, repeats, accept_tcp)
    write_atomically(output, format_calibration(measured))
    pairs = measured.pairs
    summary = {
        "engine": found.engine,
        "lanes": "; ".join(sorted({pair.lane for pair in pairs.values()})),
        "agents": len(found.agents),
        "pairs": len(pairs),
        "sizes": len(sizes),
        "largest_bytes": sizes[-1],
        "repeats": repeats,
        "ranges": max(len(pair.ranges) for pair in pairs.values()),
        "largest_residual": max(each.largest_residual for pair in pairs.values() for each in pair.ranges),
        "retransmits": sum(pair.retransmits for pair in pairs.values()),
        "output": str(output),
        "wall_s": round(time.perf_counter() - started_s, 6),
    }
    print_summary(summary, as_json)


def _largest_bytes(text: str) -> int:
    from netsim.backends.rdma.message_times import SMALLEST_BYTES
    from netsim.units import parse_size_bytes

    found = parse_size_bytes(text, "--largest")
    if not SMALLEST_BYTES <= found <= 1 << 40:
        raise InputError(f"--largest: found {text!r}, expected 1KiB to 1TiB")
    return found


def _measured_pairs(
    session: Session, hosts: Hosts, sizes: tuple[int, ...], repeats: int, accept_tcp: bool
) -> MeasuredPairs:
    """All pairs, one after the other. Raises: InputError, at the first over TCP."""
    from netsim.backends.rdma.message_times import MeasuredPairs, lane_between, measure_pair, uses_tcp

    measured = MeasuredPairs.none_of(hosts)
    for src, dst in permutations(range(len(hosts.agents)), 2):
        nodes = (hosts.agents[src].nodes[0], hosts.agents[dst].nodes[0])
        lane = lane_between(session, nodes)
        if uses_tcp(lane) and not accept_tcp:
            raise InputError(
                f"agents {src} and {dst}: found TCP between them ({lane}), expected RDMA (as `transports: rc` in the "
                "hosts file has it), or --accept-tcp to measure it all the same"
            )
        measured.pairs[src, dst] = measure_pair(session, nodes, sizes, repeats)
    return measured
