"""A folder with the files of one result, which are replaced together; nothing else in it is ever touched.

1. The folder is made if it is missing, and locked (`boundary.folder_lock`) for as long as the result is worked on.
2. New files are written in a hidden folder within it, so that it may be a mount point and its parent read-only.
3. The record (`boundary.result_record`) is replaced by one that also lists the new files as *coming*: from here on the
   new result counts.
4. Each new file is renamed into its place, and files of the earlier result that the new one lacks are deleted.
5. The record is replaced by one that lists the new files only.

A process that is killed before 3 leaves the earlier result, and the hidden folder, which the next one removes. One that
is killed later leaves 4 and 5 to whoever opens the folder next. A name at which something stands that is not listed, or
not as listed, is the user's: it is refused before the work; where it appears during the work, the new result is kept
whole in a folder ``result-…`` next to it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from boundary.errors import InputError, OutputError
from boundary.folder_lock import FolderInUse, FolderLock, lock_folder
from boundary.interruption import deferred
from boundary.output_files import TEMPORARY_NAME, is_same_file, naming_failures, reason_of
from boundary.result_record import (
    PREFIX,
    RECORD_FILE,
    STAGING_NAME,
    Coming,
    Fingerprint,
    Record,
    fingerprint,
    read_record,
)


class ResultFolder:
    """A result that is worked on: within ``with``, files are written into `files`, and `place` puts them in place.

    Without `place` nothing changes, and folders that were made for it are gone again.
    """

    def __init__(self, path: Path, names: Collection[str], inputs: Iterable[Path] = ()) -> None:
        """Nothing happens yet.

        Args:
            path: the folder, existing or not.
            names: what files of such a result may be called. Those that are listed, but not written this time, go.
            inputs: files that are read while the result is worked on.
        """
        self.path = path
        self.names = frozenset(names)
        self._inputs = tuple(inputs)
        self._folder = Path(os.path.realpath(path))
        self._made: list[Path] = []
        self._lock: FolderLock | None = None
        self.files = self._folder / f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
        """Where to write."""

    def __enter__(self) -> Self:
        """Raises:
        InputError: where a result cannot be, or a file of the user would be in its way.
        OutputError: as `finish_result`.
        """
        self._check_inputs()
        try:
            with deferred():
                self._open()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError) and not isinstance(error, OutputError):
                raise InputError(
                    f"{self.path}: cannot be written to ({reason_of(error)}), expected a folder that can"
                ) from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def place(self) -> None:
        """Makes the written files the result.

        Raises:
            OutputError: the disk is full, or a file of the user has appeared under one of the names.
        """
        with naming_failures(self.path):
            new = {path.name: _stored(path) for path in sorted(self.files.iterdir())}
        assert new.keys() <= self.names
        with deferred():
            with naming_failures(self.path):
                self._count(new)
            try:
                self._finish()
            except OutputError:
                raise
            except OSError as failure:
                raise OutputError(
                    f"{self.path}: found a complete result that cannot be put into place ({reason_of(failure)}); "
                    "the next command that writes here tries again"
                ) from None

    def _count(self, new: dict[str, Fingerprint]) -> None:
        """Step 3.

        Raises:
            OutputError: something of the user is in the way; naming the folder that has the new files.
        """
        try:
            record = read_record(self._folder)
        except InputError:
            self._keep_aside(self.files, RECORD_FILE, new)
        if taken := self._taken(record):
            self._keep_aside(self.files, taken, new)
        others = {name: found for name, found in record.files.items() if name not in self.names}
        self._write(replace(record, coming=Coming(self.files.name, {**others, **new})), self.files)

    # The folder before and after.

    def _check_inputs(self) -> None:
        for name in sorted(self.names):
            if any(is_same_file(self._folder / name, source) for source in self._inputs):
                raise InputError(
                    f"{self.path / name}: found the file that is read, expected another folder for results"
                )

    def _open(self) -> None:
        if self._folder.exists() and not self._folder.is_dir():
            raise InputError(f"{self.path}: found a file, expected a folder or a new name")
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._made.append(folder)
        try:
            self._lock = lock_folder(self._folder)
        except FolderInUse:
            raise InputError(
                f"{self.path}: found another process that writes a result into it{_processes(self._folder)}, expected "
                "none; wait for its end, or choose another folder"
            ) from None
        self._finish()
        if self._lock.keeps_out:
            self._remove_leftovers()
        record = read_record(self._folder)
        if taken := self._taken(record):
            unknown = f"something that the program did not write ({RECORD_FILE} does not list it)"
            found = "changes since it was written" if taken in record.files else unknown
            raise InputError(f"{self.path / taken}: found {found}; move it away, or write elsewhere (-o)")
        self.files.mkdir()

    def _close(self) -> None:
        with deferred():
            if self._lock is not None:
                try:
                    with suppress(OSError, InputError):
                        self._finish()
                        _remove(self.files, self.names)
                finally:
                    self._lock.release()
                    self._lock = None
            for folder in reversed(self._made):
                with suppress(OSError):  # it holds something
                    folder.rmdir()
            self._made.clear()

    def _remove_leftovers(self) -> None:
        """Hidden folders of processes that were killed: others than this one are not alive."""
        for entry in self._folder.iterdir():
            if STAGING_NAME.fullmatch(entry.name):
                _remove(entry, self.names)

    # Files into place.

    def _taken(self, record: Record) -> str | None:
        """A name under which something stands that is not a file of the result."""
        for name in sorted(self.names):
            path = self._folder / name
            if os.path.lexists(path) and not record.lists(path):
                return name
        return None

    def _finish(self) -> None:
        """Steps 4 and 5 of a result that counts, wherever they were left.

        Raises:
            OutputError: a file of the user has appeared under one of the names since it counts.
        """
        record = read_record(self._folder)
        if record.coming is None:
            return
        staging, new = self._folder / record.coming.folder, dict(record.coming.files)
        staging.mkdir(exist_ok=True)
        left = {}
        for name in sorted(new):
            if (staging / name).exists() and not _put(staging / name, self._folder / name, record):
                left[name] = new.pop(name)
        for name in record.files.keys() - new.keys() - left.keys():
            if fingerprint(self._folder / name) == record.files[name]:
                (self._folder / name).unlink()
        self._write(Record(new), staging)
        if left:
            self._keep_aside(staging, min(left), left)
        _remove(staging, ())

    def _write(self, record: Record, staging: Path) -> None:
        """Replaces the record."""
        temporary = staging / RECORD_FILE
        temporary.write_text(record.text(), encoding="utf-8")
        _stored(temporary)
        os.replace(temporary, self._folder / RECORD_FILE)

    def _keep_aside(self, staging: Path, taken: str, files: dict[str, Fingerprint]) -> NoReturn:
        """Raises:
        OutputError: always, naming the folder that now holds the new files.
        """
        (staging / RECORD_FILE).write_text(Record(files).text(), encoding="utf-8")
        kept = staging.name.replace(PREFIX, "result", 1)
        os.rename(staging, self._folder / kept)
        raise OutputError(
            f"{self.path / taken}: found a file that appeared during the run, which stays as it is; the new result is "
            f"in {self.path / kept}"
        )


def place_all(results: Sequence[ResultFolder]) -> None:
    """Puts several results into place, also those after one that cannot be.

    Raises:
        OutputError: of the first that could not be put into place.
    """
    failures = []
    for result in results:
        try:
            result.place()
        except OutputError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def finish_result(path: Path) -> None:
    """Puts a result into place that a killed process has left on its way, for those who read it.

    Raises:
        InputError: the folder cannot be written to, or another process is at it.
        OutputError: a file of the user has appeared under one of the names; what stays aside is named.
    """
    if read_record(path).coming is not None:
        with ResultFolder(path, ()):
            pass


def _put(source: Path, target: Path, record: Record) -> bool:
    """Moves a file to its place, over a file of the result or over nothing; says whether it is there."""
    if record.lists(target):
        os.replace(source, target)
        source.unlink(missing_ok=True)  # a renaming leaves two names of one file as they are
        return True
    try:
        os.link(source, target)  # unlike a renaming, never over what has just appeared
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            return False
        os.rename(source, target)
        return True
    source.unlink()
    return True


def _stored(path: Path) -> Fingerprint:
    """Content of a file that has reached the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    found = fingerprint(path)
    assert found is not None, f"{path} is no plain file"
    return found


def _remove(staging: Path, names: Collection[str]) -> None:
    """Deletes a hidden folder, unless it holds anything else than files of these names."""
    with suppress(OSError):
        entries, ours = list(staging.iterdir()), {*names, RECORD_FILE}
        if not staging.is_symlink() and all(e.name in ours or TEMPORARY_NAME.fullmatch(e.name) for e in entries):
            for entry in entries:
                entry.unlink()
            staging.rmdir()


def _processes(folder: Path) -> str:
    numbers = [found.group(1) for entry in folder.iterdir() if (found := STAGING_NAME.fullmatch(entry.name))]
    return f" (process {', '.join(numbers)})" if numbers else ""
