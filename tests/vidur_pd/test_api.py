"""The simulator as a library: what it takes, what it refuses, and that runs of one plan are independent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vidur_pd
from boundary.errors import InputError
from tests.integration.small_runs import ANY_WORKLOAD, config, pool, requests
from tests.integration.test_command_line import vidur_pd as run_command
from tests.integration.test_command_line import write_config
from vidur_pd.metrics.request_rows import requests_csv
from vidur_pd.metrics.summary import Effort
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble

ROWS = [(20_000 * i, 300 + 40 * i, 20) for i in range(12)]
COUPLINGS = ({"backend": "fluid", "coupling": "fluid"}, {"backend": "packet", "coupling": "exact"})
TREE: dict[str, Any] = {
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": ANY_WORKLOAD,
    "cluster": {
        "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
        "pools": [{"name": "m", "role": "mixed"}],
    },
}


def test_a_file_gives_what_the_command_gives(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert run_command("run", path, "-o", tmp_path / "command", "--set", "seed=3").returncode == 0
    vidur_pd.write_result(vidur_pd.simulate(path, settings=["seed=3"]), tmp_path / "library")
    names = ("requests.csv", "config.yaml")
    for name in names:
        assert (tmp_path / "command" / name).read_bytes() == (tmp_path / "library" / name).read_bytes()
    assert json.loads((tmp_path / "library" / "summary.json").read_text())["seed"] == 3


def test_a_mapping_is_read_like_a_file_and_stays_as_it_is() -> None:
    before = json.dumps(TREE)
    result = vidur_pd.simulate(TREE, requests(ROWS))
    assert result.summary.completed == len(ROWS)
    same = vidur_pd.simulate(config([pool("m", "mixed")]), requests(ROWS))
    assert replace(result.summary, simulator=Effort()) == replace(same.summary, simulator=Effort())
    assert json.dumps(TREE) == before


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (TREE | {"colour": "x"}, "configuration: colour: unknown field"),
        (TREE | {"model": "no-such"}, "no-such"),
    ],
)
def test_what_is_wrong_with_a_mapping_is_one_line(tree: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as raised:
        vidur_pd.simulate(tree, requests(ROWS))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_are_refused_where_they_would_not_be_looked_at() -> None:
    with pytest.raises(InputError, match="settings: found 1 with a parsed configuration, expected none"):
        vidur_pd.simulate(config([pool("m", "mixed")]), requests(ROWS), settings=["seed=1"])


@pytest.mark.parametrize("network", COUPLINGS)
def test_runs_of_one_plan_do_not_see_each_other(network: dict[str, Any]) -> None:
    """Other requests in between change nothing: neither prices nor links nor queues are those of an earlier run."""
    pools = [pool("p", "prefill"), pool("d", "decode", tp=2)]
    plan = plan_simulation(config(pools, network=network, seed=5))
    others = [(at_us, 2 * prompt + 1, output) for at_us, prompt, output in ROWS]

    def rows_of(rows: list[tuple[int, int, int]]) -> str:
        return "".join(requests_csv(Simulation(assemble(plan), requests(rows)).run().table))

    first = rows_of(ROWS)
    assert rows_of(others) != first
    assert rows_of(ROWS) == first
    fresh = vidur_pd.simulate(config(pools, network=network, seed=5), requests(ROWS))
    assert "".join(requests_csv(fresh.table)) == first


def test_names_that_are_not_there_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulation_of'"):
        _ = vidur_pd.simulation_of
