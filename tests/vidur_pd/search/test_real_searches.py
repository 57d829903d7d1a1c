"""Searches, plans and capacities of real simulations, by their command lines."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from boundary.errors import Failure, InputError
from tests.forked_commands import run_forked
from tests.vidur_pd.report.report_page import parse_page
from tests.vidur_pd.search.spaces import BASE, space
from vidur_pd.commands.capacity import sentences
from vidur_pd.config.file import load_config
from vidur_pd.search.capacity.bisection import Bracket
from vidur_pd.search.capacity.capacity import AtLoad, Capacity
from vidur_pd.search.evaluation.evaluation import Evaluator, Task, without_repeats
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.output.answer import margin_text
from vidur_pd.search.output.launch import dynamo_graph, launch_text
from vidur_pd.search.proposals import proposer_of
from vidur_pd.search.screening import INVALID, screen
from vidur_pd.search.space.plan import Wish, plan_space
from vidur_pd.search.workers import OnRay
from vidur_pd.simulation.api import simulate

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / "examples" / "qwen3-8b-colocated.yaml"
CHOICES = {
    "cluster.pools.server": [{"tp": 1}, {"tp": 2}, {"tp": 3}],
    "cluster.pools.server.instances": [1, 2, 4],
}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "choices": CHOICES, "objective": "min_gpus"} | fields))
    return path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run_forked("vidur_pd", *words)


def test_the_best_of_a_real_space_is_that_of_running_all_of_it(tmp_path: Path) -> None:
    """Oracle: every valid point, simulated by itself without anything kept from one to the next."""
    base = {**BASE, "workload": {**BASE["workload"], "rate": "60/s"}}
    done = command("search", str(written(tmp_path, base=base)), "-o", str(tmp_path / "out"), "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads((tmp_path / "out" / "search.json").read_text()) == found
    real = space(CHOICES, base=base)
    by_itself = {each.point: simulate(real.config(each.point)).summary.slo.is_met for each in screen(real).candidates}
    least = min(gpus_of(real, point) for point, is_met in by_itself.items() if is_met)
    assert found["ranking"][0]["gpus"] == least
    assert found["is_exhausted"]
    assert found["points"] == {
        "points": 9,
        "invalid": 3,
        "other_gpus": 0,
        "beyond_load": found["points"]["beyond_load"],
        "run": found["points"]["run"],
        "full": found["points"]["full"],
        "not_run": 6 - found["points"]["beyond_load"] - found["points"]["run"],
    }
    assert found["left_out"][0]["reason"].startswith("cluster.pools.server")
    repeated = load_config(tmp_path / "out" / "config.yaml")
    assert simulate(repeated).summary.slo.is_met
    with (tmp_path / "out" / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["number"] for row in rows}) == found["points"]["run"]
    page = parse_page(tmp_path / "out" / "search.html")
    assert found["answer"].split("\n")[0].split(":")[0] in page.text
    assert "pareto" in page.charts
    assert "vllm serve Qwen/Qwen3-8B" in (tmp_path / "out" / "launch.txt").read_text()


def test_the_configuration_of_a_capacity_has_the_rate_and_the_prices_that_were_found(tmp_path: Path) -> None:
    """A run of it repeats the answer: SLO met, as many requests per second, the same cost of a token."""
    fields: dict[str, Any] = {"objective": "min_cost_per_token", "prices": {"h200": 3.0}}
    choices = {"cluster.pools.server.instances": [1, 2]}
    path = written(tmp_path, choices=choices, **fields)
    done = command("search", str(path), "-o", str(tmp_path / "out"), "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["ranking"][0]
    repeated = simulate(tmp_path / "out" / "config.yaml").summary
    assert repeated.slo.is_met
    assert repeated.tpot_s.p90 == pytest.approx(found["tpot_p90_s"], rel=1e-6)
    assert repeated.cost is not None
    assert repeated.cost.per_hour == pytest.approx(found["cost_per_hour"])


def gpus_of(real: Any, point: tuple[int, ...]) -> int:
    return sum(pool.instances * pool.gpus_per_instance for pool in real.config(point).cluster.pools)


def test_an_evaluation_keeps_prices_and_changes_nothing_by_it() -> None:
    """One process for all points, again and in another order: the same outcomes."""
    real = without_repeats(space(CHOICES))
    assert len(real.file.fidelities) == 2  # of 120 requests the middle one is the whole
    tasks = [Task(each.point, 1, None) for each in screen(real).candidates[:5]]
    forwards, backwards = Evaluator(real), Evaluator(real)
    first = [forwards(task) for task in tasks]
    assert [forwards(task) for task in tasks] == first
    assert [backwards(task) for task in reversed(tasks)] == first[::-1]


def test_a_search_of_processes_that_is_killed_twice_goes_on(tmp_path: Path) -> None:
    """kill -9 while points are run: the study has what was done, and the end is that of an undisturbed search."""
    choices = {"cluster.pools.server.instances": [1, 2, 3, 4, 5, 6, 7, 8]}
    fields: dict[str, Any] = {"objective": "min_latency", "batch": 2, "choices": choices}
    path = written(tmp_path, **fields)
    out = tmp_path / "out"
    words = [sys.executable, "-m", "vidur_pd", "search", str(path), "-o", str(out), "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for kept in (1, 3):
        process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while outcomes_in(out / "study.sqlite") < kept and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "search.json").exists()
    assert outcomes_in(out / "study.sqlite") >= 3
    last = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    alone = command("search", str(path), "-o", str(tmp_path / "alone"), "--workers", "1")
    assert alone.returncode == 0, alone.stderr
    found, expected = (json.loads((folder / "search.json").read_text()) for folder in (out, tmp_path / "alone"))
    assert without_effort(found) == without_effort(expected)


def outcomes_in(study: Path) -> int:
    import sqlite3

    if not study.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{study}?mode=ro", uri=True) as file:
            return int(file.execute("SELECT count(*) FROM outcomes").fetchone()[0])
    except sqlite3.OperationalError:  # being made
        return 0


def without_effort(tree: Any) -> Any:
    """Without times that the search took."""
    if isinstance(tree, dict):
        return {key: without_effort(value) for key, value in tree.items() if key not in ("cpu_s", "answer")}
    return [without_effort(each) for each in tree] if isinstance(tree, list) else tree


@pytest.mark.slow
def test_two_workers_of_ray_find_the_same(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("needs ray: pip install 'vidur-pd[ray]'")
    path = written(tmp_path, evaluations=4, fidelities=[{}])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **NO_TOKENS}
    with subprocess.Popen(
        [sys.executable, "-c", RAY_CLUSTER], env=environment, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        words = [sys.executable, "-m", "vidur_pd", "search", str(path), "-o", str(tmp_path / "ray"), "--ray", address]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        cluster.terminate()
    assert done.returncode == 0, done.stderr
    alone = command("search", str(path), "-o", str(tmp_path / "alone"), "--workers", "1")
    assert alone.returncode == 0, alone.stderr
    found, expected = (json.loads((tmp_path / name / "search.json").read_text()) for name in ("ray", "alone"))
    assert without_effort(found) == without_effort(expected)


NO_TOKENS = {"RAY_AUTH_MODE": "disabled"}
"""Processes of one user on one machine: Ray asks for a token otherwise."""
RAY_CLUSTER = """
import time
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print(context.address_info["address"], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"objective": "cheapest"}, "objective: found 'cheapest', expected one of min_gpus, min_cost"),
        ({"choices": {}}, "choices: found an empty list, expected at least one item"),
        (
            {"choices": {"cluster.pools.nobody.tp": [1]}},
            "choices.cluster.pools.nobody.tp: found no item 'nobody', expected",
        ),
        (
            {"choices": {"engine.max_seqs": [0]}},
            "found no point that can be run (1 point invalid: engine.max_seqs: found 0",
        ),
        ({"objective": "min_cost"}, "prices: missing, expected the price of each GPU per hour, as {h200: 3.5}"),
        ({"objective": "min_cost", "prices": {"h100": 2}}, "prices: found none for h200"),
        (
            {"choices": {f"engine.x{n}": list(range(10)) for n in range(5)}},
            "choices: found 100000 points, expected at most",
        ),
        (
            {"gpus_max": 1, "gpus_min": 1, "choices": {"cluster.pools.server.tp": [2]}},
            "found no point that can be run (1 point left out by GPUs: found more or fewer GPUs in all instances "
            "together, expected 1), expected at least one",
        ),
        ({"base": "nowhere.yaml"}, "nowhere.yaml"),
        ({"sampler": "gues"}, "sampler: found 'gues', expected one of bound, tpe, random, nsga2"),
    ],
)
def test_bad_spaces_are_refused_in_one_line(fields: dict[str, Any], expected: str, tmp_path: Path) -> None:
    done = command("search", str(written(tmp_path, **fields)), "-o", str(tmp_path / "out"), "--workers", "1")
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "search.json").exists()


