"""What estimators are made of: surfaces, kriging, tiles of DeepGEMM, schedules of FlashMLA."""

import numpy as np
import pytest

from aicb.kernels.fitting.kriging import Kriging, Scales
from aicb.kernels.fitting.surface import ReferenceModel, Surface
from aicb.kernels.reference.deepgemm_tiles import choose_tiles
from aicb.kernels.reference.mla_schedule import schedule


def test_a_surface_keeps_points_bridges_them_and_flags_far_ones():
    """Twice the reference was measured at sites 8 and 32: everything near takes twice the reference."""
    reference = ReferenceModel(
        "test (site)", 1, lambda shapes: shapes.prod(axis=1), np.log2, Scales((2.0, 2.0), (1.0, 1.0), 0.0, 0.01)
    )
    surface = Surface(reference, np.array([[8.0, 1.0], [8.0, 4.0], [32.0, 1.0]]), np.array([16.0, 64.0, 64.0]))
    assert surface.price(8.0, 1.0).source == "measured test (site)"
    assert surface.price(8.0, 2.0).time_us == pytest.approx(32.0)
    assert surface.price(8.0, 2.0).source.startswith("interpolated")
    assert surface.price(16.0, 1.0).time_us == pytest.approx(32.0)
    assert surface.price(16.0, 1.0).source.startswith("borrowed")
    assert not surface.price(8.0, 16.0).is_estimate
    assert surface.price(8.0, 17.0).is_estimate
    assert surface.price(1024.0, 1.0).is_estimate
    shapes = np.array([[8.0, 2.0], [8.0, 4.0], [8.0, 17.0], [1024.0, 1.0]])
    assert surface.times(shapes).tolist() == [surface.price(*shape).time_us for shape in shapes.tolist()]
    assert surface.are_estimates(shapes).tolist() == [False, False, True, True]


def test_errors_grow_beyond_the_measured_range_of_any_column_and_no_further():
    """Sites 8 to 32, axis 1 to 16: what kriging says up to half an octave beyond, 1.55 times as much from 1.5 on."""
    reference = ReferenceModel(
        "test (site)", 1, lambda shapes: shapes.prod(axis=1), np.log2, Scales((2.0, 2.0), (1.0, 1.0), 0.0, 0.01)
    )
    shapes = np.array([[site, axis] for site in (8.0, 16.0, 32.0) for axis in (1.0, 4.0, 16.0)])
    surface = Surface(reference, shapes, shapes.prod(axis=1) * (1.0 + 0.1 * (shapes[:, 1] - 4.0) / 12.0))

    def factor(site, axis):
        kriged = surface._model_of(np.array([site, axis])).error(np.log2([[site, axis]]))[0]
        assert surface.errors(np.array([[site, axis]]))[0] == pytest.approx(surface.price(site, axis).error)
        return surface.price(site, axis).error / kriged

    assert [factor(16.0, axis) for axis in (8.0, 16.0 * 2**0.5)] == pytest.approx([1.0] * 2)
    assert [factor(*at) for at in ((16.0, 32.0), (64.0, 4.0), (4.0, 4.0), (16.0, 0.5))] == pytest.approx([1.275] * 4)
    assert [factor(16.0, 64.0), factor(1024.0, 4096.0)] == pytest.approx([1.55] * 2)


def test_kriging_returns_to_the_mean_and_doubts_itself_far_from_points():
    """Points of one residual each way: far away the mean, 0, with their spread as error."""
    points = np.array([[0.0], [1.0], [10.0], [11.0]])
    model = Kriging(points, np.array([0.1, 0.1, -0.1, -0.1]), Scales((2.0,), (1.0,), 0.0, 0.001))
    near, far = model.mean(np.array([[0.5]])), model.mean(np.array([[1000.0]]))
    assert near[0] == pytest.approx(0.1, abs=0.01)
    assert far[0] == pytest.approx(0.0, abs=1e-6)
    assert model.error(np.array([[1000.0]]))[0] > 3 * model.error(np.array([[0.5]]))[0]


def test_correlations_among_points_are_those_with_each_of_them_to_the_bit():
    points = np.random.default_rng(5).uniform(0, 9, (40, 3))
    for own_share in (0.0, 0.3):
        scales = Scales((1.5, 2.0, 1.0), (0.3, 0.4, 0.2), own_share, 0.1)
        correlation = Kriging(points, np.arange(40.0), scales)._correlation
        assert (correlation.among_points() == correlation.with_places(points)).all()


def test_leave_one_out_residuals_are_those_of_leaving_points_out():
    rng = np.random.default_rng(3)
    points, residuals = rng.uniform(0, 5, (30, 2)), rng.normal(0, 0.1, 30)
    scales = Scales((1.5, 2.0), (0.3, 0.3), 0.2, 0.05)
    residuals -= residuals.mean()
    model = Kriging(points, residuals, scales)
    correlation = model._correlation.with_places(points) + scales.noise * np.eye(30)
    rest = np.delete(np.arange(30), 7)
    weights = np.linalg.solve(correlation[np.ix_(rest, rest)], residuals[rest])
    assert model.left_out[7] == pytest.approx(residuals[7] - correlation[7, rest] @ weights, rel=1e-6)


def test_tiles_are_those_deepgemm_prints():
    """(4096, 7168) at m = 1024 fills one wave of 256 x 128 tiles; (2112, 7168) takes 120 of 128 x 144, which straddle
    scale blocks and are slow (31.3 µs measured, against 14.6 µs at m = 512)."""
    tiles = choose_tiles(
        np.array([1024.0, 1024.0, 64.0]),
        np.array([4096.0, 2112.0, 7168.0]),
        np.array([7168.0, 7168.0, 16384.0]),
        np.ones(3),
        sms=132,
        layout="dense",
    )
    assert tiles.block_m.tolist() == [256.0, 128.0, 64.0]
    assert tiles.block_n.tolist() == [128.0, 144.0, 64.0]
    assert tiles.blocks.tolist() == [128.0, 120.0, 112.0]
    assert tiles.waves.tolist() == [1.0, 1.0, 1.0]
    assert tiles.is_uneven.tolist() == [False, True, False]


def test_a_schedule_of_flash_mla_is_cut_by_payload():
    """Two requests of 16 blocks on 4 parts: ⌈2·21 / 4⌉ + 5 = 16, of which 5 are overhead: cuts after 11 blocks. Part 1
    takes 11, part 2 the other 5 (10 with overhead) and 1 of the next, part 3 its 11, part 4 the last 4. Parts 1 to 3
    cost 16; the one that starts two requests lasts longest."""
    assert schedule([16, 16], 4) == (6, 2, 3)
    assert schedule([1] * 4, 4) == (1, 1, 1)
