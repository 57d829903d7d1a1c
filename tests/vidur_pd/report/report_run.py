"""A small PD cluster, stepped through iteration by iteration, that writes the output directory of a run.

Prefill instances serve one prompt at a time, each sends KV through one NIC in order, decode instances run continuous
batching. Numbers are round; what matters is that the files agree with each other as those of a real run do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

NIC_BPS = 400e9
KV_BYTES_PER_TOKEN = 70_272
"""DeepSeek-V3 in bf16: 61 layers of 576 latent and rotary elements of 2 bytes."""
KV_BLOCKS = 6000
BLOCK_TOKENS = 16
WINDOW_S = 0.25


@dataclass(frozen=True, slots=True)
class Shape:
    """What to generate; ``rejected`` maps a reason to a number of requests."""

    requests: int = 240
    qps: float = 8.0
    prefill_instances: int = 2
    decode_instances: int = 2
    decode_seats: int = 24
    seed: int = 1
    rejected: Mapping[str, int] = field(default_factory=lambda: {"prompt longer than max_model_len": 3})
    estimates_share: float = 0.04
    is_first_token_from_decode: bool = True
    model: str = "deepseek-v3"


@dataclass(slots=True)
class _Request:
    row: dict[str, object]
    kv_arrived_s: float
    left: int
    last_token_s: float
    prompt: int
    done: int = 0


class _Cluster:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(shape.seed)
        self.rows: list[dict[str, object]] = []
        self.iterations: list[dict[str, object]] = []
        self.carried: dict[tuple[str, str], dict[int, float]] = {}
        self.gaps_s: list[float] = []

    def run(self) -> None:
        arrivals = np.cumsum(self.rng.exponential(1 / self.shape.qps, self.shape.requests))
        queues = [
            self._prefill(place, arrivals[place :: self.shape.prefill_instances])
            for place in range(self.shape.prefill_instances)
        ]
        handed_over = sorted((request for queue in queues for request in queue), key=lambda each: each.kv_arrived_s)
        for place in range(self.shape.decode_instances):
            self._decode(place, handed_over[place :: self.shape.decode_instances])
        self.rows.sort(key=lambda row: float(str(row["arrived_at_s"])))
        for place, row in enumerate(self.rows):
            row["request_id"] = place
        self._reject(float(arrivals[-1]) if len(arrivals) else 1.0)

    def _prefill(self, place: int, arrivals: np.ndarray) -> list[_Request]:
        name, free_s, nic_free_s, served = f"prefill-{place}", 0.0, 0.0, []
        for number, arrived in enumerate(arrivals):
            prompt = int(np.clip(self.rng.lognormal(7.6, 0.8), 16, 30_000))
            output = int(np.clip(self.rng.lognormal(4.4, 0.7), 1, 800))
            start = max(float(arrived), free_s)
            end = free_s = start + 0.004 + 22e-6 * prompt + 2e-10 * prompt**2
            sent = max(end, nic_free_s)
            size = prompt * KV_BYTES_PER_TOKEN
            received = nic_free_s = sent + 20e-6 + size * 8 / NIC_BPS
            target = number % self.shape.decode_instances
            for link in (f"{name}.nic0->leaf0", f"leaf0->spine{place % 2}", f"leaf0->decode-{target}.nic0"):
                self._carry(link, "kv", sent, received, size)
            self._carry(f"{name}.gpu0->nvswitch0", "collective", start, end, prompt * 7168 * 2 * 61 * 2)
            waiting = int(((arrivals > arrived) & (arrivals < start)).sum())
            self._book(
                name,
                "prefill",
                (start, end),
                {
                    "prefill_tokens": prompt,
                    "waiting": waiting,
                    "running": 1,
                    "kv_blocks_used": min(KV_BLOCKS, prompt // BLOCK_TOKENS + 200),
                },
            )
            row: dict[str, object] = {
                "arrived_at_s": arrived,
                "prefill_tokens": prompt,
                "decode_tokens": output,
                "cached_tokens": 0,
                "prefill_instance": name,
                "decode_instance": "",
                "scheduled_at_s": start,
                "prefill_completed_at_s": end,
                "kv_sent_at_s": sent,
                "kv_arrived_at_s": received,
                "pd_p2p_comm_bytes": size,
                "pd_p2p_comm_time_s": received - sent,
                "kv_exposed_s": received - end,
                "preemptions": 0,
                "status": "completed",
            }
            if not self.shape.is_first_token_from_decode:
                row["first_token_at_s"] = end
            self.rows.append(row)
            served.append(_Request(row, received, output - (not self.shape.is_first_token_from_decode), end, prompt))
        return served

    def _decode(self, place: int, waiting: list[_Request]) -> None:
        name, now, running = f"decode-{place}", 0.0, list[_Request]()
        while waiting or running:
            if not running:
                now = max(now, waiting[0].kv_arrived_s)
            while waiting and waiting[0].kv_arrived_s <= now and len(running) < self.shape.decode_seats:
                running.append(waiting.pop(0))
            held = sum(math.ceil((each.prompt + each.done) / BLOCK_TOKENS) for each in running)
            end = now + 0.009 + 0.25e-3 * len(running) + 6e-9 * BLOCK_TOKENS * held
            queued = sum(each.kv_arrived_s <= now for each in waiting)
            self._book(
                name,
                "decode",
                (now, end),
                {
                    "decode_tokens": len(running),
                    "waiting": queued,
                    "running": len(running),
                    "kv_blocks_used": min(KV_BLOCKS, held),
                },
            )
            self._carry(f"{name}.nic0->leaf0", "collective", now, end, len(running) * 7168 * 2 * 58 * 8)
            now = end
            running = [each for each in running if not self._emit(each, name, now)]

    def _emit(self, request: _Request, instance: str, now: float) -> bool:
        """Hands out one token; true when it was the last one."""
        row = request.row
        if request.left <= 0:
            row |= {"decode_instance": instance, "completed_at_s": row["first_token_at_s"]}
            return True
        if "first_token_at_s" in row:
            self.gaps_s.append(now - request.last_token_s)
        row.setdefault("first_token_at_s", now)
        request.last_token_s, request.left, request.done = now, request.left - 1, request.done + 1
        row |= {"decode_instance": instance, "completed_at_s": now}
        return request.left == 0

    def _book(self, name: str, pool: str, span: tuple[float, float], values: dict[str, object]) -> None:
        length = span[1] - span[0]
        parts = {
            "attention_s": 0.22,
            "dense_s": 0.12,
            "experts_s": 0.34,
            "head_s": 0.03,
            "norm_and_small_s": 0.05,
            "host_s": 0.06,
        }
        row: dict[str, object] = {
            "instance": name,
            "pool": pool,
            "start_s": span[0],
            "end_s": span[1],
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "kv_blocks_total": KV_BLOCKS,
        }
        row |= values | {column: share * length for column, share in parts.items()}
        row |= {
            "requests": row["running"],
            "compute_s": 0.82 * length,
            "communication_s": 0.16 * length,
            "estimated_s": 0.04 * length,
        }
        self.iterations.append(row)

    def _carry(self, link: str, traffic: str, start: float, end: float, size: float) -> None:
        windows = self.carried.setdefault((link, traffic), {})
        for window in range(int(start / WINDOW_S), int(end / WINDOW_S) + 1):
            inside = min(end, (window + 1) * WINDOW_S) - max(start, window * WINDOW_S)
            windows[window] = windows.get(window, 0.0) + size * inside / (end - start)

    def _reject(self, last_s: float) -> None:
        for reason, count in self.shape.rejected.items():
            for number in range(count):
                arrived = last_s * (number + 1) / (count + 1)
                self.rows.append(
                    {
                        "request_id": len(self.rows),
                        "arrived_at_s": arrived,
                        "prefill_tokens": 200_000,
                        "decode_tokens": 64,
                        "cached_tokens": 0,
                        "preemptions": 0,
                        "status": f"rejected: {reason}",
                    }
                )


def write_run(folder: Path, shape: Shape = Shape()) -> Path:
    """Writes all files of a run into ``folder``, which is created, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = _Cluster(shape)
    cluster.run()
    requests = request_table(cluster.rows)
    requests.to_csv(folder / "requests.csv", index=False)
    (folder / "summary.json").write_text(json.dumps(_summary(shape, requests, cluster), indent=1))
    (folder / "config.yaml").write_text(yaml.safe_dump(_config(shape), sort_keys=False))
    iterations = pd.DataFrame(cluster.iterations, columns=ITERATION_COLUMNS)
    iterations.to_parquet(folder / "iterations.parquet")
    _link_table(cluster).to_parquet(folder / "links.parquet")
    return folder


