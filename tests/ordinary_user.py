"""Commands as a user who, unlike root, is bound by the modes of files and folders."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder that others than its owner may enter; those of pytest are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def python_as_nobody() -> list[str]:
    """Beginning of a command that runs Python as the user nobody; skips the test where that cannot be."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", sys.executable]
    try:
        tried = subprocess.run(
            [*command, "-c", "import boundary"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("needs setpriv (util-linux)")
    if os.geteuid() != 0 or tried.returncode:
        pytest.skip("only root may become another user, who must be able to read the repository and Python")
    return command
