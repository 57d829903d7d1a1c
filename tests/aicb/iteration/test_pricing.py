"""Operators priced together: what they cost does not depend on their company."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from aicb import IterationModel, Partition, Precision, get_gpu, load_model
from aicb._core import OperatorGroup
from aicb.estimators.accuracy.sparse_cases import surface_of
from aicb.estimators.estimator import CostTable, Estimator
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.roofline import RooflineEstimator
from aicb.estimators.selection import select_estimator
from aicb.iteration.pricing import Pricing, price_lists, price_operators
from aicb.iteration.stage import RUNS, priced_together
from aicb.kernels.gemm import Gemm
from aicb.model.precision import Precision as Formats
from aicb.operators.lists import expansion_operators, expert_operators, head_operators, token_operators
from aicb.operators.operator import Communication, Operator

FP8, BF16 = Precision(weights="fp8"), Precision(weights="bf16")
CASES = {
    "deepseek-v3 on the H200": ("deepseek-v3", "h200", FP8, Partition(1, 16, 16, 1)),
    "qwen3-30b-a3b on the H200": ("qwen3-30b-a3b", "h200", BF16, Partition(1, 1, 1, 1)),
    "llama-2-7b transferred to the A100": ("llama-2-7b", "a100", BF16, Partition(1, 1, 1, 1)),
    "qwen3-8b transferred to the H20": ("qwen3-8b", "h20", FP8, Partition(2, 1, 1, 1)),
}


def lists_of(model_name: str, precision: Formats, partition: Partition) -> list[list[Operator]]:
    """Operators of iterations of many sizes, grouped as simulations price them."""
    model = load_model(model_name)
    lists: list[list[Operator]] = []
    for tokens in (1, 3, 64, 65, 500, 1024, 3333, 8192):
        lists.append(token_operators(model, partition, precision, tokens=tokens))
        lists.append(head_operators(model, partition, precision, rows=tokens))
        for is_decode in (True, False):
            lists.append(
                expert_operators(
                    model,
                    partition,
                    precision,
                    tokens=tokens,
                    group_tokens=tokens * partition.dp,
                    is_decode=is_decode,
                )
            )
        lists.append(expansion_operators(model, partition, precision, part="past", tokens=4 * tokens))
    return lists


@pytest.mark.parametrize("case", CASES)
def test_a_list_costs_the_same_alone_and_among_others(case: str) -> None:
    model, gpu, precision, partition = CASES[case]
    lists = lists_of(model, precision, partition)
    alone, together = (
        Pricing(select_estimator("auto", get_gpu(gpu), precision), get_gpu(gpu), precision) for _ in range(2)
    )
    assert price_lists(lists, together) == [price_operators(listed, alone) for listed in lists]


@pytest.mark.parametrize("case", CASES)
def test_many_works_get_the_times_that_each_gets_by_itself(case: str) -> None:
    model, gpu, precision, partition = CASES[case]
    works = [
        operator.kernel
        for listed in lists_of(model, precision, partition)
        for operator in listed
        if not isinstance(operator.kernel, Communication)
    ]
    estimator: Estimator
    for estimator in (select_estimator("auto", get_gpu(gpu), precision), RooflineEstimator(get_gpu(gpu), precision)):
        found = estimator.times(CostTable.of(works, precision))
        single = [estimator.price(work) for work in works]
        assert found.time_us == pytest.approx([each.time_us for each in single], rel=1e-12)
        assert found.is_estimate.tolist() == [each.is_estimate for each in single]


def test_the_time_of_a_shape_has_the_same_bits_in_any_company() -> None:
    """Whatever sums in an order that depends on how many are asked for would show here."""
    surfaces = [surface_of(InterpolationEstimator(get_gpu("h200"), FP8), Gemm, "fp8") for _ in range(3)]
    rng = np.random.default_rng(1)
    shapes = np.column_stack(
        [rng.choice([2112.0, 7168.0], 100), rng.choice([1536.0, 7168.0], 100), rng.integers(1, 9000, 100)]
    ).astype(np.float64)
    whole = surfaces[0].times(shapes)
    few = np.concatenate([surfaces[1].times(part) for part in np.array_split(shapes, 9)])
    single = np.concatenate([surfaces[2].times(shape[None, :]) for shape in shapes[::-1]])[::-1]
    assert whole.tolist() == few.tolist() == single.tolist()


def test_an_impossible_shape_among_others_is_refused_by_name() -> None:
    estimator = InterpolationEstimator(get_gpu("h200"), FP8)
    works = [Gemm(64, 7168, 2048, "fp8"), Gemm(64, 0, 2048, "fp8")]
    with pytest.raises(ValueError, match=r"Gemm\.n: found 0, expected at least 1"):
        estimator.times(CostTable.of(works, FP8))


@pytest.mark.parametrize("length", RUNS)
def test_counts_are_priced_in_runs_that_do_not_overlap(length: int) -> None:
    """Whichever count of a run is asked for first, the same ones are priced."""
    for count in range(1, 3000):
        run = priced_together(count, length)
        assert count in run
        assert len(run) <= length
        assert priced_together(run[0], length) == priced_together(run[-1], length) == run
    sizes = [1, 2, 4, *range(8, 256, 8)]
    assert sorted({size for each in sizes for size in priced_together(each, length, sizes)}) == sizes
    assert priced_together(1003, length) == [1003]  # not a count that is priced: alone


def test_a_model_prices_a_count_as_its_operators_by_themselves() -> None:
    model = IterationModel(load_model("deepseek-v3"), Partition(1, 16, 16, 1), FP8, get_gpu("h200"))
    single = Pricing(InterpolationEstimator(get_gpu("h200"), FP8), get_gpu("h200"), FP8)
    for tokens in (8, 1000, 4065):
        listed = token_operators(model.model, model.partition, FP8, tokens=tokens)
        found, alone = model._groups([(OperatorGroup.TOKENS, tokens, 0)], 0)[0], price_operators(listed, single)
        assert (found.total_ps, tuple(found.phase_ps)) == (alone.total_ps, alone.phase_ps)


def test_pricing_does_without_pandas() -> None:
    """Its import takes a third of a second and 40 MB; Arrow imports it for conversions of its own."""
    program = (
        "import sys; from aicb import *; from aicb.estimators.interpolation import InterpolationEstimator as E; "
        "from aicb.kernels.gemm import Gemm; E(get_gpu('h200')).price(Gemm(1, 1, 1, 'fp8')); "
        "print('pandas' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
