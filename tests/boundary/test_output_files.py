"""Single files: refused where they cannot be, and then whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from boundary.errors import InputError, OutputError
from boundary.output_files import check_output, replacing, write_atomically
from boundary.result_folder import ResultFolder
from tests.ordinary_user import ROOT, folder_for_all, python_as_nobody


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, "né\n")
    assert path.read_bytes() == "né\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == ["a.csv"]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "a.csv").symlink_to("far/b.csv")
    write_atomically(tmp_path / "a.csv", b"new")
    assert (tmp_path / "a.csv").is_symlink()
    assert (tmp_path / "far" / "b.csv").read_bytes() == b"new"
    assert names(tmp_path / "far") == ["b.csv"]


@pytest.mark.parametrize("leads_to_it", ["in.csv", "folder/../in.csv", "link.csv", "hard.csv", "link/in.csv"])
def test_what_is_read_is_not_written_however_it_is_named(tmp_path: Path, leads_to_it: str) -> None:
    (tmp_path / "in.csv").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.csv").symlink_to("in.csv")
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "in.csv")
    (tmp_path / "link").symlink_to(".")
    with pytest.raises(InputError, match=r"\.csv: found the file that is read, expected another one to write"):
        check_output(tmp_path / leads_to_it, [tmp_path / "none.csv", tmp_path / "in.csv"])
    check_output(tmp_path / "out.csv", [tmp_path / "in.csv"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "found a folder, expected the name of a file to write"),
        ("none/a.csv", "found no folder .*none, expected an existing one"),
        ("file/a.csv", "found no folder .*file, expected an existing one"),
        ("a" * 300, "cannot be written (File name too long), expected the name of a file to write"),
        ("round", "cannot be written (Too many levels of symbolic links), expected"),
        ("nowhere", "found no folder"),
        ("out/summary.json", "found a file of the result in .*out, expected another one to write"),
    ],
)
def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("none/a.csv")
    with ResultFolder(tmp_path / "out", {"summary.json"}) as folder:
        (folder.files / "summary.json").write_text("{}")
        folder.place()
    before = names(tmp_path)
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        write_atomically(tmp_path / name, "new")
    assert names(tmp_path) == before
    assert (tmp_path / "out" / "summary.json").read_text() == "{}"


def test_folders_and_files_that_may_not_be_written_are_refused() -> None:
    code = "import sys; from pathlib import Path; from boundary.output_files import write_atomically as write\n"
    code += "try: write(Path(sys.argv[1]), 'new')\nexcept ValueError as error: print(error)"
    python = python_as_nobody()

    def said(path: Path) -> str:
        return subprocess.run([*python, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    with folder_for_all() as folder:
        (folder / "kept.csv").write_text("kept")
        assert "found a folder that cannot be written to (Permission denied), expected another" in said(
            folder / "a.csv"
        )
        folder.chmod(0o777)
        assert "kept.csv: found a file that may not be written, expected one that may" in said(folder / "kept.csv")
        assert names(folder) == ["kept.csv"]


def test_a_failure_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    with suppress(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        file.flush()
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with pytest.raises(OutputError, match=r"a\.csv: cannot be written \(No space left on device\)"), replacing(path):
        raise OSError(28, "words of a library")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_device_is_written_to_and_a_full_one_is_said() -> None:
    write_atomically(Path("/dev/null"), "new")
    with pytest.raises(OutputError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        write_atomically(Path("/dev/full"), "new")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", list[str]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_atomically(path, "new")
    reader.join(timeout=10)
    assert read == ["new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs names of open files")
def test_standard_output_that_goes_on_a_file_is_appended_to(tmp_path: Path) -> None:
    """As with ``-o /dev/stdout >> log``: the log must not be replaced."""
    log = tmp_path / "log"
    log.write_text("before\n")
    code = "from pathlib import Path; from boundary.output_files import write_atomically\n"
    code += "write_atomically(Path('/dev/stdout'), 'new\\n'); print('after')"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=Path(__file__).parents[2])
    assert log.read_text() == "before\nnew\nafter\n"
