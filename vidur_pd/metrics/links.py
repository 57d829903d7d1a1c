"""Bytes on links over time, by class of traffic, in a bounded number of windows."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S

Traffic = Literal["kv", "collective"]
FIRST_WINDOW_PS = PS_PER_S // 64


class LinkLog:
    """Accumulates link loads in windows of equal width; the width doubles when time outgrows them.

    Bytes are spread evenly over the time (start, end) that they are given with.
    """

    def __init__(self, links: int, windows: int) -> None:
        self._windows = windows + windows % 2
        self.window_ps = FIRST_WINDOW_PS
        self._carried: dict[Traffic, NDArray[np.float64]] = {
            "kv": np.zeros((self._windows, links)),
            "collective": np.zeros((self._windows, links)),
        }

    def add(
        self,
        traffic: Traffic,
        links: NDArray[np.int64],
        link_bytes: NDArray[np.float64],
        span_ps: tuple[int, int],
    ) -> None:
        """Adds bytes on distinct links in time; without duration they fall into the window of their instant."""
        if not len(links):
            return
        start_ps, end_ps = span_ps
        while end_ps >= self._windows * self.window_ps:
            self._widen()
        carried = self._carried[traffic]
        first, last = start_ps // self.window_ps, end_ps // self.window_ps
        for window in range(first, last + 1):
            begin = max(start_ps, window * self.window_ps)
            end = min(end_ps, (window + 1) * self.window_ps)
            share = (end - begin) / (end_ps - start_ps) if end_ps > start_ps else 1.0
            carried[window, links] += link_bytes * share

    def total_bytes(self, traffic: Traffic) -> NDArray[np.float64]:
        """[links]"""
        return np.asarray(self._carried[traffic].sum(axis=0))

    def columns(self) -> dict[str, NDArray[np.generic] | list[str]]:
        """Rows for every (traffic, window, link) that carried something, without the links' own attributes."""
        traffic: list[str] = []
        windows: list[NDArray[np.int64]] = []
        links: list[NDArray[np.int64]] = []
        carried: list[NDArray[np.float64]] = []
        for kind, table in self._carried.items():
            window, link = np.nonzero(table)
            traffic += [kind] * len(window)
            windows.append(window)
            links.append(link)
            carried.append(table[window, link])
        window_index = np.concatenate(windows)
        return {
            "link": np.concatenate(links),
            "traffic": traffic,
            "window_start_s": window_index * (self.window_ps / PS_PER_S),
            "window_end_s": (window_index + 1) * (self.window_ps / PS_PER_S),
            "carried_bytes": np.concatenate(carried),
        }

    def _widen(self) -> None:
        self.window_ps *= 2
        for traffic, table in self._carried.items():
            merged = np.zeros_like(table)
            merged[: self._windows // 2] = table[0::2] + table[1::2]
            self._carried[traffic] = merged
