"""The configuration tree of a simulation: what a YAML file may say, checked before simulated time starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, create_model, model_validator

from aicb.iteration.sglang_host import HostEngine
from aicb.operators.dense_kernel import DenseKernel
from aicb.operators.dispatch import DispatchKind
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.gqa import GqaKernel
from aicb.operators.mla import MlaKernel, RopeKernel
from aicb.operators.moe_kernels import MoeKernels
from aicb.operators.quantisation import QuantKernel
from boundary.fields import Count, NotBool, Number, PositiveSeconds, Section, Seed, Share
from boundary.quoting import quoted
from netsim.backends.contract import capabilities_of
from netsim.roce.config import RoceConfig
from netsim.topologies.build import TopologySpec
from vidur_pd.config.division import divided
from vidur_pd.config.engines import DEEPEP_KERNELS, complete, known_frameworks, known_versions
from vidur_pd.config.faults import FaultSpec, RecoveryConfig
from vidur_pd.config.ffn import Degree, FfnConfig
from vidur_pd.config.frontend import FrontendConfig, NoFrontend
from vidur_pd.config.gpu_names import with_listed_gpus
from vidur_pd.config.kv_cache import KvCacheConfig
from vidur_pd.config.kv_transfer import IDEAL, KvTransferConfig
from vidur_pd.config.names import Milliseconds, one_of
from vidur_pd.config.objectives import SloConfig
from vidur_pd.config.planner import PlannerConfig
from vidur_pd.config.prices import PowerConfig, PricesConfig
from vidur_pd.config.routing import RoutingConfig
from vidur_pd.config.speculative import SpeculativeConfig
from vidur_pd.config.workload import WorkloadConfig


def _known_framework(name: str) -> str:
    if name not in known_frameworks():
        raise ValueError(f"found {quoted(name)}, expected one of {', '.join(known_frameworks())}")
    return name


def _known_version(version: str, info: ValidationInfo) -> str:
    versions = known_versions(info.data.get("framework", ""))
    if versions and version not in versions:
        raise ValueError(f"found {quoted(version)}, expected one of {', '.join(versions)}")
    return version


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError("found sizes out of order, expected each to be above the one before")
    return sizes


Role = Literal["prefill", "decode", "mixed"]
MOST_GPUS = 2**18
"""Of all instances: more than the largest clusters have; links and routes of as many take about 4 GB."""
CORE_POLICY: Final = "vllm_v1"
NAMED_POLICIES: Final = {
    "vllm_v0": "VllmV0",
    "sarathi": "Sarathi",
    "orca": "Orca",
    "faster_transformer": "FasterTransformer",
    "lightllm": "LightLlm",
    "sglang": "Sglang",
    "trtllm": "Trtllm",
    "splitwise": "Splitwise",
}
"""Module in ``vidur_pd/scheduling/policies``, and the class in it."""
SCHEDULING_POLICIES: Final = (CORE_POLICY, *NAMED_POLICIES)
SchedulingPolicy = Annotated[str, one_of(*SCHEDULING_POLICIES)]
EstimatorName = Literal["auto", "interpolation", "forest", "transfer", "roofline"]


class OverlapConfig(Section):
    """Overlap of work within an iteration (`aicb.iteration.overlap`)."""

    shared_expert: bool | Count
    """The shared expert runs on a second stream while the routed experts run; SGLang's is then not among these. A
    number: only where a rank has at most so many tokens, and no DeepEP to dispatch them (vLLM: 256). Left out: as the
    engine does."""
    shared_expert_sm_share: Share = 0.0
    """SMs that the second stream keeps from the routed experts."""
    two_batch: bool = False
    """Each batch is halved; one half communicates while the other computes. Needs dispatch: ep = tp·dp, dp > 1."""
    communication_sm_share: Share = 0.0
    """SMs that communication keeps from the half that computes meanwhile (DeepEP's normal kernels: 20 of 132)."""
    communication_busy_share: Share = 0.0
    """Part of a dispatch or combine of decodes in which it has all SMs and hides behind nothing: sending and receiving
    of DeepEP's low-latency kernels (0.12 on 72 H100s with 128 tokens)."""
    decode_schedule: Literal["whole", "split"]
    """What hides the dispatch and combine of decodes in two batches (`aicb.iteration.layer_schedule`): ``whole``, all
    of attention and then the experts of the other half (vLLM); ``split``, the shared expert and the projections before
    attention, and then attention (SGLang, DeepSeek). Left out: as the engine does."""
    decode_tokens_min: Number
    """Two batches only where each rank has so many tokens, of decodes alone; below, the iteration runs as a whole.
    Left out: as the engine does."""
    prefill_tokens_min: Number
    """The same for a rank whose batch has prefills."""
    cut: Literal["common", "own"]
    """Where the batches of ranks are halved: ``common``, all after as many tokens (vLLM), so that every rank needs some
    behind them; ``own``, each in its middle (SGLang), where all ranks with work have prefills, or none has. Left out:
    as the engine does."""


class ExpertDispatchConfig(Section):
    """How tokens of data-parallel ranks travel to experts that these share, and back (`aicb.operators.dispatch`).

    One word stands for both phases; ``deepep`` for DeepEP's kernels of each.
    """

    prefill: DispatchKind
    """In iterations with prefills. Left out: as the engine does."""
    decode: DispatchKind
    """In iterations of decodes alone."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_word(cls, tree: Any) -> Any:
        if tree == "deepep":
            return DEEPEP_KERNELS
        return {"prefill": tree, "decode": tree} if isinstance(tree, str) else tree


class ExpertDriftConfig(Section):
    """Popularity of experts that drifts (`aicb.experts.drift`): a model, whose time is the user's to state."""

    correlation_s: Annotated[PositiveSeconds, Field(ge=1e-3)]
    """After this time the correlation of an expert's place among the others with its earlier one is 1/e."""
    step_s: Annotated[PositiveSeconds, Field(ge=1e-3)] | None = None
    """Popularity is constant, and iterations keep their prices, within steps of this length; ``None``: a twentieth of
    ``correlation_s``."""

    @property
    def seconds_per_step(self) -> float:
        return self.correlation_s / 20 if self.step_s is None else self.step_s


class EplbConfig(Section):
    """Rebalancing of experts while the engine runs; defaults of vLLM 0.24 (``vllm/config/parallel.py``)."""

    window_steps: Annotated[Count, Field(le=100_000)] = 1000
    """Last iterations whose load is known."""
    period_steps: Count = 3000
    """Iterations between two rebalancings; the first comes after a quarter of them."""


class EngineConfig(Section):
    """The serving engine of an instance. Fields without a default here are those of the engine's profile."""

    framework: Annotated[str, AfterValidator(_known_framework)]
    """``vllm``, or another engine of which there is a profile (`vidur_pd.config.engines`)."""
    version: Annotated[str, AfterValidator(_known_version)]
    """Of the profile; the newest by default."""
    policy: SchedulingPolicy
    policy_options: dict[str, Any] = Field(default_factory=dict)
    """What only this policy knows (`Policy.Options` of its class says which fields there are)."""
    max_batched_tokens: Count
    max_seqs: Count
    max_model_len: Count | None = None
    """Longest prompt + output; ``None`` takes the model's context length."""
    long_prefill_token_threshold: Number
    scheduling_policy: Literal["fcfs", "priority"]
    """Who waits goes first come, first served, or by (priority, arrival), the smaller number first; with ``priority``
    those of the largest number lose their KV first. For ``vllm_v1`` and policies of one's own."""
    chunked_prefill: bool
    """A prompt that is longer than what is left of an iteration's tokens begins with these, and does not wait for an
    iteration with room for all of it. For ``vllm_v1``, ``trtllm`` and policies of one's own."""
    watermark: Share | None = None
    """Share of the KV blocks that admissions leave free while something runs; ``None``: as usual with the policy."""
    block_tokens: Count
    gpu_memory_utilization: Annotated[float, NotBool, Field(ge=0.01, le=1)]
    num_kv_blocks: Annotated[Count, Field(ge=2)] | None = None
    """Blocks of one data-parallel rank; ``None`` derives them from the memory model."""
    prefix_caching: bool
    async_scheduling: bool
    """Decides each iteration while the one before runs, not when it has ended."""
    cuda_graphs: bool
    graph_sizes: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(_ascending)] | None = None
    """Decodes in a batch for which there are CUDA graphs; ``None``: as vLLM has them."""
    prompt_graph_sizes: Annotated[tuple[Count, ...], AfterValidator(_ascending)] | None = None
    """Tokens of a batch with prompts for which graphs replay what lies between attentions; none: nothing is. ``None``:
    ``graph_sizes``, as vLLM has it."""
    fast_forward: bool = True
    """Takes runs of decode iterations in which no batch changes as one step of the simulation; off, each is one."""
    request_latency_ms: Milliseconds | None = None
    """From the client to the scheduler and from the sampled token back; ``None``: as `aicb` has measured, or
    part of the way through a frontend."""
    weights: Literal["bf16", "fp8", "mxfp4"] | None = None
    """``None``: as the model's checkpoint is published (its ``quantization_config``), or bf16 where that is fp8 and the
    GPU has none. ``mxfp4``: of routed experts, for models that are published in it; the rest is bf16."""
    kv: Literal["bf16", "fp8"] = "bf16"
    experts_kernel: ExpertsKernel
    """Of fp8 experts: grouped products of DeepGEMM, SGLang's fused Triton kernel (``triton_sglang``), vLLM's
    (``triton``), where every rank holds all experts, or FlashInfer's, which vLLM takes on Hopper where ranks share
    them. Those to which DeepEP brings tokens run in DeepGEMM's, others than fp8 in a kernel like Triton's in any
    case, but for ``marlin``: vLLM's kernel of mxfp4 experts with ``VLLM_MXFP4_USE_MARLIN=1``."""
    moe_kernels: MoeKernels
    """Around products of experts that gather their rows, bf16 or by Triton: vLLM's, which leave few tokens unsorted,
    sum more than four experts by torch and copy the sums; SGLang's, with the shared expert of DeepSeek-V3 or GLM-4.5 as
    one more routed expert where no ranks share experts; or generic ones, of which one sums, after sorting in bf16."""
    expert_dispatch: ExpertDispatchConfig
    """To experts that data-parallel ranks share (``ep`` = ``tp``·``dp``, ``dp`` > 1)."""
    mla_kernel: MlaKernel
    """Of decodes of latent attention over a bf16 cache: FlashMLA, or FlashAttention-3, which in vLLM computes chunks of
    prompts of up to 512 tokens as well (``fa3_chunks``), or as SGLang calls it (``fa3_sglang``), or ``flashinfer``,
    which is SGLang's with ``--attention-backend flashinfer``."""
    gqa_kernel: GqaKernel
    """Of decodes of grouped-query attention over a bf16 cache: FlashAttention-3 with its own choice of splits, or as
    vLLM or SGLang captures it in graphs."""
    quant_kernel: QuantKernel
    """Before fp8 products: vLLM's, apart from the activation function, or a generated one with both."""
    dense_kernel: DenseKernel
    """Of fp8 products outside experts: DeepGEMM's, or FlashInfer's with swapped operands below 32 rows (vLLM's on
    Hopper)."""
    rope_kernel: RopeKernel
    """Of the rotary embedding of latent attention: one that rotates slices in place, or vLLM's, compiled, which writes
    the whole queries. ``sglang``: in place; of other attention, kernels that normalise queries and keys at once, and in
    models with experts rotate them and write KV at once."""
    hybrid_kernels: Literal["fused", "compiled"]
    """Of models with gated delta rules (Qwen3-Next) besides products, attention and experts: fused into few, or
    vLLM's, compiled, which take projections apart and join them in copies."""
    norm_kernel: Literal["apart", "flashinfer"]
    """Of norms after all-reduces of tensor-parallel ranks: by themselves, or in FlashInfer's kernel, which does both
    (vLLM's on Hopper where FlashInfer is installed); not in pools with FFN workers."""
    host: Annotated[str, Field(min_length=1)] = "xeon-vm-32"
    """What launches kernels: a measured host (``aicb/data/hosts``), or a YAML file like those. The default is the
    fastest that was measured, ``virtual-machine`` the median, the better guess where cores are shared."""
    host_engine: HostEngine = "vllm"
    """Whose launching the host does: SGLang's was measured in version 0.5.17; vLLM's stands for other engines'."""
    estimator: EstimatorName = "auto"
    """Prices kernels: ``interpolation`` of the GPU's measured table, a random ``forest`` on it, ``transfer`` of the
    H200's utilisation, or the ``roofline``. ``auto`` interpolates what the GPU's table has and transfers the rest."""
    expert_load: str = "uniform"
    """How tokens choose experts: ``balanced``, ``balanced:B`` (mean over maximum of the rows of ranks, which engines
    log as balancedness), ``uniform``, ``zipf:S``, ``power_law:A`` or ``recorded:FILE``."""
    expert_drift: ExpertDriftConfig | None = None
    """``None``: popularity stays as it is."""
    eplb: EplbConfig | None = None
    """``None``: experts stay where they are placed at the beginning."""
    overlap: OverlapConfig
    speculative: SpeculativeConfig | None = None


