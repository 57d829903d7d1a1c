"""Folders of results: files of the program are replaced together, all others stay, whenever a process dies."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from boundary import result_folder
from boundary.errors import InputError, OutputError
from boundary.folder_lock import LOCK_FILE, lock_folder
from boundary.result_folder import ResultFolder, finish_result, place_all
from boundary.result_record import RECORD_FILE, read_record

NAMES = {"a.csv", "b.json", "c.html"}
OLD = {"a.csv": "old a", "b.json": "old b"}
NEW = {"a.csv": "new a", "c.html": "new c"}


def write(out: Path, contents: dict[str, str], names: set[str] | None = None) -> None:
    with ResultFolder(out, NAMES if names is None else names) as folder:
        for name, text in contents.items():
            (folder.files / name).write_text(text)
        folder.place()


def shown(out: Path) -> dict[str, str]:
    """Files that a user sees."""
    return {path.name: path.read_text() for path in out.iterdir() if not path.name.startswith(".")}


def hidden(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name.startswith("."))


def test_a_new_result_replaces_the_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    write(out, OLD)
    assert (shown(out), hidden(out)) == (OLD, [RECORD_FILE])
    (out / "notes.txt").write_text("mine")
    (out / "folder").mkdir()
    write(out, NEW)
    assert (out / "folder").is_dir()
    (out / "folder").rmdir()
    assert (shown(out), hidden(out)) == ({**NEW, "notes.txt": "mine"}, [RECORD_FILE])


def test_files_of_other_results_in_the_folder_stay_listed(tmp_path: Path) -> None:
    write(tmp_path, {"comparison.html": "page"}, {"comparison.html"})
    write(tmp_path, OLD)
    write(tmp_path, {"comparison.html": "new page"}, {"comparison.html"})
    assert shown(tmp_path) == {**OLD, "comparison.html": "new page"}
    assert set(read_record(tmp_path).files) == {*OLD, "comparison.html"}


def test_without_place_nothing_changes_and_made_folders_are_gone(tmp_path: Path) -> None:
    with ResultFolder(tmp_path / "deep" / "out", NAMES) as folder:
        (folder.files / "a.csv").write_text("half")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path, OLD)
    with suppress(KeyboardInterrupt), ResultFolder(tmp_path, NAMES) as folder:
        (folder.files / "a.csv").write_text("half")
        raise KeyboardInterrupt
    assert (shown(tmp_path), hidden(tmp_path)) == (OLD, [RECORD_FILE])


def changed(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).write_text("by hand") and None


def linked(out: Path) -> None:
    """What is listed has the same content elsewhere."""
    (out / "a.csv").rename(out / "mine.csv")
    (out / "a.csv").symlink_to("mine.csv")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("a.csv"), "a.csv: found changes since it was written; move it away, or write elsewhere"),
        (changed("b.json"), "b.json: found changes since it was written"),
        (
            changed("c.html"),
            "c.html: found something that .* move it away, or write elsewhere",
        ),
        (lambda out: (out / "c.html").mkdir(), "c.html: found something that the program did"),
        (lambda out: (out / "c.html").symlink_to("nowhere"), "c.html: found something that the program did"),
        (linked, "a.csv: found changes since it was written"),
        (lambda out: (out / RECORD_FILE).unlink(), "a.csv: found something that the program did"),
        (changed(RECORD_FILE), "found no list of files that was written here"),
        (changed(LOCK_FILE), "found .vidur-pd.lock with something in it"),
    ],
)
def test_what_the_user_has_put_under_a_name_is_refused_before_the_work(
    tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    write(tmp_path, OLD)
    change(tmp_path)
    before = {path.name: path.lstat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=said), ResultFolder(tmp_path, NAMES):
        raise AssertionError("the work has begun")
    assert {path.name: path.lstat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_deleted_file_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (tmp_path / "a.csv").unlink()
    write(tmp_path, NEW)
    assert shown(tmp_path) == NEW


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (changed("a.csv"), "a.csv"),
        (changed("b.json"), "b.json"),
        (changed("c.html"), "c.html"),
        (lambda out: (out / RECORD_FILE).unlink(), "a.csv"),
        (changed(RECORD_FILE), RECORD_FILE),
    ],
)
def test_what_appears_during_the_work_stays_and_the_result_is_kept_beside_it(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    write(tmp_path, OLD)
    with ResultFolder(tmp_path, NAMES) as folder:
        for each, text in NEW.items():
            (folder.files / each).write_text(text)
        change(tmp_path)
        theirs = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(OutputError) as raised:
            folder.place()
    [kept] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (shown(kept), hidden(kept)) == (NEW, [RECORD_FILE])
    assert f"{name}: found a file that appeared during the run, which stays as it is" in str(raised.value)
    assert str(raised.value).endswith(f"the new result is in {kept}")
    assert {each.name: each.read_text() for each in tmp_path.iterdir() if each.is_file()} == {
        each: text for each, text in theirs.items() if each != LOCK_FILE
    }
    write(kept, OLD)  # it is a result like any other
    assert shown(kept) == OLD


def test_inputs_are_not_written_over_though_they_are_of_an_earlier_result(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (tmp_path / "link").symlink_to("a.csv")
    for source in (tmp_path / "a.csv", tmp_path / "link"):
        with pytest.raises(InputError, match=r"a\.csv: found the file that is read, expected another folder"):
            ResultFolder(tmp_path, NAMES, [source]).__enter__()
    assert (shown(tmp_path)["a.csv"], hidden(tmp_path)) == ("old a", [RECORD_FILE])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file", "found a file, expected a folder or a new name"),
        ("file/out", "cannot be written to .Not a directory"),
        ("a" * 300, "cannot be written to .File name too long.*, expected a folder that can"),
        ("/proc/out", "cannot be written to .No such file or directory"),
    ],
)
def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=said):
        ResultFolder(tmp_path / name, NAMES).__enter__()
    assert shown(tmp_path) == {"file": "mine"}


def test_two_at_once_are_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with ResultFolder(tmp_path, NAMES) as first:
        with pytest.raises(InputError, match=rf"another process that writes a result .*\(process {os.getpid()}\)"):
            ResultFolder(tmp_path, NAMES).__enter__()
        (first.files / "a.csv").write_text("first")
        first.place()
    assert (shown(tmp_path), hidden(tmp_path)) == ({"a.csv": "first"}, [RECORD_FILE])


def test_leftovers_go_unless_they_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    for number, name in enumerate(("a.csv", "mine.txt", RECORD_FILE)):
        (tmp_path / f".vidur-pd-99-0000000{number}").mkdir()
        (tmp_path / f".vidur-pd-99-0000000{number}" / name).touch()
    (tmp_path / ".vidur-pd-mine").mkdir()
    write(tmp_path, OLD)
    assert hidden(tmp_path) == [".vidur-pd-99-00000001", ".vidur-pd-mine", RECORD_FILE]


def test_without_locks_leftovers_stay_as_they_may_be_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / ".vidur-pd-99-00000000").mkdir()
    write(tmp_path, OLD)
    assert (shown(tmp_path), hidden(tmp_path)) == (OLD, [".vidur-pd-99-00000000", RECORD_FILE])


def test_without_hard_links_files_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write(tmp_path, OLD)
    write(tmp_path, NEW)
    assert shown(tmp_path) == NEW


@pytest.mark.parametrize(
    "text",
    [
        '{"files": {"../a": {"bytes": 1, "sha256": ""}}, "coming": null}',
        '{"files": {".bashrc": {"bytes": 1, "sha256": ""}}, "coming": null}',
        '{"files": {}, "coming": {"folder": "../../etc", "files": {}}}',
        '{"files": {}, "coming": {"folder": ".vidur-pd-1-00000000/..", "files": {}}}',
        '{"files": []}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_record_that_leads_elsewhere_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD_FILE).write_text(text)
    with pytest.raises(InputError, match="found no list of files that was written here"):
        write(tmp_path, OLD)
    assert (tmp_path / RECORD_FILE).read_text() == text


def test_several_results_are_placed_though_one_cannot_be(tmp_path: Path) -> None:
    with ResultFolder(tmp_path / "x", NAMES) as x, ResultFolder(tmp_path / "y", NAMES) as y:
        for folder in (x, y):
            (folder.files / "a.csv").write_text("new")
        (tmp_path / "x" / "a.csv").write_text("mine")
        with pytest.raises(OutputError, match="appeared during the run"):
            place_all([x, y])
    assert shown(tmp_path / "y") == {"a.csv": "new"}


# Deaths -------------------------------------------------------------------------------------------------------


CALLS = ("mkdir", "link", "replace", "rename", "unlink", "rmdir", "fsync")


class Killed(BaseException):
    """Nothing that comes after it reaches the disk."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, calls: int) -> Iterator[list[str]]:
    """In the block, the process dies after so many calls that change the disk; yields those that were made."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if len(made) == calls:
                raise Killed
            made.append(name)
            return call(*arguments, **named)

        return run

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, counted(name, getattr(os, name)))
        yield made


def test_whenever_a_process_dies_the_old_or_the_new_result_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies before every call that changes the disk, also while an earlier death is being made good."""
    outcomes = set()
    for calls in range(1000):
        out = tmp_path / str(calls)
        write(out, OLD)
        (out / "notes.txt").write_text("mine")
        with dying(monkeypatch, calls) as made, suppress(Killed):
            write(out, NEW)
        for again in (1, 4, 6, 9):
            with dying(monkeypatch, again), suppress(Killed):
                finish_result(out)
        finish_result(out)
        found = shown(out)
        assert found in ({**OLD, "notes.txt": "mine"}, {**NEW, "notes.txt": "mine"}), (calls, made)
        assert set(read_record(out).files) == {*found} - {"notes.txt"}
        outcomes.add(found["a.csv"])
        write(out, NEW)
        assert (shown(out), hidden(out)) == ({**NEW, "notes.txt": "mine"}, [RECORD_FILE]), (calls, made)
        if len(made) < calls:
            break
    assert outcomes == {"old a", "new a"}
    assert calls > 15


