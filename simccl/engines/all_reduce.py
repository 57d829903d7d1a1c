"""All-reduce kernels of inference engines: when an engine uses one instead of NCCL, and how long it takes.

One-shot: every rank reads all other buffers, (n−1)·S in and out of each GPU. Two-shot: reduce-scatter and all-gather
by direct reads, 2(n−1)/n·S. Multimem: the NVSwitch reduces and multicasts symmetric memory, S(1 + 1/n). The time is

    synchronisation + (n − 2) · peer + moved bytes / rate

where the rate of FlashInfer's kernel, which keeps buffers for three calls, is higher for what fits into caches;
inside CUDA graphs; eager calls cost 20 to 24 µs of host time at least (vLLM, 2 to 8 H100). One node with NVSwitch,
bf16. Rules: vLLM 0.24 (custom_all_reduce.py, symm_mem thresholds), SGLang 0.5.14 (the same kernels, without symmetric
memory), TensorRT-LLM 1.3 (customAllReduce heuristic), FlashInfer 0.6.12 as vLLM calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.algorithms.algorithm import EngineKernel
from simccl.algorithms.registry import engine_kernels
from simccl.collective import Algorithm, Choice
from simccl.communicator.shape import CommunicatorShape

KIB, MIB = 1 << 10, 1 << 20
ELEMENT_BYTES = 2


class AllReduceKernels(Choice):
    """All-reduce kernels that run: NCCL's, or those of an inference engine where it would use them."""

    NCCL = "nccl"
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    FLASHINFER = "flashinfer"
    """Adds the residual and normalises, too: the time is that of all three."""

    @classmethod
    def field(cls) -> str:
        return "stack"

    @property
    def leaves_nvls_on(self) -> bool:
        """Whether NCCL may use NVLS where the engine calls it: SGLang sets NCCL_NVLS_ENABLE to 0 by default
        (``entrypoints/engine.py`` of 0.5.9 to 0.5.23, ``--enable-nccl-nvls``)."""
        return self is not AllReduceKernels.SGLANG


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """One kernel on one GPU type."""

    synchronisation_us: float
    """Launch, and flags to and from one peer."""
    peer_us: float
    """For each further peer."""
    gbytes_per_s: float
    """Moved bytes in and out of one GPU, 10⁹ B/s."""
    cached_bytes: int = 0
    """So many of the moved bytes go at a rate of their own."""
    cached_gbytes_per_s: float = 1.0

    def transfer_us(self, moved: NDArray[np.float64]) -> NDArray[np.float64]:
        """[sizes] time for the moved bytes."""
        cached = np.minimum(moved, self.cached_bytes)
        times: NDArray[np.float64] = (cached / self.cached_gbytes_per_s + (moved - cached) / self.gbytes_per_s) / 1e3
        return times


ONE_SHOT, TWO_SHOT, MULTIMEM = Algorithm.ONE_SHOT, Algorithm.TWO_SHOT, Algorithm.MULTIMEM

