"""The shipped sample workload: what its page claims, and that the script draws exactly these bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.vidur_pd.workload_cases import ROOT
from vidur_pd.workload import read_trace
from vidur_pd.workload.statistics import describe_workload
from vidur_pd.workload.transform import picked

DATA = ROOT / "vidur_pd" / "workload" / "data"
SAMPLE = DATA / "sample_conversations.csv"


def test_the_script_rebuilds_the_sample_and_its_page_byte_for_byte(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "build_sample_workload.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=True)
    for name in ("sample_conversations.csv", "sample_conversations.md"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_the_sample_is_small_and_long_enough() -> None:
    assert SAMPLE.stat().st_size < 500_000
    found = describe_workload(read_trace(SAMPLE).workload)
    assert found.requests == 2400
    assert found.rate_qps == pytest.approx(4, rel=0.05)
    assert found.gap_cv == pytest.approx(1, rel=0.05)
    assert found.hash_block_tokens == 512


def test_prefix_reuse_lies_between_the_counted_and_the_published_share_of_the_mooncake_trace() -> None:
    share = describe_workload(read_trace(SAMPLE).workload).perfect_cache_hit_share
    assert share is not None
    assert 0.366 < share < 0.40


@pytest.mark.parametrize(
    ("part", "prefill", "decode"),
    [
        ("chat", {"mean": 1155, "p50": 1020, "p90": 2734}, {"mean": 211, "p50": 129, "max": 1000}),
        ("documents", {"mean": 12_035}, {"mean": 343}),
    ],
)
def test_each_part_resembles_the_published_statistics_of_its_trace(
    part: str, prefill: dict[str, int], decode: dict[str, int]
) -> None:
    whole = read_trace(SAMPLE).workload
    belongs = [request_id.startswith(part) for request_id in whole.request_ids]
    found = describe_workload(picked(whole, np.flatnonzero(belongs)))
    for name, value in prefill.items():
        assert getattr(found.prefill_tokens, name) == pytest.approx(value, rel=0.10), name
    for name, value in decode.items():
        assert getattr(found.decode_tokens, name) == pytest.approx(value, rel=0.06), name


def test_every_request_fits_a_context_of_128_ki_tokens() -> None:
    made = read_trace(SAMPLE).workload
    assert (made.prefill_tokens + made.decode_tokens).max() <= 131_072