def test_capacity_lies_between_a_load_that_is_met_and_one_that_is_not(tmp_path: Path) -> None:
    """Recomputed: `vidur-pd run`'s own verdict at the capacity, and at the lowest load that was missed."""
    settings = ["--set", "workload.requests=900", "--slo", "ttft:p90:0.4", "--slo", "tpot:p90:0.02"]
    done = command("capacity", str(EXAMPLE), *settings, "-o", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["capacity"] < found["lowest_missed"] <= found["capacity"] * 1.02
    assert found["surely_met"] <= found["capacity"] <= found["surely_missed"]
    assert simulate(tmp_path / "out" / "config.yaml").summary.slo.is_met
    beyond = simulate(tmp_path / "out" / "config.yaml", settings=[f"workload.rate={found['lowest_missed']}"]).summary
    assert not beyond.slo.is_met
    lines = found["answer"].split("\n")
    assert lines[0].startswith(f"{found['capacity']:.3g} requests/s within the SLO: TTFT p90 ")
    assert lines[1].startswith("For longer workloads of this kind, with 95 % confidence between ")


def test_arrivals_that_end_before_instances_are_full_say_that_a_longer_workload_is_served_at_less() -> None:
    """240 and 2,400 requests of the same lengths: of the few no load is met surely, and the answer says how many it
    takes."""
    slo = ["--slo", "ttft:p90:1.5", "--slo", "tpot:p90:0.02"]
    found = {}
    for requests in (240, 2400):
        done = command("capacity", str(EXAMPLE), "--set", f"workload.requests={requests}", *slo, "--json")
        assert done.returncode == 0, done.stderr
        found[requests] = json.loads(done.stdout)
    short, long = found[240], found[2400]
    assert "The workload is short: arrivals last " in short["answer"]
    assert "to tell what a longer one of this kind asks for, some " in short["answer"]
    assert short["surely_met"] is None
    assert not any(each["is_met_surely"] for each in short["loads"])
    assert 240 < short["requests_needed"] < 2400
    assert f"some {short['requests_needed']:,} requests" in short["answer"]
    assert long["surely_met"] <= long["capacity"] < long["surely_missed"]


def test_a_percentile_that_takes_more_requests_to_be_sure_of_says_how_many(tmp_path: Path) -> None:
    """Of 150 requests one may be beyond a P99: even none does not make sure. Tables have the latencies of the SLO."""
    settings = ["--set", "workload.requests=150", "--set", "slo={ttft: {p99: 0.2}, e2e: {mean: 9.0}}"]
    done = command("capacity", str(EXAMPLE), *settings, "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "it takes 434 requests, even with none beyond a limit" in " ".join(done.stdout.split())
    header = next(line for line in done.stdout.splitlines() if "within the SLO ┃" in line)
    assert [cell.strip() for cell in header.split("┃")[3:6]] == ["TTFT p99", "E2E mean", "margin"]
    found = json.loads((tmp_path / "out" / "capacity.json").read_text())
    assert (found["requests_needed"], found["surely_met"]) == (434, None)
    assert all(each["load"] >= found["capacity"] / 2 for each in found["loads"])


def test_a_lower_load_that_is_missed_is_named() -> None:
    """As where first contacts of instances make a few requests of a finite workload late, whatever the load."""
    met, missed = (
        Outcome(is_met=is_met, margin=0.1 if is_met else -0.2, gpus=1, limited_by="first contacts of instances")
        for is_met in (True, False)
    )
    tried = tuple(AtLoad(load, (outcome,), ()) for load, outcome in ((0.5, missed), (2.0, met), (2.1, missed)))
    lines = sentences(Capacity("rate", Bracket(2.0, 2.1), None, 2.1, tried))
    assert lines[-1] == (
        "This is one limit of several: less is missed, too, such as 0.5 requests/s (first contacts of instances)."
    )
    assert len(sentences(Capacity("rate", Bracket(2.0, 2.1), None, 2.1, tried[1:]))) == len(lines) - 1


def test_capacity_of_clients_is_a_whole_number(tmp_path: Path) -> None:
    settings = ["--set", "workload.requests=150", "--clients", "4", "--slo", "tpot:p90:0.008"]
    done = command("capacity", str(EXAMPLE), *settings, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "clients"
    assert found["capacity"] == round(found["capacity"])
    assert found["lowest_missed"] <= max(found["capacity"] + 1, found["capacity"] * 1.02)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--slo", "ttft:2.0"], "--slo: found 'ttft:2.0', expected latency:percentile:seconds, as ttft:p90:2.0"),
        (["--slo", "ttft:q90:2.0"], "slo.ttft.q90: found 'q90', expected mean or a percentile"),
        (["--set", "workload.arrivals={kind: static}"], "workload.rate: found"),
    ],
)
def test_a_load_that_cannot_be_scaled_and_bad_targets_are_refused(words: list[str], expected: str) -> None:
    done = command("capacity", str(EXAMPLE), "--set", "workload.requests=20", *words)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr


def test_several_seeds_need_workloads_that_they_change(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n1,10,2\n")
    words = ["--set", f"workload={{kind: trace, path: {trace}}}", "--seeds", "2"]
    done = command("capacity", str(EXAMPLE), *words)
    assert done.returncode == 2
    assert "--seeds: found 2 for a workload that is the same for every seed, expected 1" in done.stderr


def test_a_plan_needs_no_configuration(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{0.1 * number},{800 + 37 * (number % 11)},{20 + number % 7}\n" for number in range(150))
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    words = ["--model", "qwen3-8b", "--gpu", "H200", "--trace", str(trace), "--rate", "40", "--gpus-max", "4"]
    done = command(
        "plan", *words, "--ttft", "p90:1.0", "--tpot", "p90:0.05", "-o", str(tmp_path / "out"), "--workers", "1"
    )
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.split()).startswith(
        "2 × H200: 1 prefill instance × 1 GPU (tp1), 1 decode instance × 1 GPU (tp1); 40 requests/s"
    )
    assert "the best so far has 2 GPUs in all" in done.stderr
    assert "TTFT p90" in done.stdout.partition("Limited by")[0]
    config = load_config(tmp_path / "out" / "config.yaml")
    assert [pool.role for pool in config.cluster.pools] == ["prefill", "decode"]
    both = command("plan", *words, "--colocated", "-o", str(tmp_path / "both"), "--workers", "1")
    assert " ".join(both.stdout.split()).startswith("1 × H200: 1 server instance × 1 GPU (tp1); 40 requests/s")
    assert [pool.role for pool in load_config(tmp_path / "both" / "config.yaml").cluster.pools] == ["mixed"]
    for asked, field in ((("--weights", "fp8"), "--weights"), (("--set", "engine.weights=fp8"), "engine.weights")):
        refused = command("plan", *words, "--gpu", "a100", *asked, "-o", str(tmp_path / "no"))
        assert (refused.returncode, refused.stderr) == (
            2,
            f"vidur-pd: {field}: found fp8, expected bf16 (a100 has no fp8)\n",
        )
    missing = command("plan", *words[:4], "--trace", "none.csv", "-o", str(tmp_path / "no"))
    assert (missing.returncode, missing.stderr) == (
        2,
        "vidur-pd: --trace: found no file none.csv, expected a trace of requests\n",
    )
    small = command("plan", "--model", "deepseek-v3", *words[2:6], "--gpus-max", "8", "-o", str(tmp_path / "no"))
    assert small.returncode == 2
    assert "--gpus-max: found 8, expected at least 16: deepseek-v3 needs 8 h200 per prefill instance" in small.stderr


def test_a_trace_that_cannot_be_read_is_refused_by_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1,-3,10\n")
    words = ("plan", "--model", "qwen3-8b", "--gpu", "h200", "--trace", str(trace), "-o", str(tmp_path / "out"))
    done = command(*words, "--gpus-max", "2")
    expected = f"{trace}: line 3: num_prefill_tokens: found '-3', expected a whole number of at least 1"
    assert (done.returncode, done.stderr) == (2, f"vidur-pd: {expected}\n")
    assert not (tmp_path / "out").exists()


def test_a_percentile_that_is_none_is_refused_by_the_option_it_is_of() -> None:
    words = ("plan", "--model", "qwen3-8b", "--gpu", "h200", "--trace", "none.csv", "-o", "out")
    for stated in ("1", "p90:", "p90:1:2"):
        done = command(*words, "--ttft", stated)
        expected = f"vidur-pd: --ttft: found '{stated}', expected percentile:seconds, as p90:2.0\n"
        assert (done.returncode, done.stderr) == (2, expected)


def test_a_model_of_ones_own_is_launched_from_its_folder(tmp_path: Path) -> None:
    """Engines take folders: that of a config.json, and no file of another name."""
    architecture = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 512}
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 1024}
    rest = {"vocab_size": 1000, "tie_word_embeddings": False, "max_position_embeddings": 40960}
    for name, launched in (("config.json", str(tmp_path)), ("own.json", str(tmp_path / "own.json"))):
        (tmp_path / name).write_text(json.dumps(architecture | sizes | rest))
        text = launch_text(load_config(EXAMPLE, [f"model={tmp_path / name}"]))
        assert f"vllm serve {launched} " in text.replace("\\\n", "")
        assert ("Engines take a folder" in text) == (name != "config.json")


