"""``summary.json``, field by field: what a simulation writes there, what the report reads, what the documents list.

Rates are per second of simulated time, and shares between 0 and 1. A figure is ``None`` where a run has nothing that it
could be taken from.

Fields without a default are in every result; others may be missing in one of an earlier version.
"""

from __future__ import annotations

import math
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
class Distribution:
    """Mean and percentiles of a latency."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """The steady state: without warm-up and drain (``metrics/under_load.py``). Offered load against served."""

    from_s: float = 0.0
    until_s: float = 0.0
    arrivals_per_s: float | None = None
    """Requests that were offered; tokens offered with them are the next two."""
    offered_input_tokens_per_s: float | None = None
    offered_output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    """Requests that completed."""
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    goodput: float | None = None
    """Requests that met every objective, per second."""
    ttft_s: Distribution = Distribution()
    """Of completed requests that arrived in the window, as the next two."""
    tpot_s: Distribution = Distribution()
    e2e_s: Distribution = Distribution()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerLoad:
    """Output tokens/s under load that each of vLLM's API servers would pass, one for each data-parallel rank that
    answers, and that one can pass (``vidur_pd/config/data/frontend``). No server is simulated."""

    tokens_per_s: float
    most_tokens_per_s: float


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
    """Gaps between consecutive tokens of a request, over all requests; empty where there are none. Of tokens that come
    together, as with drafts, in a first bin from 0 to 0."""

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
    names_prefixes: bool = False
    """It says which prompts share a prefix; otherwise prefix caching cannot hit."""


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
class FabricLoss:
    """Cables of one kind; the loss of any of them cuts GPUs off from other servers."""

    kind: str = ""
    cables: int = 0
    gpus: int = 0
    """That each cuts off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSummary:
    """What the links between servers could carry at most, however traffic is routed (`netsim/topologies/cuts.py`)."""

    halves_bps: int | None = None
    """From the first half of the servers to the second: no less than the bisection bandwidth."""
    prefill_to_decode_bps: int | None = None
    """From all GPUs that prefill to all that decode, NVLink left out; ``None`` without both."""
    shortest_ways: int | None = None
    """From the first GPU that prefills to the first that decodes, or from the first to the last GPU: among these ECMP
    chooses."""
    disjoint_ways: int | None = None
    """Of these two, ways without a common cable."""
    losses: tuple[FabricLoss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSummary:
    """The network that was simulated."""

    backend: str = ""
    coupling: str = ""
    """Of collectives with other traffic, as it was in force."""
    topology: Mapping[str, object] = field(default_factory=dict)
    """As in the configuration."""
    gpus: int = 0
    fabric: FabricSummary | None = None
    """``None`` on a single server, and for fabrics of more than 3,000 links; only with ``output.links``."""
    measured: MeasurementSummary | None = field(default=None, metadata={"left_out": True})
    """Left out unless backend `rdma` has sent the flows."""


def _degrees_text(**degrees: int) -> str:
    """Degrees of parallelism above 1, as ``TP2 EP8``."""
    return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "TP1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnSummary:
    """FFN workers of a pool, and how they share the time with its attention workers."""

    hardware: str = ""
    tp: int = 1
    ep: int = 1
    dp: int = 1
    gpus: int = 0
    """Of all instances."""
    micro_batches: int = 1
    weights_bytes: int = 0
    """Of each worker."""
    attention_busy_share: float | None = None
    """Of the pool's busy time, in which attention workers compute."""
    ffn_busy_share: float | None = None
    """Of the same, in which FFN workers compute."""

    @property
    def partition(self) -> str:
        return _degrees_text(TP=self.tp, EP=self.ep, DP=self.dp)


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
    tp_servers: int = 1
    """Servers over which the GPUs of a tensor-parallel group are spread, at most."""
    kv_blocks_per_rank: int = 0
    prefix_caching: bool = False
    busy_share: float | None = None
    """Of the makespan, mean over instances and pipeline stages; with a planner of the time for which GPUs were held."""
    busy_share_max: float | None = None
    """Of the busiest instance; ``None`` with a planner, which lets them serve for unlike times."""
    busy_under_load: float | None = None
    """Up to the last arrival, without the drain; ``None`` where all came at once."""
    prompts_share: float | None = None
    """Of the busy time, in iterations with prompts."""
    prompts_host_share: float | None = None
    """Of the busy time in iterations with prompts, in which GPUs wait for the host: exposed host time."""
    decodes_host_share: float | None = None
    """The same of iterations of decodes alone."""
    communication_share: float | None = None
    """Of the busy time, in collectives that compute does not hide."""
    max_seqs: int = 0
    """Batch slots of a rank."""
    batch_mean: float | None = None
    """Requests of a rank in an iteration."""
    batch_use: float | None = None
    """Share of all batch slots that requests in iterations hold, mean over the makespan."""
    mfu: float | None = None
    """Algorithmic FLOPs over what the peak rate does in the busy time (``metrics/utilisation.py``)."""
    memory_use: float | None = None
    """Bytes that operators read and write over what the nominal memory bandwidth moves in the busy time."""
    kv_use_mean: float | None = None
    """Share of the KV blocks, mean over the makespan."""
    kv_use_max: float | None = None
    ffn: FfnSummary | None = None
    """``None``: all GPUs compute all of a layer."""

    @property
    def partition(self) -> str:
        own = _degrees_text(TP=self.tp, EP=self.ep, DP=self.dp, PP=self.pp)
        return own if self.ffn is None else f"{own} + FFN {self.ffn.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSummary:
    """The fullest link of one kind."""

    kind: str = ""
    src: str = ""
    dst: str = ""
    capacity_bps: int = 0
    mean_use: float | None = None
    """Share of what it could carry over the run, all traffic together."""
    peak_use: float | None = None
    """In the fullest window."""
    window_s: float | None = None
    burst_use: float | None = None
    """In the fullest 15.6 ms, without regard to faults."""
    kv_share: float | None = None
    """Of the bytes that it carried, those of KV transfers."""
    measure: str = ""
    """`use`, or `offered`: timed as if it was alone, so that more than 1 is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSummary:
    """Whether waiting grows with the time for which requests have arrived (``metrics/overload.py``)."""

    growth: float | None = None
    """Seconds of waiting that each second of arrivals adds."""
    p_value: float | None = None
    is_overload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSummary:
    """What limits a latency, as in ``verdict``."""

    limit: str = ""
    where: str = ""
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSummary:
    """What a run comes to (``metrics/verdict``)."""

    outcome: str = ""
    """`meets`, `misses`, `overloaded`, `not served` (some requests were refused or failed) or `nothing served`."""
    sentence: str = ""
    """All of it in words."""
    limit: str = ""
    """What limits it, or would be next to: one of `metrics/verdict/limits.py`."""
    where: str = ""
    """The pool, or the link."""
    reason: str = ""
    advice: str = ""
    """The next thing to change."""
    also: LimitSummary | None = None
    """Where TTFT and TPOT are both missed, of what `limit` is not, unless it is the same."""
    waiting: WaitingSummary | None = None
    """``None``: too few requests to tell, or all at once."""
    late_before_first_token: Mapping[str, float] = field(default_factory=dict)
    """Of requests with a TTFT beyond its limit, the share whose largest part of it was this (``attribution_s``)."""
    late_after_first_token: Mapping[str, float] = field(default_factory=dict)
    """The same of a TPOT beyond its limit, and the time after the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedOperator:
    """An operator that was priced without a measurement at least once."""

    pool: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What simulating it took."""

    began_at: str = ""
    """UTC, as 2026-11-26T08:15:00Z."""
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
class ConnectorSummary:
    """Costs of the connector of KV transfers (``kv_transfer.connector``); absent with ``ideal``."""

    path: str = ""
    """``direct`` or ``host``."""
    descriptor_tokens: int | None = None
    """Tokens of a descriptor; ``None``: a KV block."""
    handshakes_s: float | None = None
    """Wait for the first contact of instances, summed over completed requests."""
    waits_s: float | None = None
    """Wait of transfers for others that are posted before them, summed over transfers."""
    posting_s: float | None = None
    """Time to post descriptors, summed over requests."""
    stalls_s: float | None = None
    """Time for which steps stand still for that, summed over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySummary:
    """An estimate of the energy of a run (``metrics/energy.py``)."""

    is_estimate: bool = True
    gpu_j: float | None = None
    gpu_j_per_output_token: float | None = None
    pools_j: Mapping[str, float] = field(default_factory=dict)
    """Of GPUs, by pool."""
    pools_w: Mapping[str, float] = field(default_factory=dict)
    """Mean power of one GPU, by pool."""
    network_j: float | None = None
    """Of NICs and switches, as far as ``power`` says what they draw; 0: it does not."""
    host_j: float | None = None
    """Of the rest of the servers, likewise."""
    total_j: float | None = None
    """All of it, times the building's ``power.pue``."""
    total_j_per_output_token: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Of the powers, by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """What the run cost by the price list of the configuration (``metrics/costs.py``), in its currency."""

    currency: str = ""
    as_of: str = ""
    """Date and origin of the prices, as the list says."""
    gpus_per_hour: float | None = None
    electricity_per_hour: float | None = None
    """In the mean over the run; ``None`` where electricity has a price and its amount is not known."""
    per_hour: float | None = None
    total: float | None = None
    """Of the makespan."""
    per_million_input_tokens: float | None = None
    """What serves prompts, over the input tokens of completed requests, cached ones included."""
    per_million_output_tokens: float | None = None
    """What decodes, over their output tokens."""
    all_per_million_output_tokens: float | None = None
    """Everything, over their output tokens."""


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
class TierSummary:
    """A tier of KV behind the prefix caches, over all instances."""

    kind: str = ""
    caches: int = 0
    """Caches of this kind: one for each data-parallel rank that computes prompts, for each server, or for all."""
    loads: int = 0
    """Requests that got tokens from it, once for each load."""
    failed_loads: int = 0
    """Loads that the network did not deliver."""
    prefetched_chunks: int = 0
    """Chunks that were asked for to CPU memory while requests queued."""
    loaded_tokens: int = 0
    """Tokens of prompts that came from it; the prefix cache did not have them."""
    loaded_chunks: int = 0
    loaded_bytes: int = 0
    """Bytes of these chunks on their way to GPUs."""
    stored_chunks: int = 0
    stored_bytes: int = 0
    """Bytes of chunks on their way into it."""
    evicted_chunks: int = 0
    held_bytes: int = 0
    """What is in it at the end."""
    load_s: float = 0.0
    """From the begin of each load to its last byte, summed over requests: these wait for it, or run meanwhile where it
    is layer-wise."""
    recompute_s: float = 0.0
    """What computing the loaded tokens would have taken, each request alone, by the prices of its instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Relative error of mean latencies (68 %), from the errors of what times rest on (``metrics/sources.py``)."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean of a figure over seeds, and the interval in which that over all seeds lies."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    """Of the runs, as the next one."""
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsSummary:
    """Headline figures over several seeds (``metrics/seeds.py``)."""

    seeds: tuple[int, ...] = ()
    """The first is that of the files."""
    confidence: float | None = None
    has_own_requests: bool = True
    """Each has its own; false where all serve the same, as those of a trace."""
    met: int = 0
    """Runs that met all objectives."""
    figures: Mapping[str, Interval] = field(default_factory=dict)
    """By their path in this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """Something that failed or was slow."""

    kind: str = ""
    target: str = ""
    at_s: float = 0.0
    until_s: float | None = None
    """``None``: for ever."""

    @property
    def end_s(self) -> float:
        """``until_s``, or infinity."""
        return math.inf if self.until_s is None else self.until_s

    @property
    def outage(self) -> str:
        """When its target was down, in words."""
        return f"down from {self.at_s:.4g} s " + ("to the end" if self.until_s is None else f"to {self.until_s:.4g} s")


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
class FleetCount:
    """Instances of a pool from an instant on."""

    at_s: float = 0.0
    pool: str = ""
    serving: int = 0
    starting: int = 0
    draining: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """What became of the instances of a pool that is planned."""

    name: str = ""
    instances: int = 0
    """That it may have."""
    gpus: int = 0
    """Of these."""
    serving_mean: float | None = None
    """Over the run, as the next one."""
    serving_most: int = 0
    starts: int = 0
    """Of instances that were off."""
    switches: int = 0
    """Of instances that had the other role."""
    stops: int = 0
    gpu_hours: float = 0.0
    """For which GPUs of the pool were held: from the decision to start an instance until it had drained."""
    all_gpu_hours: float = 0.0
    """If all its instances had been there all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSummary:
    """What the planner did, from the beginning until the last request had ended."""

    policy: str = ""
    decisions: int = 0
    gpus: int = 0
    """Of all pools that are planned; those with two roles count once."""
    gpu_hours: float = 0.0
    """Held, of all pools that are planned."""
    all_gpu_hours: float = 0.0
    """If all of them had been held all the time."""
    starting_s_mean: float | None = None
    """From the decision to start an instance until it served; ``None`` where none did."""
    starting_s_max: float | None = None
    weights_network_bytes: int = 0
    """Weights that came from other instances."""
    weights_disk_bytes: int = 0
    pools: tuple[PlannedPool, ...] = ()
    counts: tuple[FleetCount, ...] = ()
    """In the order of time; one wherever a pool changed."""

    @property
    def saved_share(self) -> float | None:
        """GPU hours not held, of all."""
        return 1.0 - self.gpu_hours / self.all_gpu_hours if self.all_gpu_hours else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole file. Latencies are those of completed requests."""

    verdict: VerdictSummary | None = None
    """``None`` in results of earlier versions."""
    requests: int
    completed: int
    rejected: int
    failed: int
    not_served: tuple[NotServed, ...] = ()
    """The most frequent reasons first, at most 20."""
    first_arrival_s: float | None = None
    """By the clock of the simulation, as all moments: of ``under_load``, faults and requests. ``None``: not known."""
    makespan_s: float = 0.0
    """First arrival to last completion, or to the last arrival where that is later."""
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
    """Share of the time of iterations, compute and communication, that rests on flagged estimates (transferred or
    formula)."""
    time_sources: Mapping[str, float] = field(default_factory=dict)
    """Of all seconds of iterations and KV transfers, by what they rest on (``metrics/sources.py``)."""
    model_error: ModelError = ModelError()
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
    connector: ConnectorSummary | None = None
    connector_left_out: str | None = None
    """Connector by which the framework hands KV over, where it was handed over at the cost of its bytes and a set-up
    (``ideal``)."""
    attribution_s: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds of each part of the end-to-end latency (``metrics/attribution.py``); they add up to its mean."""
    ttft_attribution_s: Mapping[str, float] = field(default_factory=dict)
    """The same of TTFT."""
    links: tuple[LinkSummary, ...] = ()
    energy: EnergySummary | None = None
    """``None`` where the power of some pool's GPU is not known."""
    cost: CostSummary | None = None
    """``None`` without a price list."""
    seeds: SeedsSummary | None = field(default=None, metadata={"left_out": True})
    """Left out without ``--seeds``."""
    faults: FaultSummary | None = field(default=None, metadata={"left_out": True})
    """Left out where nothing failed."""
    planner: PlannerSummary | None = field(default=None, metadata={"left_out": True})
    """Left out without a planner."""
    rebalancing: RebalancingSummary | None = field(default=None, metadata={"left_out": True})
    """Left out without ``engine.eplb``."""
    tiers: tuple[TierSummary, ...] | None = field(default=None, metadata={"left_out": True})
    """Left out without ``kv_cache.tiers``."""
    api_server: ApiServerLoad | None = field(default=None, metadata={"left_out": True})
    """Left out with a frontend, engines other than vLLM, and servers that can follow."""
    classes: tuple[ClassSummary, ...] | None = field(default=None, metadata={"left_out": True})
    """Left out where the workload has none. The goodput of all requests counts each by the objectives of its class."""

    @property
    def gpus(self) -> int:
        """Of all pools; those with two roles once."""
        shared = 0 if self.planner is None else sum(pool.gpus for pool in self.planner.pools) - self.planner.gpus
        return sum(pool.gpus for pool in self.pools) - shared

    @property
    def gpu_hours(self) -> float:
        """For which GPUs were held; without a planner all of them, until the last request had ended."""
        if self.planner is None:
            return self.gpus * self.makespan_s / 3600
        others = self.gpus - self.planner.gpus
        return self.planner.gpu_hours + others * self.makespan_s / 3600

    @property
    def caches_in_vain(self) -> bool:
        """A trace that does not say which prompts share a prefix, on pools that cache prefixes."""
        workload = self.workload
        is_trace = workload.source.startswith("trace ")
        return is_trace and not workload.names_prefixes and any(pool.prefix_caching for pool in self.pools)

    def per_gpu(self, rate: float | None) -> float | None:
        gpus = self.gpus if self.planner is None or not self.makespan_s else self.gpu_hours * 3600 / self.makespan_s
        return rate / gpus if rate is not None and gpus else None
