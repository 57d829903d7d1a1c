"""``vidur-pd capacity``: the highest load within the SLO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vidur_pd.commands.load_options import Clients, Rate, load_settings
from vidur_pd.commands.slo_options import Slo, slo_settings

if TYPE_CHECKING:
    from vidur_pd.config import SimulationConfig
    from vidur_pd.search.capacity.capacity import AtLoad, Capacity


def capacity(
    config: Annotated[Path, typer.Argument(help="YAML configuration; its relative paths start at its folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a field: a.b=value (repeatable); paths are relative to the configuration."
        ),
    ] = None,
    slo: Slo = None,
    rate: Rate = None,
    clients: Clients = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs at each load, with workloads drawn anew.")] = 1,
    tolerance: Annotated[float, typer.Option(min=0.001, max=0.5, help="Relative width of what is left open.")] = 0.02,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for capacity.json and the config.yaml of that load.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print capacity.json, and nothing else.")] = False,
) -> None:
    """Find the highest load within the SLO, what limits it there, and how sure that is.

    Scales the arrivals of the workload, or the clients of closed arrivals, by bisection; runs that are certain to
    miss end early.
    """
    from vidur_pd.config.file import load_config
    from vidur_pd.search.capacity.capacity import find_capacity

    overrides = [*(settings or []), *slo_settings(slo or []), *load_settings(rate, clients)]
    parsed = load_config(config, overrides)
    found = find_capacity(parsed, seeds=seeds, tolerance=tolerance)
    if out is not None:
        _write(found, parsed, out, config)
    if as_json:
        print(json.dumps(capacity_tree(found)))
        return
    print_capacity(found)


def _write(found: Capacity, config: SimulationConfig, out: Path, source: Path) -> None:
    from boundary.result_folder import ResultFolder
    from vidur_pd.config.file import dump_config
    from vidur_pd.simulation.input_files import input_files

    with ResultFolder(out, {"capacity.json", "config.yaml"}, [source, *input_files(config)]) as folder:
        (folder.files / "capacity.json").write_text(json.dumps(capacity_tree(found), indent=2) + "\n", encoding="utf-8")
        if found.limit.highest_met is not None:
            workload = _workload_at(config, found)
            at_capacity = config.model_copy(update={"workload": workload})
            (folder.files / "config.yaml").write_text(dump_config(at_capacity), encoding="utf-8")
        folder.place()


def _workload_at(config: SimulationConfig, found: Capacity) -> Any:
    from vidur_pd.config.arrivals import ClosedArrivals

    load = found.limit.highest_met
    assert load is not None
    if found.kind == "rate":
        unscaled = {"time_scale": 1.0} if hasattr(config.workload, "time_scale") else {}
        return config.workload.model_copy(update={"rate": load, **unscaled})
    arrivals = getattr(config.workload, "arrivals", None)
    assert isinstance(arrivals, ClosedArrivals), "nothing else has clients"
    return config.workload.model_copy(update={"arrivals": arrivals.model_copy(update={"clients": round(load)})})


def capacity_tree(found: Capacity) -> dict[str, Any]:
    """``capacity.json``."""
    from dataclasses import asdict

    return {
        "answer": "\n".join(sentences(found)),
        "kind": found.kind,
        "capacity": found.limit.highest_met,
        "lowest_missed": found.limit.lowest_missed,
        "surely_met": found.surely_met,
        "surely_missed": found.surely_missed,
        "requests_needed": found.requests_needed,
        "loads": [
            asdict(each)
            | {"is_met": each.is_met, "is_met_surely": each.is_met_surely, "is_missed_surely": each.is_missed_surely}
            for each in found.tried
        ],
    }


def sentences(found: Capacity) -> list[str]:
    """The answer first, then how sure it is and what limits it."""
    from vidur_pd.search.capacity.capacity import UNIT
    from vidur_pd.search.output.answer import targets_text

    unit, at = UNIT[found.kind], found.at_capacity
    if at is None:
        least = found.tried[0]
        reason = least.outcomes[0].limited_by
        return [f"No load within the SLO: {least.load:.3g} {unit} is too much already ({reason})."]
    outcome = min(at.outcomes, key=lambda each: each.margin)
    lines = [f"{at.load:.3g} {unit} within the SLO: {targets_text(outcome.targets)}."]
    lines.append(_confidence(found, unit))
    beyond = found.beyond
    if beyond is not None:
        worst = min(beyond.outcomes, key=lambda each: each.margin)
        grows = "; waiting grows for as long as requests come" if worst.is_overload else ""
        lines.append(f"At {beyond.load:.3g} {unit} it is missed{grows}. Limited by {outcome.limited_by}.")
    if found.missed_below:
        lowest, reason = found.missed_below[0], found.missed_below[0].outcomes[0].limited_by
        lines.append(f"This is one limit of several: less is missed, too, such as {lowest.load:.3g} {unit} ({reason}).")
    return lines


def _confidence(found: Capacity, unit: str) -> str:
    from vidur_pd.search.output.answer import short_text

    at = found.at_capacity
    assert at is not None
    if not at.is_long:
        needed = "" if found.requests_needed is None else f", some {found.requests_needed:,} requests"
        return f"{short_text(at.stays)}{needed}."
    if found.requests_needed is not None:
        needed = f"{found.requests_needed:,} requests, even with none beyond a limit"
        return f"How sure that is cannot be said of so few requests: it takes {needed}."
    low = "below what was tried" if found.surely_met is None else f"{found.surely_met:.3g}"
    high = "above what was tried" if found.surely_missed is None else f"{found.surely_missed:.3g}"
    text = f"For longer workloads of this kind, with 95 % confidence between {low} and {high} {unit}"
    if not at.shares:
        return f"{text}."
    tightest = max(at.shares, key=lambda each: each.interval.high / max(each.allowed, 1e-12))
    interval = tightest.interval
    return (
        f"{text}: at the capacity {100 * interval.share:.2g} % of the requests ({100 * interval.low:.2g} to "
        f"{100 * interval.high:.2g} %) are beyond the limit of {tightest.target}, and {100 * tightest.allowed:.2g} % "
        "may be."
    )


def print_capacity(found: Capacity) -> None:
    """Sentences, and a table of the loads that were run."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vidur_pd.search.capacity.capacity import UNIT
    from vidur_pd.search.output.answer import latency_cells, latency_columns, margin_text

    console = Console()
    for place, line in enumerate(sentences(found)):
        console.print(f"[bold]{escape(line)}[/]" if place == 0 else escape(line), highlight=False)
    latencies = latency_columns(outcome for each in found.tried for outcome in each.outcomes)
    table = Table(UNIT[found.kind], "within the SLO", *latencies, "margin")
    for each in found.tried:
        outcome = min(each.outcomes, key=lambda one: one.margin)
        cells = latency_cells(outcome, latencies)
        margin = "ended early" if outcome.stopped_early else margin_text(outcome.margin)
        table.add_row(f"{each.load:.4g}", _verdict(each), *cells, margin)
    console.print(table)


def _verdict(at: AtLoad) -> str:
    if at.is_met:
        return "yes, surely" if at.is_met_surely else "yes"
    if any(outcome.is_overload for outcome in at.outcomes):
        return "no: overload"
    return "no, surely" if at.is_missed_surely else "no"
