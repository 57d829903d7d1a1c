"""``vidur-pd list``: the names that a configuration may have, and what each stands for."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

MOST_COLUMNS: Final = 100
"""Of a line, on wider terminals too."""
INDENT: Final = "  "


class Kind(StrEnum):
    """What is listed."""

    MODELS = "models"
    GPUS = "gpus"
    HOSTS = "hosts"
    TOPOLOGIES = "topologies"
    FRAMEWORKS = "frameworks"
    SCHEDULING = "scheduling"
    ROUTING = "routing"
    CONNECTORS = "connectors"
    MODES = "modes"
    EVICTIONS = "evictions"
    PLANNERS = "planners"


@dataclass(frozen=True, slots=True)
class Listed:
    """One kind of names."""

    field: str
    """Of the configuration, which may have such a name."""
    or_else: str
    """What else the field may say."""
    entries: Callable[[], Mapping[str, str]]
    """Name, and what it stands for."""


def list_known(
    kind: Annotated[
        Kind | None, typer.Argument(help="One kind, each name with what it stands for; by default the names of all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: kind, name, what it stands for.")] = False,
) -> None:
    """List the models, GPUs, hosts, topologies, engines, policies and connectors that are built in."""
    listed = _listed()
    wanted = list(listed) if kind is None else [kind]
    if as_json:
        typer.echo(json.dumps({each: dict(listed[each].entries()) for each in wanted}, indent=1, ensure_ascii=False))
        return
    for each in wanted:
        typer.echo(f"{each} ({listed[each].field}: a name, or {listed[each].or_else})")
        entries = listed[each].entries()
        for line in _names(entries) if kind is None else _lines(entries):
            typer.echo(line)


def _listed() -> Mapping[Kind, Listed]:
    from vidur_pd.config import NAMED_POLICIES, NAMED_ROUTING, TRANSFER_MODES
    from vidur_pd.config.kv_cache import NAMED_EVICTIONS
    from vidur_pd.config.planner import NAMED_PLANNERS

    own = "file.py:Class"
    return {
        Kind.MODELS: Listed("model", "the path of a config.json", _models),
        Kind.GPUS: Listed("hardware", "a folder with gpu.yaml", _gpus),
        Kind.HOSTS: Listed("engine.host", "the path of a YAML file", _hosts),
        Kind.TOPOLOGIES: Listed("cluster.topology.kind", "{file: T.yaml}", _topologies),
        Kind.FRAMEWORKS: Listed("engine.framework", "engine.version with it", _frameworks),
        Kind.SCHEDULING: Listed(
            "engine.policy", own, lambda: _core_policy() | _modules("scheduling.policies", NAMED_POLICIES)
        ),
        Kind.ROUTING: Listed(
            "routing.policy", own, lambda: _core_routing() | _modules("cluster.routing.policies", NAMED_ROUTING)
        ),
        Kind.CONNECTORS: Listed("kv_transfer.connector", "{kind: name, cost: value, …}", _connectors),
        Kind.MODES: Listed("kv_transfer.mode", own, lambda: _modules("kv.transfer.modes", TRANSFER_MODES)),
        Kind.EVICTIONS: Listed(
            "kv_cache.tiers.0.eviction", own, lambda: _modules("kv.store.eviction", NAMED_EVICTIONS)
        ),
        Kind.PLANNERS: Listed("planner.policy", own, lambda: _modules("cluster.planner.policies", NAMED_PLANNERS)),
    }


def _models() -> dict[str, str]:
    from aicb import built_in_models, load_model

    found = {}
    for model in map(load_model, built_in_models()):
        of_all, active = model.parameters / 1e9, model.active_parameters / 1e9
        kv = model.kv_bytes_per_token() / 1024
        found[model.name] = (
            f"{of_all:.4g} billion parameters, {active:.3g} active; {len(model.layers)} layers, "
            f"{kv:.4g} KiB of KV per token in bf16"
        )
    return found


def _gpus() -> dict[str, str]:
    from aicb import get_gpu, known_gpus

    found = {}
    for gpu in map(get_gpu, known_gpus()):
        times = "kernels measured" if gpu.times_as is None else f"times transferred from {gpu.times_as}"
        found[gpu.name] = (
            f"{gpu.hbm_bytes / 2**30:.0f} GiB at {gpu.hbm_bytes_per_s / 1e12:.3g} TB/s, "
            f"{gpu.peak_bf16_flops / 1e12:.0f} TFLOP/s in bf16; {times}"
        )
    return found


def _hosts() -> dict[str, str]:
    from aicb.data import FOLDER
    from aicb.iteration.host import known_hosts

    return {name: _first_sentence(FOLDER / "hosts" / f"{name}.yaml") for name in known_hosts()}


def _topologies() -> dict[str, str]:
    import netsim
    from netsim.topologies.specs import SPECS

    builders = {name: getattr(netsim, name) for name in SPECS if name != "file"}
    return {name: _first_line(builder.__doc__) for name, builder in builders.items()}


def _frameworks() -> dict[str, str]:
    from vidur_pd.config.engines import known_frameworks, known_versions

    return {name: f"defaults of {', '.join(known_versions(name))}" for name in known_frameworks()}


def _connectors() -> dict[str, str]:
    from vidur_pd.config.kv_transfer import FOLDER, known_connectors

    return {name: _first_sentence(FOLDER / f"{name}.yaml") for name in known_connectors()}


def _core_policy() -> dict[str, str]:
    from vidur_pd.config import CORE_POLICY

    return {CORE_POLICY: "vLLM V1: decodes first, prompts in chunks with what is left of the budget; the default."}


def _core_routing() -> dict[str, str]:
    return {
        "least_tokens": "The fewest tokens to compute; where decodes run, plus the context of all requests.",
        "least_requests": "The fewest requests that wait or run.",
        "round_robin": "One after the other.",
        "random": "Any, drawn evenly.",
    }


def _modules(package: str, names: Iterable[str]) -> dict[str, str]:
    """The first lines of the modules in which the classes of these names are."""
    return {name: _first_line(import_module(f"vidur_pd.{package}.{name}").__doc__) for name in names}


def _first_line(docstring: str | None) -> str:
    assert docstring is not None, "what a configuration may name says what it is"
    return " ".join(docstring.split("\n\n")[0].split()).replace("`", "")


def _first_sentence(path: Path) -> str:
    """Of the comment that a file begins with."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return re.split(r"(?<=\.)\s", " ".join(comment))[0]


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, MOST_COLUMNS)


def _names(entries: Mapping[str, str]) -> list[str]:
    return textwrap.wrap(
        ", ".join(entries), _columns(), initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
    )


def _lines(entries: Mapping[str, str]) -> list[str]:
    width = max(map(len, entries)) + 2
    lines: list[str] = []
    for name, text in entries.items():
        begin, indent = f"{INDENT}{name:{width}}", " " * (width + len(INDENT))
        lines += textwrap.wrap(text, _columns(), initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False)
    return lines
