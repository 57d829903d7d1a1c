"""Results of serving benchmarks as traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import load
from vidur_pd.workload import read_trace

VLLM: dict[str, Any] = {
    "duration": 3.5,
    "completed": 3,
    "input_lens": [100, 200, 300, 400],
    "output_lens": [10, 20, 0, 40],
    "ttfts": [0.1, 0.1, 0.0, 0.1],
    "start_times": [1000.5, 1002.25, 1001.0, 1001.75],
    "errors": ["", "", "Timeout", ""],
}
"""As ``vllm bench serve --save-result --save-detailed`` writes it: the third request failed, the fourth was sent before
the second."""


def written(tmp_path: Path, *results: dict[str, Any]) -> Path:
    path = tmp_path / "result.json"
    path.write_text("".join(json.dumps(result) + "\n" for result in results))
    return path


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in VLLM.items() if key != name}


def test_a_result_of_vllm_is_replayed_as_it_was_sent(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, VLLM))
    made = trace.workload
    assert (trace.format, trace.has_arrivals, made.skipped_rows) == ("bench", True, 1)
    assert [at / 10**12 for at in made.arrived_ps.tolist()] == [0, 1.25, 1.75]
    assert made.prefill_tokens.tolist() == [100, 400, 200]
    assert made.decode_tokens.tolist() == [10, 40, 20]


def test_a_result_without_times_needs_arrivals(tmp_path: Path) -> None:
    path = written(tmp_path, without("start_times"))
    assert not read_trace(path).has_arrivals
    with pytest.raises(InputError, match=r"result\.json: found no arrival times"):
        load({"kind": "trace", "path": str(path)})
    made = load({"kind": "trace", "path": str(path), "arrivals": {"kind": "closed", "clients": 2}})
    assert made.prefill_tokens.tolist() == [100, 200, 400]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([VLLM, VLLM], "found 2 results, expected one"),
        ([without("output_lens")], "output_lens: found nothing, expected a list"),
        ([VLLM | {"output_lens": [1]}], r"output_lens: found 1 values, expected 4 \(as input_lens\)"),
        ([VLLM | {"input_lens": [1, 2, 3, "x"]}], "line 1: input_lens: found 'x', expected a whole number"),
        ([VLLM | {"start_times": [1, 2, 3, None]}], "line 1: start_times: found None"),
        ([VLLM | {"input_lens": 5}], "input_lens: found 5, expected a list"),
        ([VLLM | {"input_lens": [], "output_lens": [], "start_times": []}], "found no request"),
    ],
)
def test_wrong_results_are_refused(tmp_path: Path, results: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(written(tmp_path, *results))
