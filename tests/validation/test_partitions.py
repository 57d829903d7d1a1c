"""The simulator against engines on H100s and H200s, measured after the model was frozen (docs/accuracy/engines.md)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from aicb.estimators.selection import select_estimator
from aicb.iteration.host import MEDIAN_HOST, load_host
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.lists import expert_operators
from tests.validation.engine_figures import FOLDER, read_measurement
from tests.validation.partitions_vs_engine import (
    AGAIN,
    FOUR_RANKS,
    H200_RUNS,
    HOST,
    HYBRID,
    LATER,
    LATER_RUNS,
    LONG_RUN,
    ON_H200,
    OWN,
    PROMPT_LOADS,
    RUNS,
    SERVERS,
    SHARED_FP8,
    TENSOR_PARALLEL_MLA,
    THEN,
    THREE_MORE,
    TWO_LARGE,
    WITH_FLASHINFER,
    compare_decodes,
    compare_prompts,
    compare_serving,
    engine_of,
    launch_us,
    measurement,
)

LIMITS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Wanted relative errors of means and of P90."""
EXPERTS_APART = "dp2-ep2-qwen3-30b-a3b"
MISSES = {
    **{
        (server, run, latency): ("mean", "P90")
        for server in ("tp2-qwen3-30b-a3b", EXPERTS_APART)
        for run in RUNS
        for latency in LIMITS
    },
    ("tp2-qwen3-8b", "serve_prefix", "ttft"): ("P90",),
    **{("tp2-qwen3-8b", "serve_burst", latency): ("P90",) for latency in ("tpot", "e2e")},
}
"""Beyond their limits on the default host: those hosts were slower, one run stood still for 1.6 s, bursts are
unexplained; 6 and 9 % slow."""
PROMPT_MISSES = {
    ("tp2-qwen3-30b-a3b", 1024),
    ("tp2-qwen3-30b-a3b", 3000),
    ("tp2-qwen3-8b", 256),
    ("tp2-qwen3-8b", 1024),
    *((EXPERTS_APART, tokens) for tokens in (256, 1024, 3000, 6000, 12000)),
}
"""Bound by the host, likewise; with experts apart that host took 130 ms for an eager iteration of any length."""
DECODE_MISSES = {(EXPERTS_APART, "decode of 64 x 512")}
"""8.1 % fast."""
HYBRID_MISSES = {f"decode of {batch}" for batch in ("1 x 512", "1 x 4096", "256 x 512")}


decodes, prompts = cache(compare_decodes), cache(compare_prompts)


MINIMAX, SHARED_QWEN = SHARED_FP8
SHARED_FP8_DECODES = {MINIMAX: "1 8 32 64 128 256", SHARED_QWEN: "32 64 128 256"}
"""Requests of 512 tokens that no host holds up."""
SHARED_FP8_PROMPTS = {MINIMAX: (4096, 6000, 8192, 12000, 16384), SHARED_QWEN: (8192, 12000, 16384)}
SHARED_FP8_MISSES = {(SHARED_QWEN, "prefill of 8192")}
"""9.2 % fast."""


@pytest.mark.parametrize("server", SHARED_FP8)
def test_ranks_that_share_fp8_experts_run_as_measured_where_kernels_bind(server: str) -> None:
    """Decodes within 5 %, prompts 2 to 9 % fast; by DeepGEMM's times, blind, up to 13 % and 20 to 32 % fast."""
    error = {row.name: row.error for row in (*decodes(server), *prompts(server))}
    bounds = {f"decode of {batch} x 512": (-0.05, 0.05) for batch in SHARED_FP8_DECODES[server].split()}
    bounds |= {f"prefill of {tokens}": (-0.09, 0.03) for tokens in SHARED_FP8_PROMPTS[server]}
    for name, (least, most) in bounds.items():
        assert (least <= error[name] <= most) != ((server, name) in SHARED_FP8_MISSES), f"{name}: {error[name]:+.1%}"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="8.6 %; 5.2 with first tokens that wait for a launch")
