"""Prefix hits on the Mooncake traces against Dynamo's offline replay, with the same blocks of KV.

Recorded with ai-dynamo-runtime 1.6.1, and replayed again where it is installed (``pip install ai-dynamo-runtime``). One
client at a time leaves nothing to the times of engines: hits are equal. Otherwise prompts that overlap see each other's
blocks, or not, as the times have it, which are other ones in Dynamo's mocker.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from vidur_pd.simulation.api import simulate

TRACES = Path(__file__).parents[3] / "shared/data/traces"
MODELS = Path(__file__).parents[2] / "aicb/data/models"
BLOCK_TOKENS, MAX_SEQS, MAX_BATCHED_TOKENS = 512, 256, 131_072
WITHIN = 0.01


class Replay(NamedTuple):
    """Requests in the order of a trace, routed in turn."""

    trace: str
    blocks: int
    """Of each instance."""
    instances: int
    clients: int | None
    """At a time; ``None``: as recorded."""


DYNAMO = {
    Replay("conversation", 5000, 1, 1): 0.11615611530610667,
    Replay("conversation", 12000, 1, 1): 0.23580232424693973,
    Replay("synthetic", 5000, 1, 1): 0.2880336489667034,
    Replay("conversation", 5000, 4, None): 0.12408043124878332,
    Replay("synthetic", 1500, 1, 8): 0.12092460142089596,
    Replay("synthetic", 5000, 4, None): 0.23709689026951844,
}
"""Share of the prompt tokens that were cached."""
DYNAMO_SCRIPT = """
import json, sys
from dynamo._core import run_mocker_trace_replay
trace, engine, options = json.loads(sys.argv[1])
print(run_mocker_trace_replay([trace], extra_engine_args=engine, **options).summary["prefix_cache_reused_ratio"])
"""


def trace_of(replay: Replay) -> Path:
    path = TRACES / f"mooncake_{replay.trace}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    return path


def configuration(replay: Replay, model: Path) -> dict[str, Any]:
    arrivals = {} if replay.clients is None else {"arrivals": {"kind": "closed", "clients": replay.clients}}
    return {
        "model": str(model),
        "hardware": "h200",
        "workload": {"kind": "trace", "path": str(trace_of(replay)), **arrivals},
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps", "nodes": replay.instances},
            "pools": [{"name": "server", "role": "mixed", "tp": 8, "instances": replay.instances}],
        },
        "engine": {
            "prefix_caching": True,
            "max_seqs": MAX_SEQS,
            "max_batched_tokens": MAX_BATCHED_TOKENS,
            "block_tokens": BLOCK_TOKENS,
            "num_kv_blocks": replay.blocks + 1,  # vLLM never uses the first
        },
        "routing": {"policy": "round_robin"},
        "network": {"coupling": "isolated"},
        "output": {"iterations": False, "links": False},
    }


@pytest.mark.parametrize("replay", DYNAMO, ids=lambda replay: "-".join(map(str, replay)))
def test_hits_are_those_of_dynamos_replay(replay: Replay, tmp_path: Path) -> None:
    """Llama 3.1 8B with a longer context, as prompts of the synthetic trace have up to 191,378 tokens."""
    model = yaml.safe_load((MODELS / "llama-3.1-8b.yaml").read_text())
    model["config"]["max_position_embeddings"] = 262_144
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(model))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(configuration(replay, tmp_path / "long.yaml")))
    table = simulate(tmp_path / "c.yaml").table
    found = table.cached_tokens.sum() / table.prompt_tokens.sum()
    assert found == pytest.approx(DYNAMO[replay], rel=1e-12 if replay.clients == 1 else WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("replay", DYNAMO, ids=lambda replay: "-".join(map(str, replay)))
def test_dynamo_hits_what_is_recorded(replay: Replay, tmp_path: Path) -> None:
    if find_spec("dynamo") is None:
        pytest.skip("needs Dynamo: pip install ai-dynamo-runtime")
    path = tmp_path / "trace.jsonl"
    with gzip.open(trace_of(replay)) as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    limits = {"max_num_seqs": MAX_SEQS, "max_num_batched_tokens": MAX_BATCHED_TOKENS}
    rank = {"num_gpu_blocks": replay.blocks, "block_size": BLOCK_TOKENS, **limits}
    engine = {"engine": rank, "num_gpu_blocks_is_explicit": True}
    options = {"num_workers": replay.instances, "replay_concurrency": replay.clients}
    words = [sys.executable, "-c", DYNAMO_SCRIPT, json.dumps([str(path), engine, options])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(DYNAMO[replay], rel=1e-9 if replay.clients == 1 else 0.002)
