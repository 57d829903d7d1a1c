"""Iterations priced in C++: equal to the arithmetic they replaced, in any order, and what eager counts cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb import _core
from aicb._core import PartKind
from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PHASES
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch, RankBatches
from aicb.operators.operator import Phase
from boundary.errors import InputError

FP8 = Precision("fp8")


def model(
    name: str, partition: Partition | None = None, precision: Precision | None = None, **options
) -> IterationModel:
    gpu = get_gpu(options.pop("gpu", "h200"))
    if not options.pop("has_clock", True):
        gpu = replace(gpu, clock=None)
    return IterationModel(load_model(name), partition or Partition(), precision or Precision(), gpu, **options)


MODELS = {
    "llama-2-7b on an A100": model("llama-2-7b", gpu="a100"),
    "qwen3-8b": model("qwen3-8b"),
    "qwen3-30b-a3b tp2": model("qwen3-30b-a3b", Partition(tp=2, ep=2)),
    "deepseek-v3 dp4": model("deepseek-v3", Partition(dp=4, ep=4), FP8),
    "qwen3-next tp2": model("qwen3-next-80b-a3b", Partition(tp=2), FP8),
    "deepseek-v3.2 tp8": model("deepseek-v3.2", Partition(tp=8, ep=8), FP8),
}

STEADY = model("deepseek-v3", Partition(dp=4, ep=4), FP8, has_clock=False)

DECODES = [Batch.decode([17, 900, 4000, 12345]), Batch.decode([64] * 9), Batch.empty(), Batch.decode([2, 70])]
CAPTURED = [
    Batch(np.array([1, 1, 1, 200]), np.array([17, 900, 4000, 1200]), 4),
    Batch.prefill([100, 60]),
    Batch.decode([5000]),
    Batch.prefill([31], [1000]),
]
EAGER = [
    Batch(np.array([1, 1, 1, 1, 764]), np.array([3000, 40, 900, 7000, 1764]), 5),
    Batch.prefill([512, 256], [512, 0]),
    Batch.decode([5000] * 16),
    Batch.prefill([1024]),
]

BEFORE_PS = {
    "llama-2-7b on an A100": [14509100840, 14577354266, 17570189144, 49942831863],
    "qwen3-8b": [5959563526, 5968044788, 7831863794, 20646191330],
    "qwen3-30b-a3b tp2": [4926278501, 4929522717, 11869765300, 36325200000],
    "deepseek-v3 dp4": [49633404941, 49652304000, 72532370246, 96787879309],
    "qwen3-next tp2": [8598414132, 8599375380, 22804881032, 36325200000],
    "deepseek-v3.2 tp8": [15728108297, 15781115613, 42390233308, 60642370984],
}
"""Of ``DECODES`` in steps 0 and 65, ``CAPTURED`` and ``EAGER``, from the Python arithmetic of commit 9f2aa16."""

LIBRARY_PS = 100
"""What other versions of BLAS and of the C library may change: some last bits of logarithms, powers and sums."""


def ranks_of(batches: list[Batch], iterations: IterationModel) -> list[Batch]:
    return batches[: iterations.partition.dp]


@pytest.mark.parametrize("name", MODELS)
def test_times_are_those_of_the_arithmetic_before(name):
    iterations = MODELS[name]
    _, run_ps = iterations.price_run(ranks_of(DECODES, iterations), 66)
    mixed_ps = [iterations.price(ranks_of(batches, iterations)).compute_ps for batches in (CAPTURED, EAGER)]
    assert [int(run_ps[0]), int(run_ps[65]), *mixed_ps] == pytest.approx(BEFORE_PS[name], abs=LIBRARY_PS, rel=0)


@pytest.mark.parametrize("name", MODELS)
def test_an_event_loop_gets_the_cost_that_python_gets(name):
    """The numbers of names and collectives resolve to what ``price`` returns; sparse attention is left to Python."""
    iterations = MODELS[name]
    pricing, ranks = iterations.compiled(), RankBatches.of(ranks_of(CAPTURED, iterations))
    if name.startswith("deepseek-v3.2"):
        assert pricing is None
        return
    assert isinstance(pricing, _core.IterationPricing)
    requests, rows = np.array(ranks.requests), np.array(ranks.logit_rows)
    expected = iterations.price(ranks)
    found, run_ps = pricing.price(ranks.new_tokens, ranks.kv_tokens, requests, rows)
    assert run_ps.tolist() == [found.compute_ps] == [expected.compute_ps]
    assert (found.host_ps, tuple(found.phase_ps)) == (expected.host_ps, expected.phase_ps)
    assert found.estimated_ps == expected.estimated_ps
    assert iterations.communications_of(found.communications) == expected.communications
    assert iterations.estimated_of(found.estimated) == expected.estimated_operators


def test_what_is_missing_is_named_until_it_is_supplied():
    iterations = model("deepseek-v3", Partition(tp=8, ep=8), FP8)
    pricing, asked = iterations.compiled(), 0
    while (found := pricing.price(np.array([700, 1]), np.array([900, 40]), np.array([2]), np.array([1]))) is None:
        iterations.supply()
        asked += 1
    assert asked == 1
    batch = Batch(np.array([700, 1]), np.array([900, 40]), 1)
    assert iterations.price([batch]).compute_ps == found[0].compute_ps


def test_decodes_without_new_tokens_are_decodes_of_one():
    pricing, kv = MODELS["qwen3-8b"].compiled(), np.array([300, 4000, 77])
    MODELS["qwen3-8b"].price([Batch.decode(kv)])
    _, with_ones = pricing.price(np.ones(3, dtype=np.int64), kv, np.array([3]), np.array([3]), 5)
    _, without = pricing.price(None, kv, np.array([3]), np.array([3]), 5)
    assert with_ones.tolist() == without.tolist()


def test_the_order_of_asking_does_not_matter():
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(12):
        new = rng.integers(1, 900, 6)
        batches.append([Batch(new, new + rng.integers(0, 3000, 6), 6)])
    first, second = model("qwen3-8b"), model("qwen3-8b")
    forwards = [first.price(batch).compute_ps for batch in batches]
    assert forwards == [second.price(batch).compute_ps for batch in batches[::-1]][::-1]


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(4)), seed=st.integers(0, 100))
def test_which_rank_has_which_batch_does_not_matter(order, seed):
    """At a fixed clock: of ranks that take equally long the first counts, and their loads on the clock may differ."""
    rng = np.random.default_rng(seed)
    batches = [Batch.decode(rng.integers(2, 9000, rng.integers(1, 20))) for _ in range(4)]
    ordered = [batches[rank] for rank in order]
    assert STEADY.price_run(ordered, 40)[1].tolist() == STEADY.price_run(batches, 40)[1].tolist()


def test_times_between_two_priced_counts_lie_on_their_line():
    """1025 to 1032 eager tokens: grid points are eight tokens apart, and the count after each is priced too."""
    dense = PHASES.index(Phase.DENSE)
    times = [MODELS["qwen3-8b"].price([Batch.prefill([tokens])]).phase_ps[dense] for tokens in range(1025, 1033)]
    line = np.linspace(times[0], times[-1], 8)
    assert times == pytest.approx(line.tolist(), rel=2e-3)  # the clock follows the load of each count


@pytest.mark.parametrize("tokens", [768, 769, 770, 772, 897, 1921, 2312])
def test_eager_iterations_take_what_their_own_counts_take(tokens):
    """DeepSeek-V3's products jump by a seventh from 768 to 769 tokens: a new tile of 128 rows, and a new wave."""
    iterations = model("deepseek-v3", Partition(tp=8, ep=8), FP8, has_clock=False)
    interpolated = iterations.price([Batch.decode([50] * tokens)]).phase_ps[PHASES.index(Phase.DENSE)]
    own = iterations._parts([(PartKind.TOKENS, tokens, 0)], 0)[0]
    assert interpolated == pytest.approx(own.phase_ps[PHASES.index(Phase.DENSE)], rel=2e-3)


