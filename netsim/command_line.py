"""A command line where whatever a user gets wrong ends in one line on standard error, and its summaries."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import NoReturn

import typer

from boundary.errors import OutputError
from boundary.interruption import Interrupted, interruptible


def run_command_line(app: typer.Typer, program: str, exit_codes: Mapping[type[Exception], int]) -> NoReturn:
    """Runs ``app`` on the arguments of the process and exits; without arguments it prints the help.

    A wrong use (unknown command, missing option, bad value) exits with 2, an exception of ``exit_codes`` with its code,
    a full disk or lack of memory with 1, a signal with 128 + its number; all print ``program: message`` on one line.
    Other exceptions are faults and pass through.
    """
    try:
        with interruptible():
            result = app(args=sys.argv[1:] or ["--help"], prog_name=program, standalone_mode=False)
    except Interrupted as interruption:
        _fail(program, str(interruption), interruption.exit_code)
    except tuple(exit_codes) as error:
        code = next(code for kind, code in exit_codes.items() if isinstance(error, kind))
        _fail(program, str(error), code)
    except OutputError as error:
        _fail(program, str(error), 1)
    except MemoryError as error:
        _fail(program, f"memory: {error or 'found too little'}, expected a smaller problem", 1)
    except Exception as error:
        # Wrong uses are click's exceptions, which typer may carry a copy of; what they have in common is their form.
        if not hasattr(error, "format_message"):
            raise
        _fail(program, error.format_message(), getattr(error, "exit_code", 2))
    sys.exit(result if isinstance(result, int) else 0)


def print_summary(summary: Mapping[str, object], as_json: bool) -> None:
    """One line per entry, or one JSON object, on standard output."""
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    width = max(map(len, summary), default=0)
    for name, value in summary.items():
        console.print(f"{name:>{width}}  {value}", markup=False)


def _fail(program: str, message: str, code: int) -> NoReturn:
    sys.stderr.write(f"{program}: {' '.join(message.split())}\n")
    sys.exit(code)
