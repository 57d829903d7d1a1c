"""The first line of a run says what it comes to. Figures in golden lines are masked: those of kernels are measured
anew at times."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.integration.small_runs import NO_HOST, config, pool, requests
from vidur_pd.metrics.console import print_result
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import PlannedPool, PlannerSummary, Summary, VerdictSummary
from vidur_pd.metrics.verdict.causes import limit_of
from vidur_pd.metrics.verdict.limits import Limit
from vidur_pd.simulation import api

PD = [pool("p", "prefill"), pool("d", "decode")]
MET = {"kind": "nixl", "handshake_us": 0, "handshake_descriptor_us": 0, "within_node": {"threads_us": 30}}
"""Instances that know each other, and a driver that copies slowly."""
NIC_25G = {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "25Gbps"}


@cache
def ran(case: str) -> Result:
    pools, qps, sections = CASES[case]
    sections = dict(sections)
    requests, prompt, output = (
        sections.pop(name, usual) for name, usual in (("n", 400), ("prompt", 2000), ("output", 64))
    )
    workload = {
        "kind": "synthetic",
        "requests": requests,
        "arrivals": {"kind": "poisson", "qps": qps},
        "lengths": {"kind": "fixed", "prefill": prompt, "decode": output},
    }
    return api.simulate(config(pools, workload=workload, **sections))


CASES: dict[str, tuple[list[dict[str, Any]], float, dict[str, Any]]] = {
    "overloaded": (PD, 40, {}),
    "refused": (PD, 5, {"engine": {"max_model_len": 2048}, "prompt": 2100}),
    "nearly idle": (PD, 0.2, {"n": 60}),
    "far from full": (PD, 1.2, {"n": 60, "output": 200}),
    "behind its decodes": (
        [pool("m", "mixed", engine={"num_kv_blocks": 2100})],
        0.3,
        {"prompt": 20_000, "output": 800, "n": 40, "slo": {"ttft_s": 2.0, "tpot_s": 0.05}},
    ),
    "host-bound": (
        PD,
        5,
        {"model": "qwen3-0.6b", "prompt": 560, "output": 8, "n": 60, "slo": {"ttft_s": 0.01, "tpot_s": 1.0}},
    ),
    "KV-bound": (
        [pool("p", "prefill", instances=2), pool("d", "decode", engine={"num_kv_blocks": 2000})],
        16,
        {"output": 400},
    ),
    "slot-bound": (
        [pool("p", "prefill", instances=2), pool("d", "decode", engine={"max_seqs": 8})],
        16,
        {"output": 300},
    ),
    "behind decode": (
        [pool("p", "prefill", engine={"num_kv_blocks": 400}), pool("d", "decode", engine={"num_kv_blocks": 400})],
        2,
        {"prompt": 4000, "output": 400, "n": 200},
    ),
    "link-bound": (PD, 18, {"topology": NIC_25G, "slo": {"ttft_s": 2.0, "tpot_s": 0.02}}),
    "descriptor-bound": (
        PD,
        0.5,
        {"kv_transfer": {"connector": MET}, "n": 60, "slo": {"ttft_s": 0.3, "tpot_s": 1.0}, "prompt": 4000},
    ),
    "held up by descriptors": (
        PD,
        3,
        {"kv_transfer": {"connector": MET}, "n": 60, "slo": {"ttft_s": 0.3, "tpot_s": 1.0}, "prompt": 4000},
    ),
    "first contact": (
        PD,
        10,
        {"kv_transfer": {"connector": "nixl"}, "n": 20, "slo": {"ttft_s": 0.6, "tpot_s": 1.0}},
    ),
    "memory-bound": (PD, 14, {"output": 400, "slo": {"ttft_s": 2.0, "tpot_s": 0.009}}),
}
GOLDEN = {
    "overloaded": "Overloaded: waiting grows by # s per second to the last arrival, by when # % of the requests have "
    "their first token; misses the SLO: # % of the requests within their limits, wanted # %; limited by prefill "
    "compute (p): prompts queue, and p is busy # % of the time in which they arrive (MFU # %). Next: more instances "
    "(cluster.pools.p.instances, now #).",
    "refused": "Nothing was served: # of # requests were not served (rejected: # prompt and output tokens exceed the "
    "context window of #). Next: longer contexts or more KV blocks (engine.max_model_len, engine.num_kv_blocks).",
    "nearly idle": "Meets the SLO: # % of the requests within their limits, wanted # %; nearly idle: p holds # % of "
    "its batch slots and computes # % of its FLOPs, d holds # % of its batch slots and computes # % of its FLOPs.",
    "far from full": "Meets the SLO: # % of the requests within their limits, wanted # %; iterations are far from "
    "full: p is busy # % of the time under load, holds # % of its batch slots and computes # % of its FLOPs, d is "
    "busy # % of the time under load, holds # % of its batch slots and computes # % of its FLOPs.",
    "behind its decodes": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by KV room "
    "(m): requests wait for room: KV blocks are taken to # % on average, # % at most, while prompts are # % of its "
    "busy time. Next: more instances (cluster.pools.m.instances, now #), or fp# KV (engine.kv).",
    "host-bound": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by host (p): GPUs "
    "wait for the host in # % of the time of prompts (MFU # %). Next: a faster host (engine.host), or more in an "
    "iteration (engine.max_batched_tokens), or more instances (cluster.pools.p.instances, now #).",
    "KV-bound": "Overloaded: waiting grows by # s per second to the last arrival, by when # % of the requests have "
    "their first token; misses the SLO: # % of the requests within their limits, wanted # %; limited by KV room (d): "
    "requests wait for room: KV blocks are taken to # % on average, # % at most. Next: more instances "
    "(cluster.pools.d.instances, now #), or fp# KV (engine.kv).",
    "slot-bound": "Overloaded: waiting grows by # s per second to the last arrival, by when # % of the requests have "
    "their first token; misses the SLO: # % of the requests within their limits, wanted # %; limited by batch slots "
    "(d): requests wait # s on average for a place in the batch, # decode iterations; a rank has # requests in an "
    "iteration, of # slots, and KV blocks are taken to # % at most. Next: more slots "
    "(cluster.pools.d.engine.max_seqs, now #), or more instances (cluster.pools.d.instances, now #).",
    "behind decode": "Overloaded: waiting grows by # s per second to the last arrival, by when # % of the requests "
    "have their first token; misses the SLO: # % of the requests within their limits, wanted # %; limited by KV room "
    "(d): requests wait for room: KV blocks are taken to # % on average, # % at most; computed prompts hold # % of "
    "the KV of p until then. Next: more instances (cluster.pools.d.instances, now #), or fp# KV (engine.kv).",
    "link-bound": "Overloaded: waiting grows by # s per second to the last arrival, by when # % of the requests have "
    "their first token; misses the SLO: # % of the requests within their limits, wanted # %; limited by a link: gpu# "
    "→ leaf#.# is used to # %, # % in its fullest window. Next: faster NICs (cluster.topology.nic).",
    "descriptor-bound": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by KV "
    "transfer: KV moves no faster than its descriptors are posted (# % of the time on the way). Next: larger KV "
    "blocks (engine.block_tokens), of which each is a descriptor.",
    "held up by descriptors": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by KV "
    "transfer (d): steps stand still in # % of the run, while descriptors of KV transfers are posted. Next: larger "
    "KV blocks (engine.block_tokens), of which each is a descriptor.",
    "first contact": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by KV transfer: "
    "instances meet for the first time, which is # % of the set-up of KV transfers. Next: warm up every prefill–decode "
    "pair with one request; to simulate a warmed-up cluster, set kv_transfer.connector.handshake_us and "
    "handshake_descriptor_us to #.",
    "memory-bound": "Misses the SLO: # % of the requests within their limits, wanted # %; limited by decode memory "
    "bandwidth (d): a rank decodes # requests a step (memory bandwidth # %, MFU # %). Next: fewer requests a step: "
    "more instances (cluster.pools.d.instances, now #), or weights over more GPUs.",
}


def masked(text: str) -> str:
    """Numbers as ``#``, those that name nodes too."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def test_of_pools_that_hold_one_request_each_more_decode_helps_as_the_verdict_says() -> None:
    """A request has 4,400 tokens, 275 of 400 blocks: one at a time in either pool, never full by blocks."""
    few = {"num_kv_blocks": 400}

    def served(prefill: int, decode: int) -> Summary:
        pools = [pool("p", "prefill", instances=prefill, engine=few), pool("d", "decode", instances=decode, engine=few)]
        workload = {
            "kind": "synthetic",
            "requests": 60,
            "arrivals": {"kind": "poisson", "qps": 2},
            "lengths": {"kind": "fixed", "prefill": 4000, "decode": 400},
        }
        return api.simulate(config(pools, workload=workload, routing={"decode_policy": "round_robin"})).summary

    now = served(1, 1)
    assert all((each.kv_use_max or 0.0) < 0.9 for each in now.pools)
    assert now.verdict is not None
    assert (now.verdict.limit, now.verdict.where) == (Limit.KV_ROOM, "d")
    rate = now.throughput.requests_per_s
    assert served(2, 1).throughput.requests_per_s < 1.1 * rate
    assert served(1, 2).throughput.requests_per_s > 1.8 * rate


