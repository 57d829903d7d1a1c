"""Request-level simulation of LLM serving with prefill/decode disaggregation.

Public names: `run` runs a configuration and returns a `FinishedRun`, with tables as data frames; `simulate` returns the
`Result` behind it, which `write_result` puts into a folder;
`load_config` reads a configuration, a `Workload` holds requests. They are imported when they are first asked for, as
they bring numpy and pydantic with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidur_pd.config import SimulationConfig
    from vidur_pd.config.file import load_config
    from vidur_pd.metrics.result import Result
    from vidur_pd.simulation.api import simulate
    from vidur_pd.simulation.finished_run import FinishedRun, run
    from vidur_pd.simulation.output import write_result
    from vidur_pd.workload import Workload

__version__ = "0.1.0"
__all__ = ["FinishedRun", "Result", "SimulationConfig", "Workload", "load_config", "run", "simulate", "write_result"]

_HOMES = {
    "FinishedRun": "vidur_pd.simulation.finished_run",
    "Result": "vidur_pd.metrics.result",
    "SimulationConfig": "vidur_pd.config",
    "Workload": "vidur_pd.workload",
    "load_config": "vidur_pd.config.file",
    "run": "vidur_pd.simulation.finished_run",
    "simulate": "vidur_pd.simulation.api",
    "write_result": "vidur_pd.simulation.output",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