def test_weights_in_fp8_of_a_checkpoint_in_bf16_are_asked_for() -> None:
    example = REPOSITORY / "examples" / "qwen3-32b-two-gpus.yaml"
    for framework in ("vllm", "sglang"):
        asked = [f"engine.framework={framework}", "engine.weights=fp8"]
        assert "--quantization" in launch_text(load_config(example, asked))
        assert "blocks of 128 x 128" in launch_text(load_config(example, asked))
        assert "--quantization" not in launch_text(load_config(example, asked[:1]))
    assert "--quantization" not in launch_text(load_config(REPOSITORY / "examples" / "deepseek-v3-trace.yaml"))


def test_a_plan_has_the_memory_that_the_engine_is_given() -> None:
    """Llama-3.1-70B in bf16 leaves an H200 room for KV with 98 % of its memory, and none with 90 %."""
    wish = Wish(
        model="llama-3.1-70b",
        gpu="h200",
        workload=BASE["workload"],
        gpus_max=2,
        weights=None,
        framework="vllm",
        nic="400Gbps",
        settings=["engine.gpu_memory_utilization=0.98"],
    )
    assert {"tp": 1} in plan_space(wish).dimensions["cluster.pools.prefill"]
    with pytest.raises(InputError, match="needs 2 h200 per prefill instance and 2 h200 per decode instance"):
        plan_space(replace(wish, settings=["engine.gpu_memory_utilization=0.9"]))


