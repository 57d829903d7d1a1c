"""``vidur-pd schema``: the JSON schema of configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def schema(
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File; by default it is printed.")] = None,
) -> None:
    """Write the JSON schema of configurations, by which editors complete and explain fields.

    In VS Code (YAML extension): a first line '# yaml-language-server: $schema=FILE'.
    """
    from boundary.output_files import check_output, replacing
    from vidur_pd.config.json_schema import json_schema

    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    check_output(out, [])
    with replacing(out) as file:
        file.write(text.encode())
    typer.echo(str(out))
