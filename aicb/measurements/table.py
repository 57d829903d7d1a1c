"""Measured kernel times of one GPU, with their provenance.

A table is a directory ``aicb/data/<gpu>`` of parts. ``kernels.csv`` with ``provenance.json`` is always there; further
parts are ``NAME.parquet`` with ``NAME.provenance.json``, in the same folder or as ``profile`` in one of its own (which
is what ``aicb profile`` writes). Each part has one row per measured shape, in the columns below, and says where its
times come from: schema version, device, driver, library versions, clocks, timing method, cautions. Times are
microseconds. An empty cell (null) means "does not apply" or "not measured"; it is never a zero.

Rows of one shape, operation, number format and distribution are merged: within a part into their mean; of several
parts the last in the order of names counts, ``kernels.csv`` being first. A Parquet part may lack shape columns and
may have others, which are ignored; it is read when one of its operations is first asked for, so a large one costs
nothing to a program that does not need it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from aicb.data import FOLDER
from aicb.measurements.merging import Cells, merge
from aicb.measurements.parquet_columns import ParquetColumns
from boundary.csv_text import check_width, csv_rows
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.numbers import MOST_INT64, real_number, whole_number
from boundary.quoting import quoted
from boundary.text_files import read_text

SCHEMA_VERSION = 1
"""Of ``kernels.csv``."""
PART_VERSIONS = (1, 2)
"""Of Parquet parts that can be read. Version 2 adds the replays of ``REPLAY_COLUMNS``."""

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "op": "operation: gemm, bmm, grouped_gemm_masked, grouped_gemm_contiguous, prefill_attention, …",
        "kernel": "library and function that ran",
        "dtype": "bf16, fp8 (1x128 activation and 128x128 weight scales), or a conversion",
        "tag": "model and layer the shape was taken from",
        "m": "rows of the activation (GEMM) or of the tensor (elementwise)",
        "n": "columns of the output (GEMM) or of the tensor (elementwise)",
        "k": "inner dimension",
        "groups": "local experts",
        "active_groups": "local experts with at least one row",
        "rows": "rows of all local experts together",
        "max_rows": "rows of the largest local expert",
        "experts_per_token": "k of the top-k",
        "batch": "sequences (attention); tokens per rank (grouped GEMM)",
        "q_len": "new tokens per sequence",
        "kv_len": "KV length per sequence, the mean where lengths differ",
        "heads": "query heads (attention), value heads (gated delta rule), products (bmm)",
        "kv_heads": "KV heads (attention), key heads (gated delta rule)",
        "d_qk": "dimension of queries and keys",
        "d_v": "dimension of values",
        "distribution": "of KV lengths or of rows among experts",
        "cold_us": "time with a flushed L2, event floor included",
        "cold_p10_us": "10th percentile of the samples",
        "cold_p90_us": "90th percentile of the samples",
        "graph_us": "time per call inside a replayed CUDA graph, L2 warm",
        "samples": "samples behind cold_us",
        "run": "probe run the row belongs to",
    }
)
REPLAY_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "rotated_us": "as graph_us, with operand sets in turns so that weights and caches come from memory",
        "rotated_clock_mhz": "mean SM clock while rotated_us was measured",
        "bytes": "algorithmic traffic: operands once, results once",
    }
)
EVEN_DISTRIBUTIONS = frozenset({"", "equal", "balanced"})
"""Names under which equal lengths and equal experts are recorded."""
_EVEN = "even"
TEXT_COLUMNS = frozenset({"op", "kernel", "dtype", "tag", "distribution", "run"})

_SHAPE_COLUMNS = tuple(
    name for name in COLUMNS if name not in TEXT_COLUMNS and not name.endswith("_us") and name != "samples"
)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measured shape. ``shape`` holds the numeric shape columns that apply to the operation."""

    op: str
    dtype: str
    kernel: str
    distribution: str
    shape: Mapping[str, int]
    run: str
    cold_us: float
    graph_us: float | None
    lengths: str = ""
    """KV lengths where they differ, joined by ``;`` in order, ``length*count`` for repeats (Parquet parts only)."""
    rotated_us: float | None = None
    rotated_clock_mhz: float | None = None
    moved_bytes: float | None = None
    settings: str = ""
    """JSON of what the kernel was launched with, where that depends on the shape (Parquet parts only)."""

    def __getitem__(self, column: str) -> int:
        return self.shape[column]


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """Constants of the device's launch path [µs]."""

    event_floor_us: Mapping[str, float]
    """By probe run: a null kernel between two CUDA events, which every ``cold_us`` of the run contains."""
    graph_node_us: float
    """Mean of the runs: one node of a large CUDA graph of null kernels: the least time any kernel takes in a graph."""
    eager_launch_us: float
    """Mean of the runs: host time of one eager kernel launch."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """All measured kernels of one GPU."""

    gpu: str
    rows: tuple[KernelRow, ...]
    """Of ``kernels.csv``."""
    provenance: Mapping[str, object] = field(repr=False)
    parts: tuple[TableFile, ...] = ()

    @classmethod
    def load(cls, gpu: str) -> KernelTable:
        """The table shipped for ``gpu`` (such as ``"h200"``).

        Raises:
            InputError: no measurements are shipped for this GPU, or its files do not follow the schema.
        """
        directory = FOLDER / gpu
        if not gpu.isidentifier() or not (directory / "kernels.csv").is_file():
            raise InputError(f"gpu: found {gpu!r}, expected one with measurements: {', '.join(measured_gpus())}")
        return cls.read(directory, gpu)

    @classmethod
    def read(cls, directory: Path, gpu: str) -> KernelTable:
        """The table in ``directory``; ``gpu`` is what errors call it."""
        text = read_text(directory / "kernels.csv", "a table of kernel times")
        rows = tuple(read_rows(text.splitlines(), f"{gpu}/kernels.csv"))
        names = sorted(_part_names(directory))
        facts = [_provenance(directory, f"{name.removesuffix('.parquet')}.provenance.json") for name in names]
        parts = tuple(TableFile(directory / name, known) for name, known in zip(names, facts, strict=True))
        return cls(gpu, rows, _provenance(directory, "provenance.json"), parts)

    def select(self, op: str, dtype: str | None = None, distribution: str | None = None) -> list[KernelRow]:
        """Rows of one operation, merged as the module says. ``distribution="even"`` means equal lengths or experts.

        Where at least half of the rows know the clock they ran at, the others are left out: clocks scatter them by
        more than shapes between the measured ones differ.
        """
        merged = dict(_merged(_cells([row for row in self.rows if row.op == op]), distribution))
        for part in self.parts:
            merged |= _parquet_merged(part.file, op, distribution)
        found = [row for row in merged.values() if dtype in (None, row.dtype)]
        clocked = [row for row in found if row.rotated_clock_mhz is not None]
        return clocked if 2 * len(clocked) >= len(found) else found

    @property
    def launch(self) -> LaunchCosts:
        """Floors of all runs; graph node and eager launch of the last part that has them."""
        nulls = [row for rows in (self.rows, *(part.rows("null_kernel") for part in self.parts)) for row in rows]
        floors = {row.run: row.cold_us for row in nulls if row.op == "null_kernel"}
        times = {op: [row.cold_us for row in self.select(op)] for op in ("graph_node", "eager_launch_host")}
        for op, found in times.items():
            if not found:
                raise InputError(f"{self.gpu}/kernels.csv: op: found no {op}, expected its launch constant")
        return LaunchCosts(MappingProxyType(floors), times["graph_node"][-1], times["eager_launch_host"][-1])


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a table."""

    file: Path
    provenance: Mapping[str, object] = field(repr=False)

    def rows(self, op: str) -> tuple[KernelRow, ...]:
        """Rows of one operation. Runs are named ``part/run``, as other parts may use the same letters.

        Raises:
            InputError: a column is missing or a time is not positive.
        """
        return tuple(_rows(_parquet_cells(self.file, op)))


