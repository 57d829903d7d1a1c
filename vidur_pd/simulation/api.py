"""The simulator as a library: a configuration in, a result out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

from boundary.blas_threads import one_blas_thread
from boundary.cycles import few_searches_for_cycles
from boundary.errors import InputError
from vidur_pd.config import SimulationConfig
from vidur_pd.config.file import load_config, parse_config
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import Simulation
from vidur_pd.simulation.driver import Progress
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload import Workload, generator, load_workload

Configuration = SimulationConfig | Mapping[str, Any] | str | Path
"""A file, its content, or what has been read of it."""


def simulate(
    config: Configuration,
    workload: Workload | None = None,
    *,
    settings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Result:
    """The result of one simulation, as ``vidur-pd run`` gives it; `vidur_pd.write_result` writes its files.

    Args:
        config: paths in a file are relative to its folder, paths in a mapping to the current one.
        workload: requests to simulate instead of those that the configuration describes.
        settings: overrides ``a.b=value``, as of ``--set``.
        progress: is called with (requests done, requests in all, simulated seconds) now and then.

    Raises:
        InputError: with file, field, what was found and what was expected, before simulated time starts.
    """
    with closing(prepare(config, workload, settings=settings)) as simulation:
        return simulation.run(progress)


def prepare(config: Configuration, workload: Workload | None = None, *, settings: Sequence[str] = ()) -> Simulation:
    """A simulation up to simulated time; see `simulate`. Close it before the next, where the backend is ns3."""
    with few_searches_for_cycles(), one_blas_thread():
        return _prepared(config, workload, settings)


def _prepared(config: Configuration, workload: Workload | None, settings: Sequence[str]) -> Simulation:
    parsed, folder, where = _parsed(config, settings)
    if workload is None:
        workload = load_workload(parsed.workload, base_dir=folder, rng=lambda name: generator(parsed.seed, name))
    hashes = workload.block_hashes
    try:
        check_classes(parsed, workload)
        plan = plan_simulation(parsed, hashes.block_tokens if hashes is not None else None)
        return Simulation(assemble(plan), workload)
    except InputError as error:
        raise InputError(f"{where}{error}") from error


def check_classes(config: SimulationConfig, workload: Workload) -> None:
    """Raises: InputError, where objectives are those of a class that the workload has not."""
    known = () if workload.classes is None else workload.classes.names
    for name in config.slo.classes or {}:
        if name not in known:
            raise InputError(
                f"slo.classes: found {name!r}, expected a class of the workload ({', '.join(known) or 'it has none'})"
            )


def _parsed(config: Configuration, settings: Sequence[str]) -> tuple[SimulationConfig, Path, str]:
    """The configuration, the folder that paths in it start at, and how errors begin."""
    match config:
        case SimulationConfig():
            if settings:
                raise InputError(f"settings: found {len(settings)} with a parsed configuration, expected none")
            return config, Path.cwd(), ""
        case str() | Path():
            path = Path(config)
            return load_config(path, settings), path.parent, f"{path}: "
        case _:
            return parse_config(deepcopy(dict(config)), Path.cwd(), "configuration", settings), Path.cwd(), ""
