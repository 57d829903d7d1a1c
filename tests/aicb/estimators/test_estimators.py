"""Estimators: reach, physics, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.estimators.price_many import price_many
from aicb.estimators.roofline import RooflineEstimator, roofline_us
from aicb.estimators.selection import make_estimator
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gated_delta import GatedDeltaDecode, GatedDeltaPrefill
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import Precision
from boundary.errors import InputError
from tests.aicb.estimated_works import COLD, ENGINE, GRAPH, H200, decode, mla, prefill


def test_a_far_shape_is_flagged_and_names_the_nearest_measured_one():
    near = GRAPH.price(Gemm(64, 4096, 5120, "fp8"))
    far = GRAPH.price(Gemm(64, 64, 64, "fp8"))
    assert not near.is_estimate
    assert near.source.startswith("borrowed")
    assert far.is_estimate
    assert "octaves away" in far.source


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (Gemm(16384 * 4, 4096, 4096, "fp8"), Gemm(16384 * 4 + 1, 4096, 4096, "fp8")),
        (prefill([16384 * 2]), prefill([3])),
        (decode([1024] * 1000), decode([1024] * 1100)),
        (decode([4096] * 8), decode([4096] * 8, 8, 8, 8192)),
        (mla([4096] * 1000), mla([4096] * 1100)),
        (mla([4096] * 8, 32), mla([4096] * 8, 512)),
        (GatedDeltaPrefill(np.array([4096]), 16, 32, 128), GatedDeltaPrefill(np.array([10]), 16, 32, 128)),
        (
            GroupedGemm(1024.0, 32, 32.0, 4096, 7168, "fp8", "masked"),
            GroupedGemm(1024.0, 32, 32.0, 4096, 7168, "bf16", "masked"),
        ),
    ],
    ids=lambda work: type(work).__name__,
)
def test_estimates_are_flagged_beyond_the_reach_of_the_table(inside, outside):
    assert not ENGINE.price(inside).is_estimate
    assert ENGINE.price(outside).is_estimate


def test_an_fp8_cache_is_cheaper_to_read_but_not_by_half():
    """FA3 transposes fp8 values inside the kernel: a quarter less time for half the bytes."""
    fp8 = InterpolationEstimator(H200, Precision(kv="fp8"))
    full, half = ENGINE.price(decode([8192] * 64)), fp8.price(decode([8192] * 64))
    assert not half.is_estimate
    assert not full.is_estimate
    assert 0.5 * full.time_us < half.time_us < 0.9 * full.time_us


@pytest.mark.parametrize("make", [prefill, decode, mla], ids=["prefill", "decode", "mla"])
def test_permuting_requests_changes_nothing(make):
    lengths = [700, 4096, 31, 9000, 512, 2048]
    times = {
        ENGINE.price(make(order)).time_us for order in itertools.islice(itertools.permutations(lengths), 0, 720, 97)
    }
    assert max(times) - min(times) <= 1e-9 * max(times)


def test_splitting_a_prompt_in_two_changes_the_prefill_time():
    """Two prompts of 4 k have half the (query, key) pairs of one of 8 k."""
    whole, halves = ENGINE.price(prefill([8192])).time_us, ENGINE.price(prefill([4096, 4096])).time_us
    assert 0.45 * whole < halves < 0.65 * whole


@pytest.mark.parametrize("make", [prefill, decode, mla], ids=["prefill", "decode", "mla"])
@pytest.mark.parametrize("length", [1024, 4096])
def test_n_equal_sequences_cost_at_most_n_times_one(make, length):
    """Ten times the work is at most ten times one sequence, and never a hundred times."""
    one, ten = ENGINE.price(make([length])).time_us, ENGINE.price(make([length] * 10)).time_us
    assert one < ten <= 10 * one


def test_mla_prefill_grows_with_the_square_of_the_prompt():
    """From 4 k to 16 k more than 12 x (measured 16.2 x)."""
    short, long = (ENGINE.price(prefill([length], None, 128, 128, 192, 128)).time_us for length in (4096, 16384))
    assert 12 < long / short < 18


def test_prefill_costs_far_more_than_one_decode_at_the_same_length():
    assert ENGINE.price(prefill([4096])).time_us > 10 * ENGINE.price(decode([4096])).time_us


def test_a_chunk_costs_more_the_longer_its_past():
    times = [ENGINE.price(prefill([2048], [2048 + past])).time_us for past in (0, 1000, 6144, 20000, 60000)]
    assert times == sorted(times)
    assert times[-1] > 5 * times[0]


def test_decode_bytes_are_the_sum_of_lengths_not_batch_times_sum():
    """Twice the sequences are twice the bytes, not four times; 64 query heads are read and their results written."""
    one = decode([4096] * 16).cost(Precision()).moved_bytes
    two = decode([4096] * 32).cost(Precision()).moved_bytes
    assert one == 16 * 4096 * 2 * 4 * 128 * 2 + 16 * 2 * 64 * 128 * 2
    assert two == 2 * one


def test_unequal_lengths_cost_more_in_flash_mla_until_it_is_little_of_the_time():
    """A share of 0.178, at most 40 µs: uniform lengths up to 8 k at batches of 32 and 512."""
    for batch, low, high in ((32, 1.15, 1.19), (512, 1.0, 1.08)):
        uniform = np.linspace(200, 8000, batch).astype(int)
        equal = np.full(batch, round(uniform.mean()))
        ratio = COLD.price(mla(uniform)).time_us / COLD.price(mla(equal)).time_us
        assert low < ratio < high


def test_recurrent_decode_grows_linearly_with_the_batch():
    times = [GRAPH.price(GatedDeltaDecode(batch, 16, 32, 128)).time_us for batch in (32, 64, 128)]
    assert times[1] / times[0] == pytest.approx(2, rel=0.1)
    assert times[2] / times[1] == pytest.approx(2, rel=0.1)


def test_decode_times_of_many_steps_equal_single_steps_bit_for_bit():
    lengths = np.random.default_rng(7).integers(1, 9000, 100)
    for work in (mla(lengths), decode(lengths)):
        times = ENGINE.decode_times(work, len(lengths))
        steps, _ = times(lengths, 300)
        assert [float(times(lengths + step, 1)[0][0]) for step in range(300)] == steps.tolist()


def test_every_estimate_states_its_error():
    """More between measurements and where sites are borrowed than where measured."""
    measured, between, borrowed = (
        GRAPH.price(Gemm(m, n, 7168, "fp8")) for m, n in ((64, 4096), (600, 4096), (600, 9999))
    )
    assert 0.01 <= measured.error < between.error < 0.3
    assert measured.error < borrowed.error < 0.3
    for work in (decode([1000] * 4), mla([1000] * 4), prefill([700]), Elementwise("add", 1, 1, 9)):
        assert 0.0 < ENGINE.price(work).error < 0.5


@pytest.mark.parametrize("timing", ["engine", "graph", "cold"])
def test_many_operators_cost_what_each_costs(timing):
    estimator = make_estimator("interpolation", H200, Precision(), timing)
    rng = np.random.default_rng(11)
    m, kv = rng.integers(1, 9000, 60), rng.integers(60, 20000, 60)
    n = rng.choice([2112, 4096, 5120], 60)
    many = price_many(estimator, "gemm_fp8", {"n": n, "k": 7168, "m": m})
    single = [estimator.price(Gemm(int(a), int(b), 7168, "fp8")) for a, b in zip(m, n, strict=True)]
    assert many.time_us.tolist() == pytest.approx([found.time_us for found in single], rel=1e-9)
    assert many.is_estimate.tolist() == [found.is_estimate for found in single]
    many = price_many(
        estimator,
        "prefill_attention",
        {"heads": 64, "kv_heads": 4, "d_qk": 128, "d_v": 128, "q_len": np.minimum(m, kv), "kv_len": kv},
    )
    single = [estimator.price(prefill([min(a, b)], [b])) for a, b in zip(m.tolist(), kv.tolist(), strict=True)]
    assert many.time_us.tolist() == pytest.approx([found.time_us for found in single], rel=1e-9)
    assert many.is_estimate.tolist() == [found.is_estimate for found in single]
    columns = {"heads": 64, "kv_heads": 4, "d_qk": 128, "batch": m % 5 + 1, "kv_len": kv}
    many = price_many(estimator, "decode_attention", columns)
    single = [estimator.price(decode([b] * (a % 5 + 1))) for a, b in zip(m.tolist(), kv.tolist(), strict=True)]
    assert many.time_us.tolist() == pytest.approx([found.time_us for found in single], rel=1e-12)
    assert many.is_estimate.tolist() == [found.is_estimate for found in single]


@pytest.mark.parametrize("make", [decode, mla])
@pytest.mark.parametrize("requests", [1, 7, 256])
def test_equal_requests_take_the_same_time_to_the_bit_whether_they_are_listed_or_counted(make, requests):
    """Around the ends of blocks, within what was measured and beyond it."""
    lengths = np.array([1, 2, 63, 64, 65, 127, 128, 129, 5000, 40_000, 300_000_000])
    times = ENGINE.decode_times(make([1] * requests), requests).times
    listed, are_estimates = times.over(np.repeat(lengths[:, None], requests, axis=1), 1)
    counted, are_counted = times.of_equal(lengths, requests)
    assert counted.tolist() == listed[:, 0].tolist()
    assert are_counted.tolist() == are_estimates.tolist()
    assert {False, True} <= set(are_counted.tolist())


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("gemm", {}, "kind: found 'gemm', expected one of gemm_bf16"),
        ("gemm_fp8", {"n": 1, "k": 1}, "columns: found no m, expected n, k, m"),
        ("gemm_fp8", {"n": 1, "k": 1, "m": [3, 0]}, "columns: found 0, expected values of at least 1"),
        (
            "prefill_attention",
            {"heads": 1, "kv_heads": 1, "d_qk": 1, "d_v": 1, "kv_len": 3, "q_len": 4},
            "columns: found kv_len below q_len",
        ),
    ],
)
def test_bad_columns_are_named(kind, columns, message):
    with pytest.raises(InputError, match=message):
        price_many(GRAPH, kind, columns)


def test_a_forest_prices_near_its_measurements_and_repeats():
    """A measured shape within its own error, several times; steps and single calls agree; other works are priced."""
    pytest.importorskip("sklearn")
    forest, again = (make_estimator("forest", H200, Precision(), "graph") for _ in range(2))
    work = Gemm(64, 4096, 7168, "fp8")
    found = forest.price(work)
    assert found == again.price(work)
    assert found.time_us == pytest.approx(GRAPH.price(work).time_us, rel=3 * found.error)
    assert 0.01 < found.error < 0.5
    lengths = np.array([700, 4096, 31])
    for attention in (decode(lengths), mla(lengths)):
        steps, _ = forest.decode_times(attention, 3)(lengths, 80)
        assert steps[70] == forest.decode_times(attention, 3)(lengths + 70, 1)[0][0]
    assert forest.price(prefill([1000, 2000])).time_us > forest.price(prefill([2000])).time_us
    assert forest.price(Gemm(64, 64, 64, "fp8")).is_estimate
    assert forest.price(Elementwise("add", 4, 4, 64)).time_us == GRAPH.price(Elementwise("add", 4, 4, 64)).time_us


def test_the_roofline_estimator_is_linear_and_always_flagged():
    estimator = RooflineEstimator(get_gpu("b200"))
    small, large = estimator.price(Gemm(4096, 4096, 4096, "fp8")), estimator.price(Gemm(8192, 4096, 4096, "fp8"))
    assert small.is_estimate
    assert 1.5 < large.time_us / small.time_us < 2
    work = decode([1000, 3000])
    steps, is_estimate = estimator.decode_times(work, 2)(work.kv_tokens, 3)
    assert is_estimate
    assert steps[0] == pytest.approx(estimator.price(work).time_us)
    assert steps[2] == pytest.approx(estimator.price(decode([1002, 3002])).time_us)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Gemm(0, 128, 128, "fp8"), r"Gemm\.m: found 0, expected at least 1"),
        (GroupedGemm(8.0, 4, 5.0, 128, 128, "fp8", "masked"), r"GroupedGemm\.active_groups: found 5\.0"),
        (prefill([20], [10]), r"PrefillAttention\.kv_tokens"),
        (Elementwise("add", 1, 0, 8), r"Elementwise\.cols: found 0"),
    ],
)
def test_contradictory_shapes_are_refused(work, message):
    for estimator in (ENGINE, RooflineEstimator(H200)):
        with pytest.raises(InputError, match=message):
            estimator.price(work)


def test_an_unknown_estimator_or_gpu_is_refused():
    with pytest.raises(InputError, match="estimator: found 'guess'"):
        make_estimator("guess", H200, Precision())
    with pytest.raises(InputError, match="gpu: found 'h100'"):
        make_estimator("interpolation", get_gpu("h100"), Precision())


sizes = st.integers(1, 40000)
lengths = st.lists(st.integers(2, 70000), min_size=1, max_size=200)
works = st.one_of(
    st.builds(Gemm, st.integers(1, 70000), sizes, sizes, st.sampled_from(["bf16", "fp8"])),
    st.builds(BatchedGemm, st.integers(1, 128), st.integers(1, 8192), st.integers(16, 1024), st.integers(16, 1024)),
    st.integers(1, 300).flatmap(
        lambda groups: st.builds(
            GroupedGemm,
            st.floats(0.01, 70000),
            st.just(groups),
            st.floats(0.01, groups),
            st.integers(128, 8192),
            st.integers(128, 8192),
            st.sampled_from(["bf16", "fp8"]),
            st.sampled_from(["masked", "contiguous"]),
        )
    ),
    st.builds(prefill, lengths, st.none(), st.sampled_from([8, 32, 128]), st.just(8), st.sampled_from([128, 192])),
    st.builds(decode, lengths, st.sampled_from([8, 32, 128]), st.sampled_from([1, 8]), st.sampled_from([128, 256])),
    st.builds(mla, lengths, st.sampled_from([8, 16, 64, 128])),
    st.builds(GatedDeltaDecode, st.integers(1, 600), st.just(16), st.just(32), st.just(128)),
    st.builds(lambda new: GatedDeltaPrefill(np.array(new), 16, 32, 128), lengths),
    st.builds(Elementwise, st.sampled_from(["add", "rms_norm", "quant"]), sizes, st.integers(64, 8192), sizes),
)


@settings(max_examples=300)
@given(work=works)
def test_no_time_is_below_the_roofline(work):
    """Operands within L2 need not cross the memory bus of elementwise kernels."""
    bound = roofline_us(work.cost(Precision()), H200, is_resident=isinstance(work, Elementwise))
    found = ENGINE.price(work)
    assert np.isfinite(found.time_us)
    assert found.time_us > 0
    assert found.time_us >= bound * (1 - 1e-9)
    assert RooflineEstimator(H200).price(work).time_us > bound


@settings(max_examples=60)
@given(m=st.integers(64, 8192), site=st.sampled_from([(4096, 7168), (7168, 2048), (9216, 4096)]))
def test_four_times_the_rows_never_take_less_time(m, site):
    """Tiles make time non-monotone from point to point; over a factor of four work dominates."""
    n, k = site
    assert ENGINE.price(Gemm(4 * m, n, k, "fp8")).time_us > ENGINE.price(Gemm(m, n, k, "fp8")).time_us


@settings(max_examples=60)
@given(kv=st.lists(st.integers(2, 30000), min_size=1, max_size=64), more=st.integers(1, 5000))
def test_longer_caches_never_decode_faster_in_fa3_than_measurements_repeat(kv, more):
    longer, shorter = (ENGINE.price(decode(lengths)).time_us for lengths in ([length + more for length in kv], kv))
    assert longer >= 0.97 * shorter
