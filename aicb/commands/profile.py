"""The command that measures kernels on the GPU of this host."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aicb.commands.profile_engine import engine
from aicb.commands.profile_host import host
from boundary.errors import InputError

if TYPE_CHECKING:
    from aicb.profiling.runner import Report


class Device(StrEnum):
    """Device that kernels run on."""

    CUDA = "cuda"
    CPU = "cpu"


class Weights(StrEnum):
    """Formats of weights to sweep; ``mxfp4`` has the experts of models that are published in it."""

    BF16 = "bf16"
    FP8 = "fp8"
    BOTH = "both"
    MXFP4 = "mxfp4"


class Cache(StrEnum):
    """Formats of the KV cache to sweep."""

    BF16 = "bf16"
    FP8 = "fp8"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    """Adds ``profile``, ``profile host`` and ``profile engine`` to the command line."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(profile)
    group.command()(host)
    group.command()(engine)
    app.add_typer(group, name="profile")


def profile(
    context: typer.Context,
    model: Annotated[list[str] | None, typer.Option(help="Built-in name or path of a config.json; repeatable.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Directory of the results.")] = None,
    device: Annotated[Device, typer.Option(help="cpu runs the same harness with torch's own kernels.")] = Device.CUDA,
    budget: Annotated[float, typer.Option(help="Seconds of measuring; the least valuable points are left out.")] = 600,
    only: Annotated[str, typer.Option(help="Operations to measure, comma separated; all by default.")] = "",
    tp: Annotated[str, typer.Option(help="Tensor-parallel sizes, comma separated.")] = "1,2,4,8",
    ep: Annotated[str, typer.Option(help="Expert-parallel sizes, comma separated.")] = "1,2,4,8,16,32,64",
    weights: Annotated[Weights, typer.Option(help="Formats of weights.")] = Weights.BOTH,
    kv_format: Annotated[Cache, typer.Option(help="Formats of the KV cache.")] = Cache.BF16,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an iteration.")] = 16384,
    max_kv: Annotated[int, typer.Option(help="Longest KV length.")] = 32768,
    check: Annotated[float, typer.Option(help="Share of points compared with a reference.")] = 0.2,
    compile_workers: Annotated[int, typer.Option(help="Processes that compile ahead; 0 compiles in place.")] = 0,
    compile_budget: Annotated[float, typer.Option(help="Seconds to compile ahead.")] = 300,
    library_module: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH of a compiled module that is not importable (_flashmla_C, _vllm_fa3_C, …)."),
    ] = None,
    run: Annotated[str, typer.Option(help="Name of this run in the rows.")] = "profile",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the results in the directory.")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="Print how many points each operation has, and stop.")
    ] = False,
) -> None:
    """Measure the kernels a model needs, over partitions and token counts, into a Parquet table with provenance."""
    if context.invoked_subcommand is not None:
        return
    if not model or output is None:
        raise InputError("aicb profile: found no --model or no --output, expected both")
    from aicb.model.catalog import load_model, model_files
    from aicb.profiling.store import check_directory
    from aicb.profiling.sweep import Plan, count_by_op, plan_points

    formats, caches = (("bf16", "fp8") if chosen == "both" else (chosen.value,) for chosen in (weights, kv_format))
    plan = Plan(
        models=tuple(load_model(name) for name in model),
        weights=formats,  # type: ignore[arg-type]
        kv=caches,  # type: ignore[arg-type]
        tp=_sizes("--tp", tp),
        ep=_sizes("--ep", ep),
        max_tokens=max_tokens,
        max_kv_tokens=max_kv,
        only=frozenset(name for name in only.split(",") if name),
    )
    points = plan_points(plan)
    if list_only:
        for op, count in count_by_op(points).items():
            typer.echo(f"{count:7d}  {op}")
        return
    modules = dict(_module(text) for text in library_module or [])
    try:
        from aicb.profiling.compile_ahead import compile_ahead
        from aicb.profiling.libraries import all_libraries
        from aicb.profiling.runner import Settings, run_plan
    except ModuleNotFoundError as error:
        raise InputError(f"aicb profile: found no module {error.name!r}, expected an installed torch") from None
    _check_device(device)
    read = [path for name in model for path in model_files(name)]
    check_directory(output, resume=resume, inputs=[*read, *modules.values()])
    if compile_workers and device is Device.CUDA:
        compile_ahead(points, compile_workers, compile_budget)
    settings = Settings(device.value, budget, check, resume, run=run)
    _print(run_plan(points, all_libraries(device.value, modules), output, settings), output)


def _sizes(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name}: found {text!r}, expected sizes separated by commas") from None


def _module(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not separator or not Path(path).is_file():
        raise InputError(f"--library-module: found {text!r}, expected NAME=PATH of an existing file")
    return name, Path(path)


def _check_device(device: Device) -> None:
    import torch

    if device is Device.CUDA and not torch.cuda.is_available():
        raise InputError("--device: found cuda, expected a CUDA device that torch can use (or --device cpu)")


def _print(report: Report, output: Path) -> None:
    for kernel, count in sorted(report.measured.items()):
        typer.echo(f"{count:7d}  {kernel}")
    for library, reason in report.missing.items():
        typer.echo(f"skipped {library}: {reason}")
    for failure, count in report.failed.items():
        typer.echo(f"failed {count} x {failure}")
    for op, count in report.unserved.items():
        typer.echo(f"no library took {count} points of {op}")
    left = f", {report.left} points left by the budget" if report.left else ""
    typer.echo(f"{sum(report.measured.values())} rows in {report.seconds:.0f} s{left}: {output}")
