"""A command line where whatever goes wrong ends in one line on standard error, and its summaries."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

import typer

from boundary.blas_threads import one_blas_thread_from_now_on
from boundary.cycles import few_searches_for_cycles
from boundary.errors import InputError
from boundary.interruption import Interrupted, interruptible
from boundary.quoting import one_line


def run_command_line(app: typer.Typer, program: str) -> NoReturn:
    """Runs ``app`` on the arguments of the process and exits; without arguments it prints the help.

    What ends a command exits with its ``exit_code`` (`boundary.errors`; 2 for a wrong use, as click has it), lack of
    memory or of room on a disk with 1, and signals with 128 + their number; each prints ``program: message`` on one
    line, as warnings are. Where a reader closed the pipe early it exits with 1 and says nothing. Other exceptions are
    faults of ours and pass through.
    """
    logging.basicConfig(format=f"{program}: %(message)s", level=logging.WARNING)
    one_blas_thread_from_now_on()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # whatever the locale can write
    try:
        with interruptible(program), few_searches_for_cycles():
            check_no_empty(sys.argv[1:])
            result = app(args=sys.argv[1:] or ["--help"], prog_name=program, standalone_mode=False)
            sys.stdout.flush()
    except Interrupted as interruption:
        _fail(program, str(interruption), interruption.exit_code)
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)
    except Exception as error:
        message, code = _reported(error)
        _fail(program, message, code)
    gc.freeze()  # the interpreter's last search for cycles would go through all that the command has made
    sys.exit(result if isinstance(result, int) else 0)


def check_no_empty(arguments: Sequence[str]) -> None:
    """Raises: InputError, for an argument of no characters, as a variable that is not set leaves it: as a path it would
    be the present folder."""
    for before, argument in pairwise(["", *arguments]):
        if not argument:
            raise InputError(f"{before or 'arguments'}: found '', expected a value")


def print_summary(summary: Mapping[str, object], as_json: bool) -> None:
    """One line per entry, or one JSON object, on standard output."""
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    width = max(map(len, summary), default=0)
    for name, value in summary.items():
        console.print(f"{name:>{width}}  {_shown(value)}", markup=False)


def _shown(value: object) -> object:
    """Six digits of a number that is not whole, those before the point at least; JSON has them all."""
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _reported(error: Exception) -> tuple[str, int]:
    """Message and exit code of what users read; a fault of ours is raised again."""
    if hasattr(error, "format_message"):  # wrong uses are click's exceptions, which typer may carry a copy of
        return error.format_message(), getattr(error, "exit_code", 2)
    if (code := getattr(error, "exit_code", None)) is not None:
        return str(error), code
    match error:
        case MemoryError():
            return f"memory: {str(error) or 'found too little'}, expected a smaller problem", 1
        case OSError():
            place = f"{error.filename}: " if error.filename is not None else ""
            return f"{place}{error.strerror or error}", 1
    raise error


def _fail(program: str, message: str, code: int) -> NoReturn:
    _discard_output()
    sys.stderr.write(one_line(f"{program}: {message}") + "\n")
    sys.exit(code)


def _discard_output() -> None:
    """What standard output still holds is written if it can be; closing it must not fail once more at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
