"""Command ``simccl time``: times of collectives on an idle system, one or a table of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.command_line import print_summary
from boundary.errors import InputError
from boundary.output_files import check_output
from simccl.commands.options import Gpu, Json, Nodes, Nvls, StackName, check_spread, may_use_nvls

if TYPE_CHECKING:
    from simccl.engines.all_reduce import AllReduceKernels
    from simccl.formats.pricing import Pricing


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
    nvls: Nvls = None,
    busbw: Annotated[Path | None, typer.Option(help="SimAI's busbw.yaml, in place of the cost model.")] = None,
    group: Annotated[str, typer.Option(help="Section of --busbw: tp, dp, ep, dp_ep or pp.")] = "tp",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where the priced table goes.")] = None,
    as_json: Json = False,
) -> None:
    """Time of a collective on an idle system: NCCL's cost model, corrected by measurements where there are some."""
    from simccl.communicator.gpus import gpu_named
    from simccl.engines.all_reduce import AllReduceKernels
    from simccl.formats.busbw import Group
    from simccl.formats.pricing import Request
    from simccl.formats.tables import price_table, price_workload, read_size_bytes

    pricing = _pricing(uncalibrated, calibration, AllReduceKernels.parse(stack), nvls, busbw)
    if table is not None or workload is not None:
        if output is None:
            raise InputError("-o: found nothing, expected where to write the priced table")
        check_output(output, [path for path in (table, workload, calibration, busbw) if path is not None])
        if table is not None:
            rows = price_table(table, output, pricing)
        else:
            assert workload is not None
            name, per_node = gpu_named(gpu).name, _at_least_one("gpus_per_node", gpus_per_node)
            rows = price_workload(workload, output, pricing, gpu=name, gpus_per_node=per_node)
        print_summary({"rows": rows, "output": str(output)}, as_json)
        return
    if op is None or size is None or ranks is None:
        raise InputError("time: expected --op, --bytes and --ranks, or --table, or --workload")
    from simccl.collective import MAX_RANKS, Collective

    Collective.parse(op)
    gpu_named(gpu)
    size_bytes = read_size_bytes(size)
    check_spread(ranks, nodes, MAX_RANKS)
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
    print_summary(result, as_json)


def _pricing(
    is_uncalibrated: bool, calibration: Path | None, stack: AllReduceKernels, nvls: bool | None, busbw: Path | None
) -> Pricing:
    """The pricing that the options of ``simccl time`` ask for."""
    from simccl.formats.busbw import read_busbw
    from simccl.formats.pricing import Pricing
    from simccl.planning.calibration import Calibrated, read_calibration

    if is_uncalibrated and calibration is not None:
        raise InputError("calibration: found with --uncalibrated, expected one of them")
    wanted: Calibrated = "none" if is_uncalibrated else "shipped"
    return Pricing(
        calibration=wanted if calibration is None else read_calibration(calibration),
        stack=stack,
        may_use_nvls=may_use_nvls(nvls, stack),
        busbw=None if busbw is None else read_busbw(busbw),
    )


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name}: found {value}, expected at least 1")
    return value
