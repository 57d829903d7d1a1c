"""``vidur-pd explain`` and ``diff``: parts that add up, whom a request waited for, and what changed between two
runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from boundary.errors import InputError
from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool, requests
from tests.vidur_pd.report.report_table import table_of
from vidur_pd.report.load import read_run
from vidur_pd.report.slowest import _waits
from vidur_pd.report.table import Table
from vidur_pd.report.waterfall import _counted, _host_notes, longest, waterfall
from vidur_pd.simulation.api import simulate
from vidur_pd.simulation.output import write_result

ROWS = [(0, 3000, 20), (10_000, 3000, 20), (20_000, 3000, 20), (500_000, 300, 20)]
"""Three prompts at almost one time on one instance, and one that finds it idle."""
NODES = {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "100Gbps"}


def write(folder: Path, **sections: Any) -> Path:
    tree = config(
        [pool("p", "prefill", engine={"max_batched_tokens": 2048}), pool("d", "decode")],
        topology=NODES,
        engine={"estimator": "roofline"},
        output={"batches": True, "trace": True, "flows": True},
        **sections,
    )
    write_result(simulate(tree, requests(ROWS)), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("explained") / "run")


def test_every_picosecond_of_a_request_is_in_its_waterfall(folder: Path) -> None:
    run = read_run(folder)
    for name in run.requests.words["request_id"]:
        found = waterfall(run, str(name))
        assert sum(step.took_ps for step in found.steps) == found.e2e_ps
        ends_s = [step.begin_s + step.took_s for step in found.steps]
        assert [step.begin_s for step in found.steps[1:]] == pytest.approx(ends_s[:-1], abs=1e-9)
        assert found.e2e_ps == round(found.facts["e2e_s"] * 1e12)


def test_those_who_were_before_it_are_named(folder: Path) -> None:
    """r0 is in computation when r2 comes, and r1 waits ahead of it; r3 comes to an idle instance."""
    run = read_run(folder)
    (queue,) = (step for step in waterfall(run, "r2").steps if step.part == "queue")
    assert queue.notes == ("1 in computation, 3,000 prompt tokens: r0", "1 ahead in the queue, 3,000 prompt tokens: r1")
    (alone,) = (step for step in waterfall(run, "r3").steps if step.part == "queue")
    assert alone.notes == ("nobody before it: the way to the scheduler, and the end of the step in progress",)


def test_chunks_of_a_prompt_are_those_of_its_batches(folder: Path) -> None:
    """Budgets of 2,048 tokens over prompts of 3,000: r0 is cut into 2,048 and 952; the second batch is decided when the
    first has been launched, so that r1, which comes meanwhile, begins in it."""
    found = waterfall(read_run(folder), "r0")
    assert [(tokens, size) for _, tokens, size in found.chunks] == [(2048, 1), (952, 2)]
    second = waterfall(read_run(folder), "r1")
    assert sum(tokens for _, tokens, _ in second.chunks) == 3000
    members = pd.read_parquet(folder / "batches.parquet")
    iterations = pd.read_parquet(folder / "iterations.parquet")
    assert set(members["batch"]) == set(iterations["batch"])
    tokens = members.groupby("batch")["new_tokens"].sum()
    steps = iterations.groupby("batch").first()
    assert (tokens == (steps["prefill_tokens"] + steps["decode_tokens"])[tokens.index]).all()
    assert (members.groupby("batch").size() == steps["requests"]).all()


def test_waits_for_the_host_are_said_of_compute() -> None:
    """Iterations of a prompt that is launched in longer than it computes: what they wait in all, and not of another."""
    spans = {"start_s": [0.0, 0.2], "end_s": [0.1, 0.3]}
    said = _host_notes(table_of(spans | {"host_s": [0.03, 0.012]}, ()))
    assert said == ("42 ms of these iterations GPUs wait for the host",)
    assert _host_notes(table_of(spans | {"host_s": [1e-4, 1e-4]}, ())) == ()
    assert _host_notes(None) == ()


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decode instance with one place: the KV of later requests is there, and their first tokens are out, long before
    their first decode iteration."""
    tree = config(
        [pool("p", "prefill"), pool("d", "decode", engine={"max_seqs": 1})],
        topology=NODES,
        engine={"estimator": "roofline"},
        kv_transfer={"first_token": "decode_after_transfer"},
        output={"batches": True},
    )
    folder = tmp_path_factory.mktemp("in_turn")
    write_result(simulate(tree, requests([(0, 300, 40), (1000, 300, 40), (2000, 300, 40)])), folder)
    return folder


def test_iterations_of_a_decode_are_those_that_the_request_was_in(in_turn: Path) -> None:
    """39 of 40 tokens each, one a step; those of requests that were served before it are not its own."""
    run, members = read_run(in_turn), pd.read_parquet(in_turn / "batches.parquet")
    iterations = pd.read_parquet(in_turn / "iterations.parquet")
    of_decode = iterations[iterations["pool"] == "d"]["batch"]
    for name in ("r0", "r1", "r2"):
        own = of_decode.isin(members[members["request_id"] == name]["batch"])
        (decode,) = (step for step in waterfall(run, name).steps if step.part == "decode_compute")
        assert own.sum() == 39
        assert decode.notes[0].startswith("39 iterations of d-0, ")


def test_numbers_of_requests_are_written_out(in_turn: Path) -> None:
    run = read_run(in_turn)
    assert run.iterations is not None
    numbers = run.iterations.numbers
    crowded = Table({**numbers, "running": np.full(len(run.iterations), 1024.4)}, run.iterations.words)
    found = waterfall(replace(run, iterations=crowded), "r0")
    (decode,) = (step for step in found.steps if step.part == "decode_compute")
    assert decode.notes[0] == "39 iterations of d-0, 1,024 requests there"
    assert [_counted(number, "other") for number in (1, 2, 1000)] == ["1 other", "2 others", "1,000 others"]


