"""Files that a command writes: refused before any work where they cannot be, and then written whole or not at all.

``-o FILE`` replaces a plain file that stands there, as ``cp`` does, but never a file that the command reads, a folder,
or a file of a result (`boundary.result_folder`).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from boundary.errors import InputError, OutputError
from boundary.result_record import belongs_to_result

_OPEN_FILES = re.compile(r"/proc/\d+/(task/\d+/)?fd|/dev/fd")
"""Folders whose entries are files that a process has open: what ``/dev/stdout`` leads to."""
TEMPORARY_NAME = re.compile(r"\.unfinished-\d+-[0-9a-f]{8}")
"""Files before they are in place; the number is that of the process."""
_MOST_LINKS = 40
"""As Linux follows (path_resolution(7))."""


def check_output(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuses a place where no file can appear, and the files that are read, before the work is done.

    Args:
        path: the file to write. It may be a link to one, a device or a pipe.
        inputs: files that are read; those that do not exist are no concern here.

    Raises:
        InputError: naming ``path``; whatever leads to it (links, hard links, ``..``) is seen through.
    """
    found = _status(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: found a folder, expected the name of a file to write")
    if found is not None and stat.S_ISREG(found.st_mode):
        _check_no_input(path, inputs)
    if found is not None and not os.access(path, os.W_OK):
        raise InputError(f"{path}: found a file that may not be written, expected one that may")
    if not _is_stream(path):
        target = Path(os.path.realpath(path))
        _check_place(path, target)
        if belongs_to_result(target):
            raise InputError(f"{path}: found a file of the result in {path.parent}, expected another one to write")


def _check_no_input(path: Path, inputs: Iterable[Path]) -> None:
    if any(is_same_file(path, source) for source in inputs):
        raise InputError(f"{path}: found the file that is read, expected another one to write")


def is_same_file(path: Path, other: Path) -> bool:
    """Whether both lead to one existing file."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


def make_folder(path: Path) -> None:
    """Makes a folder for output, unless it is there. Raises: InputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made ({reason_of(error)}), expected a folder to write to") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes as `replacing` does; text becomes UTF-8.

    Raises:
        InputError: as `check_output`.
        OutputError: as `replacing`.
    """
    check_output(path)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` if the block succeeds; else what was there stays.

    A link is followed. A device, a pipe or an open file (``/dev/stdout``) is written to as it is.

    Raises:
        OutputError: the disk is full, or something else keeps the file from being written.
    """
    with naming_failures(path):
        if _is_stream(path):
            with path.open("ab") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        temporary = _name_next_to(target)
        try:
            with temporary.open("xb") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def naming_failures(path: Path) -> Iterator[None]:
    """Failures to write in the block, with the name of what was to be written.

    Raises:
        OutputError: in place of any ``OSError``, other than a reader that closed a pipe.
    """
    try:
        yield
    except (OutputError, BrokenPipeError):
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason_of(error)})") from None


def reason_of(error: OSError) -> str:
    """Why a file operation failed, in the words of the system where it says."""
    return os.strerror(error.errno) if error.errno else str(error)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise InputError(f"{path}: found no folder {path.parent}, expected an existing one") from None
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be written ({reason}), expected the name of a file to write") from None


def _check_place(path: Path, target: Path) -> None:
    """Tries to make a file next to ``target``; what file modes say is not all that decides."""
    if not target.parent.is_dir():
        raise InputError(f"{path}: found no folder {path.parent}, expected an existing one")
    temporary = _name_next_to(target)
    try:
        temporary.open("xb").close()
        temporary.unlink()
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{path}: found a folder that cannot be written to ({reason}), expected another") from None


def _name_next_to(target: Path) -> Path:
    return target.with_name(f".unfinished-{os.getpid()}-{secrets.token_hex(4)}")


def _is_stream(path: Path) -> bool:
    """Whether there is something that is written to and not replaced: no plain file, or one that is open already."""
    found = _status(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        return found is not None
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if _OPEN_FILES.fullmatch(folder):
            return True
        if not path.is_symlink():
            break
        path = Path(folder, os.readlink(path))
    return False
