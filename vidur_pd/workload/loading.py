"""From a configuration to a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from boundary.errors import InputError
from vidur_pd.config.arrivals import VaryingArrivals
from vidur_pd.config.rates import FileRate
from vidur_pd.config.workload import MixWorkload, ServeGenWorkload, SyntheticWorkload, TraceWorkload, WorkloadConfig
from vidur_pd.workload.arrivals import clients_pacing, sample_arrivals
from vidur_pd.workload.classes import classified, draw_classes, draw_lengths
from vidur_pd.workload.prefixes import sample_conversations, with_shared_prefix
from vidur_pd.workload.reading import TraceSelection, read_trace
from vidur_pd.workload.servegen import client_files, draw_servegen
from vidur_pd.workload.sessions import draw_sessions, follow_trace, with_history
from vidur_pd.workload.transform import at_rate, jittered, length_scaled, merged, time_scaled, trimmed
from vidur_pd.workload.workload import PS_PER_S, Workload

Streams = Callable[[str], np.random.Generator]
"""Gives each consumer of randomness, by name, its own generator."""


def load_workload(config: WorkloadConfig, *, base_dir: Path, rng: Streams) -> Workload:
    """Reads or draws the requests that ``config`` describes.

    ``base_dir`` is the directory that a trace's path is relative to: that of the configuration file. ``rng`` is called
    once per consumer, with names such as "arrivals" or "prefill_lengths" (in a mix, "part.arrivals"); with
    `vidur_pd.workload.generator` behind it, the result depends on the root seed and the configuration alone.

    Raises:
        InputError: the trace is malformed or too short, or the numbers lead out of the range of the simulation.
    """
    loaded = _load(config, base_dir, rng)
    return loaded if config.rate is None else at_rate(loaded, config.rate)


def _load(config: WorkloadConfig, base_dir: Path, rng: Streams) -> Workload:
    match config:
        case TraceWorkload():
            return _replay(config, base_dir, rng)
        case SyntheticWorkload():
            return _draw(config, base_dir, rng)
        case ServeGenWorkload():
            return draw_servegen(config, base_dir, rng)
        case MixWorkload(parts=parts):
            return merged(
                {
                    name: load_workload(part, base_dir=base_dir, rng=_streams_of(name, rng))
                    for name, part in parts.items()
                }
            )


def trace_paths(config: WorkloadConfig, base_dir: Path) -> list[Path]:
    """The files that `load_workload` reads."""
    parts = list(config.parts.values()) if isinstance(config, MixWorkload) else [config]
    return [path for part in parts for path in _paths_of(part, base_dir)]


def _paths_of(part: TraceWorkload | SyntheticWorkload | ServeGenWorkload, base_dir: Path) -> Iterator[Path]:
    match part:
        case ServeGenWorkload(path=path):
            for _, *files in client_files(base_dir / path):
                yield from files
            return
        case TraceWorkload(path=path):
            yield base_dir / path
    if isinstance(part.arrivals, VaryingArrivals) and isinstance(part.arrivals.rate, FileRate):
        yield base_dir / part.arrivals.rate.path


def _streams_of(part: str, rng: Streams) -> Streams:
    return lambda consumer: rng(f"{part}.{consumer}")


def _draw(config: SyntheticWorkload, base_dir: Path, rng: Streams) -> Workload:
    if config.sessions is not None:
        return draw_sessions(config, base_dir, rng)
    arrived_ps = sample_arrivals(config.arrivals, config.requests, rng("arrivals"), base_dir)
    classes = draw_classes(config, config.requests, rng)
    prefill, decode, asked = draw_lengths(config, rng).of(classes)
    drawn = Workload(
        request_ids=tuple(map(str, range(config.requests))),
        arrived_ps=arrived_ps,
        prefill_tokens=prefill,
        decode_tokens=decode,
        name="synthetic",
        source=f"synthetic: {config.arrivals.kind} arrivals, {config.lengths.kind} lengths",
        pacing=clients_pacing(config.arrivals, config.requests, rng("client_think_times")),
        max_output_tokens=None if config.early_end is None else asked,
    )
    drawn = classified(drawn, config.classes, classes)
    if config.prefixes is None:
        return drawn
    prompts = sample_conversations(config.prefixes, arrived_ps, prefill, decode, rng)
    return replace(
        drawn,
        prefill_tokens=prompts.tokens,
        block_hashes=prompts.block_hashes,
        source=f"{drawn.source}, conversations of {config.prefixes.turns:g} turns",
        trimmed_requests=prompts.trimmed,
    )


def _replay(config: TraceWorkload, base_dir: Path, rng: Streams) -> Workload:
    path = base_dir / config.path
    trace = read_trace(path, config.format, _selection(config))
    workload = trace.workload
    if config.requests is not None and len(workload) < config.requests:
        raise InputError(
            f"{path}: requests: found {len(workload)} usable rows, expected at least {config.requests} "
            "(ask for fewer, or leave requests out to take all)"
        )
    if config.arrivals is not None:
        times = sample_arrivals(config.arrivals, len(workload), rng("arrivals"), base_dir)
        workload = replace(workload, arrived_ps=times, source=f"{workload.source}, {config.arrivals.kind} arrivals")
    elif not trace.has_arrivals:
        raise InputError(f"{path}: found no arrival times, expected workload.arrivals (for example poisson) with them")
    if config.jitter_s > 0:
        workload = jittered(workload, config.jitter_s, rng("jitter"))
    if config.time_scale != 1:
        workload = time_scaled(workload, config.time_scale)
    if (config.prefill_scale, config.decode_scale) != (1, 1):
        workload = length_scaled(workload, config.prefill_scale, config.decode_scale)
    if config.shared_prefix_tokens:
        workload = with_shared_prefix(workload, config.shared_prefix_tokens)
    if config.session_history:
        workload = with_history(workload, config.shared_prefix_tokens)
    if config.max_tokens is not None:
        workload = trimmed(workload, config.max_tokens, config.trim)
    if config.sessions is not None:
        workload = follow_trace(workload, config.arrivals, config.sessions, rng)
    elif config.arrivals is not None:
        pacing = clients_pacing(config.arrivals, len(workload), rng("client_think_times"))
        workload = replace(workload, pacing=pacing)
    return workload


def _selection(config: TraceWorkload) -> TraceSelection:
    window = config.window
    window_ps = None
    if window is not None:
        end_ps = None if window.end_s is None else round(window.end_s * PS_PER_S)
        window_ps = (round(window.start_s * PS_PER_S), end_ps)
    return TraceSelection(
        window_ps=window_ps,
        limit=config.requests if config.requests is not None else config.limit,
        skip_zero_output=config.skip_zero_output,
        hash_block_tokens=config.hash_block_tokens,
        columns=config.columns,
        time_unit=config.time_unit,
    )
