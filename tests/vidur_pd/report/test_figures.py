"""What the charts show, by hand-computed examples."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vidur_pd.report.report_page import read_figure, unpack
from tests.vidur_pd.report.report_run import NIC_BPS, Shape, write_run
from tests.vidur_pd.report.report_table import links_of, table_of_rows
from vidur_pd.metrics.summary import Histogram, Objectives, TierSummary
from vidur_pd.report.charts import Chart, compact, label, log_axis
from vidur_pd.report.figures_instances import measure_activity
from vidur_pd.report.figures_latency import (
    Curve,
    distribution_chart,
    histogram_curve,
    sample_curve,
    slo_shares,
    ttft_over_time,
    ttft_stage_charts,
    ttft_stages,
)
from vidur_pd.report.figures_load import token_rates
from vidur_pd.report.figures_network import busiest_links, line_rates_bps, mean_use_chart, peak_use_chart
from vidur_pd.report.figures_phases import phase_charts, phase_seconds
from vidur_pd.report.figures_tiers import tier_table
from vidur_pd.report.load import distinct_labels, read_run
from vidur_pd.report.page import charts_html
from vidur_pd.report.slowest import _meanings, _waits
from vidur_pd.report.table import Table
from vidur_pd.report.text import digits, duration, percent, table_html
from vidur_pd.report.waterfall import Step, Waterfall

STAMPS = [
    "arrived_at_s",
    "scheduled_at_s",
    "prefill_completed_at_s",
    "kv_sent_at_s",
    "kv_arrived_at_s",
    "first_token_at_s",
]


def stages_of(*stamps: float) -> list[float]:
    return ttft_stages(table_of_rows([dict(zip(STAMPS, stamps, strict=True))], ()))[:, 0].tolist()


def test_ttft_is_cut_at_the_stamps_of_the_request() -> None:
    """Queue 1 s, prefill 2 s, 0.5 s until the KV leaves, 4 s on the wire, 0.25 s until the first decode step ends."""
    assert stages_of(10.0, 11.0, 13.0, 13.5, 17.5, 17.75) == [1.0, 2.0, 0.5, 4.0, 0.25]


def test_a_first_token_of_the_prefill_side_does_not_wait_for_the_kv_cache() -> None:
    assert stages_of(10.0, 11.0, 13.0, 13.5, 17.5, 13.0) == [1.0, 2.0, 0.0, 0.0, 0.0]


def test_of_a_layer_wise_transfer_only_what_outlasts_the_prefill_counts() -> None:
    """Sent from 11.2 s on, during the prefill that ends at 13 s; 0.4 s remain exposed."""
    assert stages_of(10.0, 11.0, 13.0, 11.2, 13.4, 13.5) == pytest.approx([1.0, 2.0, 0.0, 0.4, 0.1])


def test_a_request_that_stays_on_its_instance_has_no_transfer() -> None:
    assert stages_of(10.0, 11.0, 13.0, np.nan, np.nan, 13.0) == [1.0, 2.0, 0.0, 0.0, 0.0]


@given(st.lists(st.floats(0.0, 50.0), min_size=6, max_size=6), st.booleans())
def test_stages_are_never_negative_and_sum_to_ttft(gaps: list[float], is_disaggregated: bool) -> None:
    arrived, scheduled, prefilled, sent, arrival, first = np.cumsum(gaps).tolist()
    kv = (sent, arrival) if is_disaggregated else (np.nan, np.nan)
    stages = stages_of(arrived, scheduled, prefilled, *kv, first)
    assert min(stages) >= 0.0
    assert sum(stages) == pytest.approx(first - arrived)


def iteration_table(rows: list[dict[str, object]]) -> Table:
    zeros = dict.fromkeys(
        ("prefill_tokens", "decode_tokens", "waiting", "running", "kv_blocks_used", "compute_s", "communication_s",
         "attention_s", "dense_s", "experts_s", "head_s", "norm_and_small_s", "host_s"), 0.0)  # fmt: skip
    whole = [{**zeros, "kv_blocks_total": 100.0, "pool": "decode", **row} for row in rows]
    return table_of_rows(whole, ("instance", "pool"))


def test_instance_values_are_weighted_by_time_and_idle_time_counts_zero_requests() -> None:
    """Bins of 1 s. 8 requests run in 0…0.5 and 4 in 0.5…1: mean 6. Then 4 in 1…1.25 alone: mean 1.

    KV use is a mean over busy time: 40 % and 20 % give 30 %, then 10 %, and nothing in the idle third bin.
    """
    rows = [
        {"instance": "d-0", "start_s": 0.0, "end_s": 0.5, "running": 8.0, "waiting": 3.0, "kv_blocks_used": 40.0},
        {"instance": "d-0", "start_s": 0.5, "end_s": 1.0, "running": 4.0, "kv_blocks_used": 20.0},
        {"instance": "d-0", "start_s": 1.0, "end_s": 1.25, "running": 4.0, "kv_blocks_used": 10.0},
    ]
    activity = measure_activity(iteration_table(rows), ["decode"], (0.0, 160.0))
    assert np.diff(activity.edges_s)[0] == 1.0
    assert activity.running[0, :3].tolist() == [6.0, 1.0, 0.0]
    assert activity.waiting[0, :3].tolist() == [1.5, 0.0, 0.0]
    assert activity.busy_share[0, :3].tolist() == [1.0, 0.25, 0.0]
    assert activity.kv_use[0, :2] == pytest.approx([0.3, 0.1])
    assert np.isnan(activity.kv_use[0, 2:]).all()


def test_instances_follow_the_order_of_the_pools_and_count_as_people_do() -> None:
    names = [("decode-10", "decode"), ("decode-2", "decode"), ("prefill-0", "prefill")]
    rows = [{"instance": name, "pool": pool, "start_s": 0.0, "end_s": 1.0} for name, pool in names]
    activity = measure_activity(iteration_table(rows), ["prefill", "decode"], (0.0, 1.0))
    assert activity.instances == ("prefill-0", "decode-2", "decode-10")
    assert activity.pools == ("prefill", "decode", "decode")


def test_phases_split_an_iteration_without_a_rest() -> None:
    """Two iterations of 10 ms: 2 + 1 + 3 ms in phases of 7 ms compute leave 1 ms, 2 ms communicate, 1 ms waits."""
    one = {"instance": "d-0", "attention_s": 2e-3, "dense_s": 1e-3, "experts_s": 3e-3, "compute_s": 7e-3}
    rows = [{**one, "communication_s": 2e-3, "start_s": at, "end_s": at + 10e-3} for at in (0.0, 0.01)]
    found = phase_seconds(iteration_table(rows), ["prefill", "decode"])
    assert found.phases.names == ("decode",)
    assert found.iterations.tolist() == [2]
    phases = {phase: float(seconds[0]) / 2 for phase, seconds in found.phases.parts.items()}
    assert [phases[name] for name in ("attention", "other compute", "communication", "waiting")] == pytest.approx(
        [2e-3, 1e-3, 2e-3, 1e-3]
    )
    assert found.phases.whole == pytest.approx(found.length_s)


def test_phase_bars_are_shares_of_iteration_time_and_milliseconds_per_iteration() -> None:
    """Iterations of 10 ms and 30 ms, half of each in attention: 50 %, and 10 ms on average."""
    rows = [
        {"instance": "d-0", "start_s": 0.0, "end_s": 0.01, "attention_s": 5e-3, "compute_s": 0.01},
        {"instance": "d-0", "start_s": 0.01, "end_s": 0.04, "attention_s": 15e-3, "compute_s": 0.03},
    ]
    shares, milliseconds = phase_charts(iteration_table(rows), ["decode"])
    assert bars(shares) == {"attention": pytest.approx(50.0), "other compute": pytest.approx(50.0)}
    assert bars(milliseconds) == {"attention": pytest.approx(10.0), "other compute": pytest.approx(10.0)}


def test_iterations_of_no_length_are_drawn_without_a_warning() -> None:
    """Nothing over nothing: there is no share to show."""
    shares, _ = phase_charts(iteration_table([{"instance": "d-0", "start_s": 1.0, "end_s": 1.0}]), ["decode"])
    assert bars(shares) == {}


def bars(chart: Chart) -> dict[str, float]:
    return {trace["name"]: float(unpack(trace["x"])[0]) for trace in read_figure(chart.figure_json)["data"]}


def test_output_tokens_count_from_the_first_to_the_last(tmp_path: Path) -> None:
    """A prompt of 100 tokens prefilled in 1…2 s; 60 output tokens delivered in 3…5 s: 30 per second."""
    run = read_run(write_run(tmp_path / "run", Shape(requests=1, rejected={})))
    stamps = {"scheduled_at_s": 1.0, "prefill_completed_at_s": 2.0, "first_token_at_s": 3.0, "completed_at_s": 5.0}
    given = {"prefill_tokens": 100.0, "decode_tokens": 60.0, **stamps}
    numbers = {**run.requests.numbers, **{name: np.array([value]) for name, value in given.items()}}
    one = dataclasses.replace(run.requests, numbers=numbers)
    prompts, outputs = token_rates(dataclasses.replace(run, requests=one), np.arange(7.0))
    assert prompts.tolist() == [0, 100, 0, 0, 0, 0]
    assert outputs.tolist() == [0, 0, 0, 30, 30, 0]


def test_link_use_counts_all_traffic_of_a_window_against_the_capacity() -> None:
    """Link x: 0.3 + 0.4 of one second, then 0.1 of the next, over 4 s: peak 70 %, mean 20 %. Link y: 12.5 %."""
    rows = [
        ("y", "nic", "kv", 0.0, 1.0, 0.5e9),
        ("x", "nic", "kv", 0.0, 1.0, 0.3e9),
        ("x", "nic", "collective", 0.0, 1.0, 0.4e9),
        ("x", "nic", "kv", 1.0, 2.0, 0.1e9),
    ]
    first, second = busiest_links(links_of(rows), 4.0)
    assert (first.peak_use, first.mean_use) == pytest.approx((0.7, 0.2))
    assert (first.kv_bytes, first.collective_bytes) == pytest.approx((0.4e9, 0.4e9))
    assert (second.peak_use, second.mean_use, second.collective_bytes) == pytest.approx((0.5, 0.125, 0.0))


def test_mean_link_use_is_over_all_links_of_a_kind_and_apart_by_traffic() -> None:
    """Two links carry 0.6 and 0.2 of a second's bytes of KV: 40 % on average; collectives on one of them: 5 %."""
    rows = [
        ("x", "nic", "kv", 0.0, 1.0, 0.6e9),
        ("y", "nic", "kv", 0.0, 1.0, 0.2e9),
        ("x", "nic", "collective", 0.0, 1.0, 0.1e9),
    ]
    drawn = read_figure(mean_use_chart(links_of(rows)).figure_json)["data"]
    use = {trace["name"]: unpack(trace["y"]).tolist() for trace in drawn}
    assert use == {"nic, KV": [pytest.approx(40.0)], "nic, collective": [pytest.approx(5.0)]}


