"""A model that does not fit is refused with sizes in GB, and with the partitions that do."""

from __future__ import annotations

import re

import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool
from vidur_pd.simulation.plan import plan_simulation


def refusal(**fields: int) -> str:
    tree = config([pool("m", "mixed", **fields)], topology={"kind": "rail_optimized", "gpus_per_node": 8})
    with pytest.raises(InputError) as caught:
        plan_simulation(tree.model_copy(update={"model": "llama-3.1-70b"}))
    return str(caught.value)


def test_weights_that_do_not_fit_name_the_partitions_that_do() -> None:
    """Llama-3.1-70B has 141.1 GB in bf16, an H200 gives 138.7 of its 150.8 at 0.92: two GPUs do."""
    said = refusal()
    assert said.startswith(
        "cluster.pools.m: model llama-3.1-70b: found 141107412992 bytes of bf16 weights (141.1 GB) per GPU"
    )
    fitting = re.search(r"; what fits: (.*)$", said)
    assert fitting is not None
    assert re.fullmatch(
        r"tp 2, ep 1, dp 1, pp 1 \([\d,]+ KV blocks a rank\) or tp 1, ep 1, dp 1, pp 2 \(.*\)", fitting[1]
    )


def test_what_fits_is_accepted() -> None:
    tree = config([pool("m", "mixed", tp=2)], topology={"kind": "rail_optimized", "gpus_per_node": 8})
    assert plan_simulation(tree.model_copy(update={"model": "llama-3.1-70b"})).pools["m"].num_kv_blocks > 0


def test_a_partition_that_is_wrong_for_another_reason_names_none() -> None:
    assert "what fits" not in refusal(tp=3)
