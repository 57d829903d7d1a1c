"""C++ of one package includes another's through its public headers only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parts[-3] for path in ROOT.glob("*/core/include") if path.is_dir())
INCLUDE = re.compile(r'#include\s*[<"]([^>"]+)[>"]')


def sources(package: str) -> list[Path]:
    """C++ files of other packages."""
    files = [path for suffix in ("hpp", "cpp") for path in ROOT.glob(f"*/core/**/*.{suffix}")]
    return [path for path in files if path.relative_to(ROOT).parts[0] != package]


def private_includes(package: str) -> list[str]:
    """Includes of a package by another that bypass ``PACKAGE/core/include/PACKAGE/``."""
    found = []
    for path in sources(package):
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = (path.parent / included).resolve()
            reaches_in = target.is_relative_to(ROOT / package) or f"{package}/core/" in included
            unknown = included.startswith(f"{package}/") and not (ROOT / package / "core/include" / included).is_file()
            if reaches_in or unknown:
                found.append(f"{path.relative_to(ROOT)}: {included}")
    return found


def test_there_are_packages_with_public_headers() -> None:
    assert "aicb" in PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_other_packages_include_public_headers_only(package: str) -> None:
    assert private_includes(package) == []
