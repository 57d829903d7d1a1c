"""The simulator against engines of models that nothing was fitted to, on one H100 (docs/accuracy/engines.md)."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from aicb.data import FOLDER
from aicb.iteration.host import MEDIAN_HOST, HostModel
from aicb.iteration.launches import CALLS, FIRST, SHARED
from tests.validation.partitions_vs_engine import (
    MODELS,
    OWN,
    compare_decodes,
    compare_prompts,
    compare_serving,
    measurement,
)
from tests.validation.unknown_hosts import median_of, recorded_hosts
from vidur_pd.metrics.sources import OTHER_HOST_ERROR, OWN_HOST_ERROR

GPT_OSS = ("tp1-gpt-oss-20b", "tp1-gpt-oss-20b-later")
"""Its mxfp4 products were measured after its engine, apart from it."""
KNOWN_KERNELS = [server for server in MODELS if server not in GPT_OSS]
LIMIT = 0.06
"""Wanted relative error of prompts and decodes."""
LIMITS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Wanted relative errors of means and of P90 of a serving run."""
DECODE_MISSES = {
    ("tp1-qwen3-32b-fp8-l16", "decode of 128 x 512"),
    ("tp1-glm-4.5-air-l4", "decode of 1 x 512"),
    ("tp1-glm-4.5-air-l4", "decode of 1 x 4096"),
    ("tp1-qwen3-235b-a22b-fp8-l5-later", "decode of 1 x 512"),
    ("tp1-qwen3-235b-a22b-fp8-l5-later", "decode of 1 x 4096"),
    ("tp1-qwen3-235b-a22b-fp8-l5-later", "decode of 8 x 4096"),
}
"""8.7 % slow; 11 and 61 % fast; 25, 26 and 12 % fast. One request of so few layers waits for its host."""
LONG_PROMPTS = (4096, 8192, 12000)
"""Which no host holds up, but slow ones those of 4,096."""
PROMPT_MISSES = {
    ("tp1-qwen3-235b-a22b-fp8-l5", 4096),
    ("tp1-qwen3-235b-a22b-fp8-l5-later", 4096),
    ("tp1-glm-4.5-air-l4", 4096),
    ("tp1-mixtral-8x7b-l4", 4096),
}
"""6.4 % slow; 7.5 and 6.4 % fast, as their hosts were slower; 6.8 % slow."""
SERVING = ("tp1-llama-3.1-8b-l16", "tp1-qwen3-32b-fp8-l16", "tp1-mixtral-8x7b-l4", "tp1-glm-4.5-air-l4")
SERVING_MISSES = {
    ("tp1-qwen3-32b-fp8-l16", "tpot"): ("mean", "P90"),
    ("tp1-qwen3-32b-fp8-l16", "e2e"): ("mean", "P90"),
    ("tp1-mixtral-8x7b-l4", "tpot"): ("mean",),
    ("tp1-mixtral-8x7b-l4", "e2e"): ("P90",),
    **{("tp1-glm-4.5-air-l4", latency): ("mean", "P90") for latency in LIMITS},
}
"""7.2 (P90 10.9) and 6.7 (6.1) % slow; 6.1 and 7.5 % slow, of four layers whose clock hardly falls; 9 to 25 % fast, on
a host half as fast as the default, with experts that launch longer."""


@pytest.mark.parametrize("server", KNOWN_KERNELS)
def test_models_decode_as_measured(server: str) -> None:
    rows = compare_decodes(server)
    assert len(rows) == 6
    for row in rows:
        assert (abs(row.error) <= LIMIT) != ((server, row.name) in DECODE_MISSES), f"{row.name}: {row.error:+.1%}"


GPT_OSS_MISSES = {("tp1-gpt-oss-20b", f"decode of 1 x {context}") for context in (512, 4096)}
"""6.1 and 6.2 % slow with the kernels of layers that slide, transferred from an H200; 1.1 and 1.5 % minutes later."""


@pytest.mark.parametrize("server", GPT_OSS)
def test_gpt_oss_runs_as_measured_once_its_products_have_been(server: str) -> None:
    """7 to 25 % fast in decodes and 10 to 40 in long prompts with estimates; 4,096 tokens still wait for the host."""
    rows = [*compare_decodes(server), *(row for row in compare_prompts(server) if int(row.name.split()[-1]) >= 8192)]
    assert len(rows) == 8
    for row in rows:
        assert (abs(row.error) <= LIMIT) != ((server, row.name) in GPT_OSS_MISSES), f"{row.name}: {row.error:+.1%}"


