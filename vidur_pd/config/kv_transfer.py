"""KV transfers in the configuration: their mode, and the connector that carries them at a cost beyond the bytes.

A connector is a YAML file in ``config/data/connectors``: the ``mode`` of its transfers and their ``setup_ms``, which
are fields of ``kv_transfer``, and what of `ConnectorConfig` is not zero. A configuration names one by
``kv_transfer.connector``, or states some of its costs itself: ``connector: {kind: nixl, path: host}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from boundary.fields import Count, NotBool, PositiveFloat, Probability, Section
from boundary.quoting import quoted
from boundary.yaml_text import read_yaml_mapping
from vidur_pd.config.names import Milliseconds, one_of

IDEAL: Final = "ideal"
"""The connector that costs the bytes and a set-up alone."""
OF_FRAMEWORKS: Final = {"vllm": "nixl", "sglang": "sglang_nixl"}
"""Connectors that configurations made for a framework state; others have none that is known (``IDEAL``)."""
FOLDER: Final = Path(__file__).parent / "data" / "connectors"

TRANSFER_MODES: Final = ("pull", "push", "chunked", "layerwise")
TransferModeName = Annotated[str, one_of(*TRANSFER_MODES)]
Microseconds = Annotated[float, NotBool, Field(ge=0, le=1e8, allow_inf_nan=False)]


def known_connectors() -> tuple[str, ...]:
    """Names of connectors."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def connector_file(kind: str) -> Mapping[str, Any]:
    """The tree of a connector's file."""
    return read_yaml_mapping(FOLDER / f"{kind}.yaml", "a connector")


class WayCosts(Section):
    """Costs of a connector on one way between two GPUs, besides the bytes."""

    descriptor_us: Microseconds = 0.0
    """Time to post one descriptor. KV moves as fast as its descriptors are posted, at most."""
    threads_from: Count | None = None
    """Number of descriptors of a transfer between two GPUs from which on several threads share them (NIXL splits
    batches); ``None``: one thread posts all."""
    threads_us: Microseconds = 0.0
    """Time to post one of so many, by all threads together."""
    thread_us: Microseconds = 0.0
    """Time in which one of these threads posts one; it takes ``threads_from`` of them before another has any."""
    gbytes_per_s: PositiveFloat | None = None
    """Rate at which one GPU's KV is copied besides (through buffers, by processors); ``None``: it is not."""
    slot_us: Microseconds = 0.0
    """Time to list one slot of a transfer (a KV block in one layer and region) before any is posted, whether it adjoins
    others or not: NIXL makes descriptors of the slots that its caller lists."""
    step_share: Probability = 0.0
    """Share of the posting for which the steps of the engine stand still; 0: it is done in other threads."""

    @model_validator(mode="after")
    def _is_complete(self) -> WayCosts:
        if self.threads_from is not None and not self.threads_us:
            raise ValueError(f"threads_us: found none with threads_from {self.threads_from}, expected a time")
        if self.threads_from is None and (self.threads_us or self.thread_us):
            raise ValueError("threads_from: found none with threads_us or thread_us, expected a number of descriptors")
        return self

    @property
    def is_free(self) -> bool:
        """Whether posting takes no time."""
        return not (self.descriptor_us or self.threads_us or self.gbytes_per_s or self.slot_us)


WAYS: Final = ("between_nodes", "within_node", "through_host")
_OF_THREADS: Final = ("threads_from", "threads_us", "thread_us")
_MOVED: Final = {
    "descriptor_us": "within_node.descriptor_us or between_nodes.descriptor_us",
    "step_share": "within_node.step_share or between_nodes.step_share",
    "direct_gbytes_per_s": "within_node.gbytes_per_s or between_nodes.gbytes_per_s",
    "host_gbytes_per_s": "through_host.gbytes_per_s",
    "host_step_share": "through_host.step_share",
    "host_setup_us": "host_us",
}
"""Fields that connectors had before they had ways, and where they are."""


