"""The table of `docs/models.md` against the models."""

from __future__ import annotations

from pathlib import Path

from aicb import built_in_models, load_model

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_page_lists_every_model_with_its_sizes() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    listed = {row[0]: row[1:] for row in rows if row[0] in built_in_models()}
    assert sorted(listed) == built_in_models()
    for name, cells in listed.items():
        model = load_model(name)
        active, kv_gb = f"{model.active_parameters / 1e9:.3f}", f"{model.kv_bytes(100_000) / 1e9:.2f}"
        sizes = [f"{len(model.pattern)}", f"{model.parameters:,}", active, f"{model.kv_bytes_per_token():,}", kv_gb]
        assert cells == sizes
