"""How far the times of a recorded engine of vLLM or SGLang and of its simulation are apart: prompts, decodes and loads.

The simulator gets the engine's profile, and of the recording the engine's arguments, model, KV blocks, kernels of
norms and all-reduces, and drafts; no time but those of a host. A host is a name or file, as `engine.host` takes it,
`OWN` or `THEN`; ``None`` is the default of the profile.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from aicb.iteration.speculative import Drafting
from boundary.errors import InputError
from vidur_pd.commands.validation.measured_engine import (
    DECODES,
    LOAD,
    PROMPTS,
    MeasuredEngine,
    Sent,
    Steady,
)
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.requests import seconds
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api
from vidur_pd.workload import BlockHashes, Workload

OWN: Final = "own"
"""The host of the recording."""
THEN: Final = "then"
"""The same, as fast as it launched in the median of the phase that is compared."""
APART_S: Final = 20.0
"""Between prompts that are to be alone."""
HASH_BLOCK_TOKENS: Final = 16
"""Of prompts that share prefixes."""
LATENCIES: Final = ("ttft", "tpot", "e2e")
FIGURES: Final[dict[str, Callable[[NDArray[Any]], Any]]] = {
    "mean": np.mean,
    "P90": lambda times: np.percentile(times, 90),
}
"""Of a load."""
KINDS: Final = {
    "prompts": (PROMPTS, ""),
    "decodes": (DECODES, ""),
    **{f"loads, mean {latency}": (LOAD, f" {latency} mean") for latency in LATENCIES},
}
"""What errors are averaged over, by how names of comparisons begin and end."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure."""

    name: str
    measured_ms: float
    simulated_ms: float

    @property
    def error(self) -> float:
        """Relative; positive where the simulation is slower."""
        return self.simulated_ms / self.measured_ms - 1.0


def compare_prompts(
    engine: MeasuredEngine, host: str | None = None, expert_load: str | None = None
) -> list[Comparison]:
    """Medians of first tokens of prompts alone."""
    found = engine.prompts or ()
    sent = [
        Sent(arrival_s=APART_S * index, prompt_tokens=tokens, output_tokens=2)
        for index, (tokens, _) in enumerate(found)
    ]
    if not sent:
        return []
    ttft_ms = seconds(simulate(engine, sent, PROMPTS, host, expert_load).table.ttft_ps) * 1e3
    return [
        Comparison(f"prefill of {tokens}", float(np.median(times)) * 1e3, float(simulated))
        for (tokens, times), simulated in zip(found, ttft_ms, strict=True)
    ]


def compare_decodes(engine: MeasuredEngine, host: str | None = None) -> list[Comparison]:
    """Steps in which all requests decode: medians measured, the mean of the last 40 before the first request ends."""
    step_ms = _step_ms if engine.speculative is None else _drafted_step_ms
    return [Comparison(_decode_name(row), row.step_s * 1e3, step_ms(engine, row, host)) for row in engine.decodes or ()]


def _decode_name(row: Steady) -> str:
    return f"decode of {row.requests} x {row.prompt_tokens}"


def _step_ms(engine: MeasuredEngine, row: Steady, host: str | None) -> float:
    """What as many more tokens take as steps are compared."""
    ends_s = []
    for outputs in (row.output_tokens - row.steps, row.output_tokens):
        sent = [Sent(prompt_tokens=row.prompt_tokens, output_tokens=outputs)] * row.requests
        ends_s.append(float(seconds(simulate(engine, sent, DECODES, host).table.e2e_ps).min()))
    return (ends_s[1] - ends_s[0]) / row.steps * 1e3


def _drafted_step_ms(engine: MeasuredEngine, row: Steady, host: str | None) -> float:
    """Between ends of iterations in which all requests decode: steps yield tokens as drafts are accepted."""
    sent = [Sent(prompt_tokens=row.prompt_tokens, output_tokens=row.output_tokens)] * row.requests
    iterations = simulate(engine, sent, DECODES, host).iterations.columns()
    is_full = (iterations["requests"] == row.requests) & (iterations["prefill_tokens"] == 0)
    steps_s = np.diff(iterations["end_s"])[is_full[1:] & is_full[:-1]]
    if not len(steps_s):
        raise InputError(
            f"{engine.where}: steady: found {row.requests} requests of {row.prompt_tokens} tokens, expected so many "
            "that all decode at once in the simulation"
        )
    return float(steps_s[-row.steps :].mean()) * 1e3


