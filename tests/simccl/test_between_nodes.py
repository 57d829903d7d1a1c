"""Collectives between nodes against published times (docs/accuracy/network.md, "Between nodes")."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simccl.between_nodes import CLUSTERS, GROUPS, RANGES, absolute, within

MEDIANS = {
    "A, 2 nodes": (0.04, 0.13, 0.03, 0.04),
    "A, 4 nodes": (0.03, 0.10, 0.07, 0.04),
    "B, 2 nodes": (None, None, 0.10, 0.04),
    "B, 8 nodes": (None, None, 0.14, 0.13),
    "C, 2 nodes": (None, None, None, 0.03),
    "D, 2 nodes": (0.43, 0.47, 0.10, 0.04),
    "E, all-gather, 2 nodes": (0.17, 0.24, 0.18, 0.13),
    "F, all-gather, 2 nodes": (None, 0.37, 0.21, 0.12),
    "G, all-gather, 2 nodes": (0.08, 0.06, 0.21, 0.09),
    "G, reduce-scatter, 2 nodes": (0.05, 0.04, 0.23, 0.09),
    "G, all-to-all, 2 nodes": (0.25, 0.28, 0.28, 0.27),
    "G, 2 nodes": (0.31, 0.30, 0.20, 0.43),
}
"""Limits of the median absolute error in each of `RANGES`; None where nothing was published."""


@pytest.mark.parametrize("name", MEDIANS)
def test_collectives_take_as_long_as_published(name: str) -> None:
    for limit, sizes in zip(MEDIANS[name], RANGES.values(), strict=True):
        found = np.abs(within(name, *sizes))
        assert (limit is None) == (len(found) == 0)
        if limit is not None:
            assert np.median(found) <= limit, found


def test_every_published_time_is_compared() -> None:
    compared = sum(len(within(name, *sizes)) for name in MEDIANS for sizes in RANGES.values())
    assert compared == sum(len(published.times_us) for published in CLUSTERS.values()) == 237


@pytest.mark.parametrize(("group", "constants", "corrected"), [("Hopper", 0.137, 0.066), ("B200", 0.340, 0.259)])
def test_corrections_of_one_node_lessen_the_error(group: str, constants: float, corrected: float) -> None:
    assert np.median(absolute(GROUPS[group], "none")) == pytest.approx(constants, abs=0.005)
    assert np.median(absolute(GROUPS[group])) == pytest.approx(corrected, abs=0.005)
