"""``vidur-pd plan``: the smallest deployment for a workload and an SLO, without a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from boundary.errors import InputError
from vidur_pd.commands.load_options import load_settings
from vidur_pd.commands.search import AsJson, OutFolder, RayAddress, WorkerCount, carry_out
from vidur_pd.commands.slo_options import latency_settings

Settings = Annotated[list[str] | None, typer.Option("--set", help="Override a field: a.b=value (repeatable).")]


def plan(
    model: Annotated[str, typer.Option(help="A built-in model, or the path of a config.json.")],
    gpu: Annotated[str, typer.Option(help="GPU, in any case of letters.")],
    trace: Annotated[Path, typer.Option(help="Trace of requests, in a known format.")],
    out: OutFolder,
    rate: Annotated[str | None, typer.Option(help="Mean rate of arrivals, as 10/s; as recorded unless said.")] = None,
    ttft: Annotated[str, typer.Option(help="Percentile and seconds to the first token.")] = "p90:2.0",
    tpot: Annotated[str, typer.Option(help="Percentile and seconds per output token.")] = "p90:0.05",
    e2e: Annotated[str | None, typer.Option(help="Percentile and seconds to the last token.")] = None,
    gpus_max: Annotated[int, typer.Option(min=2, max=4096, help="Most GPUs.")] = 128,
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first so many of the trace.")] = None,
    weights: Annotated[str | None, typer.Option(help="bf16, fp8 or mxfp4; as published unless said.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    nic: Annotated[str, typer.Option(help="Of each GPU.")] = "400Gbps",
    colocated: Annotated[
        bool, typer.Option("--colocated", help="Instances that serve both phases, instead of prefill and decode apart.")
    ] = False,
    settings: Settings = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Find the fewest GPUs that serve a trace within an SLO, with their division into prefill and decode.

    Tries every partition that fits into memory in every number, by what they promise; writes what search writes.
    """
    from vidur_pd.search.screening import check_workload
    from vidur_pd.search.space.plan import Wish, plan_space

    limits = latency_settings({name: value for name, value in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)) if value})
    workload: dict[str, Any] = {"kind": "trace", "path": str(trace.absolute())}
    if not trace.is_file():
        raise InputError(f"--trace: found no file {trace}, expected a trace of requests")
    workload |= {"limit": requests} if requests else {}
    wish = Wish(
        model=model,
        gpu=gpu,
        workload=workload,
        gpus_max=gpus_max,
        weights=weights,
        framework=engine,
        nic=nic,
        settings=[*load_settings(rate, None), *limits, *(settings or [])],
        is_colocated=colocated,
    )
    space = plan_space(wish)
    check_workload(space)
    carry_out(space, out, [trace], workers=workers, ray=ray, as_json=as_json)
