"""``aicb profile engine``: runs of a stand-in for vLLM, and the measurement that is made of them."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aicb.__main__ import app
from aicb.profiling.engine_host import runs as runs_module
from aicb.profiling.engine_host.client import Answer
from aicb.profiling.engine_host.runs import Runs, steady_row
from aicb.profiling.engine_host.served import DraftsUnderTest
from boundary.errors import InputError
from tests.aicb.profiling.fake_vllm import COMPILING_S, DECODE_S, TOKEN_S, FakeEngine, install

ENVIRONMENT = {"cpu": "a CPU", "cores": 2, "gpus": ["NVIDIA H200"], "kernel": "6", "versions": {"vllm": "0.24.0"}}
FEW = {"prompts": (128, 1024), "repetitions": 3, "decodes": ((64, 1), (64, 4)), "steps": 10, "load_s": 0.5}
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file, with the stand-in installed and few runs."""
    install(monkeypatch)
    monkeypatch.setattr(runs_module, "environment", lambda packages: ENVIRONMENT)
    monkeypatch.setattr(runs_module, "Runs", partial(Runs, **FEW))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL), encoding="utf-8")
    return path


def measured(model: Path, *options: str, says: str = "") -> dict[str, Any]:
    """What the command writes; ``says``: a line that it prints."""
    output = model.parent / "engine.json.gz"
    run = CliRunner().invoke(app, ["profile", "engine", "--model", str(model), "-o", str(output), *options])
    assert run.exit_code == 0, (run.output, run.exception)
    assert says in run.output
    with gzip.open(output, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def test_a_measurement_has_what_the_engine_did(model: Path) -> None:
    """Steps of 2 ms, and a microsecond for each token of a prompt, in which the host prepares for 30 % with its output,
    launches for 40 and samples for 20. Sleeping takes longer than asked."""
    found = measured(model, "--rates", "20", "--argument", "block_size=64", "--layers", "2")
    (engine,) = FakeEngine.made
    assert engine.is_shut_down
    assert (engine.arguments["block_size"], engine.arguments["load_format"]) == (64, "aicb_random")
    assert (found["gpu"], found["collectives"], found["norm_kernel"]) == ("h200", "vllm", "apart")
    assert found["config"] == MODEL | {"num_hidden_layers": 2}
    assert found["args"]["max_num_batched_tokens"] == 8192
    assert "speculative" not in found
    assert [tokens for tokens, _ in found["prefill"]] == [128, 1024]
    for tokens, times_s in found["prefill"]:
        assert len(times_s) == 3
        assert DECODE_S + TOKEN_S * tokens <= min(times_s) < 0.1
    assert [(row["L"], row["B"]) for row in found["steady"]] == [(64, 1), (64, 4)]
    for row in found["steady"]:
        assert DECODE_S <= row["itl_p50"] < 2 * DECODE_S
        assert row["tokens_per_step"] == 1.0
        assert row["steps"] >= 10
    assert len(found["serve_20.0"]) == 10
    assert all(request["ttft"] < request["e2e"] for request in found["serve_20.0"])
    assert set(found["launches"]) == {"loads_before", "prefill", "decode", "serve_20.0", "loads_after"}
    host = found["host"]
    assert host["launch_us"] == pytest.approx(0.4 * DECODE_S * 1e6)
    assert host["sample_us"] == pytest.approx(0.2 * DECODE_S * 1e6)
    assert host["prepare_us"] == pytest.approx(0.25 * DECODE_S * 1e6, abs=1.0)
    assert set(found["parts"]) == {"loads_before", "prefill", "decode", "loads_after"}
    decodes = [row for row in found["parts"]["decode"] if row["mode"] == "full" and row["requests"] == 4]
    assert len(decodes) == 1
    assert decodes[0]["sample_us"] == pytest.approx(0.2 * DECODE_S * 1e6)
    assert decodes[0]["first_sampled_us"] == decodes[0]["sample_us"]  # the one worker is the first and the slowest
    assert decodes[0]["result_us"] >= decodes[0]["first_sampled_us"]
    launches = found["launches"]["loads_before"]["eager"]  # launching takes longer with more tokens here
    assert launches["p10_us"] <= host["eager_launch_us"] <= launches["p90_us"]


@pytest.mark.parametrize(("phase", "phases"), [(3, 6), (2, 5)])
def test_a_load_in_which_a_kernel_is_compiled_is_measured_again(
    model: Path, monkeypatch: pytest.MonkeyPatch, phase: int, phases: int
) -> None:
    """Of the host's loads before, prompts, decodes, one load, and the host's after, the fourth is, the third is not."""
    monkeypatch.setattr(FakeEngine, "compiles_in", {phase})
    monkeypatch.setattr(runs_module, "COMPILING_S", 0.5 * COMPILING_S)
    found = measured(model, "--rates", "20")
    (engine,) = FakeEngine.made
    assert engine.compiled_in == {phase}
    assert engine.phases == phases
    assert len(found["serve_20.0"]) == 10
    assert all(request["ttft"] < COMPILING_S for request in found["serve_20.0"])


@pytest.mark.parametrize(("batches", "phases"), [(2.0, 5), (0.0, 7)])
def test_a_long_batch_compiles_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, batches: float, phases: int
) -> None:
    """Steps take as long as prompts of their tokens; were those not looked at, each load would be measured thrice."""
    monkeypatch.setattr(runs_module, "COMPILING_S", 0.0)
    monkeypatch.setattr(runs_module, "LONGEST_BATCHES", batches)
    found = measured(model, "--rates", "20")
    assert FakeEngine.made[-1].phases == phases
    assert ("compiling_s" in found) == (phases > 5)