def test_pools_of_a_plan_have_their_own_engines_and_gpus() -> None:
    """Llama-3.1-70B takes 141 GB in bf16 and 72 GB in fp8; 60 % of an H200 are 90 GB, of an H100 51 GB."""
    common = Wish(
        model="llama-3.1-70b",
        gpu="h200",
        workload=BASE["workload"],
        gpus_max=8,
        weights=None,
        framework="vllm",
        nic="400Gbps",
        settings=["engine.gpu_memory_utilization=0.1", "cluster.pools.prefill.engine.gpu_memory_utilization=0.98"],
    )
    own = "cluster.pools.decode"
    for settings, expected in (
        ((f"{own}.engine.gpu_memory_utilization=0.98",), [1, 2, 4, 8]),
        ((f"{own}.engine.gpu_memory_utilization=0.6",), [2, 4, 8]),
        ((f"{own}.engine.gpu_memory_utilization=0.6", f"{own}.engine.weights=fp8"), [1, 2, 4, 8]),
        ((f"{own}.engine.gpu_memory_utilization=0.6", f"{own}.hardware=h100"), [4, 8]),
    ):
        dimensions = plan_space(replace(common, settings=[*common.settings, *settings])).dimensions
        assert [choice["tp"] for choice in dimensions["cluster.pools.prefill"]] == [1, 2, 4, 8]
        assert [choice["tp"] for choice in dimensions["cluster.pools.decode"]] == expected, settings
    without_fp8 = replace(common, settings=[*common.settings, f"{own}.hardware=a100", f"{own}.engine.weights=fp8"])
    with pytest.raises(InputError, match=r"^cluster\.pools\.decode\.engine\.weights: found fp8, expected bf16 \(a100"):
        plan_space(without_fp8)


