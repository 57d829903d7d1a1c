"""KV transfer of a request, from its routing to a prefill rank to the arrival of its KV at a decode rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import GraphHandle
from vidur_pd.execution.clock import Event
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.workload.request import Request


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The times at which the layers of a chunk of a prompt are computed: evenly spread over its iteration."""

    start_ps: int
    end_ps: int

    def ready_after(self, now_ps: int, layers: int) -> NDArray[np.int64]:
        """[layers] time from ``now_ps`` until each layer is computed, 0 for those that are."""
        computed_ps = (self.end_ps - self.start_ps) * np.arange(1, layers + 1) // layers
        return np.maximum(computed_ps + (self.start_ps - now_ps), 0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk of a prompt, computed or in computation on a prefill instance."""

    until_tokens: int
    """End of the chunk, in tokens of the context."""
    layers: LayerTimes


@dataclass(slots=True, eq=False)
class TransferPart:
    """Part of a transfer: KV sent as one flow graph, and sent again if the graph fails."""

    tokens: int
    with_state: bool
    """Whether the part contains the recurrent state of a hybrid model."""
    layers: LayerTimes | None
    """Times at which its layers are computed; ``None``: all are computed already."""
    failures: int = 0


class Actions(Protocol):
    """Actions of a mode on a transfer, carried out by the hand-over; see `vidur_pd.kv.transfer.modes.mode.Transfer`."""

    def reserve(self, transfer: KvTransfer) -> None: ...

    def send(self, transfer: KvTransfer, until_tokens: int) -> None: ...


@dataclass(slots=True, eq=False)
class KvTransfer:
    """The KV of one request from one prefill rank to one decode rank."""

    number: int
    """Serial number of the transfer, in the order in which they begin."""
    request: Request
    source: Rank
    actions: Actions
    travels: bool
    """Whether the request goes on to a decode instance; if not, it ends with its prefill."""
    destination: Rank | None = None
    has_room: bool = False
    """The destination holds blocks for the whole context."""
    is_prefilled: bool = False
    is_held_back: bool = False
    """Its prefill waits for room at the destination."""
    sent_tokens: int = 0
    """Tokens whose KV has been put on the network, or is in the destination's prefix cache."""
    is_state_sent: bool = False
    """The recurrent state of a hybrid model has been put on the network."""
    on_network: dict[GraphHandle, TransferPart] = field(default_factory=dict)
    to_resend: dict[TransferPart, Event] = field(default_factory=dict)
    """Parts that failed, and the events that send them again."""
    failure: str | None = None
    """Reason why the transfer failed; set before the prefill instance has released the request."""
    ends_request: bool = False
    """The failure ends the request, whatever the recovery policy."""
    chunks: list[Chunk] = field(default_factory=list)
    """Chunks of the prompt that are computed or in computation, rising; kept for modes that hear of launches."""

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV the decode instance needs."""
        return self.request.context_tokens

    @property
    def launched_tokens(self) -> int:
        """Tokens whose KV is computed or in computation; 0 before `is_prefilled` if the mode has no ``on_launched``."""
        if self.is_prefilled:
            return self.context_tokens
        return self.chunks[-1].until_tokens if self.chunks else 0

    @property
    def computed_tokens(self) -> int:
        """Tokens of the chunks before the last that has begun; all once `is_prefilled`."""
        if self.is_prefilled:
            return self.context_tokens
        return self.chunks[-2].until_tokens if len(self.chunks) > 1 else 0

    @property
    def is_under_way(self) -> bool:
        """Some KV is on the network, or waits to be sent again."""
        return bool(self.on_network or self.to_resend)

    @property
    def is_all_sent(self) -> bool:
        return self.sent_tokens >= self.context_tokens

    def goes_to(self, instance: Instance) -> bool:
        return self.destination is not None and self.destination.instance is instance

    def add_chunk(self, chunk: Chunk) -> None:
        """Adds a chunk whose computation begins; after a preemption the prompt starts over, without later chunks."""
        while self.chunks and self.chunks[-1].until_tokens >= chunk.until_tokens:
            self.chunks.pop()
        self.chunks.append(chunk)

    def layers_up_to(self, until_tokens: int) -> LayerTimes | None:
        """Times of the layers of the chunk that contains token ``until_tokens``; ``None``: all are computed already."""
        if self.is_prefilled:
            return None
        return next(chunk.layers for chunk in self.chunks if chunk.until_tokens >= until_tokens)

    # What modes may ask for.

    def reserve(self) -> None:
        self.actions.reserve(self)

    def send(self, until_tokens: int) -> None:
        self.actions.send(self, until_tokens)
