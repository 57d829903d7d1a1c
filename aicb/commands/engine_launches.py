"""A model that an engine runs on this machine: its configuration, and its launches, which host times are divided by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.text_files import read_text

if TYPE_CHECKING:
    from aicb.iteration.launches import Launches
    from aicb.model.partition import Partition
    from aicb.model.precision import WeightDtype
    from aicb.operators.experts_kernel import ExpertsKernel
    from aicb.operators.norm_kernel import NormKernel
    from aicb.profiling.engine_host.served import Framework


def model_configuration(model: Path, layers: int = 0) -> dict[str, Any]:
    """A ``config.json``, cut to so many layers; 0: all.

    Raises: InputError, where it is none.
    """
    expected = "a model's configuration"
    found = parse_json(read_text(model, expected), str(model), expected)
    if not isinstance(found, dict):
        raise InputError(f"{model}: found a JSON {type(found).__name__}, expected {expected}")
    return found | ({"num_hidden_layers": layers} if layers else {})


def launches_of(
    config: str,
    tp: int,
    dp: int,
    *,
    shares_experts: bool,
    norm_kernel: NormKernel = "apart",
    weights: WeightDtype | None = None,
    framework: Framework = "vllm",
) -> Launches:
    """Of a model by name or by the path of its ``config.json``.

    Args:
        weights: ``None``: as the model is published, which is how engines run it where nothing else is stated.
    """
    from aicb.iteration.model import IterationModel
    from aicb.measurements.gpu import get_gpu
    from aicb.model.catalog import load_model
    from aicb.model.partition import Partition
    from aicb.model.precision import Precision
    from aicb.operators.dispatch import ExpertDispatch

    model = load_model(config)
    precision = Precision(weights or model.published_weights)
    partition = Partition(tp=tp, dp=dp, ep=tp * dp if shares_experts else 1)
    gathers = ExpertDispatch("all_gather", "all_gather")
    return IterationModel(
        model,
        partition,
        precision,
        get_gpu("h200"),
        experts_kernel=_experts_kernel(framework, partition) if precision.weights == "fp8" else "deep_gemm",
        moe_kernels=framework,
        hybrid_kernels="compiled" if framework == "vllm" else "fused",
        host_engine=framework,
        norm_kernel=norm_kernel,
        dispatch=gathers,
    ).launches(0)


def _experts_kernel(framework: Framework, partition: Partition) -> ExpertsKernel:
    """Of fp8 experts, by the engines' defaults on Hopper."""
    if framework == "sglang":
        return "triton_sglang"
    return "flashinfer" if partition.ep > 1 else "triton"