def test_larger_blocks_help_transfers_that_their_descriptors_hold_up_as_the_verdict_says() -> None:
    """Blocks of 64 tokens are a quarter as many descriptors."""
    transfers_s = []
    for block_tokens in (16, 64):
        sections = CASES["descriptor-bound"][2] | {"engine": {"block_tokens": block_tokens}}
        workload = {
            "kind": "synthetic",
            "requests": 20,
            "arrivals": {"kind": "poisson", "qps": 0.5},
            "lengths": {"kind": "fixed", "prefill": sections.pop("prompt"), "decode": 64},
        }
        del sections["n"]
        found = api.simulate(config(PD, workload=workload, **sections)).summary
        assert found.connector is not None
        assert found.communication.kv_transfers_s == pytest.approx(found.connector.posting_s, rel=0.02)
        transfers_s.append(found.communication.kv_transfers_s)
    assert transfers_s[0] == pytest.approx(4 * transfers_s[1], rel=0.03)


@pytest.mark.parametrize("case", list(CASES))
def test_the_first_line_says_what_a_run_comes_to(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary = ran(case).summary
    assert summary.verdict is not None
    assert masked(summary.verdict.sentence).replace("leaf#.#", "leaf#") == GOLDEN[case].replace("leaf#.#", "leaf#")
    print_result(summary)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(" ".join(summary.verdict.sentence.split()))


TTFT = (
    "TTFT limited by prefill compute (p): prompts take that long by themselves (MFU # %)",
    "Next for TTFT: prompts over more GPUs (cluster.pools.p.tp, now #), or a faster GPU.",
)
TPOT = (
    "TPOT limited by decode memory bandwidth (d): a rank decodes # requests a step (memory bandwidth # %, MFU # %)",
    "Next for TPOT: fewer requests a step: more instances (cluster.pools.d.instances, now #), or weights over more "
    "GPUs.",
)


@pytest.mark.parametrize(
    ("slo", "first", "second"),
    [
        ({"ttft": {"p90": 0.1}, "tpot": {"p90": 0.009}}, TTFT, TPOT),
        ({"ttft": {"p90": 0.3}, "tpot": {"p90": 0.005}}, TPOT, TTFT),
        ({"ttft_s": 0.15, "tpot_s": 0.005}, TPOT, TTFT),
    ],
    ids=["ttft-first", "tpot-first", "share"],
)
def test_both_pools_are_named_where_ttft_and_tpot_are_missed(
    slo: dict[str, Any], first: tuple[str, str], second: tuple[str, str]
) -> None:
    """That comes first which is missed by more."""
    workload = {
        "kind": "synthetic",
        "requests": 400,
        "arrivals": {"kind": "poisson", "qps": 16},
        "lengths": {"kind": "fixed", "prefill": 2000, "decode": 400},
    }
    verdict = api.simulate(config(PD, workload=workload, slo=slo)).summary.verdict
    assert verdict is not None
    assert masked(verdict.sentence).endswith(f"; {first[0]}; {second[0]}. {first[1]} {second[1]}")
    assert verdict.also is not None
    assert {(verdict.limit, verdict.where), (verdict.also.limit, verdict.also.where)} == {
        (Limit.PREFILL_COMPUTE, "p"),
        (Limit.DECODE_MEMORY, "d"),
    }


def test_one_pool_is_named_where_the_other_misses_nothing() -> None:
    assert all((verdict := ran(case).summary.verdict) is not None and verdict.also is None for case in GOLDEN)


def test_the_limit_is_named_apart_from_the_sentence() -> None:
    named = {case: ran(case).summary.verdict for case in CASES if case not in ("nearly idle", "far from full")}
    limits = {case: verdict.limit for case, verdict in named.items() if verdict is not None}
    assert limits == {
        "overloaded": Limit.PREFILL_COMPUTE,
        "refused": Limit.REFUSALS,
        "host-bound": Limit.HOST,
        "KV-bound": Limit.KV_ROOM,
        "slot-bound": Limit.BATCH_SLOTS,
        "behind decode": Limit.KV_ROOM,
        "behind its decodes": Limit.KV_ROOM,
        "link-bound": Limit.LINK,
        "descriptor-bound": Limit.KV_TRANSFER,
        "held up by descriptors": Limit.KV_TRANSFER,
        "first contact": Limit.KV_TRANSFER,
        "memory-bound": Limit.DECODE_MEMORY,
    }


def test_what_limits_is_what_helps() -> None:
    """The advice, followed: twice the prefill instances, eight times the NIC, room for KV, all slots, a host that takes
    no time: all serve more in time."""
    followed: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "overloaded": ([pool("p", "prefill", instances=2), pool("d", "decode")], {}),
        "KV-bound": ([pool("p", "prefill", instances=2), pool("d", "decode")], {}),
        "slot-bound": ([pool("p", "prefill", instances=2), pool("d", "decode")], {}),
        "behind its decodes": ([pool("m", "mixed", engine={"num_kv_blocks": 8400})], {}),
        "host-bound": (PD, {"engine": NO_HOST}),
        "link-bound": (PD, {"topology": {**NIC_25G, "nic": "200Gbps"}}),
    }
    for case, (pools, changed) in followed.items():
        _, qps, sections = CASES[case]
        CASES[f"{case}, advice followed"] = (pools, qps, {**sections, **changed})
        after = ran(f"{case}, advice followed").summary
        del CASES[f"{case}, advice followed"]
        before = ran(case).summary
        assert (after.goodput_share or 0.0) > 2 * (before.goodput_share or 0.0), case