# FlashInfer's fitted to own measurements on two and four H200s (``tests/data/flashinfer_all_reduce*.json``: hidden
# sizes of 2,048 to 8,192, 1 to 8,192 tokens, bf16, CUDA graphs, 2026-11-28 and 29; median error 6 and 3 %, largest 22
# and 12 %: rows of 2,048 values take longer than the same bytes in longer ones). What a kernel takes in addition is
# the median of single-token decodes of engines, where ranks wait for each other: among two 5.15, 5.17 and 5.38 us
# (``tests/data/engine/vllm-h200-tp2-*.json.gz``; one call after another in a graph 4.66), among four 4.80 to 5.38 on
# the ranks of one (``vllm-h200-tp4-qwen3-30b-a3b.json.gz``; 5.05). Further peers are TensorRT-LLM's, whose kernel it
# is. 8 ranks were not measured and have the rates of two: from 256 to 512 KiB, 8 H200s, vLLM's issue 44079 has it 1.9
# to 4.3 us slower than multimem and a norm, here it is 0.8 us faster to 5 slower (with the rates of four 0.6 faster
# to 2.6 slower).
# Others fitted to aiconfigurator's measurements (tables of vLLM 0.24.0, SGLang 0.5.14, TensorRT-LLM 1.3.0rc20; bf16,
# CUDA graphs; Apache-2.0): H100 and H200 with 2, 4 and 8 GPUs and 256 B to 64 MiB for vLLM and TensorRT-LLM, 8 GPUs and
# 8 KiB to 8 MiB for SGLang and B200. Median error of the fits 0.2 to 3.7 %, largest 14 %. Two-shot rates of SGLang and
# B200 rest on one or two sizes each.
_COSTS = {
    ("h100", AllReduceKernels.VLLM, ONE_SHOT): KernelCosts(4.27, 0.081, 233.8),
    ("h100", AllReduceKernels.VLLM, TWO_SHOT): KernelCosts(7.86, 0.015, 279.0),
    ("h100", AllReduceKernels.VLLM, MULTIMEM): KernelCosts(9.17, 0.049, 226.2),
    ("h100", AllReduceKernels.SGLANG, ONE_SHOT): KernelCosts(3.42, 0.0, 311.8),
    ("h100", AllReduceKernels.SGLANG, TWO_SHOT): KernelCosts(7.14, 0.044, 288.3),
    ("h100", AllReduceKernels.TRTLLM, ONE_SHOT): KernelCosts(2.77, 0.076, 285.6),
    ("h200", AllReduceKernels.VLLM, ONE_SHOT): KernelCosts(4.42, 0.050, 252.7),
    ("h200", AllReduceKernels.VLLM, TWO_SHOT): KernelCosts(7.23, 0.015, 286.2),
    ("h200", AllReduceKernels.VLLM, MULTIMEM): KernelCosts(8.52, 0.048, 240.7),
    ("h200", AllReduceKernels.TRTLLM, ONE_SHOT): KernelCosts(2.73, 0.085, 294.3),
    ("h200", AllReduceKernels.FLASHINFER, ONE_SHOT): KernelCosts(5.2, 0.085, 209.2, 2 * MIB, 372.2),
    ("h200", AllReduceKernels.FLASHINFER, TWO_SHOT): KernelCosts(30.3, 0.085, 222.8),
    ("b200", AllReduceKernels.VLLM, ONE_SHOT): KernelCosts(7.45, 0.045, 505.1),
    ("b200", AllReduceKernels.VLLM, TWO_SHOT): KernelCosts(21.94, 0.042, 231.5),
    ("b200", AllReduceKernels.VLLM, MULTIMEM): KernelCosts(14.08, 0.048, 377.6),
    ("b200", AllReduceKernels.SGLANG, ONE_SHOT): KernelCosts(4.88, 0.022, 432.0),
    ("b200", AllReduceKernels.SGLANG, TWO_SHOT): KernelCosts(8.80, 0.048, 371.0),
    ("b200", AllReduceKernels.TRTLLM, ONE_SHOT): KernelCosts(5.28, 0.028, 701.3),
}
_COSTS_AMONG = {("h200", AllReduceKernels.FLASHINFER, ONE_SHOT, 4): KernelCosts(4.93, 0.085, 275.5, 5 * MIB, 333.0)}
"""Among so many ranks, where the same moved bytes were measured to take another time."""
FLASHINFER_RANKS = (2, 4)
"""Among which FlashInfer's kernel was measured; among others its time is an estimate."""
_SAME_KERNELS = {"h200": "h100", "h100": "h200"}  # where one was measured and the other was not

# Largest sizes by ranks with vLLM's symmetric memory (its default) are those of the GPU generation: custom kernels
# up to the first, multimem up to the second. Without it, and in SGLang, custom kernels run below 8 MiB.
_CUSTOM_BELOW_BYTES = 8 * MIB
_VLLM_RANKS = (2, 4, 6, 8)

# TensorRT-LLM's limits count elements: 1 MiB of bf16 (524,288 elements) between four H100s took 12.9 µs, as the kernel
# does, where NCCL needs 18.1 µs. Between two GPUs its workspace limits it; measured kernels reach 8 MiB.
_TRTLLM_BELOW_ELEMENTS = {4: 1_000_000, 8: 500_000}
_TRTLLM_TWO_RANKS_UP_TO_BYTES = 8 * MIB

