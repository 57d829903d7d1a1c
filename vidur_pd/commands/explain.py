"""``vidur-pd explain``: where every millisecond of a request went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def explain(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of 'vidur-pd run'.")],
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="As in requests.csv; slowest: that of TTFT.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Say where every millisecond of a request went, and whom it waited for."""
    from boundary.errors import InputError
    from boundary.result_folder import finish_result
    from vidur_pd.report.load import check_folder, read_run
    from vidur_pd.report.waterfall import slowest, waterfall, waterfall_text

    check_folder(out)
    finish_result(out)
    run = read_run(out)
    if request_id == "slowest":
        several = slowest(run, "ttft_s", 1)
        if not several:
            raise InputError(f"{out}: found no completed request with its parts, expected one")
        request_id = several[0].request_id
    found = waterfall(run, request_id)
    if not as_json:
        typer.echo(waterfall_text(found))
        return
    steps = [
        {"part": step.part, "begin_s": step.begin_s, "took_ps": step.took_ps, "notes": list(step.notes)}
        for step in found.steps
    ]
    chunks = [dict(zip(("begin_s", "new_tokens", "requests"), chunk, strict=True)) for chunk in found.chunks]
    tree = {"request_id": found.request_id, "e2e_ps": found.e2e_ps, "steps": steps, "chunks": chunks}
    typer.echo(json.dumps(tree))
