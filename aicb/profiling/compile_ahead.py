"""Parallel compilation of kernels before they are measured.

Libraries that compile at first use (DeepGEMM, FlashInfer's and SGLang's: seconds per kernel on one core) keep their
kernels in a cache on disk that processes share. Worker processes run every point once, so that the measuring process
finds the kernels ready; what is not compiled in time is compiled when it is measured.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import MappingProxyType

from aicb.kernels.expert_points import SGLANG_OPERATION
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import Library
from aicb.profiling.libraries.deep_gemm import DeepGemm
from aicb.profiling.libraries.flashinfer_experts import FlashInferExperts
from aicb.profiling.libraries.flashinfer_gemm import FlashInferGemm
from aicb.profiling.libraries.sglang_fused_moe import SglangFusedMoe

logger = logging.getLogger(__name__)

COMPILING: Mapping[str, type[Library]] = MappingProxyType(
    {
        "gemm": DeepGemm,
        "gemm_swapped": FlashInferGemm,
        "grouped_gemm_masked": DeepGemm,
        "grouped_gemm_contiguous": DeepGemm,
        "fused_experts": FlashInferExperts,
        SGLANG_OPERATION: SglangFusedMoe,
    }
)
"""What compiles the points of an operation, dense products of bf16 apart."""
SKEWED = ("grouped_gemm_masked", "grouped_gemm_contiguous")
"""Operations whose points of several distributions share kernels: the tile depends on the expected rows, which skew
leaves about equal."""


def compile_ahead(points: Sequence[Point], workers: int, timeout_s: float) -> int:
    """Runs points that are compiled at first use once in ``workers`` processes; the tasks finished in ``timeout_s``.

    Points of one weight shape and one power of two of rows tend to share a kernel and form a task; tasks of different
    weight shapes come after each other, so that two workers seldom compile the same kernel.
    """
    tasks = sorted(_tasks(points).items(), key=lambda item: item[0][::-1])
    began, finished = time.monotonic(), 0
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    futures = [pool.submit(_run_once, task) for _, task in tasks]
    try:
        for future in as_completed(futures, timeout=timeout_s):
            finished += 1
            failure = future.result()
            if failure:
                logger.info("compiling ahead: %s", failure)
    except TimeoutError:
        logger.warning("compiled %d of %d groups in %.0f s", finished, len(tasks), time.monotonic() - began)
    for process in list((pool._processes or {}).values()) if finished < len(tasks) else []:
        process.terminate()
    pool.shutdown(wait=finished == len(tasks), cancel_futures=True)
    return finished


def _tasks(points: Iterable[Point]) -> dict[tuple[str, int], list[Point]]:
    tasks: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in points:
        is_dense_bf16 = point.op == "gemm" and point.dtype != "fp8"
        if point.op not in COMPILING or is_dense_bf16 or (point.op in SKEWED and point.distribution != "balanced"):
            continue
        site = f"{point.op} {point.dtype} {point['n']} {point['k']} {point.get('groups', 0)}"
        rows = point.get("m", 0) or max(point.get("expected_m", 0), point.get("rows", 1) // point.get("groups", 1))
        tasks[site, max(rows - 1, 0).bit_length()].append(point)
    return tasks


def _run_once(points: list[Point]) -> str:
    """In a worker; the first failure in one line, or nothing."""
    import torch

    library = COMPILING[points[0].op]()
    for point in points:
        try:
            library.kernel(point).run()
            torch.cuda.synchronize()
        except (RuntimeError, ValueError, AssertionError) as error:
            return f"{point.key}: {error}".splitlines()[0]
    torch.cuda.empty_cache()
    return ""
