"""Command line: ``netsim run`` and ``netsim topology``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netsim import __version__
from netsim.command_line import run_command_line
from netsim.errors import BackendError, BackendUnavailable, InputError

if TYPE_CHECKING:
    from netsim.backend import FlowTimes, NetworkBackend
    from netsim.flow import FlowGraph
    from netsim.topology import Topology

app = typer.Typer(
    name="netsim",
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


class UnfinishedFlows(RuntimeError):
    """The clock ended before the last flow."""


class TopologyFormat(StrEnum):
    """Text format of a written topology."""

    YAML = "yaml"
    SIMAI = "simai"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"netsim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Network simulation: a topology and a flow graph give completion times."""


@app.command()
def run(
    *,
    topology: Annotated[Path, typer.Option(help="Topology: YAML, or SimAI's text.")],
    flows: Annotated[
        Path, typer.Option(help="CSV: flow_id,src,dst,bytes,deps (joined by ;) [,start_ns,delay_ns,flow_label].")
    ],
    backend: Annotated[str, typer.Option(help="analytical, fluid, packet, ns3 or rdma.")] = "fluid",
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV: start_ps, end_ps, fct_ps and status per flow.")],
    as_json: Json = False,
) -> None:
    """Run flows over a topology and write their completion times.

    src and dst are node numbers of the topology (GPUs come first). Without a column flow_label, several flows of one
    pair have labels 0, 1, …, so ECMP may put them on different paths. Further columns are ignored.
    """
    from netsim.atomic_file import check_output, write_atomically
    from netsim.backend import create_backend
    from netsim.flow_file import format_results, read_flows, unfinished
    from netsim.topology_file import read_topology

    check_output(output)
    network = read_topology(topology)
    named = read_flows(flows, network.nodes)
    simulation = create_backend(backend, network)
    try:
        times = _carried(simulation, named.graph)
    except BackendError as error:
        raise InputError(f"{flows}: {error}") from error
    write_atomically(output, format_results(named, times))
    summary = {
        "backend": backend,
        "flows": len(named.flow_ids),
        "completed": int((times.end_ps >= 0).sum()),
        "bytes": sum(named.graph.size_bytes.tolist()),
        "makespan_ps": int(times.end_ps.max(initial=0)),
        "output": str(output),
    }
    _print_summary(summary, as_json)
    if late := unfinished(named, times):
        raise UnfinishedFlows(
            f"{flows} flow {late[0]}: found no end before 2^63 ps (106 days), the end of the clock; expected less to "
            f"carry ({len(late)} of {len(times.end_ps)} flows are marked unfinished in {output})"
        )


def _carried(simulation: NetworkBackend, graph: FlowGraph) -> FlowTimes:
    """Runs the graph alone, until nothing happens any more."""
    from netsim.units import LAST_INSTANT_PS

    handle = simulation.submit(graph, 0)
    while simulation.next_event_ps() is not None:
        simulation.advance(LAST_INSTANT_PS)
    return simulation.flow_times(handle)


@app.command("topology", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def write_topology(
    context: typer.Context,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="rail_optimized, single_switch, or a topology file to convert.")
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; standard output if not given.")
    ] = None,
    text_format: Annotated[
        TopologyFormat | None, typer.Option("--format", help="By default YAML for .yaml and .yml, else SimAI's text.")
    ] = None,
    gpu_type: Annotated[str, typer.Option(help="GPU name in SimAI's text.")] = "H100",
    as_json: Json = False,
) -> None:
    """Build a topology, or convert one between YAML and SimAI's text.

    Every further option sets a field of the KIND: --nodes 8, --gpus-per-node 8, --nic 400Gbps, --nvlink 370.8GB/s,
    --link-latency 500ns, --nvlink-latency 25ns; for rail_optimized also --nodes-per-segment 64, --spines 64,
    --oversubscription 1.
    """
    from netsim.atomic_file import write_atomically
    from netsim.topologies.simai_text import to_simai
    from netsim.topologies.yaml_text import to_yaml

    topology = _topology(kind, _fields(context.args))
    is_yaml = output is None or output.suffix in (".yaml", ".yml")
    chosen = text_format or (TopologyFormat.YAML if is_yaml else TopologyFormat.SIMAI)
    text = to_yaml(topology) if chosen is TopologyFormat.YAML else to_simai(topology, gpu_type)
    if output is None:
        if not as_json:
            sys.stdout.write(text)
            return
    else:
        write_atomically(output, text)
    summary = {
        "gpus": topology.gpus,
        "gpus_per_node": topology.gpus_per_node,
        "nodes": topology.nodes,
        "links": topology.links,
        "output": None if output is None else str(output),
    }
    _print_summary(summary, as_json)


def _topology(kind: str, fields: dict[str, str]) -> Topology:
    from netsim.config import build, parse_spec
    from netsim.topology_file import read_topology

    name = kind.replace("-", "_")
    if name in ("rail_optimized", "single_switch"):
        return build(parse_spec({"kind": name, **fields}))
    if fields:
        raise InputError(f"topology {kind}: found --{next(iter(fields))}, expected no field when converting a file")
    return read_topology(Path(kind))


def _fields(arguments: list[str]) -> dict[str, str]:
    """``--nodes-per-segment 4`` and ``--nodes-per-segment=4`` as ``{"nodes_per_segment": "4"}``."""
    fields: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise InputError(f"topology: found {word!r}, expected --field value")
        if not equals:
            value = next(words, "")
        fields[name.removeprefix("--").replace("-", "_")] = value
    return fields


def _print_summary(summary: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, value in summary.items():
        console.print(f"{name:>14}  {value}", markup=False)


def main() -> None:
    """Console script: exit code 0, 1 for a failure, 2 for bad input."""
    run_command_line(app, "netsim", {InputError: 2, BackendError: 2, BackendUnavailable: 1, UnfinishedFlows: 1})


if __name__ == "__main__":
    main()
