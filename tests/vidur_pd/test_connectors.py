"""Costs of connectors, by hand: descriptors, handshakes, hosts that copy, engines that look once in a step.

Qwen3-8B keeps 36 layers of keys and values, 147,456 B per token: a block of 16 tokens is 72 descriptors of 32 KiB.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aicb.iteration.host import HostModel
from boundary.errors import InputError
from netsim.units import PS_PER_MS, PS_PER_S, PS_PER_US
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config.kv_transfer import known_connectors
from vidur_pd.metrics.console import _warnings
from vidur_pd.metrics.requests import RequestRecord
from vidur_pd.metrics.result import Result
from vidur_pd.workload.request import RequestStatus

PAIR = [pool("p", "prefill"), pool("d", "decode")]
ENGINE = {"estimator": "roofline", "request_latency_ms": 0, "num_kv_blocks": 4096, "prefix_caching": False}
TOKEN_BYTES = 147_456
LATER_US = 5_000_000
NIXL: dict[str, Any] = {"kind": "nixl", "host_us": 0}
EACH_PS = 9_000_000
"""To post one descriptor of few between GPUs of a node."""


def run(rows: list[tuple[int, int, int]], connector: Any, **sections: Any) -> list[RequestRecord]:
    """Requests by (arrival in µs, prompt tokens, output tokens), in this order."""
    return result_of(rows, connector, **sections).requests


def result_of(rows: list[tuple[int, int, int]], connector: Any, **sections: Any) -> Result:
    engine = ENGINE | sections.pop("engine", {})
    transfer = {"connector": connector, "setup_ms": 0} | sections.pop("kv_transfer", {})
    pools = sections.pop("pools", PAIR)
    return simulate(config(pools, engine=engine, kv_transfer=transfer, **sections), rows)


def ps(stamp: int | None) -> int:
    assert stamp is not None
    return stamp


def transfer_ps(record: RequestRecord) -> int:
    return ps(record.kv_arrived_ps) - ps(record.kv_sent_ps)


def test_kv_moves_as_fast_as_its_descriptors_are_posted() -> None:
    """160 tokens are 10 blocks, 720 descriptors, 6.48 ms at 9 µs each; their 23.6 MB would take 64 µs on NVLink.
    Descriptors of 160 tokens at half a microsecond take 36: the bytes decide."""
    (record,) = run([(0, 160, 2)], NIXL)
    assert transfer_ps(record) == pytest.approx(6480 * PS_PER_US, abs=2 * PS_PER_US)
    assert record.kv_posting_ps == 720 * EACH_PS
    assert record.kv_bytes == 160 * TOKEN_BYTES
    (merged,) = run([(0, 160, 2)], NIXL | {"descriptor_tokens": 160, "within_node": {"descriptor_us": 0.5}})
    assert merged.kv_posting_ps == 72 * 500_000
    assert transfer_ps(merged) == pytest.approx(160 * TOKEN_BYTES / 370.8e9 * PS_PER_S, rel=0.05)


def test_a_block_that_is_not_full_is_a_descriptor_too() -> None:
    (record,) = run([(0, 17, 2)], NIXL)
    assert record.kv_posting_ps == 2 * 72 * EACH_PS


def test_threads_post_many_descriptors() -> None:
    """14 blocks are 1,008, posted by one thread; 15 are 1,080, of which the first 1,024 are one thread's; 100 are 7,200
    of all threads."""
    taken_us = {}
    for blocks in (14, 15, 100):
        (record,) = run([(0, 16 * blocks, 2)], NIXL)
        taken_us[blocks] = ps(record.kv_posting_ps) / PS_PER_US
    assert taken_us == pytest.approx({14: 1008 * 9.0, 15: 1024 * 5.7, 100: 7200 * 3.7})


def test_nics_read_with_fewer_costs_than_gpus_of_a_node_copy() -> None:
    """Two nodes of one GPU: 720 posts of 0.18 µs; the bytes take longer, 0.47 ms at 50 GB/s."""
    apart = {"topology": {"kind": "rail_optimized", "gpus_per_node": 1}}
    (record,) = run([(0, 160, 2)], NIXL, **apart)
    assert record.kv_posting_ps == 720 * 180_000
    assert transfer_ps(record) == pytest.approx(160 * TOKEN_BYTES / 50e9 * PS_PER_S, rel=0.05)


def test_one_gpu_posts_for_all_whom_it_reads_from() -> None:
    """A decode GPU reads half of the heads from each of two: 2 · 720 descriptors of half the size, which it posts
    itself, in two transfers of too few for threads. With decode over two GPUs and prefill on one, each posts 720."""
    apart = {"topology": {"kind": "rail_optimized", "gpus_per_node": 4}}
    (reads_two,) = run([(0, 160, 2)], NIXL, pools=[pool("p", "prefill", tp=2), pool("d", "decode")], **apart)
    assert reads_two.kv_posting_ps == 1440 * EACH_PS
    assert transfer_ps(reads_two) == pytest.approx(1440 * EACH_PS, abs=2 * PS_PER_US)
    (read_by_two,) = run([(0, 160, 2)], NIXL, pools=[pool("p", "prefill"), pool("d", "decode", tp=2)], **apart)
    assert read_by_two.kv_posting_ps == 720 * EACH_PS
    assert transfer_ps(read_by_two) == pytest.approx(720 * EACH_PS, abs=2 * PS_PER_US)


def test_instances_shake_hands_once() -> None:
    """4,095 blocks of the prefill instance (one of 4,096 is vLLM's null block), 36 layers, keys and values."""
    first, second = run([(0, 160, 2), (LATER_US, 160, 2)], NIXL)
    assert first.kv_handshake_ps == round((1000 + 4095 * 72 * 0.225) * PS_PER_US)
    assert ps(first.kv_sent_ps) - ps(first.kv_forwarded_ps) == first.kv_handshake_ps
    assert second.kv_handshake_ps == 0


def test_who_comes_during_a_handshake_waits_for_its_end() -> None:
    """And is posted after the one who came first."""
    first, second = run([(0, 160, 2), (10_000, 160, 2)], NIXL)
    assert second.kv_handshake_ps
    assert ps(second.kv_sent_ps) - ps(first.kv_sent_ps) == 720 * EACH_PS


def test_the_decode_instance_gets_its_request_from_the_frontend() -> None:
    """1.2 ms and 0.055 µs per token after the prefill, and then the 3 ms of every request."""
    (record,) = run([(0, 1000, 2)], "nixl", engine={"request_latency_ms": 3})
    hop_ps = ps(record.kv_forwarded_ps) - ps(record.prefill_completed_ps)
    assert hop_ps == round((1200 + 55 + 3000) * PS_PER_US)


def test_a_push_is_not_kept_waiting_by_the_frontend() -> None:
    (record,) = run(
        [(0, 160, 2)], NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0}, kv_transfer={"mode": "push"}
    )
    assert record.kv_forwarded_ps is None
    assert record.kv_sent_ps == record.prefill_completed_ps


