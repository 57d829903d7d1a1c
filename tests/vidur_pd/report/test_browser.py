"""Pages of a run, of a comparison and of a search in a real browser, without a window.

Skips where there is no Chromium; ``PD_SCREENSHOTS=FOLDER`` keeps pictures of all pages in all looks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.vidur_pd.report.report_run import Shape, write_run
from tests.vidur_pd.search.spaces import Arithmetic, screened, space
from vidur_pd.execution.promise.promise import Promise
from vidur_pd.report import write_comparison, write_report
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.output.page import search_page
from vidur_pd.search.search import Search
from vidur_pd.search.space.space import Point
from vidur_pd.search.study import Study

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'vidur-pd[test]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
    pytest.mark.filterwarnings("default"),  # of the driver's event loop
]
HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'
HOSTILE_FOLDER = "<img src=x onerror=alert(1)>"
WIDE, NARROW = 1280, 400


@dataclass(slots=True)
class Visit:
    """A page that is open, and what it did."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def screenshot(self, name: str) -> None:
        if folder := os.environ.get("PD_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def visiting(browser: Any, path: Path) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": WIDE, "height": 900}, color_scheme="light")
    visit = Visit(context.new_page())
    visit.page.on("console", lambda message: visit.messages.append(message.text))
    visit.page.on("pageerror", lambda error: visit.messages.append(str(error)))
    visit.page.on("dialog", lambda dialog: visit.messages.append(f"dialog: {dialog.message}"))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.goto(path.as_uri())
    yield visit
    context.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    hostile, other = write_run(folder / HOSTILE_FOLDER), write_run(folder / "400 Gbit per s", Shape(seed=2, qps=9))
    poison(hostile)
    return {
        "run": write_report(hostile),
        "comparison": write_comparison([other, hostile], folder / "both.html"),
        "search": searched(folder),
    }


def poison(folder: Path) -> None:
    """Names that would act, if they were markup."""
    table = pd.read_csv(folder / "requests.csv", dtype=object)
    table.assign(request_id=HOSTILE + table["request_id"]).to_csv(folder / "requests.csv", index=False)
    for name, columns in (("iterations.parquet", ("instance", "pool")), ("links.parquet", ("link", "src", "dst"))):
        rows = pd.read_parquet(folder / name)
        rows.assign(**{column: HOSTILE + rows[column].astype(str) for column in columns}).to_parquet(folder / name)


def searched(folder: Path) -> Path:
    """The page of a search whose outcomes are arithmetic."""
    pools, numbers = "cluster.pools.server", "cluster.pools.server.instances"
    found = space({pools: [{"tp": 1}, {"tp": 2}], numbers: [1, 2, 3, 4]}, fidelities=[{}])

    def gpus(point: Point) -> int:
        return (point[0] + 1) * (point[1] + 1)

    def outcome(point: Point, _: int) -> Outcome:
        rate, tpot_s = 20.0 * gpus(point), 0.02 / (point[0] + 1) + 0.001 * point[1]
        return Outcome(
            is_met=rate >= 60,
            margin=rate / 60 - 1,
            gpus=gpus(point),
            rate_per_s=rate,
            output_tokens_per_s=20 * rate / (point[0] + 1) ** 0.5,
            e2e_mean_s=1.0,
            ttft_p90_s=0.3,
            tpot_p50_s=tpot_s,
            tpot_p90_s=tpot_s,
        )

    screening = screened(found, gpus, lambda point: Promise(30.0 * gpus(point), 0.1, 0.01, 1.0))
    with Study(folder / "study.sqlite", found.digest) as study:
        result = Search(found, screening, study, Arithmetic(outcome)).run()
    path = folder / "search.html"
    path.write_text("".join(search_page(result)))
    return path


DRAWN = """[...document.querySelectorAll('.plot')].map(plot => [plot.id, plot.querySelectorAll(
    '.point, .js-line, .js-fill, .heatmaplayer image').length])"""
TICK = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
BODY = "getComputedStyle(document.body).color"
BEYOND = f"""[...document.querySelectorAll('td, .plot svg')].filter(
    seen => seen.getBoundingClientRect().right > {NARROW}).map(seen => seen.outerHTML.slice(0, 120))"""


def unnoticed(visit: Visit, rules: str = "") -> list[tuple[str, str]]:
    """What axe-core finds serious, of all rules or of one."""
    options = {"resultTypes": ["violations"], **({"runOnly": [rules]} if rules else {})}
    found = axe.Axe().run(visit.page, context={"exclude": [["svg"]]}, options=options).response["violations"]
    return [
        (each["id"], node["html"][:160])
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


def wait_for(visit: Visit, script: str, expected: object) -> None:
    for _ in range(100):
        if visit.page.evaluate(script) == expected:
            return
        visit.page.wait_for_timeout(50)
    assert visit.page.evaluate(script) == expected


@pytest.mark.parametrize("name", ["run", "comparison", "search"])
def test_a_page_is_whole_in_light_and_dark_and_on_a_phone(browser: Any, pages: dict[str, Path], name: str) -> None:
    """Every chart draws and has a name of its own; nothing is fetched, nothing complains, axe-core finds nothing
    serious; ink follows the look of the screen, in charts too; at 400 px nothing reaches beyond the edge. What would
    act, if it were markup, is text."""
    with visiting(browser, pages[name]) as visit:
        drawn = dict(visit.page.evaluate(DRAWN))
        assert drawn
        assert [key for key, marks in drawn.items() if not marks] == []
        names = visit.page.eval_on_selector_all(
            ".plot[role=figure]", "all => all.map(p => p.getAttribute('aria-label'))"
        )
        assert len(set(names)) == len(drawn)
        assert all(len(each) > 30 for each in names)
        assert unnoticed(visit) == []
        assert [visit.page.evaluate(script) for script in (TICK, BODY)] == ["rgb(28, 35, 48)"] * 2
        visit.screenshot(f"{name}-light")
        visit.page.emulate_media(color_scheme="dark")
        wait_for(visit, TICK, "rgb(228, 232, 238)")
        assert visit.page.evaluate(BODY) == "rgb(228, 232, 238)"
        assert unnoticed(visit, "color-contrast") == []
        visit.screenshot(f"{name}-dark")
        visit.page.emulate_media(color_scheme="light")
        visit.page.set_viewport_size({"width": NARROW, "height": 900})
        wait_for(visit, BEYOND, [])
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= NARROW
        visit.screenshot(f"{name}-phone")
        assert dict(visit.page.evaluate(DRAWN)).keys() == drawn.keys()
        check_hostile_names_are_text(visit, name)
        assert visit.requests == [pages[name].as_uri()]
        assert visit.messages == []


def check_hostile_names_are_text(visit: Visit, name: str) -> None:
    assert visit.page.evaluate("document.images.length") == 0
    if name != "search":
        assert HOSTILE_FOLDER in visit.page.title()
        assert HOSTILE_FOLDER in visit.page.text_content("main" if name == "comparison" else "header")
    if name == "run":
        assert HOSTILE in visit.page.text_content("main")
        assert "<script>" in visit.page.text_content("#busy")