def test_the_busiest_link_is_the_fullest_one_of_each_window() -> None:
    """x carries KV and collectives in the first window, 70 %; y is fuller in the second, 50 %."""
    rows = [
        ("x", "nic", "kv", 0.0, 1.0, 0.3e9),
        ("x", "nic", "collective", 0.0, 1.0, 0.4e9),
        ("y", "nic", "kv", 0.0, 1.0, 0.6e9),
        ("x", "nic", "kv", 1.0, 2.0, 0.1e9),
        ("y", "nic", "kv", 1.0, 2.0, 0.5e9),
    ]
    (trace,) = read_figure(peak_use_chart(links_of(rows)).figure_json)["data"]
    assert unpack(trace["y"]) == pytest.approx([70.0, 50.0])


def test_the_eight_busiest_links_of_each_kind_are_listed_nics_first() -> None:
    """30 links, a third of each kind, the later the busier: NVLink, though fullest of all, hides no NIC."""
    kinds = ("nic", "fabric", "nvlink")
    rows = [(f"link{place:02}", kinds[place // 10], "kv", 0.0, 1.0, 1e6 * (place + 1)) for place in range(30)]
    listed = busiest_links(links_of(rows), 1.0)
    assert [link.kind for link in listed] == ["nic"] * 8 + ["fabric"] * 8 + ["nvlink"] * 8
    assert [round(link.kv_bytes / 1e6) for link in listed] == [
        *range(10, 2, -1),
        *range(20, 12, -1),
        *range(30, 22, -1),
    ]


def test_a_kind_of_link_that_is_not_known_is_listed_last() -> None:
    rows = [("x", "cxl", "kv", 0.0, 1.0, 9e6), ("y", "nvlink", "collective", 0.0, 1.0, 1e6)]
    listed = busiest_links(links_of(rows), 1.0)
    assert [(link.kind, link.collective_bytes) for link in listed] == [("nvlink", 1e6), ("cxl", 0.0)]


def layout_of(chart: Chart | None) -> Any:
    assert chart is not None
    return read_figure(chart.figure_json)["layout"]


def ms_curve(*values_ms: float) -> Curve:
    return sample_curve("run", np.array(values_ms) / 1e3)


@pytest.mark.parametrize("slowest_ms", [40.0, 400.0])
def test_an_objective_within_three_times_the_largest_value_is_a_line(slowest_ms: float) -> None:
    """On a linear axis (20…40 ms) and on a logarithmic one (20…400 ms); 3 · 40 = 120 ms is still drawn."""
    chart = distribution_chart("tpot", [ms_curve(20, 25, slowest_ms)], 3 * slowest_ms / 1e3)
    layout = layout_of(chart)
    assert layout["shapes"][0]["x0"] == pytest.approx(3 * slowest_ms)
    assert [note["text"] for note in layout["annotations"]] == [f"SLO {3 * slowest_ms:g} ms"]
    assert (layout["xaxis"].get("type") == "log") == (slowest_ms == 400.0)
    assert chart is not None
    assert chart.reading.endswith("Right of the dashed line the SLO is missed.")


@pytest.mark.parametrize("slowest_ms", [4.0, 40.0])
def test_a_farther_objective_is_told_in_words_and_leaves_the_axis_to_the_data(slowest_ms: float) -> None:
    chart = distribution_chart("tpot", [ms_curve(2, 3, slowest_ms)], 1.0)
    layout = layout_of(chart)
    assert "shapes" not in layout
    assert [note["text"] for note in layout["annotations"]] == ["SLO 1000 ms, beyond the axis"]
    assert layout["xaxis"].get("range", [0])[-1] < np.log10(slowest_ms) + 0.1
    assert chart is not None
    assert "dashed" not in chart.reading


def test_a_far_objective_is_not_drawn_over_the_run_either(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", Shape(requests=20, qps=1.0)))
    assert layout_of(ttft_over_time(run))["annotations"][0]["text"] == "SLO 2 s, beyond the axis"
    soon = dataclasses.replace(run, summary=dataclasses.replace(run.summary, slo=Objectives(ttft_s=0.1)))
    assert layout_of(ttft_over_time(soon))["shapes"][0]["y0"] == 0.1


@pytest.mark.parametrize(("longest_ms", "is_log"), [(99.0, False), (101.0, True)])
def test_a_tail_of_five_times_the_median_is_drawn_on_a_logarithmic_axis(longest_ms: float, is_log: bool) -> None:
    """The median is 20 ms, and the smallest value no eighth of the largest."""
    chart = distribution_chart("tpot", [ms_curve(19, 20, 20, 20, longest_ms)], None)
    assert (layout_of(chart)["xaxis"].get("type") == "log") == is_log


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({}, "(that of the host unless configured)."),
        ({"request_latency_ms": 1.5}, "(1.5 ms)."),
        ({"request_latency_ms": 0}, None),
    ],
)
def test_the_queue_is_said_to_contain_the_latency_of_the_front_end(
    tmp_path: Path, engine: dict[str, float], said: str | None
) -> None:
    run = dataclasses.replace(read_run(write_run(tmp_path / "run", Shape(requests=5))), config={"engine": engine})
    reading = ttft_stage_charts(run)[0].reading
    assert reading.endswith(said or "what makes the tail.")
    assert ("Queue includes the fixed latency of the front end" in reading) == (said is not None)


def test_a_transfer_uses_the_nics_of_the_smaller_side(tmp_path: Path) -> None:
    """Prefill TP8 sends with 8 NICs, but a decode rank of TP1 receives with one."""
    run = read_run(write_run(tmp_path / "run", Shape(requests=5)))
    assert line_rates_bps(run) == {"1 NIC": NIC_BPS}


def test_a_histogram_is_drawn_at_the_upper_edges_of_its_bins() -> None:
    """Empty bins at both ends are left out; 1 of 4 gaps lies below 2 s, all below 4 s."""
    curve = histogram_curve("run", Histogram(edges_s=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0), counts=(0, 1, 0, 3, 0)))
    assert curve.values_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert curve.shares.tolist() == [0.0, 0.25, 0.25, 1.0]


def test_requests_that_failed_miss_every_objective(tmp_path: Path) -> None:
    """Nothing is slower than 2 s or 50 ms per token here, so all but the 5 rejected of 20 requests meet both."""
    shape = Shape(requests=15, qps=1.0, decode_instances=1, prefill_instances=1, rejected={"too long": 5})
    assert slo_shares(read_run(write_run(tmp_path / "run", shape))) == (0.75, 0.75)


def test_logarithmic_ticks_are_round_and_inside_the_axis() -> None:
    axis = log_axis("TTFT (s)", [3.0, 70.0])
    assert axis["ticktext"] == ["5", "10", "20", "50"]
    assert log_axis("TTFT (s)", [2e-3, 4e3])["tickvals"] == pytest.approx([1e-2, 1e-1, 1, 10, 100, 1000])


def test_a_logarithmic_axis_has_a_least_value() -> None:
    """1e-320, which nobody has measured, would take it over 321 powers of ten and overflow."""
    low, high = log_axis("TPOT (ms)", [1e-320, 1.0])["range"]  # type: ignore[misc]
    assert -19 < low < -18
    assert high < 1


def test_text_of_files_cannot_be_read_as_markup_by_the_charts() -> None:
    assert label("<b>x</b>&") == "&lt;b&gt;x&lt;/b&gt;&amp;"
    assert len(label("a" * 500)) == 48


def test_chart_data_cannot_close_its_script_element() -> None:
    chart = Chart("key", "title", "reading", json.dumps({"data": ["</script><b>"]}), 100, False)
    html = charts_html([chart])
    assert html.count("</script>") == 1
    data = html[html.index("{") : html.rindex("}") + 1]
    assert json.loads(data) == {"data": ["</script><b>"]}


def test_values_far_from_zero_keep_their_differences() -> None:
    """1.7·10⁹ s and 10 ms later are equal in single precision."""
    late = compact([1.7e9, 1.7e9 + 0.01])
    assert late[1] - late[0] == pytest.approx(0.01, rel=1e-3)
    assert compact([0.1, 0.2]).dtype == np.float32


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (0.0, "0 s"), (12.345, "12.3 s"), (0.0456, "45.6 ms"), (7.8e-6, "7.80 µs"), (1234.0, "1,234 s")],
)
def test_durations_have_three_digits_in_the_unit_that_fits(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0"), (0.05061, "0.0506"), (31080.4, "31,080"), (5.286, "5.29")])
def test_numbers_have_three_significant_digits(value: float, shown: str) -> None:
    assert digits(value) == shown


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        (["x/a", "x/b"], ["a", "b"]),
        (["x/out", "y/out"], ["x/out", "y/out"]),
        (["x/a", "x/a"], ["a (1)", "a (2)"]),
    ],
)
def test_labels_tell_the_folders_apart(folders: list[str], labels: list[str]) -> None:
    assert distinct_labels([Path("/runs") / folder for folder in folders]) == labels


