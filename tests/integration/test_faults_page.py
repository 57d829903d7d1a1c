"""The page on faults: its command works, and its example gives the figures that it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from tests.forked_commands import run_forked
from vidur_pd.config import faults as config

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "faults.md").read_text()


def test_the_example_gives_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    [command] = re.findall(r"^\$ vidur-pd (.*)$", PAGE, flags=re.MULTILINE)
    words = [re.sub(r"^out/", f"{tmp_path}/", word) for word in shlex.split(command)]
    finished = run_forked("vidur_pd", *words)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((tmp_path / "faults" / "summary.json").read_text())
    assert summary["completed"] == summary["requests"]
    shown = re.search(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert shown is not None
    tree = json.loads("{" + shown.group(1).replace(", …", "") + "}")["faults"]
    found = summary["faults"]
    assert found["events"][0] == tree["events"][0]
    assert len(found["events"]) == 8
    assert found["requests"] == tree["requests"]
    assert found["transfers_retried"] == tree["transfers_retried"]
    loss = {name: round(value, 4) for name, value in found["slo_loss_minutes"].items()}
    assert loss == tree["slo_loss_minutes"]
    assert all(pool["communication_share"] >= 0 for pool in summary["pools"])  # a difference of sums of times
    report = (tmp_path / "faults" / "report.html").read_text()
    assert "Faults over throughput and TTFT" in report
    assert "recomputed" in report


def test_the_page_names_every_kind_and_every_field() -> None:
    union = get_args(get_args(config.FaultSpec)[0])
    for model in union:
        [kind] = get_args(model.model_fields["kind"].annotation)
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
        fields = set(model.model_fields) - {"kind", "at_s", "for_s"}
        assert all(f"`{field}" in row for field in fields), f"{kind}: {fields}"
    for field in config.RecoveryConfig.model_fields:
        assert f"`{field}`" in PAGE