def test_what_to_launch_says_every_pool_with_its_role() -> None:
    config = load_config(REPOSITORY / "examples" / "deepseek-v3-trace.yaml")
    text = launch_text(config)
    assert "# pool prefill (prefill): 4 instances of 8 h200" in text
    assert text.count("vllm serve deepseek-ai/DeepSeek-V3") == 2
    assert '--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}\'' in text
    assert "--data-parallel-size 16" in text
    graph: Any = dynamo_graph(config)
    services = graph["spec"]["services"]
    assert list(services) == ["Frontend", "VllmPrefillWorker", "VllmDecodeWorker"]
    assert services["VllmPrefillWorker"]["replicas"] == 4
    assert services["VllmDecodeWorker"]["resources"] == {"limits": {"gpu": "16"}}
    sglang = launch_text(load_config(REPOSITORY / "examples" / "deepseek-v3-trace.yaml", ["engine.framework=sglang"]))
    assert "--tp-size 16" in sglang
    assert "--disaggregation-mode decode" in sglang
    assert "DynamoGraphDeployment" not in sglang


def test_nothing_that_does_not_fit_is_run() -> None:
    """Llama-3.1-70B in bf16 takes 141 GB: one H200 has no room, two have."""
    tree = {**BASE, "model": "llama-3.1-70b", "workload": {**BASE["workload"], "rate": "1/s"}}
    screening = screen(space({"cluster.pools.server.tp": [1, 2]}, base=tree))
    assert [each.gpus for each in screening.candidates] == [2]
    assert screening.count_left_out(INVALID) == 1
    assert "memory" in screening.left_out[0].reason or "fit" in screening.left_out[0].reason


