"""Threads of numpy's BLAS in our commands, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, typer
if "numpy-first" in sys.argv:
    import numpy
from boundary.command_line import run_command_line
app = typer.Typer(add_completion=False)

@app.command()
def count(when: str) -> None:
    import numpy, threadpoolctl
    print([each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"])

run_command_line(app, "prog")
"""


def threads(when: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")} | variables
    command = [sys.executable, "-c", PROGRAM, when]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout


@pytest.mark.parametrize("when", ["numpy-first", "numpy-last"])
def test_there_is_one_whenever_numpy_was_imported(when: str) -> None:
    assert threads(when) == "[1]\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: BLAS has one thread in any case")
def test_who_sets_a_number_keeps_it() -> None:
    assert threads("numpy-first", OPENBLAS_NUM_THREADS="2") == "[2]\n"
