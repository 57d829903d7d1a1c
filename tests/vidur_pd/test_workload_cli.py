"""``vidur-pd workload``: results, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.vidur_pd.workload_cases import contents, load, synthetic
from vidur_pd.__main__ import main
from vidur_pd.commands.workload import app
from vidur_pd.workload import read_trace

CONFIG = """
seed: 3
workload:
  kind: synthetic
  requests: 40
  arrivals: {kind: poisson, qps: 4}
  lengths: {kind: fixed, prefill: 100, decode: 50}
  prefixes: {system_tokens: 1024, turns: 2}
"""


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of the program as it is installed."""
    monkeypatch.setattr("sys.argv", ["vidur-pd", "workload", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


def test_generate_writes_the_workload_of_the_configuration(config: Path, tmp_path: Path) -> None:
    code, out, _ = invoke("generate", config, "-o", tmp_path / "t.csv")
    assert code == 0
    assert "40" in out
    expected = load(synthetic(40, prefixes={"system_tokens": 1024, "turns": 2}), seed=3)
    assert contents(read_trace(tmp_path / "t.csv").workload) == contents(expected)


def test_generate_takes_the_workload_of_a_whole_simulation(config: Path, tmp_path: Path) -> None:
    config.write_text(CONFIG + "model: deepseek-v3\ncluster: {}\n")
    assert invoke("generate", config, "-o", tmp_path / "t.csv")[0] == 0


def test_generate_applies_overrides_with_and_without_a_file(config: Path, tmp_path: Path) -> None:
    overrides = ["--set", "workload.requests=7", "--set", "seed=1", "--set", "workload.arrivals.qps=8"]
    assert invoke("generate", config, "-o", tmp_path / "a.csv", *overrides)[0] == 0
    assert invoke("generate", "-o", tmp_path / "b.csv", *overrides)[0] == 0
    one, other = (read_trace(tmp_path / name).workload for name in ("a.csv", "b.csv"))
    assert one.arrived_ps.tolist() == other.arrived_ps.tolist()
    assert set(other.prefill_tokens.tolist()) == {2048}


def test_generate_resolves_a_trace_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    text = "workload: {kind: trace, path: t.csv, arrivals: {kind: constant, qps: 1}}\n"
    (tmp_path / "c.yaml").write_text(text)
    assert invoke("generate", tmp_path / "c.yaml", "-o", tmp_path / "out.jsonl")[0] == 0
    assert read_trace(tmp_path / "out.jsonl").workload.prefill_tokens.tolist() == [5, 7]


def test_inspect_prints_json_that_states_rate_lengths_and_reuse(config: Path, tmp_path: Path) -> None:
    invoke("generate", config, "-o", tmp_path / "t.jsonl.gz")
    code, out, _ = invoke("inspect", tmp_path / "t.jsonl.gz", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["requests"], found["format"], found["decode_tokens"]["p90"]) == (40, "mooncake", 50)
    assert 0 < found["perfect_cache_hit_share"] < 1
    assert found["rate_qps"] == pytest.approx(39 / found["span_s"])


def test_convert_goes_between_formats_without_loss(config: Path, tmp_path: Path) -> None:
    invoke("generate", config, "-o", tmp_path / "a.csv")
    assert invoke("convert", tmp_path / "a.csv", "-o", tmp_path / "b.jsonl")[0] == 0
    assert invoke("convert", tmp_path / "b.jsonl", "-o", tmp_path / "c.csv")[0] == 0
    assert (tmp_path / "c.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    assert invoke("convert", tmp_path / "a.csv", "-o", tmp_path / "v.csv", "--to", "vidur")[0] == 0
    assert (tmp_path / "v.csv").read_text().startswith("arrived_at,num_prefill_tokens,num_decode_tokens\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "absent.csv"], "absent.csv: found no such file"),
        (["inspect", "bad.csv"], "bad.csv: line 2: num_decode_tokens: found 'x', expected a whole number"),
        (["convert", "lengths.csv", "-o", "o.csv"], "lengths.csv: found no arrival times, expected a trace with them"),
        (["convert", "fine.csv", "-o", "o.txt"], "o.txt: found suffix '.txt', expected .csv or .jsonl"),
        (["convert", "fine.csv", "-o", "absent/o.csv"], "absent/o.csv: found no folder absent, expected an existing"),
        (["convert", "fine.csv", "-o", "folder"], "folder: found a folder, expected the name of a file"),
        (["convert", "fine.csv", "-o", ".", "--to", "csv"], ".: found a folder, expected the name of a file"),
        (["convert", "fine.csv", "-o", "fine.csv"], "fine.csv: found the file that is read, expected another one"),
        (["convert", "fine.csv", "-o", "folder/../fine.csv"], "fine.csv: found the file that is read, expected"),
        (["convert", "fine.csv", "-o", "link.csv"], "link.csv: found the file that is read, expected another one"),
        (["generate", "replay.yaml", "-o", "fine.csv"], "fine.csv: found the file that is read, expected another one"),
        (["generate", "mix.yaml", "-o", "fine.csv"], "fine.csv: found the file that is read, expected another one"),
        (["generate", "replay.yaml", "-o", "replay.yaml", "--to", "csv"], "replay.yaml: found the file that is read"),
        (["generate", "absent.yaml", "-o", "o.csv"], "absent.yaml: found no such file"),
        (["generate", "-o", "o.csv", "--set", "workload.request=3"], "workload.request: unknown field"),
        (["generate", "-o", "o.csv", "--set", "foo=1"], "foo: unknown field; expected one of seed, workload"),
        (["generate", "-o", "o.csv", "--set", "engine.max_seqs=8"], "engine: unknown field; expected one of seed"),
        (["generate", "replay.yaml", "-o", "o.csv", "--set", "sead=1"], "sead: unknown field; did you mean 'seed'?"),
        (["generate", "typo.yaml", "-o", "o.csv"], "typo.yaml: sede: unknown field; did you mean 'seed'?"),
        (["generate", "-o", "o.csv", "--set", "workload.requests=0"], "workload.requests: found 0, expected"),
        (["generate", "-o", "o.csv", "--set", "workload"], "--set workload: expected path=value"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,x\n")
    (tmp_path / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,6\n")
    fine = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,6\n"
    replay = "{kind: trace, path: fine.csv}"
    (tmp_path / "fine.csv").write_text(fine)
    (tmp_path / "link.csv").symlink_to("fine.csv")
    (tmp_path / "folder").mkdir()
    (tmp_path / "replay.yaml").write_text(f"workload: {replay}\n")
    (tmp_path / "mix.yaml").write_text(f"workload: {{kind: mix, parts: {{a: {replay}}}}}\n")
    (tmp_path / "typo.yaml").write_text(f"sede: 3\nworkload: {replay}\n")
    assert run_main(monkeypatch, *arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("vidur-pd: ")
    assert said in err
    assert err.count("\n") == 1
    assert (tmp_path / "fine.csv").read_text() == fine
    assert not list(tmp_path.glob("o.*"))


OWN_COLUMNS = ("--column", "arrived_at_s=ts", "--column", "prefill_tokens=in", "--column", "decode_tokens=out")


def test_traces_of_one_s_own_are_inspected_and_converted_by_their_columns(tmp_path: Path) -> None:
    path, output = tmp_path / "own.jsonl", tmp_path / "own.csv"
    path.write_text('{"ts": 1000, "in": 100, "out": 5}\n{"ts": 3000, "in": 300, "out": 7}\n')
    code, printed, _ = invoke("inspect", path, *OWN_COLUMNS, "--time-unit", "ms", "--json")
    assert code == 0
    assert json.loads(printed)["span_s"] == 2.0
    code, _, _ = invoke("convert", path, *OWN_COLUMNS, "--time-unit", "ms", "-o", output)
    assert code == 0
    assert output.read_text().splitlines()[1:] == ["0,0,100,5", "1,2,300,7"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "), or workload.columns (--column)"),
        (["--column", "when=ts"], "--column: found 'when=ts', expected NAME=COLUMN with NAME one of arrived_at_s"),
        (["--time-unit", "ms"], "--time-unit: found ms without --column, expected both"),
        (["--column", "arrived_at_s=ts", "--time-unit", "h"], "--time-unit: found 'h', expected one of s, ms, us"),
    ],
)
def test_columns_that_name_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"ts": 1000, "in": 100, "out": 5}\n')
    assert run_main(monkeypatch, "inspect", str(path), *more) == 2
    assert message in capsys.readouterr().err
