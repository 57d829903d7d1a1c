"""Prefix caching in whole runs: hits shorten prefills, and a large pool hits what a perfect cache would."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from tests.integration.small_runs import config, pool
from vidur_pd.config.workload import TraceWorkload
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import BlockHashes, Workload, generator, load_workload

TRACE = Path(__file__).resolve().parents[2].parent / "shared/data/traces/mooncake_conversation_trace.jsonl.gz"


def two_turns(second_turn_ms: int) -> Workload:
    """A prompt of four blocks of 512 tokens, and one that has two blocks more."""
    ids = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    return Workload(
        request_ids=("first", "second"),
        arrived_ps=np.array([0, second_turn_ms * 10**9]),
        prefill_tokens=np.array([2_048, 3_072]),
        decode_tokens=np.array([10, 10]),
        block_hashes=BlockHashes(np.array([0, 4, 10]), np.array(ids[0] + ids[1]), block_tokens=512),
    )


@pytest.mark.parametrize("is_disaggregated", [False, True])
def test_the_second_turn_computes_and_sends_only_what_is_new(is_disaggregated: bool) -> None:
    """2,048 of its 3,072 tokens are cached on both sides."""
    pools = [pool("p", "prefill"), pool("d", "decode")] if is_disaggregated else [pool("m", "mixed")]
    seconds = {}
    for caching in (False, True):
        result = simulate(config(pools, engine={"prefix_caching": caching}), two_turns(2_000))
        first, second = result.requests
        seconds[caching] = second.prefill_completed_ps - second.scheduled_ps
        cached = 2_048 if caching else 0
        assert (first.cached_tokens, second.cached_tokens) == (0, cached)
        if is_disaggregated:
            assert first.kv_bytes == 2_048 * 147_456
            assert second.kv_bytes == (3_072 - cached) * 147_456
    assert seconds[True] < 0.6 * seconds[False]


@pytest.mark.skipif(not TRACE.is_file(), reason="the Mooncake conversation trace is not beside the repository")
def test_a_large_pool_hits_nearly_what_a_perfect_cache_hits_on_the_mooncake_trace(tmp_path: Path) -> None:
    """A perfect cache knows every prompt that has arrived before; a real one those that have been scheduled. The pool
    needs 1.2 TB per GPU: an H200 with more memory than there is."""
    larger = (
        (files("aicb") / "data" / "gpus" / "h200.yaml")
        .read_text()
        .replace("hbm_bytes: 150754820096", "hbm_bytes: 2.0e+12")
    )
    (tmp_path / "gpu.yaml").write_text(larger)
    spec = TraceWorkload(kind="trace", path=TRACE, limit=400)
    workload = load_workload(spec, base_dir=TRACE.parent, rng=lambda name: generator(0, name))
    engine = {"prefix_caching": True, "num_kv_blocks": 1_000_000, "max_seqs": 256}
    pools = [pool("m", "mixed", tp=2, hardware=str(tmp_path))]
    result = simulate(config(pools, engine=engine), workload)
    accepted = [record for record in result.requests if record.completed_ps is not None]
    assert len(accepted) > 300
    hits = sum(request.cached_tokens for request in accepted)
    perfect, known, hashes = 0, set(), workload.block_hashes
    assert hashes is not None
    for request in accepted:
        chain: tuple[int, ...] = ()
        is_known = True
        for block in hashes.of(request.index).tolist():
            chain = (*chain, block)
            is_known = is_known and chain in known
            perfect += 512 * is_known
            known.add(chain)
    assert 0.97 * perfect < hits <= perfect
