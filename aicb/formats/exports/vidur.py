"""The tab-separated layer table that SimAI's Vidur fork reads from AICB.

    vidur-{model}-world_size{ws}-tp{tp}-pp{pp}-ep{ep}-bs{bs}-seq{seq}-{phase}.csv
    layer_id  layer_name  comp_time  comm_size

``layer_name`` is ``attention``, ``mlp`` or ``moe``; times are ns, sizes bytes: the all-reduce of attention and mlp with
tensor parallelism, dispatch plus combine of moe with expert parallelism (its all-reduce without).
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from aicb.formats.exports.layers import ExportJob, LayerCost
from aicb.model.architecture import MoeFfn
from boundary.errors import InputError
from boundary.output_files import write_atomically
from boundary.quoting import quoted
from boundary.text_files import read_text

HEADER = ("layer_id", "layer_name", "comp_time", "comm_size")
LAYER_NAMES = ("attention", "mlp", "moe")


@dataclass(frozen=True, slots=True)
class VidurLine:
    """One row."""

    layer_id: int
    layer_name: str
    compute_ns: int
    communication_bytes: int


def write_vidur(job: ExportJob, costs: list[LayerCost], directory: Path) -> list[Path]:
    """Writes the table; returns its path."""
    [path] = vidur_paths(job, directory)
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(HEADER)
    for index, cost in enumerate(costs):
        for line in _lines(job, cost, index):
            writer.writerow((line.layer_id, line.layer_name, line.compute_ns, line.communication_bytes))
    write_atomically(path, text.getvalue())
    return [path]


def vidur_paths(job: ExportJob, directory: Path) -> list[Path]:
    """The file of an export."""
    return [directory / f"vidur-{job.stem('bs')}.csv"]


def _lines(job: ExportJob, cost: LayerCost, index: int) -> list[VidurLine]:
    reduced = job.all_reduce_bytes if job.partition.tp > 1 else 0
    attention = VidurLine(index, "attention", round(cost.total_us("atten_", "gdn_") * 1000), reduced)
    if not isinstance(cost.layer.ffn, MoeFfn):
        return [attention, VidurLine(index, "mlp", round(cost.total_us("mlp") * 1000), reduced)]
    size = sum(job.dispatch_bytes(cost.layer.ffn)) if job.partition.ep > 1 else reduced
    return [attention, VidurLine(index, "moe", round(cost.total_us("moe_", "shared_") * 1000), size)]


def read_vidur(path: Path) -> list[VidurLine]:
    """Rows of a layer table.

    Raises:
        InputError: the file is not such a table.
    """
    header, *rows = (line.split("\t") for line in read_text(path, "a layer table").splitlines() or [""])
    if tuple(header) != HEADER:
        raise InputError(f"{path}: header: found {quoted(header)}, expected {list(HEADER)} separated by tabs")
    lines = []
    for number, cells in enumerate(rows, start=2):
        if len(cells) != len(HEADER) or cells[1] not in LAYER_NAMES:
            raise InputError(
                f"{path}: line {number}: found {quoted(cells)}, expected {', '.join(LAYER_NAMES)} and numbers"
            )
        try:
            lines.append(VidurLine(int(cells[0]), cells[1], round(float(cells[2])), round(float(cells[3]))))
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}, expected numbers of ns and bytes") from None
    return lines
