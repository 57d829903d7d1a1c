"""Drawn workloads: arrival processes, length distributions, conversations, and the streams behind them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import ROOT, contents, load, synthetic
from vidur_pd.workload import Workload, generator
from vidur_pd.workload.statistics import perfect_cache_hit_share

# Streams ------------------------------------------------------------------------------------------------------


def test_a_stream_depends_on_seed_and_name_and_nothing_else() -> None:
    first = generator(7, "arrivals").random(4).tolist()
    assert generator(7, "arrivals").random(4).tolist() == first
    assert generator(8, "arrivals").random(4).tolist() != first
    assert generator(7, "arrival").random(4).tolist() != first


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed: found -1"):
        generator(-1, "arrivals")


def test_another_process_with_another_hash_seed_draws_the_same_workload() -> None:
    program = """
import hashlib, workload_cases
prefixes = {"system_prompts": 3, "turns": 3}
parts = {"a": workload_cases.synthetic(200, prefixes=prefixes), "b": workload_cases.synthetic(100)}
made = workload_cases.contents(workload_cases.load({"kind": "mix", "parts": parts}, seed=5))
print(hashlib.sha256(repr(made).encode()).hexdigest())
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "vidur_pd")])
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "31337")
    }
    assert len(digests) == 1


def test_changing_the_output_lengths_leaves_arrivals_and_prompts_alone() -> None:
    def drawn(decode: dict[str, float]) -> Workload:
        lengths = {"kind": "lognormal", "prefill": {"median": 500, "p90": 900}, "decode": decode}
        return load(synthetic(lengths=lengths))

    one, other = drawn({"median": 50, "p90": 90}), drawn({"mean": 200, "cv": 1})
    assert one.arrived_ps.tolist() == other.arrived_ps.tolist()
    assert one.prefill_tokens.tolist() == other.prefill_tokens.tolist()
    assert one.decode_tokens.tolist() != other.decode_tokens.tolist()


# Arrivals -----------------------------------------------------------------------------------------------------


def gaps_s(arrivals: dict[str, Any], requests: int, seed: int = 0) -> np.ndarray:
    """Gaps before each request, the first one counted from time zero."""
    times = load(synthetic(requests, arrivals=arrivals), seed=seed).arrived_ps
    return np.diff(times, prepend=0) / 1e12


def test_poisson_gaps_are_not_clipped_over_a_million_draws() -> None:
    """The mean gap is within 1 % of 1/rate (its standard error is 0.1 %), and exp(−3) = 4.98 % of the gaps exceed three
    means, where Vidur's generator cuts them off."""
    gaps = gaps_s({"kind": "poisson", "qps": 4}, 1_000_000)
    assert gaps.mean() == pytest.approx(0.25, rel=0.01)
    assert gaps.std() == pytest.approx(0.25, rel=0.01)
    assert (gaps > 0.75).mean() == pytest.approx(math.exp(-3), rel=0.02)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_the_rate_and_the_variation_asked_for(cv: float) -> None:
    gaps = gaps_s({"kind": "gamma", "qps": 10, "cv": cv}, 400_000)
    assert gaps.mean() == pytest.approx(0.1, rel=0.015)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.015)


def test_constant_arrivals_are_exact_multiples_of_the_gap() -> None:
    """At 8 requests/s the gap is 125 ms; request 800,000 arrives at 100,000 s to the picosecond."""
    times = load(synthetic(800_001, arrivals={"kind": "constant", "qps": 8})).arrived_ps
    assert times[:3].tolist() == [0, 125 * 10**9, 250 * 10**9]
    assert times[-1] == 10**17


def test_static_requests_are_all_there_at_time_zero() -> None:
    assert set(load(synthetic(arrivals={"kind": "static"})).arrived_ps.tolist()) == {0}