REQUEST_COLUMNS = [
    "request_id",
    "arrived_at_s",
    "prefill_tokens",
    "decode_tokens",
    "cached_tokens",
    "prefill_instance",
    "decode_instance",
    "scheduled_at_s",
    "prefill_completed_at_s",
    "kv_sent_at_s",
    "kv_arrived_at_s",
    "first_token_at_s",
    "completed_at_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "pd_p2p_comm_bytes",
    "pd_p2p_comm_time_s",
    "kv_exposed_s",
    "preemptions",
    "status",
]
ITERATION_COLUMNS = [
    "instance",
    "pool",
    "start_s",
    "end_s",
    "requests",
    "prefill_tokens",
    "decode_tokens",
    "waiting",
    "running",
    "kv_blocks_used",
    "kv_blocks_total",
    "compute_s",
    "host_s",
    "communication_s",
    "attention_s",
    "dense_s",
    "experts_s",
    "head_s",
    "norm_and_small_s",
    "estimated_s",
]


def request_table(rows: list[dict[str, object]]) -> pd.DataFrame:
    """The columns of ``requests.csv`` with the three latencies filled in."""
    table = pd.DataFrame(rows, columns=REQUEST_COLUMNS)
    table["ttft_s"] = table["first_token_at_s"] - table["arrived_at_s"]
    gaps = (table["decode_tokens"] - 1).astype(float)
    table["tpot_s"] = ((table["completed_at_s"] - table["first_token_at_s"]) / gaps).where(gaps > 0)
    table["e2e_s"] = table["completed_at_s"] - table["arrived_at_s"]
    return table


