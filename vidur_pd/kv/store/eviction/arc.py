"""ARC: two lists, of what was used once and more often, whose sizes follow what is missed.

Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.
"""

from __future__ import annotations

from collections import OrderedDict

from vidur_pd.kv.store.eviction.policy import Eviction

Keys = OrderedDict[int, None]


class Arc(Eviction):
    def __init__(self) -> None:
        self._once: Keys = OrderedDict()
        """Accessed once, the oldest first; the paper's T1."""
        self._often: Keys = OrderedDict()
        """T2."""
        self._ghosts_once: Keys = OrderedDict()
        """Gone from ``_once``; B1."""
        self._ghosts_often: Keys = OrderedDict()
        """B2."""
        self._target = 0.0
        """Size that ``_once`` should have; p."""

    def hit(self, key: int) -> None:
        self._once.pop(key, None)
        self._often.pop(key, None)
        self._often[key] = None

    def add(self, key: int) -> list[int]:
        once, often = len(self._ghosts_once), len(self._ghosts_often)
        if key in self._ghosts_once:
            self._target = min(float(self.capacity), self._target + max(1.0, often / once))
            left = [self._replace(key)]
            del self._ghosts_once[key]
            self._often[key] = None
        elif key in self._ghosts_often:
            self._target = max(0.0, self._target - max(1.0, once / often))
            left = [self._replace(key)]
            del self._ghosts_often[key]
            self._often[key] = None
        else:
            left = self._make_room(key)
            self._once[key] = None
        return left

    def _make_room(self, key: int) -> list[int]:
        """For a chunk that neither is there nor remembered."""
        with_ghosts = len(self._once) + len(self._ghosts_once)
        if with_ghosts == self.capacity:
            if len(self._once) == self.capacity:
                return [self._once.popitem(last=False)[0]]
            self._ghosts_once.popitem(last=False)
            return [self._replace(key)]
        total = with_ghosts + len(self._often) + len(self._ghosts_often)
        if total < self.capacity:
            return []
        if total == 2 * self.capacity:
            self._ghosts_often.popitem(last=False)
        return [self._replace(key)]

    def _replace(self, key: int) -> int:
        """One chunk becomes a ghost."""
        once = len(self._once)
        is_above = once > self._target or (key in self._ghosts_often and once == self._target)
        from_once = once > 0 and (is_above or not self._often)
        lives, ghosts = (self._once, self._ghosts_once) if from_once else (self._often, self._ghosts_often)
        gone, _ = lives.popitem(last=False)
        ghosts[gone] = None
        return gone
