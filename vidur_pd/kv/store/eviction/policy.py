"""An eviction policy of one's own: which chunk leaves a tier that is full.

Named by ``eviction: module:Class`` of a tier (or ``file.py:Class`` in the folder of the configuration). Each tier has
one object of it, made without arguments::

    class Fifo(Eviction):
        def __init__(self) -> None:
            self._queue: deque[int] = deque()

        def hit(self, key: int) -> None:
            pass

        def add(self, key: int) -> list[int]:
            self._queue.append(key)
            return [self._queue.popleft()] if len(self._queue) > self.capacity else []
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from vidur_pd.config.own_classes import check_names, check_shapes

HOOKS: Final = ("hit", "add")


class Eviction(ABC):
    """The chunks of one tier, by number, and the order in which they leave.

    Each prompt is one access to each of its chunks, when it has been computed: of one prompt the last chunk comes
    first, so that its beginning stays the longest. The owner keeps track of what is there; it calls ``hit`` for chunks
    that are, and ``add`` for others.
    """

    capacity: int
    """Chunks that the tier has room for, at least 1; set before the first call."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, HOOKS)
        check_shapes(cls, Eviction, HOOKS)

    @abstractmethod
    def hit(self, key: int) -> None:
        """A chunk that is there is accessed."""

    @abstractmethod
    def add(self, key: int) -> list[int]:
        """A chunk that is not there comes in; returns those that leave, so that at most ``capacity`` stay."""
