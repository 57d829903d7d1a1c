"""Extension module of engine `ucx`, which exists where UCX was found when netsim was built."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from netsim.errors import BackendUnavailable

HOW_TO_GET_IT: Final = (
    "install UCX with its headers (Debian, Ubuntu: `apt-get install libucx-dev`) and build netsim again from the "
    "sources (`pip install .`)"
)


def load_ucx() -> ModuleType:
    """The module `netsim._ucx`. Raises: BackendUnavailable, where it or the libraries of UCX are missing."""
    name = "netsim._ucx"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise BackendUnavailable(f"backend rdma: engine ucx is not contained in this build; {HOW_TO_GET_IT}") from None
    except ImportError as error:
        raise BackendUnavailable(f"backend rdma: engine ucx does not load ({error}); {HOW_TO_GET_IT}") from None