def test_occupancy_tells_a_pool_that_holds_little_from_one_that_is_full() -> None:
    """A decode instance that is never without a request is busy all the time, with 8 slots of 8 or with 4 of 1,024."""
    full, light = (ran(case).summary.pools[-1] for case in ("slot-bound", "overloaded"))
    assert (full.busy_share or 0.0) > 0.95 < (light.busy_share or 0.0)
    assert full.batch_use == pytest.approx(1.0, abs=0.05)
    assert (light.batch_use or 1.0) < 0.02


def test_shares_are_those_of_the_table_of_iterations() -> None:
    """Recomputed from what each iteration says: requests, lengths, compute and communication."""
    result = ran("memory-bound")
    summary, columns = result.summary, result.iterations.columns()
    for each in summary.pools:
        mine = columns["pool"] == each.name
        length_s = (columns["end_s"] - columns["start_s"])[mine]
        requests = columns["requests"][mine]
        assert each.batch_mean == pytest.approx(requests.mean())
        assert each.batch_use == pytest.approx(
            (requests * length_s).sum() / summary.makespan_s / each.max_seqs, rel=1e-9
        )
        assert each.busy_share == pytest.approx(length_s.sum() / summary.makespan_s, rel=1e-9)
        with_prompts = length_s[columns["prefill_tokens"][mine] > 0].sum()
        assert each.prompts_share == pytest.approx(with_prompts / length_s.sum(), abs=1e-9)
        for found, is_kind in (
            (each.prompts_host_share, columns["prefill_tokens"][mine] > 0),
            (each.decodes_host_share, columns["prefill_tokens"][mine] == 0),
        ):
            if not is_kind.any():
                assert found is None
                continue
            waits_s = columns["host_s"][mine][is_kind].sum()
            assert found == pytest.approx(waits_s / length_s[is_kind].sum(), rel=1e-9)
            assert waits_s > 0


