"""``vidur-pd init``: a commented configuration to start from, by options or by questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from vidur_pd.commands.own_columns import Columns, TimeUnitOption, known_unit, named_columns, read_own

if TYPE_CHECKING:
    from vidur_pd.config.workload import TimeUnit, TraceColumn
    from vidur_pd.workload.reading import Trace
    from vidur_pd.workload.statistics import LengthStatistics

MOST_TENSOR_PARALLEL: Final = 8
"""GPUs of a node, over which an instance is divided before it takes more nodes."""

KV_TRANSFER: Final = """kv_transfer:               # or mooncake, lmcache, ideal (bytes alone): vidur-pd list connectors
  connector: {{kind: {connector}, handshake_us: 0, handshake_descriptor_us: 0}}     # instances that have met before
"""
TEMPLATE: Final = """# {model} on {gpus} × {gpu}: {about}.
# vidur-pd run {name} -o out
# All options: docs/options.md; for editors: vidur-pd schema.
seed: 0
model: {model}                # a built-in name, or the path of a Hugging Face config.json
hardware: {gpu}
workload:
{workload}
cluster:
  topology: {{kind: rail_optimized, gpus_per_node: 8, nic: 400Gbps}}      # oversubscription: 4 where uplinks are shared
  pools:
{pools}
engine:
  framework: {framework}            # its defaults hold for what is left out; version, max_batched_tokens, max_seqs, …
{kv_transfer}slo:                       # what the verdict is about: percentiles of latencies, in seconds
  ttft: {{p90: {ttft}}}
  tpot: {{p90: {tpot}}}
