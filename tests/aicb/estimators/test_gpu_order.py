"""An H100 has the H200's SMs, power and latency, and less of memory: nothing takes less time on it."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from aicb import InputError, Precision, get_gpu
from aicb.estimators.estimator import CostTable, Estimator
from aicb.estimators.selection import select_estimator
from aicb.formats.operator_table import UNREAD, RowReader, parse
from aicb.kernels.kernel import CacheKernel
from aicb.kernels.registry import classes_by_operation
from aicb.measurements.timing import Timing

OPERATIONS = [name for name in classes_by_operation() if name not in UNREAD]
ROUNDING = 1 - 1e-12


@cache
def estimators(timing: Timing) -> tuple[Estimator, Estimator]:
    """Of the H100 and the H200."""
    h100, h200 = (select_estimator("auto", get_gpu(name), Precision(), timing) for name in ("h100", "h200"))
    return h100, h200


def sizes(most: int) -> st.SearchStrategy[int]:
    """1 to ``most``, every order of magnitude alike."""
    return st.floats(0, math.log2(most)).map(lambda power: round(2**power))


@st.composite
def rows(draw: st.DrawFn) -> dict[str, str]:
    """Columns of any operation but its name; those that it does not ask for are not read."""
    batch, new = draw(sizes(512)), draw(sizes(16_384))
    kv_heads, groups = draw(sizes(16)), draw(sizes(256))
    head_dim = draw(st.sampled_from([64, 128, 192, 256]))
    numbers = {
        **{"m": draw(sizes(16_384)), "n": 64 * draw(sizes(600)), "k": 128 * draw(sizes(150))},
        **{"groups": groups, "active_groups": draw(st.integers(1, groups)), "rows": groups * draw(sizes(4_000))},
        **{"batch": batch, "q_len": new, "kv_len": new + draw(sizes(65_536))},
        **{"heads": kv_heads * draw(sizes(16)), "kv_heads": kv_heads, "d_qk": head_dim, "d_v": head_dim},
        "experts_per_token": draw(st.integers(1, 10)),
    }
    texts = {name: str(number) for name, number in numbers.items()}
    return texts | {"bytes": str(draw(sizes(2**30))), "dtype": draw(st.sampled_from(["bf16", "fp8"]))}


@pytest.mark.parametrize("timing", ["engine", "graph"])
@pytest.mark.parametrize("operation", OPERATIONS)
@settings(max_examples=20, deadline=None)
@given(row=rows())
def test_no_kernel_takes_less_time_on_an_h100(operation: str, timing: Timing, row: dict[str, str]) -> None:
    latent = {"d_qk": "576", "d_v": "512", "heads": "128"} if operation.startswith(("mla", "index")) else {}
    try:
        kernel = parse(RowReader(row | latent | {"op": operation}, "row 1"))
        kernel.check()
    except InputError:
        reject()
    h100, h200 = estimators(timing)
    assert h100.price(kernel).time_us >= h200.price(kernel).time_us * ROUNDING
    both = CostTable.of([kernel], Precision())
    assert h100.times(both).time_us[0] >= h200.times(both).time_us[0] * ROUNDING
    if isinstance(kernel, CacheKernel):
        lengths = np.asarray(kernel.kv_tokens)
        steps = [each.decode_times(kernel, len(lengths))(lengths, 4)[0] for each in (h100, h200)]
        assert (steps[0] >= steps[1] * ROUNDING).all()
