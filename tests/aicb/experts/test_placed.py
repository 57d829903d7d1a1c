"""Experts in time: popularity that drifts, placements that stay or follow, and the weights that have to travel."""

from __future__ import annotations

import numpy as np
import pytest

from aicb.experts.drift import DriftingLayers, ExpertDrift
from aicb.experts.load import ExpertLoad, PowerLawLoad, RecordedLoad, UniformLoad, ZipfLoad, draw_experts
from aicb.experts.placed import PlacedExperts, moved_experts
from aicb.experts.placement import Placement
from aicb.experts.profile import LoadProfile
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.memory import expert_weights
from boundary.errors import InputError

MOE = (32, 4)
EP4 = Partition(dp=4, ep=4)
COPIES = Partition(dp=4, ep=4, redundant_experts=8)
HOUR = ExpertDrift(correlation_s=3600.0, step_s=360.0)
LOADS: list[ExpertLoad] = [
    ZipfLoad(1.0),
    PowerLawLoad(1.2),
    RecordedLoad((tuple(range(1, 33)), tuple(range(32, 0, -1)))),
]
TOKENS = 4096


def imbalance(experts: PlacedExperts | LoadProfile) -> float:
    """Rows of the slowest rank over the mean."""
    return experts(TOKENS).rows / (TOKENS * MOE[1] / 4)


@pytest.mark.parametrize("load", LOADS)
def test_popularities_stay_and_change_hands(load: ExpertLoad) -> None:
    layers = DriftingLayers(load, (*MOE, 4), 8, HOUR, 3)
    first = [draw_experts(load, (*MOE, 4), layer, 3).popularity for layer in range(8)]  # type: ignore[arg-type]
    assert [draw.popularity.tolist() for draw in layers.at(0)] == [each.tolist() for each in first]
    for step in (1, 30):
        for before, now in zip(first, layers.at(step), strict=True):
            assert sorted(now.popularity.tolist()) == pytest.approx(sorted(before.tolist()))
            assert now.popularity.tolist() != before.tolist()


def test_the_correlation_of_places_is_e_to_the_minus_time_over_its_own() -> None:
    """Spearman's correlation of normal values with correlation r is 6/π·asin(r/2); 40 layers of 64 experts."""
    layers = DriftingLayers(ZipfLoad(1.0), (64, 4, 4), 40, HOUR, 1)
    places = {step: np.argsort(np.argsort([draw.popularity for draw in layers.at(step)])) for step in (0, 1, 10)}
    for step in (1, 10):
        expected = 6 / np.pi * np.arcsin(np.exp(-step / 10) / 2)
        found = np.mean([np.corrcoef(*each)[0, 1] for each in zip(places[0], places[step], strict=True)])
        assert found == pytest.approx(expected, abs=0.06)


def test_steps_can_be_asked_for_in_any_order() -> None:
    one, other = (DriftingLayers(ZipfLoad(1.0), (*MOE, 4), 4, HOUR, 7) for _ in range(2))
    forward = {step: [draw.popularity.tolist() for draw in one.at(step)] for step in range(12)}
    for step in (11, 3, 7, 0, 11):
        assert [draw.popularity.tolist() for draw in other.at(step)] == forward[step]
    moved = DriftingLayers(ZipfLoad(1.0), (*MOE, 4), 4, HOUR, 8).at(5)
    assert [draw.popularity.tolist() for draw in moved] != forward[5]


def test_a_step_before_all_that_are_kept_can_be_asked_for() -> None:
    """An instance that began an iteration long ago, after others have gone on for five steps."""
    layers, fresh = (DriftingLayers(ZipfLoad(1.0), (*MOE, 4), 2, HOUR, 0) for _ in range(2))
    for step in range(3, 8):
        layers.at(step)
    late, expected = layers.at(1), fresh.at(1)
    assert [draw.popularity.tolist() for draw in late] == [draw.popularity.tolist() for draw in expected]


@pytest.mark.parametrize("partition", [EP4, COPIES])
@pytest.mark.parametrize("load", LOADS)
def test_at_the_beginning_nothing_is_different(load: ExpertLoad, partition: Partition) -> None:
    placed, plain = (PlacedExperts(load, MOE, partition, drift=HOUR), LoadProfile(load, MOE, partition))
    for tokens in (1, 7, 100, 3000):
        assert placed(tokens) == plain(tokens)


