"""Files of users: no command changes one, whatever is killed, full, mounted, read-only or already there."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from boundary.folder_lock import LOCK_FILE
from boundary.result_folder import finish_result
from boundary.result_record import RECORD_FILE, STAGING_NAME, fingerprint, read_record
from tests.integration.killed_commands import ROOT, Commands, End
from tests.ordinary_user import NOBODY, folder_for_all, python_as_nobody
from vidur_pd.report import single
from vidur_pd.simulation.api import prepare
from vidur_pd.simulation.output import RESULT_FILES, write_result

from .small_runs import config as small_config
from .small_runs import pool, requests

SOME_KILLS, MANY_KILLS = 10, 150
CONFIG: dict[str, Any] = {
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": {"kind": "trace", "path": "requests.csv"},
    "cluster": {
        "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
        "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
    },
    "routing": {"policy": "random"},
    "engine": {"estimator": "roofline"},  # prices sooner
}
TRACE = "request_id,arrived_at_s,prefill_tokens,decode_tokens\n" + "".join(f"r{i},{i / 10},300,6\n" for i in range(20))


def study(folder: Path) -> Path:
    """A user's folder: a configuration and a trace with names of result files, and other things."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "requests.csv").write_text(TRACE)
    (folder / "thesis").mkdir()
    (folder / "thesis" / "report.html").write_text("years of work")
    (folder / "link").symlink_to("thesis")
    return folder


def things(folder: Path) -> None:
    """What a user may have put beside results."""
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden").write_text("mine")
    (folder / "figures" / "report.html").mkdir(parents=True)
    (folder / "figures" / "requests.csv").write_text("mine")
    (folder / ".vidur-pd-keep").mkdir()


