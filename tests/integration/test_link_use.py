"""Links carry what they can and no more: bytes lie in the windows in which they travel, at the rates of the network."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.integration.small_runs import NO_HOST, config, pool, simulate
from vidur_pd.execution.coupling.plan import COLLECTIVE, KV
from vidur_pd.metrics.links import OFFERED, USE
from vidur_pd.metrics.result import Result

ROUNDING = 1e-9
FINE = {"link_windows": 10_000}
"""Windows of 15.6 ms to the end."""
UPLINKS = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "20Gbps", "nodes_per_segment": 1, "oversubscription": 4}
SENDERS = [pool("p", "prefill", tp=2, instances=2), pool("d", "decode", tp=2)]
"""KV of both prefill instances meets on the links into the decode instance, unlike in time."""
BURST = [(7_000 * (index // 3), 300 + 577 * (index % 5), 5) for index in range(18)]
ROOFLINE = {"estimator": "roofline", "max_batched_tokens": 2048, "max_seqs": 8}
ROCE = {"mtu_bytes": 4096, "packets_per_ack": 4, "cell_packets": 16}

NETWORKS: list[dict[str, Any]] = [
    {"coupling": "isolated"},
    {"coupling": "fluid"},
    {"coupling": "exact"},
    {"backend": "packet", "coupling": "isolated", "roce": ROCE},
    {"backend": "packet", "coupling": "exact", "roce": ROCE},
    {"backend": "packet", "coupling": "exact", "roce": {**ROCE, "memoise": True}},
    {"backend": "analytical", "coupling": "isolated"},
]
if importlib.util.find_spec("netsim._ns3") is not None:
    NETWORKS.append({"backend": "ns3", "coupling": "exact", "roce": ROCE})


def name_of(network: dict[str, Any]) -> str:
    kinds = (
        network.get("backend", "fluid"),
        network["coupling"],
        "memory" if network.get("roce", {}).get("memoise") else "",
    )
    return "-".join(kind for kind in kinds if kind)


def rows_of(result: Result) -> pd.DataFrame:
    return pd.DataFrame(result.link_columns())


def fullest(rows: pd.DataFrame) -> float:
    """Largest share of what a link could carry in a window, over all its traffic."""
    windows = rows.groupby(["link", "window_start_s"]).agg({"carried_bytes": "sum", "capacity_bytes": "first"})
    return float((windows["carried_bytes"] / windows["capacity_bytes"]).max())


def check_kv_bytes(result: Result) -> None:
    """All of it, once, on links into GPUs."""
    rows = rows_of(result)
    into_gpus = result.topology.link_dst[rows["link"]] < result.topology.gpus
    carried = rows.loc[into_gpus & (rows["traffic"] == "kv"), "carried_bytes"].sum()
    assert carried == pytest.approx(sum(record.kv_bytes or 0 for record in result.requests), rel=1e-12)


@pytest.mark.parametrize("network", NETWORKS, ids=name_of)
def test_transfers_that_meet_fill_a_link_and_no_more(network: dict[str, Any]) -> None:
    """KV of 300 to 2,600 tokens over 20 Gbit/s: the flows that share a link come and go. Where transfers do not see
    each other, what is shown has another name."""
    rows = BURST if network.get("backend") != "ns3" else BURST[:6]
    result = simulate(config(SENDERS, topology=UPLINKS, engine=ROOFLINE, network=network, output=FINE), rows)
    kv = rows_of(result).query("traffic == 'kv'")
    check_kv_bytes(result)
    if network.get("backend") == "analytical":
        assert set(kv["measure"]) == {OFFERED}
        assert fullest(kv) > 1.2
    else:
        assert set(kv["measure"]) == {USE}
        assert fullest(kv) <= 1 + ROUNDING
        assert kv["burst_use"].max() <= 1 + ROUNDING
        assert fullest(kv) > 0.95 or len(rows) < len(BURST)


def test_a_burst_of_20_ms_shows_in_windows_of_a_second() -> None:
    """KV of 2,000 tokens, 147,456 B each, over two NICs of 50 Gbit/s: 23.6 ms at line rate, at the beginning of 150 s
    with hardly any traffic. The mean of its window is 2 %; of two neighbouring 15.6 ms one has at least half of it."""
    pools = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    rows = [(3_000, 2_000, 2), (150_000_000, 100, 2)]
    sent = rows_of(simulate(config(pools, topology={**UPLINKS, "nic": "50Gbps", "oversubscription": 1}), rows))
    nics = sent[(sent["kind"] == "nic") & (sent["window_start_s"] == 0)]
    assert (nics["window_end_s"] - nics["window_start_s"]).min() >= 1
    assert (nics["carried_bytes"] / nics["capacity_bytes"]).max() < 0.03
    assert 23.6 / 2 / 15.625 < nics["burst_use"].max() <= 1 + ROUNDING


TENSOR = [pool("p", "prefill", tp=4), pool("d", "decode", tp=4, instances=2)]
"""Every instance spans two nodes, so that collectives and KV meet on NICs."""
PIPELINES = [pool("p", "prefill", tp=2, pp=2), pool("d", "decode", tp=2, pp=2)]
EXPERTS = [pool("p", "prefill", dp=8, ep=8, instances=2), pool("d", "decode", tp=4)]
"""The two prefill instances share uplinks on which their all-to-alls take most of their time."""


def nodes(gpus: int, nic: str, segment: int, ratio: int) -> dict[str, Any]:
    return {
        "kind": "rail_optimized",
        "gpus_per_node": gpus,
        "nic": nic,
        "nodes_per_segment": segment,
        "oversubscription": ratio,
    }


MEETING: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "tensor": (TENSOR, nodes(2, "20Gbps", 1, 2), {"engine": ROOFLINE}),
    "pipelines": (PIPELINES, nodes(1, "10Gbps", 2, 4), {"engine": ROOFLINE}),
    "experts": (EXPERTS, nodes(2, "100Gbps", 3, 16), {"model": "qwen3-30b-a3b"}),
}


@pytest.mark.parametrize("coupling", ["fluid", "exact"])
@pytest.mark.parametrize("case", MEETING)
def test_collectives_and_transfers_share_what_a_link_can_carry(case: str, coupling: str) -> None:
    pools, topology, sections = MEETING[case]
    if case == "pipelines" and coupling == "exact":
        pytest.skip("exact coupling has no pipelines")
    rows = [(20_000 * (index // 4), 200 + 911 * (index % 6), 3 + 7 * (index % 3)) for index in range(20)]
    result = simulate(config(pools, topology=topology, network={"coupling": coupling}, output=FINE, **sections), rows)
    table = rows_of(result)
    assert set(table["measure"]) == {USE}
    assert set(table["traffic"]) == {"kv", "collective"}
    assert fullest(table) <= 1 + ROUNDING
    assert fullest(table) > 0.8, "these links are loaded"
    check_kv_bytes(result)


def test_collectives_that_change_speed_carry_their_bytes_all_the_same() -> None:
    """One request at a time, whose layers travel while others are computed: iterations are the same beside transfers
    (`fluid`) and alone (`isolated`), and so are their bytes."""
    rows = [(2_000_000 * index, 700 + 1_300 * index, 4) for index in range(4)]
    topology, layerwise = nodes(2, "20Gbps", 1, 2), {"mode": "layerwise"}
    alone, beside = (
        simulate(
            config(TENSOR, topology=topology, engine=ROOFLINE, network={"coupling": coupling}, kv_transfer=layerwise),
            rows,
        )
        for coupling in ("isolated", "fluid")
    )
    assert beside.summary.communication.contention_s > 0.01
    assert beside.summary.simulator.iterations == alone.summary.simulator.iterations
    assert beside.links.total_bytes(COLLECTIVE) == pytest.approx(alone.links.total_bytes(COLLECTIVE), rel=1e-9)


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_a_link_that_is_slow_for_a_while_is_measured_by_what_it_has_then(coupling: str) -> None:
    """From 20 to 60 ms the NIC of a decode GPU has a tenth of 20 Gbit/s, which transfers fill."""
    fault = {"kind": "slow_link", "between": ["gpu4", "leaf2.0"], "share": 0.1, "at_s": 0.02, "for_s": 0.04}
    engine = ROOFLINE | NO_HOST
    tree = config(SENDERS, topology=UPLINKS, engine=engine, network={"coupling": coupling}, output=FINE, faults=[fault])
    result = simulate(tree, BURST)
    kv = rows_of(result).query("traffic == 'kv'")
    assert fullest(kv) <= 1 + ROUNDING
    seconds = kv["window_end_s"] - kv["window_start_s"]
    nominal = kv["capacity_bps"] / 8 * seconds
    slow = kv[kv["capacity_bytes"] < 0.5 * nominal]
    assert len(slow)
    assert (slow["carried_bytes"] / slow["capacity_bytes"]).max() > 0.95
    check_kv_bytes(result)


def test_the_last_window_ends_with_the_run() -> None:
    result = simulate(config(SENDERS, topology=UPLINKS, engine=ROOFLINE), BURST)
    table = rows_of(result)
    last_s = max(record.completed_ps or 0 for record in result.requests) / 1e12
    assert table["window_end_s"].max() == pytest.approx(last_s)
    assert result.links.total_bytes(KV).sum() == pytest.approx(table.query("traffic == 'kv'")["carried_bytes"].sum())
    assert np.unique(table["window_start_s"]).size <= 120


def test_no_link_log_says_more_than_the_cut_of_the_fabric() -> None:
    """KV of two prefill instances to one decode instance over uplinks of 4 to 1: what NICs of the decode instance
    received, over the time in which it came, is no more than the most that fits through."""
    result = simulate(config(SENDERS, topology=UPLINKS, engine=ROOFLINE, output=FINE), BURST)
    fabric = result.summary.network.fabric
    assert fabric is not None
    assert fabric.prefill_to_decode_bps is not None
    assert fabric.prefill_to_decode_bps <= 2 * 20e9
    rows = rows_of(result)
    into = (result.topology.link_dst[rows["link"]] < result.topology.gpus) & (rows["kind"] == "nic")
    received = rows[into & (rows["traffic"] == "kv")].groupby("window_start_s")["carried_bytes"].sum()
    width_s = float((rows["window_end_s"] - rows["window_start_s"]).max())
    assert 0.5 < received.max() * 8 / width_s / fabric.prefill_to_decode_bps <= 1 + ROUNDING


def test_a_run_without_link_files_asks_nothing_of_its_fabric() -> None:
    result = simulate(config(SENDERS, topology=UPLINKS, engine=ROOFLINE, output={"links": False}), BURST[:3])
    assert result.summary.network.fabric is None
