"""The script that pages draw with is the published one, of the version that the figures are made for."""

from __future__ import annotations

import hashlib
import re

from plotly.offline import get_plotlyjs_version

from vidur_pd.report.page import SCRIPT

README = SCRIPT.with_name("README.md").read_text(encoding="utf-8")


def test_the_script_and_its_licence_are_unchanged() -> None:
    sums = dict(re.findall(r"\| `([^`]+)` \| `([0-9a-f]{64})` \|", README))
    assert set(sums) == {"plotly-cartesian.min.js", "LICENSE"}
    for name, expected in sums.items():
        assert hashlib.sha256(SCRIPT.with_name(name).read_bytes()).hexdigest() == expected


def test_the_script_is_of_the_generation_that_the_figures_are_made_for() -> None:
    """Their first number: properties come and go with it."""
    found = re.search(r"plotly\.js \(cartesian - minified\) v(\d+)", SCRIPT.read_text(encoding="utf-8")[:200])
    assert found is not None
    assert abs(int(found[1]) - int(get_plotlyjs_version().split(".")[0])) <= 1


def test_the_script_cannot_close_its_element() -> None:
    assert "</script" not in SCRIPT.read_text(encoding="utf-8").lower()