def test_the_median_host_holds_up_prompts_of_ranks_that_share_fp8_experts_as_theirs_did() -> None:
    """26 % off on the default in the mean of twelve prompts; nothing of this machine is in that file."""
    assert np.mean([abs(row.error) for row in compare_prompts(SHARED_QWEN, MEDIAN_HOST)]) <= 0.06


@pytest.mark.parametrize("server", SERVERS)
def test_batches_decode_as_measured(server: str) -> None:
    """Experts apart: 2.2 to 8.1 % fast (7.3 to 15.5 % before experts were priced as vLLM runs them there)."""
    rows = decodes(server)
    assert len(rows) == 7
    for row in rows:
        is_miss = (server, row.name) in DECODE_MISSES
        assert (abs(row.error) <= 0.06) != is_miss, f"{row.name}: {row.error:+.1%}"
    mean = np.mean([abs(row.error) for row in rows])
    assert mean <= 0.04


def test_a_hybrid_model_on_two_gpus_decodes_as_measured_unless_the_host_holds_it_up() -> None:
    """One request of 16 layers takes the host longer than the device; 256 are 11 % slow, all others within 5 %."""
    rows = decodes(HYBRID)
    assert len(rows) == 9
    for row in rows:
        assert (abs(row.error) <= 0.07) != (row.name in HYBRID_MISSES), f"{row.name}: {row.error:+.1%}"


@pytest.mark.parametrize("server", SERVERS)
def test_prompts_take_as_long_as_measured_unless_the_host_holds_them_up(server: str) -> None:
    rows = prompts(server)
    assert len(rows) == 6
    for row in rows:
        is_met = abs(row.error) <= 0.06
        assert is_met != ((server, int(row.name.split()[-1])) in PROMPT_MISSES), f"{row.name}: {row.error:+.1%}"


@pytest.mark.parametrize(
    "server",
    [
        *(server for server in SERVERS if server != EXPERTS_APART),
        pytest.param(
            EXPERTS_APART, marks=pytest.mark.xfail(strict=True, reason="15.0 %: prompts that the host holds up")
        ),
    ],
)
def test_prompts_and_decodes_are_as_measured_in_the_mean(server: str) -> None:
    assert np.mean([abs(row.error) for row in (*prompts(server), *decodes(server))]) <= 0.06


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("server", SERVERS)
def test_servers_have_the_measured_latencies(server: str, run: str) -> None:
    rows = compare_serving(server, run)
    assert len(rows) == 6
    for row in rows:
        _, latency, figure = row.name.split()
        is_met = abs(row.error) <= LIMITS[latency]
        assert is_met != (figure in MISSES.get((server, run, latency), ())), f"{row.name}: {row.error:+.1%}"


def test_on_a_measured_host_ranks_that_share_experts_serve_shared_prefixes_within_limits() -> None:
    """But for P90 of TTFT, 18 % fast."""
    for row in compare_serving(EXPERTS_APART, "serve_prefix", HOST):
        _, latency, figure = row.name.split()
        is_miss = (latency, figure) == ("ttft", "P90")
        assert (abs(row.error) <= LIMITS[latency]) != is_miss, f"{row.name}: {row.error:+.1%}"


@pytest.mark.parametrize("requests", [2, 16, 64, 160])
def test_kernels_of_shared_experts_take_as_long_as_in_the_engine(requests: int) -> None:
    """Of one rank of two, measured apart: products within 3 %; of 2 tokens, on 8 experts, within 13 %."""
    (row,) = (row for row in read_measurement("vllm-h100-host-parts")["decode_kernels"] if row["requests"] == requests)
    measured = {"moe_gate_up": row["kernels"]["moe_up"], "moe_down": row["kernels"]["moe_down"]}
    estimator = select_estimator("auto", get_gpu("h100"), Precision())
    listed = expert_operators(
        load_model("qwen3-30b-a3b"),
        Partition(dp=2, ep=2),
        Precision(),
        tokens=requests // 2,
        group_tokens=requests,
        is_decode=True,
        dispatch=ExpertDispatch("all_gather", "all_gather"),
    )
    priced = {each.name: estimator.price(each.kernel).time_us for each in listed if each.name in measured}
    assert priced == pytest.approx(measured, rel=0.03 if requests > 2 else 0.13)


