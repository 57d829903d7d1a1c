"""Runs of small clusters in which every order to send KV is written down."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from netsim.units import PS_PER_S
from tests.integration.small_runs import config, pool, requests
from vidur_pd.kv.transfer.delivery import Delivery
from vidur_pd.kv.transfer.transfer import KvTransfer
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload import Workload

MODES = ("pull", "push", "chunked", "layerwise", "tests.vidur_pd.kv_modes.push_in_halves:PushInHalves")
COUPLINGS = ("isolated", "fluid", "exact")
FIRST_TOKENS = ("prefill", "decode_after_transfer", "decode_recompute")
ENGINE = {"estimator": "roofline", "max_batched_tokens": 512}
HOSTS = {"kind": "rail_optimized", "gpus_per_node": 2}
TWO_AND_TWO = [pool("p", "prefill", instances=2, tp=2), pool("d", "decode", instances=2)]


@dataclass(frozen=True, slots=True)
class Order:
    """Tokens of a request that were put on the network in one go."""

    after_tokens: int
    until_tokens: int
    had_room: bool
    was_prefilled: bool


@dataclass(slots=True)
class Watched:
    """A result, and the orders by index of the request."""

    result: Result
    orders: dict[int, list[Order]] = field(default_factory=lambda: defaultdict(list))
    is_network_empty: bool = False


def watch(pools: list[dict[str, Any]], workload: Workload | list[tuple[int, int, int]], **sections: Any) -> Watched:
    """Simulates (arrival in µs, prompt tokens, output tokens) on a cluster; all flows are kept.

    The run itself checks that no KV block is held and no transfer is open at its end.
    """
    engine = ENGINE | sections.pop("engine", {})
    tree = config(pools, **{"topology": HOSTS, "output": {"flows": True}, "engine": engine, **sections})
    state = assemble(plan_simulation(tree))
    orders: dict[int, list[Order]] = defaultdict(list)
    send = Delivery.send

    def watched(delivery: Delivery, transfer: KvTransfer, until_tokens: int) -> None:
        before = transfer.sent_tokens
        was_prefilled, had_room = transfer.is_prefilled, transfer.has_room
        send(delivery, transfer, until_tokens)
        if transfer.sent_tokens > before:
            order = Order(before, transfer.sent_tokens, had_room, was_prefilled)
            orders[transfer.request.index].append(order)

    with closing(state.network), patch.object(Delivery, "send", watched):
        rows = workload if isinstance(workload, Workload) else requests(workload)
        result = Simulation(state, rows).run()
        until_ps = result.end_ps + 100 * PS_PER_S
        return Watched(result, orders, is_network_empty=not state.network.advance(until_ps))
