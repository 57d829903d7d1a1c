"""Clients as ServeGen describes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import load, real_trace
from vidur_pd.workload import Workload

WINDOWS = "0,0.5,1,Gamma,1.0,2.0\n600,0.25,2,Weibull,0.6,3.0\n1200,0,,,0,0\n1800,1.0,,,0,0\n"
"""300, 150, 0 and 600 requests."""
DATASET = (
    '{"0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{1: 1.0}"},'
    ' "1200": {"input_tokens": "{7: 1}", "output_tokens": "{2: 1e-3}"}}'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chunk-0-trace.csv").write_text(WINDOWS)
    (tmp_path / "chunk-0-dataset.json").write_text(DATASET)
    return tmp_path


def drawn(folder: Path, **fields: Any) -> Workload:
    return load({"kind": "servegen", "path": str(folder), **fields})


def test_every_window_has_the_requests_of_its_rate(folder: Path) -> None:
    made = drawn(folder)
    counts, _ = np.histogram(made.arrived_ps / 10**12, bins=[0, 600.0001, 1200.0001, 1800, 2401])
    assert counts.tolist() == [300, 150, 0, 600]


def test_lengths_are_those_of_the_time_and_of_their_probabilities(folder: Path) -> None:
    """Of 450 requests 112 have 10 tokens, with a standard deviation of 9; the bound is five of them."""
    made = drawn(folder)
    early = made.arrived_ps < 1200 * 10**12
    assert set(made.prefill_tokens[early].tolist()) == {10, 20}
    assert abs(np.count_nonzero(made.prefill_tokens == 10) - 112) < 46
    assert set(made.decode_tokens[early].tolist()) == {1}
    assert set(zip(made.prefill_tokens[~early].tolist(), made.decode_tokens[~early].tolist(), strict=True)) <= {
        (7, 2),
        (10, 1),
        (20, 1),
    }


def test_a_window_takes_a_part_of_the_same_requests(folder: Path) -> None:
    whole, part = drawn(folder), drawn(folder, window={"start_s": 601, "end_s": 900}, limit=20)
    times_s = whole.arrived_ps / 10**12
    expected = times_s[(times_s >= 601) & (times_s < 900)][:20] - 601
    assert part.arrived_ps / 10**12 == pytest.approx(expected, abs=1e-9)


def test_a_client_draws_the_same_beside_others(folder: Path) -> None:
    alone = drawn(folder)
    for name in ("trace.csv", "dataset.json"):
        shutil.copy(folder / f"chunk-0-{name}", folder / f"chunk-12-{name}")
    both = drawn(folder)
    assert len(both) == 2 * len(alone)
    assert set(alone.arrived_ps.tolist()) < set(both.arrived_ps.tolist())


def test_a_published_client_is_read(tmp_path: Path) -> None:
    """Its first day: rate and CV in the first window are those that the file states, 130 requests in 600 s."""
    for name in ("trace.csv.gz", "dataset.json.gz"):
        shutil.copy(real_trace(f"servegen_m-large_client57_{name}"), tmp_path / f"chunk-57-{name}")
    made = drawn(tmp_path, window={"end_s": 86_400})
    assert np.count_nonzero(made.arrived_ps <= 600 * 10**12) == 130
    gaps = np.diff(made.arrived_ps[:130])
    assert gaps.std() / gaps.mean() == pytest.approx(0.14, abs=0.05)
    assert made.decode_tokens.min() >= 1


@pytest.mark.parametrize(
    ("windows", "dataset", "message"),
    [
        ("0,1,1,Gauss,1,1\n", DATASET, "trace.csv: line 1: found '0,1,1,Gauss,1,1', expected begin, rate, CV"),
        ("0,x,1,Gamma,1,1\n", DATASET, "line 1: rate: found 'x', expected a number from 0 to 1e9"),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", DATASET, "line 2: begin: found 0, expected more than 0"),
        ("0,1,1,Gamma,0,1\n", DATASET, "line 1: shape: found '0'"),
        (WINDOWS, "{}", "expected lengths by the instant"),
        (WINDOWS, '{"0": {"input_tokens": "{1: 1}"}}', "output_tokens: found None, expected a text"),
        (WINDOWS, DATASET.replace("{1: 1.0}", "{1: x}"), "output_tokens: found"),
        (WINDOWS, DATASET.replace("{1: 1.0}", "{0: 1.0}"), "found 0 tokens, expected 1 to"),
        (WINDOWS, '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', "found empty lengths only"),
        ("0,0,,,0,0\n", DATASET, "found no request in the window"),
    ],
)
def test_wrong_files_are_refused(folder: Path, windows: str, dataset: str, message: str) -> None:
    (folder / "chunk-0-trace.csv").write_text(windows)
    (folder / "chunk-0-dataset.json").write_text(dataset)
    with pytest.raises(InputError, match=message):
        drawn(folder)


def test_a_folder_without_clients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no chunk-…-trace\.csv, expected a folder of ServeGen"):
        drawn(tmp_path)
