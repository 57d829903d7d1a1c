"""When an iteration runs as two batches: rules of vLLM and SGLang, on both sides of each limit, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Batch
from aicb.iteration.graph_sizes import GraphSizes, capture_sizes
from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.execution.iteration.passes import Halves

VLLM = Halves(decode_tokens_min=32, prefill_tokens_min=512)
SGLANG = Halves(decode_tokens_min=2, prefill_tokens_min=1, cut="own")
IDLE = Batch.decode(np.array([], dtype=np.int64))
AS_THEY_ARE = GraphSizes((), ())
CAPTURED = GraphSizes(tuple(capture_sizes(256)), tuple(capture_sizes(256)))


def decodes(requests: int) -> Batch:
    return Batch.decode(np.full(requests, 100))


def prefill(tokens: int) -> Batch:
    return Batch.prefill([tokens])


def beside_decodes(tokens: int, requests: int) -> Batch:
    new = np.array([1] * requests + [tokens])
    return Batch(new, np.array([100] * requests + [tokens]), requests + 1)


@pytest.mark.parametrize(
    ("ranks", "padded", "halves"),
    [
        ([decodes(32), decodes(32)], AS_THEY_ARE, [16, 16]),
        ([decodes(32), decodes(31)], AS_THEY_ARE, None),
        ([prefill(512), prefill(512)], AS_THEY_ARE, [256, 256]),
        ([prefill(512), prefill(511)], AS_THEY_ARE, None),
        ([beside_decodes(480, 32), prefill(600)], AS_THEY_ARE, [256, 300]),  # 512 tokens with the prefill
        ([beside_decodes(479, 32), prefill(600)], AS_THEY_ARE, None),
        ([decodes(32), prefill(600)], AS_THEY_ARE, None),  # enough on each, but 300 leaves no decode
        ([decodes(41), decodes(80)], AS_THEY_ARE, [20, 40]),
        ([decodes(40), decodes(80)], AS_THEY_ARE, None),
        ([decodes(41), decodes(81)], AS_THEY_ARE, [20, 40]),
        ([decodes(41), decodes(81)], CAPTURED, None),  # 81 are padded to 88
        ([decodes(45), decodes(81)], CAPTURED, [22, 40]),
        ([decodes(400), IDLE], AS_THEY_ARE, None),
    ],
)
def test_all_ranks_halve_their_batches_or_none(
    ranks: list[Batch], padded: GraphSizes, halves: list[int] | None
) -> None:
    found = VLLM.of(ranks, padded)
    assert (found and [batch.tokens for batch in found[1]]) == halves
    if found is not None:
        assert [a.tokens + b.tokens for a, b in zip(*found, strict=True)] == [batch.tokens for batch in ranks]


@pytest.mark.parametrize(
    ("ranks", "second"),
    [
        ([prefill(8000), prefill(10)], [4000, 5]),
        ([prefill(8000), IDLE], [4000, 0]),
        ([decodes(80), decodes(3)], [40, 1]),
        ([prefill(600), beside_decodes(480, 32)], [300, 256]),
        ([prefill(600), decodes(600)], None),
        ([decodes(3), IDLE], [1, 0]),
        ([decodes(80), decodes(1)], None),  # two tokens asked for
    ],
)
def test_ranks_that_agree_halve_their_own_batches(ranks: list[Batch], second: list[int] | None) -> None:
    found = SGLANG.of(ranks, AS_THEY_ARE)
    assert (found and [batch.tokens for batch in found[1]]) == second


MOE = {"model": "qwen3-30b-a3b", "topology": {"kind": "single_switch", "gpus_per_node": 2}}
POOL = pool("m", "mixed", dp=2, ep=2)


def overlap_of(own: dict[str, int | bool], of_pool: dict[str, int | bool] | None = None) -> tuple[int, int]:
    tree = config([{**POOL, "engine": {"overlap": of_pool}}], engine={"overlap": own}, **MOE)
    found = tree.engine_of(tree.cluster.pools[0]).overlap
    return found.decode_tokens_min, found.prefill_tokens_min


def test_thresholds_are_the_engines_unless_they_are_stated() -> None:
    assert overlap_of({}) == overlap_of({"two_batch": True}) == (32, 512)
    assert overlap_of({"decode_tokens_min": 8}) == (8, 512)
    assert overlap_of({"decode_tokens_min": 8}, {"two_batch": True, "prefill_tokens_min": 9}) == (32, 9)


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises((InputError, ValueError), match=r"engine\.overlap\.decode_tokens_min"):
        config([POOL], engine={"overlap": {"decode_tokens_min": -1}}, **MOE)


def test_below_the_threshold_an_iteration_runs_as_a_whole() -> None:
    """Four requests of 300 tokens and 9 decodes: two per rank, and at most 600 prompt tokens."""

    def ends(**overlap: int | bool) -> list[int | None]:
        engine = {"overlap": overlap, "expert_dispatch": "deepep"}
        result = simulate(config([POOL], engine=engine, **MOE), [(0, 300, 10)] * 4)
        return [request.completed_ps for request in result.requests]

    whole = ends()
    assert ends(two_batch=True, decode_tokens_min=3, prefill_tokens_min=601) == whole
    assert ends(two_batch=True, decode_tokens_min=2, prefill_tokens_min=601) != whole
    assert ends(two_batch=True, decode_tokens_min=3, prefill_tokens_min=600) != whole


def test_drafts_count_as_tokens_of_a_batch() -> None:
    """Sixteen requests that verify a draft each are 32 tokens, of which a rank needs as many to be halved."""
    ranks = [decodes(16), decodes(16)]
    assert VLLM.of(ranks, AS_THEY_ARE) is None
    found = VLLM.of(ranks, AS_THEY_ARE, queries=2)
    assert found is not None
    assert [half.tokens for half in found[0] + found[1]] == [8] * 4


def test_batches_that_verify_drafts_are_halved_too() -> None:
    """Decodes of 64 requests per rank: two batches change their time, with drafts as without."""

    def seconds(drafts: int, *, two_batch: bool) -> float:
        speculative = {"drafts": drafts, "acceptance": 1.0, "method": "eagle"} if drafts else None
        engine = {
            "overlap": {"two_batch": two_batch, "prefill_tokens_min": 10**6},
            "expert_dispatch": "deepep",
            "speculative": speculative,
        }
        result = simulate(config([POOL], engine=engine, **MOE), [(0, 40, 10)] * 128)
        return max(request.completed_ps or 0 for request in result.requests) / 1e12

    for drafts in (0, 1):
        assert seconds(drafts, two_batch=True) != seconds(drafts, two_batch=False)