def test_imbalance_grows_to_that_of_the_marginal_and_falls_when_experts_are_placed_anew() -> None:
    """Copies placed for a load that is gone are no better than any: 40 slots on 4 ranks, of which 8 are copies of
    experts that once were popular. 10 steps are one correlation time."""
    placed = PlacedExperts(ZipfLoad(1.0), MOE, COPIES, drift=HOUR, window_steps=10)
    at_first = imbalance(placed)
    found = {}
    for step in (1, 10, 60):
        assert placed.move_to(step)
        found[step] = imbalance(placed)
    assert at_first < found[1] < found[10] < found[60]
    gone = PlacedExperts(ZipfLoad(1.0), MOE, COPIES, drift=HOUR)
    gone.move_to(200)
    assert found[60] == pytest.approx(imbalance(gone), rel=0.05)
    placed.count(TOKENS)
    placed.place(placed.balanced())
    assert imbalance(placed) == pytest.approx(at_first, rel=0.03)
    placed.move_to(61)
    assert imbalance(placed) > at_first


def test_without_copies_drift_leaves_the_imbalance_as_it_is_until_experts_follow() -> None:
    placed = PlacedExperts(ZipfLoad(1.0), MOE, EP4, drift=HOUR)
    at_first = imbalance(placed)
    placed.move_to(60)
    assert imbalance(placed) == pytest.approx(at_first, rel=0.1)
    placed.count(TOKENS)
    placed.place(placed.balanced())
    assert imbalance(placed) - 1 < (at_first - 1) / 4


def test_a_balancer_places_for_what_its_window_has() -> None:
    """One iteration ago another load: the window of two steps has both, that of one only the last."""
    short, long, now = (PlacedExperts(ZipfLoad(1.0), MOE, EP4, drift=HOUR, window_steps=n) for n in (1, 2, 1))
    for placed in (short, long):
        placed.count(TOKENS)
    for placed in (short, long, now):
        placed.move_to(60)
        placed.count(TOKENS)
    expected = [each.expert_of_slot.tolist() for each in now.balanced()]
    assert [each.expert_of_slot.tolist() for each in short.balanced()] == expected
    assert [each.expert_of_slot.tolist() for each in long.balanced()] != expected


def placement(slots: list[list[int]]) -> Placement:
    of_slot = np.array(slots)
    return Placement(of_slot, np.zeros_like(of_slot), np.bincount(of_slot.ravel()))


@pytest.mark.parametrize(
    ("old", "new", "moves"),
    [
        ([[0, 1], [2, 3]], [[1, 0], [3, 2]], []),  # within a GPU
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [(0, 1), (1, 0)]),
        ([[0, 1], [2, 2]], [[0, 0], [1, 2]], [(0, 1)]),  # both copies on the rank that has it
        ([[0, 1], [2, 0]], [[0, 2], [1, 1]], [(0, 1), (1, 0)]),  # both slots of rank 1 from one message
        ([[0], [0], [1], [2], [1]], [[1], [2], [0], [0], [0]], [(0, 2), (1, 3), (0, 4), (2, 0), (3, 1)]),
    ],
)  # fmt: skip
def test_weights_travel_to_ranks_that_lack_them(
    old: list[list[int]], new: list[list[int]], moves: list[tuple[int, int]]
) -> None:
    """The last: two ranks hold expert 0, three want it: one each, and the first sends to the third."""
    assert moved_experts(placement(old), placement(new)) == moves


@pytest.mark.parametrize(
    ("model", "partition", "precision", "expected"),
    [
        ("qwen3-30b-a3b", Partition(dp=4, ep=4), Precision(), (48, 3 * 2048 * 768 * 2)),
        ("qwen3-30b-a3b", Partition(dp=4, ep=4, redundant_experts=8), Precision(), (48, 3 * 2048 * 768 * 2)),
        (
            "deepseek-v3",
            Partition(dp=16, ep=16),
            Precision(weights="fp8"),
            (58, 3 * 7168 * 2048 + 4 * 3 * (7168 // 128) * (2048 // 128)),
        ),
    ],
)
def test_an_expert_has_three_matrices_in_each_layer(
    model: str, partition: Partition, precision: Precision, expected: tuple[int, int]
) -> None:
    assert expert_weights(load_model(model), partition, precision) == expected


def test_layers_are_those_of_the_stage() -> None:
    halves = [
        expert_weights(load_model("deepseek-v3"), Partition(tp=8, ep=8, pp=2), Precision("fp8"), n) for n in (0, 1)
    ]
    assert [layers for layers, _ in halves] == [28, 30]  # 31 and 30 layers, of which the first 3 are dense


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, 0.0), (1.0, float("nan"))])
def test_times_of_a_drift_are_positive(times: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"ExpertDrift\.(correlation|step)_s: found .*, expected above 0"):
        ExpertDrift(*times)


def test_uniform_experts_are_equally_popular_for_ever() -> None:
    placed = PlacedExperts(UniformLoad(), MOE, EP4, drift=HOUR)
    first = placed(TOKENS)
    placed.move_to(30)
    assert placed(TOKENS) == first
