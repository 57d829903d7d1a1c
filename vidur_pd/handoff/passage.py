"""Where a request's KV is between two instances."""

from __future__ import annotations

from dataclasses import dataclass, field

from netsim import GraphHandle
from vidur_pd.events import Event
from vidur_pd.handoff.wire import Computation
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request


@dataclass(slots=True, eq=False)
class Parcel:
    """KV that goes on the network as one flow graph, and again if that fails."""

    tokens: int
    with_state: bool
    """The recurrent state of a hybrid model is in it."""
    computed: Computation | None
    """When its layers are computed; ``None``: they are."""
    failures: int = 0


@dataclass(slots=True, eq=False)
class Passage:
    """A request from its routing to a prefill rank to the arrival of its KV at a decode rank."""

    number: int
    """In the order in which they begin."""
    request: Request
    source: Rank
    destination: Rank | None = None
    is_reserved: bool = False
    """The destination holds blocks for it."""
    is_prefilled: bool = False
    sent_tokens: int = 0
    """Tokens whose KV has been put on the network, or need not travel."""
    is_state_sent: bool = False
    """The recurrent state of a hybrid model has been put on the network."""
    outstanding: dict[GraphHandle, Parcel] = field(default_factory=dict)
    """On the network."""
    pending: dict[Parcel, Event] = field(default_factory=dict)
    """Failed, and to be sent again at these events."""
    failure: str | None = None
    """Why this passage leads nowhere; known before the prefill instance has let the request go."""
    is_hopeless: bool = False
    """The failure ends the request, whatever the recovery policy."""
    chunk: tuple[int, Computation] | None = None
    """In layer-wise mode the tokens that the last chunk reaches, and when it is computed."""

    @property
    def is_on_its_way(self) -> bool:
        """Some KV is on the network, or waits to be sent again."""
        return bool(self.outstanding or self.pending)

    def goes_to(self, instance: Instance) -> bool:
        return self.destination is not None and self.destination.instance is instance
