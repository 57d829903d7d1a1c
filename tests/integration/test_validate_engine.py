"""``vidur-pd validate --engine``: recordings of engines, made up, against their simulation."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aicb.data import FOLDER as DATA
from boundary.errors import InputError
from boundary.yaml_text import read_yaml_mapping
from tests.integration.test_command_line import vidur_pd
from tests.validation.engine_figures import FOLDER, read_measurement
from vidur_pd.commands.validate import _cell
from vidur_pd.commands.validation.engine import check_simulable, compare_load, workload_of
from vidur_pd.commands.validation.measured_engine import Sent, parse_engine, read_engine

Tree = dict[str, Any]
DRAFTS = {"method": "eagle", "drafts": 2, "acceptance": [0.7, 0.5]}


def request(arrival_s: float, prompt_tokens: int, output_tokens: int) -> Tree:
    """TTFT 6 ms, TPOT 1 ms."""
    times = {"ttft": 0.006, "e2e": 0.006 + 0.001 * (output_tokens - 1), "tpot": 0.001 if output_tokens > 1 else 0.0}
    return {"arrival": arrival_s, "n_in": prompt_tokens, "n_out": output_tokens, **times}


def recording(**changes: Any) -> Tree:
    """A recording of Qwen3-0.6B cut to two layers; ``None`` leaves a field out."""
    model = read_yaml_mapping(DATA / "models" / "qwen3-0.6b.yaml", "a model")["config"]
    tree = {
        "format": 1,
        "args": {"tensor_parallel_size": 1, "max_num_batched_tokens": 2048, "max_num_seqs": 64},
        "config": model | {"num_hidden_layers": 2},
        "gpu": "h200",
        "kv_blocks": [4000, 16],
        "collectives": "vllm",
        "norm_kernel": "apart",
        "prefill": [[128, [0.005, 0.006, 0.009]], [1024, [0.008]]],
        "steady": [{"L": 100, "B": 4, "n_out": 60, "itl_p50": 0.001, "tokens_per_step": 2.0}],
        "serve_2.0": [request(0.0, 100, 20), request(0.4, 200, 1), request(0.5, 300, 20)],
        "host": {"eager_launch_us": 50.0, "launch_us": 40.0, "piece_launch_us": 30.0, "request_latency_us": 1000.0},
        "launches": {
            "prefill": {"eager": {"median_us": 60.0}},
            "decode": {"eager": {"median_us": 100.0}, "piecewise": {"median_us": 33.0}},
        },
        "environment": {"gpus": ["NVIDIA H200"]},
    }
    return {name: value for name, value in {**tree, **changes}.items() if value is not None}


def written(folder: Path, tree: Tree) -> Path:
    path = folder / "mine.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump(tree, file)
    return path


def tables(*arguments: str | Path) -> dict[str, Any]:
    finished = vidur_pd("validate", *arguments, "--json")
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def test_a_recording_is_compared_alone_and_on_every_host_that_it_has(tmp_path: Path) -> None:
    """No speed of the host in the load is recorded, so that nothing is simulated at it; its second request of one
    token has no TPOT."""
    path = written(tmp_path, recording())
    found = tables("--engine", path)
    assert list(found) == [f"engine {path}", f"engine {path}, means of absolute errors", "skipped"]
    assert found["skipped"] == {}
    rows = {row["what"]: row for row in found[f"engine {path}"]}
    load = [f"serve_2.0 {latency} {figure}" for latency in ("ttft", "tpot", "e2e") for figure in ("mean", "P90")]
    assert list(rows) == ["prefill of 128", "prefill of 1024", "decode of 4 x 100", *load]
    assert rows["prefill of 128"]["measured_ms"] == 6.0
    assert rows["serve_2.0 tpot mean"]["measured_ms"] == 1.0
    for row in rows.values():
        for host in ("own", "then", "default"):
            is_left_out = host == "then" and row["what"] in load
            assert (row[f"{host}_ms"] is None) == is_left_out
            if not is_left_out:
                assert row[f"{host}_error"] == pytest.approx(row[f"{host}_ms"] / row["measured_ms"] - 1)
    assert rows["prefill of 1024"]["then_ms"] > rows["prefill of 1024"]["own_ms"]
    means = {row["kind"]: row for row in found[f"engine {path}, means of absolute errors"]}
    assert list(means) == ["prompts", "decodes", *(f"loads, mean {latency}" for latency in ("ttft", "tpot", "e2e"))]
    errors = [abs(rows[f"prefill of {tokens}"]["own_error"]) for tokens in (128, 1024)]
    assert means["prompts"]["own_error"] == pytest.approx(np.mean(errors))
    assert means["loads, mean ttft"]["then_error"] is None


def test_a_load_in_which_kernels_were_compiled_is_left_out_and_named(tmp_path: Path) -> None:
    path = written(tmp_path, recording(steady=None, compiling_s={"serve_2.0": 2.04}))
    found = tables("--engine", path)
    assert [row["what"] for row in found[f"engine {path}"]] == ["prefill of 128", "prefill of 1024"]
    reason = "found a step of 2.0 s, expected a load in which no kernel is compiled"
    assert found["skipped"] == {f"serve_2.0 of {path}": reason}


def test_a_table_has_measured_and_simulated_times_and_a_dash_for_what_is_not_known(tmp_path: Path) -> None:
    path = written(tmp_path, recording(steady=None, prefill=[[128, [0.006]]]))
    finished = vidur_pd("validate", "--engine", path)
    assert finished.returncode == 0, finished.stderr
    (row,) = [line for line in finished.stdout.splitlines() if "serve_2.0 e2e mean" in line]
    _, what, measured, own, own_error, then, then_error, *_ = (cell.strip() for cell in row.split("│"))
    assert (what, measured, then, then_error) == ("serve_2.0 e2e mean", "18.67", "–", "–")
    assert float(own) > 0
    assert own_error.endswith("%")
    assert _cell("measured_tokens", 2.049) == "2.05"


def test_steps_with_drafts_are_compared_and_not_tokens(tmp_path: Path) -> None:
    """A step verifies two drafts in less than twice the time of one that decodes; 1 + 0.7 + 0.7 · 0.5 tokens."""
    plain, drafted = (tmp_path / name for name in ("plain", "drafted"))
    for folder, drafts in ((plain, None), (drafted, DRAFTS)):
        folder.mkdir()
        written(folder, recording(speculative=drafts, prefill=None, host=None, **{"serve_2.0": None}))
    files = [folder / "mine.json.gz" for folder in (plain, drafted)]
    found = tables("--engine", files[0], "--engine", files[1])
    step_ms, drafted_ms = (found[f"engine {file}"][0]["default_ms"] for file in files)
    assert step_ms < drafted_ms < 2 * step_ms
    assert f"engine {files[0]}, tokens of a step" not in found
    (row,) = found[f"engine {files[1]}, tokens of a step"]
    assert row == {"what": "decode of 4 x 100", "measured_tokens": 2.0, "expected_tokens": pytest.approx(2.05)}


def test_a_host_is_as_slow_as_it_launched_in_a_phase() -> None:
    """1.2 and 2 times as long as its 50 us; what passes at the client stays, pieces have their own time if recorded."""
    engine = parse_engine(recording(), "mine.json")
    assert engine.host_in("prefill") == pytest.approx(
        {"eager_launch_us": 60.0, "launch_us": 48.0, "piece_launch_us": 36.0, "request_latency_us": 1000.0}
    )
    assert engine.host_in("decode") == pytest.approx(
        {"eager_launch_us": 100.0, "launch_us": 80.0, "piece_launch_us": 33.0, "request_latency_us": 1000.0}
    )
    assert engine.host_in("serve_2.0") is None
    assert parse_engine(recording(host=None), "mine.json").host_in("decode") is None


def test_prompts_share_the_whole_blocks_of_their_prefix() -> None:
    """100 tokens of prefix 7 are six blocks of 16; a longer part of it adds the next, other prompts have their own."""
    lengths = [(110, 7, 100), (40, None, 0), (120, 7, 112), (20, 7, 16)]
    sent = [
        Sent(prompt_tokens=tokens, output_tokens=1, prefix=prefix, prefix_tokens=shared)
        for tokens, prefix, shared in lengths
    ]
    hashes = workload_of(sent).block_hashes
    assert hashes is not None
    first, other, longer, shorter = (hashes.of(index).tolist() for index in range(4))
    assert [len(ids) for ids in (first, other, longer, shorter)] == [7, 3, 8, 2]
    assert first[:6] == longer[:6]
    assert shorter[0] == first[0]
    assert len({*first, *other, *longer, *shorter}) == 7 + 3 + 2 + 1


@pytest.mark.parametrize("name", ["vllm-h200-tp2-deepseek-v3-l8", "vllm-h100-tp1-llama-3.1-8b-l16"])
def test_earlier_recordings_are_read(name: str) -> None:
    """Their GPU is in the driver's words and what normalises in the log; early decodes had 40 tokens of output."""
    found, engine = read_measurement(name), read_engine(FOLDER / f"{name}.json.gz")
    assert engine.gpu == name.split("-")[1]
    assert engine.norm_kernel == ("flashinfer" if "deepseek" in name else "apart")
    assert engine.decodes is not None
    assert len(engine.decodes) == len(found.get("steady") or found["decode"])
    assert {row.steps for row in engine.decodes} == ({40} if "steady" in found else {12})
    assert len(engine.model.layers) == (8 if "deepseek" in name else 16)


