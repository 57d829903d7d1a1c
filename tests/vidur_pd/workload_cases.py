"""Ways to build and compare workloads, shared by the workload tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vidur_pd.config.workload import WorkloadFile
from vidur_pd.workload import BlockHashes, Workload, generator, load_workload

ROOT = Path(__file__).resolve().parents[2]
TRACES = next((at / "shared/data/traces" for at in ROOT.parents if (at / "shared/data/traces").is_dir()), ROOT)


def real_trace(name: str) -> Path:
    """A published trace, where a checkout has it beside it."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the published trace {name}, which is not part of the repository")
    return path


def load(config: dict[str, Any], *, seed: int = 0, base_dir: Path = ROOT) -> Workload:
    """The workload that a ``workload`` section describes."""
    section = WorkloadFile.model_validate({"workload": config}).workload
    return load_workload(section, base_dir=base_dir, rng=lambda name: generator(seed, name))


def synthetic(requests: int = 100, **fields: Any) -> dict[str, Any]:
    """A plain synthetic section, with some of its fields replaced."""
    section: dict[str, Any] = {
        "kind": "synthetic",
        "requests": requests,
        "arrivals": {"kind": "poisson", "qps": 4},
        "lengths": {"kind": "fixed", "prefill": 100, "decode": 50},
    }
    return section | fields


def workload(prefill: list[int], hashes: list[list[int]] | None = None, block_tokens: int = 512) -> Workload:
    """Requests one second apart, ten output tokens each."""
    n = len(prefill)
    blocks = None
    if hashes is not None:
        offsets = np.cumsum([0, *(len(ids) for ids in hashes)])
        blocks = BlockHashes(offsets, np.array([i for ids in hashes for i in ids], dtype=np.int64), block_tokens)
    return Workload(
        request_ids=tuple(f"r{i}" for i in range(n)),
        arrived_ps=np.arange(n) * 10**12,
        prefill_tokens=np.array(prefill),
        decode_tokens=np.full(n, 10),
        block_hashes=blocks,
    )


def contents(workload: Workload) -> tuple[Any, ...]:
    """Everything that makes two workloads the same requests."""
    hashes = workload.block_hashes
    return (
        workload.request_ids,
        workload.arrived_ps.tolist(),
        workload.prefill_tokens.tolist(),
        workload.decode_tokens.tolist(),
        None if hashes is None else (hashes.block_tokens, hashes.offsets.tolist(), hashes.ids.tolist()),
    )
