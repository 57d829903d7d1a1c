"""Command line: ``netsim run``, ``netsim calibrate-rdma`` and ``netsim topology``."""

from __future__ import annotations

from typing import Annotated

import typer

from boundary.command_line import run_command_line
from netsim import __version__
from netsim.commands.calibrate import calibrate_rdma
from netsim.commands.run import run
from netsim.commands.topology import write_topology

app = typer.Typer(
    name="netsim",
    pretty_exceptions_enable=False,
)

app.command()(run)
app.command("calibrate-rdma")(calibrate_rdma)
app.command("topology", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(write_topology)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"netsim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Network simulation: a topology and a flow graph give completion times."""


def main() -> None:
    """Console script: exit code 0, 1 for a failure, 2 for bad input."""
    run_command_line(app, "netsim")


if __name__ == "__main__":
    main()
