"""Extension modules of the engines, which exist where their libraries were found when netsim was built."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from netsim.errors import BackendUnavailable

_NEEDED: Final = {
    "ucx": ("UCX with its headers", "libucx-dev"),
    "verbs": ("libibverbs with its headers", "libibverbs-dev pkg-config"),
}
"""Library and packages (Debian, Ubuntu) of each engine."""


def load_engine(engine: str) -> ModuleType:
    """The module of an engine, such as `netsim._ucx`.

    Raises:
        BackendUnavailable: it is missing, or libraries that it needs are.
    """
    name = f"netsim._{engine}"
    library, packages = _NEEDED[engine]
    remedy = (
        f"install {library} (Debian, Ubuntu: `apt-get install {packages}`) and build netsim again from the sources "
        "(`pip install .`)"
    )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise BackendUnavailable(f"backend rdma: engine {engine} is not contained in this build; {remedy}") from None
    except ImportError as error:
        raise BackendUnavailable(f"backend rdma: engine {engine} does not load ({error}); {remedy}") from None