def compare_load(engine: MeasuredEngine, load: str, host: str | None = None) -> list[Comparison]:
    """Means and P90 of a load."""
    requests = sorted(engine.loads[load], key=lambda request: request.arrival_s)
    table = simulate(engine, requests, load, host).table
    has_tpot = np.array([request.tpot_s is not None for request in requests])
    everything = np.ones(len(requests), dtype=bool)
    comparisons = []
    for latency, has in zip(LATENCIES, (everything, has_tpot, everything), strict=True):
        measured_s = np.array([getattr(request, f"{latency}_s") for request in requests])[has].astype(float)
        simulated_s = seconds(getattr(table, f"{latency}_ps"))[has]
        for name, figure in FIGURES.items() if has.any() else ():
            times_ms = float(figure(measured_s)) * 1e3, float(figure(simulated_s)) * 1e3
            comparisons.append(Comparison(f"{load} {latency} {name}", *times_ms))
    return comparisons


Row = dict[str, Any]
"""Of a table, by its columns."""
HOSTS: Final[dict[str, str | None]] = {OWN: OWN, THEN: THEN, "default": None}
"""By the columns of tables."""


def compare(engine: MeasuredEngine, phase: str, host: str | None = None) -> list[Comparison]:
    """What was measured in a phase."""
    match phase:
        case "prefill":
            return compare_prompts(engine, host)
        case "decode":
            return compare_decodes(engine, host)
        case _:
            return compare_load(engine, phase, host)


def compare_hosts(engine: MeasuredEngine) -> Iterator[Row]:
    """All that was measured, simulated on each of `HOSTS`; ``None`` where times of a host were not recorded."""
    for phase in (PROMPTS, DECODES, *engine.comparable_loads):
        recorded = {OWN: engine.host is not None, THEN: engine.host_in(phase) is not None}
        found = {name: compare(engine, phase, host) for name, host in HOSTS.items() if recorded.get(name, True)}
        for place, row in enumerate(found["default"]):
            on_hosts = {name: found[name][place] if name in found else None for name in HOSTS}
            times: Row = {}
            for name, compared in on_hosts.items():
                times[f"{name}_ms"] = compared and compared.simulated_ms
                times[f"{name}_error"] = compared and compared.error
            yield {"what": row.name, "measured_ms": row.measured_ms, **times}


def mean_errors(rows: Sequence[Row]) -> Iterator[Row]:
    """Means of absolute errors over the rows of `compare_hosts`, of each kind and host."""
    for kind, (begin, end) in KINDS.items():
        of_kind = [row for row in rows if row["what"].startswith(begin) and row["what"].endswith(end)]
        found = {name: [abs(row[name]) for row in of_kind if row[name] is not None] for name in _ERRORS}
        if of_kind:
            means = {name: float(np.mean(errors)) if errors else None for name, errors in found.items()}
            yield {"kind": kind, "rows": len(of_kind), **means}


_ERRORS = tuple(f"{name}_error" for name in HOSTS)


def drafted_tokens(engine: MeasuredEngine) -> Iterator[Row]:
    """Tokens of a request and step with drafts, and as many as the acceptance lets expect."""
    if engine.speculative is None:
        return
    drafts = engine.speculative
    expected = Drafting(drafts.drafts, drafts.acceptance, drafts.method, drafts.match).expected_tokens
    for row in engine.decodes or ():
        if row.tokens_per_step is not None:
            yield {"what": _decode_name(row), "measured_tokens": row.tokens_per_step, "expected_tokens": expected}