def test_launches_of_a_dense_model_are_those_of_the_same_kind_of_machine() -> None:
    """Found with Qwen3-8B and with Qwen3-30B-A3B, within what processes there differ; counted alike, 45.5 and 73.6."""
    measured, same_kind = load_host(str(FOLDER / "xeon-vm-32-h100.yaml")), load_host(HOST)
    assert measured.eager_launch_us == pytest.approx(same_kind.eager_launch_us, rel=same_kind.speed_spread)


PHASES = ("host1", "prefill", "decode", "serve_2.0", "serve_6.0", "host2")


def test_two_models_in_turns_on_one_machine_have_the_same_launches() -> None:
    """Means over minutes within 6 %; single phases differ by up to 28 %, as processes change their speed."""
    per_model = [[launch_us(server, phase) for phase in PHASES] for server in LATER]
    experts, hybrid = (float(np.mean(times)) for times in per_model)
    assert hybrid == pytest.approx(experts, rel=0.06)
    assert max(abs(one / other - 1.0) for one, other in zip(*per_model, strict=True)) > 0.25


LATER_MEANS = {
    "tp2-qwen3-30b-a3b-l32": {None: 0.25, HOST: 0.08, OWN: 0.16, THEN: 0.08},
    "tp2-qwen3-next-l16-later": {None: 0.49, HOST: 0.28, OWN: 0.18, THEN: 0.03},
}
"""Mean errors of prompts: the default host is another machine's, the engine's own speed changed within two minutes."""


@pytest.mark.parametrize("host", [None, HOST, OWN, THEN])
@pytest.mark.parametrize("server", LATER)
def test_prompts_of_later_engines_are_off_by_as_much_as_their_hosts(server: str, host: str | None) -> None:
    mean = np.mean([abs(row.error) for row in compare_prompts(server, host)])
    assert mean == pytest.approx(LATER_MEANS[server][host], abs=0.01)


@pytest.mark.parametrize("server", LATER)
def test_later_engines_decode_as_measured_from_32_requests_on(server: str) -> None:
    """Up to 4 % slow, hybrid up to 5.1 % slow; fewer are up to 39 % off."""
    rows = [row for row in decodes(server) if int(row.name.split()[2]) >= 32]
    assert len(rows) == 4
    for row in rows:
        assert abs(row.error) <= (0.09 if "next" in server else 0.045), f"{row.name}: {row.error:+.1%}"


AGAIN_RUNS = (*RUNS, LATER_RUNS[-1])
AGAIN_MISSES = {
    ("tp2-qwen3-30b-a3b-later", "serve_6.0"): ("tpot P90", "e2e P90"),
    ("dp2-ep2-qwen3-30b-a3b-later", "serve_burst"): ("tpot mean", "tpot P90", "e2e P90"),
}
"""10 and 7 % fast; 7, 8 and 9 % fast."""


SLOWER_LATER = pytest.mark.xfail(strict=True, raises=AssertionError, reason="8.0 %: prompts launched slower than loads")


@pytest.mark.parametrize("server", [AGAIN[0], pytest.param(AGAIN[1], marks=SLOWER_LATER)])
def test_with_its_own_host_an_engine_is_simulated_within_limits(server: str) -> None:
    """Never fitted to: blind 5.7 and 5.4 % in the mean of 12 prompts and 8 decodes, now 4.8 and 7.9 %, where prompts
    were launched slower than the loads that the host file is made of."""
    rows = [*compare_prompts(server, OWN), *compare_decodes(server, OWN)]
    assert np.mean([abs(row.error) for row in rows]) <= 0.06


