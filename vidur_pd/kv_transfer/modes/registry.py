"""Modes of KV transfers by name: those that come with the simulator, and ``module:Class``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from boundary.errors import InputError
from boundary.quoting import quoted
from vidur_pd.kv_transfer.modes.layerwise import Layerwise
from vidur_pd.kv_transfer.modes.mode import TransferMode
from vidur_pd.kv_transfer.modes.pull import Pull
from vidur_pd.kv_transfer.modes.push import Push

MODES: Final[dict[str, type[TransferMode]]] = {"pull": Pull, "push": Push, "layerwise": Layerwise}
EXPECTED: Final = f"one of {', '.join(MODES)}, or module:Class"


def mode_class(name: str) -> type[TransferMode]:
    """The class of a mode; ``module:Class`` is imported, also from the current folder.

    Raises: InputError, if the class is not there or is not a mode.
    """
    if name in MODES:
        return MODES[name]
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise InputError(f"found {quoted(name)}, expected {EXPECTED}")
    found = _imported(name, module, attribute)
    if not (inspect.isclass(found) and issubclass(found, TransferMode)):
        raise InputError(f"found {quoted(name)}, expected a subclass of vidur_pd.kv_transfer.modes.TransferMode")
    _check_can_be_made(name, found)
    return found


def new_mode(name: str) -> TransferMode:
    """A mode for one run.

    Raises: InputError, as `mode_class`.
    """
    return mode_class(name)()


def _imported(name: str, module: str, attribute: str) -> object:
    try:
        with _current_folder_is_searched():
            return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"found {quoted(name)}, which cannot be imported ({reason})") from error


def _check_can_be_made(name: str, mode: type[TransferMode]) -> None:
    missing = sorted(mode.__abstractmethods__)
    if missing:
        raise InputError(f"found {quoted(name)} without {' and '.join(missing)}, expected a mode with both hooks")
    try:
        inspect.signature(mode).bind()
    except TypeError as error:
        raise InputError(f"found {quoted(name)}, expected a class that needs no arguments ({error})") from error


@contextmanager
def _current_folder_is_searched() -> Iterator[None]:
    """Modules of the current folder can be imported, also by an installed command."""
    folder = str(Path.cwd())
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
