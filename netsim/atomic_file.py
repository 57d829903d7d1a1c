"""Files that are either written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from netsim.errors import InputError


def write_text_atomically(path: Path, text: str) -> None:
    """Writes beside ``path`` and renames, so a reader or a failure never meets half a file.

    Raises:
        InputError: the directory does not exist, or the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: expected a writable place, found: {error.strerror}") from error
