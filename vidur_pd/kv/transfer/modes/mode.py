"""The contract of a mode of KV transfers: four hooks, and what a hook may ask for.

The hand-over calls the hooks of one request in this order:

    on_routed → on_launched (each chunk of the prompt) → on_prefilled
                     on_room (any time after `Transfer.reserve`)

``on_room`` comes once blocks are free on the decode rank that `Transfer.reserve` has chosen. A request that has room
but is not prefilled, nor has KV under way, can lose it to one that is prefilled: all of its KV has to be sent anew, and
``on_room`` comes again. When a decode instance fails, its transfers lose their destination, and the mode hears again of
what has happened to the request so far: ``on_routed``, while the prompt is computed ``on_launched`` of its last chunk,
after that ``on_prefilled``. Requests that end with their prefill, and those whose transfer has failed, are not shown to
the mode.

The hand-over does the rest: it chooses destinations, lets prefilled requests go first, sends parts again that the
network has cut, tells the decode rank when all KV has arrived, and frees blocks on both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from vidur_pd.config.own_classes import check_names, check_shapes
from vidur_pd.workload.request import Request

HOOKS: Final = ("on_routed", "on_launched", "on_prefilled", "on_room")


class Transfer(Protocol):
    """The KV transfer of one request, as its mode sees it. Amounts are tokens from the beginning of the context."""

    @property
    def request(self) -> Request:
        """To be looked at only."""
        ...

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV the decode instance needs: the prompt, and after a restart what had been generated."""
        ...

    @property
    def launched_tokens(self) -> int:
        """Tokens whose KV is computed or in computation: the most that `send` takes.

        Until the prompt is computed, this is 0 for a mode without ``on_launched``.
        """
        ...

    @property
    def computed_tokens(self) -> int:
        """The same without the chunk in computation: all chunks that began before it, which has an end of its own where
        pipeline stages overlap."""
        ...

    @property
    def sent_tokens(self) -> int:
        """Tokens whose KV has been sent, or is in the prefix cache of the decode rank."""
        ...

    @property
    def is_prefilled(self) -> bool:
        """The whole context is computed."""
        ...

    @property
    def has_room(self) -> bool:
        """The decode rank holds blocks for the whole context."""
        ...

    def reserve(self) -> None:
        """Chooses a decode rank and queues the request for blocks there, first come, first served.

        Does nothing where that has been done. While no decode instance is in service the request waits for one.
        """
        ...

    def send(self, until_tokens: int) -> None:
        """Sends the KV up to ``until_tokens`` that has not been sent; needs room, and at most `launched_tokens`.

        What is computed leaves at once, after the set-up; of a chunk in computation each layer once it is computed. The
        recurrent state of a hybrid model goes with the last token.
        """
        ...


class TransferMode(ABC):
    """A mode of KV transfers. A run makes one, without arguments.

    Other public methods than the hooks are refused, as nothing would call them; so are hooks of another shape.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, HOOKS)
        check_shapes(cls, TransferMode, HOOKS)

    def on_routed(self, transfer: Transfer) -> None:  # noqa: B027
        """A prefill instance has got the request."""

    def on_launched(self, transfer: Transfer) -> None:  # noqa: B027
        """The prefill instance begins to compute a chunk of the prompt, up to `Transfer.launched_tokens`.

        Runs take longer where a mode has this hook: it is called in every iteration of a prefill instance.
        """

    @abstractmethod
    def on_prefilled(self, transfer: Transfer) -> None:
        """The prompt is computed. Whoever has not reserved blocks before does so now."""

    @abstractmethod
    def on_room(self, transfer: Transfer) -> None:
        """The decode rank holds blocks for the whole context from now on."""
