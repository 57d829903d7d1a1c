"""The files of a finished simulation, put into place together at its end (`boundary.result_folder`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boundary.cycles import few_searches_for_cycles
from boundary.errors import InputError
from boundary.output_files import naming_failures
from boundary.result_folder import ResultFolder

if TYPE_CHECKING:
    from vidur_pd.metrics.result import Result
    from vidur_pd.simulation import Progress, Simulation

RESULT_FILES = frozenset(
    {
        "requests.csv",
        "requests.parquet",
        "summary.json",
        "config.yaml",
        "report.html",
        "iterations.parquet",
        "attribution.parquet",
        "batches.parquet",
        "links.parquet",
        "flows.parquet",
        "measured.json",
        "trace.json.gz",
    }
)


def result_folder(out: Path, inputs: Iterable[Path] = ()) -> ResultFolder:
    """The folder of one result; ``inputs`` are the files that the simulation reads."""
    return ResultFolder(out, RESULT_FILES, inputs)


def write_result(result: Result, out: Path) -> None:
    """Writes every file of the result in place of an earlier one.

    Raises:
        InputError: where a result cannot be, or a file of the user would be in its way.
        OutputError: the disk is full.
    """
    with few_searches_for_cycles(freezes=True), result_folder(out) as folder:
        write_files(result, folder)
        folder.place()


def write_files(result: Result, folder: ResultFolder) -> None:
    """Writes every file of the result, not into place yet. Raises: OutputError."""
    from vidur_pd.metrics.request_rows import requests_csv

    output, files = result.config.output, folder.files
    with naming_failures(folder.path):
        with (files / "requests.csv").open("w", encoding="utf-8", newline="") as file:
            file.writelines(requests_csv(result.table))
        write_parquet(files / "attribution.parquet", result.attribution_columns())
        if output.iterations:
            write_parquet(files / "iterations.parquet", result.iterations.columns())
        if output.batches:
            write_parquet(files / "batches.parquet", result.batch_columns())
        if output.flows:
            write_parquet(files / "flows.parquet", result.flow_columns())
        if output.trace:
            from vidur_pd.metrics.timeline import write_timeline

            write_timeline(files / "trace.json.gz", result)
        _write_rest(result, folder)


def stream_result(simulation: Simulation, out: Path, progress: Progress | None = None) -> Result:
    """Runs a simulation and writes its result as `stream_files` does, in place of an earlier one.

    Raises: as `write_result` and `stream_files`.
    """
    with result_folder(out) as folder:
        result = stream_files(simulation, folder, progress)
        folder.place()
    return result


def stream_files(simulation: Simulation, folder: ResultFolder, progress: Progress | None = None) -> Result:
    """Runs a simulation and writes requests and iterations while it runs: it keeps 35 bytes of each request.

    Requests go to ``requests.parquet``, in the order in which they end, and not to ``requests.csv``.

    Raises:
        InputError: before anything is simulated, where the configuration asks for a file that is made of all requests
            or flows at once.
        OutputError: the disk is full.
    """
    from vidur_pd.metrics.stream import ParquetStream

    output = simulation.config.output
    for field in ("trace", "flows", "batches"):
        if getattr(output, field):
            raise InputError(f"output.{field}: found true with --stream, expected false (it keeps all in memory)")
    with naming_failures(folder.path):
        with ParquetStream(folder.files, with_iterations=output.iterations) as stream:
            result = simulation.run(progress, stream)
        _write_rest(result, folder)
    return result


def _write_rest(result: Result, folder: ResultFolder) -> None:
    """Files whose size does not follow the number of requests, the report as the last."""
    from vidur_pd.config.file import dump_config
    from vidur_pd.metrics.summary_file import summary_tree
    from vidur_pd.report import REPORT_FILE, write_page

    files = folder.files
    (files / "summary.json").write_text(json.dumps(summary_tree(result.summary), indent=2) + "\n", encoding="utf-8")
    (files / "config.yaml").write_text(dump_config(result.config), encoding="utf-8")
    if result.measured is not None:
        (files / "measured.json").write_text(result.measured, encoding="utf-8")
    if result.config.output.links:
        write_parquet(files / "links.parquet", result.link_columns())
    if not result.config.output.report:
        return
    try:
        write_page(files, files / REPORT_FILE, label=folder.path.resolve().name)
    except OSError:
        raise
    except Exception:  # a defect; what has been simulated is not lost for it
        (files / REPORT_FILE).unlink(missing_ok=True)
        folder.place()
        raise


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from boundary.arrow_columns import arrow_table
    from vidur_pd.metrics.stream import parquet_options

    table = arrow_table(columns)
    pq.write_table(table, path, **parquet_options(table.schema))
    pa.default_memory_pool().release_unused()  # some 20 MB that the report would come on top of
