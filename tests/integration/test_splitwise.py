"""Whole runs under Splitwise: nothing is lost and nothing waits for ever, however tight memory is; bad values."""

from __future__ import annotations

import logging
import random
import re
from typing import Any

import pytest

from boundary.errors import InputError
from tests.integration.run_checks import check_run
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.plan import plan_simulation

TWO_AND_TWO = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]


def drawn_run(seed: int) -> Result:
    """A few machines with hardly more KV blocks than the longest request needs, short queues, sometimes failures."""
    draw = random.Random(seed)
    rows = [
        (draw.choice([0, 0, 500, 20_000]) * index, draw.choice([1, 30, 400, 1500]), draw.choice([1, 2, 60, 300]))
        for index in range(draw.randint(3, 40))
    ]
    longest = max(-(-(prompt + output) // 16) for _, prompt, output in rows)
    shape = {"dp": 2, "ep": 2} if draw.random() < 0.2 else {}
    pools = [
        pool(name, role, instances=draw.randint(1, 3), **shape) for name, role in (("p", "prefill"), ("d", "decode"))
    ]
    engine: dict[str, Any] = {
        "policy": draw.choice(["vllm_v1", "vllm_v1", "splitwise", "sarathi"]),
        "num_kv_blocks": 2 + longest + draw.choice([0, 1, longest // 2, 3 * longest]),
        "max_batched_tokens": draw.choice([256, 2048]),
        "max_seqs": draw.choice([2, 64]),
        "prefix_caching": draw.random() < 0.3,
        "async_scheduling": draw.random() < 0.3,
        "watermark": 0.0,
    }
    sections: dict[str, Any] = {"model": "qwen3-30b-a3b"} if shape else {}
    if draw.random() < 0.4:
        failing = [f"{draw.choice('pd')}-0" for _ in range(2)]
        sections["faults"] = [
            {"kind": "instance", "instance": name, "at_s": 0.05 + 0.2 * number, "for_s": draw.choice([0.05, 0.5])}
            for number, name in enumerate(failing)
        ]
    routing = {
        "policy": "splitwise",
        "splitwise": {
            "scheduler": draw.choice(["mixed_pool"] * 5 + ["kv_jsq", "kv_token_jsq", "kv_round_robin"]),
            "max_pending_tokens": draw.choice([1, 500, 8192]),
        },
    }
    first = draw.choice(["prefill", "prefill", "decode_after_transfer", "decode_recompute"])
    sections["kv_transfer"] = {"first_token": first}
    output = {"flows": True}
    return simulate(config(pools, routing=routing, engine=engine, output=output, **sections), rows)


@pytest.mark.parametrize("seed", range(24))
def test_every_request_ends_and_everything_adds_up(seed: int) -> None:
    result = drawn_run(seed)
    check_run(result)
    if not result.config.faults:
        assert result.summary.completed == len(result.workload)


@pytest.mark.parametrize("seed", [61, 63, 68, 72, 80, 90])
def test_instances_do_not_wait_for_each_others_blocks_for_ever(seed: int) -> None:
    """Each prefills for the other and has no block left: runs that stand still if requests always leave."""
    draw = random.Random(seed)
    rows = [
        (draw.choice([0, 0, 2000]) * index, draw.choice([100, 400, 800]), draw.choice([2, 20, 200]))
        for index in range(draw.randint(6, 40))
    ]
    longest = max(-(-(prompt + output) // 16) for _, prompt, output in rows)
    blocks = 2 + longest + draw.choice([0, 1, 5, longest // 2])
    engine = {"num_kv_blocks": blocks, "max_batched_tokens": draw.choice([256, 800, 4000])}
    splitwise = {"max_pending_tokens": draw.choice([1, 900, 2000])}
    instances = draw.choice([1, 1, 2])
    pools = [pool(name, role, instances=instances) for name, role in (("p", "prefill"), ("d", "decode"))]
    routing = {"policy": "splitwise", "splitwise": splitwise}
    network = {"coupling": "isolated"}
    result = simulate(config(pools, routing=routing, engine=engine, network=network, output={"flows": True}), rows)
    assert result.summary.completed == len(rows)
    check_run(result)


def test_machines_move_between_pools_on_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    """A queue of more than 1,000 pending tokens is too long. Requests of 900 come at 0, 1, 2 and 3 µs.

    p-0 and p-1 begin with the first two; the third queues on p-0, behind nobody. The fourth finds p-1 with the fewest
    pending tokens, where nobody queues either. The fifth finds 1,800 on both and a queue: d-0, with two decodes booked
    as d-1 has, joins the mixed pool and does both. It rests when this request is done, before the KV of others comes.
    """
    routing = {"policy": "splitwise", "splitwise": {"max_pending_tokens": 1000}}
    engine = {"max_batched_tokens": 900, "request_latency_ms": 0}
    with caplog.at_level(logging.DEBUG, logger="vidur_pd.cluster.routing.machines"):
        result = simulate(config(TWO_AND_TWO, routing=routing, engine=engine), [(i, 900, 3) for i in range(5)])
    where = [(each.prefill_instance, each.decode_instance) for each in result.requests]
    assert where == [("p-0", "d-0"), ("p-1", "d-1"), ("p-0", "d-0"), ("p-1", "d-1"), ("d-0", "d-0")]
    moves = [record.getMessage().partition(" ps: ") for record in caplog.records]
    assert [text for _, _, text in moves] == ["d-0 leaves pool token for mixed", "d-0 leaves pool mixed for token"]
    there_ps, back_ps = (int(at_ps) for at_ps, _, _ in moves)
    last = result.requests[4]
    assert there_ps == last.arrived_ps
    assert last.kv_bytes is None
    assert last.completed_ps is not None
    assert back_ps >= last.completed_ps


def test_a_mixed_machine_decodes_and_prefills_in_one_iteration() -> None:
    """Its prompt joins the decodes of requests whose KV has come from elsewhere."""
    routing = {"policy": "splitwise", "splitwise": {"max_pending_tokens": 1}}
    pools = [pool("p", "prefill"), pool("d", "decode")]
    rows = [(0, 600, 400), *((400_000 + i, 600, 20) for i in range(3))]
    result = simulate(config(pools, routing=routing, engine={"policy": "splitwise"}, output={"flows": True}), rows)
    columns = result.iterations.columns()
    both = (columns["prefill_tokens"] > 0) & (columns["decode_tokens"] > 0)
    assert set(columns["instance"][both]) == {"d-0"}
    check_run(result)


@pytest.mark.parametrize(
    ("ratio", "instances", "pools"),
    [
        (0.25, 8, [("n-prefill", "prefill", 2), ("n-decode", "decode", 6)]),
        (0.3, 10, [("n-prefill", "prefill", 3), ("n-decode", "decode", 7)]),
        (1, 4, [("n", "mixed", 4)]),
    ],
)
def test_a_node_ratio_divides_a_pool(ratio: float, instances: int, pools: list[tuple[str, str, int]]) -> None:
    tree = config([{"name": "n", "instances": instances, "pd_node_ratio": ratio}])
    assert [(each.name, each.role, each.instances) for each in tree.cluster.pools] == pools
    assert SimulationConfig.model_validate(tree.model_dump(mode="json")) == tree


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        (
            {"instances": 3, "pd_node_ratio": 0.5},
            "pools.n.pd_node_ratio: found 0.5 of 3 instances, which is 1.5, expected",
        ),
        ({"instances": 1, "pd_node_ratio": 0.01}, "pools.n.pd_node_ratio: found 0.01 of 1 instances"),
        ({"instances": 4, "pd_node_ratio": 1.5}, "pools.n.pd_node_ratio: found 1.5, expected a share"),
        ({"instances": 4, "pd_node_ratio": "half"}, "pools.n.pd_node_ratio: found 'half', expected a share"),
        ({"instances": 4, "pd_node_ratio": 0.5, "role": "mixed"}, "pools.n.role: found 'mixed', expected none with"),
    ],
)
def test_a_ratio_without_whole_instances_is_refused(pools: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        config([{"name": "n", **pools}])


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"routing": {"splitwise": {}}}, "splitwise: found with policy 'least_tokens', expected policy splitwise"),
        (
            {"routing": {"policy": "splitwise", "decode_policy": "random"}},
            "decode_policy: found 'random', expected none",
        ),
        ({"routing": {"policy": "splitwise", "splitwise": {"scheduler": "jsq"}}}, "scheduler"),
        ({"routing": {"decode_policy": "splitwise"}}, "decode_policy"),
        ({"routing": {"policy": "splitwise"}, "kv_transfer": {"mode": "push"}}, "kv_transfer.mode: found push"),
        ({"routing": {"policy": "splitwise"}, "pools": [pool("m", "mixed")]}, "routing.policy: found splitwise"),
        (
            {
                "routing": {"policy": "splitwise", "splitwise": {"scheduler": "kv_jsq"}},
                "pools": [*TWO_AND_TWO, pool("m", "mixed")],
            },
            "cluster.pools.m.role: found mixed",
        ),
    ],
)
def test_what_splitwise_cannot_do_is_refused(sections: dict[str, Any], text: str) -> None:
    sections = dict(sections)
    pools = sections.pop("pools", TWO_AND_TWO)
    with pytest.raises((ValueError, InputError), match=re.escape(text)):
        plan_simulation(config(pools, **sections))


def test_the_first_token_is_the_prefills() -> None:
    """Whatever the engine's own connector does."""
    tree = config(TWO_AND_TWO, routing={"policy": "splitwise"}, engine={"framework": "vllm"})
    assert tree.kv_transfer.first_token == "prefill"