@pytest.mark.parametrize("run", AGAIN_RUNS)
@pytest.mark.parametrize("server", AGAIN)
def test_with_its_own_host_an_engine_serves_within_limits(server: str, run: str) -> None:
    """All but those named."""
    for row in compare_serving(server, run, OWN):
        *_, latency, figure = row.name.split()
        is_miss = f"{latency} {figure}" in AGAIN_MISSES.get((server, run), ())
        assert (abs(row.error) <= LIMITS[latency]) != is_miss, f"{row.name}: {row.error:+.1%}"


H200_LIMITS = {"ttft": 0.05, "tpot": 0.15, "e2e": 0.11}
"""Of means, at the speed at which the host launched in the same phase; TPOT and E2E: the hybrid model, whose decodes
are slow; 0.10 and 0.06 without it."""


H200_MISSES = {("h200-dp2-ep2-qwen3-30b-a3b", "serve_12.0"): {"ttft"}}
"""6 % late."""


@pytest.mark.parametrize("server", ON_H200)
def test_whole_models_on_two_h200s_run_as_measured_where_the_speed_of_their_host_is_known(server: str) -> None:
    """Prompts and decodes 2.1, 4.6 and 4.5 % off in the mean."""
    prompted, decoded = compare_prompts(server, THEN), compare_decodes(server, THEN)
    assert (len(prompted), len(decoded)) == (12, 9)
    assert np.mean([abs(row.error) for row in (*prompted, *decoded)]) <= 0.05
    assert np.mean([abs(row.error) for row in decoded]) <= 0.05


@pytest.mark.parametrize("run", H200_RUNS)
@pytest.mark.parametrize("server", ON_H200)
def test_whole_models_on_two_h200s_serve_as_measured_where_the_speed_of_their_host_is_known(
    server: str, run: str
) -> None:
    """First tokens within 4 % in the mean, at 2 to 12 requests/s. Blind, when tokens of workers waited for the next
    launch, they came 18 to 31 % late at 12."""
    is_hybrid = "next" in server
    for row in compare_serving(server, run, THEN):
        _, latency, figure = row.name.split()
        if figure == "P90":
            assert abs(row.error) <= 0.25, f"{row.name}: {row.error:+.1%}"
        else:
            limit = H200_LIMITS[latency] if is_hybrid or latency == "ttft" else {"tpot": 0.10, "e2e": 0.06}[latency]
            is_miss = latency in H200_MISSES.get((server, run), ())
            assert (abs(row.error) <= limit) != is_miss, f"{row.name}: {row.error:+.1%}"


WHOLE_MISSES = {
    ("h200-tp2-glm-4.5-air", OWN): {"tpot", "e2e"},
    ("h200-tp2-mixtral-8x7b", OWN): {"ttft"},
    ("h200-tp2-mixtral-8x7b", THEN): {"ttft"},
}
"""7.8 and 6.1 % fast; a kernel compiled at its first use, for 1.1 s, while three of 40 requests waited."""
WHOLE_RUNS = ("serve_prefix", LONG_RUN, *H200_RUNS)


SHORT_PROMPTS = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="6.01 %: prompts launched faster than loads"
)


@pytest.mark.parametrize(
    "server", [pytest.param(each, marks=SHORT_PROMPTS) if "8b" in each else each for each in WITH_FLASHINFER]
)
def test_four_more_whole_models_run_as_measured_with_a_host_file_of_their_engine(server: str) -> None:
    """Prompts and decodes 6.0, 3.0, 3.9 and 2.2 % off in the mean (blind 5.5, 3.5, 4.4 and 2.5)."""
    rows = [*compare_prompts(server, OWN), *compare_decodes(server, OWN)]
    assert len(rows) == 24
    assert np.mean([abs(row.error) for row in rows]) <= 0.06


WORST_DECODES = {("h200-tp2-mixtral-8x7b", "decode of 4 x 16000")}
"""8.7 % slow (blind 7.7)."""