@pytest.mark.parametrize("server", KNOWN_KERNELS)
def test_long_prompts_take_as_long_as_measured(server: str) -> None:
    rows = {int(row.name.split()[-1]): row for row in compare_prompts(server)}
    for tokens in LONG_PROMPTS:
        row = rows[tokens]
        assert (abs(row.error) <= LIMIT) != ((server, tokens) in PROMPT_MISSES), f"{row.name}: {row.error:+.1%}"


def test_prompts_run_on_the_tiles_of_their_own_gpu() -> None:
    """vLLM has tuned tiles of Mixtral's experts for an H200, not for an H100, where these prompts were 15 to 28 % fast
    with times of an H200's; measured there since, apart from the engine."""
    rows = [row for row in compare_prompts("tp1-mixtral-8x7b-l4", OWN) if int(row.name.split()[-1]) <= 2048]
    assert len(rows) == 6
    for row in rows:
        assert abs(row.error) <= LIMIT, f"{row.name}: {row.error:+.1%}"


def test_all_prompts_but_one_of_a_dense_fp8_model_take_as_long_as_measured() -> None:
    """Its session had the speed of the default host. The one is 6.4 % slow."""
    for host in (None, OWN):
        rows = compare_prompts("tp1-qwen3-32b-fp8-l16", host)
        assert [row.name for row in rows if abs(row.error) > LIMIT] == ["prefill of 512"]


@pytest.mark.parametrize("server", SERVING)
def test_models_serve_as_measured(server: str) -> None:
    rows = compare_serving(server, "serve_6.0")
    assert len(rows) == 6
    for row in rows:
        _, latency, figure = row.name.split()
        is_met = abs(row.error) <= LIMITS[latency]
        assert is_met != (figure in SERVING_MISSES.get((server, latency), ())), f"{row.name}: {row.error:+.1%}"


@pytest.mark.parametrize(
    ("server", "call", "within"),
    [
        ("tp1-mixtral-8x7b-l4", "experts", 0.08),
        ("tp1-qwen3-235b-a22b-fp8-l5", "experts_fp8", 0.05),
        ("tp1-qwen3-235b-a22b-fp8-l5-later", "experts_fp8", 0.01),
        ("tp1-gpt-oss-20b-later", "experts_mxfp4", 0.03),
    ],
)
def test_calls_of_experts_launch_as_long_as_in_other_models(server: str, call: str, within: float) -> None:
    """In calls of attention of the same passes; what the weights of launches were found with had other experts."""
    eager = measurement(server)["calls"]["eager"]
    assert eager["experts_us"] / eager["attention_us"] == pytest.approx(CALLS[call] / CALLS["attention"], rel=within)


def test_calls_of_experts_chosen_by_corrected_scores_launch_as_long_as_counted() -> None:
    """GLM-4.5-Air's 26.8 launches: the call, first calls' share in three layers, three kernels of its shared expert.
    So counted, its host is that of the other models on its machine; with 11.5 for the call it had 105 us a launch."""
    eager = measurement("tp1-glm-4.5-air-l4")["calls"]["eager"]
    found = eager["experts_us"] / eager["attention_us"] * CALLS["attention"]
    assert found == pytest.approx(CALLS["experts_grouped"] * (1.0 + FIRST / 3) + 3 * SHARED, rel=0.04)
    others = ("tp1-llama-3.1-8b-l16", "tp1-gpt-oss-20b", "tp1-gpt-oss-20b-later", "tp1-qwen3-235b-a22b-fp8-l5-later")
    same_machine = [measurement(server)["host"]["eager_launch_us"] for server in others]
    host_us = measurement("tp1-glm-4.5-air-l4")["host"]["eager_launch_us"]
    assert min(same_machine) < host_us < max(same_machine)


def test_hosts_differ_as_stated_errors_say() -> None:
    """Of 17 recordings the default is the fastest. Two machines with 16 cores differed by 1.8 within half an hour."""
    launches_us = np.array([host["eager_launch_us"] for host in recorded_hosts().values()])
    default_us = HostModel().eager_launch_us
    assert len(launches_us) == 17
    assert launches_us.min() == default_us
    for expected_us, error in ((np.median(launches_us), OWN_HOST_ERROR), (default_us, OTHER_HOST_ERROR)):
        assert np.quantile(abs(launches_us / expected_us - 1.0), 0.68) == pytest.approx(error, abs=0.01)
    of_models = [measurement(server)["host"]["eager_launch_us"] for server in MODELS]
    assert max(of_models) / min(of_models) == pytest.approx(1.77, abs=0.01)


def test_the_host_of_virtual_machines_is_the_median_of_what_was_recorded() -> None:
    found = median_of(recorded_hosts().values())
    stated = yaml.safe_load((FOLDER / "hosts" / f"{MEDIAN_HOST}.yaml").read_text("utf-8"))
    stated.pop("source")
    assert {name: found[name] for name in stated} == pytest.approx(stated, rel=0.02)
