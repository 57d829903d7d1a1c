"""Traces as configured: selection, times, lengths and trimming; and what a configuration may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import contents, load, real_trace, synthetic, workload
from vidur_pd.config.workload import WorkloadFile
from vidur_pd.workload import Workload
from vidur_pd.workload.transform import length_scaled, picked, trimmed
from vidur_pd.workload.writing import write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten requests at 3, 4, …, 12 s of 100, 200, …, 1000 prompt and 10 output tokens."""
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    path = tmp_path / "trace.csv"
    path.write_text(text + "".join(f"{3 + i},{100 * (i + 1)},10\n" for i in range(10)))
    return path


def replay(trace: Path, **fields: Any) -> Workload:
    return load({"kind": "trace", "path": trace.name} | fields, base_dir=trace.parent)


def seconds(made: Workload) -> list[float]:
    return [time_ps / 10**12 for time_ps in made.arrived_ps.tolist()]


def test_paths_are_relative_to_the_configuration_and_absolute_ones_are_kept(trace: Path) -> None:
    relative = replay(trace)
    assert contents(replay(trace, path=str(trace))) == contents(relative)
    assert relative.prefill_tokens.tolist() == list(range(100, 1100, 100))


def test_a_limit_takes_the_first_requests_or_all_there_are(trace: Path) -> None:
    assert replay(trace, limit=3).request_ids == ("0", "1", "2")
    assert len(replay(trace, limit=99)) == 10


def test_asking_for_more_requests_than_a_trace_has_names_file_and_rows(trace: Path) -> None:
    assert len(replay(trace, requests=10)) == 10
    with pytest.raises(InputError, match=r"trace\.csv: requests: found 10 usable rows, expected at least 11"):
        replay(trace, requests=11)


def test_asking_for_more_requests_than_a_trace_of_lengths_has_names_file_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    arrivals = {"kind": "constant", "qps": 2}
    made = replay(path, requests=2, arrivals=arrivals)
    assert (seconds(made), made.prefill_tokens.tolist(), made.decode_tokens.tolist()) == ([0, 0.5], [5, 7], [6, 8])
    with pytest.raises(InputError, match=r"lengths\.csv: requests: found 2 usable rows, expected at least 3"):
        replay(path, requests=3, arrivals=arrivals)
    with pytest.raises(InputError, match=r"lengths\.csv: found no arrival times, expected workload\.arrivals"):
        replay(path)


def test_a_window_counts_from_the_first_arrival_and_becomes_time_zero(trace: Path) -> None:
    """Requests arrive 0 … 9 s after the first; the window [2, 5) s holds three of them."""
    made = replay(trace, window={"start_s": 1.5, "end_s": 5})
    assert made.request_ids == ("2", "3", "4")
    assert seconds(made) == [0.5, 1.5, 2.5]
    assert seconds(replay(trace, window={}, limit=2)) == [0, 1]
    with pytest.raises(InputError, match="found no request in the window"):
        replay(trace, window={"start_s": 100})


def test_time_scale_multiplies_arrival_times(trace: Path) -> None:
    assert seconds(replay(trace, time_scale=0.5, limit=3)) == [1.5, 2, 2.5]
    with pytest.raises(InputError, match="time_scale: found 1e"):
        replay(trace, time_scale=1e9)


def test_arrivals_replace_those_of_a_trace(trace: Path) -> None:
    made = replay(trace, arrivals={"kind": "constant", "qps": 10})
    assert seconds(made) == [i / 10 for i in range(10)]


def test_jitter_delays_requests_and_keeps_each_one_whole(trace: Path) -> None:
    plain, moved = replay(trace), replay(trace, jitter_s=5)
    tokens = dict(zip(plain.request_ids, plain.prefill_tokens.tolist(), strict=True))
    times = dict(zip(plain.request_ids, seconds(plain), strict=True))
    for request_id, time_s, prefill in zip(
        moved.request_ids, seconds(moved), moved.prefill_tokens.tolist(), strict=True
    ):
        assert tokens[request_id] == prefill
        assert 0 <= time_s - times[request_id] < 5
    assert moved.request_ids != plain.request_ids
    assert "jitter 5 s" in moved.source


def test_jitter_beyond_simulated_time_is_refused(trace: Path) -> None:
    """Whichever request draws it: the delays are in no order."""
    with pytest.raises(InputError, match="expected at most 4000000 s"):
        replay(trace, jitter_s=9e6)