@pytest.mark.parametrize("server", WITH_FLASHINFER)
def test_their_decodes_are_as_measured_up_to_contexts_of_16000_tokens(server: str) -> None:
    """1.0 to 3.2 % off in the mean (blind 1.1 to 3.0), at worst 6.7 besides."""
    rows = compare_decodes(server)
    assert len(rows) == 12
    assert np.mean([abs(row.error) for row in rows]) <= 0.035
    for row in rows:
        assert (abs(row.error) <= 0.08) != ((server, row.name) in WORST_DECODES), f"{row.name}: {row.error:.1%}"


@pytest.mark.parametrize("host", [OWN, THEN])
@pytest.mark.parametrize("server", WITH_FLASHINFER)
def test_four_more_whole_models_serve_as_measured(server: str, host: str) -> None:
    """Means over all runs of a server: blind, with the host file, 3.4 to 7.0 % for TPOT and 2.4 to 5.5 for E2E."""
    runs = [run for run in WHOLE_RUNS if run in measurement(server)]
    means = [row for run in runs for row in compare_serving(server, run, host) if row.name.endswith("mean")]
    assert len(means) == 3 * len(runs) >= 9
    for latency, limit in LIMITS.items():
        error = np.mean([abs(row.error) for row in means if f" {latency} " in row.name])
        assert (error <= limit) != (latency in WHOLE_MISSES.get((server, host), ())), f"{latency}: {error:.1%}"


HYBRID_AGAIN, FP8_QWEN, SHARED_DEEPSEEK = THREE_MORE
MORE_MISSES = {
    (SHARED_DEEPSEEK, OWN): {"tpot", "e2e"},
    (FP8_QWEN, OWN): {"ttft"},
    (FP8_QWEN, THEN): {"tpot", "e2e"},
}
"""Launches 10 to 40 % slower than in the loads of the host file; prompts that reach fewer experts than are priced."""
MORE_DECODES = {HYBRID_AGAIN: (0.03, 0.08), FP8_QWEN: (0.02, 0.03), SHARED_DEEPSEEK: (0.04, 0.055)}
"""Errors in the mean and at worst."""
MORE_WORST_DECODES = {
    *((FP8_QWEN, f"decode of 32 x {context}") for context in (512, 4096)),
    *((SHARED_DEEPSEEK, f"decode of {batch} x 512") for batch in (128, 256)),
}
"""3.5 and 3.2 % slow; 6.3 and 5.5 % fast."""
MORE_MEAN_MISSES = {FP8_QWEN, SHARED_DEEPSEEK}
"""2.04 and 4.3 %."""


@pytest.mark.parametrize("server", THREE_MORE)
def test_three_more_engines_decode_as_measured(server: str) -> None:
    """2.5 and 2.0 % off in the mean (blind 2.7 and 1.3). DeepSeek's from 32 requests on, which no host holds up, 4.3
    (blind 8.9, as FlashInfer's experts were carried over by bandwidth alone)."""
    rows = compare_decodes(server)
    if server == SHARED_DEEPSEEK:
        rows = [row for row in rows if int(row.name.split()[2]) >= 32]
    mean, worst = MORE_DECODES[server]
    assert (np.mean([abs(row.error) for row in rows]) <= mean) != (server in MORE_MEAN_MISSES)
    for row in rows:
        assert (abs(row.error) <= worst) != ((server, row.name) in MORE_WORST_DECODES), f"{row.name}: {row.error:.1%}"


UNCOUNTED_CLOCKS = pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="6.04 %: nobody counted FlashInfer's clocks"
)


@pytest.mark.parametrize("server", [HYBRID_AGAIN, FP8_QWEN, pytest.param(SHARED_DEEPSEEK, marks=UNCOUNTED_CLOCKS)])
def test_three_more_engines_run_as_measured_with_a_host_file_of_theirs(server: str) -> None:
    """6.0 % of the hybrid model; 6.0 % of DeepSeek (blind 9.2); 3.8 % of the model of 94 layers, whose prompts reach as
    many experts as its random weights let them."""
    rows = [*compare_prompts(server, OWN, PROMPT_LOADS.get(server)), *compare_decodes(server, OWN)]
    assert np.mean([abs(row.error) for row in rows]) <= 0.06


