"""Load as users state it: a rate, clients, and GPUs in any case of letters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from aicb import canonical_gpu, get_gpu
from boundary.errors import InputError
from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool
from tests.vidur_pd.workload_cases import load, synthetic
from vidur_pd.config.rates import StatedRate
from vidur_pd.workload.transform import at_rate

RATE = TypeAdapter(StatedRate)
EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3-8b-colocated.yaml"


@pytest.mark.parametrize(
    ("stated", "per_s"), [("10/s", 10), ("600/min", 10), (" 36000 / h ", 10), (".5/s", 0.5), ("86400/d", 1), (2.5, 2.5)]
)
def test_a_rate_has_its_unit_of_time(stated: object, per_s: float) -> None:
    assert RATE.validate_python(stated) == per_s


@pytest.mark.parametrize("stated", ["10", "10/week", "fast", "-1/s", "0/s", True, "1e3/s"])
def test_what_is_no_rate_is_refused(stated: object) -> None:
    with pytest.raises(ValidationError):
        RATE.validate_python(stated)


@given(st.floats(0.01, 1000), st.integers(2, 200), st.integers(0, 2**31))
def test_the_mean_rate_is_that_asked_for_and_bursts_keep_their_shape(per_s: float, requests: int, seed: int) -> None:
    section = synthetic(requests, arrivals={"kind": "gamma", "qps": 3.0, "cv": 2.0})
    before = load(section, seed=seed)
    after = at_rate(before, per_s)
    assert (requests - 1) / (after.span_ps / 1e12) == pytest.approx(per_s, rel=1e-6)
    gaps = np.diff(before.arrived_ps) / before.span_ps, np.diff(after.arrived_ps) / after.span_ps
    assert np.allclose(*gaps, atol=1e-9)
    assert load({**section, "rate": per_s}, seed=seed).arrived_ps.tolist() == after.arrived_ps.tolist()


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (synthetic(3, arrivals={"kind": "static"}, rate="1/s"), "found 1/s for requests that all arrive at once"),
        (synthetic(3, arrivals={"kind": "closed", "clients": 2}, rate="1/s"), "found 1/s for requests that wait"),
        (synthetic(100, arrivals={"kind": "poisson", "qps": 1}, rate="1/d"), "expected a last arrival before"),
    ],
)
def test_arrivals_that_have_no_rate_are_refused(section: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load(section)


def test_gpus_are_named_in_any_case_of_letters() -> None:
    found = config([pool("a", "prefill", hardware="H100"), pool("b", "decode")], hardware="H200")
    assert [found.hardware_of(each) for each in found.cluster.pools] == ["h100", "h200"]
    assert found == config([pool("a", "prefill", hardware="h100"), pool("b", "decode")])
    assert get_gpu("MI300X") == get_gpu("mi300x")
    assert canonical_gpu("Folder/GPU.yaml") == "Folder/GPU.yaml"


def test_options_state_a_rate_or_clients(tmp_path: Path) -> None:
    def run(*options: str) -> tuple[int, str, str]:
        arguments = ("vidur_pd", "run", str(EXAMPLE), "-o", str(tmp_path), "--set", "workload.requests=20", *options)
        done = run_forked(*arguments)
        return done.returncode, done.stderr, (tmp_path / "config.yaml").read_text() if done.returncode == 0 else ""

    assert "rate: 2.0" in run("--rate", "120/min", "--quiet")[2]
    assert "clients: 3" in run("--clients", "3", "--quiet")[2]
    code, error, _ = run("--rate", "1/s", "--clients", "3")
    assert (code, error) == (2, "vidur-pd: --clients: found 3 with --rate 1/s, expected one of them\n")
    code, error, _ = run("--rate", "often")
    assert (code, error) == (
        2,
        f"vidur-pd: {EXAMPLE}: workload.rate: found 'often', expected requests per time, as 10/s, 600/min or 36000/h\n",
    )
