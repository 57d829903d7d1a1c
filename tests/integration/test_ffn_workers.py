"""Decode instances with FFN workers apart, from the configuration to the figures: some worked out by hand, and random
ones that have to end with everything in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aicb
from boundary.yaml_text import dump_yaml
from tests.forked_commands import run_forked
from tests.integration.run_checks import check_run
from tests.integration.small_runs import ANY_WORKLOAD, NO_HOST, config, pool, requests
from vidur_pd.config.file import load_config
from vidur_pd.metrics.result import Result
from vidur_pd.search.output.launch import launch_text
from vidur_pd.simulation import api
from vidur_pd.simulation.output import write_result

NODES = {"kind": "rail_optimized", "gpus_per_node": 2}
DENSE = [pool("p", "prefill"), pool("d", "decode", dp=2, ffn={"tp": 2, "micro_batches": 2})]
"""Qwen3-8B: a prefill GPU, and on servers of their own two attention workers, and two FFN workers that divide networks.
Of the first server one GPU stays idle."""
ENGINE = {"estimator": "roofline", **NO_HOST}
LAYERS, HIDDEN = 36, 4096
"""Of Qwen3-8B (config.json: num_hidden_layers, hidden_size)."""
BURST = [(2_000 * index, 300, 30) for index in range(12)]


def run(rows: list[tuple[int, int, int]] = BURST, **sections: Any) -> Result:
    sections = {"topology": NODES, "engine": ENGINE, "output": {"flows": True}, **sections}
    pools = sections.pop("pools", DENSE)
    return api.simulate(config(pools, **sections), requests(rows))


def collective_bytes(result: Result, gpu: int) -> float:
    """Of collectives that left a GPU by its NIC."""
    rows = pd.DataFrame(result.link_columns())
    leaving = (result.topology.link_src[rows["link"]] == gpu) & (rows["kind"] == "nic")
    return float(rows.loc[leaving & (rows["traffic"] == "collective"), "carried_bytes"].sum())


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_bytes_on_nics_are_rows_times_layers_times_steps(coupling: str) -> None:
    """One request of 10 tokens takes 10 steps, as the decode side computes the last token of the prompt again, of one
    micro-batch each. Every attention worker sends one row (that of the
    idle rank is a dummy's) to both FFN workers in every layer, in bf16 with a header of 16 bytes; each FFN worker
    returns half a row to either. Collectives of FFN workers among each other stay on NVLink."""
    result = run([(0, 50, 10)], network={"coupling": coupling})
    assert sum(kind["iterations"][1] for kind in result.iterations.activity) == 10
    sent, returned = LAYERS * 10 * 2 * (2 * HIDDEN + 16), LAYERS * 10 * 2 * HIDDEN
    for gpu in (2, 3):
        assert collective_bytes(result, gpu) == pytest.approx(sent, rel=0.02)  # framed
    for gpu in (4, 5):
        assert collective_bytes(result, gpu) == pytest.approx(returned, rel=0.02)
    assert collective_bytes(result, 0) == 0


def test_kv_goes_to_attention_workers_alone() -> None:
    """By turns to both ranks."""
    result = run()
    flows = pd.DataFrame(result.flow_columns())
    assert set(flows["dst"]) == {2, 3}
    assert flows["size_bytes"].sum() == sum(each.kv_bytes or 0 for each in result.requests)


@pytest.mark.parametrize("pools", [DENSE, [DENSE[0], pool("d", "decode", tp=2, ffn={"tp": 2, "micro_batches": 3})]])
def test_flows_of_all_pieces_take_as_long_as_their_schedule_on_an_idle_network(pools: list[dict[str, Any]]) -> None:
    """One request after another, so that nothing meets. With tp 2 all-reduces are among the pieces of attention."""
    rows = [(400_000 * index, 200, 20) for index in range(3)]
    priced = run(rows, pools=pools, network={"coupling": "isolated"})
    simulated = run(rows, pools=pools, network={"coupling": "exact"})
    assert priced.summary.tpot_s.mean is not None
    assert simulated.summary.tpot_s.mean == pytest.approx(priced.summary.tpot_s.mean, rel=2e-3)


@pytest.mark.parametrize("backend", ["analytical", "fluid", "packet"])
def test_all_backends_carry_the_exchange(backend: str) -> None:
    """Within 5 % of each other: packets add headers and the last acknowledgement."""
    fields = {"backend": backend, "coupling": "isolated"}
    found = run([(0, 200, 20)], network=fields).summary.tpot_s.mean
    expected = run([(0, 200, 20)], network={"coupling": "isolated"}).summary.tpot_s.mean
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("coupling", ["fluid", "exact"])
def test_kv_and_rows_that_share_a_link_delay_each_other(coupling: str) -> None:
    """Forty requests decode, whose rows come back by the NICs by which 0.6 GB of KV of every later prompt enter
    attention workers: at 10 Gbit/s half a second each, for which rows have half of the link."""
    rows = [(0, 50, 150)] * 40 + [(100_000 * index, 4_000, 2) for index in range(1, 6)]
    slow, pools = {**NODES, "nic": "10Gbps"}, [DENSE[0], pool("d", "decode", dp=2, ffn={"tp": 2, "micro_batches": 1})]
    alone, together = (
        max(each.completed_ps or 0 for each in run(rows, pools=pools, topology=slow, network=network).requests[:40])
        for network in ({"coupling": "isolated"}, {"coupling": coupling})
    )
    assert 1.1 * alone < together < 2 * alone


@pytest.mark.parametrize(("messages", "copies"), [("per_expert", 8.0), ("per_worker", None), ("per_node", 2.0)])
def test_rows_of_experts_cross_the_network_as_often_as_they_are_said_to(messages: str, copies: float | None) -> None:
    """Qwen3-30B-A3B, 8 of 128 experts, 32 on each of four FFN workers, two per server: in each of ten steps one row of
    either attention worker crosses 8 times, once for every worker (of which nearly all four have one), or once for each
    server, in bf16 with 16 bytes of header, or 80 of source, experts and weights."""
    ffn = {"dp": 4, "ep": 4, "micro_batches": 1, "messages": messages}
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", dp=2, ffn=ffn)]
    result = run([(0, 50, 10)], pools=pools, model="qwen3-30b-a3b", network={"coupling": "isolated"})
    steps, layers, hidden = 10, 48, 2048
    reached = 4 * (1 - np.prod([(96 - chosen) / (128 - chosen) for chosen in range(8)]))
    row_bytes = 2 * hidden + (80 if messages == "per_node" else 16)
    expected = layers * steps * (copies or reached) * row_bytes
    assert collective_bytes(result, 2) == pytest.approx(expected, rel=0.02)


def test_micro_batches_hide_communication_and_read_weights_more_often() -> None:
    """Exposed communication falls with each micro-batch; FFN workers compute longer, as each reads all weights."""
    exposed, ffn_ps = [], []
    for count in (1, 2, 4):
        pools = [DENSE[0], pool("d", "decode", dp=2, ffn={"tp": 2, "micro_batches": count})]
        result = run([(0, 300, 40)] * 16, pools=pools, network={"coupling": "isolated"})
        log = result.iterations
        exposed.append(float(log.communication_ps) / float(log.busy_ps.sum()))
        ffn_ps.append(int(log.ffn_ps[1]))
    assert exposed[0] > exposed[1] > exposed[2]
    assert ffn_ps[0] < ffn_ps[1] < ffn_ps[2]


def test_one_micro_batch_takes_turns_without_any_overlap() -> None:
    """Then what both kinds of workers compute is all compute, and nothing of communication is hidden."""
    pools = [DENSE[0], pool("d", "decode", dp=2, ffn={"tp": 2, "micro_batches": 1})]
    log = run(pools=pools, network={"coupling": "isolated"}).iterations
    assert log.attention_ps[1] + log.ffn_ps[1] == pytest.approx(log.computing_ps[1], rel=1e-6)


def test_figures_count_both_kinds_of_workers() -> None:
    """Three GPUs at 3.5 and two at 1 an hour; energy and utilisation of all five."""
    pools = [pool("p", "prefill"), pool("d", "decode", dp=2, ffn={"tp": 2, "hardware": "h100"})]
    prices = {"gpu_hour": {"h200": 3.5, "h100": 1.0}, "currency": "USD", "as_of": "2026-11"}
    summary = run(pools=pools, prices=prices).summary
    decode = summary.pools[1]
    assert (decode.gpus, summary.gpus, decode.partition) == (4, 5, "DP2 + FFN TP2")
    assert decode.ffn is not None
    assert (decode.ffn.gpus, decode.ffn.hardware, decode.ffn.micro_batches) == (2, "h100", 3)
    assert summary.cost is not None
    assert summary.cost.gpus_per_hour == pytest.approx(3 * 3.5 + 2 * 1.0)
    assert summary.energy is not None
    assert set(summary.energy.pools_j) == {"p", "d"}
    assert summary.energy.pools_w["d"] > 50
    for share in (decode.ffn.attention_busy_share, decode.ffn.ffn_busy_share, decode.communication_share):
        assert share is not None
        assert 0 < share < 1
    assert decode.memory_use is not None
    assert 0 < decode.memory_use < 1


@pytest.mark.parametrize("kind", ["gpu", "nic"])
def test_an_ffn_worker_that_fails_takes_its_instance_down(kind: str) -> None:
    """GPU 4 is one: the only decode instance computes nothing from 0.15 s to 0.25 s, and what it held begins again.
    Without its NIC rows cannot reach it."""
    broken = run(faults=[{"kind": kind, "gpu": 4, "at_s": 0.15, "for_s": 0.1}])
    check_run(broken)
    assert broken.summary.completed == len(BURST)
    spans = [(each.start_ps / 1e12, each.ends_ps[-1] / 1e12) for each in broken.iterations.runs if each.instance == 1]
    assert any(start < 0.15 for start, _ in spans)
    assert all(end <= 0.151 or start >= 0.25 for start, end in spans)  # routing hears of a NIC within a millisecond


def test_the_report_shows_both_kinds_of_workers(tmp_path: Path) -> None:
    write_result(run(), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "DP2 + FFN TP2" in page
    assert "FFN workers compute" in page
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["pools"][1]["ffn"]["gpus"] == 2
    assert summary["pools"][0]["ffn"] is None


def test_what_to_launch_says_that_no_command_is_known() -> None:
    text = launch_text(config(DENSE))
    assert "no command is known for attention and FFN workers apart: dp2 ffn(tp2)" in text
    assert "Dynamo" not in text


def test_a_slow_ffn_worker_slows_its_instance() -> None:
    fault = {"kind": "slow_gpu", "gpu": 5, "factor": 2.0, "at_s": 0.0}
    whole, slow = run(), run(faults=[fault])
    assert whole.summary.tpot_s.mean is not None
    assert slow.summary.tpot_s.mean is not None
    assert slow.summary.tpot_s.mean > 1.5 * whole.summary.tpot_s.mean


def test_experts_on_ffn_workers_and_attention_on_other_gpus() -> None:
    """Qwen3-30B-A3B: attention on two H20s, 32 of 128 experts on each of four H200s."""
    ffn = {"dp": 4, "ep": 4, "hardware": "h200"}
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", dp=2, hardware="h20", ffn=ffn)]
    nodes = {**NODES, "gpus_per_node": 4}
    result = run([(0, 100, 20)] * 8, pools=pools, topology=nodes, model="qwen3-30b-a3b", engine={"max_seqs": 16})
    check_run(result)
    assert result.summary.completed == 8


def test_gpus_of_ffn_workers_are_named_and_found_like_those_of_pools(tmp_path: Path) -> None:
    """In any case, next to the configuration; with NCCL's all-reduce where the engine's was not measured on them."""
    (tmp_path / "mine").mkdir()
    text = (Path(aicb.__file__).parent / "data" / "gpus" / "l40s.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine" / "gpu.yaml").write_text(text.replace("name: l40s", "name: mine"), encoding="utf-8")
    found = {}
    for name in ("L40S", "./mine"):
        (tmp_path / "c.yaml").write_text(dump_yaml(tree_with(ffn={"tp": 2, "hardware": name})))
        loaded = load_config(tmp_path / "c.yaml")
        assert loaded.network.collectives == "nccl"
        found[name] = loaded.ffn_hardware_of(loaded.cluster.pools[1])
    assert found == {"L40S": "l40s", "./mine": str(tmp_path / "mine")}
    assert load_config(tmp_path / "c.yaml").cluster.pools[1].gpus_per_instance == 3


@pytest.mark.parametrize(("ep", "kernel"), [(1, "triton"), (4, "deep_gemm")])
def test_the_kernel_of_experts_follows_from_who_has_them(ep: int, kernel: str) -> None:
    """vLLM's Triton kernel on Hopper where workers divide all experts, DeepGEMM where each has some."""
    ffn = {"dp": 4, "ep": 4} if ep > 1 else {"tp": 4}
    made = config([DENSE[0], pool("d", "decode", ffn=ffn)], model="qwen3-30b-a3b")
    assert made.engine_of(made.cluster.pools[1]).experts_kernel == kernel


@st.composite
def divided(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
    """Sections of a configuration with FFN workers, and requests."""
    model, experts = draw(
        st.sampled_from([("qwen3-8b", 0), ("llama-3.1-8b", 0), ("mixtral-8x7b", 8), ("qwen3-30b-a3b", 128)])
    )
    tp = draw(st.sampled_from([1, 2]))
    dp = draw(st.sampled_from([1, 2, 3]))
    if experts and draw(st.booleans()):
        ffn: dict[str, Any] = {
            "dp": 4,
            "ep": 4,
            "messages": draw(st.sampled_from(["per_expert", "per_worker", "per_node"])),
        }
    else:
        ffn = draw(st.sampled_from([{"tp": 2}, {"tp": 2, "dp": 2}, {"tp": 4}]))
    ffn = {**ffn, "micro_batches": draw(st.integers(1, 4))}
    decode = pool("d", "decode", tp=tp, dp=dp, ffn=ffn, instances=draw(st.integers(1, 2)))
    networks = [{"coupling": "isolated"}, {"coupling": "fluid"}, {"coupling": "exact"}, {"backend": "analytical"}]
    network = draw(st.sampled_from(networks))
    engine = {
        **ENGINE,
        "max_seqs": draw(st.integers(1, 6)),
        "num_kv_blocks": draw(st.sampled_from([None, 40])),
        "cuda_graphs": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
    }
    topology = {"kind": "rail_optimized", "gpus_per_node": draw(st.sampled_from([2, 4, 8]))}
    prefill = pool("p", "prefill", tp=2, engine={"num_kv_blocks": None})
    rows = draw(
        st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 300), st.integers(1, 25)), min_size=1, max_size=10)
    )
    sections = {"pools": [prefill, decode], "model": model, "network": network, "engine": engine, "topology": topology}
    return sections, rows


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(divided())
def test_every_division_serves_all_its_requests(case: tuple[dict[str, Any], list[tuple[int, int, int]]]) -> None:
    sections, rows = case
    result = run(rows, **sections)
    check_run(result)
    assert result.summary.completed == len(rows)
    log = result.iterations
    assert np.all(log.attention_ps <= log.busy_ps)
    assert np.all(log.ffn_ps <= log.busy_ps)


