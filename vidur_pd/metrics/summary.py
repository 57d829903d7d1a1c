"""``summary.json``, field by field: what a simulation writes there, what the report reads, what the documents list.

Rates are per second of simulated time, and shares between 0 and 1. A figure is ``None`` where a run has nothing that it
could be taken from.

Fields without a default are in every result; others may be missing in one of an earlier version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NotServed:
    """Requests that were rejected or failed for one reason."""

    status: str = ""
    """``rejected`` or ``failed``."""
    reason: str = ""
    """Of numbers in it the range over these requests."""
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Completed requests and their tokens over the makespan."""

    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """Rates while requests arrived, after a warm-up (``metrics/under_load.py``)."""

    from_s: float = 0.0
    until_s: float = 0.0
    arrivals_per_s: float | None = None
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    goodput: float | None = None
    """Requests that met every objective, per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles of a latency."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSlo:
    """Objectives of a class."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSummary:
    """What a percentile, a mean, or a share of requests had to be, and was (``metrics/slo.py``)."""

    name: str = ""
    latency: str = ""
    """``ttft``, ``tpot`` or ``e2e``; empty for a share of requests."""
    limit: float | None = None
    """Seconds, or the share that is the least."""
    found: float | None = None
    """``None``: too many requests were not served for it to be finite, or none counts."""
    margin: float | None = None
    """Part of the limit that is left, below 0 what it is passed by; of a share, what it is above its limit."""
    is_met: bool = False
    requests: int = 0
    """Those that count; one that was not served is beyond every limit."""
    beyond: int = 0
    """Requests beyond the limit."""
    beyond_allowed: float | None = None
    """Share that may be beyond it; ``None`` for a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Service-level objectives of the configuration, and whether the run has met them."""

    ttft_s: float | None = None
    """Of each request, as the next two."""
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float | None = None
    """Share of the requests of a window, and without percentiles of all, that have to meet them."""
    window_s: float | None = None
    targets: tuple[TargetSummary, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether all targets are."""
        return all(target.is_met for target in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """Requests of one class."""

    name: str = ""
    requests: int = 0
    completed: int = 0
    ttft_s: Distribution = Distribution()
    """Of completed requests, as the next two."""
    tpot_s: Distribution = Distribution()
    e2e_s: Distribution = Distribution()
    slo: ClassSlo = ClassSlo()
    goodput: float | None = None
    """Completed requests that met the objectives of the class, per second of the makespan of the run."""
    goodput_share: float | None = None
    """Their part of the requests of the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Gaps between consecutive tokens of a request, over all requests; empty where there are none."""

    edges_s: tuple[float, ...] = ()
    """One more than there are counts."""
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Which requests were served."""

    name: str = ""
    digest: str = ""
    """Equal for equal requests."""
    source: str = ""
    trimmed_requests: int = 0
    """Requests that were made shorter to fit."""
    skipped_rows: int = 0
    """Rows of the trace without output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSummary:
    """Real traffic that the times of communication come from."""

    engine: str = ""
    lanes: tuple[str, ...] = ()
    """Transports and devices that it took."""
    graphs: int = 0
    """Collectives that were executed in this run."""
    graphs_read: int = 0
    """Those that an earlier run had executed."""
    message_fits: int = 0
    """Pairs of hosts whose messages were measured in this run; one that needs larger ones later counts again."""
    retransmits: int = 0
    """What hosts have resent meanwhile, by all that they did; above 0 the times are not those of a clean network."""
    clock_error_s: float = 0.0
    """By which the time of a collective may be wrong, at most."""
    wall_s: float = 0.0
    """Real time that measuring took, part of that of the simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSummary:
    """The network that was simulated."""

    backend: str = ""
    coupling: str = ""
    """Of collectives with other traffic, as it was in force."""
    topology: Mapping[str, object] = field(default_factory=dict)
    """As in the configuration."""
    gpus: int = 0
    measured: MeasurementSummary | None = field(default=None, metadata={"left_out": True})
    """Left out unless backend `rdma` has sent the flows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One pool of instances."""

    name: str = ""
    role: str = ""
    hardware: str = ""
    times_as: str | None = None
    """GPU whose kernels were measured, where times are transferred to this one."""
    clock_as: str | None = None
    """GPU whose clock under load was measured, where this one's is transferred."""
    instances: int
    tp: int
    ep: int
    dp: int
    pp: int
    gpus: int
    """Of all instances."""
    kv_blocks_per_rank: int = 0
    busy_share: float | None = None
    """Of the makespan, mean over instances and pipeline stages."""
    kv_use_mean: float | None = None
    """Share of the KV blocks, mean over the makespan."""
    kv_use_max: float | None = None

    @property
    def partition(self) -> str:
        degrees = (("TP", self.tp), ("EP", self.ep), ("DP", self.dp), ("PP", self.pp))
        return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "TP1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedOperator:
    """An operator that was priced without a measurement at least once."""

    pool: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What simulating it took."""

    wall_s: float | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int = 0
    iterations: int = 0
    events: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationSummary:
    """Where the time of communication comes from (``metrics/communication.py``)."""

    collectives_s: float | None = None
    """What they add to iterations, summed over instances."""
    contention_s: float | None = None
    """Beyond their time on an idle fabric."""
    kv_transfers_s: float | None = None
    """First byte to last byte, summed over requests."""
    collectives: str = ""
    """``priced``, ``stretched`` or ``simulated``."""
    kv_transfers: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of all seconds of communication, by what they rest on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySummary:
    """An estimate of the energy of the GPUs (``metrics/energy.py``)."""

    is_estimate: bool = True
    gpu_j: float | None = None
    gpu_j_per_output_token: float | None = None
    pools_j: Mapping[str, float] = field(default_factory=dict)
    """By pool."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Of the powers, by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingSummary:
    """Rebalancing of experts, over all instances."""

    rebalances: int = 0
    """Times that experts were placed anew."""
    moved_bytes: int = 0
    """Weights that went from one GPU to another."""
    moving_s: float = 0.0
    """Time for which weights were under way."""
    given_up: int = 0
    """Times that the network did not deliver the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """Something that failed or was slow."""

    kind: str = ""
    target: str = ""
    at_s: float = 0.0
    until_s: float | None = None
    """``None``: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRequests:
    """How often recovery acted on requests."""

    recomputed: int = 0
    """Times that one began again with the tokens its user had."""
    retried: int = 0
    """Times that one began again from nothing."""
    rerouted: int = 0
    """Times that one got another decode instance while its prefill instance had its KV."""
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLoss:
    """Minutes in windows that missed the objective (``metrics/slo_loss.py``)."""

    total: float | None = None
    before_faults: float | None = None
    during_faults: float | None = None
    after_faults: float | None = None
    beyond_fault_free: float | None = None
    """More than the rate before the first fault; ``None`` without a window before it."""
    worst_attainment: float | None = None
    """Smallest share of the requests of a window that met the objectives."""
    window_s: float | None = None
    objective: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSummary:
    """What faults did."""

    events: tuple[FaultEvent, ...] = ()
    """By their beginning."""
    requests: RecoveredRequests = RecoveredRequests()
    transfers_retried: int = 0
    """KV transfers that were cut and sent again."""
    slo_loss_minutes: SloLoss = SloLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole file. Latencies are those of completed requests."""

    requests: int
    completed: int
    rejected: int
    failed: int
    not_served: tuple[NotServed, ...] = ()
    """The most frequent reasons first, at most 20."""
    makespan_s: float = 0.0
    """First arrival to last completion."""
    throughput: Throughput = Throughput()
    under_load: UnderLoad | None = None
    """``None`` where all requests came at once, or none completed."""
    cached_input_share: float | None = None
    """Of the prompt tokens of completed requests."""
    ttft_s: Distribution = Distribution()
    """Arrival to first token."""
    tpot_s: Distribution = Distribution()
    """(last token − first token)/(output tokens − 1); requests of a single token left out."""
    itl_s: Distribution = Distribution()
    """Gaps between consecutive tokens, over all requests."""
    e2e_s: Distribution = Distribution()
    """Arrival to last token."""
    slo: Objectives = Objectives()
    goodput: float | None = None
    """Completed requests that met every objective, per second of the makespan."""
    goodput_share: float | None = None
    """Their part of all requests."""
    estimates: float | None = None
    """Share of compute time that rests on flagged estimates."""
    preemptions: int = 0
    itl_histogram: Histogram = Histogram()
    model: str = ""
    hardware: str = ""
    """GPU of the first pool."""
    seed: int | None = None
    workload: WorkloadSummary = WorkloadSummary()
    network: NetworkSummary = NetworkSummary()
    pools: tuple[PoolSummary, ...] = ()
    estimated_operators: tuple[EstimatedOperator, ...] = ()
    simulator: Effort = Effort()
    communication: CommunicationSummary = CommunicationSummary()
    attribution_s: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds of each part of the end-to-end latency (``metrics/attribution.py``); they add up to its mean."""
    energy: EnergySummary | None = None
    """``None`` where the power of some pool's GPU is not known."""
    faults: FaultSummary | None = field(default=None, metadata={"left_out": True})
    """Left out where nothing failed."""
    rebalancing: RebalancingSummary | None = field(default=None, metadata={"left_out": True})
    """Left out without ``engine.eplb``."""
    classes: tuple[ClassSummary, ...] | None = field(default=None, metadata={"left_out": True})
    """Left out where the workload has none. The goodput of all requests counts each by the objectives of its class."""

    @property
    def gpus(self) -> int:
        """Of all pools."""
        return sum(pool.gpus for pool in self.pools)

    def per_gpu(self, rate: float | None) -> float | None:
        return rate / self.gpus if rate is not None and self.gpus else None
