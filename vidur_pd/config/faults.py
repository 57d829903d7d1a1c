"""What a configuration says about faults and recovery; `vidur_pd.cluster.faults.plan` checks names."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from boundary.fields import Count, NotBool, Number, PositiveSeconds, Section

Instant = Annotated[float, NotBool, Field(ge=0, le=1e6, allow_inf_nan=False)]
Duration = Annotated[float, NotBool, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]
Factor = Annotated[float, NotBool, Field(ge=1, le=1e3, allow_inf_nan=False)]
PartOfCapacity = Annotated[float, NotBool, Field(ge=1e-6, lt=1)]
Name = Annotated[str, Field(min_length=1)]
Gpu = Number
Cable = tuple[Name, Name]
"""Names of the nodes at its ends, as in the topology; cables between the same nodes fail together."""


class _Timed(Section):
    at_s: Instant
    """Simulated time at which it begins."""
    for_s: Duration | None = None
    """How long it lasts; ``None``: for ever."""


class GpuFault(_Timed):
    """A GPU fails, and with it the instance that it belongs to. Until it is back the instance has lost everything."""

    kind: Literal["gpu"]
    gpu: Gpu


class InstanceFault(_Timed):
    """An instance fails: its engine process, or its node."""

    kind: Literal["instance"]
    instance: Name


class DrainFault(_Timed):
    """An operator takes an instance out of service: it gets no new requests and finishes those it has."""

    kind: Literal["drain"]
    instance: Name


class StragglerFault(_Timed):
    """An instance computes ``factor`` times as long."""

    kind: Literal["straggler"]
    instance: Name
    factor: Factor


class SlowGpuFault(_Timed):
    """A GPU computes ``factor`` times as long; its instance waits for it, as all of its GPUs run in lockstep."""

    kind: Literal["slow_gpu"]
    gpu: Gpu
    factor: Factor


class NicFault(_Timed):
    """The NIC of a GPU fails: all its cables but NVLink."""

    kind: Literal["nic"]
    gpu: Gpu


class LinkFault(_Timed):
    """A cable fails, both directions of it."""

    kind: Literal["link"]
    between: Cable


class LinkFlapFault(Section):
    """A cable fails ``count`` times for ``down_s``, with ``up_s`` between."""

    kind: Literal["link_flap"]
    between: Cable
    at_s: Instant
    count: Annotated[Count, Field(le=10_000)]
    down_s: Duration
    up_s: Duration


class SlowLinkFault(_Timed):
    """A cable keeps a ``share`` of its capacity, in both directions."""

    kind: Literal["slow_link"]
    between: Cable
    share: PartOfCapacity


class PfcStormFault(_Timed):
    """The first node of the cable keeps the second one paused in a class, as defective interfaces do; packets only."""

    kind: Literal["pfc_storm"]
    between: Cable
    priority: Annotated[int, Field(ge=1, le=7)] = 3


LINK_FAULTS: Final = (NicFault, LinkFault, LinkFlapFault, SlowLinkFault, PfcStormFault)
"""Faults of cables, not of what computes."""

FaultSpec = Annotated[
    GpuFault
    | InstanceFault
    | DrainFault
    | StragglerFault
    | SlowGpuFault
    | NicFault
    | LinkFault
    | LinkFlapFault
    | SlowLinkFault
    | PfcStormFault,
    Field(discriminator="kind"),
]


class RecoveryConfig(Section):
    """What becomes of requests and transfers that a fault hits (`docs/faults.md`)."""

    requests: Literal["recompute", "retry", "fail"] = "recompute"
    """Of requests that have lost their KV: ``recompute`` computes the prompt and the tokens that the user has again,
    anywhere; ``retry`` starts over, anywhere, and the user's tokens are void; ``fail`` ends them."""
    max_attempts: Annotated[Count, Field(le=1000)] = 3
    """How often one request begins again before it fails. Default: what Dynamo's guide advises for its migration
    (docs.nvidia.com/dynamo, Request Migration: "start with 3"; it is off until asked for)."""
    transfer_retries: Annotated[Number, Field(le=1000)] = 3
    """How often a KV transfer that was cut is sent again before its request has lost its KV."""
    transfer_backoff_s: Annotated[PositiveSeconds, Field(le=3600)] = 0.001
    """Time before the first of these; each further one waits twice as long. Default: a few times the set-up of a
    transfer (``kv_transfer.setup_ms``)."""
    without_instance: Literal["wait", "fail"] = "wait"
    """What requests do while no instance that could take them is in service."""
    degraded: Literal["keep", "drain"] = "keep"
    """Whether an instance that computes slowly, or with a faulty cable at one of its GPUs, still gets new requests."""
