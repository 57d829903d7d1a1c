"""The commands that the README shows work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = {"vidur-pd": "vidur_pd", "aicb": "aicb", "simccl": "simccl", "netsim": "netsim"}


def commands() -> list[str]:
    """Lines after a prompt in the console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_every_command_of_the_readme_succeeds(tmp_path: Path) -> None:
    """Run in order from the root, with results under a folder of their own instead of ``out``."""
    shown = commands()
    assert len(shown) > 8
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for command in shown:
        words = [re.sub(r"^out/", f"{tmp_path}/", word) for word in shlex.split(command)]
        finished = subprocess.run(
            [sys.executable, "-m", MODULES[words[0]], *words[1:]],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert finished.returncode == 0, f"{command}\n{finished.stderr}"