def _summary(shape: Shape, requests: pd.DataFrame, cluster: _Cluster) -> dict[str, object]:
    done = requests[requests["status"] == "completed"]
    makespan = float(done["completed_at_s"].max() - requests["arrived_at_s"].min()) if len(done) else 0.0
    met = int(((done["ttft_s"] <= 2.0) & (done["tpot_s"].fillna(0) <= 0.05)).sum())
    counts, edges = np.histogram(cluster.gaps_s, bins=60) if cluster.gaps_s else (np.array([]), np.array([]))

    def rate(amount: float) -> float | None:
        return amount / makespan if makespan else None

    return {
        "model": shape.model,
        "hardware": "h200",
        "seed": shape.seed,
        "workload": {"digest": f"{shape.seed:08x}{round(1000 * shape.qps):08x}"},
        "network": {"backend": "fluid", "coupling": "fluid", "topology": {"kind": "rail_optimized"}, "gpus": 48},
        "requests": len(requests),
        "completed": len(done),
        "rejected": len(requests) - len(done),
        "failed": 0,
        "makespan_s": makespan,
        "throughput": {
            "requests_per_s": rate(len(done)),
            "input_tokens_per_s": rate(float(done["prefill_tokens"].sum())),
            "output_tokens_per_s": rate(float(done["decode_tokens"].sum())),
        },
        "under_load": {
            "from_s": 0.1 * makespan,
            "until_s": 0.9 * makespan,
            "arrivals_per_s": shape.qps,
            "requests_per_s": 1.25 * len(done) / makespan,
            "input_tokens_per_s": 1000.0,
            "output_tokens_per_s": 200.0,
            "goodput": 0.5 * len(done) / makespan,
        }
        if makespan
        else None,
        "cached_input_share": 0.125,
        "ttft_s": _latency(done["ttft_s"]),
        "tpot_s": _latency(done["tpot_s"]),
        "e2e_s": _latency(done["e2e_s"]),
        "itl_s": _latency(pd.Series(cluster.gaps_s, dtype=float)),
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
        "goodput": rate(met),
        "goodput_share": met / len(requests) if len(requests) else None,
        "estimates": shape.estimates_share,
        "estimated_operators": [{"pool": "decode", "operator": "grouped_gemm"}],
        "attribution_s": {
            "queue": 0.1,
            "prefill_compute": 0.3,
            "kv_transfer": 0.2,
            "decode_compute": 1.4,
            "stall": 0.0,
        },
        "communication": {"shares": {"priced": 0.625, "stretched": 0.125, "simulated": 0.25}},
        "energy": {"is_estimate": True, "gpu_j": 1.5e6},
        "itl_histogram": {"edges_s": edges.tolist(), "counts": counts.tolist()},
        "pools": [
            _pool("prefill", shape.prefill_instances, {"tp": 8, "ep": 8, "dp": 1}, cluster),
            _pool("decode", shape.decode_instances, {"tp": 1, "ep": 16, "dp": 16}, cluster),
        ],
        "simulator": {
            "wall_s": 1.9,
            "cpu_s": 1.8,
            "peak_rss_bytes": 2**27,
            "iterations": 1,
            "events": 1,
            "version": "0.1.0",
        },
    }


