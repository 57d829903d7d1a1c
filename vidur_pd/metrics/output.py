"""The files of a finished simulation. They are written into a new folder that takes its place at the end."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boundary.errors import InputError

if TYPE_CHECKING:
    from vidur_pd.simulation import Progress, Result, Simulation

KNOWN_FILES = frozenset(
    {
        "requests.csv",
        "requests.parquet",
        "summary.json",
        "config.yaml",
        "report.html",
        "iterations.parquet",
        "links.parquet",
        "flows.parquet",
        "trace.json.gz",
    }
)


def check_output(out: Path) -> None:
    """Refuses a place where results cannot go, before anything is simulated.

    Raises: InputError, where ``out`` is a file, has no parent to be created in, or is a folder that holds other things
    than results of an earlier run.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"-o {out}: found a file, expected a folder or a new name")
    if out.is_dir():
        foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in KNOWN_FILES)
        if foreign:
            raise InputError(f"-o {out}: found {foreign[0]!r} in it, expected an empty folder or an earlier result")
    parent = out.resolve().parent
    while not parent.exists():
        parent = parent.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".vidur-pd-", dir=parent):
            pass
    except OSError as error:
        raise InputError(f"-o {out}: found {parent}, which cannot be written to ({error.strerror})") from None


def write_result(result: Result, out: Path) -> None:
    """Writes every file of the result; an earlier result of the same name is replaced as a whole."""
    from vidur_pd.metrics.request_rows import requests_csv

    with _replacing(out) as folder:
        with (folder / "requests.csv").open("w", encoding="utf-8", newline="") as file:
            file.writelines(requests_csv(result.table))
        if result.config.output.iterations:
            write_parquet(folder / "iterations.parquet", result.iterations.columns())
        if result.config.output.flows:
            write_parquet(folder / "flows.parquet", result.flow_columns())
        if result.config.output.trace:
            from vidur_pd.metrics.timeline import write_timeline

            write_timeline(folder / "trace.json.gz", result)
        _write_rest(result, folder)


def stream_result(simulation: Simulation, out: Path, progress: Progress | None = None) -> Result:
    """Runs a simulation and writes requests and iterations while it runs: it keeps 25 bytes of each request.

    Requests go to ``requests.parquet``, in the order in which they end, and not to ``requests.csv``. An earlier result
    is replaced as a whole at the end; a run that fails leaves nothing behind.
    Raises: InputError, before anything is simulated, where the configuration asks for a file that is made of all
    requests or flows at once.
    """
    from vidur_pd.metrics.stream import ParquetStream

    output = simulation.config.output
    for field in ("trace", "flows"):
        if getattr(output, field):
            raise InputError(f"output.{field}: found true with --stream, expected false (it keeps all in memory)")
    with _replacing(out) as folder:
        with ParquetStream(folder, with_iterations=output.iterations) as stream:
            result = simulation.run(progress, stream)
        _write_rest(result, folder)
    return result


def _write_rest(result: Result, folder: Path) -> None:
    """Files whose size does not follow the number of requests."""
    from vidur_pd.config_file import dump_config
    from vidur_pd.report import write_report

    (folder / "summary.json").write_text(json.dumps(result.summary, indent=2) + "\n", encoding="utf-8")
    (folder / "config.yaml").write_text(dump_config(result.config), encoding="utf-8")
    if result.config.output.links:
        write_parquet(folder / "links.parquet", result.link_columns())
    write_report(folder)


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vidur_pd.metrics.stream import arrow_table, parquet_options

    table = arrow_table(columns)
    pq.write_table(table, path, **parquet_options(table.schema))
    pa.default_memory_pool().release_unused()  # some 20 MB that the report would come on top of


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary folder beside ``out`` that replaces it if the block succeeds and vanishes if it fails."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield folder
        folder.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
