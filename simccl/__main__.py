"""Command line: ``simccl time``, ``simccl plan``, ``simccl verify`` and ``simccl calibrate``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netsim.atomic_file import check_output
from netsim.command_line import run_command_line
from netsim.errors import InputError as NetworkInputError
from simccl import __version__
from simccl.errors import InputError, PlanError

if TYPE_CHECKING:
    from netsim.topologies.defaults import LinkRates
    from simccl.communicator import Communicator
    from simccl.pricing import Pricing

app = typer.Typer(
    name="simccl",
    add_completion=False,
    pretty_exceptions_enable=False,
)

Op = Annotated[
    str, typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv.")
]
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
AlgorithmName = Annotated[
    str | None,
    typer.Option(
        help="ring, tree, nvls, nvls_tree, pat, or an engine's one_shot, two_shot, multimem; default: NCCL's choice."
    ),
]
ProtocolName = Annotated[str | None, typer.Option(help="ll, ll128 or simple instead of NCCL's choice.")]
StackName = Annotated[str, typer.Option("--stack", help="Whose all_reduce kernels run: nccl, vllm, sglang or trtllm.")]
Root = Annotated[int, typer.Option(help="Rank that a broadcast starts from, or a reduce ends on.")]
Coarsen = Annotated[
    int | None,
    typer.Option(
        help="Rings, trees, NVLS: show loops, chunks and FIFO credits, so many loops merged into one; else all."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"simccl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Collective communication: a collective on some GPUs gives a time, or a graph of flows."""


@app.command("time")
def print_time(
    *,
    op: Annotated[
        str | None,
        typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv."),
    ] = None,
    size: Annotated[str | None, typer.Option("--bytes", help="Size as in nccl-tests, e.g. 1048576 or 1MiB.")] = None,
    ranks: Annotated[int | None, typer.Option(help="GPUs that take part.")] = None,
    nodes: Nodes = 1,
    gpu: Gpu = "h100",
    table: Annotated[Path | None, typer.Option(help="CSV of op,bytes,ranks,nodes,gpu to price instead.")] = None,
    workload: Annotated[Path | None, typer.Option(help="SimAI workload file to price instead.")] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of an NVLink domain, for --workload.")] = 8,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="NCCL's constants, without corrections.")
    ] = False,
    calibration: Annotated[Path | None, typer.Option(help="Corrections that simccl calibrate wrote.")] = None,
    stack: StackName = "nccl",
    busbw: Annotated[Path | None, typer.Option(help="SimAI's busbw.yaml, in place of the cost model.")] = None,
    group: Annotated[str, typer.Option(help="Section of --busbw: tp, dp, ep, dp_ep or pp.")] = "tp",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the priced table goes.")] = None,
    as_json: Json = False,
) -> None:
    """Time of a collective on an idle system: NCCL's cost model, corrected by measurements where there are some."""
    from simccl.busbw import Group
    from simccl.files import price_table, price_workload, read_size_bytes
    from simccl.hardware import gpu_named
    from simccl.pricing import Request

    pricing = _pricing(uncalibrated, calibration, stack, busbw)
    if table is not None or workload is not None:
        if output is None:
            raise InputError("-o: found nothing, expected where to write the priced table")
        check_output(output)
        if table is not None:
            rows = price_table(table, output, pricing)
        else:
            assert workload is not None
            name, per_node = gpu_named(gpu).name, _at_least_one("gpus_per_node", gpus_per_node)
            rows = price_workload(workload, output, pricing, gpu=name, gpus_per_node=per_node)
        _print_result({"rows": rows, "output": str(output)}, as_json)
        return
    if op is None or size is None or ranks is None:
        raise InputError("time: expected --op, --bytes and --ranks, or --table, or --workload")
    from simccl.collective import Collective

    Collective.parse(op)
    gpu_named(gpu)
    size_bytes = read_size_bytes(size)
    _check_spread(ranks, nodes)
    request = Request(op=op, size_bytes=size_bytes, ranks=ranks, nodes=nodes, gpu=gpu, group=Group.parse(group))
    times = pricing.times([request])
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


