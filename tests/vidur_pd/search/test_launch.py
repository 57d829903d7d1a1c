"""Commands of configurations: graphs that SGLang would have and a configuration has not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vidur_pd.test_config_file import MINIMAL
from vidur_pd.config import SimulationConfig
from vidur_pd.search.output.launch import sglang_arguments


@pytest.mark.parametrize(
    ("engine", "pool", "options"),
    [
        ({}, {}, []),
        ({"prompt_graph_sizes": []}, {}, ["--disable-prefill-cuda-graph"]),
        ({"prompt_graph_sizes": [512]}, {}, []),
        ({"cuda_graphs": False}, {}, ["--disable-cuda-graph"]),
        ({}, {"pp": 2}, []),
        ({"prompt_graph_sizes": []}, {"pp": 2}, []),
    ],
)
def test_graphs_that_are_not_wanted_are_switched_off(
    engine: dict[str, Any], pool: dict[str, Any], options: list[str]
) -> None:
    topology = {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"}
    cluster = {"topology": topology, "pools": [{"name": "server", "role": "mixed"} | pool]}
    config = SimulationConfig.model_validate(MINIMAL | {"cluster": cluster, "engine": {"framework": "sglang"} | engine})
    found = sglang_arguments(config, config.cluster.pools[0])
    assert [each for each in found if each.endswith("cuda-graph")] == options
