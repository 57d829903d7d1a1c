"""Files that are either written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from boundary.errors import InputError


def check_output(path: Path) -> None:
    """Refuses, before the work is done, a place where no file can appear.

    Raises:
        InputError: ``path`` is a folder, or in none.
    """
    if path.is_dir():
        raise InputError(f"{path}: found a folder, expected the name of a file to write")
    if not path.parent.is_dir():
        raise InputError(f"{path}: found no folder {path.parent}, expected an existing one")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside ``path`` and renames, so a reader or a failure never meets half a file; text becomes UTF-8.

    A link is followed; a device or a pipe is written to.

    Raises:
        InputError: as `check_output`, or the place cannot be written.
    """
    check_output(path)
    data = content.encode() if isinstance(content, str) else content
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        temporary.write_bytes(data)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: expected a writable place, found: {error.strerror}") from error
