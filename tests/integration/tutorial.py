"""Documents whose console blocks show what their commands print: run, compared, and written anew.

python -m tests.integration.tutorial docs/tutorial.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_LINES = 15
"""Of what a command prints; the rest is left out."""
WIDTH = 110
TIMES = re.compile(r"[\d.]+ s of (wall|CPU) time")
BLOCK = re.compile(r"```console\n(.*?)```", flags=re.DOTALL)

Run = Callable[[str, list[str]], "subprocess.CompletedProcess[str]"]
"""Of a program with arguments, in the present folder."""


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def printed(command: str, run: Run) -> str:
    """What a command prints, as a document shows it."""
    program, *arguments = shlex.split(command)
    finished = run(program, arguments)
    assert finished.returncode == 0, f"{command}\n{finished.stderr}"
    lines = [TIMES.sub(r"… s of \1 time", line.rstrip()) for line in finished.stdout.splitlines()]
    shown = lines[:MOST_LINES] + (["…"] if len(lines) > MOST_LINES else [])
    return "".join(f"{line}\n" for line in [f"$ {command}", *shown])


def rewritten(text: str, run: Run) -> str:
    """The document with what its commands print now; they run in its order, in the present folder."""
    return BLOCK.sub(lambda block: f"```console\n{''.join(_all_printed(block[1], run))}```", text)


def _all_printed(block: str, run: Run) -> Iterator[str]:
    for command in commands(block):
        yield printed(command, run)


def run_anew(program: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", program.replace("-", "_"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            back = Path.cwd()
            os.chdir(folder)
            text = rewritten(text, run_anew)
            os.chdir(back)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
