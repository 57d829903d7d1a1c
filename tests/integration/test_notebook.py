"""The notebook of the examples: every cell works, and shows what the text around it says."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbclient: pip install 'vidur-pd[test]'")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
pytestmark = pytest.mark.filterwarnings("default")  # of the kernel's event loop


def test_every_cell_of_the_notebook_works() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [cell.outputs[-1].data["text/plain"] for cell in code]
    assert "SLO" in shown[0]
    assert "ttft_s" in shown[1]
    assert "decode_compute" in shown[2]
    assert "TTFT p90 (ms)" in shown[3]
    assert shown[4] == "(320, 2)"
