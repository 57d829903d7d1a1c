"""``aicb show`` and ``aicb memory``: what is printed, and how bad input ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import aicb.__main__

ROOT = Path(__file__).resolve().parents[3]


def run(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``aicb``."""
    monkeypatch.setattr(sys, "argv", ["aicb", *arguments])
    with pytest.raises(SystemExit) as end:
        aicb.__main__.main()
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


@pytest.fixture
def aicb_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: run(arguments, capsys, monkeypatch)


def test_show_lists_operators_within_120_columns(aicb_command: Any) -> None:
    arguments = ("show", "deepseek-v3", "--dp", "32", "--ep", "32", "--weights", "fp8", "--tokens", "128")
    code, out, _ = aicb_command(*arguments, "--kv", "4096")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 120
    row = next(line for line in out.splitlines() if "moe_gate_up" in line)
    assert "58" in row
    assert "234,881,024" in row
    assert "671,026,419,200" in out


def test_show_as_json_has_every_operator_and_totals(aicb_command: Any) -> None:
    code, out, _ = aicb_command("show", "qwen3-8b", "--tp", "2", "--tokens", "16", "--kv", "100", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["parameters"] == 8_190_735_360
    assert shown["kv_bytes_per_token"] == 2 * shown["kv_bytes_per_token_per_rank"] == 147_456
    by_name = {row["name"]: row for row in shown["operators"]}
    assert by_name["qkv"]["shape"] == "m 16 n 3072 k 4096 bf16"
    assert by_name["attention_all_reduce"]["communicated_bytes"] == 16 * 4096 * 2
    for key in ("flops", "moved_bytes", "communicated_bytes", "weight_elements", "weight_bytes"):
        assert shown["totals"][key] == sum(row["count"] * row[key] for row in shown["operators"])


def test_show_of_a_prefill_counts_past_tokens_in_kv(aicb_command: Any) -> None:
    _, out, _ = aicb_command("show", "qwen3-8b", "--phase", "prefill", "--tokens", "100", "--kv", "300", "--json")
    by_name = {row["name"]: row for row in json.loads(out)["operators"]}
    assert by_name["prefill_attention"]["shape"] == "q 100 kv 300 heads 32/8 d 128/128"


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "mixtral-8x7b", "kimi-k2"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_show_prints_every_kind_of_layer(name: str, phase: str, aicb_command: Any) -> None:
    code, out, _ = aicb_command("show", name, "--phase", phase, "--tokens", "8", "--kv", "900")
    assert code == 0
    assert "lm_head" in out


def iteration(aicb_command: Any, *options: str) -> dict[str, float]:
    """Price of a decode of DeepSeek-V3 on 64 GPUs of an EP group, 128 requests each."""
    arguments = (
        "show",
        "deepseek-v3",
        "--dp",
        "64",
        "--ep",
        "64",
        "--weights",
        "fp8",
        "--tokens",
        "128",
        "--kv",
        "4096",
    )
    code, out, err = aicb_command(*arguments, "--gpu", "h200", "--json", *options)
    assert code == 0, err
    priced: dict[str, float] = json.loads(out)["iteration"]
    return priced


def test_show_prices_the_iteration_on_request(aicb_command: Any) -> None:
    plain = iteration(aicb_command)
    parts = ("host_us", "attention_us", "dense_us", "experts_us", "head_us", "norm_and_small_us")
    assert sum(plain[part] for part in parts) == pytest.approx(plain["compute_us"], abs=0.01)
    roofline = iteration(aicb_command, "--estimator", "roofline")
    of_kernels = 1.0 - roofline["host_us"] / roofline["compute_us"]
    assert roofline["estimated_share"] == pytest.approx(of_kernels, abs=0.02)
    assert plain["estimated_share"] < 0.1


VLLM = ("--experts-kernel", "triton", "--mla-kernel", "fa3", "--quant-kernel", "vllm", "--dense-kernel", "flashinfer")


def test_show_has_the_time_of_each_kernel_that_the_engine_runs(aicb_command: Any) -> None:
    """In vLLM a decode of one request has o in 33.6 us + 1.8 of quantisation, and takes no quantisation before it."""
    arguments = ("show", "deepseek-v3", "--weights", "fp8", "--tokens", "1", "--kv", "600", "--gpu", "h200", *VLLM)
    code, out, _ = aicb_command(*arguments, "--json")
    rows = {row["name"]: row for row in json.loads(out)["operators"]}
    assert code == 0
    assert rows["o"]["time_us"] == pytest.approx(33.6 + 1.8, rel=0.05)
    assert rows["o"]["time_from"] == "measured swapped fp8 gemm (n, k)"
    assert "FlashAttention-3" in rows["mla_decode"]["time_from"]
    assert {"o_quant", "moe_quant"} & rows.keys() == {"moe_quant"}
    assert not any(row["is_estimate"] for row in rows.values())
    _, table, _ = aicb_command(*arguments)
    total = sum(row["count"] * row["time_us"] for row in rows.values())
    assert f"{total:,.1f}" in table
    plain = ("show", "deepseek-v3", "--weights", "fp8", "--tokens", "1", "--json")
    assert "time_us" not in json.loads(aicb_command(*plain)[1])["operators"][0]


def test_show_prices_expert_loads_overlap_and_drafts(aicb_command: Any) -> None:
    """8192 tokens of a group: the published power law takes 58 layers some 0.33 ms longer each."""
    plain, skewed = iteration(aicb_command), iteration(aicb_command, "--expert-load", "power_law:1.2")
    assert skewed["experts_us"] > plain["experts_us"] + 58 * 250
    assert iteration(aicb_command, "--overlap-shared-expert")["compute_us"] < plain["compute_us"]
    drafted = iteration(aicb_command, "--drafts", "1", "--acceptance", "0.5")
    assert drafted["tokens_per_request"] == 1.5
    assert drafted["step_us"] > drafted["compute_us"] > plain["compute_us"]


def test_show_lists_the_rows_of_the_slowest_rank_under_a_load(aicb_command: Any) -> None:
    """8192 tokens · 8 experts / 64 ranks: 1024 rows if balanced, more on the slowest rank of a power law."""
    arguments = ("show", "deepseek-v3", "--dp", "64", "--ep", "64", "--tokens", "128", "--kv", "4096", "--json")
    shapes = []
    for load in ("balanced", "power_law:1.2"):
        _, out, _ = aicb_command(*arguments, "--expert-load", load)
        shapes += [row["shape"] for row in json.loads(out)["operators"] if row["name"] == "moe_gate_up"]
    rows = [float(shape.split()[1]) for shape in shapes]
    assert rows[0] == 1024
    assert rows[1] > 3 * 1024


def test_memory_prints_the_plan(aicb_command: Any) -> None:
    code, out, _ = aicb_command("memory", "qwen3-8b", "--gpu", "h200", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["weights_bytes"] == 2 * 8_190_735_360
    assert plan["kv_tokens"] == 16 * plan["num_kv_blocks"]


def test_weights_of_another_format_than_the_checkpoints_that_do_not_fit_are_told(aicb_command: Any) -> None:
    told_of = {"deepseek-v3": ", published in fp8) per GPU", "llama-3.1-405b": " GB) per GPU"}
    for model, told in told_of.items():
        code, _, error = aicb_command("memory", model, "--tp", "2")
        assert code == 2
        assert told in error
    assert "published" not in aicb_command("memory", "deepseek-v3", "--tp", "7")[2]
    assert aicb_command("memory", "deepseek-v3", "--tp", "8", "--weights", "fp8")[0] == 0


def test_memory_is_shown_in_units_that_people_read(aicb_command: Any) -> None:
    """8,190,735,360 weights of two bytes; a token has keys and values of 36 layers, 8 heads and 128 channels."""
    code, table, _ = aicb_command("memory", "qwen3-8b", "--gpu", "h200")
    _, out, _ = aicb_command("memory", "qwen3-8b", "--gpu", "h200", "--json")
    shown = dict(re.findall(r"│ (\S.*?) +│ +(\S.*?) │", table))
    assert code == 0
    assert (shown["weights"], shown["KV of a token"]) == ("15.26 GiB", "144 KiB")
    assert shown["state of a request"] == "0 B"
    assert shown["KV blocks"] == f"{json.loads(out)['num_kv_blocks']:,} of 16 tokens"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("show", "qwen3-9b"), "aicb: model: found 'qwen3-9b', expected the path of a config.json or a built-in name"),
        (("show", "qwen3-8b", "--tp", "5"), "aicb: tp: found 5, expected a divisor of the 32 attention heads"),
        (("show", "qwen3-8b", "--tokens", "0"), "aicb: --tokens: found 0, expected 1 to 10000000"),
        (
            ("show", "qwen3-8b", "--tokens", "1000000000000"),
            "aicb: --tokens: found 1000000000000, expected 1 to 10000000",
        ),
        (("show", "qwen3-8b", "--kv", "1000000000000"), "aicb: --kv: found 1000000000000, expected at most 100000000"),
        (("show",), "aicb: Missing argument 'MODEL'."),
        (("show", "qwen3-8b", "--tp", "two"), "aicb: Invalid value for '--tp'"),
        (("show", "qwen3-8b", "--weights", "int4"), "aicb: Invalid value for '--weights'"),
        (("show", "qwen3-8b", "--fast"), "aicb: No such option: --fast"),
        (("predict", "--gpu", "h200"), "aicb: Missing option '--table'."),
        (("guess",), "aicb: No such command 'guess'."),
        (("show", "qwen3-8b", "--kv", "1"), "aicb: --kv: found 1, expected at least 2 for a decode"),
        (("show", "qwen3-8b", "--phase", "prefill", "--tokens", "9", "--kv", "8"), "aicb: --kv: found 8, expected at"),
        (
            ("memory", "qwen3-8b", "--gpu", "v100"),
            "aicb: gpu: found 'v100', expected one of a100, b200, gb200, h100, h20, h",
        ),
        (("show", "qwen3-8b", "--drafts", "1"), "aicb: --gpu: found none, expected a GPU for --estimator, --drafts"),
        (
            ("show", "qwen3-8b", "--mla-kernel", "x"),
            "aicb: mla_kernel: found 'x', expected one of flash_mla, fa3, fa3_chunks",
        ),
        (("show", "qwen3-8b", "--rope-kernel", "x"), "aicb: rope_kernel: found 'x', expected one of in_place, comp"),
        (("show", "qwen3-8b", "--dense-kernel", "x"), "aicb: dense_kernel: found 'x', expected one of deep_gemm, fl"),
        (("show", "qwen3-8b", "--gpu", "h200", "--drafts", "-1"), "aicb: Drafting.drafts: found -1, expected 1 to"),
        (
            ("show", "qwen3-30b-a3b", "--expert-load", "zip"),
            "aicb: expert_load: found 'zip', expected balanced, b",
        ),
        (
            ("memory", "qwen3-8b", "--gpu", "a100", "--weights", "fp8"),
            "aicb: --weights: found fp8, expected bf16 (a100 has no fp8)",
        ),
        (
            ("show", "qwen3-8b", "--gpu", "a100", "--weights", "fp8"),
            "aicb: --weights: found fp8, expected bf16 (a100 has no fp8)",
        ),
        (
            ("memory", "qwen3-8b", "--weights", "mxfp4"),
            "aicb: --weights: found mxfp4, expected bf16 or fp8 (qwen3-8b is not",
        ),
        (("memory", "deepseek-v3"), "aicb: model deepseek-v3: found 1344"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], line: str, aicb_command: Any) -> None:
    code, out, err = aicb_command(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_wrong_config_file_is_named_in_the_line(tmp_path: Path, aicb_command: Any) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}', encoding="utf-8")
    code, _, err = aicb_command("show", str(tmp_path))
    assert code == 2
    assert err == (
        f"aicb: {tmp_path / 'config.json'}: num_hidden_layers: found nothing, expected an integer, 1 to 10000\n"
    )


def test_the_version_is_that_of_the_distribution(aicb_command: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert aicb_command("--version") == (0, f"aicb {project['version']}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("show", "--help")])
def test_help_is_printed_on_request_and_without_arguments(arguments: tuple[str, ...], aicb_command: Any) -> None:
    code, out, err = aicb_command(*arguments)
    assert (code, err) == (0, "")
    assert "Usage: aicb" in out


def test_the_most_tokens_are_shown(aicb_command: Any) -> None:
    """Two FLOPs per weight of the query, key and value projection: 2 · 10⁷ · 4096 · 6144."""
    _, out, _ = aicb_command("show", "qwen3-8b", "--phase", "prefill", "--tokens", "10000000", "--json")
    by_name = {row["name"]: row for row in json.loads(out)["operators"]}
    assert by_name["qkv"]["flops"] == 2 * 10**7 * 4096 * 6144
    assert by_name["prefill_attention"]["flops"] > 0


def test_the_command_line_starts_without_heavy_libraries() -> None:
    code = "import sys, aicb.__main__; print([m for m in ('pandas', 'scipy', 'sklearn', 'torch') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
