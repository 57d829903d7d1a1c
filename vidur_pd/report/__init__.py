"""Dashboards: the output directory of a run, or of several, as one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_comparison", "write_report"]


def write_report(out_dir: Path, *, title: str | None = None) -> Path:
    """Writes ``report.html`` into the output directory of a run and returns its path.

    Sections whose optional input (``iterations.parquet``, ``links.parquet``, ``config.yaml``) is missing say so.
    Raises: InputError where a required file or column is missing or malformed.
    """
    from vidur_pd.report.load import read_run
    from vidur_pd.report.single import run_page

    path = out_dir / "report.html"
    path.write_text(run_page(read_run(out_dir), title), encoding="utf-8")
    return path


def write_comparison(out_dirs: Sequence[Path], path: Path) -> Path:
    """Writes one page that overlays several runs, the first being the one compared with, and returns ``path``.

    Raises: InputError as `write_report`, or without any directory.
    """
    from vidur_pd.errors import InputError
    from vidur_pd.report.comparison import comparison_page
    from vidur_pd.report.load import distinct_labels, read_run

    if not out_dirs:
        raise InputError("report: found no output directory, expected at least one")
    labels = distinct_labels(out_dirs)
    runs = [read_run(folder, name) for folder, name in zip(out_dirs, labels, strict=True)]
    path.write_text(comparison_page(runs), encoding="utf-8")
    return path
