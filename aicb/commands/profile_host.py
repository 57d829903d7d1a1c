"""The command that measures the host of this machine with an engine on it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aicb.commands.engine_launches import launches_of, model_configuration
from boundary.errors import InputError

if TYPE_CHECKING:
    from aicb.iteration.host import HostModel


def host(
    model: Annotated[Path, typer.Option(help="A config.json as vLLM reads it; weights are random.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Host file to write, for engine.host.")],
    layers: Annotated[int, typer.Option(min=0, help="Cut the model to so many layers; 0: all.")] = 0,
    tp: Annotated[int, typer.Option(min=1, help="GPUs of a data-parallel rank, a worker each.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks, which share experts if more than one.")] = 1,
    kv_bytes: Annotated[int, typer.Option(min=1, help="KV cache per GPU.")] = 2_000_000_000,
    recording: Annotated[Path | None, typer.Option(help="File for the stamps themselves (JSON).")] = None,
) -> None:
    """Measure this machine's host times with vLLM 0.24 on any GPU that holds the model, stamped from inside."""
    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"--output: found {str(output)!r}, expected a file that ends in .yaml")
    configuration = model_configuration(model, layers)
    try:
        import vllm  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(f"aicb profile host: found no module {error.name!r}, expected an installed vllm") from None
    from aicb.commands.host_of_steps import host_of, launch_range_us
    from aicb.profiling.engine_host.engine import record
    from aicb.profiling.engine_host.parts import request_latency_us, slowest_rank_factor, steps_of
    from aicb.profiling.engine_host.served import EngineUnderTest

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        stamps = record(EngineUnderTest(folder, tp, dp, dp > 1, {"kv_cache_memory_bytes": kv_bytes}))
        kernel = stamps["norm_kernel"]
        launches = launches_of(str(file), tp, dp, shares_experts=dp > 1, norm_kernel=kernel)
    if recording is not None:
        recording.write_text(json.dumps(stamps), encoding="utf-8")
    steps = steps_of(stamps)
    found = host_of(steps, launches, request_latency_us(stamps), tp, dp, slowest_rank_factor(stamps))
    least_us, most_us = launch_range_us(steps, launches, tp)
    engine = f"{model.parent.name or model.name}, {layers or 'all'} layers, TP {tp}, DP {dp}"
    spread = f"from {least_us:.1f} to {most_us:.1f} us (10th and 90th percentile)"
    output.write_text(_host_file(found, f"{engine}, launches {spread}", stamps), encoding="utf-8")
    typer.echo(f"{output}: {found.eager_launch_us:.1f} us a launch, {spread}; {found.prepare_us:.0f} us to prepare")


def _host_file(found: HostModel, what: str, stamps: dict[str, Any]) -> str:
    """YAML that `aicb.iteration.host.load_host` reads; times of the device are not the host's and stay as they are."""
    import yaml

    unmeasured = ("step_us", "gap_us", "speed_spread")
    known = {name: time for name, time in asdict(found).items() if name not in unmeasured and time is not None}
    times = {name: round(time, 2) for name, time in known.items()}
    seen = stamps["environment"]
    source = (
        f"aicb profile host: {what}; {seen['cpu']}, {seen['cores']} cores, {', '.join(seen['gpus'])}, "
        f"vLLM {seen['versions']['vllm']}; medians of parts stamped inside the engine"
    )
    return str(yaml.safe_dump({"source": source, **times}, sort_keys=False))
