"""Compute time of the iteration that ``aicb show`` lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from aicb.estimators.selection import select_estimator
from aicb.experts.load import ExpertLoad
from aicb.iteration.model import PHASES, IterationModel
from aicb.iteration.overlap import Overlap
from aicb.iteration.pricing import PS_PER_US, IterationCost
from aicb.iteration.speculative import Drafting, SpeculativeCost
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import Model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.dense_kernel import DenseKernel
from aicb.operators.experts_kernel import ExpertsKernel
from aicb.operators.gqa import GqaKernel
from aicb.operators.hybrid_kernels import HybridKernels
from aicb.operators.mla import MlaKernel, RopeKernel
from aicb.operators.moe_kernels import MoeKernels
from aicb.operators.norm_kernel import NormKernel
from aicb.operators.operator import Communication, Operator
from aicb.operators.quantisation import QuantKernel


class EngineKernels(TypedDict):
    """Kernels that the engine runs."""

    experts_kernel: ExpertsKernel
    moe_kernels: MoeKernels
    mla_kernel: MlaKernel
    gqa_kernel: GqaKernel
    quant_kernel: QuantKernel
    dense_kernel: DenseKernel
    rope_kernel: RopeKernel
    hybrid_kernels: HybridKernels
    norm_kernel: NormKernel


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of one execution of an operator."""

    time_us: float | None
    """At the reference clock of the GPU; ``None`` of a collective."""
    time_from: str
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of the command line."""

    gpu: str
    estimator: str
    expert_load: ExpertLoad | None
    overlap_shared_expert: bool
    drafts: int
    acceptance: float | None
    kernels: EngineKernels


def price_iteration(
    model: Model, partition: Partition, precision: Precision, batch: Batch, stage: int, chosen: Choices
) -> dict[str, object]:
    """Compute time of one stage with this batch on every data-parallel rank, in microseconds.

    Raises:
        InputError: an option that does not go with the model, the GPU or the batch.
    """
    gpu = get_gpu(chosen.gpu)
    iterations = IterationModel(
        model,
        partition,
        precision,
        gpu,
        queries=chosen.drafts + 1,
        estimator=chosen.estimator,
        expert_load=chosen.expert_load,
        overlap=Overlap(shared_expert_stream=chosen.overlap_shared_expert),
        **chosen.kernels,
    )
    batches = [batch] * partition.dp
    origins = {"times_as": gpu.times_as, "clock_as": gpu.clock_as}
    borrowed = {name: origin for name, origin in origins.items() if origin is not None}
    if not chosen.drafts:
        return _described(iterations.price(batches, stage=stage)) | borrowed
    step = iterations.speculative(batches, Drafting(chosen.drafts, chosen.acceptance), stage=stage)
    return {**_described(step.verification), **_drafted(step), **borrowed}


def kernel_times(operators: Sequence[Operator], precision: Precision, chosen: Choices) -> list[KernelTime]:
    """Time of each operator alone, with its source."""
    estimator = select_estimator(chosen.estimator, get_gpu(chosen.gpu), precision)
    found = []
    for operator in operators:
        if isinstance(operator.kernel, Communication):
            found.append(KernelTime(None, "", is_estimate=False))
            continue
        one = estimator.price(operator.kernel)
        found.append(KernelTime(round(one.time_us, 3), one.source, one.is_estimate))
    return found


def _described(cost: IterationCost) -> dict[str, object]:
    phases = {
        f"{phase.value}_us": _us(time_ps) for phase, time_ps in zip(PHASES, cost.phase_ps, strict=True) if time_ps
    }
    share = round(cost.estimated_ps / cost.compute_ps, 4)
    return {"compute_us": _us(cost.compute_ps), "host_us": _us(cost.host_ps), **phases, "estimated_share": share}


def _drafted(step: SpeculativeCost) -> dict[str, object]:
    """The whole step; the other figures are those of the verification alone."""
    return {
        "drafts_us": _us(sum(cost.compute_ps for cost in step.draft_passes)),
        "step_us": _us(step.compute_ps),
        "tokens_per_request": round(step.expected_tokens, 4),
    }


def _us(time_ps: int) -> float:
    return round(time_ps / PS_PER_US, 3)
