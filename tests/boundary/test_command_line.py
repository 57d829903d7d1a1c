"""The frame of the command lines, run as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boundary.command_line import print_summary

PROGRAM = """
import sys, time, typer
from boundary.command_line import run_command_line
from boundary.errors import Failure, InputError
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

@app.command()
def fail(how: str) -> None:
    match how:
        case "input":
            raise InputError("c.yaml line 3 rate: found 'x\\n\\x1b[31m', expected a rate")
        case "long":
            raise InputError("c.yaml: found " + "x" * 10**6 + ", expected less")
        case "failure":
            raise Failure("rdma: found no device")
        case "memory":
            raise MemoryError
        case "disk":
            raise OSError(28, "No space left on device", "out.csv")
        case "prints":
            print("line\\n" * 100_000)
        case "waits":
            print("ready", flush=True)
            time.sleep(60)
        case "fault":
            raise AssertionError("ours")

run_command_line(app, "prog")
"""


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("input", 2, "prog: c.yaml line 3 rate: found 'x \\x1b[31m', expected a rate\n"),
        ("failure", 1, "prog: rdma: found no device\n"),
        ("memory", 1, "prog: memory: found too little, expected a smaller problem\n"),
        ("disk", 1, "prog: out.csv: No space left on device\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(how: str, code: int, message: str) -> None:
    result = run(how)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", message)


@pytest.mark.parametrize("arguments", [[""], ["input", ""]])
def test_arguments_of_no_characters_are_refused(arguments: list[str]) -> None:
    """As ``-o "$OUT"`` leaves one where OUT is not set: as a path it would be the present folder."""
    result = run(*arguments)
    before = arguments[0] or "arguments"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"prog: {before}: found '', expected a value\n")


def test_a_long_message_is_cut_in_the_middle() -> None:
    result = run("long")
    assert result.stderr.startswith("prog: c.yaml: found xxx")
    assert result.stderr.endswith("xxx, expected less\n")
    assert len(result.stderr) == 401


def test_a_fault_of_ours_passes_through() -> None:
    result = run("fault")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_wrong_use_exits_with_2() -> None:
    result = run()
    assert result.returncode == 0  # the help
    result = run("input", "more")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_on_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", PROGRAM, "prints"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, "prog: No space left on device\n")


def test_a_reader_that_closes_the_pipe_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, "prints"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGINT, "prog: interrupted by SIGINT; no file is half written\n"),
        (signal.SIGTERM, "prog: interrupted by SIGTERM; no file is half written\n"),
        (signal.SIGHUP, "prog: interrupted by SIGHUP; no file is half written\n"),
    ],
)
def test_signals_end_in_one_line(number: signal.Signals, message: str) -> None:
    command = [sys.executable, "-c", "import signal; signal.signal(2, signal.default_int_handler)\n" + PROGRAM, "waits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (128 + number, message)


def test_a_summary_shows_six_digits_and_json_all(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"time_us": 118.76290093036512, "bytes": 16777216, "wall_ps": 12345678.9, "correct": True}
    print_summary(summary, as_json=False)
    assert capsys.readouterr().out.split()[1::2] == ["118.763", "16777216", "12345679", "True"]
    print_summary(summary, as_json=True)
    assert json.loads(capsys.readouterr().out) == summary