def test_a_load_that_never_runs_without_compiling_is_said_to(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "compiles_in", {3, 4, 5})
    monkeypatch.setattr(runs_module, "COMPILING_S", 0.5 * COMPILING_S)
    found = measured(model, "--rates", "20", says="serve_20.0: a kernel was compiled in each of its runs (a step of 0.")
    assert FakeEngine.made[-1].phases == 7  # three loads, the third of which is kept
    assert len(found["serve_20.0"]) == 10
    assert list(found["compiling_s"]) == ["serve_20.0"]
    assert COMPILING_S * 0.6 < found["compiling_s"]["serve_20.0"] < 2 * COMPILING_S


def test_drafts_that_are_all_kept_give_two_tokens_a_step(model: Path) -> None:
    found = measured(model, "--rates", "20", "--acceptance", "1.0")
    (engine,) = FakeEngine.made
    assert engine.arguments["speculative_config"] == {
        "method": "mtp",
        "num_speculative_tokens": 1,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [1.0],
    }
    assert found["speculative"] == {"method": "mtp", "drafts": 1, "acceptance": [1.0]}
    assert found["config"]["num_nextn_predict_layers"] == 1
    for row in found["steady"]:
        assert row["tokens_per_step"] == pytest.approx(2.0, abs=0.1)  # one token may be left for the last step
        assert row["itl_p50"] >= DECODE_S
    assert found["host"]["sample_us"] == pytest.approx(0.1 * DECODE_S * 1e6)  # a half of sampling is drafting


def test_acceptances_are_given_to_vllm_from_the_first_draft_on() -> None:
    asked = DraftsUnderTest("draft_model", (0.8, 0.5), "folder").arguments()
    assert asked["synthetic_acceptance_rates"] == pytest.approx([0.8, 0.4])
    assert asked["model"] == "folder"


def test_a_recording_is_kept_after_each_phase(model: Path) -> None:
    recording = model.parent / "recording.json.gz"
    found = measured(model, "--rates", "", "--recording", str(recording))
    with gzip.open(recording, "rt", encoding="utf-8") as file:
        kept = json.load(file)
    assert list(kept["phases"]) == ["loads_before", "prefill", "decode", "loads_after"]
    assert kept["config"] == found["config"]
    assert {path.name for path in model.parent.iterdir()} == {"config.json", "engine.json.gz", "recording.json.gz"}


def test_gaps_count_while_all_requests_decode() -> None:
    """The second begins at 3 s and ends at 5: of the first, outputs at 3, 4 and 5 s, of which the last has 2 tokens."""
    answers = [
        Answer(8, 0.0, ((1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1), (5.0, 2), (6.0, 1))),
        Answer(8, 0.0, ((3.0, 1), (5.0, 3))),
    ]
    row = steady_row(answers)
    assert (row["itl_p10"], row["itl_p90"], row["itl_mean"]) == (1.0, 2.0, pytest.approx(4 / 3))
    assert (row["steps"], row["tokens_per_step"]) == (1.5, 2.0)
    assert steady_row([Answer(8, 0.0, ((1.0, 1),)), Answer(8, 0.0, ((2.0, 1),))]) == {}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["-o", "out.json"], "--output: found 'out.json', expected a file that ends in .json.gz"),
        (["--rates", "2,x"], "--rates: found 'x', expected numbers above 0 and at most 1e+06"),
        (["--acceptance", "1.5"], "--acceptance: found '1.5', expected numbers above 0 and at most 1"),
        (["--method", "ngram"], "--method: found 'ngram', expected mtp, eagle or draft_model"),
        (
            ["--acceptance", "0.5", "--method", "eagle"],
            "--draft-model: found None, expected the config.json of what drafts with eagle",
        ),
        (["--method", "eagle"], "--acceptance: found none with eagle, expected a probability of each draft"),
        (["--argument", "block_size"], "--argument: found 'block_size', expected NAME=JSON, such as block_size=64"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(model: Path, options: list[str], line: str) -> None:
    output = str(model.parent / "engine.json.gz")
    run = CliRunner().invoke(app, ["profile", "engine", "--model", str(model), "-o", output, *options])
    assert isinstance(run.exception, InputError)
    assert str(run.exception) == line
    assert FakeEngine.made == []
    assert [path.name for path in model.parent.iterdir()] == ["config.json"]


def test_a_place_where_nothing_can_be_written_is_refused_before_anything_runs(model: Path) -> None:
    output = str(model.parent / "missing" / "engine.json.gz")
    run = CliRunner().invoke(app, ["profile", "engine", "--model", str(model), "-o", output])
    assert isinstance(run.exception, InputError)
    assert "missing" in str(run.exception)
    assert FakeEngine.made == []


@pytest.mark.parametrize(("text", "found"), [("[1]", "a JSON list"), ("{", "text that is not JSON")])
@pytest.mark.parametrize("command", ["engine", "host"])
def test_a_file_that_is_no_configuration_is_refused(model: Path, command: str, text: str, found: str) -> None:
    model.write_text(text, encoding="utf-8")
    output = str(model.parent / ("out.json.gz" if command == "engine" else "out.yaml"))
    run = CliRunner().invoke(app, ["profile", command, "--model", str(model), "-o", output])
    assert isinstance(run.exception, InputError)
    assert f"found {found}" in str(run.exception)
    assert FakeEngine.made == []