if TYPE_CHECKING:
    EngineOverrides = Section
else:
    EngineOverrides = create_model(
        "EngineOverrides",
        __base__=Section,
        __doc__="Fields of `EngineConfig` that a pool sets for itself; ``None`` keeps the common value.",
        **{
            name: (
                Annotated[field.annotation, *field.metadata] | None if field.metadata else field.annotation | None,
                None,
            )
            for name, field in EngineConfig.model_fields.items()
            if name != "request_latency_ms"
        },
    )


class PoolConfig(Section):
    """Equal instances with one role; an instance occupies ``tp · dp · pp`` GPUs, and those of its FFN workers."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")]
    role: Role
    instances: Degree = 1
    tp: Degree = 1
    ep: Degree = 1
    dp: Degree = 1
    pp: Degree = 1
    redundant_experts: Annotated[Number, Field(le=2**20)] = 0
    """Expert slots beyond the model's experts, filled and placed by EPLB's rule (DeepSeek-V3 decodes with 32)."""
    hardware: str | None = None
    ffn: FfnConfig | None = None
    """``None``: all GPUs of an instance compute all of a layer."""
    engine: EngineOverrides = EngineOverrides()

    @property
    def gpus_per_instance(self) -> int:
        return self.tp * self.dp * self.pp + (0 if self.ffn is None else self.ffn.gpus)


class ClusterConfig(Section):
    """The fabric and the pools placed on it, in this order."""

    topology: TopologySpec
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, tree: Any) -> Any:
        """Pools with ``pd_node_ratio`` are two."""
        pools = tree.get("pools") if isinstance(tree, Mapping) else None
        if not isinstance(pools, list | tuple):
            return tree
        return {**tree, "pools": [part for pool in pools for part in divided(pool)]}

    @model_validator(mode="after")
    def _roles_fit_together(self) -> ClusterConfig:
        names = [pool.name for pool in self.pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found two pools named {name!r}, expected distinct names")
        gpus = sum(pool.instances * pool.gpus_per_instance for pool in self.pools)
        if gpus > MOST_GPUS:
            raise ValueError(f"found pools of {gpus} GPUs in all, expected at most {MOST_GPUS}")
        roles = {pool.role for pool in self.pools}
        if ("prefill" in roles) != ("decode" in roles):
            missing = "decode" if "prefill" in roles else "prefill"
            raise ValueError(f"found no pool with role {missing}, expected prefill and decode pools together")
        return self


class NetworkConfig(Section):
    """The network model, and how collectives and KV transfers meet on it (`vidur_pd/README.md`, coupling)."""

    backend: Literal["analytical", "fluid", "packet", "ns3", "rdma"] = "fluid"
    coupling: Literal["isolated", "fluid", "exact"] = "fluid"
    """Left out with a packet-level backend, and with real traffic: ``isolated``."""
    collectives: Literal["nccl", "vllm", "sglang", "trtllm"]
    """Whose all-reduce kernels run inside nodes: NCCL's, or this engine's own where it would use them. Left out: as the
    engine does."""
    nvls: bool = True
    """Whether NCCL may have NVSwitches reduce (``NCCL_NVLS_ENABLE``). Left out: as the engine does; SGLang switches it
    off (its ``--enable-nccl-nvls`` on)."""
    congestion_control: Literal["dcqcn", "hpcc", "timely", "dctcp", "none"] = "dcqcn"
    """Used by the packet-level backends; the others share links without a control loop."""
    roce: RoceConfig = RoceConfig()
    """All other settings of the packet-level backends (`netsim.roce`)."""
    hosts: Path | None = None
    """Hosts that backend ``rdma`` sends real traffic between (`netsim.backends.rdma.hosts`); others do not use it."""
    repeats: Annotated[Count, Field(le=1000)] = 3
    """Times that it executes each collective, whose median counts, after one that meets cold connections."""
    measured: Path | None = None
    """``measured.json`` of an earlier run on backend ``rdma``: what is in it is not measured again."""
    calibration: Path | None = None
    """What `netsim calibrate-rdma` has measured, for the backends ``analytical`` and ``fluid``."""

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, tree: Any) -> Any:
        """Some backends do not know the default coupling; congestion control is also part of ``roce``."""
        if not isinstance(tree, Mapping):
            return tree
        tree = dict(tree)
        able = capabilities_of(str(tree.get("backend")))
        if able.simulates_packets or able.sends_traffic:
            tree.setdefault("coupling", "isolated")
        roce = tree.get("roce", {})
        if isinstance(roce, RoceConfig):
            roce = roce.model_dump(mode="json", exclude_unset=True)
        if not isinstance(roce, Mapping):
            return tree
        schemes = [part["congestion_control"] for part in (tree, roce) if "congestion_control" in part]
        if len(schemes) == 2 and schemes[0] != schemes[1]:
            raise ValueError(f"roce.congestion_control: found {schemes[1]!r}, expected {schemes[0]!r} as one level up")
        if schemes:
            tree["congestion_control"] = schemes[0]
            tree["roce"] = {**roce, "congestion_control": schemes[0]}
        return tree


class OutputConfig(Section):
    """Files in addition to the table of requests, ``summary.json``, ``config.yaml`` and ``report.html``."""

    iterations: bool = True
    links: bool = True
    flows: bool = False
    batches: bool = False
    """Who is in each iteration, with how many tokens: ``batches.parquet``."""
    trace: bool = False
    report: bool = True
    link_windows: Annotated[Count, Field(le=10_000)] = 120
    """Time windows of ``links.parquet``."""


class SimulationConfig(Section):
    """One simulation."""

    seed: Seed = 0
    model: Annotated[str, Field(min_length=1)]
    hardware: Annotated[str, Field(min_length=1)]
    workload: WorkloadConfig
    cluster: ClusterConfig
    engine: EngineConfig
    frontend: FrontendConfig = NoFrontend()
    routing: RoutingConfig = RoutingConfig()
    kv_cache: KvCacheConfig | None = None
    """``None``: KV that leaves the prefix cache of an instance is gone."""
    kv_transfer: KvTransferConfig
    network: NetworkConfig
    slo: SloConfig = SloConfig()
    faults: tuple[FaultSpec, ...] = ()
    recovery: RecoveryConfig = RecoveryConfig()
    planner: PlannerConfig | None = None
    """``None``: all instances serve all the time."""
    prices: PricesConfig | None = None
    power: PowerConfig = PowerConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_engine_defaults(cls, tree: Any) -> Any:
        return complete(with_listed_gpus(tree)) if isinstance(tree, Mapping) else tree

    @model_validator(mode="after")
    def _has_one_frontend(self) -> SimulationConfig:
        latency_ms = self.engine.request_latency_ms
        if self.frontend.kind != "none" and latency_ms is not None:
            raise ValueError(
                f"found engine.request_latency_ms {latency_ms:g} with frontend {self.frontend.kind}, "
                "expected one of them"
            )
        return self

    def engine_of(self, pool: PoolConfig) -> EngineConfig:
        """The common engine with the pool's own fields on top."""
        own = {name: value for name, value in pool.engine if value is not None}
        if "policy" in own:
            own.setdefault("policy_options", {})
        return self.engine.model_copy(update=own)

    def hardware_of(self, pool: PoolConfig) -> str:
        return pool.hardware or self.hardware

    def ffn_hardware_of(self, pool: PoolConfig) -> str:
        """GPU of the FFN workers, or of all GPUs where there are none."""
        return (pool.ffn and pool.ffn.hardware) or self.hardware_of(pool)

    def gpus_by_hardware(self, pool: PoolConfig) -> dict[str, int]:
        """GPUs of an instance by their names."""
        found = {self.hardware_of(pool): pool.tp * pool.dp * pool.pp}
        if pool.ffn is not None:
            name = self.ffn_hardware_of(pool)
            found[name] = found.get(name, 0) + pool.ffn.gpus
        return found

    def hands_over(self, pool: PoolConfig) -> bool:
        """Whether KV is sent from or to instances of the pool."""
        return pool.role != "mixed" or self.routing.has_mixed_pool

    def decodes(self, pool: PoolConfig) -> bool:
        """Whether instances of the pool may decode."""
        return pool.role != "prefill" or self.routing.has_mixed_pool

    @property
    def has_connector(self) -> bool:
        """Whether KV is handed over by a connector that costs more than bytes and a set-up."""
        return self.is_disaggregated and self.kv_transfer.connector.kind != IDEAL

    @property
    def is_disaggregated(self) -> bool:
        """Whether any request travels from a prefill to a decode pool."""
        return any(pool.role == "prefill" for pool in self.cluster.pools)
