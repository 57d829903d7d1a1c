"""The commands that the README shows work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import run_forked

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = {"vidur-pd": "vidur_pd", "aicb": "aicb", "simccl": "simccl", "netsim": "netsim"}


def commands() -> list[str]:
    """Lines after a prompt in the console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_every_command_of_the_readme_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in order from the root, with results under a folder of their own instead of ``out`` and fewer requests; the
    first of each program begins with a new interpreter."""
    monkeypatch.chdir(REPOSITORY)
    shown = commands()
    assert len(shown) > 8
    started = set()
    for command in shown:
        words = [re.sub(r"^out/", f"{tmp_path}/", word) for word in shlex.split(command)]
        if words[1] in ("run", "compare") and "workload." not in command and words[0] == "vidur-pd":
            words += ["--set", "workload.requests=100"]
        program, *arguments = MODULES[words[0]], *words[1:]
        finished = run_forked(program, *arguments) if program in started else run_anew(program, *arguments)
        assert finished.returncode == 0, f"{command}\n{finished.stderr}"
        started.add(program)
    assert started == set(MODULES.values())


def run_anew(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
