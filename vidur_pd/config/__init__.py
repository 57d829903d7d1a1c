"""The configuration: its schema, its file, the files and classes that it names."""

from vidur_pd.config.ffn import FfnConfig
from vidur_pd.config.kv_transfer import TRANSFER_MODES, KvTransferConfig
from vidur_pd.config.objectives import SloConfig
from vidur_pd.config.prices import PowerConfig, PricesConfig, hourly_price
from vidur_pd.config.routing import (
    CORE_ROUTING,
    NAMED_ROUTING,
    RANK_POLICIES,
    ROUTING_POLICIES,
    SPLITWISE,
    DisaggregateConfig,
    RankPolicy,
    RoutingConfig,
    RoutingPolicy,
    SplitwiseConfig,
)
from vidur_pd.config.schema import (
    CORE_POLICY,
    NAMED_POLICIES,
    SCHEDULING_POLICIES,
    ClusterConfig,
    EngineConfig,
    EngineOverrides,
    EplbConfig,
    ExpertDriftConfig,
    NetworkConfig,
    OutputConfig,
    OverlapConfig,
    PoolConfig,
    Role,
    SimulationConfig,
)

__all__ = [
    "CORE_POLICY",
    "CORE_ROUTING",
    "NAMED_POLICIES",
    "NAMED_ROUTING",
    "RANK_POLICIES",
    "ROUTING_POLICIES",
    "SCHEDULING_POLICIES",
    "SPLITWISE",
    "TRANSFER_MODES",
    "ClusterConfig",
    "DisaggregateConfig",
    "EngineConfig",
    "EngineOverrides",
    "EplbConfig",
    "ExpertDriftConfig",
    "FfnConfig",
    "KvTransferConfig",
    "NetworkConfig",
    "OutputConfig",
    "OverlapConfig",
    "PoolConfig",
    "PowerConfig",
    "PricesConfig",
    "RankPolicy",
    "Role",
    "RoutingConfig",
    "RoutingPolicy",
    "SimulationConfig",
    "SloConfig",
    "SplitwiseConfig",
    "hourly_price",
]
