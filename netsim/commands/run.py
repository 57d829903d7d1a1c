"""``netsim run``: flows over a topology, by any backend, with the files that packet-level ones can write."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.command_line import print_summary
from boundary.errors import Failure, InputError
from netsim.errors import BackendError

if TYPE_CHECKING:
    from netsim.backends.calibration import Calibration
    from netsim.backends.contract import FlowTimes, GraphHandle, NetworkBackend
    from netsim.backends.packet.backend import PacketBackend
    from netsim.commands.run_on_hosts import MeasuredRun
    from netsim.formats.flow_file import NamedFlows
    from netsim.roce.config import RoceConfig
    from netsim.topology import Topology

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A field of --config, as mtu_bytes=9000.")
]


_STEP_S = 0.1


class UnfinishedFlows(Failure):
    """Some flows did not arrive."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Files to write in addition to the completion times."""

    fct: Path | None
    pfc: Path | None
    series: Path | None
    bandwidth: Path | None
    interval_ps: int
    captures: Path | None
    """A folder."""

    def wanted(self) -> dict[str, Path]:
        """By option."""
        named = {"--fct": self.fct, "--pfc": self.pfc, "--series": self.series, "--bandwidth": self.bandwidth}
        return {option: path for option, path in named.items() if path is not None}


def run(
    *,
    topology: Annotated[Path, typer.Option(help="Topology: YAML, or SimAI's text.")],
    flows: Annotated[
        Path,
        typer.Option(
            help="CSV: flow_id,src,dst,bytes,deps (joined by ;) [, start_ns, delay_ns, flow_label, max_rate_bps, "
            "after, credits, priority]; or HPCC's flow file."
        ),
    ],
    backend: Annotated[str, typer.Option(help="analytical, fluid, packet, ns3 or rdma.")] = "fluid",
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV: start_ps, end_ps, fct_ps and status per flow.")],
    config: Annotated[Path | None, typer.Option(help="YAML: settings of the RoCE model (packet, ns3).")] = None,
    simai_config: Annotated[Path | None, typer.Option(help="SimAI.conf as settings; --config changes them.")] = None,
    settings: Settings = None,
    fct: Annotated[Path | None, typer.Option(help="SimAI's text of completion times (packet, ns3).")] = None,
    pfc: Annotated[Path | None, typer.Option(help="SimAI's text of PFC frames (packet, ns3).")] = None,
    series: Annotated[Path | None, typer.Option(help=".csv or .parquet: links over time (packet, ns3).")] = None,
    bandwidth: Annotated[Path | None, typer.Option(help="SimAI's bandwidth monitor, CSV (packet, ns3).")] = None,
    interval: Annotated[str, typer.Option(help="Of --series and --bandwidth.")] = "10us",
    pcap: Annotated[Path | None, typer.Option(help="Folder for captures of all ports, for Wireshark (ns3).")] = None,
    hosts: Annotated[Path | None, typer.Option(help="YAML: which agents send for which nodes (rdma).")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare payloads with what was sent (rdma).")] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="JSON of calibrate-rdma: what messages take (analytical, fluid).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run flows over a topology and write their completion times.

    src and dst are node numbers of the topology (GPUs come first). Without a column flow_label, several flows of one
    pair have labels 0, 1, …, so ECMP may put them on different paths. Further columns are ignored.
    """
    from netsim.backends.create import create_backend
    from netsim.formats.flow_file import failed, format_results, read_flows, unfinished
    from netsim.topologies.file import read_topology

    files = _Files(fct, pfc, series, bandwidth, _interval_ps(interval), pcap)
    inputs = (topology, flows, config, simai_config, hosts, calibration)
    _check_outputs(output, files, [path for path in inputs if path is not None])
    _check_captures(backend, files)
    roce = _roce_config(backend, config, simai_config, settings or [], files)
    network = read_topology(topology)
    named = read_flows(flows, network.nodes)
    if (measured := _measured_run(backend, hosts, verify)) is not None:
        measured.run(named, output, as_json)
        return
    simulation = create_backend(backend, network, roce, calibration=_calibration(backend, calibration))
    started_s = time.perf_counter()
    try:
        handle, times = _carried(simulation, named, files)
    except BackendError as error:
        raise InputError(f"{flows}: {error}") from error
    wall_s = time.perf_counter() - started_s
    contents: dict[Path, str | bytes] = {output: format_results(named, times)}
    summary: dict[str, object] = {
        "backend": backend,
        "flows": len(named.flow_ids),
        "completed": int((times.end_ps >= 0).sum()),
        "bytes": sum(named.graph.size_bytes.tolist()),
        "makespan_ps": int(times.end_ps.max(initial=0)),
        "output": str(output),
        "wall_s": round(wall_s, 6),
    }
    if roce is not None:
        carrier = _as_packet_backend(simulation)
        summary |= _counted(carrier)
        contents |= _packet_files(files, _Run(named, times, handle, carrier, network, roce))
    simulation.close()
    _write(contents)
    print_summary(summary, as_json)
    _complain(flows, output, failed(named, times), unfinished(named, times), len(named.flow_ids))


def _measured_run(backend: str, hosts: Path | None, must_verify: bool) -> MeasuredRun | None:
    """What executes flows on hosts; ``None`` for backends that simulate."""
    if backend != "rdma":
        for option, is_given in (("--hosts", hosts is not None), ("--verify", must_verify)):
            if is_given:
                raise InputError(f"{option}: found backend {backend}, expected rdma, which sends real traffic")
        return None
    if hosts is None:
        raise InputError("--hosts: found none, expected a file such as examples/rdma/loopback.yaml with backend rdma")
    from netsim.commands.run_on_hosts import MeasuredRun

    return MeasuredRun(hosts, must_verify)


def _calibration(backend: str, path: Path | None) -> Calibration | None:
    if path is None:
        return None
    from netsim.backends.contract import BACKENDS, capabilities_of

    if not capabilities_of(backend).is_calibrated:
        known = " or ".join(name for name in BACKENDS if capabilities_of(name).is_calibrated)
        raise InputError(f"--calibration: found backend {backend}, expected {known}")
    from netsim.formats.calibration_file import read_calibration

    return read_calibration(path)


def _interval_ps(text: str) -> int:
    from netsim.units import read_time_ps

    if (interval_ps := read_time_ps(text, "--interval")) == 0:
        raise InputError(f"--interval: found {text!r}, expected a time above 0")
    return interval_ps


def _check_outputs(output: Path, files: _Files, inputs: list[Path]) -> None:
    """Every file has a place of its own, before the work is done."""
    from boundary.output_files import check_output

    taken: dict[Path, str] = {}
    for option, path in {"--output": output, **files.wanted()}.items():
        check_output(path, inputs)
        place = path.resolve()
        if place in taken:
            raise InputError(f"{option}: found {path}, which {taken[place]} writes too; expected different files")
        taken[place] = option
    if files.series is not None and files.series.suffix not in (".csv", ".parquet"):
        raise InputError(f"--series: found {files.series}, expected a name that ends in .csv or .parquet")


def _check_captures(backend: str, files: _Files) -> None:
    if files.captures is not None and backend != "ns3":
        raise InputError(f"--pcap: found backend {backend}, expected ns3, whose ports can be captured")
    if files.captures is not None and files.captures.is_dir():
        for path in sorted(files.captures.glob("*.pcap")):
            if re.fullmatch(r"\d+-\d+\.pcap", path.name):
                raise InputError(f"--pcap: found {path}, expected a folder without captures (of an earlier run)")


def _capture(simulation: NetworkBackend, folder: Path) -> None:
    from netsim.backends.ns3 import Ns3Backend

    assert isinstance(simulation, Ns3Backend), "captures are accepted for ns3 only"
    try:
        simulation.pcap(folder)
    except BackendError as error:
        raise InputError(f"--{error}") from error


def _roce_config(
    backend: str, config: Path | None, simai_config: Path | None, settings: list[str], files: _Files
) -> RoceConfig | None:
    """The settings in force; ``None`` where the backend knows no packets."""
    from netsim.backends.contract import capabilities_of
    from netsim.formats.roce_file import apply_settings, merge_documents, parse_roce_config, read_roce_document
    from netsim.formats.simai_config import read_simai_config

    given = {"--config": config, "--simai-config": simai_config, "--set": settings or None, **files.wanted()}
    options = [option for option, value in given.items() if value is not None]
    if not capabilities_of(backend).simulates_packets:
        if options:
            raise InputError(f"{options[0]}: found backend {backend}, expected packet or ns3, which simulate packets")
        return None
    document: dict[str, object] = {}
    if simai_config is not None:
        simai = read_simai_config(simai_config)
        document = simai.settings
        if simai.ignored:
            sys.stderr.write(f"netsim: {simai_config}: without meaning here: {', '.join(simai.ignored)}\n")
    if config is not None:
        document = merge_documents(document, read_roce_document(config))
    sources = [str(path) for path in (simai_config, config) if path is not None] + (["--set"] if settings else [])
    roce = parse_roce_config(apply_settings(document, settings), ", ".join(sources))
    return roce.model_copy(update={"memoise": False})  # one graph runs, once


def _carried(simulation: NetworkBackend, flows: NamedFlows, files: _Files) -> tuple[GraphHandle, FlowTimes]:
    """Runs the graph alone, until nothing happens any more."""
    if files.wanted():
        carrier = _as_packet_backend(simulation)
        carrier.keep_log(bool(files.fct or files.pfc))
        carrier.sample_every(files.interval_ps if files.series or files.bandwidth else 0)
    handle = simulation.submit(flows.graph, 0)
    if files.captures is not None:
        _capture(simulation, files.captures)  # once the flows are known to be good
    _run_to_the_end(simulation)
    return handle, simulation.flow_times(handle)


def _run_to_the_end(simulation: NetworkBackend) -> None:
    """In steps of about a tenth of a second of wall time, between which the process hears signals such as Ctrl-C."""
    from netsim.units import LAST_INSTANT_PS, PS_PER_MS

    step_ps = PS_PER_MS
    while (next_ps := simulation.next_event_ps()) is not None:
        started_s = time.perf_counter()
        simulation.advance(min(next_ps + step_ps, LAST_INSTANT_PS))
        took_s = time.perf_counter() - started_s
        step_ps = min(2 * step_ps, LAST_INSTANT_PS) if took_s < _STEP_S else max(1, step_ps // 2)


def _as_packet_backend(simulation: NetworkBackend) -> PacketBackend:
    from netsim.backends.packet.backend import PacketBackend

    assert isinstance(simulation, PacketBackend), "RoCE settings are accepted for packet-level backends only"
    return simulation


def _counted(carrier: PacketBackend) -> dict[str, object]:
    counters = carrier.counters()
    return {
        "packet_hops": carrier.packet_hops(),
        "drops": int(counters.drops.sum()),
        "pauses": int(counters.pauses.sum()),
        "marks": int(counters.marks.sum()),
        "largest_queue_bytes": int(carrier.largest_queues_bytes().max(initial=0)),
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """What a packet-level run leaves behind."""

    flows: NamedFlows
    times: FlowTimes
    handle: GraphHandle
    carrier: PacketBackend
    topology: Topology
    roce: RoceConfig


def _packet_files(files: _Files, run: _Run) -> dict[Path, str | bytes]:
    """Contents of the files on request."""
    from netsim.formats.simai_fct import fct_text
    from netsim.formats.simai_pfc import pfc_text
    from netsim.formats.time_series import bandwidth_csv, series_columns, series_csv, series_parquet

    contents: dict[Path, str | bytes] = {}
    if files.fct is not None:
        acknowledged_ps = run.carrier.acknowledged_ps(run.handle, len(run.flows.graph))
        contents[files.fct] = fct_text(run.flows.graph, run.times.start_ps, acknowledged_ps, run.topology, run.roce)
    if files.pfc is not None:
        contents[files.pfc] = pfc_text(run.carrier.pauses(), run.topology)
    if files.series is not None:
        columns = series_columns(run.carrier.time_series(), run.topology)
        contents[files.series] = series_csv(columns) if files.series.suffix == ".csv" else series_parquet(columns)
    if files.bandwidth is not None:
        contents[files.bandwidth] = bandwidth_csv(run.carrier.time_series(), run.topology)
    return contents


def _write(contents: dict[Path, str | bytes]) -> None:
    from boundary.output_files import write_atomically

    for path, content in contents.items():
        write_atomically(path, content)


def _complain(flows: Path, output: Path, failed: list[str], late: list[str], count: int) -> None:
    if failed:
        raise UnfinishedFlows(
            f"{flows} flow {failed[0]}: found that the network gave it up, expected an arrival ({len(failed)} of "
            f"{count} flows are marked failed in {output})"
        )
    if late:
        raise UnfinishedFlows(
            f"{flows} flow {late[0]}: found no end before 2^63 ps (106 days), the end of the clock; expected less to "
            f"carry ({len(late)} of {count} flows are marked unfinished in {output})"
        )
