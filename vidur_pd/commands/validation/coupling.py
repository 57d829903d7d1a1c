"""How far small PD clusters in the couplings `isolated`, `fluid` and `exact` are apart.

`exact` puts every collective of every iteration on the network and is the reference; `fluid` and `isolated` are judged
by mean and 99th percentile of TTFT, TPOT and KV transfer time. Loads come in bursts, so that transfers overlap each
other and the iterations of both sides. `exact` on packets shows what all three leave out: queues and congestion
control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vidur_pd.config import SimulationConfig
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import Workload

COUPLINGS = ("isolated", "fluid", "exact")
PACKETS = {"backend": "packet", "coupling": "exact"}
METRICS = ("ttft", "ttft_p99", "tpot", "tpot_p99", "kv", "kv_p99")


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster and the bursts of requests that it serves."""

    what: str
    model: str
    topology: dict[str, Any]
    pools: tuple[dict[str, Any], ...]
    bursts: int
    burst_requests: int
    every_ms: float
    prompt_tokens: int
    output_tokens: int
    engine: dict[str, Any]
    mode: str = "pull"


def _nodes(gpus_per_node: int, nic: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "rail_optimized", "gpus_per_node": gpus_per_node, "nic": nic, **fields}


_QWEN = {"max_batched_tokens": 2048, "max_seqs": 64, "expert_dispatch": "deepep"}
_EP_TWO_NODES = (
    {"name": "p", "role": "prefill", "tp": 4, "ep": 4},
    {"name": "d", "role": "decode", "dp": 8, "ep": 8},
)
_TWO_EACH = (
    {"name": "p", "role": "prefill", "tp": 4, "ep": 4, "instances": 2},
    {"name": "d", "role": "decode", "dp": 8, "ep": 8, "instances": 2},
)
_MEETING = (
    {"name": "p", "role": "prefill", "tp": 4, "ep": 4},
    {"name": "d", "role": "decode", "dp": 8, "ep": 8, "instances": 2},
)
_TP_TWO_NODES = (
    {"name": "p", "role": "prefill", "tp": 4},
    {"name": "d", "role": "decode", "tp": 4},
)
_INSIDE = (
    {"name": "p", "role": "prefill", "tp": 4, "ep": 4},
    {"name": "d", "role": "decode", "dp": 4, "ep": 4, "instances": 2},
)
_DEEPSEEK = (
    {"name": "p", "role": "prefill", "tp": 8, "ep": 8},
    {"name": "d", "role": "decode", "dp": 16, "ep": 16},
)
_MOE = "qwen3-30b-a3b"

