"""Popularity of ranks: what the links to them carry more or less than the mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aicb import Batch, IterationModel, Partition, Precision, get_gpu, load_model
from aicb.experts.load import BalancedLoad, ExpertLoad, PowerLawLoad, RecordedLoad, UniformLoad, ZipfLoad
from aicb.experts.placement import place_balanced, place_in_order
from aicb.experts.popularity import rank_popularity
from aicb.experts.profile import LoadProfile

FOUR = Partition(dp=4, ep=4)


def test_ranks_with_popular_experts_get_their_pairs_and_more_tokens() -> None:
    """Four experts on two ranks, two per token: chosen with 0.9, 0.1, 0.5, 0.5. Loads are even; the first rank has
    −ln 0.1 − ln 0.9 = 2.408 against −2 ln 0.5 = 1.386, the second the even 1.386."""
    found = rank_popularity(np.array([0.9, 0.1, 0.5, 0.5]), place_in_order(4, 2))
    np.testing.assert_allclose(found, [(1.0, math.log(0.09) / math.log(0.25)), (1.0, 1.0)], atol=1e-4)


def test_replicas_share_what_their_expert_gets() -> None:
    """An expert of all tokens twice, two others: 0.5 of the tokens at each of its places."""
    placement = place_balanced(np.array([10.0, 5.0, 5.0]), 4, 2)
    found = rank_popularity(np.array([1.0, 0.5, 0.5]), placement)
    np.testing.assert_allclose(found, [(1.0, 1.0), (1.0, 1.0)])


@pytest.mark.parametrize("load", [BalancedLoad(), UniformLoad()])
def test_even_loads_have_none(load: ExpertLoad) -> None:
    assert LoadProfile(load, (16, 2), FOUR).popularity(100) is None


@pytest.mark.parametrize("load", [ZipfLoad(1.0), PowerLawLoad(1.2), RecordedLoad((tuple(range(1, 17)),))])
@pytest.mark.parametrize("tokens", [1, 70, 5000])
def test_loads_are_multiples_of_the_mean_and_the_slowest_ranks_is_typical(load: ExpertLoad, tokens: int) -> None:
    """The most popular rank has about the rows of the slowest of many layers, but for chance with few tokens."""
    profile = LoadProfile(load, (16, 2), FOUR)
    popularity = profile.popularity(tokens)
    assert popularity is not None
    loads = [load for load, _ in popularity]
    assert sum(loads) == pytest.approx(4.0, abs=1e-3)
    if tokens == 5000:
        assert max(loads) == pytest.approx(profile(tokens).rows / (5000 * 2 / 4), rel=0.08)
    assert profile.popularity(tokens) is popularity


def test_iterations_state_the_popularity_of_the_ranks_that_deepep_reaches() -> None:
    model, partition = load_model("qwen3-30b-a3b"), Partition(dp=4, ep=4)
    batches = [Batch.decode([100] * 8)] * 4
    for load in (UniformLoad(), ZipfLoad(1.0)):
        cost = IterationModel(model, partition, Precision(), get_gpu("h200"), expert_load=load).price(batches)
        dispatch = next(what for what, _ in cost.communications if what.op == "dispatch")
        assert dispatch.exchange is not None
        expected = LoadProfile(load, (128, 8), partition).popularity(32)
        assert dispatch.exchange.popularity == expected
        assert (expected is None) == isinstance(load, UniformLoad)