def test_what_a_first_token_waited_for_ends_with_it(in_turn: Path, folder: Path) -> None:
    """With the arrival of its KV: a place on the decode instance is what the second token waited for."""
    last = waterfall(read_run(in_turn), "r2")
    assert longest({step.part: step.took_ps for step in last.steps}) == "decode_queue"
    assert longest(last.before_first_token) not in (None, "decode_queue")
    assert "decode queue" not in _waits(last)
    assert sum(last.before_first_token.values()) == round(last.facts["ttft_s"] * 1e12)
    for found in (waterfall(read_run(folder), name) for name in ("r0", "r1", "r2", "r3")):
        assert 0 < sum(found.before_first_token.values()) <= round(found.facts["ttft_s"] * 1e12)


def test_means_of_what_comes_before_the_first_token_are_those_of_the_summary(in_turn: Path) -> None:
    run = read_run(in_turn)
    found = [waterfall(run, name).before_first_token for name in ("r0", "r1", "r2")]
    for part, mean_s in run.summary.ttft_attribution_s.items():
        assert sum(each.get(part, 0) for each in found) / 3e12 == pytest.approx(mean_s, abs=1e-12)


def test_the_command_prints_the_waterfall_and_refuses_what_is_not_there(folder: Path) -> None:
    printed = run_forked("vidur_pd", "explain", str(folder), "r2")
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith(
        "request r2: 3,000 prompt tokens (0 cached), 20 output tokens\narrived at 0.02 s, "
    )
    assert max(map(len, printed.stdout.splitlines())) <= 80
    assert "ahead in the queue, 3,000 prompt tokens: r1" in printed.stdout
    assert printed.stdout.endswith("  ms in total, equal to E2E\n")
    tree = json.loads(run_forked("vidur_pd", "explain", str(folder), "slowest", "--json").stdout)
    assert tree["request_id"] == "r2"
    assert sum(step["took_ps"] for step in tree["steps"]) == tree["e2e_ps"]
    absent = run_forked("vidur_pd", "explain", str(folder), "r9")
    assert (absent.returncode, absent.stdout) == (2, "")
    assert "found no request 'r9', expected one of its requests, as r0, r1, r2" in absent.stderr
    (folder.parent / "old").mkdir(exist_ok=True)
    for name in ("requests.csv", "summary.json"):
        (folder.parent / "old" / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(InputError, match=r"attribution\.parquet: no such file; expected a run of this version"):
        waterfall(read_run(folder.parent / "old"), "r1")


def test_flows_name_the_request_whose_kv_they_carry(folder: Path) -> None:
    flows, rows = pd.read_parquet(folder / "flows.parquet"), pd.read_csv(folder / "requests.csv")
    carried = flows.groupby("request_id")["size_bytes"].sum()
    assert carried.to_dict() == rows.set_index("request_id")["pd_p2p_comm_bytes"].to_dict()


def test_a_slower_nic_is_found_in_the_difference(folder: Path, tmp_path: Path) -> None:
    """Of two runs that differ in the NIC alone KV transfers take what latency has grown by."""
    slow = tmp_path / "slow"
    tree = config(
        [pool("p", "prefill", engine={"max_batched_tokens": 2048}), pool("d", "decode")],
        topology={**NODES, "nic": "25Gbps"},
        engine={"estimator": "roofline"},
    )
    write_result(simulate(tree, requests(ROWS)), slow)
    found = json.loads(run_forked("vidur_pd", "diff", str(folder), str(slow), "--json").stdout)
    first, *others = found["e2e"]["parts"]
    assert first["part"] == "kv_transfer"
    change_s = found["e2e"]["after_s"] - found["e2e"]["before_s"]
    assert sum(part["after_s"] - part["before_s"] for part in (first, *others)) == pytest.approx(change_s)
    assert first["after_s"] - first["before_s"] > 0.9 * change_s > 0.05
    assert not found["has_other_requests"]
    assert ["cluster.topology.nic", "100Gbps", "25Gbps"] in found["settings"]
    printed = run_forked("vidur_pd", "diff", str(folder), str(slow)).stdout
    assert "most of it is kv_transfer: KV on its way after the end of its prompt" in printed
    assert "cluster.topology.nic: " in printed


def test_the_trace_has_arrows_from_prefill_to_decode_and_counters_of_links(folder: Path) -> None:
    """Every arrow begins within the iteration that ends the prompt, and ends at the begin of one of the decode
    instance."""
    import gzip

    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    arrows = {phase: {each["id"]: each for each in events if each["ph"] == phase} for phase in "stf"}
    assert [len(of) for of in arrows.values()] == [len(ROWS)] * 3
    slices = [each for each in events if each["ph"] == "X"]
    for number, begin in arrows["s"].items():
        inside = [x for x in slices if x["pid"] == begin["pid"] and x["ts"] <= begin["ts"] <= x["ts"] + x["dur"]]
        assert [x["name"] for x in inside] == ["prefill"]
        end = arrows["f"][number]
        assert any(x["pid"] == end["pid"] and x["ts"] == pytest.approx(end["ts"]) for x in slices)
        assert begin["ts"] < arrows["t"][number]["ts"] < end["ts"]
    counters = [each for each in events if each["ph"] == "C" and "→" in each["name"]]
    assert counters
    shares = np.array([sum(each["args"].values()) for each in counters])
    assert (shares >= 0).all()
    assert shares.max() <= 100.0 + 1e-6
