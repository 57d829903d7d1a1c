"""``aicb``: operators, memory and compute times of language models, from the command line."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from aicb.commands import exchange, predict, profile, show
from boundary.command_line import run_command_line

__version__ = "0.1.0"

app = typer.Typer(pretty_exceptions_enable=False)
show.register(app)
predict.register(app)
exchange.register(app)
profile.register(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"aicb {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Operators, memory and compute times of LLM inference."""


def main() -> NoReturn:
    """Console script: exit code 0, 1 for a missing measurement, 2 for bad input."""
    run_command_line(app, "aicb")


if __name__ == "__main__":
    main()