def test_tensor_parallel_mla_runs_as_measured() -> None:
    """DeepSeek-V3 of 8 layers, TP 2, never fitted to. Prompts 5.2 % off with the host file of the engine (blind 4.9),
    decodes of 8 and more requests 2.7 (2.5); TTFT, TPOT and E2E 3.6, 4.7 and 4.4 % (3.6, 4.8 and 4.3)."""
    prompts, decodes = compare_prompts(TENSOR_PARALLEL_MLA, OWN), compare_decodes(TENSOR_PARALLEL_MLA, OWN)
    assert np.mean([abs(row.error) for row in prompts]) <= 0.055
    assert max(abs(row.error) for row in prompts) <= 0.14
    many = [row for row in decodes if int(row.name.split()[2]) >= 8]
    assert len(many) == 10
    assert np.mean([abs(row.error) for row in many]) <= 0.03
    assert max(abs(row.error) for row in many) <= 0.055
    served = [row for run in H200_RUNS for row in compare_serving(TENSOR_PARALLEL_MLA, run, OWN)]
    for latency in LIMITS:
        errors = [abs(row.error) for row in served if row.name.endswith(f"{latency} mean")]
        assert np.mean(errors) <= 0.055, latency


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="6.4 %: few requests, held up by a host of two speeds")
def test_tensor_parallel_mla_runs_as_measured_with_few_requests_too() -> None:
    """The same decode of one request took 1.9 and, ten seconds later, 2.8 ms."""
    rows = [*compare_prompts(TENSOR_PARALLEL_MLA, OWN), *compare_decodes(TENSOR_PARALLEL_MLA, OWN)]
    assert np.mean([abs(row.error) for row in rows]) <= 0.06


def test_four_ranks_run_as_measured() -> None:
    """Qwen3-30B-A3B, TP 4, blind but for FlashInfer's all-reduce, with the host file of the engine: 5.9 % off, as much
    as blind, since a host was slower meanwhile."""
    prompts, decodes = compare_prompts(FOUR_RANKS, OWN), compare_decodes(FOUR_RANKS, OWN)
    assert np.mean([abs(row.error) for row in (*prompts, *decodes)]) <= 0.06


def test_four_ranks_serve_as_measured() -> None:
    """TTFT, TPOT and E2E 12, 3.0 and 3.4 % off (blind 13, 5.7 and 4.2). Arrivals moved by up to a millisecond move TPOT
    at 12 requests/s from -8 to -5 %, and from -7 to -1 with decodes that are 0.3 to 0.7 % faster."""
    served = [row for run in H200_RUNS for row in compare_serving(FOUR_RANKS, run, OWN)]
    for latency, limit in LIMITS.items():
        errors = [abs(row.error) for row in served if row.name.endswith(f"{latency} mean")]
        assert np.mean(errors) <= limit, f"{latency}: {np.mean(errors):.1%}"


def decodes_of_four_ranks() -> list[float]:
    """Errors of all but two that were taken while the host prepared 1.8 times as long as in the rows before, by its
    stamps."""
    slower = ("decode of 1 x 4096", "decode of 8 x 4096")
    errors = [abs(row.error) for row in compare_decodes(FOUR_RANKS, OWN) if row.name not in slower]
    assert len(errors) == 8
    return errors


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="one request 5.8 % slow")
def test_no_decode_of_four_ranks_is_far_off_unless_the_host_was_slower_meanwhile() -> None:
    assert max(decodes_of_four_ranks()) <= 0.055


def test_all_but_one_decode_of_four_ranks_are_near_unless_the_host_was_slower_meanwhile() -> None:
    assert sorted(decodes_of_four_ranks())[-2] <= 0.03