def test_latents_of_more_tokens_take_more_time():
    """Expansions of 700 to 760 past tokens: none costs less than one of fewer tokens, but where the priced counts
    themselves fall by 1.7 µs (after 704, which was measured)."""
    iterations = model("deepseek-v3", Partition(tp=8, ep=8), FP8, has_clock=False)
    attention = PHASES.index(Phase.ATTENTION)
    times = [iterations.price([Batch.prefill([64], [past])]).phase_ps[attention] for past in range(700, 760)]
    steps = np.diff(times)
    assert (steps >= -1.7e6).all()
    assert np.count_nonzero(steps < 0) <= 1
    assert len(set(times)) == len(times)


@pytest.mark.parametrize("estimator", ["roofline", "interpolation"])
def test_every_estimator_is_composed_alike(estimator):
    """Four equal ranks take what any of them takes, and a run equals its steps."""
    iterations = model("deepseek-v3", Partition(dp=4, ep=4), FP8, estimator=estimator)
    assert (iterations.compiled() is None) == (estimator == "roofline")
    kv = np.array([200, 5000, 777])
    run = iterations.price_run([Batch.decode(kv)] * 4, 3)[1].tolist()
    assert run == [iterations.price([Batch.decode(kv + step)] * 4).compute_ps for step in range(3)]
    mixed = iterations.price([Batch.prefill([300])] * 4)
    assert sum(mixed.phase_ps) + mixed.host_ps == mixed.compute_ps


def test_runs_of_prefills_are_refused():
    with pytest.raises(InputError, match="found prefills, expected decodes only"):
        MODELS["qwen3-8b"].price_run([Batch.prefill([10])], 5)
