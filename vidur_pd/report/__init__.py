"""Dashboards: the output directory of a run, or of several, as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidur_pd.metrics.summary import Summary
    from vidur_pd.report.differences import ComparisonRow

__all__ = [
    "COMPARISON_FILE",
    "REPORT_FILE",
    "comparison_table",
    "comparison_warnings",
    "unranked_runs",
    "write_comparison",
    "write_comparison_page",
    "write_page",
    "write_report",
]

REPORT_FILE = "report.html"
COMPARISON_FILE = "comparison.html"


def write_report(out_dir: Path, *, title: str | None = None, path: Path | None = None) -> Path:
    """Writes the report of a run to ``path``, by default ``report.html`` in its output directory, and returns the path.

    Sections whose optional input (``iterations.parquet``, ``links.parquet``, ``config.yaml``) is missing say so.
    Raises: InputError where a required file or column is missing or malformed, no file can be at ``path``, or the
    ``report.html`` of the directory is the user's. OutputError, where the disk is full.
    """
    from boundary.output_files import check_output
    from boundary.result_folder import ResultFolder, finish_result
    from boundary.result_record import belongs_to_result
    from vidur_pd.report.load import check_folder

    check_folder(out_dir)
    own = out_dir / REPORT_FILE
    is_own = path is None or (path.name == own.name and path.parent.resolve() == out_dir.resolve())
    if path is not None and not (is_own and (belongs_to_result(own) or not own.exists())):
        finish_result(out_dir)
        check_output(path, _run_files([out_dir]))
        write_page(out_dir, path, title)
        return path
    with ResultFolder(out_dir, {REPORT_FILE}) as folder:
        write_page(out_dir, folder.files / REPORT_FILE, title)
        folder.place()
    return own


def write_comparison(out_dirs: Sequence[Path], path: Path, *, ranks_unlike: bool = False) -> Path:
    """Writes one page that overlays several runs, the first being the one compared with, and returns ``path``.

    Changes against it are left out for runs of other requests, unless ``ranks_unlike``.

    Raises: as `write_report`, and InputError without any directory.
    """
    from boundary.output_files import check_output
    from boundary.result_folder import finish_result

    labels = _labels(out_dirs)
    check_output(path, _run_files(out_dirs))
    for folder in out_dirs:
        finish_result(folder)
    write_comparison_page(list(zip(labels, out_dirs, strict=True)), path, ranks_unlike=ranks_unlike)
    return path


def write_page(folder: Path, path: Path, title: str | None = None, label: str | None = None) -> None:
    """Writes the report of the run in a folder to ``path``; ``label`` names the run, instead of the folder.

    Raises: InputError, OutputError.
    """
    from vidur_pd.report.load import read_run
    from vidur_pd.report.single import run_page

    _write(path, run_page(read_run(folder, label), title))


def write_comparison_page(runs: Sequence[tuple[str, Path]], path: Path, *, ranks_unlike: bool = False) -> None:
    """Writes the page that overlays the runs in folders, each with its label. Raises: InputError, OutputError."""
    from vidur_pd.report.comparison import comparison_page
    from vidur_pd.report.load import read_run

    _write(path, comparison_page([read_run(folder, label) for label, folder in runs], ranks_unlike=ranks_unlike))


def comparison_table(out_dirs: Sequence[Path], *, ranks_unlike: bool = False) -> list[ComparisonRow]:
    """The headline figures of several runs, a row per metric, with the differences to the first run.

    Those of runs of other requests are left out, unless ``ranks_unlike``.

    Raises: InputError where a ``summary.json`` is missing or malformed, or without any directory.
    """
    from vidur_pd.report.differences import compare_summaries

    return compare_summaries(_summaries(out_dirs), ranks_unlike=ranks_unlike)


def unranked_runs(out_dirs: Sequence[Path]) -> list[str]:
    """Names of the runs whose requests are not those of the first. Raises: InputError as `comparison_table`."""
    from vidur_pd.report.differences import has_other_requests

    summaries = _summaries(out_dirs)
    first, *others = summaries
    return [run for run in others if has_other_requests(summaries[first], summaries[run])]


def comparison_warnings(out_dirs: Sequence[Path]) -> list[str]:
    """What differs between the runs apart from the system: requests, seed, model or objectives, a sentence per run.

    Raises: InputError as `comparison_table`.
    """
    from vidur_pd.report.differences import unlike

    return unlike(_summaries(out_dirs))


def _summaries(out_dirs: Sequence[Path]) -> dict[str, Summary]:
    from vidur_pd.metrics.summary_file import read_summary

    labels = _labels(out_dirs)
    return {label: read_summary(folder / "summary.json") for label, folder in zip(labels, out_dirs, strict=True)}


def _write(path: Path, pieces: Iterable[str]) -> None:
    from boundary.output_files import replacing

    with replacing(path) as file:
        file.writelines(piece.encode() for piece in pieces)


def _labels(out_dirs: Sequence[Path]) -> list[str]:
    from boundary.errors import InputError
    from vidur_pd.report.load import distinct_labels

    if not out_dirs:
        raise InputError("report: found no output directory, expected at least one")
    return distinct_labels(out_dirs)


def _run_files(out_dirs: Sequence[Path]) -> list[Path]:
    """What the pages are made from."""
    names = ("summary.json", "requests.csv", "requests.parquet", "config.yaml", "iterations.parquet", "links.parquet")
    return [folder / name for folder in out_dirs for name in names]
