"""The root of a package has its rooms and public modules, few enough to take in at a glance."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_ENTRIES = 12


def entries(package: str) -> list[str]:
    """Folders and modules without what every package has: names with ``_`` in front, README and ``py.typed``."""
    paths = (ROOT / package).iterdir()
    return sorted(path.name for path in paths if (path.is_dir() or path.suffix == ".py") and path.name[0] not in "_.")


@pytest.mark.parametrize("package", ["netsim", "simccl", "aicb", "vidur_pd"])
def test_the_root_of_a_package_has_at_most_a_dozen_entries(package: str) -> None:
    found = entries(package)
    assert 0 < len(found) <= MOST_ENTRIES, found
