"""The page of one run: every section is there, nothing from a file becomes markup, nothing is fetched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from boundary.errors import InputError
from tests.vidur_pd.report.report_page import Page, parse_page
from tests.vidur_pd.report.report_run import Shape, write_run
from tests.vidur_pd.report.report_table import links_of
from vidur_pd.report import write_report
from vidur_pd.report.figures_network import transfer_chart
from vidur_pd.report.load import read_run

MOST_BYTES = 2_500_000
SECTIONS = ["headline", "latency", "load", "instances", "iterations", "network", "requests", "configuration"]
CHARTS = {
    "latency": [
        "attribution",
        "cdf-ttft",
        "cdf-tpot",
        "cdf-itl",
        "cdf-e2e",
        "ttft-stages",
        "ttft-stage-shares",
        "ttft-time",
    ],
    "load": ["input-rate", "output-rate", "arrivals"],
    "instances": ["busy", "waiting", "running", "kv-use"],
    "iterations": ["phase-shares", "phase-ms", "batch"],
    "network": ["links-heat", "links-mean", "links-peak", "kv-transfers", "kv-exposed"],
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(scope="module")
def page(whole_run: Path) -> Page:
    return parse_page(write_report(whole_run))


@pytest.fixture
def own_run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


COUNTS = {"requests": 1, "completed": 1, "rejected": 0, "failed": 0}


def edit_summary(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    path = folder / "summary.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def edit_requests(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = folder / "requests.csv"
    change(pd.read_csv(path, dtype=object)).to_csv(path, index=False)


def test_the_page_is_written_beside_the_results_and_stays_below_its_size_bound(whole_run: Path) -> None:
    path = write_report(whole_run)
    assert path == whole_run / "report.html"
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_is_reachable_from_the_navigation(page: Page, section: str) -> None:
    assert section in page.section_ids
    assert f"#{section}" in page.links


def test_every_chart_is_drawn_in_its_section_and_no_other(page: Page) -> None:
    assert page.chart_sections == {chart: section for section, charts in CHARTS.items() for chart in charts}


@pytest.mark.parametrize("chart", [chart for charts in CHARTS.values() for chart in charts])
def test_every_chart_holds_finite_data_and_a_sentence_on_how_to_read_it(page: Page, chart: str) -> None:
    drawn = [np.isfinite(page.values(chart, place)).sum() for place in range(len(page.charts[chart]["data"]))]
    assert drawn
    assert min(drawn) > 0
    assert page.readings[chart].endswith(".")
    assert len(page.readings[chart]) > 20


@pytest.mark.parametrize("chart", [chart for charts in CHARTS.values() for chart in charts])
def test_every_axis_of_numbers_names_its_unit(page: Page, chart: str) -> None:
    """Axes of names (bars, rows of the heat map) and percentages with a suffix at each tick speak for themselves."""
    for axis in ("xaxis", "yaxis"):
        layout = page.charts[chart]["layout"][axis]
        is_named = layout.get("type") == "category" or layout.get("ticksuffix") == " %"
        title = layout["title"].get("text", "")
        assert is_named or "(" in title or "per second" in title or title.endswith(("requests", "in the batch")), title


def test_the_page_refers_to_nothing_outside_itself(page: Page) -> None:
    assert page.outside_references == []
    assert all(link.startswith("#") for link in page.links)
    assert page.security_policy.startswith("default-src 'none'")


def test_the_headline_shows_the_figures_of_the_summary(whole_run: Path, page: Page) -> None:
    summary = json.loads((whole_run / "summary.json").read_text())
    assert f"{summary['completed']:,} / {summary['requests']:,}" in page.text
    assert f"{summary['throughput']['output_tokens_per_s']:,.0f} tokens/s" in page.text
    assert f"{summary['throughput']['output_tokens_per_s'] / 48:.1f} per GPU" in page.text
    assert f"p99 {summary['ttft_s']['p99'] * 1e3:.0f} ms" in page.text
    assert "prefill: 2 × TP8 EP8 (16 GPUs); decode: 2 × EP16 DP16 (32 GPUs); 48 GPUs in all" in page.text


def test_the_headline_names_the_first_arrival_where_the_clock_began_before(own_run: Path) -> None:
    edit_summary(own_run, lambda tree: tree.update(first_arrival_s=12.5, makespan_s=30.0))
    assert "in 30.0 s simulated, from the first arrival at 12.5 s" in parse_page(write_report(own_run)).text


def test_the_distribution_of_ttft_passes_through_the_percentiles_of_the_summary(whole_run: Path, page: Page) -> None:
    """Half of the completed requests lie at or below p50, to within one request (the summary interpolates)."""
    summary = json.loads((whole_run / "summary.json").read_text())
    x, y = page.values("cdf-ttft", 0, "x"), page.values("cdf-ttft", 0, "y")
    for percentile in (50, 90, 99):
        share = y[np.searchsorted(x, summary["ttft_s"][f"p{percentile}"], side="right") - 1]
        assert share == pytest.approx(percentile, abs=200 / summary["completed"])


def test_tokens_drawn_over_time_are_the_tokens_of_the_completed_requests(whole_run: Path, page: Page) -> None:
    requests = pd.read_csv(whole_run / "requests.csv")
    completed = requests[requests["status"] == "completed"]
    for chart, column in (("input-rate", "prefill_tokens"), ("output-rate", "decode_tokens")):
        middle = page.values(chart, 0, "x")
        drawn = page.values(chart, 0, "y").sum() * (middle[1] - middle[0])
        assert drawn == pytest.approx(completed[column].sum(), rel=1e-5)


def test_a_share_of_estimates_above_one_percent_is_a_warning_that_names_the_operators(page: Page) -> None:
    (banner,) = [text for text in page.banners if "estimates" in text]
    assert banner == "4.0 % of the time rests on estimates, not on measurements: grouped_gemm."


def test_a_share_of_estimates_of_one_percent_is_no_warning(own_run: Path) -> None:
    edit_summary(own_run, lambda tree: tree.update(estimates=0.01))
    assert not [text for text in parse_page(write_report(own_run)).banners if "estimates" in text]


def test_estimated_operators_are_listed_by_pool(own_run: Path) -> None:
    items = [
        {"pool": "decode", "operator": "moe_quant"},
        {"pool": "prefill", "operator": "kv_b"},
        {"pool": "decode", "operator": "o_quant"},
    ]
    edit_summary(own_run, lambda tree: tree.update(estimated_operators=items))
    rows = parse_page(write_report(own_run)).rows_of("iterations")
    assert rows == [["decode", "moe_quant, o_quant"], ["prefill", "kv_b"]]


def test_the_marked_percentiles_of_itl_are_those_of_the_summary(whole_run: Path, page: Page) -> None:
    """To within one of the 60 bins of the histogram."""
    summary = json.loads((whole_run / "summary.json").read_text())
    edges = summary["itl_histogram"]["edges_s"]
    marks = page.values("cdf-itl", 1, "x") / 1e3
    for mark, name in zip(marks, ("p50", "p90", "p99"), strict=True):
        assert mark == pytest.approx(summary["itl_s"][name], abs=edges[1] - edges[0])


def test_the_page_says_when_the_prefill_side_delivers_the_first_token(tmp_path: Path, page: Page) -> None:
    shape = Shape(requests=30, is_first_token_from_decode=False)
    early = parse_page(write_report(write_run(tmp_path / "run", shape)))
    sentence = "First tokens come from the prefill side"
    assert sentence in early.readings["ttft-stage-shares"]
    assert sentence not in page.readings["ttft-stage-shares"]


def test_rejected_requests_are_counted_by_reason(tmp_path: Path) -> None:
    reasons = {"prompt longer than max_model_len": 4, "no KV space on any instance": 7}
    page = parse_page(write_report(write_run(tmp_path / "run", Shape(requests=30, rejected=reasons))))
    rows = [row[:3] for row in page.rows_of("requests")]
    assert rows == [
        ["rejected", "no KV space on any instance", "7"],
        ["rejected", "prompt longer than max_model_len", "4"],
    ]
    assert any("11 of 41 requests were not served (11 rejected, 0 failed)" in text for text in page.banners)


def test_a_reason_may_contain_commas_quotes_and_line_breaks(own_run: Path) -> None:
    reason = 'failed: "a", b\nc'
    edit_requests(own_run, lambda table: pd.concat([table, table.tail(1).assign(status=reason)]))
    assert ["failed", '"a", b\nc', "1"] in [row[:3] for row in parse_page(write_report(own_run)).rows_of("requests")]


def test_reasons_that_differ_in_numbers_alone_are_one_with_their_range(tmp_path: Path) -> None:
    reasons = {f"prompt of {length} tokens": 1 for length in range(30)}
    page = parse_page(write_report(write_run(tmp_path / "run", Shape(requests=10, rejected=reasons))))
    assert [row[:3] for row in page.rows_of("requests")] == [["rejected", "prompt of 0 to 29 tokens", "30"]]


def test_more_reasons_than_rows_are_summed_in_the_last_row(tmp_path: Path) -> None:
    """25 rows name a reason; the 5 further ones are counted together, so that the column still sums to 30."""
    reasons = {f"quota {'i' * length} used up": 1 for length in range(1, 31)}
    page = parse_page(write_report(write_run(tmp_path / "run", Shape(requests=10, rejected=reasons))))
    rows = page.rows_of("requests")
    assert len(rows) == 26
    assert rows[-1][1:3] == ["5 further reasons", "5"]
    assert sum(int(row[2]) for row in rows) == 30


@pytest.mark.parametrize(
    ("missing", "section"),
    [("iterations.parquet", "instances"), ("iterations.parquet", "iterations"), ("links.parquet", "network")],
)
def test_a_missing_series_leaves_its_charts_out_and_says_why(own_run: Path, missing: str, section: str) -> None:
    (own_run / missing).unlink()
    page = parse_page(write_report(own_run))
    assert any(f"the run wrote no {missing}" in text for text in page.left_out[section])
    lost = {
        "iterations.parquet": {*CHARTS["instances"], *CHARTS["iterations"]},
        "links.parquet": {"links-heat", "links-mean", "links-peak"},
    }
    everything = {chart for charts in CHARTS.values() for chart in charts}
    assert set(page.charts) == everything - lost[missing]


def test_a_series_without_rows_is_left_out_and_says_so(own_run: Path) -> None:
    for name in ("iterations.parquet", "links.parquet"):
        pd.read_parquet(own_run / name).head(0).to_parquet(own_run / name)
    page = parse_page(write_report(own_run))
    assert any("links.parquet has no rows" in text for text in page.left_out["network"])
    assert "busy" not in page.charts
    assert "cdf-ttft" in page.charts


def test_without_links_the_transfers_are_drawn_without_a_line_rate(own_run: Path, page: Page) -> None:
    (own_run / "links.parquet").unlink()
    bare = parse_page(write_report(own_run)).charts["kv-transfers"]["data"]
    assert [trace["name"] for trace in bare] == ["KV transfer"]
    assert [trace["name"] for trace in page.charts["kv-transfers"]["data"]] == ["KV transfer", "1 NIC, 400 Gbit/s"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (None, "without links.parquet no line rate is known"),
        ("nvlink", "no line rate of NICs is drawn, as none carried anything: KV went over NVLink"),
    ],
)
def test_transfers_say_why_there_is_no_line_rate(whole_run: Path, kind: str | None, said: str) -> None:
    links = None if kind is None else links_of([("gpu0 > nvswitch0", kind, "kv", 0.0, 1.0, 1e6)])
    chart = transfer_chart(replace(read_run(whole_run), links=links))
    assert chart is not None
    assert chart.reading.endswith(f"share links or wait; {said}.")


def test_the_length_of_an_iteration_is_tpot_without_drafts_alone(own_run: Path, page: Page) -> None:
    assert "close to TPOT" in page.text
    path = own_run / "config.yaml"
    path.write_text(path.read_text() + "engine: {speculative: {method: mtp, drafts: 1, acceptance: 0.85}}\n")
    assert read_run(own_run).drafts_tokens
    assert "close to TPOT" not in parse_page(write_report(own_run)).text


def test_gaps_of_zero_between_tokens_are_explained(own_run: Path, page: Page) -> None:
    assert "come together" not in page.text

    def together(tree: dict[str, object]) -> None:
        tree["itl_s"] = {"mean": 0.004, "p50": 0.0, "p90": 0.01, "p99": 0.02}

    edit_summary(own_run, together)
    assert "tokens of one step come together" in parse_page(write_report(own_run)).text


def test_a_missing_configuration_is_reported(own_run: Path) -> None:
    (own_run / "config.yaml").unlink()
    assert any("no config.yaml" in text for text in parse_page(write_report(own_run)).left_out["configuration"])


def test_the_resolved_configuration_is_shown_as_written(whole_run: Path, page: Page) -> None:
    assert (whole_run / "config.yaml").read_text() in page.text


def test_a_run_in_which_nothing_completed_still_has_a_page(own_run: Path) -> None:
    def reject_all(table: pd.DataFrame) -> pd.DataFrame:
        kept = ["request_id", "arrived_at_s", "prefill_tokens", "decode_tokens", "cached_tokens", "preemptions"]
        return table[kept].assign(status="rejected: no room").reindex(columns=table.columns)

    def nothing(tree: dict[str, object]) -> None:
        none = dict.fromkeys(("mean", "p50", "p90", "p99"))
        rates = dict.fromkeys(("requests_per_s", "input_tokens_per_s", "output_tokens_per_s"))
        tree.update(completed=0, makespan_s=0.0, throughput=rates, goodput=None, goodput_share=0.0)
        tree.update(dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"), none))
        tree.update(itl_histogram={"edges_s": [], "counts": []})

    edit_requests(own_run, reject_all)
    edit_summary(own_run, nothing)
    for name in ("iterations.parquet", "links.parquet"):
        pd.read_parquet(own_run / name).head(0).to_parquet(own_run / name)
    page = parse_page(write_report(own_run))
    assert page.section_ids == SECTIONS
    assert list(page.charts) == ["arrivals"]
    assert any("no request completed" in text for text in page.left_out["latency"])


def test_a_workload_without_requests_still_has_a_page(own_run: Path) -> None:
    edit_requests(own_run, lambda table: table.head(0))
    edit_summary(own_run, lambda tree: tree.update(requests=0, completed=0, makespan_s=0))
    page = parse_page(write_report(own_run))
    assert page.section_ids == SECTIONS
    assert "no requests" in page.text


def test_requests_of_one_output_token_have_no_tpot_chart(own_run: Path) -> None:
    edit_requests(own_run, lambda table: table.assign(decode_tokens="1", tpot_s=""))
    page = parse_page(write_report(own_run))
    assert "cdf-tpot" not in page.charts
    assert "cdf-ttft" in page.charts


def test_a_co_located_run_shows_no_transfer_and_no_kv_stage(own_run: Path) -> None:
    columns = ["kv_sent_at_s", "kv_arrived_at_s", "pd_p2p_comm_bytes", "pd_p2p_comm_time_s", "kv_exposed_s"]

    def stay(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(**dict.fromkeys(columns, ""), first_token_at_s=table["prefill_completed_at_s"])

    edit_requests(own_run, stay)
    page = parse_page(write_report(own_run))
    assert any("no request moved KV" in text for text in page.left_out["network"])
    assert [trace["name"] for trace in page.charts["ttft-stages"]["data"]] == ["queue", "prefill"]


HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


def test_hostile_text_of_any_file_stays_text(own_run: Path, page: Page) -> None:
    def poison_table(name: str, *columns: str) -> None:
        table = pd.read_parquet(own_run / name)
        for column in columns:
            table[column] = HOSTILE + table[column].astype(str)
        table.to_parquet(own_run / name)

    edit_requests(own_run, lambda table: table.assign(request_id=HOSTILE + table["request_id"].astype(str)))
    edit_requests(own_run, lambda table: pd.concat([table, table.tail(1).assign(status=f"failed: {HOSTILE}")]))
    edit_summary(own_run, lambda tree: tree.update(model=HOSTILE, hardware=HOSTILE, network={"backend": HOSTILE}))
    poison_table("iterations.parquet", "instance", "pool")
    poison_table("links.parquet", "link", "src", "dst", "kind", "traffic")
    (own_run / "config.yaml").write_text(f"model: '</pre>{HOSTILE}'\n")
    poisoned = parse_page(write_report(own_run, title=HOSTILE))
    assert poisoned.script_count == page.script_count - (len(page.charts) - len(poisoned.charts))
    assert "img" not in poisoned.tags
    assert poisoned.text.count(HOSTILE) > 5
    for chart in poisoned.charts.values():
        assert "<img" not in json.dumps(chart)


def test_the_title_may_be_given(whole_run: Path, own_run: Path) -> None:
    assert parse_page(write_report(own_run, title="Night run")).title == "Night run"
    assert parse_page(write_report(own_run)).title == "deepseek-v3 on h200"


def test_the_report_may_go_elsewhere(own_run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "night.html"
    assert write_report(own_run, path=elsewhere) == elsewhere
    (own_run / "report.html").unlink(missing_ok=True)
    write_report(own_run)
    assert elsewhere.read_bytes() == (own_run / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (".", "found a folder, expected the name of a file to write"),
        ("absent/r.html", "found no folder"),
        ("summary.json", "found the file that is read, expected another one to write"),
    ],
)
def test_a_report_cannot_go_where_no_file_can_be_or_over_a_result(own_run: Path, target: str, said: str) -> None:
    before = (own_run / "summary.json").read_bytes()
    with pytest.raises(InputError, match=said):
        write_report(own_run, path=own_run / target)
    assert (own_run / "summary.json").read_bytes() == before


def test_pools_keep_their_colour_in_every_chart(page: Page) -> None:
    colours = {trace["name"]: trace["line"]["color"] for trace in page.charts["batch"]["data"] if "name" in trace}
    assert colours == {"prefill": "#2b7cc4", "decode": "#d9730d"}
    for chart in ("waiting", "running", "kv-use"):
        first = {trace["name"]: trace["line"]["color"] for trace in page.charts[chart]["data"]}
        assert first["prefill-0"] == first["prefill-1"] == "#2b7cc4"
        assert first["decode-0"] == first["decode-1"] == "#d9730d"


@pytest.mark.parametrize("chart", ["waiting", "running", "kv-use"])
def test_instances_of_a_pool_differ_in_their_dashes(page: Page, chart: str) -> None:
    looks = [(trace["line"]["color"], trace["line"]["dash"]) for trace in page.charts[chart]["data"]]
    assert len(set(looks)) == len(looks) == 4


def test_a_pool_of_many_instances_is_a_band_with_its_mean(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Shape(requests=60, decode_instances=9))
    traces = parse_page(write_report(folder)).charts["running"]["data"]
    named = [trace["name"] for trace in traces if "name" in trace]
    assert named == ["prefill-0", "prefill-1", "decode: mean, lowest to highest of 9"]


def damaged(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def without_column(folder: Path) -> None:
    edit_requests(folder, lambda table: table.drop(columns="ttft_s"))


def with_a_word_for_a_number(folder: Path) -> None:
    edit_requests(folder, lambda table: table.assign(ttft_s=["soon", *table["ttft_s"][1:]]))


def with_an_infinite_number(folder: Path) -> None:
    edit_requests(folder, lambda table: table.assign(e2e_s=[*table["e2e_s"][:-1], "inf"]))


def with_words_for_iterations(folder: Path) -> None:
    path = folder / "iterations.parquet"
    pd.read_parquet(path).assign(waiting="many").to_parquet(path)


def without_iteration_column(folder: Path) -> None:
    path = folder / "iterations.parquet"
    pd.read_parquet(path).drop(columns="waiting").to_parquet(path)


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (lambda folder: (folder / "requests.csv").unlink(), ["requests.csv", "no such file"]),
        (lambda folder: (folder / "summary.json").unlink(), ["summary.json", "no such file"]),
        (without_column, ["requests.csv", "ttft_s", "missing"]),
        (with_a_word_for_a_number, ["requests.csv", "line 2", "ttft_s", "'soon'"]),
        (with_an_infinite_number, ["requests.csv", "line 244", "e2e_s", "'inf'"]),
        (lambda folder: (folder / "requests.csv").write_bytes(b"\xff\xfe\x00"), ["requests.csv", "CSV"]),
        (with_words_for_iterations, ["iterations.parquet", "waiting", "numbers", "many"]),
        (without_iteration_column, ["iterations.parquet", "waiting", "missing"]),
        (damaged("summary.json", "{"), ["summary.json", "JSON"]),
        (damaged("summary.json", '{"requests": "many"}'), ["summary.json", "requests", "'many'"]),
        (damaged("summary.json", json.dumps(COUNTS | {"slo": 3})), ["summary.json", "slo", "3"]),
        (damaged("links.parquet", "no parquet"), ["links.parquet", "Parquet"]),
        (damaged("config.yaml", "a: [1"), ["config.yaml", "YAML"]),
    ],
)
def test_a_malformed_file_is_named_in_one_line(own_run: Path, damage: Callable[[Path], None], names: list[str]) -> None:
    damage(own_run)
    with pytest.raises(InputError) as raised:
        write_report(own_run)
    message = str(raised.value)
    assert "\n" not in message
    assert all(name in message for name in names), message


def test_a_directory_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        write_report(tmp_path / "nowhere")


def test_what_writes_reports_is_loaded_when_one_is_written() -> None:
    """A run without a report need not wait for Jinja, nor any for plotly."""
    code = "import sys, vidur_pd.report, vidur_pd.__main__; print({'plotly', 'jinja2'} & sys.modules.keys())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_the_title_of_the_window_names_the_run_and_its_day(own_run: Path) -> None:
    edit_summary(own_run, lambda tree: tree["simulator"].update(began_at="2026-11-26T08:15:00Z"))
    text = write_report(own_run).read_text(encoding="utf-8")
    assert "<title>deepseek-v3 on h200 · run · 2026-11-26</title>" in text
