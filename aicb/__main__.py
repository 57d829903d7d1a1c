"""``aicb``: operators, memory and compute times of language models, from the command line."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from aicb import cli_export, cli_predict, cli_profile, cli_show
from aicb.errors import UnmeasuredShape
from boundary.errors import InputError, OutputError
from boundary.interruption import Interrupted, interruptible

__version__ = "0.1.0"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
cli_show.register(app)
cli_predict.register(app)
cli_export.register(app)
cli_profile.register(app)


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


def main() -> None:
    """Runs the command line; without arguments it prints the help.

    Exit code 2 for bad input and wrong use, 1 for a missing measurement, a full disk or too little memory, 128 + its
    number after a signal (130 after Ctrl-C); each error is one line ``aicb: message`` on stderr. Other exceptions are
    faults and pass through.
    """
    try:
        with interruptible():
            result = app(args=sys.argv[1:] or ["--help"], prog_name="aicb", standalone_mode=False)
    except Interrupted as interruption:
        _fail(str(interruption), interruption.exit_code)
    except InputError as error:
        _fail(str(error), 2)
    except (UnmeasuredShape, OutputError) as error:
        _fail(str(error), 1)
    except MemoryError as error:
        _fail(f"memory: {error or 'found too little'}, expected a smaller problem", 1)
    except Exception as error:
        # Wrong uses are click's exceptions, which typer may carry a copy of; what they have in common is their form.
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), getattr(error, "exit_code", 2))
    sys.exit(result if isinstance(result, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"aicb: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