# vLLM's limits on Hopper (allreduce_rms_fusion.py, _FI_ALLREDUCE_ONE_SHOT_MAX_SIZES_MB); above them FlashInfer's is
# two-shot, as far as vLLM calls it at all (``aicb.operators.norm_kernel``).
_FLASHINFER_ONE_SHOT_UP_TO_BYTES = {2: 32 * MIB, 4: 2 * MIB, 8: MIB // 2}


class EngineTimes(NamedTuple):
    """Times of an engine's own kernels, one entry per size."""

    is_used: NDArray[np.bool_]
    """Whether the engine runs a kernel of its own; elsewhere it calls NCCL and the other entries are 0."""
    time_us: NDArray[np.float64]
    latency_us: NDArray[np.float64]
    algorithm: NDArray[np.str_]


def engine_all_reduce(
    stack: AllReduceKernels, size_bytes: NDArray[np.int64], at: CommunicatorShape, *, has_symmetric_memory: bool = True
) -> EngineTimes:
    """Times of the kernels that an engine would use instead of NCCL, for sizes above zero.

    ``has_symmetric_memory`` is vLLM's default and matters to vLLM only.

    Raises:
        InputError: a GPU type on which the engine's kernels were not measured.
    """
    kinds = _kinds(stack, size_bytes, at, has_symmetric_memory)
    time_us, latency_us = np.zeros(len(size_bytes)), np.zeros(len(size_bytes))
    for kernel in engine_kernels():
        mine = kinds == str(kernel.name)
        if mine.any():
            costs = kernel_costs(at.gpu.name, stack, kernel.name, at.ranks)
            latency_us[mine] = costs.synchronisation_us + (at.ranks - 2) * costs.peer_us
            time_us[mine] = latency_us[mine] + costs.transfer_us(moved_bytes(kernel, size_bytes[mine], at.ranks))
    return EngineTimes(kinds != str(Algorithm.NONE), time_us, latency_us, kinds)


def engine_kernel(stack: AllReduceKernels, size_bytes: int, at: CommunicatorShape) -> Algorithm:
    """The kernel of its own that an engine uses for an all_reduce; `Algorithm.NONE` where it calls NCCL."""
    return Algorithm(_kinds(stack, np.array([size_bytes], dtype=np.int64), at, True)[0])


def check_measured(stack: AllReduceKernels, gpu: str) -> None:
    """Raises: InputError, if the engine's kernels were not measured on this GPU type."""
    if stack is not AllReduceKernels.NCCL:
        kernel_costs(gpu, stack, ONE_SHOT, ranks=2)


def moved_bytes(kernel: EngineKernel, size_bytes: NDArray[np.int64], ranks: int) -> NDArray[np.float64]:
    """[sizes] bytes into, and out of, each GPU."""
    moved: NDArray[np.float64] = kernel.traffic(ranks) * size_bytes.astype(np.float64)
    return moved


def _kinds(
    stack: AllReduceKernels, sizes: NDArray[np.int64], at: CommunicatorShape, has_symmetric_memory: bool
) -> NDArray[np.str_]:
    """[sizes] kernel of the engine, `Algorithm.NONE` where it calls NCCL."""
    nccl = np.full(len(sizes), str(Algorithm.NONE), dtype="U14")
    if stack is AllReduceKernels.NCCL or at.nodes > 1:
        return nccl
    if stack is AllReduceKernels.FLASHINFER:
        if at.ranks not in _FLASHINFER_ONE_SHOT_UP_TO_BYTES:
            return nccl
        return np.where(sizes <= _FLASHINFER_ONE_SHOT_UP_TO_BYTES[at.ranks], str(ONE_SHOT), str(TWO_SHOT))
    if stack is AllReduceKernels.TRTLLM:
        return np.where(_trtllm_uses_one_shot(sizes, at.ranks), str(ONE_SHOT), nccl)
    if at.ranks not in _VLLM_RANKS:
        return nccl
    aligned = sizes % 16 == 0
    limit = 512 * KIB if at.ranks <= 4 else 256 * KIB
    custom = np.where((at.ranks == 2) | (sizes < limit), str(ONE_SHOT), str(TWO_SHOT))
    generation = at.gpu.generation
    if stack is AllReduceKernels.SGLANG or not has_symmetric_memory or not generation.vllm_custom_up_to_mib:
        return np.where(aligned & (sizes < _CUSTOM_BELOW_BYTES), custom, nccl)
    is_custom = sizes <= generation.vllm_custom_up_to_mib[at.ranks] * MIB
    is_multimem = sizes <= generation.vllm_multimem_up_to_mib[at.ranks] * MIB
    return np.where(aligned & is_custom, custom, np.where(aligned & is_multimem, str(MULTIMEM), nccl))


def _trtllm_uses_one_shot(sizes: NDArray[np.int64], ranks: int) -> NDArray[np.bool_]:
    if ranks <= 2:
        return sizes <= _TRTLLM_TWO_RANKS_UP_TO_BYTES
    return sizes < _TRTLLM_BELOW_ELEMENTS[4 if ranks <= 4 else 8] * ELEMENT_BYTES


def kernel_costs(gpu: str, stack: AllReduceKernels, kind: Algorithm, ranks: int) -> KernelCosts:
    """One kernel of an engine among ranks of a GPU type.

    Raises:
        InputError: where it was not measured.
    """
    for name in (gpu, _SAME_KERNELS.get(gpu, gpu)):
        found = _COSTS.get((name, stack, kind))
        if found is not None:
            return _COSTS_AMONG.get((name, stack, kind, ranks), found)
    measured = sorted({name for name, of_stack, _ in _COSTS if of_stack is stack})
    raise InputError(f"stack: found {stack} on {gpu}, whose kernels were measured on {', '.join(measured)}")
