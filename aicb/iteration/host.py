"""Host of an engine: a small model of vLLM 0.24 (V1 engine, asynchronous scheduling).

One Python thread does, for every iteration, one after another:

    prepare (take the result before, schedule, fill inputs) · launch the forward pass · sample (launch, copy back)

and then waits for the result of the iteration before, so that it works one iteration ahead of the device. What of this
delays the device follows from when each can begin (``vidur_pd/core/host_clock.hpp``): nothing while kernels take longer
than the host; all of it where the host takes longer; *prepare* when the engine was idle, or decides after the result
(no asynchronous scheduling). On one GPU the engine core's thread does all of it, and hands out a first token once it
has launched the iteration after, which lets the tokens of short prompts, launched kernel by kernel, wait for it. On
several the core schedules, and a thread of each worker prepares and launches: it is handed the next iteration while it
launches one, and tokens do not wait for the next launch.

- *Launching*. Work outside CUDA graphs is launched kernel by kernel from Python (`aicb.iteration.launches`). A full
  graph is one launch; piecewise graphs leave the attention of each layer outside; eager iterations launch everything.
  Batches with prefills beyond the largest captured size (512 tokens) are eager in vLLM's default, compiled or not,
  which is why a prefill of 600 and one of 2,000 tokens of Qwen3-30B-A3B take the same time. What launches of other
  models take is counted in mean launches of this one, by the kind of call that makes them.
- *Gaps*. Between the kernels of a graph, in which the device starts the next one: what a step of one request takes
  beyond the kernels' durations in a trace of the same engine.
- *Request latency*. From the client's call in the engine's own process to the scheduler, and from the result back to
  the client. It delays a request but does not occupy the GPU; a serving simulator adds it to arrivals and never to
  iterations.

Times are a property of the host: the same engine on the same kind of machine took 53 ms for an eager forward pass of
Qwen3-30B-A3B in one session, 36 in another and 71 in a third. Processors of the virtual machines have two speeds and
little between: in one a fixed loop takes 1.9 times as long as in the other and launching 1.5 times, as on hyperthreads
whose other half is busy (``tests/data/engine/vllm-h100-*-30b-a3b-later.json.gz``). Hosts that were measured are in
``aicb/data/hosts``, each with its source, and their median; another is a YAML file like those. ``python -m
tests.validation.iteration_vs_engine`` prints what results. Ignored: that hosts which have waited for 60 ms prepare and
launch up to 1.5 times as long for some 10 ms, tokenisation and detokenisation of text (`frontend` of the simulator has
them), structured output, stalls of the Python runtime, and dummy batches that a data-parallel rank is in when a request
comes.

Engines with several workers (`HostModel.of_workers`) have processes for them, all-reduces outside graphs and, as
data-parallel ranks that share experts, more (`aicb.iteration.launches.COLLECTIVES`). A second worker does not slow the
first: one, two and four engines at once launch in the same time, relative to the processes' own speed. That speed is
what differs, by a factor of two between processes and minutes of one virtual machine, and the slowest worker counts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from statistics import NormalDist

from aicb.data import FOLDER
from aicb.iteration.launches import Launches
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping

MOST_US = 10**9
"""An hour and more is no time of a step."""


OF_WORKERS = (
    "launch_us",
    "piece_launch_us",
    "eager_launch_us",
    "prepare_us",
    "prompt_us",
    "prompt_token_us",
    "request_us",
    "sample_us",
)
"""Times of `HostModel` that pass in workers."""


HAND_OVER_LAUNCHES, AGREEING_LAUNCHES, LOGITS_LAUNCHES = 4.4, 11.3, 6.8
"""What engines of several workers do besides, in launches outside graphs of the same host, whose time is the one thing
known of every host (``tests/data/engine/vllm-h100-host-workers.json.gz`` and ``-host-parts.json.gz``, Qwen3-30B-A3B).

