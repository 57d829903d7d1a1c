"""Which instances put load on which links."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray


class LinkUsers:
    """Instances by link, as far as they have been noted; most links have one."""

    def __init__(self, links: int) -> None:
        self._first = np.full(links, -1, dtype=np.int64)
        self._is_shared = np.zeros(links, dtype=np.bool_)
        self._further: dict[int, set[int]] = defaultdict(set)
        self._used = np.zeros(0, dtype=np.int64)
        self._noted: dict[tuple[int, int], NDArray[np.int64]] = {}

    @property
    def meet(self) -> bool:
        """Whether a link has more than one: only then do instances slow each other down."""
        return bool(self._further)

    def note(self, instance: int, links: NDArray[np.int64]) -> None:
        """The instance uses these links; asked again with the same array, it does nothing."""
        key = (instance, id(links))
        if key in self._noted:
            return
        self._noted[key] = links  # keeps the array, and so its id
        is_free = self._first[links] < 0
        taken = links[~is_free & (self._first[links] != instance)]
        self._first[links[is_free]] = instance
        self._used = np.concatenate((self._used, links[is_free]))
        self._is_shared[taken] = True
        for link in taken.tolist():
            self._further[link].add(instance)

    def of(self, links: NDArray[np.int64]) -> set[int]:
        """Instances that use any of these links."""
        users = set(self._first[links].tolist())
        for link in self.shared(links).tolist():
            users |= self._further[link]
        users.discard(-1)
        return users

    def shared(self, links: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that more than one instance uses."""
        return links[self._is_shared[links]]

    def used_among(self, amounts: NDArray[np.float64]) -> NDArray[np.int64]:
        """Used links where ``amounts`` [links] is not zero."""
        is_there: NDArray[np.bool_] = amounts[self._used] != 0
        return self._used[is_there]