def tree_with(**fields: Any) -> dict[str, Any]:
    """A configuration whose decode pool has these fields."""
    decode = {"name": "d", "role": "decode", **fields}
    prefill = [] if decode["role"] == "mixed" else [{"name": "p", "role": "prefill"}]
    return {
        "model": "qwen3-8b",
        "hardware": "h200",
        "workload": ANY_WORKLOAD,
        "cluster": {"topology": NODES, "pools": [*prefill, decode]},
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"role": "mixed", "ffn": {}}, "d.ffn: found some with role mixed, expected role decode"),
    ({"pp": 2, "ffn": {}}, "cluster.pools.d.pp: found 2, expected 1 with FFN workers"),
    ({"dp": 2, "ep": 2, "ffn": {}}, "cluster.pools.d.ep: found 2, expected 1, as experts are on FFN workers"),
    ({"ffn": {"dp": 2, "ep": 2}}, "ffn.ep: found 2, expected 1, as qwen3-8b has no routed experts"),
    ({"ffn": {"dp": 4, "ep": 3}}, "cluster.pools.d.ffn.ep: found 3, expected 1 or tp·dp = 4"),
    ({"ffn": {"tp": 5}}, "tp: found 5, expected a divisor of the 12288 ffn intermediate columns"),
    ({"ffn": {"messages": "per_node"}}, "ffn.messages: found per_node with ep 1"),
    ({"ffn": {"micro_batches": 17}}, "ffn.micro_batches: found 17"),
    ({"ffn": {"gpu": "h20"}}, "cluster.pools.d.ffn.gpu: unknown field"),
    ({"ffn": {"hardware": "h2000"}}, "cluster.pools.d.ffn.hardware: found 'h2000'"),
    ({"ffn": {"shared_expert": "ffn"}}, "ffn.shared_expert: found ffn, expected attention"),
    ({"ffn": {}, "engine": {"overlap": {"two_batch": True}}}, "found in pool d with FFN workers, expected none"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_be_is_refused_in_one_line(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(dump_yaml(tree_with(**fields)))
    found = run_forked("vidur_pd", "run", tmp_path / "c.yaml", "-o", tmp_path / "out")
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.strip().splitlines()
    assert message in line
