"""Files that a configuration names."""

from __future__ import annotations

from pathlib import Path

import yaml

from vidur_pd.config.file import load_config
from vidur_pd.simulation.input_files import input_files


def test_every_file_that_a_configuration_names_is_known(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    for name in ("gpu.yaml", "kernels.csv", "more.parquet", "more.provenance.json", "notes.parquet"):
        (tmp_path / "gpu" / name).touch()
    trace = {"kind": "trace", "path": "t.csv"}
    tree = {
        "model": "./m.json",
        "hardware": "h200",
        "workload": {"kind": "mix", "parts": {"a": trace, "b": {**trace, "path": "more/u.jsonl"}}},
        "cluster": {
            "topology": {"file": "T.yaml"},
            "pools": [
                {"name": "p", "role": "prefill", "hardware": "./gpu"},
                {"name": "d", "role": "decode", "engine": {"expert_load": "recorded:loads.csv", "host": "own.yaml"}},
            ],
        },
        "kv_transfer": {"connector": {"kind": "nixl", "measured_on": "theirs.yaml"}},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    found = {str(path.relative_to(tmp_path)) for path in input_files(load_config(tmp_path / "c.yaml"))}
    of_gpu = {f"gpu/{name}" for name in ("gpu.yaml", "kernels.csv", "more.parquet", "more.provenance.json")}
    assert found == {
        "t.csv",
        "more/u.jsonl",
        "T.yaml",
        "m.json",
        "loads.csv",
        "own.yaml",
        "theirs.yaml",
        "gpu",
        *of_gpu,
    }


def test_what_is_built_in_is_no_file_of_the_user(tmp_path: Path) -> None:
    tree = {
        "model": "qwen3-8b",
        "hardware": "h200",
        "workload": {
            "kind": "synthetic",
            "requests": 1,
            "arrivals": {"kind": "static"},
            "lengths": {"kind": "fixed", "prefill": 1, "decode": 1},
        },
        "cluster": {"topology": {"kind": "nvswitch"}, "pools": [{"name": "m", "role": "mixed"}]},
        "engine": {"expert_load": "zipf:1"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    assert input_files(load_config(tmp_path / "c.yaml")) == []
