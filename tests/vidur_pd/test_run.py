"""The simulator from Python: one call, tables as data frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import vidur_pd as vp
from boundary.errors import InputError
from tests.integration.small_runs import config, pool

WORKLOAD = {
    "kind": "synthetic",
    "requests": 40,
    "arrivals": {"kind": "poisson", "qps": 20},
    "lengths": {"kind": "fixed", "prefill": 500, "decode": 10},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "c.yaml"
    tree = config([pool("p", "prefill", instances=2), pool("d", "decode")], workload=WORKLOAD)
    content: dict[str, Any] = {
        "model": tree.model,
        "hardware": tree.hardware,
        "workload": WORKLOAD,
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
            "pools": [{"name": "p", "role": "prefill", "instances": 2}, {"name": "d", "role": "decode"}],
        },
        "engine": {"estimator": "roofline"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_run_is_one_call_and_its_requests_are_a_data_frame(file: Path, tmp_path: Path) -> None:
    r = vp.run(file, **{"routing.policy": "least_tokens", "seed": 3, "slo": {"ttft": {"p90": 2.0}}})
    assert (r.result.config.routing.policy, r.result.config.seed) == ("least_tokens", 3)
    assert r.result.config.slo.ttft == {"p90": 2.0}
    out = r.write(tmp_path / "out")
    written = pd.read_csv(out / "requests.csv")
    assert list(r.requests.columns) == list(written.columns)
    for column in ("ttft_s", "tpot_s", "e2e_s", "kv_exposed_s"):
        assert r.requests[column].to_numpy() == pytest.approx(written[column].to_numpy(), abs=1e-12)
    assert r.requests["ttft_s"].mean() == pytest.approx(r.summary.ttft_s.mean)
    parts = r.attribution.drop(columns=["request_id", "e2e_ps", "prefill_contention_ps", "decode_contention_ps"])
    assert (parts.sum(axis=1) == r.attribution["e2e_ps"]).all()
    assert len(r.iterations) == r.summary.simulator.iterations
    assert set(r.links["traffic"]) <= {"kv", "collective"}


def test_it_shows_what_the_command_prints_and_a_notebook_its_verdict(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    r = vp.run(file)
    assert r.verdict is not None
    r.show()
    assert " ".join(capsys.readouterr().out.split()).startswith(" ".join(r.verdict.sentence.split()))
    page = r._repr_html_()
    assert "<strong>" in page
    assert "TPOT" in page


def test_a_wrong_setting_is_refused_with_its_field(file: Path) -> None:
    with pytest.raises(InputError, match=r"routing\.polisy: unknown field"):
        vp.run(file, **{"routing.polisy": "random"})
