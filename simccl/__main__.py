"""Command line: ``simccl time``, ``simccl plan``, ``simccl verify`` and ``simccl calibrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from boundary.command_line import run_command_line
from simccl import __version__
from simccl.commands.calibrate import fit_corrections
from simccl.commands.plan import verify_flows, write_plan_file
from simccl.commands.time import print_time

app = typer.Typer(
    name="simccl",
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"simccl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Collective communication: a collective on some GPUs gives a time, or a graph of flows."""


app.command("time")(print_time)
app.command("calibrate")(fit_corrections)
app.command("plan")(write_plan_file)
app.command("verify")(verify_flows)


def main() -> None:
    """Console script: exit code 0, 1 for a plan that is not correct, 2 for bad input."""
    run_command_line(app, "simccl")


if __name__ == "__main__":
    main()
