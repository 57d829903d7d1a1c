"""The one list of figures of requests, in the core and in tables."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import vidur_pd
from tests.integration.small_runs import config, pool, simulate
from tests.vidur_pd.one_rank import generated
from vidur_pd._core import Loop
from vidur_pd.metrics import request_figures
from vidur_pd.metrics.columns import numbers, texts
from vidur_pd.metrics.request_figures import REQUEST_COLUMNS, RequestFigures
from vidur_pd.metrics.request_rows import request_columns, requests_csv
from vidur_pd.metrics.result import Result
from vidur_pd.workload.request import Request

CONTRACT = {
    *("arrived_at_s", "prefill_tokens", "decode_tokens", "cached_tokens", "scheduled_at_s", "prefill_completed_at_s"),
    *("kv_sent_at_s", "kv_arrived_at_s", "first_token_at_s", "completed_at_s", "ttft_s", "tpot_s", "e2e_s"),
    *("pd_p2p_comm_bytes", "pd_p2p_comm_time_s", "kv_exposed_s", "preemptions"),
}
KINDS = {name: str(kind) for name, kind in RequestFigures.__annotations__.items()}


def request() -> Request:
    return Request(0, "r", 10, 5, 0)


def test_the_core_logs_every_figure_and_no_other() -> None:
    """A build of another list would lack some; ``python -m pip install`` or CMake makes it again."""
    loop = Loop(0, keeps_runs=False, links=None)
    loop.complete(request())
    assert set(loop.requests.take()) == {*KINDS, "index", "status", "reasons"}


def test_every_figure_can_be_set_from_python_and_is_logged() -> None:
    loop, ended = Loop(0, keeps_runs=False, links=None), request()
    for number, name in enumerate(KINDS):
        setattr(ended, name, number)
    loop.fail(ended, "why")
    rows = loop.requests.take()
    assert [rows[name].tolist() for name in KINDS] == [[number] for number in range(len(KINDS))]


def test_figures_that_may_not_apply_are_none_at_first_and_minus_one_in_the_log() -> None:
    loop, ended = Loop(0, keeps_runs=False, links=None), request()
    absent = [name for name, kind in KINDS.items() if kind != "Value"]
    assert {getattr(ended, name) for name in absent} == {None}
    loop.fail(ended, "why")
    rows = loop.requests.take()
    assert {rows[name].item() for name in absent} == {-1}


def test_stages_are_forgotten_when_a_request_begins_again_and_nothing_else_is() -> None:
    again = generated(request(), 2)
    stamps = [name for name, kind in KINDS.items() if kind in ("Stage", "Maybe", "Place")]
    for name in stamps:
        setattr(again, name, 7)
    again.restart(1)  # whose first token the user has
    forgotten = {name for name in stamps if getattr(again, name) is None}
    assert forgotten == {name for name, kind in KINDS.items() if kind == "Stage"}
    assert forgotten >= {"scheduled_ps", "prefill_completed_ps", "kv_sent_ps", "kv_arrived_ps"}


def served() -> Result:
    engine = {"estimator": "roofline", "max_model_len": 1000}
    tree = config([pool("p", "prefill"), pool("d", "decode")], engine=engine)
    return simulate(tree, [(0, 100, 3), (10_000, 2000, 3), (20_000, 300, 1)])


def test_both_files_have_the_columns_of_the_list() -> None:
    table = served().table
    names = [column.name for column in REQUEST_COLUMNS]
    assert "".join(requests_csv(table)).splitlines()[0].split(",") == names
    found = request_columns(table)
    assert [name for name in found if not name.endswith("_ps")] == names
    exact = [column.name.removesuffix("_s") + "_ps" for column in REQUEST_COLUMNS if column.is_exact]
    assert [name for name in found if name.endswith("_ps")] == exact


def test_the_report_reads_what_every_result_has() -> None:
    """Columns that came later are not asked for: a result without them is still one."""
    assert texts(REQUEST_COLUMNS) == ("request_id", "prefill_instance", "decode_instance", "status")
    assert set(numbers(REQUEST_COLUMNS)) == CONTRACT


def test_records_have_the_figures_of_the_table() -> None:
    """The second request is refused: what did not happen to it is ``None``."""
    result = served()
    table, records = result.table, result.requests
    for name in KINDS:
        found = [getattr(record, name) for record in records]
        column = getattr(table, name)
        if KINDS[name] == "Place":
            assert found == [table.instances[place] if place >= 0 else "" for place in column]
        else:
            kept = [None if KINDS[name] != "Value" and value == -1 else value for value in column.tolist()]
            assert found == kept
    assert [record.completed_ps is None for record in records] == [False, True, False]
    assert records[1].status_reason is not None
    assert {each.name for each in fields(table)} - {each.name for each in fields(records[0])} == {
        "reasons",
        "instances",
        "has_priorities",
        "has_connector",
    }
    assert isinstance(table.rows(np.array([2])).kv_bytes, np.ndarray)


def test_the_derived_figure_of_the_readme_is_a_rate_where_there_is_one() -> None:
    """4 tokens after the first in the time between the two; a single token has none."""
    page = (Path(vidur_pd.__file__).parent / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(def _output_rate.*?)```", page, flags=re.DOTALL)
    scope: dict[str, Any] = {**vars(request_figures), "RequestTable": Any}
    exec(text, scope)
    table = simulate(config([pool("m", "mixed")]), [(0, 100, 5), (1_000_000, 100, 1)]).table
    span_s = int(table.completed_ps[0] - table.first_token_ps[0]) / 1e12
    assert scope["_output_rate"](table).tolist() == [4 / span_s, -1]
