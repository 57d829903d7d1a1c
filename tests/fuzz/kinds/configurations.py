"""Configurations of simulations: YAML and ``--set`` of ``vidur-pd run``, ``compare`` and ``workload generate``."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.mutation import Tree, as_yaml, document, few, mutated, option_value, paths

_WORKLOAD: Final[dict[str, Any]] = {
    "kind": "synthetic",
    "requests": 3,
    "arrivals": {"kind": "poisson", "qps": 4},
    "lengths": {"kind": "fixed", "prefill": 100, "decode": 4},
}
PLAIN: Final[dict[str, Any]] = {
    "seed": 0,
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": _WORKLOAD,
    "cluster": {
        "topology": {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "400Gbps"},
        "pools": [
            {"name": "prefill", "role": "prefill", "instances": 1, "tp": 1},
            {"name": "decode", "role": "decode", "instances": 1, "tp": 1, "engine": {"max_seqs": 20}},
        ],
    },
    "engine": {
        "policy": "vllm_v1", "max_batched_tokens": 8192, "max_seqs": 256, "max_model_len": 4096,
        "long_prefill_token_threshold": 0, "block_tokens": 16, "gpu_memory_utilization": 0.9, "num_kv_blocks": 1000,
        "prefix_caching": False, "cuda_graphs": True, "fast_forward": True, "request_latency_ms": 1, "weights": "bf16",
        "kv": "bf16", "estimator": "auto", "expert_load": "uniform", "overlap": {"shared_expert": False},
    },
    "routing": {"policy": "least_tokens", "rank_policy": "least_requests"},
    "kv_transfer": {"mode": "pull", "first_token": "prefill", "setup_ms": 0.4},
    "network": {"backend": "fluid", "coupling": "fluid", "collectives": "nccl", "congestion_control": "dcqcn"},
    "slo": {"ttft_s": 2.0, "tpot_s": 0.05, "attainment": 0.99, "window_s": 60},
    "output": {"iterations": True, "links": True, "flows": True, "trace": True, "link_windows": 120},
}  # fmt: skip
FAULTY: Final[dict[str, Any]] = PLAIN | {
    "faults": [
        {"kind": "instance", "instance": "decode-0", "at_s": 0.1, "for_s": 0.2},
        {"kind": "gpu", "gpu": 0, "at_s": 0.3, "for_s": 0.1},
        {"kind": "straggler", "instance": "decode-0", "factor": 2, "at_s": 0, "for_s": 1},
        {"kind": "slow_gpu", "gpu": 1, "factor": 4, "at_s": 0, "for_s": 6},
        {"kind": "nic", "gpu": 1, "at_s": 0.4, "for_s": 0.1},
        {"kind": "link", "between": ["gpu0", "leaf0.0"], "at_s": 0.4, "for_s": 0.1},
        {"kind": "link_flap", "between": ["gpu1", "leaf0.0"], "at_s": 0.1, "count": 3, "down_s": 0.05, "up_s": 0.1},
        {"kind": "slow_link", "between": ["gpu1", "leaf0.0"], "share": 0.5, "at_s": 0.1, "for_s": 0.05},
        {"kind": "drain", "instance": "prefill-0", "at_s": 0.5, "for_s": 0.05},
    ],
    "recovery": {
        "requests": "recompute", "max_attempts": 3, "transfer_retries": 3, "transfer_backoff_s": 0.001,
        "without_instance": "wait", "degraded": "drain",
    },
}  # fmt: skip
EXPERTS: Final[dict[str, Any]] = PLAIN | {
    "model": "qwen3-30b-a3b",
    "cluster": {
        "topology": {"kind": "fat_tree", "k": 4},
        "pools": [
            {"name": "m", "role": "mixed", "instances": 2, "tp": 1, "dp": 2, "ep": 2, "pp": 1, "redundant_experts": 2}
        ],
    },
    "engine": {
        "expert_load": "zipf:1.1", "speculative": {"drafts": 2, "acceptance": 0.8}, "prefix_caching": True,
        "expert_dispatch": {"prefill": "all_gather", "decode": "deepep_low_latency"},
        "overlap": {"two_batch": True, "communication_sm_share": 0.1, "decode_tokens_min": 4, "prefill_tokens_min": 64},
    },
}  # fmt: skip
PACKETS: Final[dict[str, Any]] = PLAIN | {
    "network": {
        "backend": "packet", "coupling": "exact", "congestion_control": "dcqcn",
        "roce": {"mtu_bytes": 65536, "cell_packets": 64, "skip_tolerance": 0.01, "congestion": {"gain": 0.1}},
    },
    "cluster": {
        "topology": {"kind": "single_switch", "gpus_per_node": 1},
        "pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
    },
}  # fmt: skip
_UNIFORM: Final = {"kind": "uniform", "min": 10, "max": 100, "prefill_to_decode": 4}
_ZIPF: Final = _UNIFORM | {"kind": "zipf", "theta": 0.6, "scramble": True}
_LOGNORMAL: Final = {
    "kind": "lognormal",
    "prefill": {"mu": 5, "sigma": 0.8, "min": 16, "max": 400},
    "decode": {"mean": 10, "cv": 0.5, "max": 40},
}
_MEDIANS: Final = {
    "kind": "lognormal", "prefill": {"median": 100, "p90": 400}, "decode": {"mean": 10, "median": 8},
}  # fmt: skip
_QUANTILES: Final = {
    "kind": "quantiles",
    "prefill": {"quantiles": [[0, 10], [0.5, 20], [1, 100]]},
    "decode": {"quantiles": [[0, 1], [1, 10]]},
}
_PREFIXES: Final = {
    "system_prompts": 2, "system_tokens": {"mean": 100, "cv": 1, "max": 400}, "popularity_theta": 1, "turns": 2.5,
    "think_time_s": 1, "min_think_time_s": 0.1, "max_prompt_tokens": 900, "hash_block_tokens": 16,
}  # fmt: skip
_SESSIONS: Final = {
    "turns": {"kind": "geometric", "mean": 2.5}, "next_turn": "after_answer",
    "think_time": {"kind": "lognormal", "mean_s": 1, "cv": 1}, "system_prompts": 2, "system_tokens": 40,
    "popularity_theta": 1, "max_prompt_tokens": 900, "hash_block_tokens": 16,
}  # fmt: skip
_CLOSED: Final = {
    "kind": "closed", "clients": 2, "think_time": {"kind": "exponential", "mean_s": 0.5}, "duration_s": 60,
}  # fmt: skip
_STEPS: Final = {"kind": "varying", "rate": {"kind": "steps", "steps": [[1, 4], [2, 0]], "repeats": True}, "cv": 2}
_RISING: Final = {"kind": "varying", "rate": {"kind": "exponential", "from_qps": 1, "to_qps": 9, "duration_s": 2}}
_FROM_FILE: Final = {
    "kind": "varying",
    "rate": {"kind": "file", "path": "t.csv", "column": "decode_tokens", "interval_s": 1, "repeats": True},
}
_CLASSES: Final = {
    "chat": {"share": 0.25, "priority": -1, "lengths": {"kind": "fixed", "prefill": 50, "decode": 3}},
    "batch": {"share": 0.75, "priority": 2},
}
_REPLAY: Final = {
    "kind": "trace", "path": "t.csv", "format": "auto", "limit": 3, "time_scale": 0.5, "prefill_scale": 1.5,
    "decode_scale": 0.5, "jitter_s": 0.1, "max_tokens": 200, "trim": "proportional",
    "window": {"start_s": 0, "end_s": 5}, "skip_zero_output": True, "hash_block_tokens": 512,
}  # fmt: skip
WORKLOADS: Final[tuple[dict[str, Any], ...]] = (
    _WORKLOAD,
    _WORKLOAD | {"arrivals": {"kind": "gamma", "qps": 4, "cv": 2}, "lengths": _UNIFORM},
    _WORKLOAD | {"arrivals": {"kind": "constant", "qps": 4}, "lengths": _ZIPF},
    _WORKLOAD | {"arrivals": {"kind": "static"}, "lengths": _LOGNORMAL},
    _WORKLOAD | {"arrivals": {"kind": "ramp", "from_qps": 1, "to_qps": 5, "shape": "exponential"}, "lengths": _MEDIANS},
    _WORKLOAD | {"lengths": _QUANTILES},
    _WORKLOAD | {"prefixes": _PREFIXES},
    _WORKLOAD | {"arrivals": _CLOSED, "lengths": _LOGNORMAL | {"correlation": 0.5}},
    _WORKLOAD | {"arrivals": _CLOSED, "sessions": _SESSIONS, "classes": _CLASSES},
    _WORKLOAD | {"sessions": _SESSIONS | {"turns": {"kind": "fixed", "turns": 2}, "next_turn": "at_time"}},
    _WORKLOAD | {"arrivals": _STEPS, "lengths": _QUANTILES | {"correlation": -0.5}, "classes": _CLASSES},
    _WORKLOAD | {"arrivals": _RISING, "early_end": {"share": 0.5, "after_tokens": {"mean": 2, "cv": 1}}},
    _WORKLOAD | {"arrivals": _FROM_FILE, "early_end": {"share": 1, "after_tokens": 2}},
    {"kind": "trace", "path": "t.csv", "arrivals": _CLOSED},
    {"kind": "servegen", "path": ".", "window": {"start_s": 0, "end_s": 100}, "limit": 3},
    _REPLAY,
    {"kind": "trace", "path": "t.csv", "format": "csv", "requests": 2, "arrivals": {"kind": "poisson", "qps": 4}},
    {"kind": "mix", "parts": {"a": _WORKLOAD, "b": {"kind": "trace", "path": "t.csv"}}},
)
TRACE: Final = b"request_id,arrived_at_s,prefill_tokens,decode_tokens\na,0,100,4\nb,0.5,80,3\nc,1.25,60,5\n"
CLIENT: Final[dict[str, bytes | Special]] = {
    "chunk-0-trace.csv": b"0,0.05,1,Gamma,1,2\n60,0.05,2,Weibull,0.6,3\n120,0,,,0,0\n",
    "chunk-0-dataset.json": b'{"0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{1: 1.0}"}}',
}
"""A client of ServeGen."""
CONFIGURATIONS: Final = (
    PLAIN,
    PLAIN,
    FAULTY,
    EXPERTS,
    PACKETS,
    *(PLAIN | {"workload": workload} for workload in WORKLOADS),
)


def _names(trees: Sequence[Tree]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path[-1]) for tree in trees for path in paths(tree) if isinstance(path[-1], str)))


NAMES: Final = _names(CONFIGURATIONS)


def generate(rng: random.Random) -> Case:
    """A command with a configuration."""
    tree = rng.choice(CONFIGURATIONS)
    files: dict[str, bytes | Special] = {"c.yaml": as_yaml(tree, random.Random(0)), "t.csv": TRACE}
    if tree["workload"]["kind"] == "servegen":
        files |= CLIENT
    settings: list[str] = []
    if rng.random() < 0.75:
        files["c.yaml"] = _file(tree, rng)
    else:
        settings = [word for _ in range(few(rng)) for word in ("--set", setting(tree, rng))]
    if rng.random() < 0.02:
        files[rng.choice(list(files))] = rng.choice(list(Special))
    match rng.randrange(10):
        case 0:
            backends = rng.choice(
                ("analytical,fluid", "fluid,packet", "fluid", "fluid,fluid", ",", "rdma,fluid", "x,y", "a" * 999 + ",b")
            )
            return Case(
                ("vidur-pd", "compare", "c.yaml", "-o", "out", "--backends", backends, *settings), files, ("out",)
            )
        case 1 | 2 | 3:
            output = rng.choice(("w.csv", "w.csv", "w.jsonl", "w.jsonl.gz", "w.txt"))
            arguments = ("vidur-pd", "workload", "generate", "c.yaml", "-o", output, *settings)
            return Case(arguments, files, (output,))
        case _:
            more = rng.choice((("--quiet",), ("--quiet",), ("--json",), ("--stream", "--quiet")))
            out = "out" if rng.random() < 0.95 else rng.choice(("x" * 300, "no/such/out", "t.csv", "c.yaml/out"))
            return Case(("vidur-pd", "run", "c.yaml", "-o", out, *more, *settings), files, (out,) if out else ())


def _file(tree: Tree, rng: random.Random) -> bytes:
    if rng.random() < 0.04:
        return hostile.yaml_document(rng).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.choice([path for path in paths(tree) if len(path) == 1])[0]
        bomb = rng.choice((hostile.merge_bomb, hostile.alias_bomb))(8)
        name = bomb.rstrip().splitlines()[-1].partition(":")[0]
        return f"{bomb}{as_yaml({k: v for k, v in tree.items() if k != at}, rng).decode()}{at}: *{name}\n".encode()
    return document(rng, lambda: as_yaml(mutated(tree, rng, NAMES), rng))


def setting(tree: Tree, rng: random.Random) -> str:
    """``--set a.b=value``."""
    path = ".".join(map(str, rng.choice(paths(tree))))
    if rng.random() < 0.15:
        path = rng.choice(
            (
                f"{path}.x",
                path[:-1],
                f".{path}",
                f"{path}.",
                "",
                "cluster.pools.9",
                "cluster.pools.٣",
                "cluster.pools.-1",
                "cluster.pools.²",
                "cluster.pools.prefill.tp",
                *hostile.TEXTS,
            )
        )
    value = hostile.yaml_value(rng) if rng.random() < 0.1 else option_value(rng)
    return f"{path}={value}"[:120_000]
