"""Rotary embedding of latent attention in the kernel that the engine runs, against vLLM's trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from aicb import IterationModel, Partition, Precision, get_gpu
from aicb.estimators.selection import select_estimator
from aicb.kernels.elementwise import Elementwise
from aicb.operators.lists import token_operators
from boundary.errors import InputError
from tests.validation.deepseek_vs_engine import cut_model

FP8 = Precision("fp8")
TRACE = Path(__file__).resolve().parents[2] / "data" / "engine" / "vllm-host-default.json.gz"


@pytest.mark.parametrize(("label", "tokens"), [("decode-B1", 1), ("prefill-1024", 1024), ("prefill-4096", 4096)])
def test_it_runs_as_often_and_about_as_long_as_in_the_trace(label: str, tokens: int) -> None:
    """Once a layer; the engine's kernel has more in it than the rotation (1.7, 68 and 307 us)."""
    with gzip.open(TRACE, "rt") as file:
        profiles = json.load(file)["models"]["deepseek-v3-l8"]["profiles"]
    kernels = next(each for each in profiles if each["label"] == label)["by_kernel"]
    traced = [(count, us) for name, count, us in kernels if "mul_neg_slice_split_stack" in name]
    listed = token_operators(cut_model(), Partition(), FP8, tokens=tokens, rope_kernel="compiled")
    rope = next(each for each in listed if each.name == "rope")
    assert rope.kernel == Elementwise("rope_latent", tokens, 128 * 192, tokens * 128 * 192 * 4)
    assert rope.count == sum(count for count, _ in traced) == 8
    measured = select_estimator("auto", get_gpu("h200"), FP8, "graph").price(rope.kernel)  # at its own clock
    assert 0.8 < rope.count * measured.time_us / sum(us for _, us in traced) < 1.05


def test_another_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="rope_kernel: found 'fused', expected one of in_place, compiled"):
        IterationModel(cut_model(), Partition(), FP8, get_gpu("h200"), rope_kernel="fused")  # type: ignore[arg-type]