"""
SYNTHETIC: Final = """  kind: synthetic
  requests: {requests}
  arrivals: {{kind: poisson, qps: {rate:g}}}
  lengths:               # tokens; or a trace: {{kind: trace, path: t.csv}}
    kind: lognormal
    prefill: {{median: 1000, p90: 3000, max: 8000}}
    decode: {{median: 200, p90: 600, max: 2000}}"""
TRACE: Final = """  kind: trace
  path: {path}           # Vidur, Azure, Mooncake, BurstGPT, Qwen-Bailian or own format, recognised by its columns
  {columns}
  {arrivals}"""
DRAWN_PER_S: Final = 4.0
"""Requests that are drawn, where none are stated. Our choice: one GPU serves them with a model of 8B."""


def init(
    target: Annotated[Path, typer.Option("-o", "--out", help="File to write, which must not exist.")] = Path(
        "config.yaml"
    ),
    model: Annotated[str | None, typer.Option(help="Built-in name, or path of a config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, as h200 or h100.")] = None,
    prefill: Annotated[int, typer.Option(min=0, help="Prefill instances; 0: one pool serves both phases.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Decode instances, or instances of the one pool.")] = 1,
    tp: Annotated[int | None, typer.Option(min=1, help="GPUs of an instance; by default the fewest that fit.")] = None,
    framework: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    trace: Annotated[Path | None, typer.Option(help="Trace of requests; by default they are drawn.")] = None,
    columns: Columns = None,
    time_unit: TimeUnitOption = "s",
    rate: Annotated[
        float | None, typer.Option(min=1e-6, help="Requests per second; by default those of the trace, or 4.")
    ] = None,
    ttft: Annotated[float, typer.Option(min=1e-6, help="Limit of TTFT p90, seconds.")] = 2.0,
    tpot: Annotated[float, typer.Option(min=1e-6, help="Limit of TPOT p90, seconds.")] = 0.05,
) -> None:
    """Write a commented configuration that runs; asks for model and GPU where they are not given."""
    from boundary.errors import InputError
    from boundary.output_files import check_output
    from vidur_pd.config.file import load_config
    from vidur_pd.simulation.plan import plan_simulation

    if target.exists():
        raise InputError(f"{target}: found a file, expected none, or another name with -o")
    check_output(target)
    model, gpu = _asked(model, "--model", "Model"), _asked(gpu, "--gpu", "GPU").lower()
    tp = tp or _fewest(model, gpu)
    if columns and trace is None:
        raise InputError("--column: found without --trace, expected both")
    named = named_columns(columns or [])
    unit = known_unit(time_unit, named)
    found = None if trace is None else read_own(trace, named, unit)
    workload = _drawn(rate) if found is None or trace is None else _replayed(trace, named, unit, found, rate)
    text = _text(target, model, gpu, (prefill, decode), tp, framework, workload, (ttft, tpot))
    target.write_text(text, encoding="utf-8")
    try:
        plan = plan_simulation(load_config(target))
    except InputError:
        target.unlink()
        raise
    if found is not None:
        for line in _about(found, min(pool.max_model_len for pool in plan.pools.values())):
            typer.echo(line)
    typer.echo(f"wrote {target}; next: vidur-pd run {target} -o out")


def _asked(value: str | None, option: str, what: str) -> str:
    """An option, or what the user types at a terminal. Raises: InputError without either."""
    from boundary.errors import InputError

    if value is not None:
        return value
    if not sys.stdin.isatty():
        raise InputError(f"{option}: found none, expected one where there is no terminal to ask at")
    answer: str = typer.prompt(what)
    return answer


def _fewest(model: str, gpu: str) -> int:
    """Tensor-parallel size of the fewest GPUs that hold the model, up to a node.

    Raises: InputError, where none does, with the sizes of the last one.
    """
    from aicb import Partition, Precision, get_gpu, instance_memory, load_model
    from boundary.errors import InputError

    loaded, known = load_model(model), get_gpu(gpu)
    precision = Precision(known.weights_of(loaded.published_weights))
    sizes = [1 << power for power in range(MOST_TENSOR_PARALLEL.bit_length())]
    for tp in sizes:
        try:
            instance_memory(loaded, Partition(tp=tp), precision, known)
        except InputError:
            if tp == sizes[-1]:
                raise
        else:
            return tp
    raise AssertionError("some size is the last one")


def _drawn(rate: float | None) -> str:
    rate = DRAWN_PER_S if rate is None else rate
    return SYNTHETIC.format(requests=max(200, round(60 * rate)), rate=rate)


def _replayed(trace: Path, columns: Mapping[TraceColumn, str], unit: TimeUnit, found: Trace, rate: float | None) -> str:
    named = ", ".join(f"{name}: {json.dumps(column)}" for name, column in columns.items())
    of_unit = "" if unit == "s" else f"\n  time_unit: {unit}"
    shown = f"columns: {{{named}}}{of_unit}" if columns else f"format: {found.format}"
    if found.has_arrivals:
        stated = "# rate: 10/s" if rate is None else f"rate: {rate:g}/s"
        arrivals = f"{stated}              # arrivals rescaled to this mean; without it as in the trace"
    else:
        arrivals = f"arrivals: {{kind: poisson, qps: {rate or DRAWN_PER_S:g}}}     # the trace has lengths only"
    return TRACE.format(path=trace.resolve(), columns=shown, arrivals=arrivals)


def _about(found: Trace, context_tokens: int) -> list[str]:
    """What was found in the trace, and what of it an engine would refuse."""
    from vidur_pd.workload.statistics import describe_workload

    of, workload = describe_workload(found.workload), found.workload
    rate = "" if of.rate_qps is None else f", {of.rate_qps:.3g}/s"
    times = f"in {of.span_s:.4g} s{rate}" if found.has_arrivals else "without arrivals, which are drawn"
    lines = [
        f"{of.source} ({found.format}): {of.requests:,} requests {times}",
        f"prompts: {_lengths(of.prefill_tokens)}; outputs: {_lengths(of.decode_tokens)} tokens",
    ]
    too_long = int((workload.prefill_tokens + workload.decode_tokens > context_tokens).sum())
    if too_long:
        lines.append(
            f"{too_long:,} of them exceed the context window of {context_tokens:,} tokens and would be rejected; "
            "workload.max_tokens trims them"
        )
    return lines


def _lengths(of: LengthStatistics) -> str:
    return f"mean {of.mean:,.0f}, p90 {of.p90:,.0f}, max {of.max:,}"


def _text(
    target: Path,
    model: str,
    gpu: str,
    instances: tuple[int, int],
    tp: int,
    framework: str,
    workload: str,
    limits: tuple[float, float],
) -> str:
    from vidur_pd.config.kv_transfer import IDEAL, OF_FRAMEWORKS

    prefill, decode = instances
    roles: tuple[tuple[str, int], ...]
    if prefill:
        roles = (("prefill", prefill), ("decode", decode))
        about = "prefill and decode on instances of their own"
        transfer = KV_TRANSFER.format(connector=OF_FRAMEWORKS.get(framework, IDEAL))
    else:
        roles, about, transfer = (("mixed", decode),), "prefill and decode together", ""
    pools = "\n".join(f"    - {{name: {role}, role: {role}, instances: {count}, tp: {tp}}}" for role, count in roles)
    return TEMPLATE.format(
        model=model,
        gpu=gpu,
        gpus=tp * sum(count for _, count in roles),
        about=about,
        name=target.name,
        workload=workload,
        pools=pools,
        framework=framework,
        kv_transfer=transfer,
        ttft=f"{limits[0]:g}",
        tpot=f"{limits[1]:g}",
    )