CASES = {
    "ep-400": Case("EP 8 over two nodes", _MOE, _nodes(4, "400Gbps"), _EP_TWO_NODES, 4, 8, 400, 2000, 60, _QWEN),
    "ep-50": Case("EP 8 over two nodes", _MOE, _nodes(4, "50Gbps"), _EP_TWO_NODES, 4, 8, 400, 2000, 60, _QWEN),
    "ep-50-long": Case("the same, long prompts", _MOE, _nodes(4, "50Gbps"), _EP_TWO_NODES, 3, 8, 600, 8000, 60, _QWEN),
    "two-100": Case("two prefill, two decode", _MOE, _nodes(4, "100Gbps"), _TWO_EACH, 3, 16, 400, 3000, 50, _QWEN),
    "over-4": Case(
        "two decode meet on uplinks 4:1",
        _MOE,
        _nodes(4, "100Gbps", nodes_per_segment=2, oversubscription=4),
        _MEETING,
        3,
        16,
        400,
        3000,
        50,
        _QWEN,
    ),
    "inside-4": Case(
        "EP 4 inside nodes, KV over uplinks 4:1",
        _MOE,
        _nodes(4, "100Gbps", nodes_per_segment=1, oversubscription=4),
        _INSIDE,
        3,
        16,
        400,
        3000,
        50,
        _QWEN,
    ),
    "layerwise-50": Case(
        "EP 8, layer-wise", _MOE, _nodes(4, "50Gbps"), _EP_TWO_NODES, 3, 8, 400, 4000, 60, _QWEN, "layerwise"
    ),
    "tp-100": Case("TP 4 over two nodes", "qwen3-8b", _nodes(2, "100Gbps"), _TP_TWO_NODES, 4, 6, 300, 2000, 40, _QWEN),
    "deepseek-50": Case(
        "DeepSeek-V3, EP 16",
        "deepseek-v3",
        _nodes(8, "50Gbps"),
        _DEEPSEEK,
        2,
        8,
        600,
        2000,
        20,
        {"max_batched_tokens": 8192, "max_seqs": 64, "weights": "fp8", "expert_dispatch": "deepep"},
    ),
}


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a run is judged by, in milliseconds."""

    ttft: float
    ttft_p99: float
    tpot: float
    tpot_p99: float
    kv: float
    kv_p99: float
    cpu_s: float

    def errors(self, reference: Latencies) -> dict[str, float]:
        """Relative error of each of ``METRICS``."""
        return {name: getattr(self, name) / getattr(reference, name) - 1 for name in METRICS}


def configuration(case: Case, network: dict[str, Any]) -> SimulationConfig:
    """The configuration of a case; its workload comes from ``bursts``."""
    return SimulationConfig.model_validate(
        {
            "model": case.model,
            "hardware": "h200",
            "workload": {
                "kind": "synthetic",
                "requests": 1,
                "arrivals": {"kind": "static"},
                "lengths": {"kind": "fixed", "prefill": 1, "decode": 1},
            },
            "cluster": {"topology": case.topology, "pools": list(case.pools)},
            "engine": case.engine,
            "kv_transfer": {"mode": case.mode, "first_token": "decode_after_transfer"},
            "network": network,
            "routing": {"policy": "round_robin", "rank_policy": "round_robin"},
        }
    )


def run(case: Case, network: dict[str, Any]) -> Latencies:
    """Simulates a case on a network."""
    result = simulate(configuration(case, network), bursts(case))
    requests = result.requests
    kv_ms = [
        (r.kv_arrived_ps - r.kv_sent_ps) / 1e9
        for r in requests
        if r.kv_arrived_ps is not None and r.kv_sent_ps is not None
    ]
    summary = result.summary
    return Latencies(
        ttft=_ms(summary.ttft_s.mean),
        ttft_p99=_ms(summary.ttft_s.p99),
        tpot=_ms(summary.tpot_s.mean),
        tpot_p99=_ms(summary.tpot_s.p99),
        kv=float(np.mean(kv_ms)),
        kv_p99=float(np.percentile(kv_ms, 99)),
        cpu_s=summary.simulator.cpu_s or 0.0,
    )


def _ms(latency_s: float | None) -> float:
    assert latency_s is not None, "no request completed"
    return 1e3 * latency_s


def bursts(case: Case) -> Workload:
    """Bursts of requests; lengths differ by up to a third around those of the case."""
    requests = case.bursts * case.burst_requests
    random = np.random.default_rng(0)
    arrived_ps = np.repeat(np.arange(case.bursts), case.burst_requests) * round(case.every_ms * 1e9)
    spread = random.uniform(2 / 3, 4 / 3, size=(2, requests))
    return Workload(
        request_ids=tuple(f"r{index}" for index in range(requests)),
        arrived_ps=arrived_ps.astype(np.int64),
        prefill_tokens=np.rint(spread[0] * case.prompt_tokens).astype(np.int64),
        decode_tokens=np.rint(spread[1] * case.output_tokens).astype(np.int64),
    )


def compare(case: Case) -> dict[str, Latencies]:
    """Latencies in every coupling, ``exact`` last."""
    return {coupling: run(case, {"coupling": coupling}) for coupling in COUPLINGS}
