"""C++ of one package includes only the public headers of another, those in its ``core/include``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLIC = tuple(folder for folder in ROOT.glob("*/core/include/*") if folder.is_dir())
"""Folders of public headers, by package."""
QUOTED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ANGLED = re.compile(r"^#include <([^>]+)>", re.MULTILINE)


def sources(package: str) -> list[Path]:
    folder = ROOT / package / "core"
    return sorted([*folder.rglob("*.hpp"), *folder.rglob("*.cpp")])


def foreign(source: Path, package: str) -> list[str]:
    """Quoted includes that lead to another package with public headers."""
    others = {folder.name for folder in PUBLIC} - {package}
    named = [(source.parent / name).resolve() for name in QUOTED.findall(source.read_text())]
    found = [path.relative_to(ROOT) for path in named if path.is_relative_to(ROOT)]
    return [str(path) for path in found if path.parts[0] in others]


def test_other_packages_are_included_by_their_public_headers() -> None:
    packages = sorted({folder.parents[1].parent.name for folder in PUBLIC} | {"vidur_pd"})
    assert "netsim" in packages
    wrong = {
        str(source.relative_to(ROOT)): foreign(source, package) for package in packages for source in sources(package)
    }
    assert {source: names for source, names in wrong.items() if names} == {}


def test_public_headers_include_public_headers_alone() -> None:
    """So that nobody needs the folder of the package's own headers to read them."""
    for folder in PUBLIC:
        for header in sorted(folder.rglob("*.hpp")):
            text = header.read_text()
            assert QUOTED.findall(text) == [], header
            own = [name for name in ANGLED.findall(text) if name.startswith(f"{folder.name}/")]
            assert all((folder.parent / name).is_file() for name in own), header
