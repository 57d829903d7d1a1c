"""Figures of the page, worked out again with pandas from the files of the run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.integration.small_runs import config, pool
from tests.vidur_pd.report.report_page import Page, parse_page
from vidur_pd.report.text import digits, duration, percent
from vidur_pd.simulation.api import simulate
from vidur_pd.simulation.output import write_result

WORKLOAD = {
    "kind": "synthetic",
    "requests": 200,
    "arrivals": {"kind": "poisson", "qps": 12},
    "lengths": {
        "kind": "lognormal",
        "prefill": {"median": 900, "p90": 2500, "max": 6000},
        "decode": {"median": 60, "p90": 200},
    },
}
TTFT_S, TPOT_S = 0.2, 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recomputed") / "run"
    pools = [pool("p", "prefill", instances=2), pool("d", "decode", tp=2)]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": "50Gbps"}
    engine = {"max_model_len": 5000, "max_seqs": 64}
    tree = config(pools, topology=topology, workload=WORKLOAD, engine=engine, slo={"ttft_s": TTFT_S, "tpot_s": TPOT_S})
    write_result(simulate(tree), out)
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return parse_page(folder / "report.html")


@pytest.fixture(scope="module")
def requests(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "requests.csv")


def test_headline_figures_are_those_of_the_requests(page: Page, requests: pd.DataFrame) -> None:
    done = requests[requests["status"] == "completed"]
    assert 0 < len(done) < len(requests)  # some prompts are longer than the context
    makespan_s = done["completed_at_s"].max() - requests["arrived_at_s"].min()
    assert f"{len(done)} / {len(requests)}" in page.text
    for amount, unit in ((len(done), "requests/s"), (done["decode_tokens"].sum(), "tokens/s")):
        assert f"{digits(amount / makespan_s)} {unit}" in page.text
    for column in ("ttft_s", "tpot_s", "e2e_s"):
        p50, p90, p99 = (duration(done[column].quantile(share)) for share in (0.5, 0.9, 0.99))
        assert p50 in page.text
        assert f"p90 {p90}, p99 {p99}; of {len(done)} completed" in page.text
    met = (done["ttft_s"] <= TTFT_S) & (done["tpot_s"].fillna(0) <= TPOT_S)
    assert f"both: {percent(met.sum() / len(requests))} of all requests" in page.text
    assert f"{digits(met.sum() / makespan_s)} requests/s" in page.text
    assert f"{100 * met.sum() / len(requests):.1f} % of the requests within their limits" in page.text


def test_pools_are_those_of_the_iterations(page: Page, folder: Path, requests: pd.DataFrame) -> None:
    iterations = pd.read_parquet(folder / "iterations.parquet")
    done = requests[requests["status"] == "completed"]
    makespan_s = done["completed_at_s"].max() - requests["arrived_at_s"].min()
    shown = {row[0]: row for row in page.rows_of("instances")}
    for name, instances, slots in (("p", 2, 2 * 64), ("d", 1, 64)):
        mine = iterations[iterations["pool"] == name]
        length_s = mine["end_s"] - mine["start_s"]
        by_instance = length_s.groupby(mine["instance"], observed=True).sum() / makespan_s
        assert shown[name][4] == percent(by_instance.sum() / instances)
        assert shown[name][5] == percent(by_instance.max())
        assert shown[name][6] == percent((mine["requests"] * length_s).sum() / makespan_s / slots)
        assert shown[name][7] == digits(mine["requests"].mean())
        assert shown[name][12] == percent(mine["communication_s"].sum() / length_s.sum())


def test_links_are_those_of_the_windows_and_none_is_fuller_than_full(page: Page, folder: Path) -> None:
    links, iterations = pd.read_parquet(folder / "links.parquet"), pd.read_parquet(folder / "iterations.parquet")
    use = links.groupby(["link", "window_start_s"])[["carried_bytes"]].sum()
    use["capacity_bytes"] = links.groupby(["link", "window_start_s"])["capacity_bytes"].first()
    shares = use["carried_bytes"] / use["capacity_bytes"]
    assert shares.max() <= 1.0 + 1e-9
    requests = pd.read_csv(folder / "requests.csv")
    ends = pd.concat([iterations["end_s"], requests["completed_at_s"]])
    begins = pd.concat([iterations["start_s"], requests["arrived_at_s"]])
    run_s = ends.max() - begins.min()
    known = links.drop_duplicates("link").set_index("link")
    carried = links.groupby("link")["carried_bytes"].sum()
    mean = 8 * carried / (known["capacity_bps"][carried.index] * run_s)
    rows = {row[0]: row for row in page.rows_of("network") if "→" in row[0]}
    assert rows
    names = {f"{row.src} → {row.dst}": link for link, row in known.iterrows()}
    for name, row in rows.items():
        assert row[3] == percent(mean[names[name]])
        assert row[4] == percent(shares[names[name]].max())


def test_the_slowest_requests_are_those_with_the_longest_ttft(page: Page, requests: pd.DataFrame, folder: Path) -> None:
    done = requests[requests["status"] == "completed"]
    expected = [str(name) for name in done.nlargest(10, "ttft_s")["request_id"]]
    shown = [row for row in page.rows_of("latency") if len(row) == 6]
    assert [row[0] for row in shown] == expected
    parts = pd.read_parquet(folder / "attribution.parquet").set_index("request_id")
    drawn = sum(page.values("slowest", trace) for trace in range(len(page.charts["slowest"]["data"])))
    assert drawn == pytest.approx((parts.loc[expected, "e2e_ps"] / 1e12).to_numpy(), rel=1e-5)
