"""Kernels as one finds them: by the operations they name, and by what the event loop can price of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pytest

from aicb import Batch, IterationModel, Partition, Precision, get_gpu, load_model
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.kernel import KernelCost
from aicb.kernels.registry import classes_by_operation, kernel_classes
from aicb.measurements.timing import MeasuredTimes


@dataclass(frozen=True, slots=True, eq=False)
class WindowDecode(DecodeAttention):
    """Attention to the last 1,024 keys of each request, which neither a table nor the C++ core knows."""

    operations = ()
    core_role = None

    def cost(self, precision: Precision) -> KernelCost:
        seen = DecodeAttention(np.minimum(self.kv_tokens, 1024), self.heads, self.kv_heads, self.head_dim)
        return seen.cost(precision)

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> None:  # type: ignore[override]
        return None


def test_an_operation_of_a_table_names_one_kernel() -> None:
    named = Counter(name for kind in kernel_classes() for name in kind.operations)
    assert set(named.values()) == {1}
    assert set(named) == set(classes_by_operation())


def test_kernels_are_found_in_their_modules() -> None:
    modules = {kind.__module__.rpartition(".")[2] for kind in kernel_classes()}
    assert {"gemm", "grouped_gemm", "prefill_attention", "mla_decode", "gated_delta", "elementwise"} < modules


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_decodes_that_the_core_does_not_know_are_timed_in_python(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the window longer requests cost no more attention, in runs as in single iterations."""
    monkeypatch.setattr("aicb.operators.gqa.DecodeAttention", WindowDecode)
    iterations = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), get_gpu(gpu))
    assert iterations.core_pricing() is None
    run = iterations.decode_steps(np.array([1022, 5000]), 4).tolist()
    assert run == [iterations.price([Batch.decode([1022 + step, 5000 + step])]).compute_ps for step in range(4)]
    assert run[0] < run[2] == run[3]