def _latency(values: pd.Series) -> dict[str, float | None]:
    known = values.dropna()
    if known.empty:
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    return {"mean": known.mean()} | {f"p{share}": known.quantile(share / 100) for share in (50, 90, 99)}


def _pool(name: str, instances: int, degrees: dict[str, int], cluster: _Cluster) -> dict[str, object]:
    mine = [row for row in cluster.iterations if row["pool"] == name]
    end = max((float(str(row["end_s"])) for row in cluster.iterations), default=1.0)
    busy = sum(float(str(row["end_s"])) - float(str(row["start_s"])) for row in mine)
    use = [float(str(row["kv_blocks_used"])) / KV_BLOCKS for row in mine] or [0.0]
    gpus = instances * degrees["tp"] * degrees["dp"]
    return {
        "name": name,
        "role": name,
        "instances": instances,
        **degrees,
        "pp": 1,
        "gpus": gpus,
        "busy_share": busy / end / instances,
        "kv_use_mean": float(np.mean(use)),
        "kv_use_max": max(use),
    }


def _link_table(cluster: _Cluster) -> pd.DataFrame:
    rows = []
    for (link, traffic), windows in cluster.carried.items():
        src, dst = link.split("->")
        kind = "nvlink" if "nvswitch" in link else "fabric" if "spine" in link else "nic"
        capacity = {"nvlink": 3.6e12, "fabric": 4 * NIC_BPS, "nic": NIC_BPS}[kind]
        rows += [
            (link, src, dst, kind, capacity, traffic, window * WINDOW_S, (window + 1) * WINDOW_S, carried)
            for window, carried in windows.items()
        ]
    names = ["link", "src", "dst", "kind", "capacity_bps", "traffic", "window_start_s", "window_end_s", "carried_bytes"]
    table = pd.DataFrame(rows, columns=names)
    seconds = table["window_end_s"] - table["window_start_s"]
    possible = table["capacity_bps"] / 8 * seconds
    return table.assign(measure="use", capacity_bytes=possible, burst_use=table["carried_bytes"] / possible)


def _config(shape: Shape) -> dict[str, object]:
    return {
        "seed": shape.seed,
        "model": shape.model,
        "hardware": "h200",
        "workload": {
            "kind": "synthetic",
            "requests": shape.requests,
            "arrivals": {"kind": "poisson", "qps": shape.qps},
        },
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"},
            "pools": [
                {"name": "prefill", "instances": shape.prefill_instances},
                {"name": "decode", "instances": shape.decode_instances},
            ],
        },
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
    }