@pytest.mark.parametrize(("width", "servers"), [(8, 1), (4, 1), (2, 2), (1, 4)])
def test_tensor_parallel_groups_that_cross_servers_are_named(
    width: int, servers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = {"kind": "single_switch", "gpus_per_node": width}
    result = api.simulate(config([pool("m", "mixed", tp=4)], topology=topology), requests([(0, 100, 2)]))
    print_result(result.summary)
    line = (
        f"pool m: the 4 GPUs of a tensor-parallel group are on {servers} servers, so that their all-reduces cross NICs"
    )
    assert result.summary.pools[0].tp_servers == servers
    assert (line in " ".join(capsys.readouterr().out.split())) == (servers > 1)


def test_exposed_host_time_is_printed_where_it_is_much(capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt of 100 tokens is launched kernel by kernel in longer than it computes, one of 8,000 tokens is not; nor
    does anybody wait for a host that takes no time."""
    pools, line = [pool("p", "mixed")], "GPUs wait for the host in "
    for tokens, engine, is_printed in ((100, {}, True), (8000, {}, False), (100, NO_HOST, False)):
        rows = requests([(200_000 * row, tokens, 1) for row in range(5)])
        result = api.simulate(config(pools, engine=engine), rows)
        print_result(result.summary)
        assert (line in capsys.readouterr().out) == is_printed
        share = result.summary.pools[0].prompts_host_share
        assert share is not None
        assert (share >= 0.1) == is_printed


def test_a_verdict_without_targets_met_and_one_of_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    sections = {**CASES["overloaded"][2], "slo": {"ttft": {"p90": 2.0}, "tpot": {"p90": 0.05}}}
    CASES["percentiles"] = (PD, 10, sections)
    summary: Summary = ran("percentiles").summary
    del CASES["percentiles"]
    assert summary.verdict is not None
    assert masked(summary.verdict.sentence).startswith(
        "Meets the SLO: TTFT p# # ms, limit # s (# % to spare), TPOT p# # ms, limit # ms (# % to spare); would be "
        "limited next by "
    )
    print_result(replace(summary, verdict=None))
    assert "SLO" not in capsys.readouterr().out


ONE_SERVER = {"kind": "rail_optimized", "gpus_per_node": 8}
TENSOR_PARALLEL: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "engine": {"framework": "vllm", "host": "virtual-machine"},
    "slo": {"ttft": {"p90": 1.0}, "tpot": {"p90": 0.02}},
}


def test_steps_with_prompts_that_wait_for_their_host_are_the_hosts() -> None:
    """Smaller chunks would only be more launches: TPOT is missed by more with half of them."""
    found, smaller = (
        api.simulate(
            config(
                [pool("m", "mixed", tp=4)],
                topology=ONE_SERVER,
                **{**TENSOR_PARALLEL, "engine": {**TENSOR_PARALLEL["engine"], "max_batched_tokens": tokens}},
            ),
            requests([(83_000 * row, 1500, 170) for row in range(150)]),
        ).summary
        for tokens in (8192, 4096)
    )
    assert found.verdict is not None
    assert masked(found.verdict.sentence).startswith(
        "Misses the SLO: TPOT p# # ms, limit # ms (# times); limited by host (m): GPUs wait for the host in # % of the "
        "time of iterations that compute prompts as well, # % of its busy time (MFU # %). Next: a faster host "
        "(engine.host), or chunks that graphs replay"
    )
    assert (smaller.tpot_s.p90 or 0.0) >= (found.tpot_s.p90 or 0.0)


def test_the_error_of_tpot_has_the_host_of_iterations_with_prompts() -> None:
    """Decodes alone are replayed from graphs and wait for no host; among prompts they wait for launches."""
    apart = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4)]
    rows, errors = requests([(83_000 * row, 1500, 170) for row in range(100)]), []
    for pools in ([pool("m", "mixed", tp=4)], apart):
        result = api.simulate(config(pools, topology=ONE_SERVER, **TENSOR_PARALLEL), rows)
        errors.append(result.summary.model_error.tpot or 0.0)
    assert errors[0] > errors[1] + 0.02


def test_an_objective_that_no_request_has_is_met_and_said_to_be_of_none() -> None:
    """Of answers of one token there is no TPOT."""
    rows = requests([(1_000_000 * row, 900, 1) for row in range(20)])
    result = api.simulate(config([pool("m", "mixed")], slo={"ttft": {"p90": 1.0}, "tpot": {"p90": 0.02}}), rows)
    assert result.summary.verdict is not None
    assert masked(result.summary.verdict.sentence).startswith(
        "Meets the SLO: TTFT p# # ms, limit # s (# % to spare), TPOT p# of no request, limit # ms;"
    )
    alone = api.simulate(config([pool("m", "mixed")], slo={"tpot": {"p90": 0.02}}), rows).summary.verdict
    assert alone is not None
    assert masked(alone.sentence).startswith("Meets the SLO: TPOT p# of no request, limit # ms;")


def chatting(decodes: int = 2, slots: int = 20, faults: tuple[dict[str, Any], ...] = (), **sections: Any) -> Summary:
    """300 requests in 21 s on two instances that prefill, with a GPU and a server each, and on two that decode."""
    lengths = {
        "kind": "lognormal",
        "prefill": {"mu": 7.2, "sigma": 0.8, "min": 16, "max": 8000},
        "decode": {"mu": 5.3, "sigma": 0.7, "min": 4, "max": 1000},
    }
    sections = {
        "workload": {
            "kind": "synthetic",
            "requests": 300,
            "arrivals": {"kind": "poisson", "qps": 14},
            "lengths": lengths,
        },
        "topology": {"kind": "rail_optimized", "gpus_per_node": 1, "nic": "400Gbps"},
        "engine": {"max_batched_tokens": 8192},
        "routing": {"policy": "least_requests"},
        "kv_transfer": {"mode": "pull", "first_token": "decode_after_transfer"},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.02, "attainment": 0.95},
        "faults": list(faults),
        "recovery": {"degraded": "drain"},
        **sections,
    }
    pools = [
        pool("p", "prefill", instances=2),
        pool("d", "decode", instances=decodes, engine={"max_seqs": slots}),
    ]
    return api.simulate(config(pools, **sections)).summary


def verdict_of(summary: Summary) -> VerdictSummary:
    assert summary.verdict is not None
    return summary.verdict


def test_waits_between_iterations_are_those_of_descriptors_where_steps_stand_still_for_them() -> None:
    """Steps stand still for a fifth to a half of the run, and running requests wait for as long."""
    transfers = {"connector": {**MET, "within_node": {"threads_us": 9}}}
    arrivals = requests([(333_000 * row, 4000, 300) for row in range(60)])
    found = api.simulate(config(PD, kv_transfer=transfers), arrivals).summary
    assert found.connector is not None
    assert 0.2 < (found.connector.stalls_s or 0.0) / found.makespan_s < 0.5
    assert limit_of("stall", found).limit is Limit.KV_TRANSFER
    assert masked(limit_of("stall", found).reason) == (
        "steps stand still in # % of the run, while descriptors of KV transfers are posted"
    )
    few = replace(found, connector=replace(found.connector, stalls_s=0.1 * (found.connector.stalls_s or 0.0)))
    assert limit_of("stall", few).limit is Limit.BATCH_SLOTS


def test_waits_for_a_place_in_the_batch_are_slots_and_no_lack_of_kv() -> None:
    """Ramp and drain keep the mean below nine tenths of the slots; KV blocks are mostly free. More slots help."""
    found = chatting(decodes=1)
    last = found.pools[-1]
    assert (last.batch_mean or 0.0) < 0.9 * last.max_seqs
    assert (last.kv_use_max or 1.0) < 0.3
    verdict = verdict_of(found)
    assert (verdict.limit, verdict.where) == (Limit.BATCH_SLOTS, "d")
    assert masked(verdict.reason) == (
        "requests wait # s on average for a place in the batch, # decode iterations; a rank has # requests in an "
        "iteration, of # slots, and KV blocks are taken to # % at most"
    )
    assert verdict.advice.startswith("more slots (cluster.pools.d.engine.max_seqs, now 20), or more instances (")
    assert (found.goodput_share or 1.0) < 0.7
    assert (chatting(decodes=1, slots=60).goodput_share or 0.0) > 0.99


def down(kind: str, **target: Any) -> dict[str, Any]:
    return {"kind": kind, **target, "at_s": 2, "for_s": 10}


@pytest.mark.parametrize(
    ("faults", "where", "words"),
    [
        ((down("instance", instance="p-0"), down("instance", instance="p-1")), "p", "p-0 and p-1 were down"),
        ((down("nic", gpu=2), down("nic", gpu=3)), "", "the NICs of gpu2 and gpu3 were down"),
        ((down("gpu", gpu=2), down("gpu", gpu=3)), "", "gpu2 and gpu3 were down"),
        ((down("instance", instance="d-0"),), "d", "d-0 was down"),
    ],
    ids=["prefill", "NICs", "GPUs", "one of two"],
)
def test_faults_are_the_limit_of_requests_that_are_late_for_them(
    faults: tuple[dict[str, Any], ...], where: str, words: str
) -> None:
    """Without them all are in time, so that neither the first token nor those after it are late for anything else."""
    assert (chatting(slots=16).goodput_share or 0.0) > 0.99
    verdict = verdict_of(chatting(slots=16, faults=faults))
    assert verdict.outcome != "meets"
    assert (verdict.limit, verdict.where, verdict.also) == (Limit.FAULTS, where, None)
    assert verdict.reason.endswith(f" {words} from 2 s to 12 s")
    assert verdict.advice.startswith("spare capacity")


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (
            tuple({"kind": "straggler", "instance": f"d-{row}", "factor": 4, "at_s": 2} for row in range(2)),
            "d-0 and d-1 were slow from 2 s to the end",
        ),
        (
            tuple({"kind": "slow_gpu", "gpu": gpu, "factor": 4, "at_s": 2} for gpu in (2, 3)),
            "gpu2 and gpu3 were slow from 2 s to the end",
        ),
    ],
    ids=["stragglers", "GPUs"],
)
def test_faults_that_nothing_compares_with_are_mentioned_with_the_limit(
    faults: tuple[dict[str, Any], ...], words: str
) -> None:
    verdict = verdict_of(chatting(faults=faults, recovery={"degraded": "keep"}))
    assert verdict.limit != Limit.FAULTS
    assert f"; faults meanwhile: {words} (100 % of the requests beyond the " in verdict.sentence


def test_a_short_fault_of_an_overloaded_cluster_is_not_its_limit() -> None:
    short = {"kind": "nic", "gpu": 0, "at_s": 5, "for_s": 0.05}
    verdict = verdict_of(chatting(decodes=1, faults=(short,)))
    assert (verdict.limit, verdict.where) == (Limit.BATCH_SLOTS, "d")


def test_times_that_a_link_flaps_are_one_fault() -> None:
    flaps = {
        "kind": "link_flap",
        "between": ["gpu2", "leaf0.0"],
        "at_s": 4,
        "count": 6,
        "down_s": 1.0,
        "up_s": 0.2,
    }
    other = {**flaps, "between": ["gpu3", "leaf0.0"]}
    verdict = verdict_of(chatting(faults=(flaps, other), recovery={"transfer_retries": 20}))
    assert verdict.limit == Limit.FAULTS
    assert "the links gpu2 - leaf0.0 and gpu3 - leaf0.0 were flapping from 4 s to 11 s" in verdict.reason


def test_more_instances_are_the_planners_to_start_where_some_never_served() -> None:
    plain = ran("overloaded").summary
    assert limit_of("queue", plain).advice == "more instances (cluster.pools.p.instances, now 1)"
    pools = (replace(plain.pools[0], instances=12), *plain.pools[1:])
    for most, advice in (
        (
            4,
            "more instances in service (the planner ran at most 4 of 12: planner.options, planner.interval_s, "
            "planner.pools.p.min)",
        ),
        (12, "more instances (cluster.pools.p.instances, now 12)"),
    ):
        planner = PlannerSummary(policy="load", pools=(PlannedPool(name="p", instances=12, serving_most=most),))
        assert limit_of("queue", replace(plain, pools=pools, planner=planner)).advice == advice


def test_limits_of_each_request_that_percentiles_leave_out_are_said_not_to_be_judged() -> None:
    rows = requests([(100_000 * row, 900, 20) for row in range(40)])
    starts = {}
    for tpot_s in (1e-4, 1.0):
        slo = {"ttft": {"p90": 2.0}, "tpot_s": tpot_s}
        found = api.simulate(config([pool("m", "mixed")], slo=slo), rows).summary
        assert verdict_of(found).outcome == "meets"
        starts[tpot_s] = verdict_of(found).sentence.partition("; ")
    assert starts[1e-4][0].startswith("Meets the SLO's percentile targets: TTFT p90 ")
    assert starts[1e-4][2].startswith(
        "only 0.0 % of the requests meet tpot_s (0.1 ms), which is not judged because slo has percentile targets; "
    )
    assert starts[1.0][0].startswith("Meets the SLO: TTFT p90 ")
    assert "not judged" not in starts[1.0][2]
