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


class ConnectorConfig(Section):
    """One connector. Fields that are left out are those of its file."""

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
    descriptor_us: Microseconds = 0.0
    """To post one descriptor: a run of tokens of one layer and region (keys, values; a latent is one) between two
    GPUs. KV moves as fast as its descriptors are posted, at most."""
    descriptor_tokens: Count | None = None
    """Tokens of a descriptor; ``None``: a KV block."""
    posted_by: Literal["decode", "prefill"]
    """The instance that reads or writes. Left out: that of the connector; ``decode`` with mode ``pull``, else
    ``prefill``."""
    path: Literal["direct", "host"] = "direct"
    """``direct``: NICs and GPUs reach the memory of GPUs. ``host``: the CPU of the one who posts copies, as where GPUs
    of virtual machines do not see each other, or NICs do not see them."""
    direct_gbytes_per_s: PositiveFloat | None = None
    """Rate of copies on a direct path, of one GPU; ``None``: there are none."""
    host_gbytes_per_s: PositiveFloat | None = None
    """The same on a path through the host."""
    host_setup_us: Microseconds = 0.0
    """Besides ``kv_transfer.setup_ms``, on a path through the host."""
    measured_on: str | None = None
    """Host (as ``engine.host``) on which copies, descriptors and set-up of a path through hosts were measured: they
    take another as much longer as a launch does. ``None``: they are those of the hosts that are simulated. Left out:
    that of the connector, and ``None`` where ``descriptor_us``, ``host_gbytes_per_s`` or ``host_setup_us`` is
    stated."""
    step_share: Probability = 0.0
    """Share of the posting for which the steps of the engine stand still; 0: it is done in other threads."""
    host_step_share: Probability | None = None
    """The same on a path through the host; ``None``: as ``step_share``."""
    nics: Count = 1
    """NICs of its node that a transfer between nodes is divided over."""
    notices: Literal["at_once", "step_end"] = "at_once"
    """``step_end``: the decode engine looks for KV that has come once in a step, and schedules what it has found after
    the step has ended."""
    room_before_prefill: bool = False
    """Prefills wait until the decode instance has blocks for them, with modes that reserve before."""

    @model_validator(mode="before")
    @classmethod
    def _with_costs_of_its_file(cls, tree: Any) -> Any:
        if isinstance(tree, str):
            tree = {"kind": tree}
        if not isinstance(tree, Mapping) or tree.get("kind") not in known_connectors():
            return tree
        of_file = connector_file(tree["kind"])["connector"]
        states_own = any(field in tree for field in ("descriptor_us", "host_gbytes_per_s", "host_setup_us"))
        return {**of_file, **({"measured_on": None} if states_own else {}), **tree}

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in known_connectors():
            raise ValueError(f"found {quoted(kind)}, expected one of {', '.join(known_connectors())}")
        return kind

    @model_validator(mode="after")
    def _has_a_rate(self) -> ConnectorConfig:
        if self.path == "host" and self.host_gbytes_per_s is None:
            raise ValueError(f"host_gbytes_per_s: found none with path host of {self.kind}, expected a rate of copies")
        return self

    @property
    def copies_gbytes_per_s(self) -> float | None:
        """Rate of copies on the path; ``None``: there are none."""
        return self.host_gbytes_per_s if self.path == "host" else self.direct_gbytes_per_s

    @property
    def share_of_step(self) -> float:
        """Share of the posting for which steps stand still, on the path."""
        return self.step_share if self.path == "direct" or self.host_step_share is None else self.host_step_share


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