def test_prices_decide_between_gpus() -> None:
    """Two of three H200s at 2 per hour are 4, one H100 at 1 is the cheapest."""
    choices = {"hardware": ["h100", "h200"], "cluster.pools.server.instances": [1, 2]}
    found = screen(space(choices, objective="min_cost", prices={"h100": 1.0, "h200": 2.0}))
    costs = {each.point: each.cost_per_hour for each in found.candidates}
    assert costs.items() <= {(0, 0): 1.0, (0, 1): 2.0, (1, 0): 2.0, (1, 1): 4.0}.items()
    assert [each.cost_per_hour for each in found.candidates] == sorted(costs.values())


def test_a_sampler_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        Failure, match=r"found tpe without the package optuna, expected it \(pip install 'vidur-pd\[search"
    ):
        proposer_of(space(sampler="tpe"), ())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Failure, match=r"--ray: found no package ray, expected it \(pip install 'vidur-pd\[ray\]'\)"):
        OnRay(space(), "somewhere:1")


def test_where_nothing_meets_the_slo_the_answer_says_by_how_much(tmp_path: Path) -> None:
    slo = {"ttft": {"p90": 0.5}, "tpot": {"p90": 0.002}}
    path = written(tmp_path, base={**BASE, "slo": slo}, choices={"cluster.pools.server.instances": [1, 2]})
    done = command("search", str(path), "-o", str(tmp_path / "out"), "--workers", "1")
    assert done.returncode == 2
    assert "even with full batches it could not carry the load within its SLO" in done.stderr
    slo = {"ttft": {"p90": 0.030}, "tpot": {"p90": 0.05}}
    path = written(tmp_path, base={**BASE, "slo": slo}, choices={"cluster.pools.server.instances": [1]})
    done = command("search", str(path), "-o", str(tmp_path / "out"), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No deployment of 1 meets the SLO; the nearest misses it by ")
    assert not (tmp_path / "out" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("margin", "text"), [(0.12, "12 %"), (0.004, "0.4 %"), (-0.0003, "-0.03 %"), (-0.25, "-25 %"), (0.0, "0 %")]
)
def test_a_margin_is_none_only_where_it_is(margin: float, text: str) -> None:
    assert margin_text(margin) == text