def state(folder: Path, without: Callable[[Path], bool] = lambda path: False) -> dict[str, str]:
    """Everything in a folder with its kind, mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not without(path):
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else ""
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else content
            found[str(path.relative_to(folder))] = f"{status.st_mode:o} {content}"
    return found


def of_results(out: Path) -> Callable[[Path], bool]:
    """Files of results in a folder, hidden ones included."""
    ours = (RECORD_FILE, LOCK_FILE)

    def is_one(path: Path) -> bool:
        if path == out or not path.is_relative_to(out):
            return False
        name = path.relative_to(out).parts[0]
        return name in RESULT_FILES or name in ours or STAGING_NAME.fullmatch(name) is not None

    return is_one


def hidden(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name.startswith(".vidur-pd"))


# Kills --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as started:
        yield started


def one_line_or_none(end: End) -> bool:
    return end.stderr.count("\n") <= 1 and "Traceback" not in end.stderr


def test_killed_commands_leave_the_old_result_or_the_new_one_and_everything_else(
    tmp_path: Path, commands: Commands, request: pytest.FixtureRequest
) -> None:
    """Half of the signals come at any time, half while files are put into place; half of them cannot be caught."""
    is_long = request.config.getoption("--long")
    rng = random.Random(20261123)
    folder = study(tmp_path / "study")
    out = folder / "out"
    things(out)
    users = state(folder, of_results(out))
    commands.run("run", folder / "config.yaml", "-o", out, "--quiet", "--set", "seed=0")
    whole_s = commands.run("run", folder / "config.yaml", "-o", out, "--quiet", "--set", "seed=0").took_s
    counts: Counter[str] = Counter()
    for kill in range(MANY_KILLS if is_long else SOME_KILLS):
        before, seed_before, left_before = read_record(out).files, seed_of(out), set(hidden(out))
        sent = rng.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        kind = rng.choice(["run", "run", "run", "stream", "trace", "report"])
        argv = {
            "run": ["run", folder / "config.yaml", "-o", out, "--quiet", "--set", f"seed={kill + 1}"],
            "report": ["report", out],
        }["report" if kind == "report" else "run"]
        argv += {"stream": ["--stream"], "trace": ["--set", "output.trace=true"]}.get(kind, [])
        if rng.random() < 0.5:
            end = commands.run(*argv, sent=sent, after_s=rng.uniform(0, whole_s))
        else:
            sight = f"{out}/.vidur-pd-[0-9]*/report.html"
            end = commands.run(*argv, sent=sent, after_s=rng.uniform(0, 0.1), sight=sight)
        assert one_line_or_none(end), end
        assert end.code in (0, 128 + sent, -sent), end
        assert state(folder, of_results(out)) == users, (kill, argv, end)
        if end.code != -signal.SIGKILL and end.was_running:
            assert set(hidden(out)) <= left_before, (kill, end)
        was_between = read_record(out).coming is not None
        finish_result(out)  # as whatever reads it does
        record = read_record(out)
        found = {name for name in RESULT_FILES if (out / name).exists()}
        assert found == set(record.files), (kill, argv, end)
        assert all(fingerprint(out / name) == content for name, content in record.files.items()), (kill, argv)
        is_old = record.files == before
        assert is_old or kind == "report" or seed_of(out) == kill + 1
        assert not is_old or seed_of(out) == seed_before
        assert is_old or end.code != -signal.SIGKILL or end.was_running
        assert not (is_old and end.code == 0 and kind != "report")
        counts[f"{sent.name} {'ended before' if not end.was_running else 'old' if is_old else 'new'}"] += 1
        counts["finished by the next reader"] += was_between
    print(dict(sorted(counts.items())))
    assert commands.run("run", folder / "config.yaml", "-o", out, "--quiet").code == 0
    assert hidden(out) == [".vidur-pd-keep", RECORD_FILE]
    assert state(folder, of_results(out)) == users


def seed_of(out: Path) -> int:
    return int(yaml.safe_load((out / "config.yaml").read_text())["seed"])


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_with_one_line_and_leaves_nothing(
    tmp_path: Path, commands: Commands, sent: signal.Signals, code: int
) -> None:
    folder = study(tmp_path / "study")
    before = state(tmp_path)
    end = commands.run(
        *("run", folder / "config.yaml", "-o", tmp_path / "new" / "out", "--quiet"),
        sent=sent,
        sight=f"{tmp_path}/new/out/.vidur-pd-*/",
    )
    assert (end.code, end.stderr) == (code, f"vidur-pd: interrupted by {sent.name}; no file is half written\n")
    assert state(tmp_path) == before


# Files in the way ---------------------------------------------------------------------------------------------


def test_other_files_in_the_folder_stay_and_stale_results_go(tmp_path: Path, commands: Commands) -> None:
    folder = study(tmp_path / "study")
    out = tmp_path / "out"
    things(out)
    mine = state(out)
    assert commands.run("run", folder / "config.yaml", "-o", out, "--quiet", "--set", "output.trace=true").code == 0
    assert (out / "trace.json.gz").exists()
    (out / "later.txt").write_text("mine")
    assert commands.run("run", folder / "config.yaml", "-o", out, "--quiet", "--stream").code == 0
    assert not {"trace.json.gz", "requests.csv"} & {path.name for path in out.iterdir()}
    (out / "later.txt").unlink()
    assert state(out, of_results(out)) == mine


@pytest.mark.parametrize("arguments", [["run", "config.yaml", "-o", "."], ["run", "config.yaml", "-o", "thesis/.."]])
def test_inputs_inside_the_output_folder_are_refused_before_anything_is_simulated(
    tmp_path: Path, commands: Commands, arguments: list[str]
) -> None:
    folder = study(tmp_path / "study")
    before = state(tmp_path)
    end = commands.run(*arguments, folder=folder)
    assert (end.code, end.stderr.count("\n")) == (2, 1), end
    assert "config.yaml: found the file that is read, expected another folder for results" in end.stderr
    assert state(tmp_path) == before


def named_like_a_result(name: str) -> Callable[[Path], list[str | Path]]:
    """A command that reads a file of such a name in its output folder, and names another configuration."""

    def prepare(folder: Path) -> list[str | Path]:
        inside = folder / "out" / name
        inside.parent.mkdir()
        tree = {**CONFIG, "workload": {"kind": "trace", "path": str(folder / "requests.csv")}}
        match name:
            case "requests.csv":
                shutil.copy(folder / "requests.csv", inside)
                tree["workload"] = {"kind": "trace", "path": f"out/{name}"}
            case "config.yaml":  # a topology
                made = subprocess.run(
                    [sys.executable, "-m", "netsim", "topology", "nvswitch", "--gpus-per-node", "2"],
                    cwd=ROOT,
                    capture_output=True,
                    check=True,
                )
                inside.write_bytes(made.stdout)
                tree["cluster"] = {**CONFIG["cluster"], "topology": {"file": f"out/{name}"}}
        (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
        return ["run", folder / "mine.yaml", "-o", folder / "out"]

    return prepare


@pytest.mark.parametrize(
    ("prepare", "name"),
    [
        (named_like_a_result("requests.csv"), "requests.csv: found the file that is read"),
        (named_like_a_result("config.yaml"), "config.yaml: found the file that is read"),
        (
            lambda folder: own_file(folder, "requests.csv"),
            "requests.csv: found something that the program did",
        ),
        (
            lambda folder: own_file(folder, "trace.json.gz"),
            "trace.json.gz: found something that the program did",
        ),
        (
            lambda folder: own_folder(folder, "report.html"),
            "report.html: found something that the program did",
        ),
    ],
)
def test_a_file_of_the_user_under_a_name_of_a_result_is_refused_before_anything_is_simulated(
    tmp_path: Path, commands: Commands, prepare: Callable[[Path], list[str | Path]], name: str
) -> None:
    arguments = prepare(study(tmp_path / "study"))
    before = state(tmp_path)
    end = commands.run(*arguments)
    assert (end.code, end.stderr.count("\n")) == (2, 1), end
    assert name in end.stderr
    assert state(tmp_path) == before


def own_file(folder: Path, name: str) -> list[str | Path]:
    things(folder / "out")
    (folder / "out" / name).write_text("mine")
    return ["run", folder / "config.yaml", "-o", folder / "out"]


def own_folder(folder: Path, name: str) -> list[str | Path]:
    (folder / "out" / name).mkdir(parents=True)
    return ["run", folder / "config.yaml", "-o", folder / "out"]


def test_the_configuration_of_a_result_is_not_run_into_the_same_folder(tmp_path: Path, commands: Commands) -> None:
    folder = study(tmp_path / "study")
    assert commands.run("run", folder / "config.yaml", "-o", folder / "out", "--quiet").code == 0
    before = state(tmp_path)
    end = commands.run("run", folder / "out" / "config.yaml", "-o", folder / "out", "--quiet")
    assert end.code == 2
    assert "config.yaml: found the file that is read" in end.stderr
    (folder / "out" / "summary.json").write_text("edited")
    edited = state(tmp_path)
    end = commands.run("run", folder / "config.yaml", "-o", folder / "out", "--quiet")
    assert (end.code, "summary.json: found changes since it was written" in end.stderr) == (2, True)
    assert state(tmp_path) == edited != before


def test_a_file_that_the_user_puts_there_during_a_run_stays_and_the_result_is_kept(
    tmp_path: Path, commands: Commands
) -> None:
    folder = study(tmp_path / "study")
    command = [sys.executable, "-m", "vidur_pd", "run", str(folder / "config.yaml"), "-o", str(folder / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*command, "--quiet"], env=environment, stderr=subprocess.PIPE, text=True) as running:
        while not list((folder / "out").glob(".vidur-pd-*/")):
            assert running.poll() is None
        (folder / "out" / "requests.csv").write_text("mine")
        (folder / "out" / "other.csv").write_text("mine")
        said = running.communicate(timeout=120)[1]
    assert running.returncode == 1
    assert "requests.csv: found a file that appeared during the run, which stays as it is; the new result is in" in said
    assert said.count("\n") == 1
    [kept] = [path for path in (folder / "out").iterdir() if path.is_dir()]
    assert str(kept) in said
    assert {path.name for path in kept.iterdir()} >= {"requests.csv", "summary.json", "report.html", "config.yaml"}
    shown = {path.name: path.read_text() for path in (folder / "out").iterdir() if path.is_file()}
    assert shown == {"requests.csv": "mine", "other.csv": "mine"}
    assert commands.run("report", kept).code == 0


def test_reports_and_comparisons_replace_only_what_they_are_told_to(tmp_path: Path, commands: Commands) -> None:
    folder = study(tmp_path / "study")

    def said(*arguments: str) -> str:
        before = state(tmp_path)
        end = commands.run(*arguments, folder=folder)
        assert (end.code, end.stderr.count("\n")) == (2, 1), end
        assert state(tmp_path) == before
        return end.stderr

    def succeeds(*arguments: str) -> None:
        end = commands.run(*arguments, folder=folder)
        assert end.code == 0, end

    for seed in ("1", "2"):
        succeeds("run", "config.yaml", "-o", seed, "--quiet", "--set", f"seed={seed}")
    (folder / "comparison.html").write_text("mine")
    assert "comparison.html: found a file, expected -o to say that it may be replaced" in said("report", "1", "2")
    assert "found a file of the result in 2" in said("report", "1", "-o", "2/requests.csv")
    assert "found the file that is read" in said("report", "1", "-o", "1/requests.csv")
    assert "found a folder" in said("report", "1", "2", "-o", "thesis")
    succeeds("report", "1", "2", "-o", "comparison.html")
    (folder / "1" / "report.html").write_text("mine")
    assert "report.html: found changes since it was written" in said("report", "1")
    (folder / "2" / "report.html").unlink()
    succeeds("report", "2", "-o", "2/report.html")
    assert "report.html" in read_record(folder / "2").files
    both = folder / "both"
    both.mkdir()
    (both / "comparison.html").write_text("mine")
    assert "comparison.html: found something that the program did" in said("compare", "config.yaml", "-o", "both")
    (both / "comparison.html").unlink()
    things(both)
    mine = state(both)
    for _ in range(2):
        succeeds("compare", "config.yaml", "-o", "both", "--json")
    assert set(state(both)) >= {*mine, "comparison.html", "fluid/report.html", "analytical/report.html"}
    assert {name: content for name, content in state(both).items() if name in mine} == mine


def test_a_report_that_cannot_be_made_loses_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    simulation = prepare(small_config([pool("m", "mixed")]), requests([(0, 100, 5)]))
    monkeypatch.setattr(single, "run_page", fail)
    with pytest.raises(ZeroDivisionError):
        write_result(simulation.run(), tmp_path)
    assert {"requests.csv", "summary.json", "config.yaml"} <= set(read_record(tmp_path).files)
    assert (tmp_path / "requests.csv").exists()


# Disks --------------------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount file systems")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 12 MB, which is room for two results."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@needs_root
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_mount_point_holds_results_and_a_full_disk_leaves_the_earlier_one(
    tmp_path: Path, small_disk: Path, commands: Commands, is_streamed: bool
) -> None:
    folder = study(tmp_path / "study")
    arguments = ["run", folder / "config.yaml", "-o", small_disk, "--quiet", *["--stream"] * is_streamed]
    for seed in (1, 2):
        end = commands.run(*arguments, "--set", f"seed={seed}")
        assert end.code == 0, end.stderr
    (small_disk / "notes.bin").write_bytes(bytes(2**20))
    free = shutil.disk_usage(small_disk).free
    before = state(tmp_path)
    for left in (1_200_000, 200_000, 60_000, 4096, 0):
        filler = small_disk / "filler"
        filler.write_bytes(bytes(free - left))
        end = commands.run(*arguments, "--set", "seed=3")
        assert (end.code, end.stderr.count("\n")) == (1, 1) or (left == 0 and end.code == 2), end
        assert "No space left on device" in end.stderr
        filler.unlink()
        assert state(tmp_path) == before
    assert commands.run(*arguments, "--set", "seed=3").code == 0
    assert seed_of(small_disk) == 3


def test_files_that_may_not_grow_leave_the_earlier_result(tmp_path: Path, commands: Commands) -> None:
    folder = study(tmp_path / "study")
    assert commands.run("run", folder / "config.yaml", "-o", folder / "out", "--quiet").code == 0
    before = state(tmp_path)
    command = [sys.executable, "-m", "vidur_pd", "run", folder / "config.yaml", "-o", folder / "out", "--quiet"]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert (finished.returncode, finished.stderr.count("\n")) == (1, 1), finished.stderr
    assert "cannot be written (File too large)" in finished.stderr
    assert state(tmp_path) == before


def test_a_read_only_parent_is_no_hindrance_and_a_read_only_folder_is_refused() -> None:
    """As an ordinary user: the folder of the results is theirs, the one that it is in is not."""
    python = python_as_nobody()

    def run(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
        command = [*python, "-m", "vidur_pd", "run", config, "-o", out, "--quiet"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    with folder_for_all() as whole:
        folder = study(whole / "study")
        (folder / "out").mkdir()
        os.chown(folder / "out", NOBODY, NOBODY)
        folder.chmod(0o555)
        for _ in range(2):
            finished = run(folder / "config.yaml", folder / "out")
            assert finished.returncode == 0, finished.stderr
        before = state(whole)
        for place in (folder / "new", folder / "thesis", folder / "thesis" / "deep" / "out"):
            finished = run(folder / "config.yaml", place)
            assert (finished.returncode, finished.stderr.count("\n")) == (2, 1), finished.stderr
            assert f"{place}: cannot be written to (Permission denied), expected a folder that can" in finished.stderr
        assert state(whole) == before


# Ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_id", "said"),
    [
        ("a\rb", "found the character U+000D, expected text on one line without control characters"),
        ("a\nb", "found the character U+000A"),
        ("a\0b", "found the character U+0000"),
        ("\ud800", "found the character U+D800"),
        ("a\x85", "found the character U+0085"),
        ("x" * 2_000_000, "found 2000000 characters, expected at most 1024"),
        ([1], "found [1], expected text or a number"),
    ],
)
def test_an_id_that_no_table_can_hold_is_refused_before_anything_is_simulated(
    tmp_path: Path, commands: Commands, request_id: object, said: str
) -> None:
    rows = [{"timestamp": 0, "input_length": 9, "output_length": 1, "request_id": each} for each in ("a", request_id)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "workload": {"kind": "trace", "path": "t.jsonl"}}))
    end = commands.run("run", path, "-o", tmp_path / "out", "--quiet")
    assert (end.code, end.stderr.count("\n")) == (2, 1), end
    assert "t.jsonl: line 2: request_id: " + said in end.stderr
    assert not (tmp_path / "out").exists()
