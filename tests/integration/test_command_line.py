"""``vidur-pd`` as its users call it: files, determinism, bad input."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.forked_commands import run_forked

REPOSITORY = Path(__file__).resolve().parents[2]

CONFIG: dict[str, Any] = {
    "seed": 3,
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": {
        "kind": "synthetic",
        "requests": 60,
        "arrivals": {"kind": "gamma", "qps": 20, "cv": 2},
        "lengths": {
            "kind": "lognormal",
            "prefill": {"median": 400, "p90": 2000},
            "decode": {"median": 20, "p90": 60},
        },
    },
    "cluster": {
        "topology": {"kind": "rail_optimized"},
        "pools": [
            {"name": "prefill", "role": "prefill", "instances": 2},
            {"name": "decode", "role": "decode", "instances": 2},
        ],
    },
    "routing": {"policy": "random"},
    "output": {"trace": True, "flows": True},
}


def vidur_pd(*arguments: str | Path, hash_seed: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command; with a hash seed it begins with a new interpreter."""
    if hash_seed is None:
        return run_forked("vidur_pd", *arguments)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "vidur_pd", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path


def read_rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "requests.csv").read_text().splitlines()))


def test_a_run_writes_the_contracted_files(tmp_path: Path) -> None:
    finished = vidur_pd("run", write_config(tmp_path), "-o", tmp_path / "out", "--json")
    assert finished.returncode == 0, finished.stderr
    out = tmp_path / "out"
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(finished.stdout) == summary
    assert summary["requests"] == summary["completed"] == 60
    for metric in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        values = [summary[metric][name] for name in ("p50", "p90", "p99")]
        assert values == sorted(values)
        assert 0 < summary[metric]["mean"] < 60
    assert set(summary["throughput"]) == {"requests_per_s", "input_tokens_per_s", "output_tokens_per_s"}
    assert set(summary["simulator"]) >= {"wall_s", "cpu_s", "peak_rss_bytes", "iterations", "events", "version"}
    rows = read_rows(out)
    assert len(rows) == 60
    assert all(row["status"] == "completed" for row in rows)
    iterations = pd.read_parquet(out / "iterations.parquet")
    assert len(iterations) == summary["simulator"]["iterations"]
    parts = ["attention_s", "dense_s", "experts_s", "head_s", "norm_and_small_s", "host_s"]
    assert (iterations[parts].sum(axis=1) - iterations["compute_s"]).abs().max() < 1e-9
    flows = pd.read_parquet(out / "flows.parquet")
    assert flows["size_bytes"].sum() == sum(int(row["pd_p2p_comm_bytes"] or 0) for row in rows)
    assert (out / "trace.json.gz").stat().st_size > 100
    assert "<html" in (out / "report.html").read_text()[:2000]


def test_the_same_seed_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    files = []
    for run, hash_seed in enumerate(("0", "4711")):
        out = tmp_path / f"out{run}"
        assert vidur_pd("run", config, "-o", out, "--quiet", hash_seed=hash_seed).returncode == 0
        files.append((out / "requests.csv").read_bytes())
    assert files[0] == files[1]
    other = vidur_pd("run", config, "-o", tmp_path / "other", "--quiet", "--set", "seed=4")
    assert other.returncode == 0
    assert (tmp_path / "other" / "requests.csv").read_bytes() != files[0]


