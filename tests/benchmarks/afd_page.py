"""The tables of docs/afd.md: steady decodes of attention workers and FFN workers on an idle fabric.

    python -m tests.benchmarks.afd_page [attention] [published] [deepseek]

Every rank has as many requests of one length, in iterations one after another; nothing else is on the network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aicb import (
    Batch,
    Partition,
    Phase,
    Precision,
    attention_operators,
    get_gpu,
    load_model,
)
from aicb.estimators.selection import select_estimator
from aicb.iteration.layer_schedule import Exchange, HalfBatch, layered_overlap
from aicb.iteration.pricing import Pricing, price_operators
from aicb.iteration.workers import at_clock_ps
from aicb.model.architecture import MoeFfn
from aicb.model.worker_split import WorkerSplit
from aicb.operators.workers import attention_token_operators
from netsim.units import PS_PER_S
from vidur_pd.config import SimulationConfig
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble

PREFILL = {"name": "p", "role": "prefill"}
"""Stands in the configuration, which has to have one; on GPUs of its own."""


@dataclass(frozen=True)
class Deployment:
    """A decode instance."""

    model: str
    hardware: str
    pool: dict[str, Any]
    topology: dict[str, Any]
    prefill: dict[str, Any]
    engine: dict[str, Any]

    def config(self) -> SimulationConfig:
        lengths = {"kind": "fixed", "prefill": 1, "decode": 1}
        workload = {"kind": "synthetic", "requests": 1, "arrivals": {"kind": "static"}, "lengths": lengths}
        pools = [{**PREFILL, **self.prefill}, {"name": "d", "role": "decode", **self.pool}]
        tree = {
            "model": self.model,
            "hardware": self.hardware,
            "workload": workload,
            "cluster": {"topology": self.topology, "pools": pools},
            "engine": self.engine,
            "network": {"coupling": "isolated"},
        }
        return SimulationConfig.model_validate(tree)


@dataclass(frozen=True)
class Steady:
    """Iterations of a deployment with so many requests of each rank."""

    step_s: float
    tokens_per_s_per_gpu: float


class Decode:
    """The priced instance of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        state = assemble(plan_simulation(deployment.config()))
        place = next(place for place in range(len(state.instances)) if state.instances[place].name == "d-0")
        self._pricer, self._instance = state.iteration_pricers[place], state.instances[place]
        self.plan = state.plan.pools["d"]
        self._collectives = state.communication_pricers[self.plan.gpu.interconnect]

    @property
    def gpus(self) -> int:
        return len(self._instance.placement.all_gpus)

    def room(self, context: int) -> int:
        """Requests of a rank that fit into memory, and into a batch."""
        tokens = self.plan.num_kv_blocks * self.plan.engine.block_tokens
        return min(tokens // context, self.plan.engine.max_seqs)

    def fastest_within(self, limit_s: float, context: int) -> tuple[int, Steady]:
        """Most requests of a rank whose iterations keep a limit, and what they come to; 0 where none does."""
        low, high = 0, self.room(context)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.steady(middle, context).step_s <= limit_s else (low, middle - 1)
        return low, self.steady(max(low, 1), context)

    def steady(self, requests: int, context: int) -> Steady:
        """``requests`` of ``context`` tokens on every rank."""
        ranks = self._instance.placement.partition.dp
        batches = [Batch.decode([context] * requests) for _ in range(ranks)]
        halved = (
            None if self.plan.halves is None else self.plan.halves.of(batches, self.plan.iteration_model.graph_sizes)
        )
        step_ps = self._pricer.idle_ps(batches) if halved is None else self._in_two(halved)
        return Steady(step_ps / PS_PER_S, ranks * requests / (step_ps / PS_PER_S) / self.gpus)

    def _in_two(self, halved: tuple[Sequence[Batch], Sequence[Batch]]) -> int:
        """Two half batches in turns; all collectives are among all ranks."""
        model, halves = self.plan.iteration_model, self.plan.halves
        assert halves is not None
        group = self._instance.placement.gpus

        def half(batches: Sequence[Batch]) -> HalfBatch:
            cost = model.price_device(batches)
            times_ps = [count * self._collectives.cost(what, group).duration_ps for what, count in cost.communications]
            tokens = model.graph_sizes.padded(max(batch.tokens for batch in batches), has_prompts=False)
            return HalfBatch(model.layer_parts(cost, tokens), Exchange(sum(times_ps[::2]), sum(times_ps[1::2])))

        return layered_overlap(
            (half(halved[0]), half(halved[1])),
            model.layers_with_experts(),
            halves.decode_schedule,
            communication_sm_share=halves.communication_sm_share,
            communication_busy_share=halves.communication_busy_share,
        ).lasting_ps()


def afd(attention: int, ffn: dict[str, Any]) -> dict[str, Any]:
    """Fields of a pool with so many attention workers."""
    return {"dp": attention, "ffn": ffn}


NVL72 = {"kind": "nvswitch", "gpus_per_node": 80}
"""GB200s of one NVLink domain, with four more for prompts."""
GB200 = {"weights": "fp8", "max_batched_tokens": 512, "max_seqs": 256, "expert_dispatch": "deepep"}
PUBLISHED = (
    ("qwen3-235b-a22b", 8192, 64, 96, 35.9, {3: (1.23, 32.8), 7: (1.41, 33.4), 17: (1.04, 48.7)}),
    ("qwen3-235b-a22b", 16384, 32, 48, None, {11: (1.44, None)}),
    ("minimax-m2", 8192, 48, 72, None, {17: (1.45, None)}),
    ("minimax-m2", 16384, 24, 36, None, {17: (1.35, None)}),
)
"""FastAFD (Hao AI Lab, 2026-07-06): model, context, requests of a GPU together and of an attention worker, ms of a step
together; and, by nodes of four attention GPUs per node of FFN GPUs, tokens/s per GPU over those of four GPUs together,
and ms of a step."""


def published() -> Iterator[str]:
    yield (
        "| model | context | attention : FFN GPUs | ratio, published | simulated | step together, published | "
        "simulated | step apart, published | simulated |"
    )
    yield "|---|---:|---:|" + "---:|" * 6
    for model, context, together, apart, whole_ms, ratios in PUBLISHED:
        fields = (NVL72, {"tp": 4}, GB200)
        whole = Decode(Deployment(model, "gb200", {"dp": 4, "ep": 4}, *fields)).steady(together, context)
        for nodes, (ratio, step_ms) in ratios.items():
            ffn = {"dp": 4, "ep": 4, "micro_batches": 2}
            split = Decode(Deployment(model, "gb200", afd(4 * nodes, ffn), *fields)).steady(apart, context)
            found = split.tokens_per_s_per_gpu / whole.tokens_per_s_per_gpu
            yield (
                f"| {model} | {context:,} | {4 * nodes} : 4 | {ratio:.2f} | {found:.2f} | {whole_ms or '–'} | "
                f"{1e3 * whole.step_s:.1f} | {step_ms or '–'} | {1e3 * split.step_s:.1f} |"
            )


RAILS = {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"}
H200 = {
    "weights": "fp8",
    "max_seqs": 1024,
    "max_batched_tokens": 1024,
    "mla_kernel": "flash_mla",
    "expert_dispatch": "deepep",
}
TWO_BATCH = {"two_batch": True, "cut": "own", "decode_tokens_min": 1, "communication_sm_share": 0.0}
WIDE = {"dp": 24, "ep": 24, "redundant_experts": 8}
DEEPSEEK: dict[str, dict[str, Any]] = {
    "24 together": {"dp": 24, "ep": 24, "redundant_experts": 8},
    "24 together, two half batches": {"dp": 24, "ep": 24, "redundant_experts": 8, "engine": {"overlap": TWO_BATCH}},
    "16 : 8, m 1": afd(16, {"dp": 8, "ep": 8, "micro_batches": 1}),
    "16 : 8, m 2": afd(16, {"dp": 8, "ep": 8, "micro_batches": 2}),
    "16 : 8, m 3": afd(16, {"dp": 8, "ep": 8, "micro_batches": 3}),
    "16 : 8, m 3, a row per worker": afd(16, {"dp": 8, "ep": 8, "micro_batches": 3, "messages": "per_worker"}),
    "16 : 8, m 3, a row per server": afd(16, {"dp": 8, "ep": 8, "micro_batches": 3, "messages": "per_node"}),
    "72 together, two half batches": {"dp": 72, "ep": 72, "redundant_experts": 32, "engine": {"overlap": TWO_BATCH}},
    "48 : 24, m 3": afd(48, {**WIDE, "micro_batches": 3}),
    "48 : 24, m 2, a row per server": afd(48, {**WIDE, "micro_batches": 2, "messages": "per_node"}),
    "48 : 24, m 3, a row per server": afd(48, {**WIDE, "micro_batches": 3, "messages": "per_node"}),
    "56 : 16, m 3, a row per server": afd(56, {"dp": 16, "ep": 16, "micro_batches": 3, "messages": "per_node"}),
}
LIMITS_MS = (50, 100)


def deepseek() -> Iterator[str]:
    yield (
        "| attention : FFN GPUs | context | KV room, requests | "
        + " | ".join(f"requests at {limit} ms | tokens/s per GPU" for limit in LIMITS_MS)
        + " |"
    )
    yield "|---|---:|---:|" + "---:|---:|" * len(LIMITS_MS)
    for context in (4096, 32768):
        for label, pool in DEEPSEEK.items():
            decode = Decode(Deployment("deepseek-v3", "h200", pool, RAILS, {"dp": 32, "ep": 32}, H200))
            cells = []
            for limit in LIMITS_MS:
                requests, found = decode.fastest_within(limit / 1e3, context)
                cells += [f"{requests:,}", f"{found.tokens_per_s_per_gpu:,.0f}" if requests else "none"]
            yield f"| {label} | {context:,} | {decode.room(context):,} | {' | '.join(cells)} |"


ATTENTION = (
    ("deepseek-v3", 1, 64, {"h800": {8192: 372, 32768: 1125}, "h20": {8192: 1252, 32768: 4817}}),
    ("qwen3-235b-a22b", 4, 256, {"h800": {8192: 382, 32768: 1391}, "h20": {8192: 812, 32768: 3042}}),
)
"""Step-3 (arXiv 2507.19427, table 9): four GPUs, 256 requests: latent attention data-parallel, grouped-query attention
divided by tp; µs of one layer with its projections, fp8 products and bf16 attention. By model, tp, requests of a rank,
GPU and context."""


def attention() -> Iterator[str]:
    yield "| attention of | GPU | context | µs of a layer, published | simulated | |"
    yield "|---|---|---:|---:|---:|---:|"
    precision = Precision(weights="fp8")
    for name, tp, requests, by_gpu in ATTENTION:
        model = load_model(name)
        has_shared = any(isinstance(kind.ffn, MoeFfn) and kind.ffn.shared_intermediate for kind in model.kinds)
        split = WorkerSplit(Partition(tp), Partition(), 1, "per_expert", "ffn" if has_shared else "attention")
        for gpu, published_us in by_gpu.items():
            pricing = Pricing(select_estimator("auto", get_gpu(gpu), precision), get_gpu(gpu), precision)
            for context, expected_us in published_us.items():
                batch = Batch.decode([context] * requests)
                listed = [
                    *attention_token_operators(model, split, precision, tokens=requests),
                    *attention_operators(model, split.attention, precision, batch),
                ]
                own = [each for each in listed if each.phase not in (Phase.EXPERTS, Phase.HEAD)]
                found_us = (
                    at_clock_ps(price_operators(own, pricing), get_gpu(gpu), is_decode=True) / len(model.layers) / 1e6
                )
                yield (
                    f"| {name} | {gpu} | {context:,} | {expected_us:,} | {found_us:,.0f} | "
                    f"{100 * (found_us / expected_us - 1):+.0f} % |"
                )


TABLES = {"attention": attention, "published": published, "deepseek": deepseek}

if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        print("\n".join(TABLES[name]()))
