"""``aicb``: operators, memory and compute times of language models, from the command line."""

from __future__ import annotations

import sys

import typer

from aicb import cli_export, cli_predict, cli_profile, cli_show
from aicb.errors import InputError, UnmeasuredShape

app = typer.Typer(
    help="Operators, memory and compute times of LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli_show.register(app)
cli_predict.register(app)
cli_export.register(app)
cli_profile.register(app)


def main() -> None:
    """Runs the command line: exit code 2 for bad input, 1 for a missing measurement, with one line on stderr."""
    try:
        app(prog_name="aicb")
    except InputError as error:
        print(f"aicb: {error}", file=sys.stderr)
        sys.exit(2)
    except UnmeasuredShape as error:
        print(f"aicb: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