def test_the_resolved_configuration_repeats_the_run_from_anywhere(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("request_id,arrived_at_s,prefill_tokens,decode_tokens\na,0,100,5\nb,0.5,300,2\n")
    config = write_config(tmp_path, workload={"kind": "trace", "path": "t.csv"})
    assert vidur_pd("run", config, "-o", tmp_path / "one").returncode == 0
    assert vidur_pd("run", tmp_path / "one" / "config.yaml", "-o", tmp_path / "two").returncode == 0
    assert (tmp_path / "one" / "requests.csv").read_bytes() == (tmp_path / "two" / "requests.csv").read_bytes()


def test_what_cannot_be_served_is_rejected_in_its_row_and_the_run_goes_on(tmp_path: Path) -> None:
    """Qwen3-8B has a context of 40,960 tokens; 100 blocks of 16 hold 1,584 tokens beside the null block."""
    trace = tmp_path / "t.csv"
    rows = ["fits,0,100,5", "too_long,0.1,50000,5", "too_large,0.2,1580,6", "fits_too,0.3,100,1"]
    trace.write_text("request_id,arrived_at_s,prefill_tokens,decode_tokens\n" + "\n".join(rows) + "\n")
    config = write_config(tmp_path, workload={"kind": "trace", "path": "t.csv"}, engine={"num_kv_blocks": 100})
    assert vidur_pd("run", config, "-o", tmp_path / "out").returncode == 0
    found = {row["request_id"]: row for row in read_rows(tmp_path / "out")}
    assert found["fits"]["status"] == found["fits_too"]["status"] == "completed"
    assert found["too_long"]["status"].startswith("rejected: ")
    assert "40960" in found["too_long"]["status"]
    assert found["too_large"]["status"].startswith("rejected: ")
    assert found["too_large"]["first_token_at_s"] == found["too_large"]["ttft_s"] == ""
    assert found["fits_too"]["tpot_s"] == ""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["model=qwen3-9b"], "qwen3-8b"),
        (["model=./nowhere.json"], "nowhere.json"),
        (["hardware=h300"], "h200"),
        (["engine.max_seq=3"], "did you mean 'max_seqs'"),
        (["workload.lengths.prefill.median=-5"], "workload.lengths.prefill.median: found -5"),
        (["workload.lengths.prefill.median=.nan"], "workload.lengths.prefill.median: found nan"),
        (["workload={kind: trace, path: nowhere.csv}"], "nowhere.csv"),
        (["cluster.pools.prefill.tp=3"], "found 3"),
        (["cluster.topology.nodes=1", "cluster.pools.prefill.instances=30"], "expected at least 32"),
        (["model=deepseek-v3", "engine.weights=bf16"], "bytes"),
        (["network.backend=rdma"], "network.hosts: found none with backend 'rdma'"),
        (["network.backend=fluidd"], "network.backend: found 'fluidd'"),
        (["engine.max_model_len=1000000"], "engine.max_model_len: found 1000000"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_output(tmp_path: Path, settings: list[str], expected: str) -> None:
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    finished = vidur_pd("run", write_config(tmp_path), "-o", tmp_path / "out", *arguments)
    assert finished.returncode == 2
    assert expected in finished.stderr
    assert finished.stderr.count("\n") == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("b,0.1,ten,5", "ten"),
        ("b,0.1,10", "found 3 cells"),
        ("b,-0.1,10,5", "-0.1"),
        ("b,0.1,nan,5", "nan"),
        ("b,0.1,10,-5", "-5"),
    ],
)
def test_a_malformed_trace_line_is_named_by_its_number(tmp_path: Path, line: str, expected: str) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(f"request_id,arrived_at_s,prefill_tokens,decode_tokens\na,0,10,5\n{line}\n")
    config = write_config(tmp_path, workload={"kind": "trace", "path": "t.csv"})
    finished = vidur_pd("run", config, "-o", tmp_path / "out")
    assert finished.returncode == 2
    assert expected in finished.stderr
    assert "line 3:" in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_backends_can_be_compared(tmp_path: Path) -> None:
    finished = vidur_pd("compare", write_config(tmp_path), "--backends", "analytical,fluid", "-o", tmp_path / "out")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out" / "comparison.html").is_file()
    assert (tmp_path / "out" / "fluid" / "requests.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "Missing argument"),
        (["run", "c.yaml"], "Missing option"),
        (["foo"], "No such command 'foo'"),
        (["run", "c.yaml", "-o", "out", "--bogus"], "No such option: --bogus"),
        (["run", "nowhere.yaml", "-o", "out"], "nowhere.yaml: found no such file"),
        (["report", "nowhere"], "nowhere: found no summary.json"),
        (["workload", "inspect", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_usage_errors_are_one_line_with_the_name_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = vidur_pd(*arguments)
    assert finished.returncode == 2
    assert expected in finished.stderr
    assert finished.stderr.startswith("vidur-pd: ")
    assert finished.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_cannot_run_is_noticed_before_anything_is_simulated(tmp_path: Path) -> None:
    """Without hosts, real traffic has nobody to send it."""
    finished = vidur_pd("compare", write_config(tmp_path), "--backends", "fluid,rdma", "-o", tmp_path / "out")
    assert finished.returncode == 2
    assert "rdma" in finished.stderr
    assert not (tmp_path / "out").exists()


def test_results_replace_earlier_ones_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for _ in range(2):
        assert vidur_pd("run", write_config(tmp_path), "-o", tmp_path / "link").returncode == 0
    assert (tmp_path / "real" / "requests.csv").is_file()
    assert (tmp_path / "link").is_symlink()


def test_the_report_of_a_run_is_the_one_that_its_folder_gives(tmp_path: Path) -> None:
    """Nothing in it comes from where files are before they are put into place."""
    out = tmp_path / "out"
    assert vidur_pd("run", write_config(tmp_path), "-o", out, "--quiet").returncode == 0
    written = (out / "report.html").read_bytes()
    assert vidur_pd("report", out).returncode == 0
    assert (out / "report.html").read_bytes() == written


def test_a_report_goes_where_it_is_told(tmp_path: Path) -> None:
    assert vidur_pd("run", write_config(tmp_path), "-o", tmp_path / "out").returncode == 0
    assert vidur_pd("report", tmp_path / "out", "-o", tmp_path / "page.html").returncode == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_runs_of_other_requests_are_compared_with_a_warning(tmp_path: Path) -> None:
    """The same requests on half the NIC say nothing; another seed draws other requests."""
    config = write_config(tmp_path)
    runs = {"a": (), "slow": ("--set", "cluster.topology.nic=200Gbps"), "seed": ("--set", "seed=4")}
    for name, settings in runs.items():
        assert vidur_pd("run", config, "-o", tmp_path / name, *settings).returncode == 0
    alike = vidur_pd("report", tmp_path / "a", tmp_path / "slow", "-o", tmp_path / "c.html")
    assert (alike.returncode, alike.stderr) == (0, "")
    other = vidur_pd("report", tmp_path / "a", tmp_path / "seed", "-o", tmp_path / "c.html")
    said = "seed against a: other arrivals or lengths of requests; seed 4 instead of 3. What differs is not the system"
    assert (other.returncode, other.stderr) == (0, f"vidur-pd: {said} alone.\n")
    assert said in (tmp_path / "c.html").read_text()


def test_the_help_needs_no_library_of_numbers() -> None:
    """It is there in a tenth of a second."""
    program = (
        "import sys; from vidur_pd.__main__ import app; "
        "print({'numpy', 'pandas', 'pydantic'} & {each.partition('.')[0] for each in sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


@pytest.mark.parametrize("how", [(), ("--stream",)])
def test_a_run_and_its_report_do_without_pandas(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Its import takes a third of a second and 40 MB, and that of Arrow's compute functions 0.03 s; Arrow imports both
    for conversions of its own."""
    kept = {"iterations": True, "links": True} | dict.fromkeys(("batches", "flows", "trace"), not how)
    files = [f"output.{name}={str(is_kept).lower()}" for name, is_kept in kept.items()]
    out, settings = str(tmp_path / "out"), [part for file in files for part in ("--set", file)]
    program = (
        "import sys; from vidur_pd.__main__ import app\n"
        "for words in eval(sys.argv[1]): app(words, standalone_mode=False)\n"
        "print({'pandas', 'pyarrow.compute', 'pyarrow.parquet'} & set(sys.modules), file=sys.stderr)"
    )
    commands = [["run", str(write_config(tmp_path)), "-o", out, *settings, *how], ["report", out]]
    commands += [["explain", out, "slowest"], ["report", out, out, "-o", str(tmp_path / "c.html")]]
    found = subprocess.run([sys.executable, "-c", program, repr(commands)], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == "{'pyarrow.parquet'}"
    assert "ms in total, equal to E2E" in found.stdout
