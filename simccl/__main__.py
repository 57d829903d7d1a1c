"""Command line: ``simccl time``, ``simccl plan`` and ``simccl verify``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netsim.errors import InputError as NetworkInputError
from simccl.errors import InputError, PlanError

if TYPE_CHECKING:
    from simccl.communicator import Communicator

app = typer.Typer(
    name="simccl",
    help="Collective communication: a collective on some GPUs gives a time, or a graph of flows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Op = Annotated[str, typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.")]
Size = Annotated[
    str,
    typer.Option(
        "--bytes",
        help="Size as in nccl-tests, e.g. 1048576 or 1MiB: the full buffer for all_gather and reduce_scatter, "
        "what one rank sends in total for all_to_all.",
    ),
]
Ranks = Annotated[int, typer.Option(help="GPUs that take part.")]
Nodes = Annotated[int, typer.Option(help="NVLink domains over which they are spread evenly.")]
Gpu = Annotated[str, typer.Option(help="GPU type: a100, a800, h100, h200, h20, h800 or b200.")]
ProtocolName = Annotated[str | None, typer.Option(help="ll, ll128 or simple instead of NCCL's choice.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("time")
def print_time(
    *,
    op: Annotated[
        str | None, typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.")
    ] = None,
    size: Annotated[str | None, typer.Option("--bytes", help="Size as in nccl-tests, e.g. 1048576 or 1MiB.")] = None,
    ranks: Annotated[int | None, typer.Option(help="GPUs that take part.")] = None,
    nodes: Nodes = 1,
    gpu: Gpu = "h100",
    table: Annotated[Path | None, typer.Option(help="CSV of op,bytes,ranks,nodes,gpu to price instead.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the priced table goes.")] = None,
    as_json: Json = False,
) -> None:
    """Time of a collective on an idle system, by NCCL's cost model for rings."""
    if table is not None:
        from simccl.files import price_table

        if output is None:
            raise InputError("-o: found nothing, expected where to write the priced table")
        rows = price_table(table, output)
        _print_result({"rows": rows, "output": str(output)}, as_json)
        return
    if op is None or size is None or ranks is None:
        raise InputError("time: expected --op, --bytes and --ranks, or --table")
    from simccl.collective import Collective
    from simccl.hardware import gpu_named
    from simccl.timing import time_table

    Collective.parse(op)
    gpu_named(gpu)
    size_bytes = _size_bytes(size)
    _check_spread(ranks, nodes)
    times = time_table([op], [size_bytes], [ranks], [nodes], gpu)
    time_us = float(times.time_us[0])
    result = {
        "op": op,
        "bytes": size_bytes,
        "ranks": ranks,
        "nodes": nodes,
        "gpu": gpu,
        "time_us": time_us,
        "algorithm": str(times.algorithm[0]),
        "protocol": str(times.protocol[0]),
        "channels": int(times.channels[0]),
        "latency_us": float(times.latency_us[0]),
        "algbw_gbytes_per_s": size_bytes / time_us / 1e3 if time_us else 0.0,
    }
    _print_result(result, as_json)


@app.command("plan")
def write_plan_file(
    *,
    op: Op,
    size: Size,
    ranks: Ranks,
    nodes: Nodes = 1,
    gpu: Gpu = "h100",
    protocol: ProtocolName = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the flows go: .csv or .parquet.")],
    as_json: Json = False,
) -> None:
    """Write the flows of a collective, one row each, on a rail-optimised fabric."""
    from simccl.files import write_plan
    from simccl.planner import plan_collective

    plan = plan_collective(op, _size_bytes(size), _communicator(ranks, nodes, gpu), protocol=protocol)
    write_plan(plan, output)
    result = {
        "op": str(plan.op),
        "bytes": plan.size_bytes,
        "algorithm": str(plan.algorithm),
        "protocol": str(plan.protocol),
        "channels": plan.channels,
        "base_latency_us": plan.base_latency_ps / 1e6,
        "flows": len(plan),
        "payload_bytes": int(plan.flows.payload_bytes.sum()),
        "wire_bytes": int(plan.flows.wire_bytes.sum()),
        "output": str(output),
    }
    _print_result(result, as_json)


@app.command("verify")
def verify_flows(
    *,
    op: Op,
    size: Size,
    ranks: Ranks,
    nodes: Nodes = 1,
    gpu: Gpu = "h100",
    protocol: ProtocolName = None,
    as_json: Json = False,
) -> None:
    """Prove by symbolic execution that the plan of a collective leaves the right data on every rank."""
    from simccl.planner import plan_collective
    from simccl.verify import verify_plan

    plan = plan_collective(op, _size_bytes(size), _communicator(ranks, nodes, gpu), protocol=protocol)
    proof = verify_plan(plan)
    result = {
        "op": str(plan.op),
        "correct": True,
        "flows": proof.flows,
        "ranges": proof.ranges,
        "depth": proof.depth,
        "payload_bytes": proof.payload_bytes,
    }
    _print_result(result, as_json)


def _communicator(ranks: int, nodes: int, gpu: str) -> Communicator:
    """Ranks spread evenly over equal nodes, with the link rates of the GPU type."""
    from netsim import rail_optimized
    from netsim.topologies.defaults import LinkRates
    from simccl.communicator import Communicator
    from simccl.hardware import gpu_named

    _check_spread(ranks, nodes)
    found = gpu_named(gpu)
    rates = LinkRates(nic_bps=round(found.nic_gbytes_per_s * 8e9), nvlink_bps=round(found.nvlink_gbytes_per_s * 8e9))
    return Communicator(tuple(range(ranks)), rail_optimized(nodes, ranks // nodes, rates=rates), gpu)


def _check_spread(ranks: int, nodes: int) -> None:
    if ranks < 1:
        raise InputError(f"ranks: found {ranks}, expected at least 1")
    if nodes < 1 or ranks % nodes:
        raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")


def _size_bytes(text: str) -> int:
    from netsim.units import parse_size_bytes

    return int(text) if text.isascii() and text.isdigit() else parse_size_bytes(text, "bytes")


def _print_result(result: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, value in result.items():
        console.print(f"{name:>18}  {value}", markup=False)


def main() -> None:
    """Console script: exit code 0, 1 for a plan that is not correct, 2 for bad input."""
    try:
        app()
    except (InputError, NetworkInputError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except PlanError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
