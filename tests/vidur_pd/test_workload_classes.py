"""Classes of requests: shares, priorities, lengths and objectives of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool
from tests.vidur_pd.workload_cases import contents, load, synthetic
from vidur_pd.config import SloConfig
from vidur_pd.metrics.request_classes import class_summaries
from vidur_pd.metrics.requests import RequestTable
from vidur_pd.metrics.summary_file import read_summary
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.simulation import api
from vidur_pd.simulation.output import stream_result, write_result
from vidur_pd.workload import Workload, read_trace
from vidur_pd.workload.request import STATUSES, RequestStatus, request_of
from vidur_pd.workload.source import RequestSource
from vidur_pd.workload.workload import Classes
from vidur_pd.workload.writing import write_trace

CLASSES: dict[str, Any] = {
    "chat": {"share": 0.25, "priority": -1},
    "batch": {"share": 0.75, "priority": 5, "lengths": {"kind": "fixed", "prefill": 900, "decode": 7}},
}


def names(made: Workload) -> list[str]:
    assert made.classes is not None
    found: list[str] = made.classes.name_of.tolist()
    return found


def test_classes_have_their_shares_priorities_and_lengths() -> None:
    """Of 40,000 requests 10,000 are expected, with a standard deviation of 87; the bound is five of them."""
    made = load(synthetic(40_000, classes=CLASSES))
    is_chat = np.array(names(made)) == "chat"
    assert abs(is_chat.sum() - 10_000) < 5 * 87
    assert made.priority is not None
    assert set(made.priority[is_chat].tolist()) == {-1}
    assert set(made.priority[~is_chat].tolist()) == {5}
    assert set(made.prefill_tokens[is_chat].tolist()) == {100}
    assert set(made.decode_tokens[~is_chat].tolist()) == {7}


def test_a_class_leaves_the_draws_of_everything_else_alone() -> None:
    lengths = {"kind": "lognormal", "prefill": {"mean": 50, "cv": 1}, "decode": {"mean": 30, "cv": 1}}
    plain = load(synthetic(200, lengths=lengths))
    classes = {name: {"share": 0.5} for name in ("a", "b")}
    assert contents(load(synthetic(200, lengths=lengths, classes=classes))) == contents(plain)


def test_all_turns_of_a_session_are_of_one_class() -> None:
    sessions = {"turns": {"kind": "fixed", "turns": 3}, "system_tokens": 16}
    made = load(synthetic(300, classes=CLASSES, sessions=sessions))
    assert made.sessions is not None
    by_session = pd.Series(names(made)).groupby(made.sessions.session).nunique()
    assert by_session.max() == 1
    assert set(made.decode_tokens[np.array(names(made)) == "batch"].tolist()) == {7}
    assert set(names(made)) == {"chat", "batch"}


def test_the_core_gets_the_priority() -> None:
    made = load(synthetic(50, classes=CLASSES))
    assert made.priority is not None
    assert [request_of(made, row, 0).priority for row in range(50)] == made.priority.tolist()
    assert request_of(load(synthetic(1)), 0, 0).priority == 0


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_traces_keep_classes_and_priorities(tmp_path: Path, name: str) -> None:
    made = load(synthetic(30, classes=CLASSES))
    write_trace(made, tmp_path / name)
    again = read_trace(tmp_path / name).workload
    assert names(again) == names(made)
    assert made.priority is not None
    assert again.priority is not None
    assert again.priority.tolist() == made.priority.tolist()


def test_parts_of_a_mix_keep_their_classes() -> None:
    parts = {"a": synthetic(5, classes={"chat": {"share": 1, "priority": -2}}), "b": synthetic(4)}
    made = load({"kind": "mix", "parts": parts})
    assert made.priority is not None
    found = {
        (request[0], name, priority)
        for request, name, priority in zip(made.request_ids, names(made), made.priority.tolist(), strict=True)
    }
    assert found == {("a", "chat", -2), ("b", "", 0)}


def test_goodput_counts_each_request_by_the_objectives_of_its_class() -> None:
    """TTFTs of 1, 3, 1, 3 s; chat (the first two) has to meet 2 s, batch 10 s; the last one failed."""
    second = 10**12
    done, failed = STATUSES.index(RequestStatus.COMPLETED), STATUSES.index(RequestStatus.FAILED)
    made = Workload(
        ("a", "b", "c", "d"),
        np.zeros(4, dtype=np.int64),
        np.full(4, 10),
        np.full(4, 2),
        classes=Classes(("chat", "batch"), np.array([0, 0, 1, 1])),
        priority=np.zeros(4, dtype=np.int64),
    )
    names_of_figures = ("first_token_ps", "last_token_ps", "completed_ps")
    source = RequestSource(made)
    taken: dict[str, Any] = {name: np.zeros(4, dtype=np.int64) for name in RequestTable.__dataclass_fields__}
    for name in (
        "request_id",
        "arrived_ps",
        "prompt_tokens",
        "output_tokens",
        "instances",
        "session",
        "turn",
        "class_name",
        "has_priorities",
        "has_connector",
    ):
        del taken[name]
    taken |= {name: np.array([1, 3, 1, 3]) * second for name in names_of_figures}
    taken |= {"index": np.arange(4), "status": np.array([done, done, done, failed]), "reasons": [(3, "gone")]}
    tally = RequestTally(source)
    tally.add(RequestTable.of(source, taken, (), has_connector=False))
    slo = SloConfig.model_validate({"classes": {"batch": {"ttft_s": 10}}})
    assert tally.is_served(slo).tolist() == [True, False, True, False]
    assert tally.is_served(SloConfig(ttft_s=10)).tolist() == [True, True, True, False]
    found = class_summaries(tally, slo)
    assert found is not None
    chat, batch = found
    assert (chat.name, chat.requests, chat.completed, chat.goodput_share, chat.ttft_s.mean) == ("chat", 2, 2, 0.5, 2.0)
    assert (batch.name, batch.requests, batch.completed, batch.goodput_share) == ("batch", 2, 1, 0.5)
    assert (chat.slo.ttft_s, batch.slo.ttft_s, batch.slo.tpot_s) == (2.0, 10, 0.05)
    assert chat.goodput == pytest.approx(1 / 3)


def test_results_show_classes_and_those_without_are_as_before(tmp_path: Path) -> None:
    tree = {"workload": synthetic(40, classes=CLASSES), "slo": {"classes": {"batch": {"ttft_s": 30, "tpot_s": 1}}}}
    run = config([pool("m", "mixed")], **tree)
    write_result(api.simulate(run), tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    assert list(table.columns[-2:]) == ["class", "priority"]
    assert dict(zip(table["class"], table["priority"], strict=True)) == {"chat": -1, "batch": 5}
    found = read_summary(tmp_path / "out" / "summary.json").classes
    assert found is not None
    assert {each.name: each.requests for each in found} == table["class"].value_counts().to_dict()
    assert "batch" in (tmp_path / "out" / "report.html").read_text()
    stream_result(api.prepare(run), tmp_path / "streamed")
    streamed = pd.read_parquet(tmp_path / "streamed" / "requests.parquet")
    assert (
        streamed.set_index("request_id")["class"].to_dict()
        == table.set_index(table["request_id"].astype(str))["class"].to_dict()
    )
    write_result(api.simulate(config([pool("m", "mixed")], workload=synthetic(5))), tmp_path / "plain")
    assert "classes" not in json.loads((tmp_path / "plain" / "summary.json").read_text())
    assert "classes" not in (tmp_path / "plain" / "config.yaml").read_text()


def test_objectives_of_a_class_that_is_not_there_are_refused() -> None:
    tree = config(
        [pool("m", "mixed")], workload=synthetic(5, classes=CLASSES), slo={"classes": {"chta": {"ttft_s": 1}}}
    )
    with pytest.raises(
        InputError, match=r"slo\.classes: found 'chta', expected a class of the workload \(chat, batch\)"
    ):
        api.prepare(tree)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"a": {"share": 0.5}, "b": {"share": 0.4}}, "classes: found shares that add up to 0.9, expected 1"),
        ({"a": {"share": 0}}, "share"),
        ({"a": {"share": 1, "priority": 1.5}}, "priority"),
        ({"a b": {"share": 1}}, "a b"),
    ],
)
def test_wrong_classes_are_refused(classes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(synthetic(5, classes=classes))


def test_a_wrong_priority_names_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens,priority\n0,5,5,-3\n1,5,5,1.5\n")
    with pytest.raises(InputError, match=r"line 3: priority: found '1\.5', expected a whole number from -2147483648"):
        read_trace(tmp_path / "t.csv")
