"""A policy of the user's own that is asked: what is wrong with its answers ends the run in one line."""

from __future__ import annotations

from collections.abc import Callable

from boundary.errors import InputError
from vidur_pd.config.own_classes import FAULTS, describe
from vidur_pd.kv.store.eviction.policy import Eviction


class AskedEviction(Eviction):
    """Passes accesses on, and keeps count of what is there."""

    def __init__(self, name: str, make: Callable[[], Eviction], capacity: int) -> None:
        """Raises: InputError, where the policy cannot be made."""
        self._name = name.rpartition("/")[2]
        self.capacity = capacity
        self._held: set[int] = set()
        try:
            self._policy = make()
            self._policy.capacity = capacity
        except FAULTS as error:
            raise self._raised(error) from error

    def hit(self, key: int) -> None:
        """Raises: InputError, as ``add``."""
        try:
            self._policy.hit(key)
        except FAULTS as error:
            raise self._raised(error) from error

    def add(self, key: int) -> list[int]:
        """Raises: InputError, naming the rule that the answer breaks."""
        try:
            left = self._policy.add(key)
        except FAULTS as error:
            raise self._raised(error) from error
        if not isinstance(left, list):
            raise self._wrong(f"add returned {left!r}, expected a list of the chunks that leave")
        self._held.add(key)
        for gone in left:
            if gone not in self._held:
                raise self._wrong(f"add let chunk {gone!r} leave, expected chunks that are there, each once")
            self._held.remove(gone)
        if len(self._held) > self.capacity:
            raise self._wrong(
                f"found {len(self._held)} chunks that stay, expected at most its capacity {self.capacity}"
            )
        return left

    def _raised(self, error: BaseException) -> InputError:
        return self._wrong(f"raises: {describe(error)}")

    def _wrong(self, what: str) -> InputError:
        return InputError(f"eviction policy {self._name}: {what}")