def test_a_file_that_appears_after_a_death_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result counts already, but one of its files was not in place yet."""
    write(tmp_path, OLD)
    with monkeypatch.context() as patched:
        patched.setattr(result_folder, "_put", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            write(tmp_path, NEW)
    assert read_record(tmp_path).coming is not None
    (tmp_path / "c.html").write_text("mine")
    with pytest.raises(OutputError, match=r"c\.html: found a file that appeared .* the new result is in") as raised:
        finish_result(tmp_path)
    kept = Path(str(raised.value).split(" is in ")[1])
    assert (shown(kept), (tmp_path / "c.html").read_text()) == ({"c.html": "new c"}, "mine")
    assert (tmp_path / "a.csv").read_text() == "new a"
    assert set(read_record(tmp_path).files) == {"a.csv"}


def test_a_full_disk_leaves_the_earlier_result_and_a_failing_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            raise OSError(number, "of a library")

        return call

    write(tmp_path, OLD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail(errno.ENOSPC))
        with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
            write(tmp_path, NEW)
    assert (shown(tmp_path), hidden(tmp_path)) == (OLD, [RECORD_FILE])
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", fail(errno.EIO))
        patched.setattr(os, "rename", fail(errno.EIO))
        with pytest.raises(OutputError, match="found a complete result that cannot be put into place"):
            write(tmp_path, NEW)
    finish_result(tmp_path)
    assert (shown(tmp_path), hidden(tmp_path)) == (NEW, [RECORD_FILE])


def test_the_lock_is_that_of_the_file_that_stands(tmp_path: Path) -> None:
    first = lock_folder(tmp_path)
    with pytest.raises(OSError, match="another process"):
        lock_folder(tmp_path)
    first.release()
    assert list(tmp_path.iterdir()) == []
    lock_folder(tmp_path).release()


def test_the_record_says_what_a_file_holds(tmp_path: Path) -> None:
    write(tmp_path, {"a.csv": "abc"})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert json.loads((tmp_path / RECORD_FILE).read_text()) == {
        "files": {"a.csv": {"bytes": 3, "sha256": digest}},
        "coming": None,
    }
