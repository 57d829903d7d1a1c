"""The page of several runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from boundary.errors import InputError
from tests.vidur_pd.report.report_page import Page, parse_page
from tests.vidur_pd.report.report_run import Shape, write_run
from vidur_pd.metrics.summary import Distribution, Interval, SeedsSummary, Summary, WorkloadSummary
from vidur_pd.report import comparison_table, comparison_warnings, unranked_runs, write_comparison
from vidur_pd.report.comparison import flatten
from vidur_pd.report.differences import CACHED, ComparisonRow, compare_summaries


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    few = Shape(requests=80, rejected={}, estimates_share=0.0)
    more = Shape(requests=80, decode_instances=4, is_first_token_from_decode=False)
    return [write_run(root / "two-decode", few), write_run(root / "four-decode", more)]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> Page:
    return parse_page(write_comparison(folders, folders[0].parent / "comparison.html", ranks_unlike=True))


def test_the_page_overlays_every_run_in_one_colour_each(page: Page) -> None:
    for chart in ("cdf-ttft", "cdf-tpot", "cdf-itl", "cdf-e2e", "output-rate"):
        traces = page.charts[chart]["data"]
        assert [trace["name"] for trace in traces] == ["two-decode", "four-decode"]
        assert [trace["line"]["color"] for trace in traces] == ["#2b7cc4", "#d9730d"]
    assert set(page.charts) == {
        "cdf-ttft",
        "cdf-tpot",
        "cdf-itl",
        "cdf-e2e",
        "ttft-stages",
        "output-rate",
        "efficiency",
    }


def test_the_headline_gives_the_change_against_the_first_run(folders: list[Path], page: Page) -> None:
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in folders)
    table = {row[0]: row[1:] for row in page.rows_of("headline")}
    change = (second["tpot_s"]["p50"] / first["tpot_s"]["p50"] - 1) * 100
    assert change < 0  # half the requests per instance make shorter iterations
    assert table["TPOT p50"][1].endswith(f"(−{-change:.1f} %)")
    assert table["GPUs"] == ["48", "80 (+66.7 %)"]


def test_runs_of_other_requests_are_not_ranked_unless_asked_for(folders: list[Path], tmp_path: Path) -> None:
    """80 requests against 83: figures stand next to each other, without changes."""
    page = parse_page(write_comparison(folders, tmp_path / "unlike.html"))
    table = {row[0]: row[1:] for row in page.rows_of("headline")}
    assert table["GPUs"] == ["48", "80"]
    assert "Changes are left out for runs of other requests: four-decode." in (tmp_path / "unlike.html").read_text()
    rows = comparison_table(folders)
    assert all(row["change_texts"] == {"four-decode": ""} for row in rows)
    assert all(row["changes_percent"] == {"four-decode": None} for row in rows)
    assert unranked_runs(folders) == ["four-decode"]


def test_differences_within_the_noise_of_seeds_are_marked() -> None:
    """Intervals of TTFT p50 overlap, those of TPOT p50 do not; E2E has none."""
    least = {"requests": 1, "completed": 1, "rejected": 0, "failed": 0, "workload": WorkloadSummary(digest="d")}

    def of(ttft: tuple[float, float], tpot: tuple[float, float]) -> Summary:
        middles = (sum(ttft) / 2, sum(tpot) / 2)
        names = ("ttft_s.p50", "tpot_s.p50")
        figures = {
            name: Interval(mean=middle, low=ends[0], high=ends[1])
            for name, middle, ends in zip(names, middles, (ttft, tpot), strict=True)
        }
        latencies = {"ttft_s": Distribution(p50=middles[0]), "tpot_s": Distribution(p50=middles[1])}
        return Summary(**least, **latencies, e2e_s=Distribution(p50=sum(middles)), seeds=SeedsSummary(figures=figures))

    first, second = of((1.0, 1.2), (0.010, 0.011)), of((1.1, 1.5), (0.012, 0.013))
    rows = {row["metric"]: row["change_texts"]["b"] for row in compare_summaries({"a": first, "b": second})}
    assert rows["TTFT p50"] == "≈ +18.2 %"
    assert rows["TPOT p50"] == "+19.0 %"
    assert not rows["E2E p50"].startswith("≈")


def test_tokens_from_prefix_caches_are_compared_where_there_were_any() -> None:
    def rows(*shares: float | None) -> list[ComparisonRow]:
        counts = {"requests": 1, "completed": 1, "rejected": 0, "failed": 0}
        return compare_summaries({str(at): Summary(**counts, cached_input_share=of) for at, of in enumerate(shares)})

    (row,) = (row for row in rows(0.0, 0.64) if row["metric"] == CACHED)
    assert row["texts"] == {"0": "0.0 %", "1": "64.0 %"}
    assert CACHED not in {row["metric"] for row in rows(None, 0.0)}


def test_shares_change_in_points(page: Page) -> None:
    table = {row[0]: row[1:] for row in page.rows_of("headline")}
    assert table["Time on estimates"] == ["0.0 %", "4.0 % (+4.0 pp)"]


def test_only_fields_that_differ_are_listed(page: Page) -> None:
    assert page.rows_of("differences") == [["cluster.pools.decode.instances", "2", "4"]]


def test_warnings_name_their_run(page: Page) -> None:
    assert page.banners == [
        "four-decode against two-decode: requests 83 instead of 80. What differs is not the system alone.",
        "four-decode: 3 of 83 requests were not completed; 4.0 % of the time rests on estimates, not on measurements.",
    ]


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (Shape(requests=20, rejected={}), []),
        (Shape(requests=20, rejected={}, decode_instances=3), []),
        (Shape(requests=20, rejected={}, qps=9), ["other arrivals or lengths of requests"]),
        (
            Shape(requests=21, rejected={}, seed=2, model="qwen3-8b"),
            ["requests 21 instead of 20; seed 2 instead of 1; model qwen3-8b instead of deepseek-v3"],
        ),
    ],
)
def test_what_differs_beside_the_system_is_said(tmp_path: Path, shape: Shape, found: list[str]) -> None:
    first = write_run(tmp_path / "a", Shape(requests=20, rejected={}))
    other = write_run(tmp_path / "b", shape)
    expected = [f"b against a: {text}. What differs is not the system alone." for text in found]
    assert comparison_warnings([first, other]) == expected
    shown = parse_page(write_comparison([first, other], tmp_path / "c.html")).banners
    assert [banner for banner in shown if "against" in banner] == expected


def test_objectives_and_requests_without_digest_are_named(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, Shape(requests=20, rejected={})) for name in ("a", "b")]
    summary = json.loads((folders[1] / "summary.json").read_text())
    summary["slo"]["ttft_s"] = 0.5
    del summary["workload"]
    (folders[1] / "summary.json").write_text(json.dumps(summary))
    assert comparison_warnings(folders) == [
        "b against a: requests of which no digest says whether they are the same; TTFT objective 500 ms instead of "
        "2.00 s. What differs is not the system alone."
    ]


def test_stages_are_compared_by_run(page: Page) -> None:
    """The second run delivers the first token from the prefill side: no decode wait in its TTFT."""
    wait = [trace["name"] for trace in page.charts["ttft-stages"]["data"]].index("decode wait")
    first, second = page.values("ttft-stages", wait)
    assert first > 0.005
    assert second == 0


def test_one_objective_is_drawn_only_if_all_runs_share_it(tmp_path: Path, folders: list[Path], page: Page) -> None:
    assert any("SLO" in note["text"] for note in page.charts["cdf-ttft"]["layout"]["annotations"])
    other = write_run(tmp_path / "strict", Shape(requests=20))
    summary = json.loads((other / "summary.json").read_text())
    summary["slo"]["ttft_s"] = 0.5
    (other / "summary.json").write_text(json.dumps(summary))
    mixed = parse_page(write_comparison([folders[0], other], tmp_path / "mixed.html"))
    assert "annotations" not in mixed.charts["cdf-ttft"]["layout"]
    assert "annotations" in mixed.charts["cdf-tpot"]["layout"]


def test_a_run_compared_with_itself_differs_in_nothing(tmp_path: Path, folders: list[Path]) -> None:
    same = parse_page(write_comparison([folders[0], folders[0]], tmp_path / "same.html"))
    assert same.rows_of("differences") == []
    assert not [cell for row in same.rows_of("headline") for cell in row if cell.endswith(")") and "%" in cell]


def test_no_directory_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        write_comparison([], tmp_path / "none.html")


def test_the_table_of_differences_is_that_of_the_page(folders: list[Path], page: Page) -> None:
    shown = {
        row["metric"]: [
            text + (f" ({row['change_texts'][run]})" if row["change_texts"].get(run) else "")
            for run, text in row["texts"].items()
        ]
        for row in comparison_table(folders, ranks_unlike=True)
    }
    assert shown == {row[0]: row[1:] for row in page.rows_of("headline")}


def test_the_table_of_differences_holds_values_and_changes_by_run(folders: list[Path]) -> None:
    """48 and 80 GPUs, each completing 80 requests; a change from no time on estimates at all has no per cent."""
    rows = {row["metric"]: row for row in comparison_table([folders[0], folders[1], folders[0]], ranks_unlike=True)}
    names = ["two-decode (1)", "four-decode", "two-decode (2)"]
    assert list(rows["GPUs"]["values"].items()) == list(zip(names, [48.0, 80.0, 48.0], strict=True))
    assert rows["GPUs"]["changes_percent"] == {names[1]: pytest.approx(200 / 3), names[2]: 0.0}
    assert rows["GPUs"]["change_texts"] == {names[1]: "+66.7 %", names[2]: ""}
    assert rows["Completed requests"]["changes_percent"][names[1]] == 0.0
    assert rows["Time on estimates"]["changes_percent"][names[1]] is None
    assert rows["Time on estimates"]["change_texts"][names[1]] == "+4.0 pp"
    assert json.loads(json.dumps(rows)) == rows


def test_the_table_of_differences_needs_a_summary_of_every_run(tmp_path: Path, folders: list[Path]) -> None:
    with pytest.raises(InputError, match=r"summary\.json: found no such file"):
        comparison_table([folders[0], tmp_path])
    with pytest.raises(InputError, match="at least one"):
        comparison_table([])


def test_a_comparison_goes_into_a_file_of_an_existing_folder_only(tmp_path: Path, folders: list[Path]) -> None:
    with pytest.raises(InputError, match="found a folder, expected the name of a file to write"):
        write_comparison(folders, tmp_path)
    with pytest.raises(InputError, match=r"c\.html: found no folder .*absent, expected an existing one"):
        write_comparison(folders, tmp_path / "absent" / "c.html")
    with pytest.raises(InputError, match=r"requests\.csv: found the file that is read"):
        write_comparison(folders, folders[1] / "requests.csv")


def test_configuration_leaves_are_named_by_path_and_list_items_by_name() -> None:
    tree = {"seed": 1, "cluster": {"pools": [{"name": "decode", "tp": 2}, 7]}, "slo": None}
    assert flatten(tree) == {
        "seed": "1",
        "cluster.pools.decode.name": "decode",
        "cluster.pools.decode.tp": "2",
        "cluster.pools.1": "7",
        "slo": "None",
    }
