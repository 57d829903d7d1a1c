"""Record of a result: the hidden file ``.vidur-pd.json``, which says what in a folder the program itself has written.

    {"files": {"requests.csv": {"bytes": 71114, "sha256": "…"}, …}, "coming": null}

A file is the program's as long as it is listed and its content is as listed; everything else is the user's. While a
result is put into place, ``coming`` has the hidden folder that its files come from and what will be listed then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from boundary.errors import InputError

PREFIX = ".vidur-pd"
RECORD_FILE = f"{PREFIX}.json"
STAGING_NAME = re.compile(re.escape(PREFIX) + r"-(\d+)-[0-9a-f]{8}")
"""Hidden folders of unfinished results; the number is that of the process."""
_MOST_RECORD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Content of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Coming:
    """A result that is complete and on its way into place."""

    folder: str
    """Where its files come from."""
    files: Mapping[str, Fingerprint]
    """What the record lists once they are in place."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the program has written in a folder."""

    files: Mapping[str, Fingerprint] = field(default_factory=dict)
    coming: Coming | None = None

    def lists(self, path: Path) -> bool:
        """Whether the file is as it was written, or as it will be when the result is in place."""
        expected = [self.files.get(path.name), self.coming.files.get(path.name) if self.coming else None]
        found = fingerprint(path) if any(expected) else None
        return found is not None and found in expected

    def text(self) -> str:
        """Content of the record file."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_record(folder: Path) -> Record:
    """The record of a folder, empty where there is none.

    Raises:
        InputError: a file of this name that the program did not write.
    """
    path = folder / RECORD_FILE
    try:
        with path.open("rb") as file:
            return _parsed(json.loads(file.read(_MOST_RECORD_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        return Record()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(
            f"{path}: found no list of files that was written here, expected it as it was; move it away, or choose "
            "another folder"
        ) from None


def belongs_to_result(path: Path) -> bool:
    """Whether a file is listed in the record of its folder."""
    try:
        record = read_record(path.parent)
    except InputError:
        return False
    return path.name in record.files or (record.coming is not None and path.name in record.coming.files)


def fingerprint(path: Path) -> Fingerprint | None:
    """Content of a plain file; ``None`` for anything else, a link included, and where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return Fingerprint(status.st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _parsed(tree: Any) -> Record:
    coming = tree["coming"]
    if coming is not None and not STAGING_NAME.fullmatch(coming["folder"]):
        raise ValueError("no hidden folder of an unfinished result")
    return Record(_files(tree["files"]), None if coming is None else Coming(coming["folder"], _files(coming["files"])))


def _files(tree: Any) -> dict[str, Fingerprint]:
    """Names lead nowhere else: a record may come from anyone."""
    found = {str(name): Fingerprint(int(entry["bytes"]), str(entry["sha256"])) for name, entry in tree.items()}
    for name in found:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError("no plain name of a file")
    return found
