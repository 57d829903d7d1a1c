"""``vidur-pd list``: every name that a configuration may have, with what it stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netsim.topologies.specs import SPECS
from tests.forked_commands import run_forked
from vidur_pd.commands.listing import Kind
from vidur_pd.config import ROUTING_POLICIES, SCHEDULING_POLICIES
from vidur_pd.config.file import load_config

FIELDS = {
    Kind.MODELS: "model",
    Kind.GPUS: "hardware",
    Kind.HOSTS: "engine.host",
    Kind.TOPOLOGIES: "cluster.topology.kind",
    Kind.FRAMEWORKS: "engine.framework",
    Kind.SCHEDULING: "engine.policy",
    Kind.ROUTING: "routing.policy",
    Kind.CONNECTORS: "kv_transfer.connector",
    Kind.MODES: "kv_transfer.mode",
    Kind.EVICTIONS: "kv_cache.tiers.0.eviction",
    Kind.PLANNERS: "planner.policy",
}
TREE = """
model: qwen3-8b
hardware: h200
workload: {kind: synthetic, requests: 1, arrivals: {kind: static}, lengths: {kind: fixed, prefill: 8, decode: 2}}
cluster:
  topology: {kind: rail_optimized, pcie: {rate: 504Gbps}}
  pools: [{name: p, role: prefill}, {name: d, role: decode}]
kv_cache: {tiers: [{kind: cpu, capacity: 1GB}]}
planner: {policy: load, startup: {engine_s: 20}, pools: {p: {}}}
"""


@pytest.fixture(scope="module")
def listed() -> dict[str, dict[str, str]]:
    printed = run_forked("vidur_pd", "list", "--json")
    assert printed.returncode == 0
    found: dict[str, dict[str, str]] = json.loads(printed.stdout)
    return found


def test_every_name_is_one_that_a_configuration_may_have(listed: dict[str, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(TREE)
    assert listed.keys() == FIELDS.keys()
    for kind, field in FIELDS.items():
        for name, text in listed[kind].items():
            chosen = "routing.decode_policy" if name == "network_aware" else field
            load_config(tmp_path / "c.yaml", [f"{chosen}={name}"])
            assert len(text) > 10, (kind, name)


def test_no_name_is_left_out(listed: dict[str, dict[str, str]]) -> None:
    assert list(listed["scheduling"]) == list(SCHEDULING_POLICIES)
    assert list(listed["routing"]) == list(ROUTING_POLICIES)
    assert listed["topologies"].keys() == SPECS.keys() - {"file"}


@pytest.mark.parametrize("kind", [None, *Kind])
def test_lines_fit_a_terminal_of_80_columns(kind: Kind | None, listed: dict[str, dict[str, str]]) -> None:
    printed = run_forked("vidur_pd", "list", *([] if kind is None else [kind])).stdout
    assert max(map(len, printed.splitlines())) <= 80
    for each in Kind if kind is None else [kind]:
        assert f"{each} ({FIELDS[each]}: a name, or " in printed
        assert all(name in printed for name in listed[each])


def test_a_model_is_listed_with_the_figures_of_the_page_of_models(listed: dict[str, dict[str, str]]) -> None:
    """8,030,261,248 parameters, 7,504,924,672 active; 131,072 bytes per token."""
    text = "8.03 billion parameters, 7.5 active; 32 layers, 128 KiB of KV per token in bf16"
    assert listed["models"]["llama-3.1-8b"] == text


def test_a_kind_that_there_is_none_of_is_refused_by_the_kinds() -> None:
    refused = run_forked("vidur_pd", "list", "switches")
    assert refused.returncode == 2
    assert "'switches' is not one of 'models', 'gpus'" in refused.stderr
