"""``aicb profile engine --framework sglang``: runs of a stand-in for SGLang, and the measurement made of them."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aicb.__main__ import app
from aicb.commands.engine_launches import launches_of
from aicb.iteration.host import GraphMode, HostModel
from aicb.iteration.sglang_host import host_of
from aicb.profiling.engine_host import runs as runs_module
from aicb.profiling.engine_host.runs import Runs
from boundary.errors import InputError
from tests.aicb.profiling.fake_sglang import DECODE_S, GRAPHS, TOKEN_S, FakeSglang, install
from tests.aicb.profiling.test_engine_runs import ENVIRONMENT, FEW, MODEL

COMMAND = ["profile", "engine", "--framework", "sglang"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(monkeypatch)
    versions = {"versions": {"sglang": "0.5.17"}}
    monkeypatch.setattr(runs_module, "environment", lambda packages: ENVIRONMENT | versions)
    monkeypatch.setattr(runs_module, "Runs", partial(Runs, **FEW))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL), encoding="utf-8")
    return path


def measured(model: Path) -> dict[str, Any]:
    output = model.parent / "engine.json.gz"
    run = CliRunner().invoke(app, [*COMMAND, "--model", str(model), "-o", str(output), "--rates", "20"])
    assert run.exit_code == 0, (run.output, run.exception)
    with gzip.open(output, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_a_measurement_of_sglang_has_what_the_engine_did(model: Path) -> None:
    found = measured(model)
    (engine,) = FakeSglang.made
    assert engine.called[0] == "start_stamps"
    assert engine.called[-1] == "shutdown"
    assert (engine.arguments["tp_size"], engine.arguments["load_format"]) == (1, "dummy")
    assert (found["framework"], found["what"]) == ("sglang", "SGLang 0.5.17 on NVIDIA H200")
    assert (found["collectives"], found["kv_blocks"]) == ("sglang", [800_000, 1])
    assert found["args"]["prompt_graph_sizes"] == GRAPHS
    assert [tokens for tokens, _ in found["prefill"]] == [128, 1024]
    assert all(min(times_s) >= DECODE_S + TOKEN_S * tokens for tokens, times_s in found["prefill"])
    assert [(row["L"], row["B"], row["tokens_per_step"]) for row in found["steady"]] == [(64, 1, 1.0), (64, 4, 1.0)]
    assert len(found["serve_20.0"]) == 10
    (decode,) = [row for row in found["parts"]["decode"] if row["requests"] == 4 and not row["prompt_tokens"]]
    assert decode["launch_us"] == pytest.approx(0.5e6 * DECODE_S, rel=1e-3)
    assert decode["pass_us"] == pytest.approx(0.6e6 * DECODE_S, rel=1e-3)


def test_the_host_is_as_much_slower_as_it_launches_prompts(model: Path) -> None:
    """Half of a step is the pass; a prompt of 128 tokens is replayed, and takes 2.128 ms here."""
    found = measured(model)
    launches = launches_of(str(model), 1, 1, shares_experts=False, framework="sglang")
    host = host_of("sglang", HostModel())
    modelled_us = host.launching_us(GraphMode.PIECEWISE, launches) - host.sample_us
    prefill = found["launches"]["prefill"]["eager"]["median_us"] / HostModel().eager_launch_us
    assert prefill == pytest.approx(0.5e6 * (DECODE_S + TOKEN_S * 576) / modelled_us, rel=0.01)  # between both prompts
    slower = found["host"]["eager_launch_us"] / HostModel().eager_launch_us
    assert found["host"]["prepare_us"] == pytest.approx(HostModel().prepare_us * slower, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--framework", "trtllm"], "--framework: found 'trtllm', expected vllm or sglang"),
        (
            ["--framework", "sglang", "--acceptance", "0.8"],
            "--acceptance: found drafts with sglang, expected none: it accepts no given share of them",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(model: Path, options: list[str], message: str) -> None:
    output = model.parent / "engine.json.gz"
    run = CliRunner().invoke(app, ["profile", "engine", "--model", str(model), "-o", str(output), *options])
    assert isinstance(run.exception, InputError)
    assert str(run.exception) == message
    assert not output.exists()