def test_jitter_spreads_the_groups_of_the_mooncake_time_stamps() -> None:
    """Its 12,031 requests have 1,180 distinct times about 3 s apart; spread over 3 s, hardly two are equal and the gaps
    vary about as in a Poisson process instead of three times as much."""
    path = real_trace("mooncake_conversation_trace.jsonl.gz")
    grouped, spread = replay(path), replay(path, jitter_s=3)
    assert len(np.unique(grouped.arrived_ps)) == 1180
    assert len(np.unique(spread.arrived_ps)) > 12_000
    gaps = np.diff(spread.arrived_ps)
    assert 0.9 < gaps.std() / gaps.mean() < 1.2
    assert spread.block_hashes is not None
    assert len(spread.block_hashes.ids) == 288_500


def test_rows_without_output_are_refused_or_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,0\n2,6,1\n")
    with pytest.raises(InputError, match=r"line 2: num_decode_tokens: found 0, expected at least 1"):
        replay(path)
    made = replay(path, skip_zero_output=True)
    assert (made.request_ids, made.skipped_rows) == (("1",), 1)


def test_hash_blocks_of_another_size_can_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [0, 1, 2]}\n')
    made = replay(path, hash_block_tokens=16)
    assert made.block_hashes is not None
    assert made.block_hashes.block_tokens == 16
    with pytest.raises(InputError, match="found 3 ids, expected 1"):
        replay(path)


# Lengths ------------------------------------------------------------------------------------------------------


def test_length_scales_multiply_and_round(trace: Path) -> None:
    made = replay(trace, prefill_scale=1.254, decode_scale=0.01)
    assert made.prefill_tokens[:3].tolist() == [125, 251, 376]
    assert set(made.decode_tokens.tolist()) == {1}


def test_shorter_prompts_keep_their_leading_blocks() -> None:
    """Half of 1536 and 600 tokens are 768 and 300: two blocks and one."""
    made = length_scaled(workload([1536, 600], [[1, 2, 3], [1, 4]]), 0.5, 1)
    assert made.block_hashes is not None
    assert [made.block_hashes.of(i).tolist() for i in range(2)] == [[1, 2], [1]]
    with pytest.raises(InputError, match="prefill_scale: found 2, expected at most 1 for a trace with hash_ids"):
        length_scaled(workload([512], [[1]]), 2, 1)


def test_trimming_cuts_prompts_or_both_and_is_counted(trace: Path) -> None:
    """max_tokens 505 leaves 495 prompt tokens beside 10 output tokens; in proportion, 1000 + 10 become 500 + 5."""
    made = replay(trace, max_tokens=505)
    assert made.prefill_tokens.tolist() == [100, 200, 300, 400, 495, 495, 495, 495, 495, 495]
    assert made.trimmed_requests == 6
    assert "6 requests trimmed to 505 tokens" in made.source
    both = replay(trace, max_tokens=505, trim="proportional")
    assert (both.prefill_tokens[-1], both.decode_tokens[-1]) == (500, 5)
    with pytest.raises(InputError, match=r"max_tokens: found 10, expected more than the 10 output tokens of request 0"):
        replay(trace, max_tokens=10)


