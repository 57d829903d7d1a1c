"""Files that a command writes: what cannot be written is refused before any work is done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from boundary.errors import InputError


def check_target(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuses to write where no file can be, or over one of the files that are read. Raises: `InputError`."""
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); expected the name of a file") from None
    if is_folder:
        raise InputError(f"{path}: found a folder, expected the name of a file to write")
    if not has_folder:
        raise InputError(f"{path}: found no folder {path.parent}, expected an existing one")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise InputError(f"{path}: found the file that is read, expected another one to write")
