"""What the host adds to an iteration: a small model of vLLM 0.24 (V1 engine, asynchronous scheduling).

Three effects, each with one or two parameters.

- *Launching*. Kernels outside CUDA graphs are launched one by one. Launches run ahead of the GPU, so they cost time
  only where all of them together take longer than the kernels. A full graph is one launch; piecewise graphs leave
  the attention of each layer outside; eager iterations launch every kernel.
- *Step*. Scheduling, input preparation, sampling and output processing run beside the previous step; what remains
  exposed is a constant and a share per request.
- *Request latency*. From the client's send to the scheduler and from the sampled token back to the client. It delays a
  request but does not occupy the GPU; a serving simulator adds it to arrivals and never to iterations.

The parameters are least-squares values over the ``prefill`` and ``decode`` tables of vLLM 0.24.0 with Qwen3-8B on one
H200 (docstring of each); ``tests/validation/iteration_vs_engine.py --calibrate`` repeats the fit, and without the
option it prints the residuals. Ignored: tokenisation and
detokenisation of text, structured output, stalls of the Python runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GraphMode(Enum):
    """How much of an iteration is replayed from CUDA graphs."""

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
    """Host time of one eager kernel launch (H200 table, ``eager_launch_host``, mean of two runs: 6.27)."""
    step_us: float = 265.0
    """Exposed per iteration: asynchronous scheduling hides nearly all of it. From the decode table (fit: 264)."""
    request_us: float = 0.0
    """Exposed per request of the batch. From the decode table, 1 to 225 requests (fit: 0)."""
    request_latency_us: float = 3140.0
    """Client to scheduler plus sampled token to client. From the prefill table (fit: 3142)."""

    def launching_us(self, mode: GraphMode, kernels: int, attention_kernels: int, layers: int) -> float:
        """Host time to launch one iteration.

        Args:
            mode: what is replayed.
            kernels: kernels of the iteration.
            attention_kernels: those that piecewise graphs leave out.
            layers: layers of the stage; a piecewise graph is launched between two attentions.
        """
        match mode:
            case GraphMode.FULL:
                return self.launch_us
            case GraphMode.PIECEWISE:
                return self.launch_us * (attention_kernels + layers + 1)
            case GraphMode.EAGER:
                return self.launch_us * kernels

    def exposed_us(self, requests: int) -> float:
        """Host time per iteration that no kernel hides."""
        return self.step_us + self.request_us * requests
