"""Times of DeepEP's dispatch and combine kernels in closed form, for evenly routed tokens.

Low latency sends one message per token and expert; hierarchical (DeepEP's normal mode) one copy per token and distinct
node, fanned out over NVLink to distinct GPUs. With L the latency, x the larger of what NVLink and the NIC take,

    time = (L^p + x^p)^(1/p)        L = base + per_doubling · log2(nodes)

Experts of a token are taken as independent and equally likely on every rank: of n ranks n · (1 − (1 − 1/n)^k) are
distinct among k experts. Hopper, eight GPUs per node, one 400 Gbit/s NIC per GPU, DeepEP V1, FP8 dispatch, BF16
combine. The bytes of a token are those of `dispatch_bytes`. Not modelled: skewed routing
(`expert_dispatch` plans that), notification of layouts in normal mode (30 to 60 µs on 2 and 4 nodes), other numbers of
SMs than 20 there and 24 on one node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.arrangement import Arrangement
from simccl.collective import Algorithm
from simccl.lowering import PortRates
from simccl.point_to_point import message_port_rates

SCALE_BLOCK = 128
"""Values that share one scale in FP8."""


class Phase(StrEnum):
    DISPATCH = "dispatch"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True)
class _Kernel:
    base_us: float
    per_doubling_us: float
    nvlink_gbytes_per_s: float
    """Bytes to ranks of the own node, the own rank included; on several nodes of low latency no limit."""
    nic_gbytes_per_s: float
    exponent: float


_NO_LIMIT = float("inf")
_LOW, _NORMAL = Algorithm.LOW_LATENCY, Algorithm.HIERARCHICAL

# Fitted to DeepEP kernel times of aiconfigurator 095f58a (Apache-2.0; its tables 0.5.12 for one node, 0.5.6.post2 for
# several), H100; H200 on one node differs by 5 %. Median and p90 of the absolute error: low latency, one node, 128
# experts and more, 4.8 / 18 % and 4.0 / 9 % (dispatch, combine); 2, 4 and 8 nodes 1.7 / 4 % and 1.7 / 5 %. Normal, 128
# experts and more, 4 per token and more: one node, 24 SMs, 2.5 / 7 % and 5 / 18 % (combines of few tokens are up to
# 24 % too fast); 2 and 4 nodes, 20 SMs, 2.0 / 5 % and 2.7 / 8 %.
_ONE_NODE = {
    (_LOW, Phase.DISPATCH): _Kernel(12.59, 0.0, 284.0, _NO_LIMIT, 1.05),
    (_LOW, Phase.COMBINE): _Kernel(12.43, 0.0, 237.3, _NO_LIMIT, 1.17),
    (_NORMAL, Phase.DISPATCH): _Kernel(24.85, 0.0, 343.1, _NO_LIMIT, 0.80),
    (_NORMAL, Phase.COMBINE): _Kernel(36.75, 0.0, 359.2, _NO_LIMIT, 0.79),
}
_NODES = {
    (_LOW, Phase.DISPATCH): _Kernel(16.84, 3.85, _NO_LIMIT, 48.0, 1.00),
    (_LOW, Phase.COMBINE): _Kernel(24.20, 0.94, _NO_LIMIT, 46.1, 1.01),
    (_NORMAL, Phase.DISPATCH): _Kernel(16.90, 8.81, 250.6, 48.9, 0.77),
    (_NORMAL, Phase.COMBINE): _Kernel(39.08, 5.74, 205.3, 48.6, 0.69),
}


def is_measured(at: Arrangement) -> bool:
    """Whether DeepEP's kernels were measured on this GPU generation: Hopper."""
    return at.gpu.compute_capability == 90