class ConnectorConfig(Section):
    """One connector. Fields that are left out are those of its file, also within its ways."""

    kind: str
    forward_us: Microseconds = 0.0
    """Frontend: from the answer of the prefill instance to its request to the decode instance, where that gets it only
    then (modes that reserve blocks after the prefill). The way of this request comes on top, as that of the first."""
    forward_token_us: Microseconds = 0.0
    """The same for each token of the prompt."""
    handshake_us: Microseconds = 0.0
    """First contact of two instances, before their first transfer; transfers of others go on meanwhile."""
    handshake_descriptor_us: Microseconds = 0.0
    """The same for each piece of KV memory that the one who posts gets to know: blocks x layers x regions of a rank."""
    descriptor_tokens: Count | None = None
    """Tokens of a descriptor, a run of one layer and region (keys, values; a latent is one) between two GPUs; ``None``:
    a KV block. Blocks that adjoin on both sides are one run; in a cache that has been used few do."""
    posted_by: Literal["decode", "prefill"]
    """The instance that reads or writes. Left out: that of the connector; ``decode`` with mode ``pull``, else
    ``prefill``."""
    path: Literal["direct", "host"] = "direct"
    """``direct``: GPUs of a node reach each other's memory (NVLink, CUDA IPC), and NICs that of GPUs. ``host``: neither
    does, as between containers without a common IPC namespace and without an RDMA NIC; processors copy."""
    between_nodes: WayCosts = WayCosts()
    """Costs of KV that a NIC reads or writes."""
    within_node: WayCosts = WayCosts()
    """Costs of KV that is copied between GPUs of one node."""
    through_host: WayCosts | None = None
    """Costs of both with ``path: host``."""
    host_us: Microseconds = 0.0
    """Host time of the engine that posts, for each transfer, if it is idle: it takes up the request, prepares the
    transfer, and goes through steps without a batch until it finds that it is done. Where steps are running it does so
    between them; where other threads post, it takes that time always."""
    measured_on: str | None = None
    """Host (as ``engine.host``) that ``host_us`` was measured on: it is as much longer on another as a launch is.
    ``None``: it is that of the hosts that are simulated. Left out: that of the connector, and ``None`` where
    ``host_us`` is stated."""
    nics: Count = 1
    """NICs of its node that a transfer between nodes is divided over."""
    notices: Literal["at_once", "step_begin", "step_end"] = "at_once"
    """When the decode engine finds KV that has come. ``step_begin``: it looks as it decides a step, which may have what
    it finds (SGLang). ``step_end``: it looks once in a step, and schedules what it has found after the step has ended
    (vLLM)."""
    room_before_prefill: bool = False
    """Prefills wait until the decode instance has blocks for them, with modes that reserve before."""
    room_us: Microseconds = 0.0
    """With ``room_before_prefill``: from the instant at which the decode instance has blocks until the prefill instance
    knows, by messages and polls of both."""

    @model_validator(mode="before")
    @classmethod
    def _with_costs_of_its_file(cls, tree: Any) -> Any:
        if isinstance(tree, str):
            tree = {"kind": tree}
        if not isinstance(tree, Mapping) or tree.get("kind") not in known_connectors():
            return tree
        of_file = connector_file(tree["kind"])["connector"]
        for field in tree:
            if field in _MOVED:
                raise ValueError(f"{field}: found a field of earlier versions, expected {_MOVED[field]}")
        ways = {way: _way(of_file, tree, way) for way in WAYS if isinstance(tree.get(way), Mapping)}
        without: dict[str, Any] = {"measured_on": None} if "host_us" in tree else {}
        if tree.get("room_before_prefill") is False:
            without["room_us"] = 0.0
        return {**of_file, **without, **tree, **ways}

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in known_connectors():
            raise ValueError(f"found {quoted(kind)}, expected one of {', '.join(known_connectors())}")
        return kind

    @model_validator(mode="after")
    def _has_costs_of_its_path(self) -> ConnectorConfig:
        if self.path == "host" and (self.through_host is None or self.through_host.is_free):
            raise ValueError(f"through_host: found no costs with path host of {self.kind}, expected a rate of copies")
        if self.room_us and not self.room_before_prefill:
            raise ValueError(f"room_us: found {self.room_us:g} without room_before_prefill, expected 0")
        return self

    def way(self, *, is_within_node: bool) -> WayCosts:
        """The costs between two GPUs."""
        if self.path == "host":
            assert self.through_host is not None, "validated"
            return self.through_host
        return self.within_node if is_within_node else self.between_nodes


def _way(of_file: Mapping[str, Any], tree: Mapping[str, Any], way: str) -> dict[str, Any]:
    """The costs of a way: what is stated, else those of the connector; without threads, none of theirs."""
    known, stated = of_file.get(way, {}), tree[way]
    without = _OF_THREADS if "threads_from" in stated and stated["threads_from"] is None else ()
    return {**{field: value for field, value in known.items() if field not in without}, **stated}


def with_connector(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A ``kv_transfer`` tree with what follows from its connector, where it says nothing."""
    named = tree.get("connector", IDEAL)
    connector = {"kind": named} if isinstance(named, str) else named
    kind = connector.get("kind") if isinstance(connector, Mapping) else None
    file = connector_file(kind if kind in known_connectors() else IDEAL)  # what is not known is said by validation
    mode = tree.get("mode", file["mode"])
    side = {"posted_by": file["connector"].get("posted_by", "decode" if mode == "pull" else "prefill")}
    completed = {**side, **connector} if isinstance(connector, Mapping) else connector
    return {"setup_ms": file["setup_ms"], **tree, "mode": mode, "connector": completed}


class KvTransferConfig(Section):
    """How the KV cache of a finished prefill reaches the decode instance.

    ``pull``: the decode side reserves blocks after the prefill has ended and reads. ``push``: it reserves when
    the request arrives, the prefill side writes as soon as it is done. ``chunked``: as push, but each chunk leaves as
    soon as it is computed; ``layerwise``: each layer.

    ``first_token`` says which token a user sees first: the one sampled by the prefill instance at once (Splitwise,
    DistServe), the same token once its KV has arrived (SGLang), or a token the decode instance recomputes from the
    last prompt position (vLLM's connectors).
    """

    mode: TransferModeName
    """``pull``, ``push``, ``chunked``, ``layerwise``, or ``module:Class``, a mode of one's own
    (`vidur_pd.kv.transfer.modes`). Left out: as the connector does."""
    connector: ConnectorConfig
    """What carries KV, and what that costs in addition to the bytes: a name, or a name as ``kind`` with costs of one's
    own. Left out: ``ideal``."""
    first_token: Literal["prefill", "decode_after_transfer", "decode_recompute"]
    """Left out: as the engine does."""
    setup_ms: Milliseconds
    """Time before the first byte of a transfer (first round trip). Left out: that of the connector."""

    @model_validator(mode="before")
    @classmethod
    def _with_its_connector(cls, tree: Any) -> Any:
        return with_connector(tree) if isinstance(tree, Mapping) else tree
