"""Random valid configurations, each small enough to simulate in about a second.

A seed names a configuration for good. Backends and couplings take turns, so that any run of seeds has all of them; the
rest is drawn. What is drawn is valid by construction: a configuration that is refused is a failure.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from netsim.topologies import to_yaml
from netsim.topologies.build import build, parse_spec
from tests.integration.random_faults import random_faults
from tests.integration.random_workloads import random_workload
from vidur_pd.config import SimulationConfig
from vidur_pd.config.file import load_config
from vidur_pd.workload import Workload, generator, load_workload

NETWORKS: Final = (
    ("fluid", "fluid"),
    ("fluid", "exact"),
    ("packet", "exact"),
    ("fluid", "isolated"),
    ("packet", "isolated"),
    ("analytical", "fluid"),
    ("ns3", "exact"),
    ("fluid", "fluid"),
    ("analytical", "isolated"),
    ("ns3", "isolated"),
)
"""(backend, coupling), in turns; the default stands twice."""
OF_PACKETS: Final = ("packet", "ns3")
TOPOLOGIES: Final = (
    "rail_optimized",
    "single_switch",
    "fat_tree",
    "dragonfly",
    "spectrum_x",
    "alibaba_hpn",
    "dcn_plus",
    "file",
    "nvswitch",
    "nvl72",
)


class Division(NamedTuple):
    """Parallel sizes of an instance."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True)
class Family:
    """Models, what they fit on in bf16, and what their engines may do."""

    models: tuple[str, ...]
    divisions: tuple[Division, ...]
    gpus: tuple[str, ...] = ("a100", "b200", "h20", "h100", "h200", "h800")
    weights: tuple[str, ...] = ("bf16", "fp8")
    experts: int = 0
    has_shared_expert: bool = False
    most_instances: int = 4


FAMILIES: Final = (
    Family(
        ("qwen3-0.6b", "qwen3-8b", "llama-3.1-8b", "llama-2-7b", "llama-2-13b"),
        (Division(), Division(2), Division(4), Division(dp=2), Division(pp=2), Division(2, pp=2)),
    ),
    Family(
        ("qwen3-30b-a3b",),
        (Division(2), Division(2, 2), Division(1, 2, 2), Division(2, 4, 2), Division(1, 4, 4), Division(2, 2, pp=2)),
        experts=128,
        most_instances=3,
    ),
    Family(
        ("mixtral-8x7b",),
        (Division(2), Division(2, 2), Division(1, 2, 2), Division(4, 4), Division(1, 4, 4), Division(2, pp=2)),
        experts=8,
        most_instances=3,
    ),
    Family(
        ("qwen3-next-80b-a3b",),
        (Division(4, 4), Division(1, 4, 4), Division(2, 4, 2)),
        experts=512,
        has_shared_expert=True,
        most_instances=2,
    ),
    Family(
        ("deepseek-v3",),
        (Division(8, 8), Division(1, 8, 8), Division(4, 8, 2)),
        gpus=("h200", "b200"),
        weights=("fp8",),
        experts=256,
        has_shared_expert=True,
        most_instances=1,
    ),
)
SMALLEST: Final = Family(
    ("qwen3-0.6b", "qwen3-8b", "llama-3.1-8b"), (Division(), Division(2), Division(dp=2)), most_instances=2
)
"""For collectives of packets, of which every one is simulated."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A configuration as its file says it, with the files that it names."""

    seed: int
    tree: dict[str, Any]
    files: dict[str, str]
    """By name, beside the configuration."""

    @property
    def network(self) -> str:
        network = self.tree["network"]
        return f"{network['backend']}-{network['coupling']}"

    def with_topology(self, **fields: Any) -> Scenario:
        """The same with other numbers in its topology."""
        cluster = self.tree["cluster"]
        topology = cluster["topology"] | fields
        return replace(self, tree=self.tree | {"cluster": cluster | {"topology": topology}})

    def with_fields(self, **sections: Any) -> Scenario:
        return replace(self, tree=self.tree | sections)

    def write(self, folder: Path) -> Path:
        """Writes everything that a run needs; returns the configuration's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(_with_topology_file(self.tree, folder), sort_keys=False))
        return path

    def load(self, folder: Path) -> tuple[SimulationConfig, Workload]:
        """Writes it, and reads it as the command line does."""
        path = self.write(folder)
        config = load_config(path, [])
        return config, load_workload(config.workload, base_dir=folder, rng=lambda name: generator(config.seed, name))


def _with_topology_file(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The tree, with a topology of kind ``file`` written out: a rail-optimised one with the same numbers."""
    cluster = tree["cluster"]
    topology = cluster["topology"]
    if topology["kind"] != "file":
        return tree
    spec = parse_spec({**topology, "kind": "rail_optimized"})
    (folder / "topology.yaml").write_text(to_yaml(build(spec)))
    return tree | {"cluster": cluster | {"topology": {"file": "topology.yaml"}}}


