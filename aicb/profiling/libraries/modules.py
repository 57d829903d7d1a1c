"""Modules of installed engines and libraries, and compiled torch extensions that register operators when loaded."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def import_modules(package: str, names: Iterable[str]) -> tuple[list[Any], str | None]:
    """Modules of a package, and why they could not be imported; ``None`` if they could."""
    if importlib.util.find_spec(package) is None:
        return [], f"{package}: not installed"
    try:
        return [importlib.import_module(name) for name in names], None
    except (ImportError, OSError, RuntimeError) as error:
        return [], f"{package}: {type(error).__name__}: {error}".splitlines()[0]


def load_operators(module: str, path: Path | None, package: str = "vllm") -> str | None:
    """Loads ``<module>.abi3.so`` from ``path``, or from ``package`` where that is installed.

    Returns:
        Why it could not be loaded; ``None`` if its operators are there now.
    """
    if path is None:
        path = _installed(module, package)
        if path is None:
            return f"{module}: neither a path was given nor is {package} installed"
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        return f"{module}: {type(error).__name__}: {error}".splitlines()[0]
    return None


def _installed(module: str, package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.rglob(f"{module}*.so"), None)


def operators(namespace: str, name: str) -> object | None:
    """``torch.ops.<namespace>.<name>`` if registered."""
    return getattr(getattr(torch.ops, namespace), name, None)
