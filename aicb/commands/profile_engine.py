"""The command that measures an engine on this machine, to be compared with its simulation."""

from __future__ import annotations

import gzip
import importlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from aicb.commands.engine_launches import launches_of, model_configuration
from boundary.errors import InputError
from boundary.output_files import check_output, write_atomically
from boundary.quoting import quoted

if TYPE_CHECKING:
    from aicb.profiling.engine_host.served import DraftsUnderTest, Framework

ENGINE_ARGUMENTS: dict[str, dict[str, Any]] = {
    "vllm": {
        "load_format": "aicb_random",
        "max_model_len": 32768,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8,
    },
    "sglang": {"context_length": 32768, "max_running_requests": 288},
}
"""Of each engine, where nothing else is stated. vLLM's draw weights (`vllm_loader.py`) and leave memory for what the
first calls of kernels take; of 256 requests SGLang runs 255 at once."""


def engine(
    model: Annotated[Path, typer.Option(help="A config.json as vLLM reads it; weights are random.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Measurement to write (.json.gz).")],
    layers: Annotated[int, typer.Option(min=0, help="Cut the model to so many layers; 0: all.")] = 0,
    tp: Annotated[int, typer.Option(min=1, help="GPUs of a data-parallel rank.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks, which share experts if more than one.")] = 1,
    ep: Annotated[bool, typer.Option("--ep", help="GPUs of one rank share experts, too.")] = False,
    rates: Annotated[str, typer.Option(help="Requests/s of the Poisson loads, separated by commas.")] = "2,6,12",
    acceptance: Annotated[
        str, typer.Option(help="Draft as many tokens a step, each kept with its probability, given those before it.")
    ] = "",
    method: Annotated[str, typer.Option(help="What drafts: mtp, eagle or draft_model.")] = "mtp",
    draft_model: Annotated[Path | None, typer.Option(help="Its config.json, but for mtp.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option(help="The engine's own NAME=JSON, such as block_size=64.")
    ] = None,
    framework: Annotated[str, typer.Option(help="vllm or sglang.")] = "vllm",
    recording: Annotated[
        Path | None, typer.Option(help="File for all stamps, kept after each phase (.json.gz).")
    ] = None,
) -> None:
    """Measure vLLM 0.24 or SGLang 0.5.17 on this machine: prompts alone, steady decodes, Poisson loads; some minutes.

    What is written is for ``vidur-pd validate --engine``. Weights are random, and so are prompts.
    """
    for name, path in (("--output", output), ("--recording", recording)):
        if path is not None and not path.name.endswith(".json.gz"):
            raise InputError(f"{name}: found {quoted(str(path))}, expected a file that ends in .json.gz")
        if path is not None:
            check_output(path, [model])
    if framework not in ENGINE_ARGUMENTS:
        raise InputError(f"--framework: found {quoted(framework)}, expected {' or '.join(ENGINE_ARGUMENTS)}")
    engine_name = cast("Framework", framework)
    configuration = model_configuration(model, layers)
    arguments = ENGINE_ARGUMENTS[framework] | _arguments(argument or [])
    loads = tuple(_number(each, "--rates", above=0.0) for each in rates.split(",") if each.strip())
    with tempfile.TemporaryDirectory() as folder:
        drafts = _drafts(method, acceptance, draft_model, Path(folder))
        if drafts is not None and framework == "sglang":
            raise InputError("--acceptance: found drafts with sglang, expected none: it accepts no given share of them")
        if drafts is not None and method == "mtp" and not configuration.get("num_nextn_predict_layers"):
            configuration["num_nextn_predict_layers"] = 1
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        try:
            importlib.import_module(framework)
        except ModuleNotFoundError as error:
            raise InputError(
                f"aicb profile engine: found no module {error.name!r}, expected an installed {framework}"
            ) from None
        from aicb.commands import engine_measurement, sglang_measurement
        from aicb.iteration.drafting_host import UNMEASURED, drafting_of_vllm
        from aicb.model.catalog import load_model
        from aicb.profiling.engine_host.runs import Runs, record_runs
        from aicb.profiling.engine_host.served import EngineUnderTest

        under_test = EngineUnderTest(folder, tp, dp, ep or dp > 1, arguments, drafts, engine_name)
        known = {"config": configuration, "speculative": _speculative(method, drafts)}
        if method == "draft_model" and draft_model is not None:
            known["draft_config"] = model_configuration(draft_model)

        def keep(found: dict[str, Any]) -> None:
            typer.echo(f"{list(found['phases'])[-1]} is done")
            if recording is not None:
                _write(recording, found | known)

        recorded = record_runs(under_test, Runs(rates=loads), keep) | known
        kernel = recorded["norm_kernel"]
        launches = launches_of(
            str(file), tp, dp, shares_experts=ep or dp > 1, norm_kernel=kernel, framework=engine_name
        )
        drafting = UNMEASURED if drafts is None else drafting_of_vllm(load_model(str(file)), method)
    if framework == "vllm":
        _write(output, engine_measurement.measurement_of(recorded, launches, drafting))
    else:
        _write(output, sglang_measurement.measurement_of(recorded, launches))
    for load, step_s in recorded.get("compiling_s", {}).items():
        typer.echo(f"{load}: a kernel was compiled in each of its runs (a step of {step_s:.1f} s); it is not compared")
    typer.echo(f"{output}: compare with vidur-pd validate --engine {output}")


def _arguments(stated: list[str]) -> dict[str, Any]:
    found = {}
    for each in stated:
        name, has_value, value = each.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            has_value = ""
        if not (name and has_value):
            raise InputError(f"--argument: found {quoted(each)}, expected NAME=JSON, such as block_size=64")
    return found


def _drafts(method: str, acceptance: str, model: Path | None, folder: Path) -> DraftsUnderTest | None:
    from aicb.profiling.engine_host.served import DraftsUnderTest

    if method not in ("mtp", "eagle", "draft_model"):
        raise InputError(f"--method: found {quoted(method)}, expected mtp, eagle or draft_model")
    if not acceptance.strip():
        if method != "mtp" or model is not None:
            raise InputError(f"--acceptance: found none with {method}, expected a probability of each draft")
        return None
    rates = tuple(_number(each, "--acceptance", above=0.0, most=1.0) for each in acceptance.split(","))
    if (model is None) != (method == "mtp"):
        expected = "none with mtp" if method == "mtp" else f"the config.json of what drafts with {method}"
        raise InputError(f"--draft-model: found {quoted(None if model is None else str(model))}, expected {expected}")
    if model is None:
        return DraftsUnderTest(method, rates)
    (folder / "drafts").mkdir()
    (folder / "drafts" / "config.json").write_text(json.dumps(model_configuration(model)), encoding="utf-8")
    return DraftsUnderTest(method, rates, str(folder / "drafts"))


def _speculative(method: str, drafts: DraftsUnderTest | None) -> dict[str, Any] | None:
    """As `vidur_pd` states it."""
    if drafts is None:
        return None
    return {"method": method, "drafts": len(drafts.acceptance), "acceptance": list(drafts.acceptance)}


def _number(text: str, option: str, *, above: float, most: float = 1e6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = above
    if not above < value <= most:
        raise InputError(f"{option}: found {quoted(text)}, expected numbers above {above:g} and at most {most:g}")
    return value


def _write(path: Path, document: dict[str, Any]) -> None:
    write_atomically(path, gzip.compress(json.dumps(document).encode()))
