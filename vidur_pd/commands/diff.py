"""``vidur-pd diff``: which part of latency changed between two runs, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(help="Result folder of 'vidur-pd run'.")]


def diff(
    before: Folder,
    after: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Say which parts of TTFT and of the end-to-end latency changed from one run to another, and what explains it."""
    from boundary.result_folder import finish_result
    from vidur_pd.metrics.summary_file import read_summary
    from vidur_pd.report.change import change_between, change_text
    from vidur_pd.report.comparison import flatten
    from vidur_pd.report.load import check_folder, distinct_labels, read_configuration

    folders = (before, after)
    settings = []
    for folder in folders:
        check_folder(folder)
        finish_result(folder)
        settings.append(flatten(read_configuration(folder / "config.yaml")[1]))
    summaries = [read_summary(folder / "summary.json") for folder in folders]
    change = change_between(summaries[0], summaries[1], settings[0], settings[1])
    names = distinct_labels(folders)
    typer.echo(json.dumps(asdict(change)) if as_json else change_text(change, (names[0], names[1])))
