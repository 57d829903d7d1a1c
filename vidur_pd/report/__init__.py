"""Dashboards: the output directory of a run, or of several, as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vidur_pd.report.differences import ComparisonRow
    from vidur_pd.report.summary import Summary

__all__ = ["comparison_table", "comparison_warnings", "write_comparison", "write_report"]


def write_report(out_dir: Path, *, title: str | None = None, path: Path | None = None) -> Path:
    """Writes the report of a run to ``path``, by default ``report.html`` in its output directory, and returns the path.

    Sections whose optional input (``iterations.parquet``, ``links.parquet``, ``config.yaml``) is missing say so.
    Raises: InputError where a required file or column is missing or malformed, or no file can be at ``path``.
    """
    from vidur_pd.files import check_target
    from vidur_pd.report.load import read_run
    from vidur_pd.report.single import run_page

    if path is not None:
        check_target(path, _run_files([out_dir]))
    run = read_run(out_dir)
    target = path or out_dir / "report.html"
    _write(target, run_page(run, title))
    return target


def write_comparison(out_dirs: Sequence[Path], path: Path) -> Path:
    """Writes one page that overlays several runs, the first being the one compared with, and returns ``path``.

    Raises: InputError as `write_report`, or without any directory.
    """
    from vidur_pd.files import check_target
    from vidur_pd.report.comparison import comparison_page
    from vidur_pd.report.load import read_run

    labels = _labels(out_dirs)
    check_target(path, _run_files(out_dirs))
    runs = [read_run(folder, name) for folder, name in zip(out_dirs, labels, strict=True)]
    _write(path, comparison_page(runs))
    return path


def comparison_table(out_dirs: Sequence[Path]) -> list[ComparisonRow]:
    """The headline figures of several runs, a row per metric, with the differences to the first run.

    Raises: InputError where a ``summary.json`` is missing or malformed, or without any directory.
    """
    from vidur_pd.report.differences import compare_summaries

    return compare_summaries(_summaries(out_dirs))


def comparison_warnings(out_dirs: Sequence[Path]) -> list[str]:
    """What differs between the runs beside the system: requests, seed, model or objectives, a sentence per run.

    Raises: InputError as `comparison_table`.
    """
    from vidur_pd.report.differences import unlike

    return unlike(_summaries(out_dirs))


def _summaries(out_dirs: Sequence[Path]) -> dict[str, Summary]:
    from vidur_pd.report.summary import read_summary

    labels = _labels(out_dirs)
    return {label: read_summary(folder / "summary.json") for label, folder in zip(labels, out_dirs, strict=True)}


def _write(path: Path, pieces: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces)


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
