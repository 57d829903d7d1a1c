"""The tutorial, followed to the letter: every command works and prints what the text says."""

from __future__ import annotations

import importlib
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool, simulate
from tests.integration.tutorial import REPOSITORY, WIDTH, rewritten

TUTORIAL = REPOSITORY / "docs" / "tutorial.md"


def run(program: str, arguments: list[str]) -> CompletedProcess[str]:
    return run_forked(program.replace("-", "_"), *arguments)


def warm_up() -> None:
    """Tables and modules that all commands need are loaded once, before these fork."""
    importlib.import_module("vidur_pd.report.single")
    importlib.import_module("vidur_pd.report.comparison")
    simulate(config([pool("p", "prefill"), pool("d", "decode")]), [(0, 1000, 20)])


def test_the_tutorial_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    warm_up()
    text = TUTORIAL.read_text(encoding="utf-8")
    assert text.count("\n## ") == 10
    words, expected = rewritten(text, run).split(), text.split()  # lines break elsewhere where a time has a digit more
    assert words == expected, f"python -m tests.integration.tutorial {TUTORIAL}"