@cache  # half a kilobyte a row, where asked for; readers ask for one operation again and again
def _parquet_merged(file: Path, op: str, distribution: str | None) -> Mapping[Hashable, KernelRow]:
    return _merged(_parquet_cells(file, op), distribution)


def _parquet_cells(file: Path, op: str) -> Cells:
    part, found = file.parent.name if file.name == "profile.parquet" else file.stem, _parquet(file).cells("op", op)
    if not found:
        return {}
    count = len(found["op"])
    for cold_us in found.get("cold_us", [None]):
        if not isinstance(cold_us, float) or not cold_us > 0.0:
            raise InputError(f"{file.name}: {op}: cold_us: found {cold_us}, expected a positive time in microseconds")
    return dict.fromkeys(_PARQUET_TEXTS, [""] * count) | found | {"run": [f"{part}/{run}" for run in found["run"]]}


@cache
def _parquet(file: Path) -> ParquetColumns:
    needed = ("op", "kernel", "dtype", "cold_us", "graph_us", "run")
    return ParquetColumns.read(file, _PARQUET_TEXTS, _PARQUET_NUMBERS, needed)


_PARQUET_TEXTS = (*sorted(TEXT_COLUMNS - {"tag"}), "lengths", "settings")
_PARQUET_NUMBERS = (*_SHAPE_COLUMNS, "cold_us", "graph_us", *REPLAY_COLUMNS)


