"""Small runs with tiers: one H200 with Qwen3-8B behind PCIe, and prompts that are served one after another, or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.integration.small_runs import NO_HOST, config, pool
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api
from vidur_pd.workload import BlockHashes, Workload

TOKEN_BYTES = 147_456
"""Of Qwen3-8B in bf16: 36 layers, 8 heads of 128, keys and values."""
PCIE_BPS = 504_000_000_000
SINGLE = {"kind": "single_switch", "pcie": {"rate": "504Gbps"}}
CPU = {"kind": "cpu", "capacity": "100GB"}
ID_TOKENS = 512


def prompts(rows: Sequence[tuple[float, int, Sequence[int]]], output_tokens: int = 4) -> Workload:
    """(arrival in s, tokens, ids of its blocks of 512 tokens) of each prompt."""
    ids = [list(of_prompt) for _, _, of_prompt in rows]
    return Workload(
        request_ids=tuple(f"r{number}" for number in range(len(rows))),
        arrived_ps=np.array([round(at_s * 1e12) for at_s, _, _ in rows], dtype=np.int64),
        prefill_tokens=np.array([tokens for _, tokens, _ in rows], dtype=np.int64),
        decode_tokens=np.full(len(rows), output_tokens),
        block_hashes=BlockHashes(
            np.cumsum([0, *map(len, ids)]), np.array([each for of_prompt in ids for each in of_prompt]), ID_TOKENS
        ),
    )


def run(
    workload: Workload,
    tiers: Sequence[dict[str, Any]] = (CPU,),
    *,
    blocks: int = 400,
    pools: list[dict[str, Any]] | None = None,
    **sections: Any,
) -> Result:
    """``blocks``: of 16 tokens in the prefix cache; without ``tiers`` there is no such section."""
    of_cache = sections.pop("cache", {})
    engine = {"num_kv_blocks": blocks + 1, "estimator": "roofline", "request_latency_ms": 0} | NO_HOST
    if tiers:
        sections["kv_cache"] = {"tiers": list(tiers), **of_cache}
    sections = {"topology": SINGLE, **sections, "engine": engine | sections.get("engine", {})}
    return api.simulate(config(pools or [pool("server", "mixed")], **sections), workload)
