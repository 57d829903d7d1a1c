"""Traces of one's own: columns by their names, units of time, a prefix that all prompts share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from boundary.errors import InputError
from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool
from vidur_pd.config.reference import page
from vidur_pd.metrics.summary import PoolSummary, Summary, WorkloadSummary
from vidur_pd.simulation import api
from vidur_pd.workload import Workload, WorkloadConfig, generator, load_workload

OWN = "ts,n_in,who,n_out\n1764144000000,900,a,120\n1764144001500,2100,b,80\n"
COLUMNS = {"arrived_at_s": "ts", "prefill_tokens": "n_in", "decode_tokens": "n_out"}


def loaded(folder: Path, text: str = OWN, **fields: Any) -> Workload:
    (folder / "own.csv").write_text(text)
    section = TypeAdapter(WorkloadConfig).validate_python({"kind": "trace", "path": "own.csv", **fields})
    return load_workload(section, base_dir=folder, rng=lambda name: generator(0, name))


def test_columns_have_the_names_that_the_file_gives_them(tmp_path: Path) -> None:
    """Milliseconds since 1970: the first request comes at zero, the second 1.5 s later."""
    found = loaded(tmp_path, columns={**COLUMNS, "session": "who"}, time_unit="ms")
    assert found.arrived_ps.tolist() == [0, 1_500_000_000_000]
    assert found.prefill_tokens.tolist() == [900, 2100]
    assert found.decode_tokens.tolist() == [120, 80]
    assert found.sessions is not None


@pytest.mark.parametrize(
    ("unit", "times", "gap_ps"),
    [
        ("s", ("0.5", "2"), 1_500_000_000_000),
        ("us", ("7", "9.25"), 2_250_000),
        ("date_time", ("2026-11-26 08:00:00", "2026-11-26 08:00:00.25"), 250_000_000_000),
    ],
)
def test_times_are_in_the_unit_that_is_stated(unit: str, times: tuple[str, str], gap_ps: int, tmp_path: Path) -> None:
    text = f"ts,n_in,n_out\n{times[0]},10,10\n{times[1]},10,10\n"
    assert loaded(tmp_path, text, columns=COLUMNS, time_unit=unit).arrived_ps.tolist() == [0, gap_ps]


def test_a_column_that_is_another_may_have_our_name(tmp_path: Path) -> None:
    """What the file calls prefill_tokens is not taken, once another column stands for it."""
    text = "ts,prefill_tokens,n_in,n_out\n0,1,900,5\n"
    assert loaded(tmp_path, text, columns=COLUMNS).prefill_tokens.tolist() == [900]


def test_keys_of_json_lines_have_names_of_their_own_too(tmp_path: Path) -> None:
    text = (
        '{"ts": 1764144000000, "n_in": 900, "n_out": 120}\n'
        '{"ts": 1764144001500, "n_in": 2100, "n_out": 80, "prefill_tokens": 1}\n'
    )
    found = loaded(tmp_path, text, columns=COLUMNS, time_unit="ms")
    assert found.arrived_ps.tolist() == [0, 1_500_000_000_000]
    assert found.prefill_tokens.tolist() == [900, 2100]
    with pytest.raises(
        InputError, match=r"line 1: found no key 'who', expected it for columns.session, or one of 'ts'"
    ):
        loaded(tmp_path, text, columns={**COLUMNS, "session": "who"}, time_unit="ms")
    with pytest.raises(InputError, match=r"line 2: n_out: found no such key"):
        loaded(tmp_path, text.replace('2100, "n_out"', '2100, "n"'), columns=COLUMNS, time_unit="ms")
    with pytest.raises(InputError, match=r"line 2: 'n_in': found 'many', expected a whole number"):
        loaded(tmp_path, text.replace("2100", '"many"'), columns=COLUMNS, time_unit="ms")


def test_what_is_not_in_the_file_is_named_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: found no column 'when', expected it for columns.arrived_at_s, or"):
        loaded(tmp_path, columns={**COLUMNS, "arrived_at_s": "when"})
    with pytest.raises(InputError, match=r"line 2: 'ts': found '1764144000000'"):
        loaded(tmp_path, columns=COLUMNS, time_unit="date_time")
    with pytest.raises(InputError, match=r"line 3: 'n_in': found 'many', expected a whole number"):
        loaded(tmp_path, OWN.replace("2100", "many"), columns=COLUMNS, time_unit="ms")
    for wrong in ({"columns": {"prompt": "n_in"}}, {"columns": COLUMNS, "format": "azure"}, {"time_unit": "ms"}):
        with pytest.raises(ValidationError):
            loaded(tmp_path, **wrong)


def test_a_shared_prefix_is_before_every_prompt_and_nothing_else_is_shared(tmp_path: Path) -> None:
    """1,000 tokens are 62 whole blocks of 16 and half of one more, which goes on with text of the request."""
    found = loaded(tmp_path, columns=COLUMNS, time_unit="ms", shared_prefix_tokens=1000)
    assert found.prefill_tokens.tolist() == [1900, 3100]
    hashes = found.block_hashes
    assert hashes is not None
    first, second = hashes.of(0), hashes.of(1)
    assert (len(first), len(second)) == (119, 194)
    assert first[:62].tolist() == second[:62].tolist()
    assert not set(first[62:].tolist()) & set(second.tolist())
    assert len(np.unique(np.concatenate([first, second]))) == 119 + 194 - 62


def test_the_second_prompt_hits_the_shared_prefix(tmp_path: Path) -> None:
    found = loaded(tmp_path, columns=COLUMNS, time_unit="ms", shared_prefix_tokens=1000)
    result = api.simulate(config([pool("m", "mixed")], engine={"prefix_caching": True}), found)
    assert [record.cached_tokens for record in result.requests] == [0, 992]
    assert not result.summary.caches_in_vain


TALK = "arrived_at_s,prefill_tokens,decode_tokens,session\n0,160,40,a\n1,160,16,b\n2,330,10,a\n3,170,9,b\n4,100,9,a\n"


def test_prompts_of_a_session_begin_with_what_was_said_in_it(tmp_path: Path) -> None:
    """Blocks of 16. The second turn of a is longer than the 200 tokens before: 12 whole blocks are shared. That of b is
    longer than the prompt alone (160, 10 blocks), as answers without their reasoning leave it. The last prompt of a is
    shorter than the one before: its history was cut."""
    found = loaded(tmp_path, TALK, session_history=True)
    hashes = found.block_hashes
    assert hashes is not None
    assert hashes.hashed_tokens is not None
    assert hashes.hashed_tokens.tolist() == (found.prefill_tokens + found.decode_tokens).tolist()
    ids = [hashes.of(row).tolist() for row in range(5)]
    assert [len(row) for row in ids] == [13, 11, 22, 12, 7]
    assert ids[2][:12] == ids[0][:12]
    assert ids[3][:10] == ids[1][:10]
    assert len({block for row in ids for block in row}) == sum(map(len, ids)) - 12 - 10
    common = loaded(tmp_path, TALK, session_history=True, shared_prefix_tokens=64).block_hashes
    assert common is not None
    assert all(common.of(row)[:4].tolist() == [0, 1, 2, 3] for row in range(5))
    assert common.of(2)[:16].tolist() == common.of(0)[:16].tolist()


def test_turns_hit_what_was_said_before(tmp_path: Path) -> None:
    found = loaded(tmp_path, TALK, session_history=True)
    result = api.simulate(config([pool("m", "mixed")], engine={"prefix_caching": True}), found)
    assert [record.cached_tokens for record in result.requests] == [0, 0, 192, 160, 0]
    assert not result.summary.caches_in_vain


def test_history_needs_sessions_and_nothing_that_says_otherwise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="session_history: found no sessions in the trace, expected session and turn"):
        loaded(tmp_path, columns=COLUMNS, time_unit="ms", session_history=True)
    text = "arrived_at_s,prefill_tokens,decode_tokens,session,hash_ids\n0,512,3,a,7\n"
    with pytest.raises(InputError, match="session_history: found prompts that name prefixes, expected none"):
        loaded(tmp_path, text, session_history=True)


def test_ids_of_blocks_may_have_a_column_of_another_name(tmp_path: Path) -> None:
    text = "arrived_at_s,prefill_tokens,decode_tokens,blocks\n0,1024,3,7;8\n1,1024,3,7;9\n"
    hashes = loaded(tmp_path, text, columns={"hash_ids": "blocks"}).block_hashes
    assert hashes is not None
    assert hashes.ids.tolist() == [7, 8, 7, 9]


def test_the_sample_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run_forked("vidur_pd", "workload", "sample", "-o", tmp_path / "s.csv")
    assert (done.returncode, done.stdout) == (0, f"written {tmp_path / 's.csv'}\n")
    again = run_forked("vidur_pd", "workload", "inspect", tmp_path / "s.csv")
    assert "prefix reuse" in again.stdout


def test_prompts_with_prefixes_of_their_own_get_no_other(tmp_path: Path) -> None:
    text = "arrived_at_s,prefill_tokens,decode_tokens,hash_ids\n0,512,3,7\n"
    with pytest.raises(InputError, match="shared_prefix_tokens: found 64 with prompts that name prefixes, expected 0"):
        loaded(tmp_path, text, shared_prefix_tokens=64)


def test_caching_a_trace_that_cannot_hit_is_told() -> None:
    pools = (PoolSummary(instances=1, tp=1, ep=1, dp=1, pp=1, gpus=1, prefix_caching=True),)
    told = {
        source: Summary(
            requests=1,
            completed=1,
            rejected=0,
            failed=0,
            makespan_s=1.0,
            pools=pools,
            workload=WorkloadSummary(source=source),
        ).caches_in_vain
        for source in ("trace t.csv", "synthetic: poisson arrivals")
    }
    assert told == {"trace t.csv": True, "synthetic: poisson arrivals": False}


def test_the_page_of_options_is_that_of_the_schema() -> None:
    path = Path(__file__).parents[2] / "docs" / "options.md"
    assert path.read_text(encoding="utf-8") == page(), "run python -m vidur_pd.config.reference docs/options.md"
    assert "| `max_batched_tokens` | integer ≥ 1 |" in page()


@pytest.mark.parametrize(
    ("program", "begun", "expected"),
    [("vidur-pd", "workload in", "inspect"), ("netsim", "to", "topology")],
)
def test_a_shell_completes_commands(program: str, begun: str, expected: str) -> None:
    """As bash asks, after what --install-completion has written."""
    module = program.replace("-", "_")
    words = f"{program} {begun}"
    asked = {f"_{module.upper()}_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [str(Path(sys.executable).with_name(program))]
    shown = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [expected]


def test_completion_is_offered() -> None:
    assert "--install-completion" in run_forked("vidur_pd", "--help").stdout