def without(name: str) -> Callable[[Tree], None]:
    return lambda tree: tree.pop(name)


def placed(value: object, *path: int | str) -> Callable[[Tree], None]:
    def place(tree: Any) -> None:
        for part in path[:-1]:
            tree = tree[part]
        tree[path[-1]] = value

    return place


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (without("args"), "args: missing, expected a value"),
        (without("kv_blocks"), "kv_blocks: missing, expected a value"),
        (placed([0, 16], "kv_blocks"), "kv_blocks.0: found 0, expected at least 1"),
        (placed({"serve_9.0": 2.0}, "compiling_s"), "compiling_s: found 'serve_9.0', expected some of serve_2.0"),
        (placed({"serve_2.0": "long"}, "compiling_s"), "compiling_s.serve_2.0: found 'long', expected a number"),
        (placed(2, "format"), "format: found 2, expected one of 1"),
        (placed(0, "args", "tensor_parallel_size"), "args.tensor_parallel_size: found 0, expected at least 1"),
        (placed("yes", "args", "enable_prefix_caching"), "args.enable_prefix_caching: found 'yes', expected true or"),
        (placed([], "prefill"), "prefill: found an empty list, expected at least one item"),
        (placed([], "prefill", 0, 1), "prefill.0.1: found an empty list, expected at least one item"),
        (placed(-0.1, "prefill", 0, 1, 2), "prefill.0.1.2: found -0.1, expected above 0.0"),
        (placed("fast", "prefill", 0, 1, 2), "prefill.0.1.2: found 'fast', expected a number"),
        (placed(True, "prefill", 0, 1, 2), "prefill.0.1.2: found True, expected a number"),
        (placed(1.5, "prefill", 0, 0), "prefill.0.0: found 1.5, expected a whole number"),
        (placed({"L": 1, "n_out": 9, "itl_p50": 1.0}, "steady", 0), "steady.0.B: missing, expected a value"),
        (placed(1, "steady", 0, "n_out"), "steady.0.n_out: found 1, expected at least 2"),
        (placed([], "serve_2.0"), "serve_2.0: found an empty list, expected at least one item"),
        (placed(-1.0, "serve_2.0", 1, "arrival"), "serve_2.0.1.arrival: found -1.0, expected at least 0.0"),
        (placed(None, "serve_2.0", 0, "ttft"), "serve_2.0.0.ttft: found None, expected a number"),
        (placed(0.0, "serve_2.0", 0, "tpot"), "serve_2.0.0.tpot: found 0.0, expected seconds above 0"),
        (placed(3.0, "host", "x_us"), "host: found field 'x_us', expected some of launch_us,"),
        (placed(0.0, "host", "eager_launch_us"), "host: found eager_launch_us 0.0, expected microseconds above 0"),
        (placed(-3.0, "host", "launch_us"), "host.launch_us: found -3.0, expected at least 0.0"),
        (placed({}, "launches", "decode", "eager"), "launches.decode.eager.median_us: missing, expected a value"),
        (placed("t4", "gpu"), "gpu: found 't4', expected one of a100, b200,"),
        (placed("fast", "norm_kernel"), "norm_kernel: found 'fast', expected one of apart, flashinfer"),
        (placed("mpi", "collectives"), "collectives: found 'mpi', expected one of nccl, vllm,"),
        (without("config"), "config: found none, expected the model's config.json"),
        (placed(["T5"], "config", "architectures"), "config: architectures: found ['T5'], expected one of Llama"),
        (placed({"method": "eagle"}, "speculative"), "speculative.acceptance: missing, expected a value"),
        (placed({**DRAFTS, "drafts": 3}, "speculative"), "speculative.acceptance: found 2 values, expected one,"),
    ],
)
def test_a_wrong_field_is_named(spoil: Callable[[Tree], None], line: str) -> None:
    tree = recording()
    spoil(tree)
    with pytest.raises(InputError) as raised:
        parse_engine(tree, "mine.json")
    assert str(raised.value).startswith(f"mine.json: {line}")


