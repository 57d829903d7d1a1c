"""Splitwise's choice of both machines, step by step: who gets a request, and which pool each machine is in.

Rules: ``scheduler.py`` of github.com/Mutinifni/splitwise-sim (8f99e7d). Machines p-0, p-1 for prompts, d-0, d-1 for
tokens; nothing is computed between the arrivals unless a case says so. A block has 4 tokens, and a rank has 100.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aicb import Partition
from vidur_pd._core import Loop
from vidur_pd.cluster.routing import SplitwiseRoutes
from vidur_pd.config import Role, RoutingConfig, SplitwiseConfig
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.scheduling import RankState
from vidur_pd.scheduling.kv_blocks import CountingBlockPool
from vidur_pd.workload.request import Request

ROLES: tuple[tuple[str, Role], ...] = (("p-0", "prefill"), ("p-1", "prefill"), ("d-0", "decode"), ("d-1", "decode"))


class Cluster:
    """Routes over instances whose ranks get the requests, and compute nothing by themselves."""

    def __init__(self, scheduler: str, blocks: int = 100, max_pending_tokens: int = 8192) -> None:
        self.instances = {
            name: Instance(index, _placement(name, role), [(_rank(blocks), None)])
            for index, (name, role) in enumerate(ROLES)
        }
        self.loop = Loop(len(ROLES), keeps_runs=False, links=None)
        for instance in self.instances.values():
            self.loop.add(
                instance, has_runs=False, has_drafts=False, reports_launches=False, launches_itself=True, pricing=[]
            )
        config = SplitwiseConfig.model_validate({"scheduler": scheduler, "max_pending_tokens": max_pending_tokens})
        routing = RoutingConfig(policy="splitwise", splitwise=config)
        self.routes = SplitwiseRoutes(
            list(self.instances.values()), routing, lambda request: request.output_tokens > 1, lambda: 0
        )
        self.requests: list[Request] = []

    def arrive(self, prompt: int, output: int) -> tuple[str, str | None, str]:
        """Prompt machine, token machine (none: it is not chosen yet, or not needed), and the role on the first."""
        request = Request(len(self.requests), f"r{len(self.requests)}", prompt, output, len(self.requests))
        self.requests.append(request)
        assignment, reason = self.routes.enter(request)
        assert assignment is not None, reason
        assignment.rank.state.add(request, assignment.role)
        name = assignment.rank.instance.name
        if assignment.role == "mixed":
            return name, name, "mixed"
        token = self.routes.destination(request) if output > 1 else None
        return name, None if token is None else token.instance.name, assignment.role

    def pools(self) -> dict[str, list[str]]:
        """By name, in their order."""
        return {name: [machine.instance.name for machine in pool] for name, pool in self.routes.pools.machines.items()}


def _placement(name: str, role: Role) -> Placement:
    return Placement(name, name[0], role, Partition(), (0,))


def _rank(blocks: int) -> RankState:
    return RankState(
        CountingBlockPool(blocks + 1, 4), role="mixed", max_batched_tokens=2048, max_seqs=8, max_model_len=4000
    )


def test_round_robin_counts_in_each_pool() -> None:
    """The third request needs no token machine: the fourth has the next one in turn."""
    cluster = Cluster("kv_round_robin")
    chosen = [cluster.arrive(10, output) for output in (5, 5, 1, 5)]
    assert chosen == [
        ("p-0", "d-0", "prefill"),
        ("p-1", "d-1", "prefill"),
        ("p-0", None, "prefill"),
        ("p-1", "d-0", "prefill"),
    ]


def test_jsq_counts_requests_that_are_there() -> None:
    """Prompts wait on p-0 and p-1 by turns, whatever their lengths; no KV has come yet, so d-0 is always the first."""
    cluster = Cluster("kv_jsq")
    chosen = [cluster.arrive(prompt, 5)[:2] for prompt in (300, 10, 10, 10)]
    assert chosen == [("p-0", "d-0"), ("p-1", "d-0"), ("p-0", "d-0"), ("p-1", "d-0")]


def test_token_jsq_counts_prompts_on_one_side_and_requests_on_the_other() -> None:
    """Pending on (p-0, p-1): (300, 0), (300, 10), (300, 20), (300, 320); on (d-0, d-1) one for each."""
    cluster = Cluster("kv_token_jsq")
    chosen = [cluster.arrive(prompt, 5)[:2] for prompt in (300, 10, 10, 300, 10)]
    assert chosen == [("p-0", "d-0"), ("p-1", "d-1"), ("p-1", "d-0"), ("p-1", "d-1"), ("p-0", "d-0")]
    cluster.routes.ended(cluster.requests[0])  # 2 on d-0, as on d-1: the first
    cluster.routes.ended(cluster.requests[2])  # 1 on d-0
    assert cluster.arrive(10, 5)[1] == "d-0"


def test_the_mixed_pool_is_empty_while_there_is_room() -> None:
    """Memory booked on (d-0, d-1): 25 + 25 tokens are 13 blocks, 5 + 5 are 3: the second goes to d-1, so do the others
    until d-1 has more than 13: (13, 3), (13, 6), (13, 9), (13, 12), (13, 15), (16, 15)."""
    cluster = Cluster("mixed_pool")
    chosen = [cluster.arrive(25, 25)[1], *(cluster.arrive(5, 5)[1] for _ in range(6))]
    assert chosen == ["d-0", "d-1", "d-1", "d-1", "d-1", "d-1", "d-0"]
    assert cluster.pools() == {"prompt": ["p-0", "p-1"], "token": ["d-0", "d-1"], "mixed": []}


def test_prompts_spill_onto_a_token_machine_and_it_returns_when_it_rests() -> None:
    """At most 100 pending tokens where requests queue. p-0 and p-1 have 90 each; the third prompt of 20 would make 110.

    No machine is mixed: of the token machines d-0 and d-1, which have one pending token each, the first gets it and
    joins the mixed pool. Its decode is chosen before: of d-0 and d-1, with equal memory booked, the first. So both
    phases are on d-0. The fourth prompt, of 10, fits on p-0.
    """
    cluster = Cluster("mixed_pool", max_pending_tokens=100)
    assert [cluster.arrive(90, 10)[:2] for _ in range(2)] == [("p-0", "d-0"), ("p-1", "d-1")]
    assert cluster.arrive(20, 10) == ("d-0", "d-0", "mixed")
    assert cluster.pools() == {"prompt": ["p-0", "p-1"], "token": ["d-1"], "mixed": ["d-0"]}
    assert cluster.arrive(10, 10) == ("p-0", "d-1", "prefill")
    # d-0 has 20 + 2 pending: a prompt of 30 is too many for p-1 and p-0, but not for the mixed pool.
    assert cluster.arrive(30, 10)[0] == "d-0"
    cluster.routes.rests(cluster.instances["d-1"])  # not mixed: nothing happens
    cluster.routes.rests(cluster.instances["d-0"])
    assert cluster.pools() == {"prompt": ["p-0", "p-1"], "token": ["d-1", "d-0"], "mixed": []}


def test_decodes_spill_onto_a_prompt_machine() -> None:
    """10 blocks each. Requests of 16 + 16 tokens book 8: the first two fill the token machines, as 16 are more than 10.

    The third has its prompt on p-0, where 16 tokens are pending as on p-1, and its decode where the least is booked of
    the prompt machines: 16 + 1 tokens of the first two requests are 5 blocks on each, so p-0, which becomes mixed and
    does both. It books 8 there, 13 in all. The fourth is prefilled on p-1, the prompt machine that is left; that is
    also the one that its decode takes.
    """
    cluster = Cluster("mixed_pool", blocks=10)
    assert [cluster.arrive(16, 16)[:2] for _ in range(2)] == [("p-0", "d-0"), ("p-1", "d-1")]
    assert cluster.arrive(16, 16) == ("p-0", "p-0", "mixed")
    assert cluster.pools() == {"prompt": ["p-1"], "token": ["d-0", "d-1"], "mixed": ["p-0"]}
    assert cluster.arrive(16, 16) == ("p-1", "p-1", "mixed")
    assert cluster.pools() == {"prompt": [], "token": ["d-0", "d-1"], "mixed": ["p-0", "p-1"]}


def test_without_any_room_both_phases_run_where_the_fewest_tokens_are_pending() -> None:
    """As above until all memory is booked. No prompt machine is left: the fifth prompt looks among the mixed ones
    (33 pending tokens on each: 16 + 16 of prompts, 1 decode), which take it, as 8192 may be pending. No token machine
    has memory, and no prompt machine could spill: of all, the fewest are pending on d-0 and d-1 (1 each), so d-0."""
    cluster = Cluster("mixed_pool", blocks=10)
    for _ in range(4):
        cluster.arrive(16, 16)
    assert cluster.arrive(16, 16) == ("d-0", "d-0", "mixed")
    assert cluster.pools() == {"prompt": [], "token": ["d-0", "d-1"], "mixed": ["p-0", "p-1"]}
    assert cluster.arrive(16, 16) == ("d-1", "d-1", "mixed")  # 16 + 2 on d-0, 1 on d-1


def test_memory_of_a_prompt_is_free_once_it_has_been_handed_over() -> None:
    """Of a request that stays where it was prefilled, the decode is booked there instead."""
    cluster = Cluster("mixed_pool")
    cluster.arrive(16, 16)
    cluster.arrive(16, 16)
    booked = _booked(cluster)
    assert booked() == {"p-0": 5, "p-1": 5, "d-0": 8, "d-1": 8}
    cluster.routes.kv_left(cluster.requests[0])
    cluster.routes.stays(cluster.requests[1])
    assert booked() == {"p-0": 0, "p-1": 8, "d-0": 8, "d-1": 0}
    for request in cluster.requests:
        cluster.routes.ended(request)
    assert booked() == dict.fromkeys(booked(), 0)


def _booked(cluster: Cluster) -> Callable[[], dict[str, int]]:
    machines = [machine for pool in cluster.routes.pools.machines.values() for machine in pool]
    return lambda: {machine.instance.name: machine.booked_blocks for machine in machines}


@pytest.mark.parametrize("scheduler", ["mixed_pool", "kv_jsq", "kv_token_jsq", "kv_round_robin"])
def test_closed_machines_get_nothing(scheduler: str) -> None:
    cluster = Cluster(scheduler)
    for name in ("p-0", "d-1"):
        cluster.routes.set_open(cluster.instances[name], is_open=False)
    assert {cluster.arrive(10, 5) for _ in range(3)} == {("p-1", "d-0", "prefill")}
    cluster.routes.set_open(cluster.instances["d-0"], is_open=False)
    waits = cluster.routes.destination(cluster.requests[0])
    spilled = "p-1" if scheduler == "mixed_pool" else None
    assert (None if waits is None else waits.instance.name) == spilled
    cluster.routes.set_open(cluster.instances["d-1"], is_open=True)
    assert cluster.routes.destination(cluster.requests[1]) is cluster.instances["d-1"].ranks[0]