def _part_names(directory: Path) -> Iterator[str]:
    """Paths of the Parquet files of a table, relative to its directory."""
    for entry in directory.iterdir():
        if entry.name.endswith(".parquet"):
            yield entry.name
        elif entry.is_dir() and (entry / "profile.parquet").is_file():
            yield f"{entry.name}/profile.parquet"


def _provenance(directory: Path, name: str) -> Mapping[str, object]:
    file = directory / name
    if not file.is_file():
        raise InputError(f"{name}: file: found none, expected the provenance of a part of the table")
    provenance = parse_json(read_text(file, "provenance"), name, "provenance")
    found = provenance.get("schema_version") if isinstance(provenance, dict) else None
    if found not in PART_VERSIONS:
        raise InputError(f"{name}: schema_version: found {quoted(found)}, expected one of {PART_VERSIONS}")
    return MappingProxyType(provenance)


def measured_gpus() -> list[str]:
    """Names of the GPUs whose measurements are shipped."""
    return sorted(entry.name for entry in FOLDER.iterdir() if (entry / "kernels.csv").is_file())


def read_rows(lines: Iterable[str], name: str) -> list[KernelRow]:
    """Parses ``kernels.csv``; ``name`` is what errors call the file."""
    rows = csv_rows(lines, name)
    _, header = next(rows, (1, []))
    if tuple(header) != tuple(COLUMNS):
        raise InputError(f"{name}: header: found {quoted(','.join(header))}, expected {','.join(COLUMNS)}")
    found = []
    for line, cells in rows:
        check_width(cells, header, f"{name}:{line}")
        found.append(_row(dict(zip(header, cells, strict=True)), f"{name}:{line}"))
    return found


def _row(cells: dict[str, str], place: str) -> KernelRow:
    times = {
        name: real_number(cells[name], f"{place}: {name}", "a time in us", 1e-6, 1e12)
        for name in ("cold_us", "graph_us")
        if cells[name] or name == "cold_us"
    }
    shape = {
        name: whole_number(cells[name], f"{place}: {name}", "a size", 0, MOST_INT64)
        for name in _SHAPE_COLUMNS
        if cells[name]
    }
    return KernelRow(
        cells["op"],
        cells["dtype"],
        cells["kernel"],
        cells["distribution"],
        MappingProxyType(shape),
        cells["run"],
        times["cold_us"],
        times.get("graph_us"),
    )


_BEFORE = ("op", "dtype", "kernel", "distribution")
_AFTER = ("run", "cold_us", "graph_us", "lengths", *REPLAY_COLUMNS, "settings")
"""Columns of a row's fields, those before the shape and those after it."""
_AVERAGED = frozenset({"cold_us", "graph_us", "rotated_us", "rotated_clock_mhz"})


def _rows(cells: Cells) -> Iterator[KernelRow]:
    count = len(cells.get("op", ()))
    sizes = [(name, cells[name]) for name in _SHAPE_COLUMNS if name in cells]
    shapes = (
        {name: int(size) for name, column in sizes if (size := column[place]) is not None} for place in range(count)
    )
    nothing = [None] * count
    before, after = ([cells.get(name, nothing) for name in names] for names in (_BEFORE, _AFTER))
    return map(KernelRow, *before, shapes, *after)


def _cells(rows: Sequence[KernelRow]) -> Cells:
    """Columns that `_rows` makes these rows from."""
    named = {name: [getattr(row, name) for row in rows] for name in (*_BEFORE, *_AFTER) if name != "bytes"}
    applying = {name for row in rows for name in row.shape}
    shapes = {name: [row.shape.get(name) for row in rows] for name in applying}
    return named | shapes | {"bytes": [row.moved_bytes for row in rows]}


def _merged(cells: Cells, distribution: str | None) -> Mapping[Hashable, KernelRow]:
    """Rows of a distribution (None: of all), merged, by what distinguishes them."""
    if not cells or not cells["op"]:
        return {}
    names = [_EVEN if name in EVEN_DISTRIBUTIONS else name for name in cells["distribution"]]
    if distribution is not None:
        both = zip(cells["distribution"], names, strict=True)
        places = [place for place, known_as in enumerate(both) if distribution in known_as]
        cells = {name: [column[place] for place in places] for name, column in cells.items()}
        names = [names[place] for place in places]
    lengths = ["" if name == _EVEN else text for name, text in zip(names, cells["lengths"], strict=True)]
    nothing = [None] * len(names)
    shapes = [cells.get(name, nothing) for name in _SHAPE_COLUMNS]
    keys, cells = merge(cells, zip(cells["dtype"], names, lengths, *shapes, strict=True), _AVERAGED)
    return dict(zip(keys, _rows(cells), strict=True))
