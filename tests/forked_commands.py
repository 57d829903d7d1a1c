"""Commands of the packages in processes of their own that have everything imported: forks of the test's process.

Starting Python and importing what a simulation needs takes longer than most commands. What has to begin with a new
interpreter, as another hash seed has to, is not for here; nor is what computes with torch, whose threads in the test's
process would be missing in the fork, which then waits for them.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import traceback
import warnings
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, NoReturn

from tests.fuzz.worker import load_packages


def run_forked(package: str, *arguments: str | Path) -> CompletedProcess[str]:
    """``python -m package arguments`` in the present folder."""
    _load_once()
    argv = [package, *map(str, arguments)]
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; ours are idle
            child = os.fork()
        if child == 0:
            _become(argv, stdout, stderr)
        _, status = os.waitpid(child, 0)
        written = []
        for stream in (stdout, stderr):
            stream.seek(0)
            written.append(stream.read().decode())
    return CompletedProcess(argv, os.waitstatus_to_exitcode(status), *written)


@cache
def _load_once() -> None:
    load_packages()


def _become(argv: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> NoReturn:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115
        logging.getLogger().handlers.clear()  # those of pytest
        sys.argv = argv
        importlib.import_module(f"{argv[0]}.__main__").main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
