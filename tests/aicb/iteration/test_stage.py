"""Iterations priced in C++: what an event loop gets, in any order of asking, and what eager counts cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb import _core
from aicb._core import OperatorGroup
from aicb.estimators.selection import select_estimator
from aicb.experts.profile import load_profile
from aicb.iteration.host import HostModel
from aicb.iteration.model import IterationModel
from aicb.iteration.pricing import PHASES, Pricing, price_operators
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch, RankBatches
from aicb.operators.lists import iteration_operators
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


def ranks_of(batches: list[Batch], iterations: IterationModel) -> list[Batch]:
    return batches[: iterations.partition.dp]


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b", "deepseek-v3.2"])
def test_a_captured_iteration_takes_as_long_as_its_operators_one_by_one(name):
    """At a fixed clock and without host: four decodes fill a captured size, so that nothing is padded."""
    silent = HostModel(step_us=0.0, gap_us=0.0)
    iterations = model(name, Partition(tp=2, ep=1), FP8, has_clock=False, host=silent)
    batch = Batch.decode([17, 900, 4000, 12345])
    pricing = Pricing(select_estimator("auto", iterations.gpu, FP8), iterations.gpu, FP8)
    operators = iteration_operators(iterations.model, iterations.partition, FP8, batch, load=slowest_rank(iterations))
    alone_ps = price_operators(operators, pricing).total_ps
    assert iterations.price_device([batch]).compute_ps == pytest.approx(alone_ps, rel=1e-9)


def slowest_rank(iterations: IterationModel):
    """Experts of the slowest rank under the load that iterations are priced with."""
    moe_load = iterations.expert_load
    return lambda moe, tokens: load_profile(moe_load, (moe.experts, moe.experts_per_token), iterations.partition)(
        tokens
    )


@pytest.mark.parametrize("name", MODELS)
def test_an_event_loop_gets_the_cost_that_python_gets(name):
    """Numbers of names and collectives resolve to what ``price_device`` returns; sparse attention is left to Python."""
    iterations = MODELS[name]
    pricing, ranks = iterations.core_pricing(), RankBatches.of(ranks_of(CAPTURED, iterations))
    if name.startswith("deepseek-v3.2"):
        assert pricing is None
        return
    assert isinstance(pricing, _core.IterationPricing)
    requests, rows = np.array(ranks.requests), np.array(ranks.logit_rows)
    expected = iterations.price_device(ranks)
    found, run_ps = pricing.price(ranks.new_tokens, ranks.kv_tokens, requests, rows)
    assert run_ps.tolist() == [found.compute_ps] == [expected.compute_ps]
    assert (found.host_ps, tuple(found.phase_ps)) == (expected.host_ps, expected.phase_ps)
    assert found.estimated_ps == expected.estimated_ps
    assert iterations.communications_of(found.communications) == expected.communications
    assert iterations.estimated_of(found.estimated) == expected.estimated_operators


def test_what_is_missing_is_named_until_it_is_supplied():
    iterations = model("deepseek-v3", Partition(tp=8, ep=8), FP8)
    pricing, asked = iterations.core_pricing(), 0
    while (found := pricing.price(np.array([700, 1]), np.array([900, 40]), np.array([2]), np.array([1]))) is None:
        iterations.price_missing()
        asked += 1
    assert asked == 1
    batch = Batch(np.array([700, 1]), np.array([900, 40]), 1)
    assert iterations.price_device([batch]).compute_ps == found[0].compute_ps


def test_decodes_without_new_tokens_are_decodes_of_one():
    pricing, kv = MODELS["qwen3-8b"].core_pricing(), np.array([300, 4000, 77])
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


@settings(max_examples=20)
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
    own = iterations._groups([(OperatorGroup.TOKENS, tokens, 0)], 0)[0]
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
    assert (iterations.core_pricing() is None) == (estimator == "roofline")
    kv = np.array([200, 5000, 777])
    run = iterations.price_run([Batch.decode(kv)] * 4, 3)[1].tolist()
    assert run == [iterations.price([Batch.decode(kv + step)] * 4).compute_ps for step in range(3)]
    mixed = iterations.price([Batch.prefill([300])] * 4)
    assert sum(mixed.phase_ps) + mixed.host_ps == mixed.compute_ps


def test_runs_of_prefills_are_refused():
    with pytest.raises(InputError, match="found prefills, expected decodes only"):
        MODELS["qwen3-8b"].price_run([Batch.prefill([10])], 5)


def test_batches_beside_a_full_budget_are_priced_in_few_calls(monkeypatch):
    """Shared experts depend on the tokens of the fullest rank and of all ranks: where the first come back, the second
    are priced in runs. Of 8,185 and 8,188 tokens the grid points are (8161, 8192) each, so one has fewer of all."""
    iterations = model("deepseek-v3", Partition(dp=4, ep=4), FP8)
    calls = []
    price = iterations._groups
    monkeypatch.setattr(iterations, "_groups", lambda keys, stage: calls.append(keys) or price(keys, stage))
    full, idle = Batch.prefill([8192]), [Batch.empty()] * 2
    batches = [[full, Batch.prefill([tokens]), *idle] for tokens in range(1000, 8000, 100)]
    for ranks in [*batches, [Batch.prefill([8185]), Batch.empty(), *idle]]:
        iterations.price(ranks)
    assert len(calls) < len(batches) / 3