Handing over takes 252 to 403 us where a launch takes 55 to 105. Preparing takes 8.7 calls of attention with one worker
and 14.4 with two data-parallel ranks, of which agreeing is 3.7: 5.7 calls are 11.3 launches. Sampling takes 0.36
(decodes) to 0.50 ms (prompts) more with TP 2, 5.9 and 8.2 launches."""


def slowest_of(workers: int, spread: float) -> float:
    """How many times longer the slowest of so many workers takes than one in the mean."""
    return 1.0 + spread * _largest_of_normals(workers) if workers > 1 else 1.0


def _largest_of_normals(count: int) -> float:
    """Expected largest of so many standard normal values (Blom 1958, within 0.03 of the integral for two and more)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


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
    """Times of a host for one iteration, of gaps on the device, and the latency of a request [µs].

    Defaults are those of ``aicb/data/hosts/xeon-vm-32.yaml``.
    """

    launch_us: float = 54.0
    """One replay of a full graph."""
    piece_launch_us: float = 27.5
    """One launch where graphs replay what lies between attentions, four a layer of Qwen3-30B-A3B."""
    eager_launch_us: float = 41.7
    """One launch where nothing is replayed, the mean of the 17 of a layer of Qwen3-30B-A3B."""
    prepare_us: float = 570.0
    """From the result before to the first kernel: output, schedule, inputs of decodes."""
    prompt_us: float = 740.0
    """More for it where a batch has prompts."""
    prompt_token_us: float = 0.08
    """And for each token of such a batch."""
    request_us: float = 11.0
    """More for each request of a batch."""
    sample_us: float = 460.0
    """From the last launch of the forward pass to where the result can be waited for."""
    step_us: float = 36.0
    """Of the device: kernels and copies that prepare inputs (``tests/data/engine/vllm-idle-qwen3-8b.json.gz``)."""
    gap_us: float = 0.44
    """Of the device, after each kernel of a graph: 0.13, 0.36 and 0.22 ms for the 432, 816 and 224 of a decode of
    Qwen3-8B, Qwen3-30B-A3B and DeepSeek-V3 with 8 layers, least squares."""
    request_latency_us: float = 1340.0
    """Client to scheduler, and result to client."""
    hand_over_us: float | None = None
    """From the scheduler to a worker in a process of its own, as vLLM's of several workers has them; ``None``: 4.4
    launches. Where each worker schedules for itself, what they tell each other before (`of_workers`)."""
    agree_us: float | None = None
    """More to prepare where data-parallel ranks share experts: they agree on padding and graphs, by an all-reduce
    between processors, and wait for each other in it; ``None``: 11.3 launches."""
    logits_us: float | None = None
    """More to sample where tensor-parallel ranks gather logits; ``None``: 6.8 launches."""
    speed_spread: float = 0.23
    """Relative standard deviation of the time that workers' processes take for the same: cores of a virtual machine
    are not equally fast. Of 13 recordings in ``vllm-h100-host-parts.json.gz``, by their calls of attention."""

    def launching_us(self, mode: GraphMode, launches: Launches) -> float:
        """Host time to launch and sample one iteration of a stage; ``mode``: what is replayed."""
        match mode:
            case GraphMode.FULL:
                passed_us = self.launch_us
            case GraphMode.PIECEWISE:
                passed_us = self.launch_us + self.piece_launch_us * launches.pieces_time
            case GraphMode.EAGER:
                passed_us = self.eager_launch_us * launches.eager_time
        return passed_us + self.sample_us

    def of_workers(self, tp: int, dp: int, broadcast_us: float | None = None) -> HostModel:
        """Of an engine whose workers wait for one another: ``tp`` in each of ``dp`` data-parallel ranks.

        The scheduler's output is handed over to the workers' processes; the first of tensor-parallel ranks gathers
        logits; data-parallel ranks agree on padding and graphs. Whatever a worker does is done when the slowest is.
        With ``broadcast_us`` nothing is handed over: each worker schedules for itself, and gets new requests from the
        first in so long, or in ``hand_over_us`` where that is known.
        """
        workers = tp * dp
        if workers == 1:
            return replace(self, hand_over_us=0.0)
        slowest = slowest_of(workers, self.speed_spread)
        own_us = {name: getattr(self, name) * slowest for name in OF_WORKERS}
        if broadcast_us is None:
            own_us["hand_over_us"] = self._or_launches(self.hand_over_us, HAND_OVER_LAUNCHES)
            own_us["prepare_us"] += own_us["hand_over_us"]
        else:
            own_us["hand_over_us"] = 0.0
            own_us["prepare_us"] += broadcast_us if self.hand_over_us is None else self.hand_over_us
        if dp > 1:
            own_us["prepare_us"] += self.agreeing_us
        if tp > 1:
            own_us["sample_us"] += self._or_launches(self.logits_us, LOGITS_LAUNCHES)
        return replace(self, **own_us)

    @property
    def agreeing_us(self) -> float:
        """Of data-parallel ranks, on padding and graphs."""
        return self._or_launches(self.agree_us, AGREEING_LAUNCHES)

    def _or_launches(self, time_us: float | None, launches: float) -> float:
        return launches * self.eager_launch_us if time_us is None else time_us

    def of_drafts(self) -> HostModel:
        """Of a pass that drafts, within an iteration of the model's: tensor-parallel ranks gather logits in each, and
        the device prepares its inputs."""
        return replace(
            self,
            prepare_us=0.0,
            prompt_us=0.0,
            prompt_token_us=0.0,
            request_us=0.0,
            sample_us=0.0,
            gap_us=0.0,
            hand_over_us=0.0,
        )


MEDIAN_HOST = "virtual-machine"
"""The one of the known hosts that is no recording, but the median of all."""


def known_hosts() -> list[str]:
    """Names that `load_host` knows."""
    return sorted(file.stem for file in (FOLDER / "hosts").iterdir() if file.suffix == ".yaml")


def slowest_over_fastest() -> float:
    """Ratio of the longest to the shortest launch outside graphs among the measured hosts."""
    launches_us = [load_host(name).eager_launch_us for name in known_hosts()]
    return max(launches_us) / min(launches_us)


def host_files(name_or_path: str) -> list[Path]:
    """The file that `load_host` reads, which a command must not write over; none of a built-in name."""
    return [] if name_or_path in known_hosts() else [Path(name_or_path)]


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
            raise InputError(
                f"{where}: {name}: found {quoted(value)}, expected microseconds, from 0 to below {MOST_US:,}"
            )
    return HostModel(**{name: float(value) for name, value in fields.items()})