def simulate(
    engine: MeasuredEngine,
    requests: Sequence[Sent],
    phase: str,
    host: str | None = None,
    expert_load: str | None = None,
) -> Result:
    """The result of requests, in order of their arrival, of a phase.

    Raises:
        InputError: naming the file of the recording, where the engine or a request cannot be simulated.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = _configuration(engine, Path(folder), _host(engine, phase, host, Path(folder)))
        tree["engine"] |= {"expert_load": expert_load} if expert_load else {}
        try:
            result = api.simulate(tree, workload_of(requests))
        except InputError as error:
            raise InputError(f"{engine.where}: {phase}: {error}") from None
    for index, reason in sorted(result.table.reasons.items()):
        sent = requests[index]
        raise InputError(
            f"{engine.where}: {phase}: found a request of {sent.prompt_tokens} + {sent.output_tokens} tokens, expected "
            f"one that the simulated engine serves ({reason})"
        )
    return result


def check_simulable(engine: MeasuredEngine) -> None:
    """Raises: InputError, where no engine like the recorded one can be simulated."""
    simulate(engine, [Sent(prompt_tokens=1, output_tokens=1)], PROMPTS)


def _host(engine: MeasuredEngine, phase: str, host: str | None, folder: Path) -> str | None:
    """As ``engine.host`` takes it."""
    if host not in (OWN, THEN):
        return host
    times = engine.host if host == OWN else engine.host_in(phase)
    assert times is not None, f"{engine.where} has no host {host} of {phase}"
    file = folder / "host.yaml"
    file.write_text(yaml.safe_dump({"source": engine.where, **times}), encoding="utf-8")
    return str(file)


def _configuration(engine: MeasuredEngine, folder: Path, host: str | None) -> dict[str, Any]:
    """An engine like the recorded one; ``folder`` gets its model."""
    model, partition = engine.args.model, engine.args.partition
    if engine.config is not None:
        model = _written(engine.config, folder / "config.json")
    share = engine.args.gpu_memory_utilization
    drafts = None if engine.speculative is None else engine.speculative.model_dump()
    if drafts is not None and engine.draft_config is not None:
        drafts["draft_model"] = _written(engine.draft_config, folder / "draft_config.json")
    return {
        "model": model,
        "hardware": engine.gpu,
        "workload": {"kind": "synthetic", "requests": 1, "arrivals": {"kind": "static"}, "lengths": _ANY_LENGTHS},
        "cluster": {
            "topology": {
                "kind": "rail_optimized",
                "gpus_per_node": partition["tp"] * partition["dp"] * partition["pp"],
            },
            "pools": [{"name": "server", "role": "mixed", **partition}],
        },
        "engine": {
            "framework": engine.framework,
            **engine.args.engine,
            **engine.kv,
            **({"gpu_memory_utilization": share} if share and engine.framework == "sglang" else {}),
            "norm_kernel": engine.norm_kernel,
            **({"host": host} if host else {}),
            **({"speculative": drafts} if drafts else {}),
        },
        "network": {"collectives": str(engine.collectives)} if engine.collectives else {},
    }


def _written(config: dict[str, Any], file: Path) -> str:
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file)


_ANY_LENGTHS = {"kind": "fixed", "prefill": 1, "decode": 1}
"""The recorded requests take the place of the configured workload."""


def workload_of(requests: Sequence[Sent]) -> Workload:
    """Requests, in order of their arrival, with the blocks of each prompt: those of its prefix, and its own."""
    prefixes: dict[int, list[int]] = {}
    lists, blocks = [], 0
    for request in requests:
        count = -(-request.prompt_tokens // HASH_BLOCK_TOKENS)
        shared: list[int] = []
        if request.prefix is not None:
            whole = min(request.prefix_tokens // HASH_BLOCK_TOKENS, count)
            known = prefixes.setdefault(request.prefix, [])
            added = max(0, whole - len(known))
            known += range(blocks, blocks + added)
            blocks += added
            shared = known[:whole]
        own = count - len(shared)
        lists.append([*shared, *range(blocks, blocks + own)])
        blocks += own
    return Workload(
        request_ids=tuple(str(index) for index in range(len(requests))),
        arrived_ps=np.array([round(request.arrival_s * PS_PER_S) for request in requests], dtype=np.int64),
        prefill_tokens=np.array([request.prompt_tokens for request in requests], dtype=np.int64),
        decode_tokens=np.array([request.output_tokens for request in requests], dtype=np.int64),
        block_hashes=BlockHashes(
            offsets=np.cumsum([0, *map(len, lists)], dtype=np.int64),
            ids=np.array([block for ids in lists for block in ids], dtype=np.int64),
            block_tokens=HASH_BLOCK_TOKENS,
        ),
        source="recorded engine",
    )