def test_a_gpu_that_is_not_known_is_named() -> None:
    unknown = recording(gpu=None, environment={"gpus": ["NVIDIA T4"]})
    with pytest.raises(InputError, match=r"^mine.json: environment.gpus: found 'NVIDIA T4', expected one of a100, "):
        parse_engine(unknown, "mine.json")
    with pytest.raises(InputError, match=r"^mine.json: gpu: found none, expected one of a100, "):
        parse_engine(recording(gpu=None, environment=None), "mine.json")


def test_a_recording_of_nothing_is_refused() -> None:
    nothing = recording(prefill=None, steady=None, **{"serve_2.0": None})
    with pytest.raises(InputError, match=r"^mine.json: found none of prefill, steady and serve_…, expected at least"):
        parse_engine(nothing, "mine.json")


def test_what_cannot_be_simulated_is_refused_with_its_file() -> None:
    """16 heads are not divided by three; a request is longer than the model's context of 40,960 tokens."""
    engine = parse_engine(recording(args={"tensor_parallel_size": 3}), "mine.json")
    with pytest.raises(InputError, match=r"^mine.json: .*tp: found 3, expected a divisor of the 16 attention heads"):
        check_simulable(engine)
    long = parse_engine(recording(**{"serve_2.0": [request(0.0, 50_000, 2)]}), "mine.json")
    with pytest.raises(InputError, match=r"^mine.json: serve_2.0: found .*50000.*, expected"):
        compare_load(long, "serve_2.0")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            b"{",
            "found text that is not JSON (expecting property name enclosed in double quotes), expected a file of aicb",
        ),
        (b"[1]", "found a JSON list, expected a file of aicb profile engine"),
        (b'{"prefill": NaN}', "found NaN, which is no number, expected a file of aicb profile engine"),
        (b"\x1f\x8bxx", "found a damaged gzip file, expected a file of aicb profile engine"),
        (None, "found no such file, expected a file of aicb profile engine"),
    ],
)
def test_what_is_no_recording_is_one_line(tmp_path: Path, text: bytes | None, line: str) -> None:
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_bytes(text)
    finished = vidur_pd("validate", "--engine", path)
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith(f"vidur-pd: {path}: {line}")
    assert finished.stderr.count("\n") == 1


def test_without_a_recording_the_section_is_skipped() -> None:
    finished = vidur_pd("validate", "--only", "engine")
    assert finished.returncode == 0
    assert finished.stdout == "skipped engine: found no --engine, expected a file of aicb profile engine\n"
