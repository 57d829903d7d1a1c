"""Host time of an iteration: a small model of vLLM 0.24 (V1 engine, asynchronous scheduling).

Three effects, each with one or two parameters.

- *Launching*. Work outside CUDA graphs is launched kernel by kernel from Python (`aicb.iteration.launches`). The host
  runs ahead of the GPU, so launching costs time only where it takes longer than the kernels. A full graph is one
  launch; piecewise graphs leave the attention of each layer outside; eager iterations launch everything. Batches with
  prefills beyond the largest captured size (512 tokens) are eager in vLLM's default, compiled or not, which is why a
  prefill of 600 and one of 2,000 tokens of Qwen3-30B-A3B take the same time. A launch outside graphs takes about as
  long in all models: on one host 71 to 89 us in Qwen3-30B-A3B and Qwen3-Next-80B-A3B, 55 to 68 in DeepSeek-V3.
- *Step*. Scheduling, input preparation, sampling and output processing overlap the previous step; what remains
  exposed is a constant and a share per request.
- *Request latency*. From the client's send to the scheduler and from the sampled token back to the client. It delays a
  request but does not occupy the GPU; a serving simulator adds it to arrivals and never to iterations.

Launching is a property of the host: the same engine on the same kind of machine took 53 ms for an eager forward pass of
Qwen3-30B-A3B in one session, 36 in another and 71 in a third. Hosts that were measured are in ``aicb/data/hosts``, each
with its source; another is a YAML file like those. The other parameters are least-squares values over the calibration
half of the ``prefill`` and ``decode`` tables of vLLM 0.24.0 on one H200;
``tests/validation/iteration_vs_engine.py --calibrate`` repeats the fit, and without the option it prints the residuals
of both halves. Ignored: what vLLM launches besides layers (some 20 kernels that prepare inputs and sample),
tokenisation and detokenisation of text, structured output, stalls of the Python runtime, and that ranks wait for each
other's hosts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from aicb.data import FOLDER
from aicb.iteration.launches import Launches
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping

MOST_US = 10**9
"""An hour and more is no time of a step."""


class GraphMode(Enum):
    """Share of an iteration that is replayed from CUDA graphs."""

    FULL = "full"
    """Decode-only batches up to the largest captured size."""
    PIECEWISE = "piecewise"
    """Batches with prefills up to the largest captured size."""
    EAGER = "eager"
    """Everything else."""


@dataclass(frozen=True, slots=True)
class HostModel:
    """Exposed host time of one iteration and latency of one request [µs]."""

    launch_us: float = 6.3
    """Host time of one launch of a graph or a kernel (H200 table, ``eager_launch_host``, mean of two runs: 6.27)."""
    piece_launch_us: float = 29.8
    """Of one launch where graphs replay what lies between attentions (``aicb/data/hosts/xeon-vm-32.yaml``)."""
    eager_launch_us: float = 43.9
    """Of one launch where nothing is replayed (the same file)."""
    step_us: float = 450.0
    """Exposed per iteration: asynchronous scheduling hides nearly all of it. From the decode tables (fit: 449.5)."""
    request_us: float = 0.0
    """Exposed per request of the batch. From the decode tables, 1 to 225 requests (fit: 0)."""
    request_latency_us: float = 2910.0
    """Client to scheduler plus sampled token to client. From the prefill tables (fit: 2907)."""

    def launching_us(self, mode: GraphMode, launches: Launches) -> float:
        """Host time to launch one iteration of a stage with so many ``launches``; ``mode``: what is replayed."""
        match mode:
            case GraphMode.FULL:
                return self.launch_us
            case GraphMode.PIECEWISE:
                return self.launch_us + self.piece_launch_us * launches.pieces
            case GraphMode.EAGER:
                return self.eager_launch_us * launches.eager

    def exposed_us(self, requests: int) -> float:
        """Host time per iteration that no kernel hides."""
        return self.step_us + self.request_us * requests


def known_hosts() -> list[str]:
    """Names that `load_host` knows."""
    return sorted(file.stem for file in (FOLDER / "hosts").iterdir() if file.suffix == ".yaml")


@cache
def load_host(name_or_path: str) -> HostModel:
    """A measured host by name, or one by the path of a YAML file: ``source`` and any fields of `HostModel`.

    Raises:
        InputError: unknown name; an unreadable file, or a field that is unknown or no time.
    """
    if name_or_path in known_hosts():
        where, text = f"hosts/{name_or_path}.yaml", (FOLDER / "hosts" / f"{name_or_path}.yaml").read_text("utf-8")
    elif name_or_path.endswith((".yaml", ".yml")):
        where, text = name_or_path, read_text(Path(name_or_path), "a host")
    else:
        known = ", ".join(known_hosts())
        raise InputError(f"host: found {quoted(name_or_path)}, expected one of {known}, or a YAML file")
    fields = parse_yaml_mapping(text, where, "a host")
    source = fields.pop("source", None)
    if not isinstance(source, str):
        raise InputError(f"{where}: source: found {quoted(source)}, expected text that says where the times come from")
    names = [field.name for field in dataclasses.fields(HostModel)]
    for name, value in fields.items():
        if name not in names:
            raise InputError(f"{where}: found field {quoted(name)}, expected some of source, {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_US:
            raise InputError(f"{where}: {name}: found {quoted(value)}, expected microseconds below {MOST_US:,}")
    return HostModel(**{name: float(value) for name, value in fields.items()})