def test_an_engine_that_posts_stands_still_for_a_share_of_it() -> None:
    """1,600 tokens, 7,200 descriptors of 3.7 µs: 26.6 ms. Another request decodes meanwhile: half of that its engine
    stands still, less the step that was in progress when it began to post."""
    rows = [(0, 160, 200), (LATER_US // 10, 1600, 2)]
    result = result_of(rows, NIXL | {"within_node": {"step_share": 0.5}})
    posting_ps = 7200 * 3_700_000
    assert result.requests[1].kv_posting_ps == posting_ps
    assert transfer_ps(result.requests[1]) == pytest.approx(posting_ps, rel=0.01)
    gaps_s, _ = result.iterations.gaps()
    steps_s, _ = result_of(rows, NIXL | {"within_node": {"step_share": 0.0}}).iterations.gaps()
    step_ps = float(np.median(steps_s)) * PS_PER_S
    assert float(steps_s.max()) * PS_PER_S < 2 * step_ps
    assert float(gaps_s.max()) * PS_PER_S == pytest.approx(posting_ps / 2, abs=step_ps)


def test_steps_stand_still_for_their_share_while_transfers_wait_for_each_other() -> None:
    """Three transfers of 7,200 descriptors at 40 µs, 288 ms each, are posted one after the other; a decode stands still
    for 5 % of each, 14 ms, not until the last is posted."""
    costs = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0}
    costs["within_node"] = {"descriptor_us": 40, "threads_from": None, "step_share": 0.05}
    result = result_of([(0, 160, 400), *[(LATER_US // 10, 1600, 2)] * 3], costs)
    sent_ps = sorted(ps(record.kv_sent_ps) for record in result.requests[1:])
    assert np.diff(sent_ps) == pytest.approx(7200 * 40_000_000, rel=0.01)
    gaps_s, _ = result.iterations.gaps()
    assert 0.0144 < float(gaps_s.max()) < 3 * 0.0144 + 0.02
    assert result.summary.connector is not None
    assert result.summary.connector.stalls_s == pytest.approx(3.1 * 0.0144, rel=0.01)  # and a tenth of one before
    assert result.summary.connector.waits_s == pytest.approx((1 + 2) * 0.288, rel=0.02)


def test_threads_of_their_own_hold_no_steps() -> None:
    """SGLang's prefill posts from other threads, vLLM's decode engine in its steps."""
    rows = [(0, 160, 200), (LATER_US // 10, 1600, 2)]
    stalls_s = []
    for kind in ("sglang_nixl", "nixl"):
        found = result_of(rows, {"kind": kind, "handshake_us": 0, "handshake_descriptor_us": 0}).summary.connector
        assert found is not None
        assert found.posting_s
        stalls_s.append(found.stalls_s)
    assert stalls_s[0] == 0
    assert stalls_s[1] > 0.02


def test_first_contacts_of_one_engine_are_posted_one_after_the_other() -> None:
    """Two prefill instances meet one decode instance with 7,200 descriptors each, 26.6 ms; a third transfer, of a pair
    that knows each other by then, waits for both."""
    pools = [pool("p", "prefill", instances=2), pool("d", "decode")]
    rows = [(0, 1600, 2), (0, 1600, 2), (120_000, 160, 2)]
    one_node = {"topology": {"kind": "rail_optimized", "gpus_per_node": 4}}
    records = run(rows, NIXL, pools=pools, routing={"policy": "round_robin"}, **one_node)
    first, second = sorted(records[:2], key=lambda record: ps(record.kv_sent_ps))
    assert first.prefill_instance != second.prefill_instance
    assert first.kv_handshake_ps
    assert second.kv_handshake_ps
    assert ps(second.kv_sent_ps) - ps(first.kv_sent_ps) == pytest.approx(7200 * 3_700_000, rel=0.05)
    third = records[2]
    assert third.kv_handshake_ps == 0
    assert ps(third.kv_sent_ps) >= ps(second.kv_sent_ps) + 7200 * 3_700_000 - PS_PER_US


def test_each_data_parallel_rank_posts_for_itself() -> None:
    """Four requests that four ranks of a decode instance read at once are not posted one after the other."""
    pools = [pool("p", "prefill"), pool("d", "decode", dp=4, ep=1)]
    wide = {"topology": {"kind": "rail_optimized", "gpus_per_node": 8}}
    met = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0}
    records = run([(0, 160, 2)] * 4, met, pools=pools, routing={"rank_policy": "round_robin"}, **wide)
    sent_ps = sorted(ps(record.kv_sent_ps) for record in records)
    assert sent_ps[-1] - sent_ps[0] < 720 * EACH_PS
    (waits_s,) = {result_of([(0, 160, 2)] * 4, met, pools=pools, **wide).summary.connector.waits_s}
    assert waits_s == 0


def test_stripes_move_no_faster_than_they_are_posted() -> None:
    """7,200 descriptors of 10 µs, 72 ms, on two NICs of 400 Gbit/s, which need 2.4 ms."""
    nodes = {"topology": {"kind": "rail_optimized", "gpus_per_node": 2}}
    costs = {"kind": "nixl", "between_nodes": {"descriptor_us": 10}, "nics": 2, "host_us": 0, "handshake_us": 0}
    pools = [pool("p", "prefill"), pool("x", "mixed"), pool("d", "decode")]
    (record,) = run([(0, 1600, 2)], costs, pools=pools, **nodes)
    assert record.kv_posting_ps == 7200 * 10_000_000
    assert transfer_ps(record) == pytest.approx(7200 * 10_000_000, rel=0.01)


def test_a_path_through_hosts_takes_the_bytes_at_their_rate() -> None:
    """Descriptors of 32 KiB take 13 µs and 69.7 at 0.47 GB/s, however many there are and wherever the GPUs are."""
    for gpus_per_node in (1, 2):
        apart = {"topology": {"kind": "rail_optimized", "gpus_per_node": gpus_per_node}}
        (record,) = run([(0, 1600, 2)], NIXL | {"path": "host"}, **apart)
        assert record.kv_posting_ps == pytest.approx(7200 * (13e6 + 32_768 / 0.47e9 * PS_PER_S), rel=1e-6)
        assert transfer_ps(record) == pytest.approx(ps(record.kv_posting_ps), rel=0.01)
    (stated,) = run([(0, 1600, 2)], NIXL | {"path": "host", "through_host": {"gbytes_per_s": 10}})
    assert stated.kv_posting_ps == pytest.approx(7200 * (13e6 + 32_768 / 10e9 * PS_PER_S), rel=1e-6)


def test_host_time_is_as_much_longer_as_launches_of_the_host_are(tmp_path: Path) -> None:
    """Twice the time of a launch: twice the host time of a transfer; descriptors take the driver as long as before."""
    slow = tmp_path / "slow.yaml"
    slow.write_text(f"source: twice the default\neager_launch_us: {2 * HostModel().eager_launch_us}\n")
    known = {"kind": "nixl", "handshake_us": 0, "handshake_descriptor_us": 0}
    cases: list[tuple[dict[str, Any], float, int]] = [
        ({}, 2600, 2),
        ({"host_us": 5000}, 5000, 1),  # stated: that of the host that is simulated
        ({"host_us": 5000, "measured_on": "xeon-vm-32"}, 5000, 2),
    ]
    for costs, host_us, longer in cases:
        (usual,), (slower,) = (run([(0, 1600, 2)], known | costs, engine=e) for e in ({}, {"host": str(slow)}))
        assert slower.kv_posting_ps == usual.kv_posting_ps
        before_ps = [ps(record.kv_sent_ps) - ps(record.kv_forwarded_ps) for record in (usual, slower)]
        assert before_ps == pytest.approx([host_us * PS_PER_US, longer * host_us * PS_PER_US])


def test_a_busy_engine_takes_a_transfer_up_between_steps() -> None:
    """While another request decodes, a transfer begins once the engine decides a step and has blocks for it; where
    threads of others post, host time passes besides."""
    rows = [(0, 160, 400), (400_000, 160, 2)]
    met = {"kind": "nixl", "handshake_us": 0, "handshake_descriptor_us": 0, "host_us": 30_000}
    waits_us = {}
    for share in (0.78, 0.0):
        records = run(rows, met | {"within_node": {"step_share": share}})
        alone, waits_us[share] = ((ps(each.kv_sent_ps) - ps(each.kv_forwarded_ps)) / PS_PER_US for each in records)
        assert alone == pytest.approx(30_000)
    assert 0 < waits_us[0.78] < 5_000
    assert waits_us[0.0] == pytest.approx(waits_us[0.78] + 30_000)


def test_the_host_that_costs_are_of_has_to_be_known_and_take_time(tmp_path: Path) -> None:
    idle = tmp_path / "idle.yaml"
    idle.write_text("source: launches for nothing\neager_launch_us: 0\n")
    for name, found in (
        ("xeon", "host: found 'xeon', expected one of"),
        (str(idle), "found .* with eager_launch_us 0"),
    ):
        with pytest.raises(InputError, match=rf"kv_transfer\.connector\.measured_on: {found}"):
            run([(0, 160, 2)], {"kind": "nixl", "measured_on": name})


def test_an_engine_posts_one_transfer_after_the_other() -> None:
    """Two prompts end in the same step: their 720 descriptors each are posted in 2 · 6.48 ms, not at once."""
    known = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0}
    first, second = sorted(run([(0, 160, 2), (0, 160, 2)], known), key=lambda record: ps(record.kv_arrived_ps))
    assert ps(second.kv_sent_ps) - ps(first.kv_sent_ps) == 720 * EACH_PS
    assert ps(second.kv_arrived_ps) - ps(first.kv_arrived_ps) == pytest.approx(720 * EACH_PS, abs=2 * PS_PER_US)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_busy_engine_knows_of_kv_after_the_step_in_which_it_looked(async_scheduling: bool) -> None:
    """Steps end at e1, e2, … and KV comes between e1 and e2. Without asynchronous scheduling the step from e2 on looks
    for it and tells at e3; with it that step was decided before, and the one from e3 on tells at e4."""
    known = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0}
    known |= {"within_node": {"descriptor_us": 0.667, "step_share": 0.0}}
    engine = {"async_scheduling": async_scheduling}
    result = result_of([(0, 160, 400), (400_000, 160, 2)], known, engine=engine)
    record = result.requests[1]
    arrived_ps, noticed_ps = ps(record.kv_arrived_ps), ps(record.kv_noticed_ps)
    columns = result.iterations.columns()
    decode = np.array(columns["instance"]) == "d-0"
    ends_ps = np.round(columns["end_s"][decode] * PS_PER_S).astype(np.int64)
    ends_ps = np.sort(ends_ps[ends_ps > arrived_ps])
    after = 2 if async_scheduling else 1
    assert noticed_ps == pytest.approx(int(ends_ps[after]), abs=PS_PER_US)
    assert ps(record.first_token_ps) > noticed_ps


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_scheduler_that_looks_itself_has_kv_in_the_next_step_that_it_decides(async_scheduling: bool) -> None:
    """KV that comes during a step is known when that step ends, half a step later in the mean."""
    known = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0, "notices": "step_begin"}
    known |= {"within_node": {"descriptor_us": 0.667, "step_share": 0.0}}
    engine = {"async_scheduling": async_scheduling}
    result = result_of([(0, 160, 400), (400_000, 160, 2)], known, engine=engine)
    record = result.requests[1]
    columns = result.iterations.columns()
    decode = np.array(columns["instance"]) == "d-0"
    ends_ps = np.round(columns["end_s"][decode] * PS_PER_S).astype(np.int64)
    assert ps(record.kv_noticed_ps) == pytest.approx(
        int(ends_ps[ends_ps > ps(record.kv_arrived_ps)].min()), abs=PS_PER_US
    )


def test_slots_are_listed_before_any_descriptor_is_posted() -> None:
    """10 blocks are 720 slots of 0.5 µs; where they adjoin, 72 descriptors of 0.5."""
    known = NIXL | {"handshake_us": 0, "handshake_descriptor_us": 0, "forward_us": 0, "forward_token_us": 0}
    way = {"descriptor_us": 0.5, "slot_us": 0.5, "step_share": 0.0}
    (record,) = run([(0, 160, 2)], known | {"descriptor_tokens": 160, "within_node": way})
    assert ps(record.kv_sent_ps) - ps(record.prefill_completed_ps) == 360 * PS_PER_US
    assert record.kv_posting_ps == 36 * PS_PER_US


def test_copies_through_the_host_take_the_bytes_whatever_the_descriptors() -> None:
    """0.47 GB/s: 64 tokens of Qwen3-8B are 9.4 MB, 20 ms, 8,192 a hundred and twenty-eight times as many."""
    known = {"kind": "sglang_nixl", "path": "host", "host_us": 0, "room_us": 0, "handshake_us": 0}
    taken_ms = {}
    for tokens in (64, 8192):
        (record,) = run([(0, tokens, 2)], known, engine={"num_kv_blocks": 16_384})
        taken_ms[tokens] = (ps(record.kv_arrived_ps) - ps(record.prefill_completed_ps)) / PS_PER_MS
    copied_ms = {tokens: tokens * TOKEN_BYTES / 0.47e9 * 1e3 for tokens in taken_ms}
    assert taken_ms == pytest.approx(copied_ms, rel=0.08)


def test_a_prefill_waits_again_where_its_decode_instance_fails_before_it_knows() -> None:
    """2.5 ms after the arrival, for 0.3 s: no prompt begins without room."""
    (record,) = run(
        [(0, 160, 2)],
        {"kind": "sglang_nixl", "room_us": 5000},
        faults=[{"kind": "instance", "at_s": 0.0025, "instance": "d-0", "for_s": 0.3}],
        recovery={"requests": "retry", "without_instance": "wait"},
    )
    assert ps(record.scheduled_ps) == ps(record.room_ps) + 5000 * PS_PER_US
    assert ps(record.room_ps) > 0.3 * PS_PER_S


def test_a_prefill_hears_of_its_room_later_than_it_is_there() -> None:
    """Of an idle decode instance, and of one whose blocks another request has left."""
    told: dict[str, Any] = {"kind": "sglang_nixl", "room_us": 2100}
    (record,) = run([(0, 160, 2)], told)
    assert ps(record.scheduled_ps) == 2100 * PS_PER_US
    engine = {"num_kv_blocks": 40, "block_tokens": 16}
    rows = [(0, 400, 20), (0, 400, 20)]
    later, at_once = (run(rows, told | {"room_us": room_us}, engine=engine)[1] for room_us in (2100, 0))
    assert ps(later.scheduled_ps) - ps(later.room_ps) == 2100 * PS_PER_US
    assert at_once.scheduled_ps == at_once.room_ps


def test_an_idle_engine_knows_at_once() -> None:
    (record,) = run([(0, 160, 2)], "nixl")
    assert record.kv_noticed_ps == record.kv_arrived_ps


def test_prefills_wait_for_room_where_the_connector_allocates_before() -> None:
    """Blocks for one of two prompts: the second is computed when the first has left the decode instance."""
    engine = {"num_kv_blocks": 40, "block_tokens": 16}
    rows = [(0, 400, 20), (0, 400, 20)]
    first, second = run(rows, "sglang_nixl", engine=engine)
    assert ps(second.scheduled_ps) >= ps(first.completed_ps)
    first, second = run(rows, {"kind": "sglang_nixl", "room_before_prefill": False}, engine=engine)
    assert ps(second.scheduled_ps) < ps(first.completed_ps)


@pytest.mark.parametrize("without_instance", ["fail", "wait"])
def test_a_request_whose_prefill_waits_for_room_ends_with_its_decode_instance(without_instance: str) -> None:
    """No prefill instance has it yet, so that none will release it: it fails with the only decode instance, at once or
    when nothing will happen any more."""
    first, second = run(
        [(0, 400, 200), (0, 400, 200)],
        "sglang_nixl",
        engine={"num_kv_blocks": 40, "block_tokens": 16},
        faults=[{"kind": "instance", "at_s": 0.5, "instance": "d-0", "for_s": None}],
        recovery={"requests": "fail", "without_instance": without_instance},
    )
    assert (first.status, second.status) == (RequestStatus.FAILED, RequestStatus.FAILED)
    assert second.scheduled_ps is None


def test_stripes_over_two_nics_take_half_the_time() -> None:
    """Nodes of two GPUs and two NICs of 100 Gbit/s: 8,000 tokens, 1.18 GB, take 94 ms over one and 47 ms over both."""
    nodes = {"topology": {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "100Gbps"}}
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=1)]
    took = {}
    for nics in (1, 2):
        connector = {"kind": "mooncake", "between_nodes": {"descriptor_us": 0}, "nics": nics, "handshake_us": 0}
        (record,) = run(
            [(0, 8000, 2)], connector, pools=[pool("p", "prefill"), pool("x", "mixed"), *pools[1:]], **nodes
        )
        assert record.kv_bytes == 8000 * TOKEN_BYTES
        took[nics] = transfer_ps(record)
    assert took[1] == pytest.approx(8000 * TOKEN_BYTES / 12.5e9 * PS_PER_S, rel=0.01)
    assert took[2] == pytest.approx(took[1] / 2, rel=0.01)


@pytest.mark.parametrize("kind", known_connectors())
@pytest.mark.parametrize("first_token", ["prefill", "decode_after_transfer", "decode_recompute"])
def test_every_connector_hands_over_in_order(kind: str, first_token: str) -> None:
    rows = [(3_000 * index, 60 + 311 * (index % 5), 2 + 7 * (index % 4)) for index in range(12)]
    pools = [pool("p", "prefill", instances=2), pool("d", "decode", instances=2)]
    for record in run(rows, kind, pools=pools, kv_transfer={"first_token": first_token}):
        assert record.status is RequestStatus.COMPLETED
        stamps = [record.prefill_completed_ps, record.kv_forwarded_ps, record.kv_arrived_ps, record.kv_noticed_ps]
        in_order = [stamp for stamp in stamps if stamp is not None]
        assert all(one <= other for one, other in pairwise(in_order[1:]))
        if first_token == "decode_after_transfer":
            assert record.first_token_ps == (record.kv_noticed_ps or record.kv_arrived_ps)


def test_kv_that_nobody_has_noticed_is_lost_with_its_instance() -> None:
    """A decode instance fails between the arrival of KV and its notice; the request is computed again."""
    known = {"kind": "nixl", "handshake_us": 0, "handshake_descriptor_us": 0}
    pools, rows = (
        [pool("p", "prefill"), pool("d", "decode", instances=2)],
        [(0, 160, 400), (0, 160, 400), (400_000, 160, 9)],
    )
    before = run(rows, known, pools=pools)[2]
    between_s = (ps(before.kv_arrived_ps) + ps(before.kv_noticed_ps)) / 2 / PS_PER_S
    fault = {"kind": "instance", "instance": before.decode_instance, "at_s": between_s, "for_s": 100.0}
    after = run(rows, known, pools=pools, faults=[fault])[2]
    assert after.status is RequestStatus.COMPLETED
    assert after.restarts == 1
    assert after.decode_instance != before.decode_instance


def test_the_first_contact_after_a_failure_is_one_again() -> None:
    rows = [(0, 160, 2), (LATER_US, 160, 2)]
    fault = {"kind": "instance", "instance": "d-0", "at_s": 2.0, "for_s": 1.0}
    first, second = run(rows, "nixl", faults=[fault])
    assert first.kv_handshake_ps == second.kv_handshake_ps


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        ("nixel", "found 'nixel', expected one of ideal, lmcache, mooncake, nixl, sglang_nixl"),
        ({"kind": "ideal", "path": "host"}, "through_host: found no costs with path host of ideal"),
        ({"kind": "mooncake", "path": "host", "through_host": {}}, "through_host: found no costs with path host"),
        ({"kind": "mooncake", "within_node": {"threads_from": 9}}, "threads_us: found none with threads_from 9"),
        ({"kind": "mooncake", "within_node": {"threads_us": 3}}, "threads_from: found none with threads_us"),
        (
            {"kind": "nixl", "descriptor_us": 1},
            "descriptor_us: found a field of earlier versions, expected within_node",
        ),
        ({"kind": "nixl", "host_setup_us": 1}, "host_setup_us: found a field of earlier versions, expected host_us"),
        ({"kind": "nixl", "within_node": {"descriptor_us": -1}}, "within_node.descriptor_us"),
        ({"kind": "nixl", "between_nodes": {"threads_from": 0}}, "between_nodes.threads_from"),
        ({"kind": "nixl", "descriptor_tokens": 0}, "descriptor_tokens"),
        (
            {"kind": "nixl", "nics": 3},
            "kv_transfer.connector.nics: found 3, expected at most 2, one for each GPU of a node",
        ),
    ],
)
def test_bad_connectors_are_refused(connector: Any, message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        run([(0, 160, 2)], connector)


def test_the_ideal_connector_costs_its_set_up_alone() -> None:
    (record,) = run([(0, 160, 2)], "ideal", kv_transfer={"setup_ms": 0.4})
    assert record.kv_posting_ps is None
    assert ps(record.kv_sent_ps) - ps(record.prefill_completed_ps) == round(0.4 * PS_PER_MS)


@pytest.mark.parametrize(
    ("framework", "connector", "expected"),
    [("vllm", "ideal", "nixl"), ("sglang", "ideal", "sglang_nixl"), ("trtllm", "ideal", None), ("vllm", "nixl", None)],
)
def test_a_run_says_whose_costs_it_leaves_out(framework: str, connector: str, expected: str | None) -> None:
    pools = [pool("p", "prefill"), pool("d", "decode")]
    transfer = {"connector": connector}
    summary = simulate(config(pools, engine={"framework": framework}, kv_transfer=transfer), [(0, 100, 2)]).summary
    assert summary.connector_left_out == expected
    assert any("kv_transfer.connector: ideal" in line for line in _warnings(summary)) is (expected is not None)


def test_one_server_hands_nothing_over() -> None:
    assert simulate(config([pool("m", "mixed")]), [(0, 100, 2)]).summary.connector_left_out is None