@app.command("calibrate")
def fit_corrections(
    *,
    tables: Annotated[
        list[Path], typer.Argument(help="Output of nccl-tests (its text), or CSV of times; several are joined.")
    ],
    gpu: Gpu = "h100",
    source: Annotated[str, typer.Option(help="What was measured, by whom, with which versions.")] = "",
    also: Annotated[str | None, typer.Option(help="GPU type whose shipped corrections fill what is missing.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the calibration goes, JSON.")],
    as_json: Json = False,
) -> None:
    """Fit corrections of NCCL's cost model to measured times; ``simccl time --calibration FILE`` uses them."""
    from dataclasses import replace

    from simccl.calibration import shipped_calibration, write_calibration
    from simccl.fitting import fit_calibration
    from simccl.hardware import gpu_named
    from simccl.nccl_tests import read_measurements

    found, fallback = gpu_named(gpu), None
    if also is not None and (fallback := shipped_calibration(gpu_named(also).name)) is None:
        raise InputError(f"also: found {also!r}, expected a GPU type with a shipped calibration")
    check_output(output)
    measurements = read_measurements(tables)
    calibration = fit_calibration(measurements, found, source or ", ".join(path.name for path in tables))
    write_calibration(replace(calibration, also=fallback), output)
    worst = max(calibration.fits.items(), key=lambda item: item[1].median_error)
    result = {
        "gpu": found.name,
        "measurements": len(measurements),
        "cases": len(calibration.fits),
        "median_error": sorted(fit.median_error for fit in calibration.fits.values())[len(calibration.fits) // 2],
        "largest_error": worst[1].median_error,
        "largest_error_of": " ".join(str(part) for part in worst[0].label()),
        "output": str(output),
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
    algorithm: AlgorithmName = None,
    protocol: ProtocolName = None,
    root: Root = 0,
    coarsen: Coarsen = None,
    stack: StackName = "nccl",
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the flows go: .csv or .parquet.")],
    columns: Annotated[
        str, typer.Option("--format", help="netsim, or simccl for SimCCL's 15 columns (.csv).")
    ] = "netsim",
    as_json: Json = False,
) -> None:
    """Write the flows of a collective, one row each, on a rail-optimised fabric.

    A .csv goes into ``netsim run`` with the topology that the printed command builds.
    """
    from netsim.units import format_rate_bps
    from simccl.custom_allreduce import Stack
    from simccl.files import check_plan_file, read_size_bytes, write_plan
    from simccl.flow_model_csv import write_flow_model_csv
    from simccl.planner import plan_collective

    check_plan_file(output)
    if columns not in ("netsim", "simccl") or (columns == "simccl" and output.suffix != ".csv"):
        raise InputError(
            f"format: found {columns!r} for {output}, expected netsim, or simccl and a name that ends in .csv"
        )
    check_output(output)
    communicator, size_bytes = _communicator(ranks, nodes, gpu), read_size_bytes(size)
    plan = plan_collective(
        op,
        size_bytes,
        communicator,
        algorithm=algorithm,
        protocol=protocol,
        root=root,
        coarsen=coarsen,
        stack=Stack.parse(stack),
    )
    if columns == "simccl":
        write_flow_model_csv(plan, output)
    else:
        write_plan(plan, output)
    nic, nvlink = (format_rate_bps(rate_bps) for rate_bps in (_rates(gpu).nic_bps, _rates(gpu).nvlink_bps))
    fabric = f"rail_optimized --nodes {nodes} --gpus-per-node {ranks // nodes} --nic {nic} --nvlink {nvlink}"
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
        "topology": f"netsim topology {fabric}",
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
    algorithm: AlgorithmName = None,
    protocol: ProtocolName = None,
    root: Root = 0,
    coarsen: Coarsen = None,
    stack: StackName = "nccl",
    as_json: Json = False,
) -> None:
    """Prove by symbolic execution that the plan of a collective leaves the right data on every rank."""
    from simccl.custom_allreduce import Stack
    from simccl.files import read_size_bytes
    from simccl.planner import plan_collective
    from simccl.verify import verify_plan

    communicator, size_bytes = _communicator(ranks, nodes, gpu), read_size_bytes(size)
    plan = plan_collective(
        op,
        size_bytes,
        communicator,
        algorithm=algorithm,
        protocol=protocol,
        root=root,
        coarsen=coarsen,
        stack=Stack.parse(stack),
    )
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


def _pricing(is_uncalibrated: bool, calibration: Path | None, stack: str, busbw: Path | None) -> Pricing:
    """What the options of ``simccl time`` ask for."""
    from simccl.busbw import read_busbw
    from simccl.calibration import Calibrated, read_calibration
    from simccl.custom_allreduce import Stack
    from simccl.pricing import Pricing

    if is_uncalibrated and calibration is not None:
        raise InputError("calibration: found with --uncalibrated, expected one of them")
    wanted: Calibrated = "none" if is_uncalibrated else "shipped"
    return Pricing(
        calibration=wanted if calibration is None else read_calibration(calibration),
        stack=Stack.parse(stack),
        busbw=None if busbw is None else read_busbw(busbw),
    )


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name}: found {value}, expected at least 1")
    return value


def _communicator(ranks: int, nodes: int, gpu: str) -> Communicator:
    """Ranks spread evenly over equal nodes, with the link rates of the GPU type."""
    from netsim import rail_optimized
    from simccl.communicator import Communicator

    _check_spread(ranks, nodes)
    return Communicator(tuple(range(ranks)), rail_optimized(nodes, ranks // nodes, rates=_rates(gpu)), gpu)


def _rates(gpu: str) -> LinkRates:
    """Links of systems with GPUs of this type."""
    from netsim.topologies.defaults import LinkRates
    from simccl.hardware import gpu_named

    found = gpu_named(gpu)
    return LinkRates(nic_bps=round(found.nic_gbytes_per_s * 8e9), nvlink_bps=round(found.nvlink_gbytes_per_s * 8e9))


def _check_spread(ranks: int, nodes: int) -> None:
    from simccl.collective import MAX_RANKS

    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"ranks: found {ranks}, expected 1 to {MAX_RANKS}")
    if nodes < 1 or ranks % nodes:
        raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")


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
    run_command_line(app, "simccl", {InputError: 2, NetworkInputError: 2, PlanError: 1})


if __name__ == "__main__":
    main()
