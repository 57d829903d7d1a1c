from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from boundary.errors import InputError
from vidur_pd.config import EngineConfig, OverlapConfig, PoolConfig
from vidur_pd.config.file import dump_config, load_config

MINIMAL = {
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": {
        "kind": "synthetic",
        "requests": 2,
        "arrivals": {"kind": "poisson", "qps": 1},
        "lengths": {"kind": "fixed", "prefill": 10, "decode": 2},
    },
    "cluster": {
        "topology": {"kind": "single_switch"},
        "pools": [{"name": "a", "role": "mixed"}, {"name": "b", "role": "mixed"}],
    },
}


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    return path


def test_a_minimal_file_gets_the_documented_defaults(config_path: Path) -> None:
    config = load_config(config_path)
    assert config.engine.max_batched_tokens == 8192
    assert config.network.backend == config.network.coupling == "fluid"
    assert config.slo.ttft_s == 2.0


def test_the_resolved_configuration_loads_as_an_equal_tree(config_path: Path, tmp_path: Path) -> None:
    config = load_config(config_path, ["cluster.topology={kind: rail_optimized, nic: 200Gbps}"])
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_config(config))
    assert load_config(resolved) == config


def test_set_edits_the_tree_before_validation(config_path: Path) -> None:
    settings = ["engine.max_seqs=7", "cluster.pools.b.instances=3", "cluster.pools.0.engine.kv=fp8"]
    config = load_config(config_path, settings)
    assert config.engine.max_seqs == 7
    assert config.cluster.pools[1].instances == 3
    assert config.engine_of(config.cluster.pools[0]).kv == "fp8"
    assert config.engine_of(config.cluster.pools[1]).kv == "bf16"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("engine.max_seq=1", r"engine\.max_seq: unknown field; did you mean 'max_seqs'"),
        ("engine.max_seqs=-1", r"engine\.max_seqs: found -1, expected"),
        ("engine.max_seqs=.nan", r"engine\.max_seqs: found nan"),
        ("workload.arrivals.qqs=3", r"workload\.arrivals\.qqs: unknown field; did you mean 'qps'"),
        ("workload.arrivals.qps=-3", r"workload\.arrivals\.qps: found -3"),
        ("workload.lengths.prefill=-3", r"workload\.lengths\.prefill: found -3"),
        ("workload.kind=tracee", r"workload: found kind 'tracee', expected one of mix, servegen, synthetic, trace"),
        (
            "workload.arrivals={}",
            r"workload\.arrivals: found kind None, expected one of closed, constant, gamma, poisson",
        ),
        ("cluster.pools=[]", r"cluster\.pools: found an empty list"),
        ("kv_transfer.setup_ms=1e20", r"kv_transfer\.setup_ms: found 1e\+20, expected at most 1000000\.0"),
        ("engine.max_seqs=1.5", r"engine\.max_seqs: found 1\.5, expected a whole number"),
        ("engine.max_seqs=many", r"engine\.max_seqs: found 'many', expected a whole number"),
        ("engine.weights=int4", r"engine\.weights: found 'int4', expected one of bf16, fp8, mxfp4"),
        (
            "workload={kind: trace, path: t.csv, format: generic}",
            r": workload\.format: found 'generic', expected one of auto, [a-z_0-9, ]*vidur",
        ),
        ("engine.cuda_graphs=maybe", r"engine\.cuda_graphs: found 'maybe', expected true or false"),
        ("engine.overlap=true", r"engine\.overlap: found True, expected a mapping of fields"),
        ("engine.overlap.two_batches=true", r"engine\.overlap\.two_batches: unknown field; did you mean 'two_batch'"),
        (
            "engine.overlap.communication_sm_share=1",
            r"engine\.overlap\.communication_sm_share: found 1, expected below 1",
        ),
        ("engine.speculative.acceptance=1.2", r"engine\.speculative\.acceptance: found 1\.2, expected at most 1"),
        ("engine.speculative.draft=2", r"engine\.speculative\.draft: unknown field; did you mean 'drafts'"),
        ("engine.estimator=guess", r"engine\.estimator: found 'guess', expected one of auto, interpolation, forest"),
        (
            "cluster.pools.0.redundant_experts=-1",
            r"cluster\.pools\.a\.redundant_experts: found -1, expected at least 0",
        ),
        ("cluster.pools=5", r"cluster\.pools: found 5, expected a list"),
        ("workload.lengths=x", r"workload\.lengths: found 'x', expected a mapping of fields"),
        ("model=5", r"model: found 5, expected text"),
        ("cluster.topology.nick=1", r"cluster\.topology\.nick: unknown field; did you mean 'nic'"),
        ("cluster.topology={file: 3}", r": cluster\.topology\.file: found 3, expected a path"),
        ("cluster.topology={kind: file}", r": cluster\.topology\.file: missing, expected a value"),
        (
            "cluster.topology={kind: file, path: t.yaml}",
            r": cluster\.topology\.path: unknown field; expected one of file, kind",
        ),
        ("cluster.pools.0.rolle=1", r"cluster\.pools\.a\.rolle: unknown field; did you mean 'role'"),
        ("cluster.pools.b.name=", r": cluster\.pools\.1\.name: found None, expected text"),
        (
            "cluster.pools=[{name: a, tp: 0, role: mixed}, {name: a, role: mixed}]",
            r"cluster\.pools\.0\.tp: found 0, expected at least 1",
        ),
        (
            "cluster.pools=[{name: a, instances: 2, pd_node_ratio: 0.5}, {name: b, role: mixed, tp: 0}]",
            r"cluster\.pools\.b\.tp: found 0, expected at least 1",
        ),
        (
            "cluster.pools=[{name: a, instances: 2, pd_node_ratio: 0.5, engine: {max_seq: 1}}, {role: mixed}]",
            r"cluster\.pools\.a\.engine\.max_seq: unknown field; did you mean 'max_seqs'",
        ),
        ("cluster.pools.0.role=prefill", r"cluster: found no pool with role decode"),
        ("cluster.pools.1.name=a", r"cluster: found two pools named 'a'"),
        ("cluster.pools.c.tp=1", r"--set cluster\.pools\.c\.tp=1: found no item 'c', expected one of a, b"),
        ("engine", r"--set engine: expected path=value"),
        ("workload.requests=1e20", r"workload\.requests: found 1e\+20, expected a whole number below 2\^63"),
        ("model.x=1", r"--set model\.x=1"),
    ],
)
def test_a_wrong_value_is_one_line_with_field_and_remedy(config_path: Path, setting: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as raised:
        load_config(config_path, [setting])
    assert "\n" not in str(raised.value)


def test_numbers_may_have_exponents(config_path: Path) -> None:
    config = load_config(config_path, ["workload.requests=1e3", "slo.ttft_s=2.5E-1"])
    assert config.workload.model_dump()["requests"] == 1000
    assert config.slo.ttft_s == 0.25


def test_a_mapping_for_a_pool_sets_its_fields_and_leaves_the_others(config_path: Path) -> None:
    before = load_config(config_path).cluster.pools[0]
    pool = load_config(config_path, ["cluster.pools.a={tp: 4}"]).cluster.pools[0]
    assert pool == before.model_copy(update={"tp": 4})


def test_percentiles_have_a_point_of_their_own(config_path: Path) -> None:
    config = load_config(config_path, ["slo={}", "slo.ttft.p99.9=1.5", "slo.tpot.p90=0.1"])
    assert [(each.latency, each.statistic) for each in config.slo.targets] == [("ttft", "p99.9"), ("tpot", "p90")]


def test_paths_of_gpus_and_recordings_start_at_the_configuration(config_path: Path) -> None:
    settings = ["hardware=./gpus/x", "cluster.pools.a.hardware=g.yaml", "engine.expert_load=recorded:loads.csv"]
    config = load_config(config_path, settings)
    folder = config_path.parent.absolute()
    assert config.hardware == str(folder / "gpus/x")
    assert config.hardware_of(config.cluster.pools[0]) == str(folder / "g.yaml")
    assert config.hardware_of(config.cluster.pools[1]) == config.hardware
    assert config.engine.expert_load == f"recorded:{folder / 'loads.csv'}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: found no such file"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: a\nhardware: h200\nmodel: b\n")
    with pytest.raises(InputError, match=r"line 3: found the key 'model' twice"):
        load_config(path)


def test_malformed_yaml_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: a\nhardware: [\n")
    with pytest.raises(InputError, match=r"line \d+: not YAML"):
        load_config(path)


def test_the_readme_names_every_option_of_engines_and_pools() -> None:
    readme = (Path(__file__).resolve().parents[2] / "vidur_pd" / "README.md").read_text()
    section = readme.partition("## Options of the engine")[2].partition("## The loop")[0]
    options = [*EngineConfig.model_fields, *PoolConfig.model_fields, *OverlapConfig.model_fields]
    missing = [name for name in options if name not in ("policy", "engine") and f"`{name}" not in section]
    assert [name for name in missing if f"overlap.{name}`" not in section] == []


def test_a_field_of_a_connector_that_is_named_by_a_word_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    pools = [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}]
    tree = MINIMAL | {"kv_transfer": {"connector": "nixl"}, "cluster": MINIMAL["cluster"] | {"pools": pools}}  # type: ignore[operator]
    path.write_text(yaml.safe_dump(tree))
    connector = load_config(path, ["kv_transfer.connector.handshake_us=0"]).kv_transfer.connector
    assert (connector.kind, connector.handshake_us) == ("nixl", 0)  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"cluster\.topology\.kind holds a plain value, expected a section"):
        load_config(path, ["cluster.topology.kind.nic=400Gbps"])