@pytest.mark.parametrize(("share", "shown"), [(-1.2e-16, "0.0 %"), (0.0042, "0.4 %"), (1.0, "100.0 %"), (None, "–")])
def test_a_share_that_is_zero_but_for_rounding_has_no_sign(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_columns_of_text_are_no_numbers_wherever_they_are() -> None:
    """Numbers are flush right and do not wrap."""
    table = table_html(("Name", "Tokens", "Why"), [["a", "1", "b"]], texts=(2,))
    assert re.findall(r'<td( class="number")? data-head="(\w+)"', table) == [
        ("", "Name"),
        (' class="number"', "Tokens"),
        ("", "Why"),
    ]


def test_tiers_show_what_was_prefetched() -> None:
    table = tier_table([TierSummary(kind="nvme", prefetched_chunks=12664, recompute_s=21.4)])
    assert 'data-head="Chunks prefetched">12,664<' in table
    assert 'data-head="Recomputing">21.4 s<' in table


def test_acronyms_of_parts_keep_their_capitals() -> None:
    step = Step("kv_room", 0.0, 10**9, ("d-0 had 3 requests",))
    found = Waterfall("r0", {}, (step,), 10**9, {"queue": 1, "kv_room": 10**8})
    assert _meanings([found]).startswith("KV room: end of its prompt")
    assert _waits(found) == "KV room 100 µs: d-0 had 3 requests"
