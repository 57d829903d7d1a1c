"""The planner in the configuration: who decides how many instances serve, and what starting one takes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, PositiveFloat, PositiveSeconds, Seconds, Section
from vidur_pd.config.names import one_of

NAMED_PLANNERS: Final = {"throughput": "Throughput", "load": "Load"}
"""Module in ``vidur_pd/cluster/planner/policies``, and the class in it."""
PlannerPolicy = Annotated[str, one_of(*NAMED_PLANNERS)]


class StartupConfig(Section):
    """What an instance takes from the decision to start it until it serves; its GPUs are held meanwhile."""

    engine_s: Seconds
    """Everything but the weights: processes, compilation, captured graphs."""
    weights: Literal["disk", "peers"] | None = None
    """Where weights come from: the server's disk, or an instance of the pool that serves, over the network (from the
    disk while there is none). ``None``: their time is part of ``engine_s``."""
    disk_gbytes_per_s: PositiveFloat | None = None
    """Of a server; with ``weights``."""

    @model_validator(mode="after")
    def _has_a_disk(self) -> StartupConfig:
        if (self.weights is None) != (self.disk_gbytes_per_s is None):
            found = "none" if self.weights is None else self.weights
            expected = "none" if self.weights is None else "one"
            raise ValueError(f"disk_gbytes_per_s: found weights {found}, expected {expected} with it")
        return self


class PoolRange(Section):
    """Bounds of the number of instances of a pool; the most is ``cluster.pools[].instances``."""

    min: Count = 1
    initial: Count | None = None
    """At the beginning, serving at once; ``None``: as many as the pool has, or half of the GPUs that two pools
    share."""


class PlannerConfig(Section):
    """Scaling of pools while requests come (`vidur_pd/cluster/planner`, docs/planner.md)."""

    policy: PlannerPolicy = "throughput"
    """``throughput``, ``load``, or a class of one's own, ``module:Class``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What only this policy knows (`Planner.Options` of its class says which fields there are)."""
    interval_s: PositiveSeconds = 180.0
    """Between two decisions; Dynamo's planner has 180 s for throughput, and 5 s for load."""
    startup: StartupConfig
    pools: Annotated[dict[str, PoolRange], Field(min_length=1)]
    """By name; pools that are not here keep all their instances."""
    role_switch_s: Seconds | None = None
    """The prefill and the decode pool are two roles of the same GPUs, and this is what an instance takes to change from
    one to the other once it is empty. ``None``: each pool has GPUs of its own."""
