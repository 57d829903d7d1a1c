"""The page on new GPUs and models, followed literally: its files are written and its commands run in order."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import run_forked

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "adding-a-gpu-or-model.md").read_text()
MODULES = {"vidur-pd": "vidur_pd", "aicb": "aicb"}


HAS_TORCH = importlib.util.find_spec("torch") is not None
NEED_TORCH = ("aicb profile ", "aicb import --format profile ")
"""Commands of the step that measures."""


def follow() -> dict[str, str]:
    """What each command printed, in the present folder; blocks are taken from top to bottom, without torch as the page
    says."""
    printed = {}
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        if kind == "console":
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                if command.startswith(NEED_TORCH) and not HAS_TORCH:
                    continue
                printed[command] = run(command)
        else:
            first, _, text = block.partition("\n")
            path = Path(first.removeprefix("# file: "))
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return printed


def run(command: str) -> str:
    program, *words = shlex.split(command)
    module = MODULES[program]
    if command.startswith(NEED_TORCH):  # its OpenMP threads, where other tests have used it here, do not outlive a fork
        finished = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    else:
        finished = run_forked(module, *words)
    assert finished.returncode == 0, f"{command}\n{finished.stderr}"
    return finished.stdout


def test_the_page_says_first_what_needs_torch() -> None:
    introduction = PAGE.partition("\n## ")[0]
    assert "needs torch" in introduction
    assert any(line.startswith("$ " + NEED_TORCH[0]) for line in PAGE.splitlines())


def test_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = follow()
    times = list(csv.DictReader((tmp_path / "times.csv").read_text().splitlines()))
    assert float(times[0]["time_us"]) == 12.9  # m = 64 of gemm.csv
    assert 12.9 < float(times[1]["time_us"]) < 22.4
    assert [row["is_estimate"] for row in times] == ["false", "false", "true"]
    assert times[2]["source"].startswith("estimate: transferred from h200")
    shown = printed["aicb show tiny-llama --tokens 8 --kv 500"]
    assert "1,100,048,384" in shown
    assert "kv_bytes_per_token 22,528" in shown
    summaries = {
        name: json.loads((tmp_path / name / "summary.json").read_text()) for name in ("out", "out-llama", "out-moe")
    }
    assert {name: summary["completed"] for name, summary in summaries.items()} == {
        "out": 20,
        "out-llama": 20,
        "out-moe": 20,
    }
    assert summaries["out"]["hardware"] == "x100"
    assert 0.05 < summaries["out"]["estimates"] < 0.9
    assert summaries["out-llama"]["model"] == "tiny-llama"
    assert summaries["out-moe"]["model"] == "my-moe"
