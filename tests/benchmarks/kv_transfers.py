"""CPU time of one KV transfer on one core: ``python -m tests.benchmarks.kv_transfers [--transfers N]``.

plan: the flow graph of a hand-off, by `simccl.kv_handoff_plan` or from a template. send, network, arrived: `KvSender`
on the ``fluid`` backend, eight transfers at a time between random ranks, from their submission to the booking of their
links; the flows of two ranks are laid out at their first transfer (with 4,096 GPUs, nearly every one). Prompts have 512
to 16,384 tokens. Prints; does not gate.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsim import FlowGraph
from netsim.units import PS_PER_MS
from simccl import KvLayout, LayerCache, kv_handoff_plan, kv_template
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.execution.network_clock import FAR_PS
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.kv.transfer.transfer import LayerTimes
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import SimulationState, assemble

AT_A_TIME = 8
Pool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    model: str
    prefill: Pool
    decode: Pool
    nodes: int = 8

    def assembled(self) -> SimulationState:
        pools = [{"name": role, "role": role, **pool} for role, pool in self._pools()]
        topology = {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps", "nodes": self.nodes}
        tree = {
            "model": self.model,
            "hardware": "h200",
            "workload": {
                "kind": "synthetic",
                "requests": 1,
                "arrivals": {"kind": "poisson", "qps": 1},
                "lengths": {"kind": "fixed", "prefill": 512, "decode": 2},
            },
            "cluster": {"topology": topology, "pools": pools},
            "engine": {"weights": "fp8"},
        }
        return assemble(plan_simulation(SimulationConfig.model_validate(tree)))

    def _pools(self) -> list[tuple[str, Pool]]:
        return [("prefill", self.prefill), ("decode", self.decode)]


CASES = [
    Case("deepseek-v3 dp16 → dp32", "deepseek-v3", {"instances": 2, "ep": 16, "dp": 16}, {"ep": 32, "dp": 32}),
    Case(
        "deepseek-v3 dp16 → dp32, 4,096 GPUs",
        "deepseek-v3",
        {"instances": 128, "ep": 16, "dp": 16},
        {"instances": 64, "ep": 32, "dp": 32},
        nodes=512,
    ),
    Case("qwen3-8b tp4 → tp2", "qwen3-8b", {"instances": 8, "tp": 4}, {"instances": 16, "tp": 2}),
    Case("qwen3-next-80b tp4 → tp2", "qwen3-next-80b-a3b", {"instances": 8, "tp": 4}, {"instances": 16, "tp": 2}),
]


def plans_us(layers_per_flow: int | None) -> dict[str, float]:
    """CPU µs to plan the latent of 61 layers between two GPUs, flow graph included."""
    source, destination, plans = KvLayout((0,), 1), KvLayout((8,), 1), 500
    token = LayerCache((1152,) * 61, None)
    flows = kv_template(source, destination, kv=token, layers_per_flow=layers_per_flow).between(source, destination)
    ready_ps = np.arange(61) * 10**9

    def one_by_one(tokens: int) -> FlowGraph:
        kv = LayerCache((1152 * tokens,) * 61, None)
        return kv_handoff_plan(
            source, destination, kv=kv, layer_ready_ps=ready_ps.tolist(), layers_per_flow=layers_per_flow
        ).graph()

    def from_template(tokens: int) -> FlowGraph:
        return flows.graph(tokens, ready_ps)

    took_us = {}
    for plan in (one_by_one, from_template):
        begin = time.process_time()
        for tokens in range(1, plans + 1):
            plan(tokens)
        took_us[plan.__name__.replace("_", " ")] = (time.process_time() - begin) / plans * 1e6
    return took_us


def transfers_us(state: SimulationState, transfers: int, *, layerwise: bool) -> dict[str, float]:
    """CPU µs per transfer of each step."""
    network = state.network
    sender = KvSender(
        state.plan.model,
        state.plan.kv_precision,
        network,
        state.plan.topology,
        state.plan.config.kv_transfer,
        block_tokens=state.plan.kv_block_tokens,
        keep_flows=False,
        slowness=state.plan.connector_slowness,
    )
    steps = np.zeros(3)
    waiting = _transfers(state, transfers)
    while sender.active or waiting:
        marks = [time.process_time()]
        while sender.active < AT_A_TIME and waiting:
            source, destination, tokens = waiting.pop()
            now_ps = network.now_ps
            layers = LayerTimes(now_ps, now_ps + 20 * PS_PER_MS) if layerwise else None
            sender.send(source, destination, tokens, with_state=sender.has_state, now_ps=now_ps, layers=layers)
        marks.append(time.process_time())
        completions = network.advance(FAR_PS)
        marks.append(time.process_time())
        for completion in completions:
            sender.arrived(completion.handle)
        marks.append(time.process_time())
        steps += np.diff(marks)
    return dict(zip(("send", "network", "arrived"), (steps / transfers * 1e6).tolist(), strict=True))


def _transfers(state: SimulationState, transfers: int) -> list[tuple[Rank, Rank, int]]:
    """Source, destination, tokens."""
    rng = np.random.default_rng(0)
    ranks = {
        role: [rank for instance in state.instances if instance.placement.role == role for rank in instance.ranks]
        for role in ("prefill", "decode")
    }
    source, destination = (rng.integers(0, len(of_role), transfers).tolist() for of_role in ranks.values())
    tokens = rng.integers(512, 16_384, transfers).tolist()
    return [
        (ranks["prefill"][i], ranks["decode"][j], count)
        for i, j, count in zip(source, destination, tokens, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transfers", type=int, default=12_000, help="of each case")
    transfers = parser.parse_args().transfers
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name, layers_per_flow in (("whole", None), ("layer by layer", 1)):
        for way, took_us in plans_us(layers_per_flow).items():
            print(f"plan of 61 layers, {name}, {way:15} {took_us:8.1f} µs {1e6 / took_us:10,.0f} plans/s")
    for case in CASES:
        for layerwise in (False, True):
            spent = transfers_us(case.assembled(), transfers, layerwise=layerwise)
            total_us = sum(spent.values())
            steps = "  ".join(f"{step} {took_us:6.1f}" for step, took_us in spent.items())
            name = f"{case.name}{', layer by layer' if layerwise else ''}"
            print(f"{name:52} {steps}  in all {total_us:7.1f} µs {1e6 / total_us:9,.0f} transfers/s", flush=True)


if __name__ == "__main__":
    main()
