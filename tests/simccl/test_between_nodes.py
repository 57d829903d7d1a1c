"""All-reduces between nodes against published times (docs/accuracy/network.md, "Between nodes")."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simccl.between_nodes import CLUSTERS, RANGES, errors, within

LIMITS = {
    ("A, 2 nodes", "to 1 KiB"): 0.06,
    ("A, 4 nodes", "to 1 KiB"): 0.06,
    ("A, 2 nodes", "4 KiB to 512 KiB"): 0.22,
    ("A, 4 nodes", "4 KiB to 512 KiB"): 0.20,
    ("A, 2 nodes", "1 to 256 MiB"): 0.28,
    ("A, 4 nodes", "1 to 256 MiB"): 0.25,
    ("B, 2 nodes", "1 to 256 MiB"): 0.34,
    ("B, 8 nodes", "1 to 256 MiB"): 0.46,
    ("A, 2 nodes", "from 512 MiB"): 0.06,
    ("A, 4 nodes", "from 512 MiB"): 0.06,
    ("B, 2 nodes", "from 512 MiB"): 0.06,
    ("B, 8 nodes", "from 512 MiB"): 0.21,
    ("C, 2 nodes", "from 512 MiB"): 0.06,
}


@pytest.mark.parametrize(("name", "sizes"), LIMITS)
def test_all_reduces_take_as_long_as_published(name: str, sizes: str) -> None:
    found = within(name, *RANGES[sizes])
    assert found
    assert max(abs(error) for error in found) <= LIMITS[name, sizes], found


def test_every_published_time_is_compared() -> None:
    compared = sum(len(within(name, *RANGES[sizes])) for name, sizes in LIMITS)
    assert compared == sum(len(published.times_us) for published in CLUSTERS.values()) == 83


def test_half_of_all_are_within_12_percent() -> None:
    every = [abs(error) for name in CLUSTERS for _, error in errors(name)]
    assert np.median(every) == pytest.approx(0.115, abs=0.005)
    assert np.quantile(every, 0.9) == pytest.approx(0.271, abs=0.005)