def random_scenario(seed: int) -> Scenario:
    """The configuration of a seed, without faults."""
    return _Draw(seed).scenario()


def with_faults(scenario: Scenario, folder: Path) -> Scenario:
    """The same cluster, of which parts fail."""
    config, workload = scenario.load(folder)
    until_s = max(0.1, 1.2e-12 * float(workload.arrived_ps.max()))
    faults, recovery = random_faults(random.Random(scenario.seed), config, until_s)
    return scenario.with_fields(faults=faults, recovery=recovery)


def random_connector(rng: random.Random) -> dict[str, Any]:
    """What carries KV, some of it in chunks, over several NICs, or through the host."""
    kind = rng.choice(("ideal", "ideal", "nixl", "nixl", "mooncake", "lmcache", "sglang_nixl"))
    connector: dict[str, Any] = {"kind": kind, "handshake_descriptor_us": rng.choice((0.0, 0.001))}
    if kind not in ("ideal", "mooncake"):  # of which copies through hosts are not measured
        connector["path"] = rng.choice(("direct", "host"))
    return {"connector": connector} | ({"mode": "chunked"} if rng.random() < 0.2 else {})


class _Draw:
    """The choices of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.backend, self.coupling = NETWORKS[seed % len(NETWORKS)]
        self.has_costly_collectives = self.backend in OF_PACKETS and self.coupling == "exact"
        self.family = SMALLEST if self.has_costly_collectives else self.one_of(FAMILIES, (8, 3, 2, 1, 1))
        self.gpu = self.one_of(self.family.gpus)
        self.files: dict[str, str] = {}

    def one_of(self, values: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        return self.random.choices(values, weights)[0]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def scenario(self) -> Scenario:
        pools = self.pools()
        tree = {
            "seed": self.random.randrange(10**6),
            "model": self.one_of(self.family.models),
            "hardware": self.gpu,
            "workload": self.workload(),
            "cluster": {"topology": self.topology(pools), "pools": pools},
            "engine": self.engine(pools),
            "routing": {
                "policy": self.one_of(("round_robin", "random", "least_requests", "least_tokens")),
                "rank_policy": self.one_of(("round_robin", "least_requests", "least_tokens")),
            },
            "kv_transfer": {
                "mode": self.one_of(("pull", "push", "layerwise")),
                "first_token": self.one_of(("prefill", "decode_after_transfer", "decode_recompute")),
                "setup_ms": self.one_of((0, 0.4, 3)),
            },
            "network": self.network(),
            "slo": {"ttft_s": self.one_of((0.2, 2.0)), "tpot_s": self.one_of((0.01, 0.05)), "window_s": 0.5},
            "output": {"link_windows": self.one_of((1, 7, 120, 1000)), "iterations": self.chance(0.8), "flows": True},
        }
        tree["kv_transfer"] |= random_connector(random.Random(f"connector {self.seed}"))
        return Scenario(self.seed, self.with_engine_options(tree, random.Random(f"engine {self.seed}")), self.files)

    def with_engine_options(self, tree: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        """What drafts, what lies in front of the engines, experts that change, and where two batches are cut."""
        engine = tree["engine"]
        if "speculative" in engine:
            drafts, method = engine["speculative"]["drafts"], rng.choice(("mtp", "eagle", "ngram"))
            each = {"acceptance": [round(rng.random(), 2) for _ in range(drafts)]} if rng.random() < 0.5 else {}
            found = {"match": rng.choice((0.0, 0.5, 1.0))} if method == "ngram" else {}
            engine = engine | {"speculative": engine["speculative"] | {"method": method} | each | found}
        if engine.get("overlap", {}).get("two_batch"):
            engine = engine | {"overlap": engine["overlap"] | {"cut": rng.choice(("common", "own"))}}
            halves = random.Random(f"halves {self.seed}")
            schedule = {"decode_schedule": halves.choice(("whole", "split")), "communication_busy_share": 0.12}
            engine |= {"overlap": engine["overlap"] | schedule} if halves.random() < 0.7 else {}
            engine |= {"speculative": {"drafts": 2, "acceptance": 0.6}} if halves.random() < 0.4 else {}
        is_divided = all(pool.get("ep", 1) > 1 for pool in tree["cluster"]["pools"])
        if is_divided and rng.random() < 0.7:
            kinds = ("deepep", "all_gather", "all_reduce", "broadcast", "all_to_all", {"decode": "deepep_normal"})
            engine = engine | {"expert_dispatch": rng.choice(kinds)}
        if (
            is_divided
            and self.coupling != "exact"
            and engine.get("expert_load", "balanced") not in ("balanced", "uniform")
        ):
            if rng.random() < 0.4:
                engine = engine | {"expert_drift": {"correlation_s": rng.choice((0.5, 20.0))}}
            if rng.random() < 0.4:
                engine = engine | {"eplb": {"window_steps": 5, "period_steps": rng.choice((8, 40))}}
        frontend = {"kind": "vllm"} if "request_latency_ms" not in engine and rng.random() < 0.3 else {"kind": "none"}
        return tree | {"engine": engine, "frontend": frontend}

    def workload(self) -> dict[str, Any]:
        most_requests, longest_prompt = (22, 500) if self.has_costly_collectives else (40, 1900)
        return random_workload(self.random, self.files, most_requests, longest_prompt)

    # Cluster.

    def pools(self) -> list[dict[str, Any]]:
        layout = self.one_of(("disaggregated", "mixed", "both"), (5, 2, 1))
        roles = {"disaggregated": ("prefill", "decode"), "mixed": ("mixed",), "both": ("prefill", "decode", "mixed")}
        most = max(1, self.family.most_instances // (2 if layout == "both" else 1))
        return [self.pool(role, most) for role in roles[layout]]

    def pool(self, role: str, most: int) -> dict[str, Any]:
        divisions = [one for one in self.family.divisions if one.pp == 1 or self.coupling != "exact"]
        division = self.one_of(divisions)
        sizes = {name: size for name, size in division._asdict().items() if size > 1}
        fields: dict[str, Any] = {"name": role[0], "role": role, "instances": self.random.randint(1, most), **sizes}
        if division.ep > 1 and self.chance(0.2):
            fields["redundant_experts"] = division.ep
        if self.chance(0.3):
            fields["engine"] = {"max_batched_tokens": self.one_of((300, 1024)), "max_seqs": self.one_of((4, 32))}
        return fields

    def topology(self, pools: list[dict[str, Any]]) -> dict[str, Any]:
        sizes = [Division(*(pool.get(name, 1) for name in Division._fields)).gpus for pool in pools]
        gpus = sum(size * pool["instances"] for size, pool in zip(sizes, pools, strict=True))
        kind = self.one_of(TOPOLOGIES, (3, 2, 1, 1, 1, 1, 1, 1, 1, 1))
        if kind == "nvl72":
            return {"kind": kind} if gpus <= 36 else {"kind": "rail_optimized"}
        if kind == "nvswitch":
            return {"kind": kind, "gpus_per_node": 8 * max(2, -(-gpus // 4))}
        width = self.one_of((1, 2, 4, 8))
        fields: dict[str, Any] = {"kind": kind, "gpus_per_node": width, "nic": f"{self.one_of((25, 100, 400))}Gbps"}
        if kind == "file":
            fields["nodes"] = sum(
                pool["instances"] * -(-size // width) for size, pool in zip(sizes, pools, strict=True)
            )
        if kind != "single_switch" and self.chance(0.4):
            fields["oversubscription"] = self.one_of((2, 4))
        return fields

    # Engine and network.

    def engine(self, pools: list[dict[str, Any]]) -> dict[str, Any]:
        has_fp8 = self.gpu != "a100"
        fields: dict[str, Any] = {
            "weights": self.one_of(self.family.weights) if has_fp8 else "bf16",
            "kv": self.one_of(("bf16", "fp8")) if has_fp8 else "bf16",
            "estimator": self.one_of(("auto", "transfer", "roofline"), (3, 1, 1)),
            "max_batched_tokens": self.one_of((256, 1024, 8192)),
            "max_seqs": self.one_of((2, 16, 128)),
            "long_prefill_token_threshold": self.one_of((0, 100), (3, 1)),
            "prefix_caching": self.chance(0.4),
            "cuda_graphs": self.chance(0.8),
            "fast_forward": self.chance(0.8),
        }
        if self.chance(0.4):
            fields["num_kv_blocks"] = self.one_of((140, 300))  # the longest request takes 128 blocks
        if self.chance(0.1):
            fields["max_model_len"] = 1024
        if self.chance(0.3):
            fields["request_latency_ms"] = self.one_of((0, 5))
        return fields | self.of_experts(pools)

    def of_experts(self, pools: list[dict[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.family.experts:
            kinds = ("uniform", "balanced", "zipf:0.8", "power_law:1.2", "recorded:load.json")
            fields["expert_load"] = self.one_of(kinds)
            if fields["expert_load"].startswith("recorded"):
                self.files["load.json"] = json.dumps([self.random.randint(1, 9) for _ in range(self.family.experts)])
        overlap: dict[str, Any] = {}
        if self.family.has_shared_expert and self.chance(0.5):
            overlap = {"shared_expert": True, "shared_expert_sm_share": self.one_of((0.0, 0.2))}
        is_dispatched = all(pool.get("dp", 1) > 1 and pool.get("ep", 1) > 1 for pool in pools)
        if is_dispatched and self.coupling != "exact" and self.chance(0.6):
            overlap |= {"two_batch": True, "communication_sm_share": self.one_of((0.0, 0.15))}
            overlap |= {"decode_tokens_min": 2, "prefill_tokens_min": 64}  # batches here are small
        elif self.chance(0.15):
            fields["speculative"] = {"drafts": self.random.randint(1, 3), "acceptance": self.one_of((0.0, 0.7, 1.0))}
        return fields | ({"overlap": overlap} if overlap else {})

    def network(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"backend": self.backend, "coupling": self.coupling}
        if self.gpu in ("h100", "h200", "b200") and self.chance(0.3):
            fields["collectives"] = self.one_of(("vllm", "sglang", "trtllm"))
        if self.backend in OF_PACKETS:
            fields["congestion_control"] = self.one_of(("dcqcn", "hpcc", "timely", "dctcp", "none"))
            fields["roce"] = {"packets_per_ack": self.one_of((1, 16)), "mtu_bytes": 4096}
        return fields
