"""``summary.json`` of a run as typed values; what a run could not compute is ``None``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text

Json = Mapping[str, object]
MOST = 1e18
"""Largest size of any figure of a run, in whatever unit; charts hold numbers of single precision."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Statistics of one latency over the completed requests, in seconds."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool; ``gpus`` counts all its instances, shares are time-weighted and between 0 and 1."""

    name: str
    role: str
    instances: int
    tp: int
    ep: int
    dp: int
    pp: int
    gpus: int
    busy_share: float | None
    kv_use_mean: float | None
    kv_use_max: float | None

    @property
    def partition(self) -> str:
        degrees = (("TP", self.tp), ("EP", self.ep), ("DP", self.dp), ("PP", self.pp))
        return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "TP1"


@dataclass(frozen=True, slots=True)
class EstimatedOperator:
    """An operator priced without a measurement."""

    pool: str
    operator: str


@dataclass(frozen=True, slots=True)
class ItlHistogram:
    """Pooled inter-token latencies: ``counts[i]`` intervals lie in ``edges_s[i]``…``edges_s[i + 1]``."""

    edges_s: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """Something that failed or was slow; ``until_s`` ``None``: for ever."""

    kind: str
    target: str
    at_s: float
    until_s: float | None


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """Rates per second while requests arrived, after a warm-up (``metrics/under_load.py``)."""

    from_s: float
    until_s: float
    arrivals_per_s: float | None
    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    goodput: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Headline figures of one run. Rates are per second of simulated time, over the whole run but for `UnderLoad`."""

    model: str
    hardware: str
    network: str
    topology: str
    pools: tuple[PoolSummary, ...]
    seed: float | None
    workload_digest: str
    """Equal for equal requests; empty where the run has not recorded it."""
    requests: int
    completed: int
    rejected: int
    failed: int
    makespan_s: float
    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    under_load: UnderLoad | None
    """``None`` where all requests came at once, or none completed."""
    cached_input_share: float | None
    ttft: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    goodput_requests_per_s: float | None
    goodput_share: float | None
    estimates_share: float | None
    estimated_operators: tuple[EstimatedOperator, ...]
    itl_histogram: ItlHistogram | None
    attribution_s: Mapping[str, float]
    """Mean seconds of each part of the end-to-end latency; empty where the run has not recorded them."""
    communication_shares: Mapping[str, float]
    """Share of communication time by what it rests on; empty where the run has not recorded them."""
    gpu_j: float | None
    """Estimated energy of all GPUs."""
    faults: tuple[FaultEvent, ...]
    """By their beginning."""
    fault_actions: Mapping[str, float]
    """How often recovery acted, by kind; empty where nothing failed."""
    slo_loss_minutes: Mapping[str, float]
    simulator_wall_s: float | None
    simulator_version: str

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    def per_gpu(self, rate: float | None) -> float | None:
        return rate / self.gpus if rate is not None and self.gpus else None


