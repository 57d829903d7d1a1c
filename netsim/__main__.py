"""Command line: ``netsim run`` and ``netsim topology``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netsim import __version__
from netsim.command_line import print_summary, run_command_line
from netsim.errors import BackendError, BackendUnavailable, InputError
from netsim.topology_command import write_topology

if TYPE_CHECKING:
    from netsim.backend import FlowTimes, NetworkBackend
    from netsim.flow import FlowGraph

app = typer.Typer(
    name="netsim",
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("topology", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(write_topology)

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


class UnfinishedFlows(RuntimeError):
    """The clock ended before the last flow."""


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
    print_summary(summary, as_json)
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


def main() -> None:
    """Console script: exit code 0, 1 for a failure, 2 for bad input."""
    run_command_line(app, "netsim", {InputError: 2, BackendError: 2, BackendUnavailable: 1, UnfinishedFlows: 1})


if __name__ == "__main__":
    main()
