"""Host time of an iteration: a small model of vLLM 0.24 (V1 engine, asynchronous scheduling).

Three effects, each with one or two parameters.

- *Launching*. Work outside CUDA graphs is launched layer by layer from Python: compiled pieces, the attention operator,
  and in MoE layers the experts' operator, which prepares and launches some eight kernels. The host runs ahead of the
  GPU, so launching costs time only where it takes longer than the kernels. A full graph is one launch; piecewise graphs
  leave the attention of each layer outside; eager iterations launch every layer. Batches with prefills beyond the
  largest captured size (512 tokens) are eager in vLLM's default, which is why a prefill of 600 and one of 2,000 tokens
  of Qwen3-30B-A3B take the same time.
- *Step*. Scheduling, input preparation, sampling and output processing overlap the previous step; what remains
  exposed is a constant and a share per request.
- *Request latency*. From the client's send to the scheduler and from the sampled token back to the client. It delays a
  request but does not occupy the GPU; a serving simulator adds it to arrivals and never to iterations.

Launching is a property of the host: the same engine on the same kind of machine took 53 ms for an eager forward pass of
Qwen3-30B-A3B in one session and at most 36 ms in another. The parameters are least-squares values over the calibration
half of the ``prefill`` and ``decode`` tables of vLLM 0.24.0 on one H200, but for the two that its traces state
(``piecewise_layer_us``, ``EXPERTS_OVER_LAYER``); ``tests/validation/iteration_vs_engine.py --calibrate`` repeats the
fit, and without the option it prints the residuals of both halves. Ignored: tokenisation and detokenisation of text,
structured output, stalls of the Python runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

EXPERTS_OVER_LAYER = 0.48
"""Host time of the experts' operator over that of the rest of an eager layer: forward passes of 1,024 and 2,048 tokens,
timed in the engine's process in one session, took 1.08 ms per layer of Qwen3-30B-A3B (48) and 0.73 of Qwen3-8B (36)."""


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
    piecewise_layer_us: float = 119.0
    """Per layer between two attentions: one graph and the attention operator. Forward pass of 128 tokens of
    Qwen3-30B-A3B timed in the engine's process: 5.73 ms for 48 layers."""
    eager_layer_us: float = 505.0
    """Per layer without its experts. From the prefill tables (fit: 504.6); 730 in the traces."""
    step_us: float = 450.0
    """Exposed per iteration: asynchronous scheduling hides nearly all of it. From the decode tables (fit: 449.5)."""
    request_us: float = 0.0
    """Exposed per request of the batch. From the decode tables, 1 to 225 requests (fit: 0)."""
    request_latency_us: float = 2910.0
    """Client to scheduler plus sampled token to client. From the prefill tables (fit: 2907)."""

    def launching_us(self, mode: GraphMode, layers: int, expert_layers: int) -> float:
        """Host time to launch one iteration.

        Args:
            mode: what is replayed.
            layers: layers of the stage.
            expert_layers: those with routed experts.
        """
        match mode:
            case GraphMode.FULL:
                return self.launch_us
            case GraphMode.PIECEWISE:
                return self.launch_us + self.piecewise_layer_us * layers
            case GraphMode.EAGER:
                return self.eager_layer_us * (layers + EXPERTS_OVER_LAYER * expert_layers)

    def exposed_us(self, requests: int) -> float:
        """Host time per iteration that no kernel hides."""
        return self.step_us + self.request_us * requests
