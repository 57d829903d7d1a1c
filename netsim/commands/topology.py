"""``netsim topology``: builds, converts and draws topologies."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.command_line import print_summary
from boundary.errors import InputError

if TYPE_CHECKING:
    from netsim.topology import Topology


class TopologyFormat(StrEnum):
    """Text format of a written topology."""

    YAML = "yaml"
    SIMAI = "simai"


def write_topology(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="nvswitch, nvl72, single_switch, fat_tree, rail_optimized, spectrum_x, alibaba_hpn, dcn_plus, "
            "dragonfly, or a topology file to convert.",
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; standard output if not given.")
    ] = None,
    text_format: Annotated[
        TopologyFormat | None, typer.Option("--format", help="By default YAML for .yaml and .yml, else SimAI's text.")
    ] = None,
    gpu_type: Annotated[str, typer.Option(help="GPU name in SimAI's text.")] = "H100",
    plot: Annotated[Path | None, typer.Option(help="Draw it: a .svg or .html file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Build a topology, convert one between YAML and SimAI's text, or draw it.

    Every further option sets a field of the KIND. All but nvswitch and nvl72: --nodes 8, --gpus-per-node 8,
    --nic 400Gbps, --link-latency 500ns. All: --nvlink 370.8GB/s, --nvlink-latency 25ns.

    nvswitch: --gpus-per-node, --nvswitches. nvl72: --nvswitches.

    fat_tree: --k, --hosts-per-edge, --oversubscription.

    rail_optimized: --rails, --nvswitches-per-node, --nodes-per-segment, --spines, --oversubscription.

    spectrum_x, alibaba_hpn, dcn_plus: --spines, --spine-ports, --uplink 400Gbps or --oversubscription; the latter two
    --tors 1 or 2, alibaba_hpn --planes 1 or 2.

    dragonfly: --hosts-per-router, --routers-per-group, --global-ports, --groups, --global-latency, --oversubscription.
    """
    from boundary.output_files import check_output, write_atomically
    from netsim.topologies.picture import check_picture_name, draw

    for path in (plot, output):
        if path is not None:
            check_output(path, [] if _is_kind(kind) else [Path(kind)])
    if plot is not None:
        check_picture_name(plot)
        if output is not None and plot.resolve() == output.resolve():
            raise InputError(f"--plot: found {plot}, which --output writes too; expected different files")
    topology = _topology(kind, _fields(context.args))
    text = None if output is None and (plot or as_json) else _text(topology, output, text_format, gpu_type)
    if plot is not None:
        write_atomically(plot, draw(topology, plot))
    if output is not None and text is not None:
        write_atomically(output, text)
    elif text is not None:
        sys.stdout.write(text)
        return
    summary = {
        "gpus": topology.gpus,
        "gpus_per_node": topology.gpus_per_node,
        "nodes": topology.nodes,
        "links": topology.links,
        "output": None if output is None else str(output),
    }
    if plot is not None:
        summary["plot"] = str(plot)
    print_summary(summary, as_json)


def _text(topology: Topology, output: Path | None, text_format: TopologyFormat | None, gpu_type: str) -> str:
    from netsim.topologies.simai_text import to_simai
    from netsim.topologies.yaml_text import to_yaml

    is_yaml = output is None or output.suffix in (".yaml", ".yml")
    chosen = text_format or (TopologyFormat.YAML if is_yaml else TopologyFormat.SIMAI)
    return to_yaml(topology) if chosen is TopologyFormat.YAML else to_simai(topology, gpu_type)


def _topology(kind: str, fields: dict[str, str]) -> Topology:
    from netsim.topologies.build import KINDS, build, parse_spec
    from netsim.topologies.file import read_topology

    if _is_kind(kind):
        return build(parse_spec({"kind": kind.replace("-", "_"), **fields}))
    if fields:
        raise InputError(
            f"topology {kind}: found --{next(iter(fields))}, expected no field when converting a file, or one of the "
            f"kinds {', '.join(KINDS)}"
        )
    if not Path(kind).exists():
        raise InputError(f"topology: found {kind!r}, expected a file that is there, or one of {', '.join(KINDS)}")
    return read_topology(Path(kind))


def _is_kind(kind: str) -> bool:
    """Whether it is to be built; else it names a file."""
    from netsim.topologies.build import KINDS

    return kind.replace("-", "_") in KINDS


def _fields(arguments: list[str]) -> dict[str, str]:
    """``--nodes-per-segment 4`` and ``--nodes-per-segment=4`` as ``{"nodes_per_segment": "4"}``."""
    fields: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise InputError(f"topology: found {word!r}, expected --field value")
        if not equals:
            value = next(words, "")
        fields[name.removeprefix("--").replace("-", "_")] = value
    return fields
