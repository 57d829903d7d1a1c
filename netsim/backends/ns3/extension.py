"""Backend `ns3`: stock ns-3 3.44 under an event engine of our own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from netsim.errors import BackendUnavailable

__all__ = ["HOW_TO_GET_IT", "load_extension"]

HOW_TO_GET_IT: Final = (
    "install from the sources with `pip install . --config-settings cmake.define.PD_NS3=ON` (Linux x86-64; see "
    "third_party/ns-3)"
)


def load_extension() -> ModuleType:
    """The module `netsim._ns3`.

    Raises:
        BackendUnavailable: this build does not contain it, or something else has loaded ns-3 into this process: its
            clock resolution can be set only once, and it is ours only if we are the first.
    """
    name = "netsim._ns3"
    if (loaded := sys.modules.get(name)) is not None:
        return loaded
    if _is_ns3_loaded():
        raise BackendUnavailable("backend ns3: another ns-3 is loaded in this process; use a process of its own")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise BackendUnavailable(f"backend ns3: not contained in this build; {HOW_TO_GET_IT}") from None
    except ImportError as error:
        raise BackendUnavailable(f"backend ns3: the extension does not load ({error}); {HOW_TO_GET_IT}") from None


def _is_ns3_loaded() -> bool:
    maps = Path("/proc/self/maps")
    return maps.exists() and "libns3.44-core" in maps.read_text()
