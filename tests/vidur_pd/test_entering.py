"""``vidur-pd init`` and ``schema``: a configuration to start from, and what editors know of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from boundary.errors import InputError
from tests.forked_commands import run_forked
from vidur_pd.config.arrivals import PoissonArrivals
from vidur_pd.config.file import load_config
from vidur_pd.config.json_schema import json_schema
from vidur_pd.config.reference import page
from vidur_pd.config.workload import TraceWorkload

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def init(folder: Path, *options: str) -> Any:
    return run_forked("vidur_pd", "init", "-o", str(folder / "c.yaml"), *options)


def test_a_written_configuration_is_read_and_says_what_was_asked_for(tmp_path: Path) -> None:
    found = init(tmp_path, "--model", "qwen3-8b", "--gpu", "H200", "--prefill", "2", "--rate", "7", "--ttft", "1.5")
    assert (found.returncode, found.stdout) == (
        0,
        f"wrote {tmp_path}/c.yaml; next: vidur-pd run {tmp_path}/c.yaml -o out\n",
    )
    config = load_config(tmp_path / "c.yaml")
    assert [(pool.role, pool.instances, pool.tp) for pool in config.cluster.pools] == [
        ("prefill", 2, 1),
        ("decode", 1, 1),
    ]
    assert config.slo.ttft == {"p90": 1.5}
    assert "# " in (tmp_path / "c.yaml").read_text()


def test_the_fewest_gpus_that_hold_the_model_are_taken(tmp_path: Path) -> None:
    """141 GB of weights: two H200s."""
    assert init(tmp_path, "--model", "llama-3.1-70b", "--gpu", "h200", "--prefill", "0").returncode == 0
    (pool,) = load_config(tmp_path / "c.yaml").cluster.pools
    assert (pool.role, pool.tp) == ("mixed", 2)


def test_what_cannot_be_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for options, said in (
        (("--model", "qwen3-8b", "--gpu", "h201"), "gpu: found 'h201', expected one of"),
        (("--model", "qwen3-8b"), "--gpu: found none, expected one where there is no terminal to ask at"),
        (("--model", "qwen3-8b", "--gpu", "h200", "--tp", "3"), "cluster.pools.prefill"),
        (("--model", "qwen3-8b", "--gpu", "h200", "--framework", "vlm"), "engine.framework"),
    ):
        found = init(tmp_path, *options)
        assert (found.returncode, said in found.stderr) == (2, True), found.stderr
        assert not (tmp_path / "c.yaml").exists()
    found = init(tmp_path / "none", "--model", "qwen3-8b", "--gpu", "h200")
    assert (found.returncode, "found no folder" in found.stderr) == (2, True), found.stderr
    (tmp_path / "c.yaml").write_text("mine")
    found = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200")
    assert (found.returncode, (tmp_path / "c.yaml").read_text()) == (2, "mine")


def fits(node: Any, value: Any, definitions: dict[str, Any]) -> bool:
    """The part of JSON Schema that the schema uses."""
    if "$ref" in node:
        return fits(definitions[node["$ref"].removeprefix("#/$defs/")], value, definitions)
    for several in ("anyOf", "oneOf"):
        if several in node:
            return any(fits(each, value, definitions) for each in node[several])
    if "const" in node or "enum" in node:
        return value in node.get("enum", [node.get("const")])
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool}
    wanted = node.get("type")
    wanted = [wanted] if isinstance(wanted, str) else wanted or ["null", *kinds]
    if not any(value is None if kind == "null" else isinstance(value, kinds[kind]) for kind in wanted):
        return False
    if isinstance(value, dict) and "properties" in node:
        known = node["properties"]
        if node.get("additionalProperties") is False and not set(value) <= set(known):
            return False
        return all(fits(known[name], item, definitions) for name, item in value.items() if name in known)
    if isinstance(value, list) and isinstance(node.get("items"), dict):
        return all(fits(node["items"], item, definitions) for item in value)
    return True


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema(example: Path, schema: dict[str, Any]) -> None:
    tree = yaml.safe_load(example.read_text())
    for name, value in tree.items():
        assert fits(schema["properties"][name], value, schema["$defs"]), name


def test_unknown_fields_and_other_choices_do_not_fit(schema: dict[str, Any]) -> None:
    engine = schema["properties"]["engine"]
    assert not fits(engine, {"polisy": "vllm_v1"}, schema["$defs"])
    assert not fits(schema["properties"]["slo"], {"window": 3}, schema["$defs"])
    pools = schema["$defs"]["ClusterConfig"]["properties"]["pools"]
    assert not fits(pools, [{"name": "p", "role": "prefil"}], schema["$defs"])


def test_fields_are_described_by_their_docstrings(schema: dict[str, Any]) -> None:
    output = schema["$defs"]["OutputConfig"]["properties"]
    assert output["link_windows"]["description"] == "Time windows of links.parquet."
    assert schema["$defs"]["SloConfig"]["properties"]["ttft"]["description"].startswith("Of arrival to first token")
    described = [
        name
        for each in schema["$defs"].values()
        for name, of in each.get("properties", {}).items()
        if "description" in of
    ]
    assert len(described) > 150


def test_quantities_are_shown_as_they_are_written(schema: dict[str, Any]) -> None:
    """A bare number is refused, so that neither the schema nor the page of options may offer one."""
    nic = schema["$defs"]["RailOptimizedSpec"]["properties"]["nic"]
    assert (nic["type"], nic["default"]) == ("string", "400Gbps")
    latency = schema["$defs"]["RailOptimizedSpec"]["properties"]["link_latency"]
    assert (latency["type"], latency["default"], "maximum" in latency) == ("string", "500ns", False)
    assert "| `nic` | rate, as `400Gbps` | `400Gbps` |" in page()
    assert "| `link_latency` | time, as `25ns` | `500ns` |" in page()


def test_a_word_that_is_missing_is_asked_for_by_its_choices(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "model: qwen3-8b\nhardware: h200\nworkload: {kind: trace, path: t.csv}\n"
        "cluster: {topology: {kind: nvswitch}, pools: [{name: p}]}\n"
    )
    with pytest.raises(InputError, match=r"pools\.p\.role: missing, expected one of prefill, decode, mixed$"):
        load_config(tmp_path / "c.yaml")


def test_the_command_prints_the_schema(schema: dict[str, Any], tmp_path: Path) -> None:
    printed = run_forked("vidur_pd", "schema")
    assert json.loads(printed.stdout) == json.loads(json.dumps(schema))
    assert run_forked("vidur_pd", "schema", "-o", str(tmp_path / "s.json")).returncode == 0
    assert json.loads((tmp_path / "s.json").read_text())["title"] == "vidur-pd configuration"


def test_a_trace_keeps_its_arrivals_unless_a_rate_is_stated(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens\n0,10,2\n9,10,2\n")
    for options, expected in (([], None), (["--rate", "3"], 3.0)):
        folder = tmp_path / str(len(options))
        folder.mkdir()
        done = init(folder, "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(tmp_path / "t.csv"), *options)
        assert done.returncode == 0, done.stderr
        workload = load_config(folder / "c.yaml").workload
        assert isinstance(workload, TraceWorkload)
        assert (None if workload.rate is None else float(workload.rate)) == expected


def test_init_says_what_it_found_in_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens\n0,100,20\n1,300,40\n2,50000,60\n")
    done = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(tmp_path / "t.csv"))
    found, lengths, too_long, _ = done.stdout.splitlines()
    assert found == "trace t.csv (csv): 3 requests in 2 s, 1/s"
    assert lengths == "prompts: mean 16,800, p90 40,060, max 50,000; outputs: mean 40, p90 56, max 60 tokens"
    assert too_long.startswith("1 of them exceed the context window of 40,960 tokens and would be rejected")


def test_init_takes_columns_of_ones_own_and_draws_arrivals_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("when,in,out\n0,100,20\n4,300,40\n")
    own = ["--column", "arrived_at_s=when", "--column", "prefill_tokens=in", "--column", "decode_tokens=out"]
    done = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(tmp_path / "t.csv"), *own)
    assert done.returncode == 0, done.stderr
    workload = load_config(tmp_path / "c.yaml").workload
    assert isinstance(workload, TraceWorkload)
    assert workload.columns == {"arrived_at_s": "when", "prefill_tokens": "in", "decode_tokens": "out"}
    (tmp_path / "c.yaml").unlink()
    (tmp_path / "l.csv").write_text("num_prefill_tokens,num_decode_tokens\n100,5\n200,7\n")
    done = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(tmp_path / "l.csv"), "--rate", "3")
    assert "trace l.csv (vidur_lengths): 2 requests without arrivals, which are drawn" in done.stdout
    workload = load_config(tmp_path / "c.yaml").workload
    assert isinstance(workload, TraceWorkload)
    assert isinstance(workload.arrivals, PoissonArrivals)


def test_init_takes_json_lines_with_dates_of_ones_own(tmp_path: Path) -> None:
    rows = [{"when": f"2026-11-27 09:00:0{second}", "in": 100, "out": 20} for second in range(2)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["--column", "arrived_at_s=when", "--column", "prefill_tokens=in", "--column", "decode_tokens=out"]
    asked = ["--model", "qwen3-8b", "--gpu", "h200", "--trace", str(tmp_path / "t.jsonl"), *own]
    assert "'when': found '2026-11-27 09:00:00', expected a number of seconds" in init(tmp_path, *asked).stderr
    done = init(tmp_path, *asked, "--time-unit", "date_time")
    assert "2 requests in 1 s, 1/s" in done.stdout
    workload = load_config(tmp_path / "c.yaml").workload
    assert isinstance(workload, TraceWorkload)
    assert workload.time_unit == "date_time"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, (), "found no such file, expected a request trace"),
        ("when,in,out\n0,1,2\n", (), "line 1: found 'when,in,out', expected the columns or keys of a known format"),
        ("arrived_at_s,prefill_tokens,decode_tokens\n0,,2\n", (), "line 2: prefill_tokens: found '', expected"),
        ("when,in,out\n0,1,2\n", ("--column", "at=when"), "--column: found 'at=when', expected NAME=COLUMN with NAME"),
        ("when,in,out\n0,1,2\n", ("--time-unit", "hour"), "--time-unit: found 'hour', expected one of s, ms, us"),
        ("when,in,out\n0,1,2\n", ("--time-unit", "ms"), "--time-unit: found ms without --column, expected both"),
        ("when,in,out\n0,1,2\n", ("--column", "arrived_at_s"), "--column: found 'arrived_at_s', expected NAME=COLUMN"),
    ],
)
def test_init_writes_nothing_for_what_is_no_trace(
    text: str | None, options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    trace = tmp_path / "t.csv"
    if text is not None:
        trace.write_text(text)
    done = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(trace), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "c.yaml").exists()


def test_columns_without_a_trace_are_refused(tmp_path: Path) -> None:
    done = init(tmp_path, "--model", "qwen3-8b", "--gpu", "h200", "--column", "arrived_at_s=when")
    assert (done.returncode, done.stderr) == (2, "vidur-pd: --column: found without --trace, expected both\n")