def expert_times_us(
    mode: Algorithm, phase: Phase, tokens: NDArray[np.int64], *, hidden: int, top_k: int, at: Arrangement
) -> NDArray[np.float64]:
    """[batches] time to dispatch, or combine, so many tokens per rank, each with ``top_k`` experts; 0 for no tokens.

    Raises:
        InputError: a GPU generation other than Hopper, another mode than DeepEP's two, or negative tokens.
    """
    if not is_measured(at):
        raise InputError(f"gpu: found {at.gpu.name}, expected a Hopper GPU, on which DeepEP's kernels were measured")
    if mode not in (_LOW, _NORMAL):
        raise InputError(f"mode: found {mode}, expected {_LOW} or {_NORMAL}")
    if (tokens < 0).any():
        raise InputError(f"tokens: found {tokens.min()}, expected no negative value")
    if phase is Phase.DISPATCH or mode is _NORMAL:
        token_bytes = dispatch_bytes(hidden, top_k, mode, fp8=phase is Phase.DISPATCH)
    else:
        token_bytes = 2 * hidden
    kernel = _kernel(mode, phase, at)
    transfer_us = tokens.astype(np.float64) * _token_us(kernel, mode, token_bytes, top_k, at)
    return np.where(tokens > 0, _joined_us(kernel, launch_us(mode, phase, at), transfer_us), 0.0)


def port_rates(
    mode: Algorithm, phase: Phase, tokens: int, token_bytes: int, *, top_k: int, at: Arrangement
) -> PortRates:
    """Rates of ports at which a call with so many tokens per rank, evenly routed, takes its time after `launch_us`.

    What a rank sends to itself is in the closed form, but crosses no port. For Hopper GPUs and tokens above zero.
    """
    kernel, latency_us = _kernel(mode, phase, at), launch_us(mode, phase, at)
    alone_us = tokens * _token_us(kernel, mode, token_bytes, top_k, at)
    slowdown = float(_joined_us(kernel, latency_us, np.array([alone_us]))[0] - latency_us) / alone_us
    others = (at.gpus_per_node - 1) / at.gpus_per_node
    links = message_port_rates(at)
    return PortRates(
        min(kernel.nvlink_gbytes_per_s * others * 1e9, links.nvlink_bytes_per_s) / slowdown,
        min(kernel.nic_gbytes_per_s * 1e9, links.network_bytes_per_s) / slowdown,
    )


def _token_us(kernel: _Kernel, mode: Algorithm, token_bytes: int, top_k: int, at: Arrangement) -> float:
    """Transfer time of one token per rank by the busier of NVLink and NIC."""
    over_nvlink, over_nic = _copies(mode, top_k, at)
    return token_bytes / 1e3 * max(over_nvlink / kernel.nvlink_gbytes_per_s, over_nic / kernel.nic_gbytes_per_s)


def _joined_us(kernel: _Kernel, latency_us: float, transfer_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """[batches] latency and transfer that overlap in part."""
    p = kernel.exponent
    times: NDArray[np.float64] = (latency_us**p + transfer_us**p) ** (1 / p)
    return times


def dispatch_bytes(hidden: int, top_k: int, mode: Algorithm, *, fp8: bool) -> int:
    """Bytes of one token in a dispatch, with scales and what says where it belongs (DeepEP V1).

    Low-latency: 16 bytes of header, values, scales. Hierarchical: values, scales, 8 bytes of source, expert ids and
    weights, up to whole 16 bytes.
    """
    values = hidden + 4 * (hidden // SCALE_BLOCK) if fp8 else 2 * hidden
    if mode is Algorithm.LOW_LATENCY:
        return 16 + values
    return -(-(values + 8 + 4 * top_k + 4 * top_k) // 16) * 16


def launch_us(mode: Algorithm, phase: Phase, at: Arrangement) -> float:
    """Launch, counting and synchronisation of one call, the part that does not grow with the tokens.

    Measured on Hopper; other GPUs are taken to need as long.
    """
    kernel = _kernel(mode, phase, at)
    return float(kernel.base_us + kernel.per_doubling_us * np.log2(at.nodes))


def _kernel(mode: Algorithm, phase: Phase, at: Arrangement) -> _Kernel:
    return (_ONE_NODE if at.nodes == 1 else _NODES)[mode, phase]


def _copies(mode: Algorithm, top_k: int, at: Arrangement) -> tuple[float, float]:
    """Copies of one token that NVLink and the NIC of one GPU carry."""
    away = (at.nodes - 1) / at.nodes
    if mode is _LOW:
        return top_k * (1 - away), top_k * away
    return _distinct(at.ranks, top_k), _distinct(at.nodes, top_k) * away


def _distinct(places: int, draws: int) -> float:
    """Expected number of different places among so many independent draws."""
    return float(places * (1 - (1 - 1 / places) ** draws))
