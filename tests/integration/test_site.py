"""The site of all documents: it builds, and a link that leads nowhere would stop it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None or not (REPOSITORY / ".git").exists(),
    reason="needs mkdocs-material (pip install 'vidur-pd[docs]') and the repository",
)


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "site.py"), str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_all_documents_become_a_site_whose_links_hold(tmp_path: Path) -> None:
    done = built(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "INFO    -  Documentation built" in done.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "docs/tutorial.html", "docs/options.html", "vidur_pd/index.html"} <= pages


def test_every_document_is_in_the_navigation_or_linked_from_one_that_is() -> None:
    """A document that nobody leads to is not found."""
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    documents = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    assert [name for name in sorted(documents) if name not in navigation] == []