@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9999)), min_size=1, max_size=5), st.integers(2, 9999))
def test_proportional_trimming_always_leaves_a_prompt_and_an_output_within_the_limit(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    prefill, decode = (np.array(column) for column in zip(*lengths, strict=True))
    n = len(lengths)
    made = trimmed(Workload(tuple(map(str, range(n))), np.zeros(n), prefill, decode), max_tokens, "proportional")
    total = made.prefill_tokens + made.decode_tokens
    assert total.tolist() == np.minimum(prefill + decode, max_tokens).tolist()
    assert made.trimmed_requests == int((prefill + decode > max_tokens).sum())


def test_picking_requests_takes_their_blocks_along() -> None:
    made = picked(workload([600, 10, 1024], [[1, 2], [3], [1, 4]]), np.array([0, 2]))
    assert made.request_ids == ("r0", "r2")
    assert made.block_hashes is not None
    assert made.block_hashes.ids.tolist() == [1, 2, 1, 4]


# Refused configurations -----------------------------------------------------------------------------------------

TRACE = {"kind": "trace", "path": "t.csv"}
LOGNORMAL = {"kind": "lognormal", "decode": {"median": 5, "p90": 9}}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "traces"}, "'trace', 'synthetic', 'servegen', 'mix'"),
        (TRACE | {"qps": 3}, "Extra inputs are not permitted"),
        (TRACE | {"format": "parquet"}, "Input should be 'auto'"),
        (TRACE | {"time_scale": 0}, "greater than or equal to"),
        (TRACE | {"time_scale": float("inf")}, "less than or equal to"),
        (TRACE | {"limit": 3, "requests": 3}, "requests: found together with limit, expected one of them"),
        (TRACE | {"jitter_s": 1, "arrivals": {"kind": "static"}}, "jitter_s: found together with arrivals"),
        (TRACE | {"window": {}, "arrivals": {"kind": "static"}}, "window: found together with arrivals"),
        (TRACE | {"window": {"start_s": 4, "end_s": 4}}, "end_s: found 4, expected more than start_s = 4"),
        (synthetic(0), "greater than or equal to 1"),
        (synthetic(arrivals={"kind": "poisson", "qps": 0}), "greater than or equal to"),
        (synthetic(arrivals={"kind": "poisson"}), "Field required"),
        (synthetic(arrivals={"kind": "gamma", "qps": 1, "cv": -1}), "greater than or equal to"),
        (synthetic(lengths={"kind": "fixed", "prefill": 1, "decode": 0}), "greater than or equal to 1"),
        (
            synthetic(lengths={"kind": "uniform", "min": 9, "max": 3, "prefill_to_decode": 1}),
            "max: found 3, expected at least min = 9",
        ),
        (
            synthetic(lengths={"kind": "zipf", "min": 2, "max": 2**30, "theta": 1, "prefill_to_decode": 1}),
            "the law is tabulated",
        ),
        (
            synthetic(lengths=LOGNORMAL | {"prefill": {"mean": 5}}),
            r"found mean, expected one pair of mu, sigma \| mean",
        ),
        (synthetic(lengths=LOGNORMAL | {"prefill": {}}), "found nothing, expected one pair"),
        (synthetic(lengths=LOGNORMAL | {"prefill": {"mu": 5, "p90": 3}}), "found mu, p90, expected one pair"),
        (
            synthetic(lengths=LOGNORMAL | {"prefill": {"median": 5, "p90": 3}}),
            "p90: found 3, expected at least the median 5",
        ),
        (
            synthetic(lengths=LOGNORMAL | {"prefill": {"median": 5, "mean": 3}}),
            "mean: found 3, expected at least the median 5",
        ),
        (
            synthetic(lengths=LOGNORMAL | {"prefill": {"median": 5, "p90": 9, "min": 4, "max": 3}}),
            "max: found 3, expected at least min = 4",
        ),
        (synthetic(prefixes={"turns": 0.5}), "greater than or equal to 1"),
        (
            synthetic(prefixes={"think_time_s": 1, "min_think_time_s": 2}),
            "min_think_time_s: found 2, expected at most think_time_s = 1",
        ),
        (
            synthetic(prefixes={"system_tokens": 512, "max_prompt_tokens": 512}),
            "system_tokens: found 512, expected less than max_prompt_tokens = 512",
        ),
        (
            synthetic(prefixes={"system_tokens": {"median": 5, "p90": 9}, "max_prompt_tokens": 512}),
            "system_tokens: found no max, expected less than",
        ),
        ({"kind": "mix", "parts": {}}, "at least 1 item"),
        ({"kind": "mix", "parts": {"a-b": TRACE}}, "match pattern"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        WorkloadFile.model_validate({"workload": section})


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([[0.1, 5], [1, 9]], "found 0.1 to 1, expected 0 to 1"),
        ([[0, 5], [0.5, 6], [0.5, 7], [1, 9]], "found falling or equal probabilities"),
        ([[0, 5], [0.5, 4], [1, 9]], "found falling token counts"),
        ([[0, 5], [1, 0]], "greater than or equal to 1"),
    ],
)
def test_quantiles_that_are_no_distribution_are_refused(points: list[list[float]], said: str) -> None:
    fine = {"quantiles": [[0, 1], [1, 2]]}
    lengths = {"kind": "quantiles", "prefill": fine, "decode": {"quantiles": points}}
    with pytest.raises(ValidationError, match=said):
        WorkloadFile.model_validate({"workload": synthetic(lengths=lengths)})


def test_a_configuration_survives_being_written_and_read(tmp_path: Path) -> None:
    write_trace(workload([600], [[1, 2]]), tmp_path / "t.csv")
    parts = {"a": TRACE | {"path": "t.csv", "window": {"end_s": 3}}, "b": synthetic(prefixes={"turns": 2})}
    section = WorkloadFile.model_validate({"seed": 4, "workload": {"kind": "mix", "parts": parts}})
    again = WorkloadFile.model_validate(section.model_dump(mode="json", exclude_none=True))
    assert again == section