@pytest.mark.parametrize(("shape", "middle_qps"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_passes_through_its_rates(shape: str, middle_qps: float) -> None:
    """From 1 to 100 requests/s, the middle request is awaited at the arithmetic or the geometric mean of the two."""
    gaps = gaps_s({"kind": "ramp", "from_qps": 1, "to_qps": 100, "shape": shape}, 300_001)
    around = slice(150_000 - 5_000, 150_000 + 5_000)
    assert 1 / gaps[around].mean() == pytest.approx(middle_qps, rel=0.05)
    assert 1 / gaps[:1000].mean() == pytest.approx(1, rel=0.25)
    assert 1 / gaps[-1000:].mean() == pytest.approx(100, rel=0.15)


def test_arrivals_beyond_what_simulated_time_can_express_are_refused() -> None:
    """One request in 10⁶ s: the fifth arrives at 4 · 10⁶ s, the last instant accepted, the sixth later."""
    slow = {"kind": "constant", "qps": 1e-6}
    assert load(synthetic(5, arrivals=slow)).arrived_ps[-1] == 4 * 10**18
    with pytest.raises(InputError, match=r"found a last arrival at 5e\+06 s, expected at most 4000000 s"):
        load(synthetic(6, arrivals=slow))


# Lengths ------------------------------------------------------------------------------------------------------


def lengths(spec: dict[str, Any], requests: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    made = load(synthetic(requests, lengths=spec))
    return made.prefill_tokens, made.decode_tokens


def test_uniform_lengths_divide_a_uniform_total_by_the_ratio() -> None:
    """With 20 prompt tokens per output token the output is the total / 21, rounded up."""
    prefill, decode = lengths({"kind": "uniform", "min": 1024, "max": 4096, "prefill_to_decode": 20})
    total = prefill + decode
    assert (total.min(), total.max()) == (1024, 4096)
    assert total.mean() == pytest.approx(2560, rel=0.005)
    assert decode.tolist() == [-(-value // 21) for value in total.tolist()]


@given(st.integers(2, 50), st.floats(1e-6, 1e6))
def test_any_ratio_leaves_a_token_for_prompt_and_output(total: int, ratio: float) -> None:
    prefill, decode = lengths({"kind": "uniform", "min": total, "max": total, "prefill_to_decode": ratio}, 1)
    assert prefill[0] >= 1
    assert decode[0] >= 1
    assert prefill[0] + decode[0] == total


def test_zipf_totals_follow_their_law() -> None:
    """Over 100…103 with θ = 1 the weights are 1, 1/2, 1/3, 1/4, their sum 25/12: shares 48, 24, 16 and 12 %."""
    spec = {"kind": "zipf", "min": 100, "max": 103, "theta": 1.0, "prefill_to_decode": 9}
    total = np.add(*lengths(spec))
    shares = [float((total == value).mean()) for value in range(100, 104)]
    assert shares == pytest.approx([0.48, 0.24, 0.16, 0.12], abs=0.005)


def test_scrambled_zipf_keeps_the_shares_and_moves_them_to_other_totals() -> None:
    spec = {"kind": "zipf", "min": 1024, "max": 4096, "theta": 0.6, "prefill_to_decode": 20}
    plain, scrambled = (np.add(*lengths(spec | {"scramble": value})) for value in (False, True))
    counts = [np.sort(np.unique(total, return_counts=True)[1])[::-1] for total in (plain, scrambled)]
    assert counts[0].tolist() == counts[1].tolist()
    assert np.argmax(np.bincount(plain)) == 1024
    assert np.median(plain) < 2200 < 2400 < np.median(scrambled)


@pytest.mark.parametrize(
    ("spec", "median", "mean"),
    [
        ({"mu": math.log(1000), "sigma": 0.5}, 1000, 1000 * math.exp(0.125)),
        ({"mean": 1000, "cv": 1.0}, 1000 / math.sqrt(2), 1000),
        ({"median": 800, "mean": 1000}, 800, 1000),
        ({"median": 1000, "p90": 2000}, 1000, 1000 * math.exp((math.log(2) / 1.2815515655) ** 2 / 2)),
    ],
)
def test_each_pair_of_parameters_gives_the_same_log_normal_family(
    spec: dict[str, float], median: float, mean: float
) -> None:
    prefill, _ = lengths({"kind": "lognormal", "prefill": spec, "decode": spec}, 200_000)
    assert np.median(prefill) == pytest.approx(median, rel=0.01)
    assert prefill.mean() == pytest.approx(mean, rel=0.015)


def test_a_log_normal_p90_is_the_90th_percentile_and_limits_hold() -> None:
    spec = {"median": 1000, "p90": 3000}
    prefill, decode = lengths({"kind": "lognormal", "prefill": spec, "decode": spec | {"min": 400, "max": 2000}})
    assert np.percentile(prefill, 90) == pytest.approx(3000, rel=0.02)
    assert (decode.min(), decode.max()) == (400, 2000)
    assert np.corrcoef(prefill, decode)[0, 1] == pytest.approx(0, abs=0.02)


def test_a_log_normal_of_absurd_width_stays_within_int64() -> None:
    spec = {"mu": 10, "sigma": 300}
    prefill, _ = lengths({"kind": "lognormal", "prefill": spec, "decode": {"median": 5, "p90": 9}}, 1000)
    assert prefill.min() == 1
    assert prefill.max() == 2**31 - 1


def test_quantile_lengths_have_the_percentiles_they_were_given() -> None:
    prompt = {"quantiles": [[0, 10], [0.5, 1020], [0.9, 2734], [1, 14050]]}
    output = {"quantiles": [[0, 16], [1, 16]]}
    prefill, decode = lengths({"kind": "quantiles", "prefill": prompt, "decode": output})
    assert np.percentile(prefill, [50, 90]) == pytest.approx([1020, 2734], rel=0.02)
    assert prefill.min() >= 10
    assert prefill.max() <= 14050
    assert set(decode.tolist()) == {16}


# Conversations ------------------------------------------------------------------------------------------------


def rows(made: Workload) -> list[list[int]]:
    assert made.block_hashes is not None
    return [made.block_hashes.of(i).tolist() for i in range(len(made))]


def test_a_conversation_grows_by_answers_and_texts_and_keeps_its_whole_blocks() -> None:
    """System prompt 1000, texts of 100, answers of 50; one request per second, next turn ready after 0.5 s, no end in
    sight: one conversation with prompts 1100, 1250, 1400, 1550. Block 0 lies in the system prompt, block 1 is the
    conversation's own, and every partial last block is new; at 1550 tokens a third block is whole."""
    prefixes = {"system_tokens": 1000, "turns": 1e12, "think_time_s": 0.5, "min_think_time_s": 0.5}
    made = load(synthetic(4, arrivals={"kind": "constant", "qps": 1}, prefixes=prefixes))
    assert made.prefill_tokens.tolist() == [1100, 1250, 1400, 1550]
    assert rows(made) == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 5, 6]]
    assert made.block_hashes is not None
    assert perfect_cache_hit_share(made, made.block_hashes) == 6 / 13


def test_single_turns_share_their_system_prompt_and_nothing_else() -> None:
    made = load(synthetic(50, prefixes={"system_tokens": 1030, "turns": 1}))
    assert set(made.prefill_tokens.tolist()) == {1130}
    blocks = rows(made)
    assert {tuple(row[:2]) for row in blocks} == {(0, 1)}
    assert len({row[2] for row in blocks}) == 50


def test_system_prompts_are_chosen_by_popularity() -> None:
    """With θ = 1 over three system prompts the shares are 6/11, 3/11 and 2/11."""
    prefixes = {"system_prompts": 3, "system_tokens": 512, "popularity_theta": 1}
    first = np.array([row[0] for row in rows(load(synthetic(20_000, prefixes=prefixes)))])
    shares = sorted((np.unique(first, return_counts=True)[1] / 20_000).tolist(), reverse=True)
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.015)


def test_system_prompts_may_differ_in_length() -> None:
    prefixes = {"system_prompts": 40, "system_tokens": {"median": 600, "p90": 1200, "max": 4000}}
    assert len(set(load(synthetic(500, prefixes=prefixes)).prefill_tokens.tolist())) > 20


def test_conversations_have_the_mean_number_of_turns() -> None:
    """First turns share no block with anybody when there is no whole system block; with 2.5 turns per conversation,
    40 % of the requests of a long workload are first turns."""
    config = synthetic(
        20_000,
        lengths={"kind": "fixed", "prefill": 600, "decode": 50},
        prefixes={"system_tokens": 10, "turns": 2.5, "think_time_s": 5},
    )
    made = load(config)
    firsts = int((made.prefill_tokens == 610).sum())
    assert firsts / 20_000 == pytest.approx(0.4, abs=0.02)
    assert made.arrived_ps.tolist() == load(config | {"prefixes": None}).arrived_ps.tolist()


def test_no_turn_comes_sooner_than_the_shortest_think_time() -> None:
    prefixes = {"system_tokens": 1, "turns": 4, "think_time_s": 6, "min_think_time_s": 5}
    made = load(synthetic(2000, lengths={"kind": "fixed", "prefill": 512, "decode": 9}, prefixes=prefixes))
    last_use_ps: dict[int, int] = {}
    waits_ps = []
    for now, row in zip(made.arrived_ps.tolist(), rows(made), strict=True):
        if row[0] in last_use_ps:
            waits_ps.append(now - last_use_ps[row[0]])
        last_use_ps[row[0]] = now
    assert len(waits_ps) > 1000
    assert min(waits_ps) >= 5 * 10**12


def test_no_prompt_exceeds_the_limit_and_too_long_texts_are_counted() -> None:
    """A text of 100 after a system prompt of 960 is 60 over the limit of 1000, every time."""
    within = load(
        synthetic(500, prefixes={"system_tokens": 10, "turns": 50, "think_time_s": 1, "max_prompt_tokens": 600})
    )
    assert within.prefill_tokens.max() <= 600
    assert within.trimmed_requests == 0
    over = load(synthetic(50, prefixes={"system_tokens": 960, "max_prompt_tokens": 1000}))
    assert set(over.prefill_tokens.tolist()) == {1000}
    assert over.trimmed_requests == 50


@settings(max_examples=40)
@given(
    st.integers(1, 120),
    st.integers(1, 4),
    st.integers(1, 1500),
    st.floats(1, 20),
    st.sampled_from([16, 100, 512]),
    st.integers(0, 100),
)
def test_an_id_always_follows_the_same_ids(
    requests: int, prompts: int, system_tokens: int, turns: float, block_tokens: int, seed: int
) -> None:
    """Ids name text with all text before it, so an id determines its position and every id before it; a partial last
    block is never used again."""
    prefixes = {
        "system_prompts": prompts,
        "system_tokens": system_tokens,
        "turns": turns,
        "think_time_s": 2,
        "hash_block_tokens": block_tokens,
    }
    made = load(synthetic(requests, prefixes=prefixes), seed=seed)
    before: dict[int, tuple[int, ...]] = {}
    partial: list[int] = []
    for prompt, row in zip(made.prefill_tokens.tolist(), rows(made), strict=True):
        for position, block in enumerate(row):
            assert before.setdefault(block, tuple(row[:position])) == tuple(row[:position])
        partial += [row[-1]] if prompt % block_tokens else []
    uses = np.bincount([block for row in rows(made) for block in row])
    assert all(uses[block] == 1 for block in partial)
    assert uses.min() > 0


# Mixes --------------------------------------------------------------------------------------------------------


def test_a_mix_holds_every_part_in_order_of_arrival_and_shares_no_block_between_parts() -> None:
    chat = synthetic(300, prefixes={"system_tokens": 1024, "turns": 3})
    plain = synthetic(100, lengths={"kind": "fixed", "prefill": 700, "decode": 3})
    made = load({"kind": "mix", "parts": {"chat": chat, "plain": plain, "other": chat}})
    assert len(made) == 700
    assert np.all(np.diff(made.arrived_ps) >= 0)
    owners: dict[int, set[str]] = {}
    for request_id, row in zip(made.request_ids, rows(made), strict=True):
        for block in row:
            owners.setdefault(block, set()).add(request_id.split("-")[0])
    assert all(len(parts) == 1 for parts in owners.values())
    plain_rows = [row for name, row in zip(made.request_ids, rows(made), strict=True) if name.startswith("plain")]
    assert len({block for row in plain_rows for block in row}) == 200


def test_a_part_of_a_mix_is_what_it_is_alone_with_its_own_streams() -> None:
    """Equal parts under different names differ; a part does not change when another one does."""
    part = synthetic(50)
    one = load({"kind": "mix", "parts": {"a": part, "b": part}})
    other = load({"kind": "mix", "parts": {"a": part, "b": synthetic(5)}})

    def times(made: Workload, name: str) -> list[int]:
        return [t for i, t in zip(made.request_ids, made.arrived_ps.tolist(), strict=True) if i.startswith(name)]

    assert times(one, "a-") == times(other, "a-")
    assert times(one, "a-") != times(one, "b-")


def test_parts_with_blocks_of_different_sizes_are_refused() -> None:
    parts = {"a": synthetic(prefixes={}), "b": synthetic(prefixes={"hash_block_tokens": 16})}
    with pytest.raises(InputError, match=r"parts\.b: found hash blocks of 16 tokens, expected 512 \(as in parts\.a\)"):
        load({"kind": "mix", "parts": parts})


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    config = synthetic(prefixes={"turns": 2})
    assert contents(load(config, seed=3)) == contents(load(config, seed=3))
    assert contents(load(config, seed=3)) != contents(load(config, seed=4))