def test_decodes_of_four_ranks_are_as_measured_in_the_mean_unless_the_host_was_slower_meanwhile() -> None:
    assert np.mean(decodes_of_four_ranks()) <= 0.025


LLAMA_70B, GPT_OSS = TWO_LARGE


@pytest.mark.parametrize("host", [None, MEDIAN_HOST, OWN])
def test_a_dense_model_of_70_billion_parameters_runs_as_measured_whatever_its_host(host: str | None) -> None:
    """Blind: prompts 3.3 %, decodes 2.7 with its own host, 4.8 and 2.7 on the default; TTFT, TPOT and E2E within 3."""
    rows = [*compare_prompts(LLAMA_70B, host), *compare_decodes(LLAMA_70B, host)]
    assert len(rows) == 16
    errors = [abs(row.error) for row in rows]
    assert np.mean(errors) <= 0.036
    assert max(errors) <= 0.085
    served = compare_serving(LLAMA_70B, "serve_0.5", host)
    assert len(served) == 6
    assert max(abs(row.error) for row in served) <= 0.03


def test_mxfp4_experts_of_an_h100_stand_for_those_of_an_h200() -> None:
    """Decodes 1.2 % off in the mean (2.3 with attention by heads of 128 and a schedule), and 18 when their times
    followed the bandwidth; prompts that graphs replay and one whose kernels bind, 2 to 8 % (then 1 to 24)."""
    decoded = [abs(row.error) for row in compare_decodes(GPT_OSS)]
    assert len(decoded) == 10
    assert np.mean(decoded) <= 0.015
    assert max(decoded) <= 0.05
    prompted = {row.name: abs(row.error) for row in compare_prompts(GPT_OSS, OWN)}
    assert all(prompted[f"prefill of {tokens}"] <= 0.08 for tokens in (128, 512, 1024, 8192))


def test_loads_of_gpt_oss_are_not_compared_as_kernels_were_compiled_in_all_of_them() -> None:
    assert engine_of(GPT_OSS).comparable_loads == []
    assert engine_of(LLAMA_70B).comparable_loads == ["serve_0.5"]


@pytest.mark.parametrize("server", PROMPT_LOADS)
def test_prompts_reach_the_experts_that_random_weights_let_them(server: str) -> None:
    """16 and 19 % off in the mean with experts as even as those of decodes, 5.8 and 5.5 as routed."""
    even, routed = (compare_prompts(server, OWN, load) for load in (None, PROMPT_LOADS[server]))
    assert np.mean([abs(row.error) for row in even]) > 0.15
    assert np.mean([abs(row.error) for row in routed]) <= 0.06


@pytest.mark.parametrize("host", [OWN, THEN])
@pytest.mark.parametrize("server", THREE_MORE)
def test_three_more_engines_serve_as_measured(server: str, host: str) -> None:
    """Means over all runs: blind, with the host file, 2.3 to 14 % for TTFT, 2.3 to 13 for TPOT and E2E."""
    means = [
        row
        for run in H200_RUNS
        if run in measurement(server)
        for row in compare_serving(server, run, host)
        if row.name.endswith("mean")
    ]
    assert len(means) >= 6
    for latency, limit in LIMITS.items():
        error = np.mean([abs(row.error) for row in means if f" {latency} " in row.name])
        assert (error <= limit) != (latency in MORE_MISSES.get((server, host), ())), f"{latency}: {error:.1%}"


def test_processors_have_two_speeds_and_ranks_that_share_experts_mostly_the_lower() -> None:
    """A fixed loop takes 650 to 850 us or 1,000 to 1,500, hardly ever anything between, also of bound processes."""
    quick = {}
    for server in AGAIN:
        found = measurement(server)
        loops_us = np.concatenate([loops for _, _, loops in (*found["alone"], *found["alone_bound"])])
        assert np.mean((loops_us >= 850.0) & (loops_us < 1000.0)) < 0.08
        quick[server] = np.mean(loops_us < 850.0)
    assert list(quick.values()) == pytest.approx([0.88, 0.05], abs=0.02)