def read_summary(path: Path) -> Summary:
    """Reads ``summary.json``. Raises: InputError where the file or a required field is missing or malformed."""
    tree = parse_json(read_text(path, "the summary of a run"), str(path), "the summary of a run")
    if not isinstance(tree, dict):
        raise InputError(f"{path}: found {quoted(tree)}, expected an object")
    return _Reader(path).summary(cast(Json, tree))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks the tree; every complaint names the file and the field."""

    path: Path

    def summary(self, tree: Json) -> Summary:
        network = self.section(tree, "network")
        throughput = self.section(tree, "throughput")
        slo, simulator = self.section(tree, "slo"), self.section(tree, "simulator")
        kinds = [f"{_text(network.get(key))} {key}" for key in ("backend", "coupling") if network.get(key)]
        return Summary(
            model=_text(tree.get("model")),
            hardware=_text(tree.get("hardware")),
            network=", ".join(kinds),
            topology=_text(network.get("topology")),
            pools=tuple(self.pool(pool) for pool in self.items(tree, "pools")),
            seed=self.number(tree, "seed"),
            workload_digest=_text(self.section(tree, "workload").get("digest")),
            requests=self.count(tree, "requests"),
            completed=self.count(tree, "completed"),
            rejected=self.count(tree, "rejected"),
            failed=self.count(tree, "failed"),
            makespan_s=self.number(tree, "makespan_s") or 0.0,
            requests_per_s=self.number(throughput, "requests_per_s"),
            input_tokens_per_s=self.number(throughput, "input_tokens_per_s"),
            output_tokens_per_s=self.number(throughput, "output_tokens_per_s"),
            under_load=self.under_load(self.section(tree, "under_load")),
            cached_input_share=self.number(tree, "cached_input_share"),
            ttft=self.latency(tree, "ttft_s"),
            tpot=self.latency(tree, "tpot_s"),
            itl=self.latency(tree, "itl_s"),
            e2e=self.latency(tree, "e2e_s"),
            slo_ttft_s=self.number(slo, "ttft_s"),
            slo_tpot_s=self.number(slo, "tpot_s"),
            goodput_requests_per_s=self.number(tree, "goodput"),
            goodput_share=self.number(tree, "goodput_share"),
            estimates_share=self.number(tree, "estimates"),
            estimated_operators=self.estimated_operators(tree),
            itl_histogram=self.histogram(self.section(tree, "itl_histogram")),
            attribution_s=self.numbers(self.section(tree, "attribution_s")),
            communication_shares=self.numbers(self.section(self.section(tree, "communication"), "shares")),
            faults=self.faults(self.section(tree, "faults")),
            fault_actions=self.fault_actions(self.section(tree, "faults")),
            slo_loss_minutes=self.numbers(self.section(self.section(tree, "faults"), "slo_loss_minutes")),
            gpu_j=self.number(self.section(tree, "energy"), "gpu_j"),
            simulator_wall_s=self.number(simulator, "wall_s"),
            simulator_version=_text(simulator.get("version")),
        )

    def section(self, tree: Json, key: str) -> Json:
        value = tree.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise InputError(f"{self.path}: {key}: found {_short(value)}, expected an object")
        return cast(Json, value)

    def items(self, tree: Json, key: str) -> Sequence[Json]:
        value = tree.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise InputError(f"{self.path}: {key}: found {_short(value)}, expected a list of objects")
        return cast(Sequence[Json], value)

    def number(self, tree: Json, key: str) -> float | None:
        """A number, or ``None`` for an absent or null one, and for what is too large to be one of a run."""
        value = tree.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.path}: {key}: found {_short(value)}, expected a number")
        return float(value) if abs(value) <= MOST else None

    def numbers(self, tree: Json) -> Mapping[str, float]:
        """Every finite number of an object, by name."""
        found = {key: self.number(tree, key) for key in tree}
        return {key: value for key, value in found.items() if value is not None}

    def estimated_operators(self, tree: Json) -> tuple[EstimatedOperator, ...]:
        items = self.items(tree, "estimated_operators")
        return tuple(EstimatedOperator(_text(item.get("pool")), _text(item.get("operator"))) for item in items)

    def faults(self, tree: Json) -> tuple[FaultEvent, ...]:
        return tuple(
            FaultEvent(
                _text(item.get("kind")),
                _text(item.get("target")),
                self.number(item, "at_s") or 0.0,
                self.number(item, "until_s"),
            )
            for item in self.items(tree, "events")
        )

    def fault_actions(self, tree: Json) -> Mapping[str, float]:
        actions = {f"requests {name}": count for name, count in self.numbers(self.section(tree, "requests")).items()}
        retried = self.number(tree, "transfers_retried")
        return actions if retried is None else {**actions, "transfers retried": retried}

    def count(self, tree: Json, key: str) -> int:
        value = self.number(tree, key)
        if value is None or value != int(value) or value < 0:
            raise InputError(f"{self.path}: {key}: found {_short(tree.get(key))}, expected a count of at least 0")
        return int(value)

    def latency(self, tree: Json, key: str) -> Latency:
        values = self.section(tree, key)
        mean, p50, p90, p99 = (self.number(values, name) for name in ("mean", "p50", "p90", "p99"))
        return Latency(mean, p50, p90, p99)

    def under_load(self, tree: Json) -> UnderLoad | None:
        if not tree:
            return None
        rates = ("arrivals_per_s", "requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "goodput")
        from_s, until_s = (self.number(tree, name) or 0.0 for name in ("from_s", "until_s"))
        return UnderLoad(from_s, until_s, *(self.number(tree, name) for name in rates))

    def pool(self, tree: Json) -> PoolSummary:
        return PoolSummary(
            name=_text(tree.get("name")),
            role=_text(tree.get("role")),
            instances=self.count(tree, "instances"),
            tp=self.count(tree, "tp"),
            ep=self.count(tree, "ep"),
            dp=self.count(tree, "dp"),
            pp=self.count(tree, "pp"),
            gpus=self.count(tree, "gpus"),
            busy_share=self.number(tree, "busy_share"),
            kv_use_mean=self.number(tree, "kv_use_mean"),
            kv_use_max=self.number(tree, "kv_use_max"),
        )

    def histogram(self, tree: Json) -> ItlHistogram | None:
        if not tree:
            return None
        edges, counts = tree.get("edges_s"), tree.get("counts")
        if edges == [] and counts == []:
            return None
        if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
            raise InputError(
                f"{self.path}: itl_histogram: expected lists edges_s and counts with one more edge than counts"
            )
        if not all(isinstance(value, int | float) and abs(value) <= MOST for value in (*edges, *counts)):
            raise InputError(f"{self.path}: itl_histogram: expected numbers up to {MOST:g} in edges_s and counts")
        return ItlHistogram(tuple(float(edge) for edge in edges), tuple(int(count) for count in counts))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        details = ", ".join(f"{key}: {_text(item)}" for key, item in value.items() if key != "kind")
        return f"{value['kind']} ({details})" if "kind" in value and details else str(value.get("kind", details))
    return str(value)


def _short(value: object) -> str:
    text = _one_line(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, Exception) else " ".join(repr(value).split())
