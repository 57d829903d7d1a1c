"""Lock of a folder that one process at a time writes into: a hidden file, which the death of the process unlocks."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = ".vidur-pd.lock"


class FolderInUse(OSError):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A lock that is held until `release`."""

    path: Path
    descriptor: int
    keeps_out: bool
    """Whether it keeps others out: not every file system has locks."""

    def release(self) -> None:
        try:
            with suppress(OSError):
                self.path.unlink()
        finally:
            os.close(self.descriptor)


def lock_folder(folder: Path) -> FolderLock:
    """Takes the lock.

    Raises:
        FolderInUse: another process holds it.
        OSError: the file cannot be made, or one of this name was not made here.
    """
    path = folder / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            keeps_out = _flock(descriptor)
            status = os.fstat(descriptor)
            if status.st_size or not stat.S_ISREG(status.st_mode):
                raise FileExistsError(f"found {LOCK_FILE} with something in it")
            if _stands(path, status):
                return FolderLock(path, descriptor, keeps_out)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has just deleted it


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUse("found another process that writes into it") from None
    except OSError:
        return False
    return True


def _stands(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(status, path.lstat())
    except FileNotFoundError:
        return False
