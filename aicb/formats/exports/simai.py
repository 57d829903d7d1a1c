"""SimAI's workload text: a header line, a count, and one line of 12 tab-separated columns per part of a layer.

    {model}-world_size{ws}-tp{tp}-pp{pp}-ep{ep}-bs{bs}-seq{seq}-{phase}.txt

Times are ns, sizes bytes. Only the forward columns carry values. Dispatch stands on ``moe_route``, combine on
``moe_expert``; embedding and head have no line in the format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aicb.formats.exports.layers import ExportJob, LayerCost
from aicb.model.architecture import MoeFfn
from boundary.errors import InputError
from boundary.output_files import write_atomically
from boundary.text_files import read_text

COLUMNS = 12
PLACEHOLDER = -1
PROCESS_TIME = 100
COLLECTIVES = ("NONE", "ALLREDUCE", "ALLTOALL_EP")
_KIND = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"


@dataclass(frozen=True, slots=True)
class SimaiHeader:
    """Parallel sizes of the workload."""

    tp: int
    ep: int
    pp: int
    gpus: int
    pp_comm_bytes: int
    """``[batch, seq, h]`` in bf16 where there are several stages."""

    @property
    def text(self) -> str:
        return (
            f"{_KIND} model_parallel_NPU_group: {self.tp} ep: {self.ep} pp: {self.pp} all_gpus: {self.gpus} mode: 1"
            f" vpp: 1 ga: 1 checkpoints: 0 checkpoint_initiates: 0 pp_comm: {self.pp_comm_bytes}"
        )


@dataclass(frozen=True, slots=True)
class SimaiLine:
    """Forward part of one line."""

    name: str
    compute_ns: int
    collective: str
    size_bytes: int

    @property
    def text(self) -> str:
        forward = (self.name, PLACEHOLDER, self.compute_ns, self.collective, self.size_bytes)
        return "\t".join(map(str, (*forward, 0, "NONE", 0, 0, "NONE", 0, PROCESS_TIME)))


def write_simai(job: ExportJob, costs: list[LayerCost], directory: Path) -> list[Path]:
    """Writes the workload; returns its path."""
    part = job.partition
    pp_comm = 2 * job.batch_size * job.seq_tokens * job.model.hidden if part.pp > 1 else 0
    lines = [line for cost in costs for line in _lines(job, cost)]
    header = SimaiHeader(part.tp, part.ep, part.pp, part.gpus, pp_comm)
    [path] = simai_paths(job, directory)
    write_atomically(path, "\n".join([header.text, str(len(lines)), *(line.text for line in lines)]) + "\n")
    return [path]


def simai_paths(job: ExportJob, directory: Path) -> list[Path]:
    """The file of an export."""
    return [directory / f"{job.stem('bs')}.txt"]


def _lines(job: ExportJob, cost: LayerCost) -> list[SimaiLine]:
    reduced = ("ALLREDUCE", job.all_reduce_bytes) if job.partition.tp > 1 else ("NONE", 0)
    attention = "attention_gdn" if cost.has_gdn else "attention_layer"
    listed = [
        SimaiLine("attention_norm", _ns(cost.total_us("atten_norm")), "NONE", 0),
        SimaiLine(attention, _ns(cost.total_us("atten_", "gdn_") - cost.total_us("atten_norm")), *reduced),
    ]
    if not isinstance(cost.layer.ffn, MoeFfn):
        return [*listed, SimaiLine("dense_mlp", _ns(cost.total_us("mlp")), *reduced)]
    sent, returned = ("NONE", 0), reduced
    if job.partition.ep > 1:
        dispatch, combine = job.dispatch_bytes(cost.layer.ffn)
        sent, returned = ("ALLTOALL_EP", dispatch), ("ALLTOALL_EP", combine)
    listed += [
        SimaiLine("moe_norm", _ns(cost.total_us("moe_norm")), "NONE", 0),
        SimaiLine("moe_route", _ns(cost.total_us("moe_route")), *sent),
        SimaiLine("moe_expert", _ns(cost.total_us("moe_expert")), *returned),
    ]
    if cost.layer.ffn.shared_intermediate:
        listed.append(SimaiLine("shared_experts", _ns(cost.total_us("shared")), "NONE", 0))
    return listed


def read_simai(path: Path) -> tuple[SimaiHeader, list[SimaiLine]]:
    """Header and lines of a workload.

    Raises:
        InputError: the file is not such a workload.
    """
    try:
        first, count, *rows = read_text(path, "a SimAI workload").splitlines()
        words = first.split()
        fields = {name.rstrip(":"): value for name, value in zip(words[1::2], words[2::2], strict=True)}
        numbers = [int(fields[name]) for name in ("model_parallel_NPU_group", "ep", "pp", "all_gpus", "pp_comm")]
        expected = int(count)
    except InputError:
        raise
    except (ValueError, KeyError):
        raise InputError(
            f"{path}: header: expected a SimAI workload, with its groups in line 1 and layers in line 2"
        ) from None
    if words[0] != _KIND or expected != len(rows):
        raise InputError(f"{path}: header: found {words[0]} and {len(rows)} lines, expected {_KIND} and {expected}")
    return SimaiHeader(*numbers), [_line(row, f"{path}: line {i}") for i, row in enumerate(rows, start=3)]


def _line(row: str, place: str) -> SimaiLine:
    cells = row.split("\t")
    if len(cells) != COLUMNS or cells[3] not in COLLECTIVES:
        raise InputError(f"{place}: found {len(cells)} columns, expected {COLUMNS} and one of {', '.join(COLLECTIVES)}")
    try:
        return SimaiLine(cells[0], int(cells[2]), cells[3], int(cells[4]))
    except ValueError as error:
        raise InputError(f"{place}: {error}, expected whole ns and bytes") from None


def _ns(time_us: float) -> int:
    return round(time_us * 1000)
