"""The mode that the README shows how to write, taken from there and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vidur_pd
from tests.integration.small_runs import pool
from tests.vidur_pd.kv_modes.watched import Order, watch


def test_the_mode_of_the_readme_sends_long_prompts_layer_by_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 tokens in one go once they are computed, 600 in chunks of 512 and 88 while they are."""
    page = (Path(vidur_pd.__file__).parent / "README.md").read_text()
    section = page[page.index("### Writing a mode") : page.index("### Adding a figure")]
    (text,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert "mode: by_length.py:ByLength" in section
    (tmp_path / "by_length.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    rows = [(0, 500, 3), (200_000, 600, 3)]
    watched = watch([pool("p", "prefill"), pool("d", "decode")], rows, kv_transfer={"mode": "by_length.py:ByLength"})
    assert watched.result.summary.completed == 2
    assert watched.orders == {
        0: [Order(0, 500, had_room=True, was_prefilled=True)],
        1: [
            Order(0, 512, had_room=True, was_prefilled=False),
            Order(512, 600, had_room=True, was_prefilled=False),
        ],
    }
