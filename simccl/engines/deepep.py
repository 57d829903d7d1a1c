"""Times of DeepEP's dispatch and combine kernels in closed form, for evenly routed tokens.

Low latency sends one message per token and expert; hierarchical (DeepEP's normal mode) one copy per token and distinct
node, fanned out over NVLink to distinct GPUs. With L the latency, x the larger of what NVLink and the NIC take,

    time = (L^p + x^p)^(1/p)        L = base + per_doubling · log2(nodes)

How many copies of a token there are follows from the choice of its experts (`simccl.engines.expert_choice`). Hopper,
eight GPUs per node, one 400 Gbit/s NIC per GPU, DeepEP V1, FP8 dispatch, BF16 combine; links that are slower than the
kernels bind in their place. The bytes of a token are those of its mode. Not modelled: skewed routing (`expert_dispatch`
plans that), notification of layouts in normal mode (30 to 60 µs on 2 and 4 nodes), other numbers of SMs than 20 there
and 24 on one node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.collective import Algorithm
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_mode import ExpertKernel, ExpertMode, Phase
from simccl.engines.hierarchical import Hierarchical
from simccl.engines.low_latency import LowLatency
from simccl.nccl.point_to_point import message_port_rates
from simccl.plan.lowering import PortRates

MODES: tuple[ExpertMode, ...] = (Hierarchical(), LowLatency())


def expert_mode(name: str) -> ExpertMode:
    """The mode of that name.

    Raises:
        InputError: for one that DeepEP does not have.
    """
    for mode in MODES:
        if mode.name == name:
            return mode
    raise InputError(f"mode: found {name}, expected {' or '.join(mode.name for mode in MODES)}")


def is_measured(at: CommunicatorShape) -> bool:
    """Whether DeepEP's kernels were measured on this GPU generation: Hopper."""
    return at.gpu.generation.has_measured_deepep


def expert_times_us(
    mode: Algorithm,
    phase: Phase,
    tokens: NDArray[np.int64],
    *,
    hidden: int,
    choice: ExpertChoice,
    at: CommunicatorShape,
) -> NDArray[np.float64]:
    """[batches] time to dispatch, or combine, so many tokens per rank, evenly routed; 0 for no tokens.

    Raises:
        InputError: a GPU generation other than Hopper, another mode than DeepEP's two, or negative tokens.
    """
    if not is_measured(at):
        raise InputError(f"gpu: found {at.gpu.name}, expected a Hopper GPU, on which DeepEP's kernels were measured")
    chosen = expert_mode(mode)
    if (tokens < 0).any():
        raise InputError(f"tokens: found {tokens.min()}, expected no negative value")
    if phase is Phase.DISPATCH:
        token_bytes = chosen.dispatch_bytes(hidden, choice.top_k, fp8=True)
    else:
        token_bytes = chosen.combine_bytes(hidden, choice.top_k)
    kernel = chosen.kernel(phase, at)
    transfer_us = tokens.astype(np.float64) * _token_us(kernel, chosen, token_bytes, choice, at)
    return np.where(tokens > 0, _joined_us(kernel, launch_us(chosen, phase, at), transfer_us), 0.0)


def port_rates(
    mode: ExpertMode, phase: Phase, tokens: float, token_bytes: int, *, choice: ExpertChoice, at: CommunicatorShape
) -> PortRates:
    """Rates of ports at which a call with so many tokens per rank, evenly routed, takes its time after `launch_us`.

    What a rank sends to itself is in the closed form, but crosses no port. For Hopper GPUs and tokens above zero.
    """
    kernel, latency_us = mode.kernel(phase, at), launch_us(mode, phase, at)
    alone_us = tokens * _token_us(kernel, mode, token_bytes, choice, at)
    slowdown = float(_joined_us(kernel, latency_us, np.array([alone_us]))[0] - latency_us) / alone_us
    nvlink, nic = _gbytes_per_s(kernel, at)
    return PortRates(nvlink * _others(at) * 1e9 / slowdown, nic * 1e9 / slowdown)


def limited_port_rates(
    mode: ExpertMode, phase: Phase, at: CommunicatorShape, busiest_s: Callable[[PortRates], float]
) -> PortRates:
    """Rates of ports for messages of given sizes, `busiest_s` of which is the time of the busiest port at given rates.

    As `port_rates`, with the busiest port in place of that of evenly routed tokens. For Hopper GPUs.
    """
    kernel, latency_us = mode.kernel(phase, at), launch_us(mode, phase, at)
    nvlink = min(kernel.nvlink_gbytes_per_s * _others(at), message_port_rates(at).nvlink_bytes_per_s / 1e9)
    limits = PortRates(nvlink * 1e9, min(kernel.nic_gbytes_per_s, at.nic_gbytes_per_s) * 1e9)
    alone_us = busiest_s(limits) * 1e6
    slowdown = float(_joined_us(kernel, latency_us, np.array([alone_us]))[0] - latency_us) / alone_us
    return PortRates(limits.nvlink_bytes_per_s / slowdown, limits.network_bytes_per_s / slowdown)


def _token_us(
    kernel: ExpertKernel, mode: ExpertMode, token_bytes: int, choice: ExpertChoice, at: CommunicatorShape
) -> float:
    """Transfer time of one token per rank by the busier of NVLink and NIC."""
    over_nvlink, over_nic = mode.copies(replace(choice, ranks=None), at)
    nvlink, nic = _gbytes_per_s(kernel, at)
    return token_bytes / 1e3 * max(over_nvlink / nvlink, over_nic / nic)


def _gbytes_per_s(kernel: ExpertKernel, at: CommunicatorShape) -> tuple[float, float]:
    """Bytes of tokens, those for the rank itself included, that NVLink and the NIC of one GPU carry at most."""
    nvlink = message_port_rates(at).nvlink_bytes_per_s / 1e9
    return min(kernel.nvlink_gbytes_per_s, nvlink / _others(at)), min(kernel.nic_gbytes_per_s, at.nic_gbytes_per_s)


def _others(at: CommunicatorShape) -> float:
    """Share of a node's ranks that are not the sender itself."""
    return max(at.gpus_per_node - 1, 1) / at.gpus_per_node


def _joined_us(kernel: ExpertKernel, latency_us: float, transfer_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """[batches] latency and transfer that overlap in part."""
    p = kernel.exponent
    times: NDArray[np.float64] = (latency_us**p + transfer_us**p) ** (1 / p)
    return times


def launch_us(mode: ExpertMode, phase: Phase, at: CommunicatorShape) -> float:
    """Launch, counting and synchronisation of one call, the part that does not grow with the tokens.

    Measured on Hopper; other GPUs are taken to need as long.
    """
    kernel = mode.kernel(phase, at)
    return float(kernel.base_us + kernel.per_doubling_us * np.log2(at.nodes))
